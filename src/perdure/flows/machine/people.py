"""What a state asks a person: a task that is open as long as the state lasts.

Rules kept here: it is asked when the machine comes to rest in the state, so it sees the data as the actions have left
it; it outlives checkpoints and changes of version; whoever leaves the state withdraws it. What is handed in is for the
`done` of the state that asked. If it does not fit the form, or no transition takes it, it is rejected in the log and
asked for once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.core import jq
from perdure.core.codec import Codec, codec_for, encode
from perdure.core.durations import micros
from perdure.core.events import ChildSettled, Received
from perdure.core.replay import Replay
from perdure.flows.machine.model import Ask
from perdure.flows.machine.terms import Context
from perdure.flows.person import Asked
from perdure.flows.schema import Schema
from perdure.flows.task import VERSION, Order, People

_SPEC = Asked(codec_for(Any))
_CHILD = "/child:"


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


class Desk:
    """The tasks of one execution, by the paths of the states that asked."""

    def __init__(self, running: Replay, open: Mapping[str, int]) -> None:
        self._running = running
        # A fork has the position of the original, but not its tasks: it asks for those that are not done.
        told = {received.id for received in running.buffer}
        self.open = {path: ref for path, ref in open.items() if ref in running.lasting or f"{_CHILD}{ref}" in told}

    def ask(self, path: str, order: Callable[[], Order]) -> None:
        if path not in self.open:
            self.open[path] = self._running.begin_lasting(_SPEC, VERSION, Raw(encode(order())))

    def withdraw(self, path: str) -> None:
        if (ref := self.open.pop(path, None)) is not None:
            self._running.withdraw(ref)

    def close(self) -> None:
        for path in list(self.open):
            self.withdraw(path)

    def settled(self, received: Received) -> tuple[str, ChildSettled] | None:
        """The state whose task an outcome is of, and the outcome; its task is no longer open."""
        for path, ref in self.open.items():
            if received.id == f"{_CHILD}{ref}":
                del self.open[path]
                return path, msgspec.json.decode(received.payload, type=ChildSettled)
        return None


def is_outcome(received: Received) -> bool:
    """Whether it tells how a task ended. Ids with a slash are the engine's own."""
    return received.id.startswith(_CHILD)
