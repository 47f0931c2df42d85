"""The data of a state, and how results and payloads are merged into it.

Rules kept here: objects are merged key by key, and of two values the new one wins; lists become one with the elements
of both, each once; a list or an object is merged with its like only, and null with anything. What several things did
side by side is merged in the order in which the workflow has them, so it does not matter who was faster.
"""

from __future__ import annotations

from typing import Any

from perdure.errors import InvalidValue
from perdure.flows.document.terms import Expression, See


class Target:
    """A place in the data: `${ .order.items }`."""

    def __init__(self, path: Expression) -> None:
        self._path = path

    def path(self, value: Any, see: See) -> list[Any]:
        found: list[Any] = self._path.of(value, see)
        return found


class Data:
    """The data while a state works on it, and what was merged into it."""

    def __init__(self, value: Any, see: See) -> None:
        self.value = value
        self._see = see
        self._merged: list[tuple[Target | None, Any, bool]] = []

    def add(self, target: Target | None, value: Any, *, append: bool = False) -> None:
        """Merge a value into the data at a place; or, if it is to be appended, a list to the one that is there."""
        path = [] if target is None else target.path(self.value, self._see)
        self.value = _put(self.value, path, value, append)
        self._merged.append((target, value, append))

    def copy(self, value: Any = None) -> Data:
        """The same data, for what runs beside others."""
        return Data(self.value if value is None else value, self._see)

    def take(self, other: Data) -> None:
        """Merge what was merged into a copy."""
        for target, value, append in other._merged:
            self.add(target, value, append=append)


def merged(old: Any, new: Any, at: str = "") -> Any:
    """Two values as one.

    >>> merged({"a": [1, 2], "b": {"c": 1}}, {"a": [2, 3], "b": {"d": 2}})
    {'a': [1, 2, 3], 'b': {'c': 1, 'd': 2}}
    """
    if old is None or new is None:
        return new
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: merged(old.get(key), value, f"{at}.{key}") for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return _united(old, new)
    if isinstance(old, dict | list) or isinstance(new, dict | list):
        raise InvalidValue(
            f"{_kind(new)} cannot be merged into {_kind(old)} at {at or '.'} of the data: say with toStateData where"
            " it belongs, or shape it with a filter"
        )
    return new


def _united(old: list[Any], new: list[Any]) -> list[Any]:
    found = list(old)
    for one in new:
        if not any(_same(one, other) for other in found):
            found.append(one)
    return found


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _put(data: Any, path: list[Any], value: Any, append: bool, at: str = "") -> Any:
    if not path:
        if append and (data is None or isinstance(data, list)):
            return [*(data or []), *value]
        return merged(data, value, at)
    key, *rest = path
    if isinstance(key, str) and (data is None or isinstance(data, dict)):
        inner = {} if data is None else data
        return {**inner, key: _put(inner.get(key), rest, value, append, f"{at}.{key}")}
    if isinstance(key, int) and isinstance(data, list) and -len(data) <= key < len(data):
        made = list(data)
        made[key] = _put(data[key], rest, value, append, f"{at}[{key}]")
        return made
    raise InvalidValue(f"there is no place {key!r} in {_kind(data)} at {at or '.'} of the data")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return "a text"
        case bool():
            return "a boolean"
        case _:
            return "a number"
