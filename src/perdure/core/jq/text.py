"""Values as text: JSON as jq writes it, and the names of kinds.

Numbers are written in the shortest form that reads back the same. An integer keeps its digits. A float that was read
as `1.0` stays `1.0`; one that was computed and has no fraction became an integer where it was computed.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from perdure.core.jq.limits import NESTED, Meter, Raised, too_nested

LARGEST = 1.7976931348623157e308
#: Floats hold every integer up to here.
EXACT = 2**53

_KINDS = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}


def is_nan(value: Any) -> bool:
    """Of any value; `math.isnan` refuses integers that are too large for a float."""
    return type(value) is float and math.isnan(value)


def kind(value: Any) -> str:
    return _KINDS.get(type(value), "object")


def number_text(value: int | float) -> str:
    """
    >>> number_text(12345678901234567890), number_text(1.0), number_text(0.1), number_text(1e-05), number_text(-0.0)
    ('12345678901234567890', '1.0', '0.1', '1e-05', '-0')
    """
    if type(value) is int:
        # Python refuses to write very long integers; no arithmetic here makes one, but an input may hold it.
        return str(value) if -(10**300) < value < 10**300 else number_text(LARGEST if value > 0 else -LARGEST)
    if math.isnan(value):
        return "null"
    if value in (math.inf, -math.inf):
        value = math.copysign(LARGEST, value)
    if value == 0:
        return "0.0" if math.copysign(1, value) > 0 else "-0"
    if -EXACT <= value <= EXACT and value == int(value):
        return f"{int(value)}.0"
    return _float_text(float(value))


def _float_text(value: float) -> str:
    sign, found, exponent = Decimal(repr(value)).as_tuple()
    minus = "-" if sign else ""
    point = len(found) + int(exponent)
    digits = "".join(map(str, found)).rstrip("0")
    if point <= -4 or point > len(digits) + 15:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{minus}{digits[0]}{rest}e{point - 1:+03d}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{minus}{digits}{'0' * (point - len(digits))}"
    return f"{minus}{digits[:point]}.{digits[point:]}"


def string_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def dump(meter: Meter, value: Any) -> str:
    """JSON in one line."""
    parts: list[str] = []
    _write(meter, value, parts, 0)
    text = "".join(parts)
    meter.make(len(text))
    return text


def _write(meter: Meter, value: Any, parts: list[str], level: int) -> None:
    match value:
        case None:
            parts.append("null")
        case bool():
            parts.append("true" if value else "false")
        case str():
            meter.make(len(value))
            parts.append(string_text(value))
        case int() | float():
            parts.append(number_text(value))
        case list():
            if level > NESTED:
                raise too_nested()
            meter.work(len(value) + 1)
            parts.append("[")
            for place, item in enumerate(value):
                if place:
                    parts.append(",")
                _write(meter, item, parts, level + 1)
            parts.append("]")
        case _:
            if level > NESTED:
                raise too_nested()
            meter.work(len(value) + 1)
            parts.append("{")
            for place, (name, item) in enumerate(value.items()):
                parts.append(f"{',' if place else ''}{string_text(name)}:")
                _write(meter, item, parts, level + 1)
            parts.append("}")


def measure(value: Any) -> int:
    """How many elements and characters a value has when it is written out; a shared part counts wherever it stands.

    Values share their parts: thirty times `[., .]` is thirty small arrays, and a billion elements on paper.
    """
    size, height = _measure(value, {}, 0)
    if height > NESTED:
        raise too_nested()
    return size


def _measure(value: Any, known: dict[int, tuple[int, int]], level: int) -> tuple[int, int]:
    if type(value) is str:
        return len(value), 0
    if type(value) not in (list, dict):
        return 1, 0
    found = known.get(id(value))
    if found is not None:
        return found
    if level > NESTED:
        raise too_nested()
    size, height = 1 + len(value), 0
    for item in value.values() if type(value) is dict else value:
        if type(item) is str:
            size += len(item)
        elif type(item) in (list, dict):
            inner, below = _measure(item, known, level + 1)
            size += inner
            height = max(height, below)
    known[id(value)] = size, height + 1
    return size, height + 1


def finite(value: Any, known: Any = None) -> Any:
    """A value as JSON can hold it: NaN is null, what is infinite is the largest number there is."""
    if type(value) is float and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(LARGEST, value)
    if not isinstance(value, (list, dict)):
        return value
    known = {} if known is None else known
    if id(value) not in known:
        known[id(value)] = (
            {name: finite(item, known) for name, item in value.items()}
            if isinstance(value, dict)
            else [finite(item, known) for item in value]
        )
    return known[id(value)]


def tostring(meter: Meter, value: Any) -> str:
    return value if type(value) is str else dump(meter, value)


def brief(meter: Meter, value: Any) -> str:
    """A value in at most 29 bytes, as messages show it."""
    shown = dump(meter, value[:30] if type(value) is str else value)
    raw = shown.encode(errors="replace")
    if len(raw) <= 29:
        return shown
    closing = {'"': '"', "[": "]", "{": "}"}.get(shown[0], "")
    return raw[: 26 - len(closing)].decode(errors="ignore") + "..." + closing


def bad(meter: Meter, value: Any, message: str) -> Raised:
    return Raised(f"{kind(value)} ({brief(meter, value)}) {message}")


def bad_pair(meter: Meter, one: Any, other: Any, message: str) -> Raised:
    return Raised(f"{kind(one)} ({brief(meter, one)}) and {kind(other)} ({brief(meter, other)}) {message}")
