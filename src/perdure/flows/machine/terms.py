"""The pieces of code in a machine: conditions, changes of the data, arguments. Python functions or expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from perdure.core import jq
from perdure.core.codec import Codec, encode
from perdure.errors import InvalidValue
from perdure.flows.bound import Bound
from perdure.flows.machine.model import Event


class Context(Struct):
    """What a piece of code is about: the data of the machine, the event, and the result of an action."""

    data: Any
    event: Event
    result: Any = None
    codec: Codec[Any] | None = None  # of the data, where it is typed

    def plain(self) -> dict[str, Any]:
        """As expressions see it."""
        data = self.data if self.codec is None else msgspec.json.decode(self.codec.encode(self.data))
        event = {**structs.asdict(self.event), "payload": _json(self.event.payload), "roles": list(self.event.roles)}
        return {"data": data, "event": event, "result": _json(self.result)}


def _json(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else msgspec.json.decode(encode(value))


def condition(when: Any) -> Callable[[Context], bool] | None:
    if when is None:
        return None
    if callable(when):
        return lambda context: bool(when(context.data, context.event))
    if not isinstance(when, str):
        raise InvalidValue(f"{when!r} is not a condition: give an expression, such as '${{ .data.total > 100 }}'")
    program = jq.compile(jq.expression(when))
    return lambda context: program.true(context.plain())


def setter(change: Any, of: str) -> Callable[[Context], Any] | None:
    """How the data changes; `of` is what a function gets beside it: the event or the result."""
    if change is None:
        return None
    if callable(change):

        def call(context: Context) -> Any:
            given = change(context.data, getattr(context, of))
            return context.data if given is None else given

        return call
    if not isinstance(change, Mapping):
        raise InvalidValue(f"{change!r} is not a change of the data: give fields and their values")
    template = jq.Template(dict(change))

    def fill(context: Context) -> Any:
        plain = context.plain()
        merged = {**(plain["data"] or {}), **template.fill(plain)}
        return merged if context.codec is None else context.codec.decode(encode(merged))

    return fill


def filler(args: Any) -> Callable[[Context, Bound], Any]:
    """The arguments of an action: by default the data, if it needs any."""
    if args is None:
        return lambda context, bound: [context.data] if bound.needs else []
    if callable(args):

        def call(context: Context, bound: Bound) -> Any:
            given = args(context.data, context.event)
            return given if isinstance(given, Mapping | list | tuple) else (given,)

        return call
    if isinstance(args, str) or not isinstance(args, Mapping | Sequence):
        raise InvalidValue(f"{args!r} are no arguments: give them by name, {{…}}, or in their order, […]")
    template = jq.Template(dict(args) if isinstance(args, Mapping) else list(args))
    if template.constant:
        return lambda context, bound: args
    return lambda context, bound: template.fill(context.plain())


def words(when: Any) -> str:
    """A condition as a diagram shows it: an expression as it is, a function by its name."""
    if when is None:
        return ""
    if isinstance(when, str):
        return jq.expression(when).strip()
    name = getattr(when, "__name__", "")
    return "if" if name in ("", "<lambda>") else name
