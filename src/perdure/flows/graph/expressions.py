"""The expressions of nodes, compiled: values, tests and durations. Whatever is wrong with one is InvalidValue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from perdure.core import jq
from perdure.core.durations import micros
from perdure.errors import InvalidValue
from perdure.flows.graph import model

#: What expressions see, made only for those that look.
See: TypeAlias = Callable[[], dict[str, Any]]


class Value:
    """A value in which texts `${ … }` are expressions."""

    def __init__(self, value: Any) -> None:
        self._template = jq.Template(value)

    def of(self, see: See) -> Any:
        return self._template.fill(None if self._template.constant else see())


class Test:
    """An expression that is true or not, with or without `${ }` around it."""

    def __init__(self, text: str) -> None:
        self._program = jq.compile(jq.expression(text))

    def of(self, see: See) -> bool:
        return self._program.true(see())


class Length:
    """A duration, or an expression that gives one, perhaps a number of `unit`s."""

    def __init__(self, value: model.Length, unit: str | None = None) -> None:
        self._value, self._unit = Value(value), unit
        if not (isinstance(value, str) and jq.is_expression(value)):
            self._micros(value)

    def of(self, see: See) -> int:
        return self._micros(self._value.of(see))

    def _micros(self, value: Any) -> int:
        if self._unit is None:
            return micros(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidValue(f"{value!r} is not a number of {self._unit}")
        return micros(f"{value} {self._unit}")
