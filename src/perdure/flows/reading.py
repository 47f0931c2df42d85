"""Definitions as text: JSON or YAML becomes plain data, and plain data one row of bytes with one hash.

The text may come from anybody, so it is bounded in length, depth and number of values, and refused at the first thing
that is not plain: tags, anchors, aliases, merge keys, keys that are not strings, a key twice, numbers that JSON does
not have. YAML is read as its version 1.2 means it: `on` and `no` are strings, and so are dates. What is refused is an
InvalidValue with file, line and column.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any, NoReturn, Protocol

import msgspec
import yaml
from msgspec import Struct

from perdure.errors import InvalidValue

#: What a definition, as a text or as data, may have at most: bytes, levels, values. They are no settings: what one
#: process publishes, every other must be able to read.
LENGTH, DEPTH, VALUES = 256 * 1024, 64, 10_000


class Most(Struct, frozen=True):
    """How much of what is read; `fix` is what helps against too much of it."""

    length: int = LENGTH
    values: int = VALUES
    what: str = "a definition"
    fix: str = ""


DEFINITION = Most()


def description(length: int) -> Most:
    """Descriptions of APIs may be longer than definitions, and have as many more values."""
    values = max(VALUES, VALUES * length // LENGTH)
    return Most(length, values, "the description of an API", ": raise description_bytes")


def read(text: str | bytes, name: str = "definition", most: Most = DEFINITION) -> Any:
    """The data of a text. JSON if its name or its first character says so, else YAML."""
    size = len(text)
    if size <= most.length and isinstance(text, str):
        size = len(text.encode(errors="replace"))
    if size > most.length:
        raise _too_long(name, f"{size:,} bytes or more", most)
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidValue(f"{name}: this is not UTF-8: {error}") from error
    text = text.removeprefix("\ufeff")
    data = _Json(text, name, most).read() if _is_json(text, name) else _read_yaml(text, name, most)
    return plain(data, name, most)


def _is_json(text: str, name: str) -> bool:
    if name.endswith((".yaml", ".yml")):
        return False
    return name.endswith(".json") or text.lstrip()[:1] in ("{", "[")


def plain(value: Any, name: str = "definition", most: Most = DEFINITION) -> Any:
    """A copy as plain JSON, keys sorted, within the limits; InvalidValue for what is not plain."""
    count = _Count(most)
    todo: list[tuple[Any, int, str]] = [(value, 1, "")]
    while todo:
        one, depth, path = todo.pop()
        count.value(depth, partial(_refuse, name, path))
        if isinstance(one, Mapping):
            for key, inner in one.items():
                if not isinstance(key, str):
                    raise InvalidValue(f"{name}: keys are strings, and {key!r} in {path or 'it'} is not")
                _check_text(key, name)
                todo.append((inner, depth + 1, f"{path}.{key}".lstrip(".")))
        elif isinstance(one, list | tuple):
            todo += [(inner, depth + 1, f"{path}[{index}]") for index, inner in enumerate(one)]
        else:
            _check_scalar(one, name, path or "it")
    data = canonical(value)
    if len(data) > most.length:
        raise _too_long(name, f"{len(data):,} bytes", most)
    return msgspec.json.decode(data)


def _too_long(name: str, size: str, most: Most) -> InvalidValue:
    return InvalidValue(f"{name}: {size} are too much: {most.what} has at most {most.length:,}{most.fix}")


def _refuse(name: str, path: str, why: str) -> NoReturn:
    raise InvalidValue(f"{name}: {path[:200] or 'it'}: {why}")


def canonical(value: Any) -> bytes:
    """The one way to write plain data: sorted keys, nothing between, UTF-8."""
    return msgspec.json.encode(value, order="sorted")


def content_hash(value: Any) -> str:
    """What tells one content from another."""
    return hashlib.sha256(canonical(value)).hexdigest()


class _Count:
    """Refuses what is too deep or too much."""

    def __init__(self, most: Most) -> None:
        self.most = most
        self.values = 0

    def value(self, depth: int, refuse: Callable[[str], NoReturn]) -> None:
        self.values += 1
        if depth > DEPTH:
            refuse(f"nested deeper than {DEPTH}")
        if self.values > self.most.values:
            refuse(f"more than {self.most.values:,} values{self.most.fix}")


def _check_scalar(value: Any, name: str, path: str) -> None:
    match value:
        case None | bool():
            pass
        case str():
            _check_text(value, f"{name}: {path}")
        case int():
            if not -(2**63) <= value < 2**64:
                raise InvalidValue(f"{name}: {path} has {value.bit_length()} bits, and a number at most 64")
        case float():
            if not math.isfinite(value):
                raise InvalidValue(f"{name}: {path} is {value}, which JSON does not have")
        case _:
            raise InvalidValue(f"{name}: {path} is a {type(value).__name__}, which JSON does not have")


def _check_text(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"{place}: half of a character (a lone surrogate) cannot be stored") from error


# JSON, by hand: the parser of the standard library does not say where a key is given twice, and has no limit of depth.

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"-?[A-Za-z]+")


class _Json:
    def __init__(self, text: str, name: str, most: Most) -> None:
        self.text = text
        self.name = name
        self.at = 0
        self._count = _Count(most)

    def read(self) -> Any:
        value = self._value(1)
        self._skip()
        if self.at < len(self.text):
            self._refuse("there is more after the end")
        return value

    def _value(self, depth: int) -> Any:
        self._skip()
        self._count.value(depth, self._refuse)
        match self.text[self.at : self.at + 1]:
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"':
                return self._string()
            case "":
                return self._refuse("it ends too early")
            case _:
                return self._number_or_word()

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.at += 1
        if self._next() == "}":
            self.at += 1
            return found
        while True:
            if self._next() != '"':
                self._refuse("a key in double quotes is expected here")
            begin = self.at
            key = self._string()
            if key in found:
                self._refuse(f"the key {key!r} is given twice", begin)
            if self._next() != ":":
                self._refuse("a colon is expected here")
            self.at += 1
            found[key] = self._value(depth + 1)
            if self._over("}"):
                return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        if self._next() == "]":
            self.at += 1
            return found
        while True:
            found.append(self._value(depth + 1))
            if self._over("]"):
                return found

    def _over(self, end: str) -> bool:
        """After a value: whether it was the last."""
        sign = self._next()
        if sign not in (",", end):
            self._refuse(f"a comma or {end} is expected here")
        self.at += 1
        return sign == end

    def _string(self) -> str:
        try:
            text, self.at = scanstring(self.text, self.at + 1, True)
        except JSONDecodeError as error:
            self._refuse(error.msg, error.pos)
        return str(text)

    def _number_or_word(self) -> Any:
        if (found := _WORD.match(self.text, self.at)) is not None and found[0] in _WORDS:
            self.at = found.end()
            return _WORDS[found[0]]
        number = _NUMBER.match(self.text, self.at)
        if number is None:
            self._refuse(f"{found[0]!r} is no value of JSON" if found is not None else "a value is expected here")
        value = _number(number[0], bool(number[2] or number[3]))
        if value is None:
            self._refuse(f"the number {number[0][:40]} is too large")
        self.at = number.end()
        return value

    def _next(self) -> str:
        self._skip()
        return self.text[self.at : self.at + 1]

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def _refuse(self, why: str, at: int | None = None) -> NoReturn:
        end = self.at if at is None else at
        line, column = self.text.count("\n", 0, end) + 1, end - self.text.rfind("\n", 0, end)
        raise InvalidValue(f"{self.name}:{line}:{column}: {why}")


def _number(text: str, real: bool) -> int | float | None:
    """None for what is out of range."""
    if real:
        return value if math.isfinite(value := float(text)) else None
    whole = int(text) if len(text) <= 21 else 2**64
    return whole if -(2**63) <= whole < 2**64 else None


# YAML, from the events of its parser: nothing is made of it that was not looked at.

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_BASED = re.compile(r"0o[0-7]{1,21}|0x[0-9a-fA-F]{1,16}")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class _Parser(Protocol):
    def check_event(self) -> bool: ...
    def get_event(self) -> Any: ...
    def dispose(self) -> None: ...


def _read_yaml(text: str, name: str, most: Most) -> Any:
    # The one in C is many times faster; it comes with most builds.
    parser: _Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        return _Yaml(name, _events(parser), most).read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        raise InvalidValue(f"{place}: this is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise InvalidValue(f"{name}: this is not YAML: {' '.join(str(error).split())}") from error
    finally:
        parser.dispose()


def _events(parser: _Parser) -> Iterator[Any]:
    while parser.check_event():
        yield parser.get_event()


class _Yaml:
    def __init__(self, name: str, events: Iterator[Any], most: Most) -> None:
        self.name = name
        self._events = events
        self._count = _Count(most)

    def read(self) -> Any:
        value = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "a second document begins here: give each definition a file of its own")
                value = self._value(next(self._events), 1)
        return value

    def _value(self, event: Any, depth: int) -> Any:
        self._check(event)
        self._count.value(depth, partial(self._refuse, event))
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            found = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                found.append(self._value(event, depth + 1))
            return found
        return self._scalar(event)

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            self._check(event)
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key is a string")
            if event.implicit[0] and event.value == "<<":
                self._refuse(event, "merge keys are not allowed: write the values out")
            key = self._scalar(event)
            if not isinstance(key, str):
                self._refuse(event, f"a key is a string: write '{event.value}' in quotes")
            if key in found:
                self._refuse(event, f"the key {key!r} is given twice")
            found[key] = self._value(next(self._events), depth + 1)
        return found

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0]:  # in quotes, or a block
            return text
        if _NULL.fullmatch(text):
            return None
        if word := _BOOL.fullmatch(text):
            return bool(word[1])
        if _NOT_FINITE.fullmatch(text):
            self._refuse(event, f"{text} is a number that JSON does not have")
        if not (_FLOAT.fullmatch(text) or _BASED.fullmatch(text)):
            return text
        if _INT.fullmatch(text) and len(digits := text.lstrip("+-")) > 1 and digits[0] == "0":
            self._refuse(event, f"a number does not begin with 0: write '{text}' in quotes, or 0o… if it is octal")
        value = int(text, 0) if _BASED.fullmatch(text) else _number(text, not _INT.fullmatch(text))
        if value is None or value >= 2**64:
            self._refuse(event, f"the number {text[:40]} is too large")
        return value

    def _check(self, event: Any) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._refuse(event, "aliases are not allowed: write the value out")
        if event.anchor is not None:
            self._refuse(event, "anchors are not allowed: write the value out")
        if event.tag is not None:
            self._refuse(event, f"tags such as {event.tag} are not allowed")

    def _refuse(self, event: Any, why: str) -> NoReturn:
        raise InvalidValue(f"{self.name}:{event.start_mark.line + 1}:{event.start_mark.column + 1}: {why}")
