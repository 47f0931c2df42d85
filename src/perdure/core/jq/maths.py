"""Functions of numbers. Where mathematics has no answer they give NaN or infinity, as C does, never an error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from perdure.core.jq.arithmetic import number, to_float
from perdure.core.jq.limits import Meter
from perdure.core.jq.text import bad

_NUMBERS = frozenset({int, float})
_INFINITE_AT_ZERO = frozenset({"log", "log2", "log10", "logb", "gamma", "lgamma"})


def _lifted(name: str, function: Callable[..., Any], arity: int) -> Callable[..., Any]:
    def call(meter: Meter, value: Any, *args: Any) -> Any:
        given = args if arity > 1 else (value,)
        for item in given:
            if type(item) not in _NUMBERS:
                raise bad(meter, item, "number required")
        if name in _ROUNDING and type(value) is int:
            return value
        floats = [to_float(item) for item in given]
        try:
            return number(meter, function(*floats))
        except OverflowError:
            return number(meter, _overflowed(name, floats))
        except ValueError:
            return number(meter, _undefined(name, floats))

    return call


def _overflowed(name: str, values: list[float]) -> float:
    if math.isnan(values[0]) or (math.isinf(values[0]) and name in _ROUNDING):
        return values[0]
    odd_power = name == "pow" and values[0] < 0 and values[1] % 2 == 1
    below = name in ("sinh", "expm1", "ldexp", "scalb", "scalbln") and values[0] < 0
    return -math.inf if odd_power or below else math.inf


def _undefined(name: str, values: list[float]) -> float:
    first = values[0]
    if name in _ROUNDING:
        return first
    if name in _INFINITE_AT_ZERO and first <= 0 and (first == 0 or name in ("gamma", "lgamma")):
        return math.inf if name in ("gamma", "lgamma") else -math.inf
    if name == "log1p" and first == -1:
        return -math.inf
    if name == "atanh" and abs(first) == 1:
        return math.copysign(math.inf, first)
    if name == "tgamma" and first == 0:
        return math.copysign(math.inf, first)
    if name == "pow" and first == 0:
        return math.inf
    return math.nan


def _round(value: float) -> float:
    return math.copysign(math.floor(abs(value) + 0.5), value) if abs(value) < 2**52 else value


def _scaled(value: float, power: float) -> float:
    if math.isnan(power):
        return math.nan
    return math.ldexp(value, int(max(-5000, min(5000, power))))


def _significand(value: float) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    return math.frexp(value)[0] * 2


def _logb(value: float) -> float:
    if value == 0:
        return -math.inf
    return math.frexp(value)[1] - 1 if math.isfinite(value) else abs(value)


def _cbrt(value: float) -> float:
    return math.cbrt(value)


def _fma(a: float, b: float, c: float) -> float:
    return a * b + c


def _least(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else min(a, b)


def _greatest(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


def _drem(a: float, b: float) -> float:
    return math.remainder(a, b)


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    """Rounding as a float, so that minus zero and the very large stay what they are."""
    return lambda value: math.copysign(float(function(value)), value)


def _split(kind: str) -> Callable[[Meter, Any], Any]:
    def call(meter: Meter, value: Any) -> Any:
        if type(value) not in _NUMBERS:
            raise bad(meter, value, "number required")
        meter.make(2)
        given = to_float(value)
        if kind == "frexp":
            parts: tuple[float, float] = math.frexp(given)
        elif kind == "modf":
            parts = math.modf(given)
        else:
            log = _lifted("lgamma", math.lgamma, 1)(meter, value)
            negative = given < 0 and math.isfinite(given) and math.floor(given) % 2 == 1
            parts = (log, -1 if negative else 1)
        return [number(meter, part) for part in parts]

    return call


_ROUNDING = frozenset({"floor", "ceil", "round", "rint", "nearbyint", "trunc"})
_ONE: dict[str, Callable[[float], float]] = {
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _round,
    "rint": _whole(round),
    "nearbyint": _whole(round),
    "trunc": _whole(math.trunc),
    "fabs": math.fabs,
    "sqrt": math.sqrt,
    "cbrt": _cbrt,
    "exp": math.exp,
    "exp2": math.exp2,
    "exp10": lambda value: math.pow(10, value),
    "expm1": math.expm1,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "log1p": math.log1p,
    "logb": _logb,
    "significand": _significand,
    "gamma": math.lgamma,
    "lgamma": math.lgamma,
    "tgamma": math.gamma,
    "erf": math.erf,
    "erfc": math.erfc,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "asinh": math.asinh,
    "acosh": math.acosh,
    "atanh": math.atanh,
}
_TWO: dict[str, Callable[[float, float], float]] = {
    "pow": math.pow,
    "atan2": math.atan2,
    "hypot": math.hypot,
    "fmod": math.fmod,
    "fmin": _least,
    "fmax": _greatest,
    "fdim": lambda a, b: math.nan if math.isnan(a) or math.isnan(b) else max(a - b, 0.0),
    "copysign": math.copysign,
    "remainder": _drem,
    "drem": _drem,
    "nextafter": math.nextafter,
    "nexttoward": math.nextafter,
    "ldexp": _scaled,
    "scalb": _scaled,
    "scalbln": _scaled,
}
MATHS: dict[tuple[str, int], Callable[..., Any]] = {
    **{(name, 0): _lifted(name, function, 1) for name, function in _ONE.items()},
    **{(name, 2): _lifted(name, function, 2) for name, function in _TWO.items()},
    ("fma", 3): _lifted("fma", _fma, 3),
    ("frexp", 0): _split("frexp"),
    ("modf", 0): _split("modf"),
    ("lgamma_r", 0): _split("lgamma_r"),
}
