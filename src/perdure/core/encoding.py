"""Values to JSON and back to plain values: what can be stored, and nothing else.

Rules kept here: a value is stored so that it can be read back as it was, or it is refused with the place; equal values
give equal bytes in every process, so sets are sorted, while dicts keep their order; never pickle. Checking is cheap
because it looks at the encoded bytes first and walks the value only when they hold something that may be wrong.
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, time
from enum import Enum
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.errors import InvalidValue

DEPTH = 200  # of nesting: deeper values cannot be read back on every Python

_LEAVES = frozenset({str, int, float, bool, type(None), bytes})
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search  # a MessagePack float that is NaN or infinite
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000").search
_OFFSET = re.compile(rb':[0-9][0-9](?:\.[0-9]+)?[+-][0-9][0-9]:[0-9][0-9]"').search  # a time zone other than UTC
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SUPPORTED = "use dataclasses, msgspec Structs, pydantic models, enums, or plain JSON types"


def encode(value: object) -> bytes:
    """The value as JSON, or InvalidValue with the place of what cannot be stored.

    >>> from dataclasses import dataclass
    >>> from decimal import Decimal
    >>> @dataclass
    ... class Line:
    ...     sku: str
    ...     price: Decimal
    >>> encode([Line("tea", Decimal("4.50")), {"b", "a"}])
    b'[{"sku":"tea","price":"4.50"},["a","b"]]'
    >>> encode({"rate": float("nan")})
    Traceback (most recent call last):
    perdure.errors.InvalidValue: JSON cannot hold nan, at $.rate: nan
    """
    try:
        data = _json(value)
    except Exception as error:
        raise _refusal(value, str(error)) from error
    if len(data) > 2 * DEPTH and _deep(data):
        raise InvalidValue(f"the value is nested deeper than {DEPTH} levels")
    # `find`, because `in` first tries to take its left side for a number, which is several times slower.
    if data.find(b"\\u0000") >= 0 and _NUL(data):
        raise _refusal(value, "it holds a NUL character")
    if (data.find(b"null") >= 0 and _holds_not_finite(value)) or _OFFSET(data):
        for path, node in _nodes(value):
            if reason := _reason(node):
                raise InvalidValue(f"{reason}, at {path}: {short(node)}")
    if data[0] not in b"[{" or _is_flat(value) or _in_order(value, data):
        return data
    return _json(_settled(value))


def admit(data: bytes) -> bytes:
    """Foreign JSON in compact form, or InvalidValue: what is malformed, ambiguous or cannot be stored stays outside.

    >>> admit(b'{"a": [1, 2.50]}')
    b'{"a":[1,2.5]}'
    >>> admit(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    perdure.errors.InvalidValue: an object of the JSON text has the same key twice
    """
    try:
        result = _json(_parse(data))
    except Exception as error:
        raise InvalidValue(f"this is not JSON that can be stored: {error}: {short(bytes(data))}") from error
    if _NUL(result):
        raise InvalidValue(f"the JSON text holds a NUL character, which cannot be stored: {short(result)}")
    bare = _STRINGS.sub(b"", data)
    if _deep(bare):
        raise InvalidValue(f"the JSON text is nested deeper than {DEPTH} levels")
    if bare.count(b":") != _STRINGS.sub(b"", result).count(b":"):
        raise InvalidValue("an object of the JSON text has the same key twice")
    return result


def canonical(data: bytes | Raw) -> bytes:
    """The same JSON with sorted keys and no spaces.

    >>> canonical(b'{"b": 1, "a": [2, 3]}')
    b'{"a":[2,3],"b":1}'
    """
    try:
        return _sorted(_parse(data))
    except Exception as error:
        raise InvalidValue(f"this is not JSON: {error}: {short(bytes(data))}") from error


def digest(*parts: str | bytes) -> str:
    """SHA-256 of the parts, each with its length, so that no two lists of parts look the same.

    >>> digest("ab", "c") != digest("a", "bc"), len(digest())
    (True, 64)
    """
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "big"))
        sha.update(data)
    return sha.hexdigest()


def short(value: object, limit: int = 200) -> str:
    """A value for a message, never longer than the limit and never an error: JSON as its text, the rest as its repr.

    >>> short("x" * 300, 10), short(b'{"a": 1}'), short(b"\\x1b[31m") == r"\\x1b[31m"
    ("'xxxxxx...", '{"a": 1}', True)
    """
    try:
        text = _printable(value[: 4 * (limit + 1)]) if isinstance(value, bytes) else repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _printable(data: bytes) -> str:
    """Nothing in it does anything to a terminal or a log."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in data.decode(errors="backslashreplace"))


def is_model(kind: object) -> bool:
    """Whether this is a pydantic model class; pydantic is never imported for the question."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def is_reference(kind: object) -> bool:
    """Whether values of this class are stored as a text that only names them, as those of Secret are."""
    return isinstance(kind, type) and hasattr(kind, "__perdure_reference__")


def field_names(kind: type) -> Iterable[str]:
    """The fields of a dataclass, Struct or attrs class; of anything else none."""
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    if attrs := getattr(kind, "__attrs_attrs__", ()):
        return [field.name for field in attrs]
    return getattr(kind, "__dataclass_fields__", ())


def _plain(value: Any) -> object:
    """What msgspec does not know, as something it does."""
    if is_model(type(value)):
        options = {"by_alias": True, "round_trip": True}
        # In its JSON form a model turns sets into lists in hash order; its Python form tells where they are.
        return _aligned(value.model_dump(mode="json", **options), value.model_dump(mode="python", **options))
    if isinstance(value, PurePath):
        return str(value)
    if is_reference(type(value)):
        return value.__perdure_reference__()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):  # a bool comes here only as a key
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"objects of type {type(value).__qualname__} cannot be stored: {_SUPPORTED}")


_json = msgspec.json.Encoder(enc_hook=_plain).encode
_sorted = msgspec.json.Encoder(enc_hook=_plain, order="deterministic").encode
_packed = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_parse = msgspec.json.Decoder().decode


def _holds_not_finite(value: object) -> bool:
    # JSON shows NaN as null; MessagePack keeps it, and is quickly made.
    try:
        return _NOT_FINITE(_packed(value)) is not None
    except Exception:
        return True  # such as an integer of more than 64 bits: the walk decides


def _deep(data: bytes) -> bool:
    """Whether brackets nest too deep; those in strings can only hide it from a glance, not from `admit`."""
    marks = data.translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(DEPTH):
        if not marks:
            return False
        marks = marks.replace(b"[]", b"")  # peels the innermost level
    return bool(marks) and (b'"' not in data or _deep(_STRINGS.sub(b"", data)))


def _is_flat(value: object) -> bool:
    """Whether it is a tuple of plain values, as most arguments are."""
    return type(value) is tuple and _LEAVES.issuperset(map(type, value))


def _in_order(value: object, data: bytes) -> bool:
    """Whether every process would write these bytes: no set in hash order, no key that may be there twice."""
    try:
        if _sorted(value) == data and data.find(b"[[") < 0:  # sets of sets have no order that sorting could find
            return True
    except Exception:
        return False  # keys other than str, or a set of mixed types
    return data.find(b"[") < 0 or not _holds_set(value)  # only dicts in an order of their own


def _holds_set(value: object) -> bool:
    nodes: list[Any] = [value]
    for node in nodes:
        kind = type(node)
        items: Iterable[Any]
        if isinstance(node, dict):
            items = node.values()
        elif isinstance(node, list | tuple):
            items = node
        elif isinstance(node, set | frozenset):
            return True
        else:
            items = [getattr(node, name, None) for name in field_names(kind)]
        if not _LEAVES.issuperset(map(type, items)):
            nodes.extend(item for item in items if type(item) not in _LEAVES)
    return False


def _settled(value: Any) -> Any:
    """The same value with sorted lists for sets; the value itself where nothing had to change."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if isinstance(value, set | frozenset):
        return _lined_up([_settled(item) for item in value])
    if isinstance(value, dict):
        if any(type(key) is not str for key in value):
            _check_keys(value)
        settled = {key: _settled(item) for key, item in value.items()}
        return value if all(settled[key] is value[key] for key in value) else settled
    if isinstance(value, list | tuple):
        items = [_settled(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    changes = [
        (name, old, _settled(old)) for name in field_names(kind) if (old := getattr(value, name, None)) is not None
    ]
    changes = [change for change in changes if change[1] is not change[2]]
    if not changes:
        return value
    result = copy.copy(value)
    for name, _, new in changes:
        if isinstance(result, Struct):
            msgspec.structs.force_setattr(result, name, new)
        else:
            object.__setattr__(result, name, new)
    return result


def _lined_up(items: list[Any]) -> list[Any]:
    kinds = {type(item) for item in items}
    return sorted(items) if kinds in ({int}, {str}) else sorted(items, key=_json)


def _aligned(shown: Any, meant: Any) -> Any:
    if isinstance(meant, set | frozenset) and isinstance(shown, list):
        return _lined_up(shown)
    if isinstance(meant, dict) and isinstance(shown, dict) and len(meant) == len(shown):
        return {key: _aligned(shown[key], item) for key, item in zip(shown, meant.values(), strict=True)}
    if isinstance(meant, list | tuple) and isinstance(shown, list) and len(meant) == len(shown):
        return [_aligned(one, other) for one, other in zip(shown, meant, strict=True)]
    return shown


def _check_keys(value: dict[Any, Any]) -> None:
    texts: dict[bytes, Any] = {}
    for key in value:
        if isinstance(key, float) and not math.isfinite(key):
            raise InvalidValue(f"JSON cannot hold the key {key}: {short(value)}")
        other = texts.setdefault(_json({key: 0}), key)
        if other is not key:
            raise InvalidValue(f"the keys {other!r} and {key!r} are the same in JSON: {short(value)}")


def _nodes(value: Any, path: str = "$", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every part of a value with its path; parts that stand for others are shown as those."""
    if depth > DEPTH:
        raise InvalidValue(f"the value is nested deeper than {DEPTH} levels, or holds itself: {short(value)}")
    kind = type(value)
    if isinstance(value, Enum):
        value = value.value
    elif is_model(kind) or is_reference(kind) or isinstance(value, PurePath):
        value = _plain(value)
    yield path, value
    if kind in _LEAVES:
        return
    if isinstance(value, dict):
        children = [(f".{key}" if isinstance(key, str) else f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        children = [(f"[{index}]", item) for index, item in enumerate(value)]
    else:
        children = [(f".{name}", getattr(value, name, None)) for name in field_names(kind)]
    for step, child in children:
        yield from _nodes(child, path + step, depth + 1)


def _reason(node: Any) -> str:
    """Why this part, apart from what it contains, cannot be stored."""
    if isinstance(node, float) and not math.isfinite(node):
        return f"JSON cannot hold {float(node)}"
    if isinstance(node, datetime | time) and (offset := node.utcoffset()) and offset.total_seconds() % 60:
        return "a time zone offset with seconds cannot be stored"
    if isinstance(node, dict):
        return next((f"in a key, {reason}" for key in node if (reason := _text_reason(key))), "")
    return _text_reason(node)


def _text_reason(node: Any) -> str:
    if isinstance(node, str):
        if "\0" in node:
            return "a NUL character cannot be stored"
        if any("\ud800" <= character <= "\udfff" for character in node):
            return "a lone surrogate cannot be stored"
    return ""


def _key_reason(node: dict[Any, Any]) -> str:
    odd = [key for key in node if _failure({key: 0})]
    return f"a key of type {type(odd[0]).__qualname__} cannot be stored: use str, int or an enum" if odd else ""


def _failure(node: object) -> str:
    try:
        _json(node)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _refusal(value: object, why: str) -> InvalidValue:
    """The error for a value that could not be encoded, with the place of the first part that is to blame."""
    try:
        for path, node in _nodes(value):
            reason = _reason(node)
            if not reason and not isinstance(node, list | tuple | set | frozenset) and not field_names(type(node)):
                reason = _key_reason(node) if isinstance(node, dict) else _failure(node)
            if reason:
                return InvalidValue(f"{reason}, at {path}: {short(node)}")
    except InvalidValue as error:
        return error
    except Exception as error:  # a property or repr of the value's own
        why = f"{why} ({error})"
    return InvalidValue(f"{why}: {short(value)}")
