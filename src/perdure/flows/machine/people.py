"""What a state asks a person, made ready when the machine is: its words, its form, and how the answer is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.core import jq
from perdure.core.codec import Codec, codec_for, encode
from perdure.core.durations import micros
from perdure.flows.machine.model import Ask
from perdure.flows.machine.terms import Context
from perdure.flows.schema import Schema
from perdure.flows.task import Order, People


class Question(Struct, frozen=True, eq=False):
    """An `Ask` made ready."""

    ask: Ask
    form: dict[str, Any] | bool | None
    due: int | None
    words: Callable[[Context], Mapping[str, Any]]
    read: Callable[[Raw], Any]

    def order(self, name: str, context: Context) -> Order:
        said = self.words(context)
        users = (str(said["assign"]),) if said["assign"] else ()
        to = People(users, tuple(self.ask.roles))
        data, priority = said["data"], self.ask.priority
        return Order(name, str(said["task"]), self.form, to, data, self.due, priority=priority, expires=False)


def question(ask: Ask) -> Question:
    """Compile what can be; whatever is wrong is InvalidValue."""
    typed = not (ask.form is None or isinstance(ask.form, Mapping | bool))
    codec: Codec[Any] = codec_for(ask.form if typed else Any)
    form = codec.schema() if typed else dict(ask.form) if isinstance(ask.form, Mapping) else ask.form
    schema = None if form is None else Schema(form, formats=True)

    def read(raw: Raw) -> Any:
        if schema is not None:
            schema.refuse(msgspec.json.decode(raw), "what was handed in")
        return codec.decode(raw)

    return Question(ask, form, None if ask.due is None else micros(ask.due), _words(ask), read)


def _words(ask: Ask) -> Callable[[Context], Mapping[str, Any]]:
    parts = {"task": ask.task, "assign": ask.assign, "data": ask.data}
    functions = {name: part for name, part in parts.items() if callable(part)}
    template = jq.Template({name: part for name, part in parts.items() if name not in functions})

    def words(context: Context) -> Mapping[str, Any]:
        filled = template.fill(None if template.constant else context.plain())
        called = {name: fn(context.data) for name, fn in functions.items()}
        return {**filled, **{name: msgspec.json.decode(encode(value)) for name, value in called.items()}}

    return words
