"""The operators, with jq's rules for each pair of kinds.

Integers are exact as long as the result fits 64 bits; beyond that, and wherever a float takes part, arithmetic is that
of floats. A float without a fraction becomes an integer, so that `6 / 2` is `3`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from perdure.core.jq.limits import NESTED, Meter, too_nested
from perdure.core.jq.order import compare, equal
from perdure.core.jq.text import EXACT, bad, bad_pair, is_nan

Operator: TypeAlias = Callable[[Meter, Any, Any], Any]
WIDEST = 2**63
_NUMBERS = frozenset({int, float})


def number(meter: Meter, value: int | float) -> int | float:
    """A computed number in its proper form."""
    if type(value) is int:
        return value if -WIDEST <= value < WIDEST else to_float(value)
    if -EXACT <= value <= EXACT:
        whole = int(value)
        return whole if whole == value and (whole or math.copysign(1, value) > 0) else value
    if value - value != 0:
        meter.odd = True
    return value


def to_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def add(meter: Meter, a: Any, b: Any) -> Any:
    kind_a, kind_b = type(a), type(b)
    if a is None:
        return b
    if b is None:
        return a
    if kind_a in _NUMBERS and kind_b in _NUMBERS:
        return number(meter, a + b if kind_a is kind_b else to_float(a) + to_float(b))
    if kind_a is kind_b and kind_a in (str, list, dict):
        meter.make(len(a) + len(b))
        return {**a, **b} if kind_a is dict else a + b
    raise bad_pair(meter, a, b, "cannot be added")


def subtract(meter: Meter, a: Any, b: Any) -> Any:
    kind_a, kind_b = type(a), type(b)
    if kind_a in _NUMBERS and kind_b in _NUMBERS:
        return number(meter, a - b if kind_a is kind_b else to_float(a) - to_float(b))
    if kind_a is list and kind_b is list:
        meter.make(len(a))
        meter.work(len(a))
        texts = {item for item in b if type(item) is str}
        others = [item for item in b if type(item) is not str]
        kept = []
        for item in a:
            if type(item) is str:
                gone = item in texts
            else:
                meter.work(len(others) >> 2)
                gone = any(equal(meter, item, other) for other in others)
            if not gone:
                kept.append(item)
        return kept
    raise bad_pair(meter, a, b, "cannot be subtracted")


def multiply(meter: Meter, a: Any, b: Any) -> Any:
    kind_a, kind_b = type(a), type(b)
    if kind_a in _NUMBERS and kind_b in _NUMBERS:
        return number(meter, a * b if kind_a is kind_b else to_float(a) * to_float(b))
    if kind_a is dict and kind_b is dict:
        return _merge(meter, a, b, 0)
    if kind_b is str and kind_a in _NUMBERS:
        a, b, kind_a, kind_b = b, a, kind_b, kind_a
    if kind_a is str and kind_b in _NUMBERS:
        if not b >= 0:
            return None
        times = int(min(b, 2**31 - 1))
        meter.make(len(a) * times)
        return a * times
    raise bad_pair(meter, a, b, "cannot be multiplied")


def _merge(meter: Meter, a: dict[str, Any], b: dict[str, Any], level: int) -> dict[str, Any]:
    if level > NESTED:
        raise too_nested()
    meter.make(len(a) + len(b))
    meter.work(len(b))
    merged = dict(a)
    for name, value in b.items():
        old = merged.get(name)
        both = type(old) is dict and type(value) is dict
        merged[name] = _merge(meter, old, value, level + 1) if both else value  # type: ignore[arg-type]
    return merged


def divide(meter: Meter, a: Any, b: Any) -> Any:
    kind_a, kind_b = type(a), type(b)
    if kind_a in _NUMBERS and kind_b in _NUMBERS:
        if b == 0:
            raise bad_pair(meter, a, b, "cannot be divided because the divisor is zero")
        if kind_a is int and kind_b is int and a % b == 0:
            return number(meter, a // b)
        return number(meter, to_float(a) / to_float(b))
    if kind_a is str and kind_b is str:
        return split(meter, a, b)
    raise bad_pair(meter, a, b, "cannot be divided")


def split(meter: Meter, text: str, separator: str) -> list[str]:
    meter.make(len(text))
    meter.work(len(text) >> 6)
    if not text:
        return []
    return text.split(separator) if separator else list(text)


def modulo(meter: Meter, a: Any, b: Any) -> Any:
    if type(a) in _NUMBERS and type(b) in _NUMBERS:
        if is_nan(a) or is_nan(b):
            return number(meter, math.nan)
        divisor = _whole(b)
        if divisor == 0:
            raise bad_pair(meter, a, b, "cannot be divided (remainder) because the divisor is zero")
        dividend = _whole(a)
        rest = abs(dividend) % abs(divisor)
        return -rest if dividend < 0 else rest
    raise bad_pair(meter, a, b, "cannot be divided (remainder)")


def _whole(value: int | float) -> int:
    """The integer part, within 64 bits."""
    if value >= WIDEST:
        return WIDEST - 1
    return -WIDEST if value < -WIDEST else int(value)


def negate(meter: Meter, value: Any) -> Any:
    if type(value) not in _NUMBERS:
        raise bad(meter, value, "cannot be negated")
    return -value


OPERATORS: dict[str, Operator] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": modulo,
    "==": equal,
    "!=": lambda meter, a, b: not equal(meter, a, b),
    "<": lambda meter, a, b: compare(meter, a, b) < 0,
    "<=": lambda meter, a, b: compare(meter, a, b) <= 0,
    ">": lambda meter, a, b: compare(meter, a, b) > 0,
    ">=": lambda meter, a, b: compare(meter, a, b) >= 0,
}
