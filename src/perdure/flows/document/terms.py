"""Expressions of documents, compiled: values, conditions and durations.

Rules kept here: whatever is wrong with one is found when the document is read, as an InvalidValue; an expression gets
exactly those of the names in scope that it mentions; text around `${ }` is joined to what the expressions give, and
only a text that is one `${ }` as a whole keeps the type of its value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from perdure.core import jq
from perdure.core.durations import LONGEST, span
from perdure.errors import ExpressionError, InvalidValue

#: What expressions may name: before the input of a task is made, in the task, and about its output.
BEFORE = ("context", "secrets", "task", "workflow", "runtime")
INSIDE = (*BEFORE, "input")
AFTER = (*INSIDE, "output")
#: Of the workflow itself: its input, and its output.
FIRST = ("secrets", "workflow", "runtime")
LAST = ("context", *FIRST)

See: TypeAlias = Mapping[str, Any]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMED = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_JOINED = 'map(if type == "object" or type == "array" then error("a text cannot have \\(type) in it")'
_JOINED += ' elif type == "string" then . else tojson end) | add'
_UNITS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000, "milliseconds": 1}


class Expression:
    """An expression, with or without `${ }` around it."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        bare = jq.expression(text)
        self._names = _mentioned(bare, names)
        self._program = jq.compile(bare, self._names)

    def of(self, data: Any, see: See) -> Any:
        return self._program.one(data, **{name: see[name] for name in self._names})

    def true(self, data: Any, see: See) -> bool:
        return self._program.true(data, **{name: see[name] for name in self._names})


class Value:
    """A value in which texts may have expressions. A `bare` text is one also without `${ }`."""

    def __init__(self, value: Any, names: Sequence[str], *, bare: bool = False) -> None:
        value = f"${{ {value} }}" if bare and isinstance(value, str) and _is_bare(value, names) else _joined(value)
        self._names = _mentioned(json.dumps(value), names)
        self._template = jq.Template(value, self._names)

    def of(self, data: Any, see: See) -> Any:
        return self._template.fill(data, **{name: see[name] for name in self._names})


class Length:
    """A duration: ISO 8601, an object of units, or an expression that gives one of them."""

    def __init__(self, value: Any, names: Sequence[str]) -> None:
        self._value = Value(value, names)
        if not (isinstance(value, str) and "${" in value):
            length(value, 0)

    def of(self, data: Any, see: See, start: int) -> int:
        """In microseconds, from this moment on."""
        try:
            return length(self._value.of(data, see), start)
        except ExpressionError:
            raise
        except InvalidValue as error:
            raise ExpressionError(str(error)) from None


def length(value: Any, start: int) -> int:
    """A duration from a moment on in microseconds, or InvalidValue.

    >>> length({"minutes": 1, "milliseconds": 500}, 0), length("PT1.5S", 0)
    (60500000, 1500000)
    """
    if isinstance(value, Mapping):
        if not value or value.keys() - _UNITS.keys() or any(not _counts(one) for one in value.values()):
            raise InvalidValue(f"a duration is an object of whole numbers of {', '.join(_UNITS)}")
        total: int = sum(_UNITS[unit] * count * 1_000 for unit, count in value.items())
        if total > LONGEST:
            raise InvalidValue("this is not a duration: it is longer than 10,000 years")
        return total
    if isinstance(value, str) and value.startswith("P"):
        return span(value, start)
    raise InvalidValue(
        f"{str(value)[:80]!r} is not a duration: give one such as PT30S, or an object such as seconds: 30"
    )


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_whole(value: Any) -> bool:
    """Whether a value is a text that is one expression, and nothing around it.

    >>> is_whole(" ${ .a } "), is_whole("${ .a } of ${ .b }"), is_whole(".a")
    (True, False, False)
    """
    if not jq.is_expression(value):
        return False
    try:
        return len(list(pieces(value.strip()))) == 1
    except ExpressionError:
        return True  # what is wrong with it is found where it is compiled


def unknown(value: Any) -> Any:
    """The value with every text that has an expression in it made one: what comes of it is not known before."""
    if isinstance(value, list):
        return [unknown(one) for one in value]
    if isinstance(value, dict):
        return {name: unknown(one) for name, one in value.items()}
    return "${ . }" if isinstance(value, str) and "${" in value else value


def pieces(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a text: whether each is an expression, and the part.

    >>> list(pieces('to ${ .a | "}" }!'))
    [(False, 'to '), (True, '.a | "}"'), (False, '!')]
    """
    at = 0
    while (begin := text.find("${", at)) >= 0:
        if begin > at:
            yield False, text[at:begin]
        at = _end(text, begin + 2)
        yield True, text[begin + 2 : at - 1].strip()
    if at < len(text):
        yield False, text[at:]


def _end(text: str, at: int) -> int:
    """Behind the brace that ends an expression: braces in strings, and in what stands inside them, do not."""
    ends = ["}"]
    while at < len(text):
        char = text[at]
        if ends[-1] == '"':
            if char == "\\":
                at += 1
                if text[at : at + 1] == "(":
                    ends.append(")")
            elif char == '"':
                ends.pop()
        elif char == '"':
            ends.append('"')
        elif char in _PAIRS:
            ends.append(_PAIRS[char])
        elif char == ends[-1]:
            ends.pop()
            if not ends:
                return at + 1
        at += 1
    raise ExpressionError(f"an expression in {text[:200]!r} has no end: a closing brace is missing")


def _joined(value: Any) -> Any:
    """The value with every text that has expressions in it made one expression."""
    if isinstance(value, list):
        return [_joined(one) for one in value]
    if isinstance(value, dict):
        return {name: _joined(one) for name, one in value.items()}
    if not isinstance(value, str) or "${" not in value:
        return value
    parts = list(pieces(value.strip() if jq.is_expression(value) else value))
    if len(parts) == 1:
        return f"${{ {parts[0][1]} }}"
    texts = [f"({part})" if computed else json.dumps(part) for computed, part in parts]
    return f"${{ [{', '.join(texts)}] | {_JOINED} }}"


def _is_bare(text: str, names: Sequence[str]) -> bool:
    """Whether a text is an expression without braces; in a string of its own an expression may well have some."""
    if "${" not in text:
        return True
    try:
        jq.compile(text, tuple(names))
    except ExpressionError:
        return False
    return True


def _mentioned(text: str, names: Sequence[str]) -> tuple[str, ...]:
    found = set(_NAMED.findall(text))
    return tuple(name for name in dict.fromkeys(names) if name in found)
