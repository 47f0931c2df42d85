"""Reading, replacing and deleting parts of values. Nothing is changed in place: what is replaced is copied on the way.

A path is a sequence of keys: strings for objects, numbers for arrays, `{"start", "end"}` for slices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from perdure.core.jq.limits import NESTED, Meter, Raised
from perdure.core.jq.order import equal, ordered
from perdure.core.jq.text import brief, is_nan, kind

_NUMBERS = frozenset({int, float})
#: No array of an expression is longer.
_LONGEST_ARRAY = 2**29


def index(meter: Meter, value: Any, key: Any) -> Any:
    """`value[key]`; null where there is nothing."""
    kind_value, kind_key = type(value), type(key)
    if kind_value is dict and kind_key is str:
        return value.get(key)
    if kind_value is list and kind_key in _NUMBERS:
        place = place_of(key)
        if place is None:
            return None
        if place < 0:
            place += len(value)
        return value[place] if 0 <= place < len(value) else None
    if kind_key is dict and kind_value in (list, str):
        start, end = _bounds(len(value), key)
        meter.make(end - start)
        return value[start:end]
    if kind_value is list and kind_key is list:
        return indices(meter, value, key)
    if value is None and (kind_key in (str, dict) or kind_key in _NUMBERS):
        return None
    raise Raised(f"Cannot index {kind(value)} with {kind(key)} ({brief(meter, key)})")


def place_of(key: int | float) -> int | None:
    if is_nan(key):
        return None
    return int(max(-(2**31), min(key, 2**31 - 1)))


def _bounds(length: int, key: dict[str, Any]) -> tuple[int, int]:
    start = key.get("start", "")
    end = key.get("end", "")
    start = 0 if start is None else start
    end = length if end is None else end
    if type(start) not in _NUMBERS or type(end) not in _NUMBERS:
        raise Raised("Array/string slice indices must be integers")
    start = 0 if is_nan(start) else start
    end = length if is_nan(end) else end
    if start < 0:
        start = max(start + length, 0)
    first = int(min(start, length))
    if end < 0:
        end += length
        end = first if end < 0 else end
    last = min(math.ceil(min(end, length)), length)
    return first, max(first, last)


def indices(meter: Meter, value: list[Any], part: list[Any]) -> list[int]:
    """Where the array `part` stands in `value`."""
    meter.work(len(value) * max(1, len(part) >> 2))
    if not part:
        return []
    return [
        place
        for place in range(len(value) - len(part) + 1)
        if all(equal(meter, value[place + offset], item) for offset, item in enumerate(part))
    ]


def _put(meter: Meter, value: Any, key: Any, new: Any) -> Any:
    """A copy of `value` in which `key` has another value."""
    kind_value, kind_key = type(value), type(key)
    if kind_key is str and (kind_value is dict or value is None):
        meter.make(len(value or ()) + 1)
        return {**(value or {}), key: new}
    if kind_key in _NUMBERS and (kind_value is list or value is None):
        return _put_item(meter, value or [], key, new)
    if kind_key is dict and (kind_value is list or value is None):
        items = value or []
        start, end = _bounds(len(items), key)
        if type(new) is not list:
            raise Raised("A slice of an array can only be assigned another array")
        meter.make(len(items) + len(new))
        return items[:start] + new + items[end:]
    if kind_key is dict and kind_value is str:
        raise Raised("Cannot update string slices")
    raise Raised(f"Cannot update field at {kind(key)} index of {kind(value)}")


def _put_item(meter: Meter, items: list[Any], key: int | float, new: Any) -> list[Any]:
    place = place_of(key)
    if place is None:
        raise Raised("Cannot set array element at NaN index")
    if place < 0:
        place += len(items)
        if place < 0:
            raise Raised("Out of bounds negative array index")
    if place >= _LONGEST_ARRAY:
        raise Raised("Array index too large")
    meter.make(max(len(items), place + 1))
    copy = items + [None] * (place + 1 - len(items))
    copy[place] = new
    return copy


def _check(path: Any) -> None:
    if type(path) not in (list, tuple):
        raise Raised("Path must be specified as an array")
    if len(path) > NESTED:
        raise Raised("Path too deep")


def get_path(meter: Meter, value: Any, path: Sequence[Any]) -> Any:
    _check(path)
    meter.work(len(path))
    for key in path:
        value = index(meter, value, key)
    return value


def set_path(meter: Meter, value: Any, path: Sequence[Any], new: Any) -> Any:
    _check(path)
    meter.work(len(path) + 1)
    values = []
    for key in path:
        values.append(value)
        value = index(meter, value, key)
    for key, old in zip(reversed(path), reversed(values), strict=True):
        new = _put(meter, old, key, new)
    return new


def delete_paths(meter: Meter, value: Any, paths: Any) -> Any:
    if type(paths) is not list:
        raise Raised("Paths must be specified as an array")
    for path in paths:
        if type(path) not in (list, tuple):
            raise Raised(f"Path must be specified as array, not {kind(path)}")
        if len(path) > NESTED:
            raise Raised("Path too deep")
    if not paths:
        return value
    lists = [list(path) for path in paths]
    in_order = [path for path, _ in ordered(meter, lists, lists)]
    if not in_order[0]:
        return None
    return _delete(meter, value, in_order, 0)


def _delete(meter: Meter, value: Any, paths: list[list[Any]], level: int) -> Any:
    """Delete sorted paths that agree up to `level`."""
    whole: list[Any] = []
    first = 0
    while first < len(paths):
        key = paths[first][level]
        last = first + 1
        while last < len(paths) and equal(meter, key, paths[last][level]):
            last += 1
        if len(paths[first]) == level + 1:
            whole.append(key)
        else:
            inner = index(meter, value, key)
            if inner is not None:
                value = _put(meter, value, key, _delete(meter, inner, paths[first:last], level + 1))
        first = last
    return _delete_keys(meter, value, whole)


def _delete_keys(meter: Meter, value: Any, keys: list[Any]) -> Any:
    if value is None or not keys:
        return value
    if type(value) is list:
        meter.make(len(value))
        meter.work(len(keys))
        gone: set[int] = set()
        for key in keys:
            if type(key) in _NUMBERS:
                place = place_of(key)
                if place is not None:
                    gone.add(place + len(value) if place < 0 else place)
            elif type(key) is dict:
                meter.work(len(value))
                gone.update(range(*_bounds(len(value), key)))
            else:
                raise Raised(f"Cannot delete {kind(key)} element of array")
        return [item for place, item in enumerate(value) if place not in gone]
    if type(value) is dict:
        meter.make(len(value))
        for key in keys:
            if type(key) is not str:
                raise Raised(f"Cannot delete {kind(key)} field of object")
        names = set(keys)
        return {name: item for name, item in value.items() if name not in names}
    raise Raised(f"Cannot delete fields from {kind(value)}")
