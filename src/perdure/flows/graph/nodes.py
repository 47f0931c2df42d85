"""What the types of nodes do. How tokens move between them is the walk's matter.

A step is a node made ready: its expressions are compiled. `prepare` fills them in when a token enters; then an instant
step `decides` at once, and any other `works` for a while, as a task of its own. Rules kept here: values are plain JSON;
what a step learns while it is open is kept in its token, so that it can go on after a checkpoint.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct

from perdure.core import jq
from perdure.core.durations import micros
from perdure.core.replay import Replay
from perdure.errors import ExecutionFailed, InvalidValue
from perdure.flows.bound import Bound, Call, arguments
from perdure.flows.graph import model
from perdure.flows.graph.children import run_child
from perdure.flows.graph.events import Want, collect
from perdure.flows.graph.expressions import Length, See, Test, Value
from perdure.flows.graph.model import Node
from perdure.flows.graph.people import task_done
from perdure.flows.graph.state import Token
from perdure.flows.schema import Schema
from perdure.flows.task import Order, People

D = TypeVar("D", bound=model.Data)


class At(Struct, frozen=True):
    """Where a step works: the execution and its token."""

    running: Any  # a Replay: msgspec need not know it
    token: Token

    @property
    def deadline(self) -> float | None:
        """When its time is over, by the clock of the loop."""
        due = self.token.due
        return None if due is None else (due - self.running.began) / 1e6


class Prepared(Struct, frozen=True):
    """What a node's expressions gave, and how long it may or must last, in microseconds."""

    given: Any = None
    length: int | None = None


class Left(Struct, frozen=True):
    """How a token leaves a node. A node that only steers passes on what came in."""

    output: Any = None
    handle: str = ""
    passes: bool = False
    attempts: int = 1


class Step(Generic[D]):
    """A node made ready."""

    instant = True

    def __init__(self, node: Node, bounds: Mapping[str, Bound]) -> None:
        self.id = node.id
        self.data: D = node.data
        self.on_error: str = getattr(node.data, "on_error", "")
        self.make(bounds)

    def make(self, bounds: Mapping[str, Bound]) -> None:
        """Compile what can be; whatever is wrong is InvalidValue."""

    def prepare(self, see: See, path: str) -> Prepared:
        return Prepared()

    def decide(self, given: Any, token: Token) -> Left:
        return Left(passes=True)

    async def work(self, at: At) -> Left:
        raise NotImplementedError


class TriggerStep(Step[model.Trigger]):
    def make(self, bounds: Mapping[str, Bound]) -> None:
        self.schema = None if self.data.schema is None else Schema(self.data.schema)

    def check(self, payload: Any) -> None:
        if self.schema is not None:
            self.schema.refuse(payload, f"the payload for trigger {self.id}")

    def decide(self, given: Any, token: Token) -> Left:
        self.check(token.value)
        return Left(token.value)


class ActStep(Step[model.Act]):
    instant = False

    def make(self, bounds: Mapping[str, Bound]) -> None:
        self.given = Value(self.data.given)
        if self.data.timeout is not None:
            micros(self.data.timeout)
        self.call = Call(bounds.get(self.data.action, Bound(self.data.action)), self.data.retries, self.data.timeout)

    def prepare(self, see: See, path: str) -> Prepared:
        return Prepared(self.given.of(see))

    async def work(self, at: At) -> Left:
        running: Replay = at.running
        spec = self.call.spec()
        output = await running.act(spec, arguments(self.call.bound, at.token.given, spec), spec.compensation)
        # One action settles in a turn, and this is still that turn.
        return Left(output, attempts=running.tries)


class ConditionStep(Step[model.Condition]):
    def make(self, bounds: Mapping[str, Bound]) -> None:
        self.when = Test(self.data.when)

    def prepare(self, see: See, path: str) -> Prepared:
        return Prepared(self.when.of(see))

    def decide(self, given: Any, token: Token) -> Left:
        return Left(given, "true" if given else "false", passes=True)


class SwitchStep(Step[model.Switch]):
    def make(self, bounds: Mapping[str, Bound]) -> None:
        self.value = Value(self.data.value)
        self.cases = [(case.handle, self._chosen(case)) for case in self.data.cases]

    def _chosen(self, case: model.Case) -> Callable[[Any, See], bool]:
        match case.equals, case.when:
            case msgspec.UnsetType(), str() as text:
                test = Test(text)
                return lambda value, see: test.of(see)
            case equals, msgspec.UnsetType() if equals is not UNSET:
                wanted = Value(equals)
                return lambda value, see: same(value, wanted.of(see))
            case _:
                raise InvalidValue(f"the case for {case.handle!r} needs either equals or when")

    def prepare(self, see: See, path: str) -> Prepared:
        value = self.value.of(see)
        return Prepared(next((handle for handle, chosen in self.cases if chosen(value, see)), "default"))

    def decide(self, given: Any, token: Token) -> Left:
        return Left(given, given, passes=True)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return bool(one == other) and msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


class DelayStep(Step[model.Delay]):
    instant = False

    def make(self, bounds: Mapping[str, Bound]) -> None:
        self.length = Length(self.data.duration, self.data.unit)

    def prepare(self, see: See, path: str) -> Prepared:
        length = self.length.of(see)
        return Prepared({"seconds": length / 1e6}, length)

    async def work(self, at: At) -> Left:
        assert at.deadline is not None
        left = at.deadline - at.running.loop.time()
        if left > 0:
            await asyncio.sleep(left)
        return Left(passes=True)


class AssignStep(Step[model.Assign]):
    def make(self, bounds: Mapping[str, Bound]) -> None:
        self.values = Value(self.data.variables)

    def prepare(self, see: See, path: str) -> Prepared:
        return Prepared(self.values.of(see))

    def decide(self, given: Any, token: Token) -> Left:
        return Left(given, passes=True)


class WaitStep(Step[model.Wait]):
    instant = False

    def make(self, bounds: Mapping[str, Bound]) -> None:
        events, mode = self.data.events, self.data.mode
        if not events:
            raise InvalidValue("there are no events to wait for")
        self.needed = len(events) if mode == "all" else 1 if mode == "any" else mode
        if not 1 <= self.needed <= len(events):
            raise InvalidValue(f"mode {mode} is not between 1 and {len(events)}, the number of its events")
        self.matches = [Value(event.match) for event in events]
        self.schemas = [None if event.schema is None else Schema(event.schema) for event in events]
        self.length = None if self.data.timeout is None else Length(self.data.timeout)

    def prepare(self, see: See, path: str) -> Prepared:
        wanted = [
            {"name": event.name, "match": match.of(see)}
            for event, match in zip(self.data.events, self.matches, strict=True)
        ]
        return Prepared(wanted, None if self.length is None else self.length.of(see))

    async def work(self, at: At) -> Left:
        token = at.token
        wants = [
            Want(number, one["name"], one["match"], schema)
            for number, (one, schema) in enumerate(zip(token.given, self.schemas, strict=True))
        ]
        try:
            async with asyncio.timeout_at(at.deadline):
                await collect(at.running, wants, token.got, self.needed)
        except TimeoutError:
            return Left(handle="timeout")
        if self.data.mode == "all":
            return Left([token.got[want.number]["payload"] for want in wants])
        return Left(next(iter(token.got.values())) if self.data.mode == "any" else list(token.got.values()))


class PersonStep(Step[model.Person]):
    instant = False

    def make(self, bounds: Mapping[str, Bound]) -> None:
        self.form = None if self.data.form is None else Schema(self.data.form)
        self.words = Value({"task": self.data.task, "assign": self.data.assign})
        self.given = Value(self.data.given)
        self.length = None if self.data.timeout is None else Length(self.data.timeout)

    def prepare(self, see: See, path: str) -> Prepared:
        shown = {name: word for name, word in self.words.of(see).items() if word}
        shown |= {"event": self.data.event or path} | ({"roles": self.data.roles} if self.data.roles else {})
        if (data := self.given.of(see)) is not None:
            shown["with"] = data
        return Prepared(shown, None if self.length is None else self.length.of(see))

    async def work(self, at: At) -> Left:
        event, roles = at.token.given["event"], self.data.roles
        try:
            async with asyncio.timeout_at(at.deadline):
                return Left(await task_done(at.running, at.token, lambda: self._order(at), event, self.form, roles))
        except TimeoutError:
            return Left(handle="timeout")

    def _order(self, at: At) -> Order:
        """What is asked. When the time of the node is over, the node withdraws it."""
        given, deadline = at.token.given, at.deadline
        due = None if deadline is None else max(0, math.ceil((deadline - at.running.loop.time()) * 1e6))
        users = (str(given["assign"]),) if given.get("assign") else ()
        title, form = str(given.get("task", "")), self.data.form
        to = People(users, tuple(self.data.roles))
        return Order(self.id, title, form, to, given.get("with"), due, priority=self.data.priority, expires=False)


class LoopStep(Step[model.Loop]):
    def make(self, bounds: Mapping[str, Bound]) -> None:
        items = self.data.items
        self.items = Value(items if isinstance(items, list) else f"${{ {jq.expression(items)} }}")

    def prepare(self, see: See, path: str) -> Prepared:
        items = self.items.of(see)
        if not isinstance(items, list):
            raise InvalidValue(f"items gave {type(items).__name__}, and a loop needs a list")
        return Prepared(items)


class ChildStep(Step[model.Child]):
    instant = False

    def make(self, bounds: Mapping[str, Bound]) -> None:
        self.given = Value(self.data.given)

    def prepare(self, see: See, path: str) -> Prepared:
        return Prepared(self.given.of(see))

    async def work(self, at: At) -> Left:
        return Left(await run_child(at.running, self.data.workflow, self.data.version, at.token.given))


class EndStep(Step[model.End]):
    def make(self, bounds: Mapping[str, Bound]) -> None:
        self.result = None if self.data.result is UNSET else Value(self.data.result)
        self.message = Value(self.data.message)

    def prepare(self, see: See, path: str) -> Prepared:
        if self.data.status == "failed":
            return Prepared(str(self.message.of(see)) or f"the graph came to {self.id}")
        return Prepared(None if self.result is None else self.result.of(see))

    def decide(self, given: Any, token: Token) -> Left:
        if self.data.status == "failed":
            raise ExecutionFailed(given, type="EndedAsFailed")
        return Left(token.value if self.result is None else given)


STEPS: dict[type[Any], type[Step[Any]]] = {
    model.Trigger: TriggerStep,
    model.Act: ActStep,
    model.Condition: ConditionStep,
    model.Switch: SwitchStep,
    model.Delay: DelayStep,
    model.Assign: AssignStep,
    model.Wait: WaitStep,
    model.Parallel: Step,
    model.Join: Step,
    model.Loop: LoopStep,
    model.Child: ChildStep,
    model.Person: PersonStep,
    model.End: EndStep,
}


def step_of(node: Node, bounds: Mapping[str, Bound]) -> Step[Any]:
    return STEPS[type(node.data)](node, bounds)
