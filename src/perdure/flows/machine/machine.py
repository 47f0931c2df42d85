"""`Machine`: a workflow that is a state machine.

    approval = Machine(
        "approval",
        data=Request,
        initial="draft",
        states={
            "draft": State(on={"submit": "review"}),
            "review": State(
                after={"24h": "escalate"},
                on={"approve": To("approved", roles=["manager"]), "escalate": "director"},
            ),
            …
        },
    )

It is checked when it is made: all that is wrong is told at once. See the how-to for what a machine does, and for the
same thing as a document.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import Raw, structs

from perdure.core import events as ev, guard, jq
from perdure.core.codec import Codec, codec_for, encode
from perdure.core.replay import Replay
from perdure.core.retry import Retry
from perdure.core.signature import Signature
from perdure.errors import DefinitionInvalid, InvalidValue, Undecodable
from perdure.flows import listening
from perdure.flows.action import Action, Call
from perdure.flows.bound import Problem
from perdure.flows.described import Described
from perdure.flows.diagram import Diagram, Mark
from perdure.flows.listening import Listen, On
from perdure.flows.machine.chart import Chart, Node
from perdure.flows.machine.check import check
from perdure.flows.machine.model import Ask, Do, Event, State, To, Tos
from perdure.flows.machine.picture import draw
from perdure.flows.machine.run import MachineRun, Position, Wanted
from perdure.flows.machine.terms import Context
from perdure.flows.registry import registry
from perdure.flows.schema import Schema

D = TypeVar("D")
_NO_EVENT = Event("")
_position = msgspec.json.Decoder(Position).decode


class Machine(Described, Generic[D]):
    """See the module. `on` are transitions that every state has; `publish` names fields of the data that `find` sees.

    `output` makes the result of the data, by a function or an expression; without it the data is the result.
    """

    kind = "machine"

    @overload
    def __init__(
        self,
        name: str,
        *,
        initial: str,
        states: Mapping[str, State],
        data: type[D],
        events: Mapping[str, Any] | None = ...,
        on: Mapping[str, Tos] | None = ...,
        output: Callable[[D], Any] | Mapping[str, Any] | None = ...,
        publish: Sequence[str] = ...,
        version: int = ...,
        queue: str = ...,
        description: str = ...,
        listens: Sequence[Listen] = ...,
        starts_on: Sequence[On] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Machine[Any],
        name: str,
        *,
        initial: str,
        states: Mapping[str, State],
        data: None = ...,
        events: Mapping[str, Any] | None = ...,
        on: Mapping[str, Tos] | None = ...,
        output: Callable[[Any], Any] | Mapping[str, Any] | None = ...,
        publish: Sequence[str] = ...,
        version: int = ...,
        queue: str = ...,
        description: str = ...,
        listens: Sequence[Listen] = ...,
        starts_on: Sequence[On] = ...,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        initial: str,
        states: Mapping[str, State],
        data: type[D] | None = None,
        events: Mapping[str, Any] | None = None,
        on: Mapping[str, Tos] | None = None,
        output: Callable[[D], Any] | Mapping[str, Any] | None = None,
        publish: Sequence[str] = (),
        version: int = 1,
        queue: str = "default",
        description: str = "",
        listens: Sequence[Listen] = (),
        starts_on: Sequence[On] = (),
    ) -> None:
        root = State(on=on or {}, initial=initial, states=states)
        chart = Chart(root)
        content = {"machine": name, "data": repr(data), "output": output, "publish": publish, "root": root}
        super().__init__(name, version, queue, description, _plain(content), chart.bounds)
        kinds = {event: codec_for(kind) for event, kind in (events or {}).items()}
        self._complete(chart, codec_for(data) if data is not None else None, kinds, output, publish)
        if data is not None:
            self.signature = _signature(data, data if output is None else Any)
        self.listens, self.starts_on = tuple(listens), tuple(starts_on)
        found = [*check(chart, self.events), *listening.problems(self.listens, self.starts_on, self.events)]
        if problems := [one for one in found if one.level == "error"]:
            raise DefinitionInvalid(f"machine {name}", problems)
        for fn in self._functions():
            guard.refuse(fn)
        registry.add_workflow(self)

    def __call__(self, input: D = None, /) -> Call[Any]:  # type: ignore[assignment]
        return super().__call__(input)

    @classmethod
    def described(
        cls,
        body: Mapping[str, Any],
        chart: Chart,
        version: int,
        hash: str,
        schemas: tuple[Schema | None, Mapping[str, Schema | None]],
    ) -> Machine[Any]:
        """Of a document; not registered."""
        made: Machine[Any] = cls.__new__(cls)
        Described.__init__(
            made,
            str(body["machine"]),
            version,
            str(body.get("queue", "default")),
            str(body.get("description", "")),
            body,
            chart.bounds,
            hash,
        )
        data, events = schemas
        kinds = {name: schema.codec() if schema is not None else codec_for(Any) for name, schema in events.items()}
        made._complete(chart, None, kinds, body.get("output"), body.get("publish") or (), data)
        made.listens, made.starts_on, _ = listening.read(body)
        return made

    def _complete(
        self,
        chart: Chart,
        codec: Codec[D] | None,
        events: Mapping[str, Codec[Any]],
        output: Any,
        publish: Sequence[str],
        schema: Schema | None = None,
    ) -> None:
        self.chart = chart
        self.codec = codec
        self.events = {name: codec_for(Any) for name in chart.events} | dict(events)
        self._output = output
        self.publish = tuple(publish)
        self._schema = schema

    def check(self) -> None:
        """Its functions run in turns, like the code of any workflow."""
        if not self._checked:
            self._checked = True
            for fn in self._functions():
                guard.refuse(fn)
                guard.refuse_unknown(fn)
                guard.watch(guard.reachable(fn))

    def _functions(self) -> list[Callable[..., Any]]:
        return functions(self.chart.root.state, self._output)

    # Running.

    def fresh(self, running: Replay, input: Any) -> Coroutine[Any, Any, Any]:
        data = input if input is not None or self.codec is not None else {}
        return MachineRun(self, running, data, None).begin()

    def again(self, running: Replay, position: Raw) -> Coroutine[Any, Any, Any]:
        at = _position(position)
        if problems := self.fits(position):
            raise Undecodable(f"{running.key} cannot go on with {self.definition}: {problems[0]}")
        node = self.chart.nodes[at.state]
        return MachineRun(self, running, self.decode(at.data), node, at.tasks).resume(at.due)

    def undo_of(self, owed: ev.Owed) -> Action[..., Any]:
        return self.chart.undos.get(owed.undo) or super().undo_of(owed)

    def fits(self, position: Raw) -> list[Problem]:
        at = _position(position)
        node = self.chart.nodes.get(at.state)
        if node is None or node.children:
            have = ", ".join(path for path, node in self.chart.nodes.items() if path and not node.children)
            return [
                Problem(f"states.{at.state}", f"it is in state {at.state}, which is not here", f"there are: {have}")
            ]
        try:
            self.checked(self.decode(at.data))
        except InvalidValue as error:
            return [Problem("data", f"its data does not fit: {error}")]
        return []

    def diagram(self, current: Mapping[str, Mark] | None = None) -> Diagram:
        """As a picture, with the marks of states by their paths: `diagram({"review": "current"})`."""
        return draw(self.chart, self.name, current or {})

    def check_input(self, value: Any) -> None:
        if self._schema is not None and value is not None:
            self._schema.refuse(value, f"the input of {self.name}")

    def input_schema(self) -> dict[str, Any]:
        if self._schema is not None:
            return self._schema.shown()
        return {} if self.codec is None else self.codec.schema()

    def checked(self, data: D) -> D:
        """The data, if it may be like that."""
        if self._schema is not None:
            self._schema.refuse(data, "the data")
        return data

    def encode(self, data: D) -> Raw:
        return Raw(encode(data) if self.codec is None else self.codec.encode(data))

    def decode(self, data: Raw) -> Any:
        return msgspec.json.decode(data) if self.codec is None else self.codec.decode(data)

    def payload(self, received: ev.Received) -> Any:
        codec = self.events.get(received.name)
        return msgspec.json.decode(received.payload) if codec is None else codec.decode(received.payload)

    def wanted(self, leaf: Node) -> Wanted:
        return Wanted({name: self.events[name].decode for name in self.chart.takes(leaf)})

    def shown(self, state: str, data: D) -> dict[str, Any]:
        """What `find` and `state()` show."""
        shown: dict[str, Any] = {"state": state}
        if self.publish:
            plain = msgspec.json.decode(self.encode(data))
            shown |= {name: plain.get(name) for name in self.publish} if isinstance(plain, dict) else {}
        return shown

    def output_of(self, data: D) -> Any:
        if self._output is None:
            return data
        if callable(self._output):
            return self._output(data)
        return jq.Template(self._output).fill(Context(data, _NO_EVENT, None, self.codec).plain())

    def refuses(self, state: str, name: str, by: str, roles: Sequence[str]) -> str:
        """Why an event of this name is certainly not taken in this state, whatever it says; empty if it may be.

        Without a state: in no state at all.
        """
        if state:
            transitions = [one for node in self.chart.nodes[state].line() for one in node.on.get(name, ())]
        else:
            transitions = self.chart.events.get(name, [])
        if not transitions:
            return (
                self.chart.no_such(self.chart.nodes[state]) if state else f"{self.definition} takes no event {name!r}"
            )
        event = Event(name, None, "?", by, tuple(roles))
        if not all(reasons := [one.refuses(event) for one in transitions]):
            return ""
        if all(one.roles.isdisjoint(roles) for one in transitions):
            wanted = sorted({role for one in transitions for role in one.roles})
            return f"only {' or '.join(wanted)} may send {name}"
        return reasons[-1]


def _signature(data: Any, returns: Any) -> Signature:
    """A machine is called with its first data."""

    async def start(input: Any) -> Any: ...

    typed = types.FunctionType(start.__code__, {}, "start")
    typed.__annotations__ = {"input": data, "return": returns}
    return Signature(typed)


def functions(*parts: Any) -> list[Callable[..., Any]]:
    """All Python functions in the pieces of a machine."""
    found: list[Callable[..., Any]] = []
    waiting = list(parts)
    while waiting:
        one = waiting.pop()
        if isinstance(one, Action):
            continue
        if isinstance(one, Ask | Do | To | State):
            waiting += structs.asdict(one).values()
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, types.FunctionType):
            found.append(one)
    return found


def _plain(value: Any) -> Any:
    """A machine as data, for its fingerprint: functions by that of their code, actions by their names."""
    if isinstance(value, Action):
        return f"{value.name}@{value.version}"
    if isinstance(value, Ask | Do | To | State):
        # What came with a later release is left out where it is not used, so that fingerprints stay what they were.
        parts = {name: part for name, part in structs.asdict(value).items() if name != "person" or part is not None}
        return {name: _plain(part) for name, part in parts.items()}
    if isinstance(value, Retry) and value.spent == "fail":  # likewise
        return repr(value).replace(", spent='fail')", ")")
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return guard.fingerprint(value) if isinstance(value, types.FunctionType) else repr(value)
