"""A compiled expression, and how it is run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

from perdure.core.jq.build import build
from perdure.core.jq.code import Env, Scope
from perdure.core.jq.limits import Broken, Limits, Meter, Raised
from perdure.core.jq.parser import parse
from perdure.core.jq.text import brief, finite, measure
from perdure.errors import ExpressionError

DEFAULT = Limits()
#: Errors of the language; the others only for values that are not JSON, such as half a character or a huge integer.
_FAILURES = (Raised, Broken, RecursionError, OverflowError, UnicodeError)
_DEEP = "the expression is nested too deep: there is no room for it where it was called"


class Program:
    """An expression that can be evaluated any number of times, on any input; it keeps nothing between evaluations.

    >>> Program(".items | map(.price * .count) | add").one(
    ...     {"items": [{"price": 3, "count": 2}, {"price": 4, "count": 1}]}
    ... )
    10
    """

    __slots__ = ("_code", "limits", "text", "variables")

    def __init__(self, text: str, variables: Collection[str] = (), limits: Limits = DEFAULT) -> None:
        self.text = text
        self.variables = tuple(variables)
        self.limits = limits
        try:
            self._code = build(parse(text), Scope(text, build).variable(*self.variables))
        except RecursionError:
            raise ExpressionError(_DEEP) from None
        height = self._code.height
        if height.total > limits.depth:
            raise ExpressionError(f"the expression is {height.total} frames deep, more than {limits.depth}")

    def __repr__(self) -> str:
        return f"Program({self.text!r})"

    def one(self, value: Any, /, **variables: Any) -> Any:
        """The output, if there is exactly one."""
        env = self._environment(variables)
        single = self._code.one
        try:
            if single is not None:
                found = single(env, value)
            else:
                outputs = iter(self._code.each(env, value))
                found = next(outputs, _NOTHING)
                if found is _NOTHING:
                    raise self._wrong("gives no output: wrap it in `[ ]`, or say what else with `//`")
                if next(outputs, _NOTHING) is not _NOTHING:
                    raise self._wrong("gives more than one output: wrap it in `[ ]` or in `first(…)`")
        except _FAILURES as error:
            raise self._failed(env[0], error) from None
        return _settled(env[0], found)

    def true(self, value: Any, /, **variables: Any) -> bool:
        """Whether the one output is true: everything is, except false and null."""
        found = self.one(value, **variables)
        return found is not None and found is not False

    def each(self, value: Any, /, **variables: Any) -> Iterator[Any]:
        """All outputs, one by one; the limits are those of all of them together."""
        env = self._environment(variables)
        try:
            for found in self._code.each(env, value):
                env[0].work(1)
                yield _settled(env[0], found)
        except _FAILURES as error:
            raise self._failed(env[0], error) from None

    def _environment(self, variables: dict[str, Any]) -> Env:
        meter = Meter(self.limits)
        meter.depth = self._code.height.reach
        if not variables and not self.variables:
            return (meter,)
        if len(variables) != len(self.variables) or any(name not in variables for name in self.variables):
            wanted = ", ".join(f"${name}" for name in self.variables) or "no variables"
            given = ", ".join(f"${name}" for name in variables) or "none"
            raise self._wrong(f"was compiled with {wanted}, and given {given}")
        return (meter, *[variables[name] for name in self.variables])

    def _wrong(self, what: str) -> ExpressionError:
        shown = self.text if len(self.text) <= 200 else f"{self.text[:200]}…"
        return ExpressionError(f"the expression `{shown}` {what}")

    def _failed(self, meter: Meter, error: Exception) -> ExpressionError:
        if isinstance(error, RecursionError):
            return ExpressionError(_DEEP)
        if not isinstance(error, Raised):
            return self._wrong("failed: a number or a text that cannot be computed with")
        try:
            message = error.value if type(error.value) is str else brief(meter, error.value)
        except Raised:
            message = "a value nested too deep"
        return self._wrong(f"failed: {message[:500]}")


_NOTHING = object()
#: Whoever made no more elements than this cannot have multiplied its input by much.
_FEW = 16


def _settled(meter: Meter, value: Any) -> Any:
    """An output that can be written down: neither nested too deep nor, with all that it shares, too large."""
    if meter.limits.size - meter.size > _FEW:
        try:
            meter.make(measure(value))
        except Raised as error:
            raise ExpressionError(f"an output of the expression cannot be kept: {error.value}") from None
    return finite(value) if meter.odd else value


@lru_cache(maxsize=1024)
def _compiled(text: str, variables: tuple[str, ...], limits: Limits) -> Program:
    return Program(text, variables, limits)


def compile(text: str, variables: Collection[str] = (), limits: Limits = DEFAULT) -> Program:  # noqa: A001 - as in `re`
    """The program of an expression, ready to run; the same text is compiled once.

    >>> compile(".amount > $limit", ["limit"]).true({"amount": 20}, limit=10)
    True
    >>> compile(".amount >")
    Traceback (most recent call last):
    perdure.errors.ExpressionError: an expression is missing before the end, at line 1, column 10:
      .amount >
               ^
    """
    return _compiled(text, tuple(variables), limits)
