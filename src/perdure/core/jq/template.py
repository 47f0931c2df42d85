"""JSON with expressions in it: a string that is wholly `${ … }` stands for what its expression gives."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from perdure.core.jq.limits import NESTED
from perdure.core.jq.program import compile as compiled
from perdure.errors import ExpressionError, InvalidValue

_Fill: TypeAlias = Callable[[Any, dict[str, Any]], Any]


def is_expression(text: Any) -> bool:
    """Whether a value is a string that is wholly an expression.

    >>> is_expression(" ${ .a } "), is_expression("costs ${ .a }"), is_expression(5)
    (True, False, False)
    """
    if type(text) is not str:
        return False
    stripped = text.strip()
    return stripped.startswith("${") and stripped.endswith("}") and bool(stripped[2:-1].strip())


def expression(text: str) -> str:
    """The text of the expression, without `${ }` if it has them.

    >>> expression("${ .a }"), expression(".a")
    ('.a', '.a')
    """
    return text.strip()[2:-1].strip() if is_expression(text) else text


class Template:
    """A JSON value with expressions.

    >>> Template({"to": "${ .customer.mail }", "kind": "receipt"}).fill({"customer": {"mail": "ann@example.org"}})
    {'to': 'ann@example.org', 'kind': 'receipt'}
    """

    __slots__ = ("_fill", "_value", "constant")

    def __init__(self, value: Any, variables: Collection[str] = ()) -> None:
        self._value = value
        self._fill = _prepare(value, tuple(variables), "", 0)
        #: Whether there are no expressions in it.
        self.constant = self._fill is None

    def fill(self, input: Any, /, **variables: Any) -> Any:
        """The value with every expression replaced by its one output for the input."""
        return self._value if self._fill is None else self._fill(input, variables)


def _prepare(value: Any, variables: tuple[str, ...], pointer: str, level: int) -> _Fill | None:
    """How to fill the value at a JSON pointer; None where nothing in it is to be filled."""
    if level > NESTED:
        raise InvalidValue(f"the template is nested deeper than {NESTED} levels")
    if type(value) is str and is_expression(value):
        return _expression(value, variables, pointer)
    if type(value) is list:
        filled = [_prepare(item, variables, f"{pointer}/{place}", level + 1) for place, item in enumerate(value)]
        if not any(filled):
            return None
        items = list(zip(value, filled, strict=True))
        return lambda input, given: [fill(input, given) if fill else item for item, fill in items]
    if type(value) is dict:
        named = {
            name: (item, _prepare(item, variables, f"{pointer}/{_escaped(name)}", level + 1))
            for name, item in value.items()
        }
        if not any(fill for _, fill in named.values()):
            return None
        return lambda input, given: {name: fill(input, given) if fill else item for name, (item, fill) in named.items()}
    return None


def _expression(text: str, variables: tuple[str, ...], pointer: str) -> _Fill:
    try:
        program = compiled(expression(text), variables)
    except ExpressionError as error:
        raise ExpressionError(f"at {pointer or '/'}: {error}", error.position) from None

    def fill(input: Any, given: dict[str, Any]) -> Any:
        try:
            return program.one(input, **given)
        except ExpressionError as error:
            raise ExpressionError(f"at {pointer or '/'}: {error}", error.position) from None

    return fill


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
