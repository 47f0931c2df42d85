"""A workflow of states made ready to run: what it says of itself, its states, and how an execution of it goes.

How it ends, exactly once: `end: true` ends the path, and the execution is over when no other path is left; `terminate`
ends all of them; with keepActive nothing but `terminate` and the timeout of the workflow ends it. On the way to the end
it first compensates, then produces events, then continues as another one. To continue as itself is a checkpoint of the
same execution; any other workflow it continues as is its child, whose result is its own. So whoever waits for it sees
one execution, however long the chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.replay import Replay
from perdure.flows.bound import Bound
from perdure.flows.described import checkpoint
from perdure.flows.document.faults import fault, fault_of
from perdure.flows.document.plan import COST, LARGEST, LEAST
from perdure.flows.document.terms import Length
from perdure.flows.graph.children import run_child
from perdure.flows.schema import Schema
from perdure.flows.states import shape
from perdure.flows.states.course import Course
from perdure.flows.states.invoked import check_functions
from perdure.flows.states.limits import Limits, seconds
from perdure.flows.states.many import ForEach, Parallel
from perdure.flows.states.plain import Inject, Operation, Sleep, Switch
from perdure.flows.states.reader import StatesReader
from perdure.flows.states.starting import EVENT, read_start
from perdure.flows.states.state import State
from perdure.flows.states.waiting import Callback, Event
from perdure.flows.states.ways import Follower, Way

TYPES: dict[str, type[State]] = {
    kind.type: kind for kind in (Event, Operation, Switch, Sleep, Parallel, Inject, ForEach, Callback)
}
_TOP = (
    *("id", "key", "name", "version", "description", "specVersion", "start", "states", "functions", "events", "errors"),
    *("retries", "auth", "timeouts", "constants", "secrets", "dataInputSchema", "keepActive", "autoRetries"),
    *("expressionLang", "annotations", "metadata"),
)
_TIMES = ("stateExecTimeout", "actionExecTimeout", "branchExecTimeout", "eventTimeout")


class Position(Struct, frozen=True):
    """Where an execution stands between two states."""

    state: str
    data: Any
    done: list[str]
    known: dict[str, Any]
    since: float  # when it began, or continued as itself, in seconds of its loop
    limit: float | None = None  # of the whole of it, if it was told when it continued


class Halted(Exception):
    """The time of the workflow is over, between two states."""


def called(body: Any) -> str:
    """The name of a workflow, as far as it has one."""
    found = (body.get("id") or body.get("key")) if isinstance(body, Mapping) else None
    return found if isinstance(found, str) else ""


class Plan:
    """It is shared by all its executions."""

    def __init__(self, body: Mapping[str, Any], bounds: Mapping[str, Bound]) -> None:
        reader = StatesReader(body, bounds)
        self.body = body
        self.name, self.label = called(body), str(body.get("version", ""))
        self.description = str(body.get("description") or body.get("name") or "")
        self.see = reader.see
        self._read_about(reader)
        self.stays = reader.flag(body.get("keepActive", False), "/keepActive")
        self.wants, self._strict = _read_schema(reader, body.get("dataInputSchema"))
        self._read_limits(reader)
        check_functions(reader)
        self.states: dict[str, State] = {}
        self._read_states(reader)
        self.first, self.starts_on = read_start(reader, body.get("start"), self.states)
        shape.check(reader, self)
        self.listens = tuple(dict.fromkeys(reader.listens))
        self.problems, self.calls = reader.problems, reader.calls

    def _read_about(self, reader: StatesReader) -> None:
        reader.object(dict(self.body), "", _TOP, ("specVersion", "states"))
        if not self.name:
            reader.wrong("/id", "the workflow has no id", "by its id it is started, and run by others")
        if self.body.get("specVersion") != "0.8":
            version = str(self.body.get("specVersion"))[:40]
            fix = "0.8 is; documents of version 1.0 begin with `document`"
            reader.wrong("/specVersion", f"version {version} of the DSL is not known here", fix)
        if self.body.get("expressionLang", "jq") != "jq":
            reader.wrong("/expressionLang", "expressions are in jq")
        if "auth" in self.body:
            reader.wrong("/auth", "nothing here authenticates", "let an action do it, with a secret")

    def _read_limits(self, reader: StatesReader) -> None:
        body = self.body.get("timeouts", {})
        if isinstance(body, str):
            reader.wrong("/timeouts", "what lies elsewhere is not fetched", "put an object here")
            body = {}
        self.limits = Limits().read(reader, body, "/timeouts", ("workflowExecTimeout", *_TIMES))
        whole, at = body.get("workflowExecTimeout") if isinstance(body, dict) else None, "/timeouts/workflowExecTimeout"
        if whole is not None and not isinstance(whole, dict):
            whole = {"duration": whole}
        found = reader.object(whole or {}, at, ("duration", "interrupt", "runBefore"), ("duration",) if whole else ())
        self._limit: Length | None = reader.duration(found.get("duration"), f"{at}/duration")
        self._interrupts = reader.flag(found.get("interrupt", True), f"{at}/interrupt")
        self.before_end = found.get("runBefore")

    def _read_states(self, reader: StatesReader) -> None:
        found = reader.list(self.body.get("states"), "/states")
        if not found:
            reader.wrong("/states", "there are no states")
        for number, one in enumerate(found):
            at = f"/states/{number}"
            kind = one.get("type") if isinstance(one, dict) else None
            if not isinstance(kind, str) or kind not in TYPES:
                reader.wrong(f"{at}/type", f"one of {', '.join(TYPES)} is expected here")
                continue
            state = TYPES[kind](reader, one, at, self.limits, self.name)
            if state.name in self.states:
                reader.wrong(f"{at}/name", f"two states are named {state.name!r}", "give each its own name")
            self.states[state.name] = state
        self._place = {name: place for place, name in enumerate(self.states)}

    @property
    def has_limit(self) -> bool:
        return self._limit is not None

    def check_input(self, value: Any) -> None:
        if self.wants is not None and self._strict and not _is_event(value):
            self.wants.refuse({} if value is None else value, f"the input of {self.name}")

    # An execution.

    async def begin(self, running: Replay, input: Any) -> Any:
        course = Course(running, self.see, [], {})
        if _is_event(input):
            course.event, input = input[EVENT], {}
        try:
            self.check_input(input)
        except Exception as error:
            raise fault_of(error, "/dataInputSchema") from None
        position = Position(self.first, {} if input is None else input, course.done, course.known, 0.0)
        return await self._live(course, position)

    async def go_on(self, running: Replay, position: Position) -> Any:
        return await self._live(Course(running, self.see, list(position.done), dict(position.known)), position)

    async def _live(self, course: Course, position: Position) -> Any:
        limit = position.limit
        if limit is None:
            limit = seconds(self._limit, position.data, course, position.since)
        due = None if limit is None else position.since + limit
        try:
            way, data = await self._in_time(course, position, due)
            if way.follower is not None:
                return await self._follow(course, way.follower, data)
            return data
        finally:
            await course.stop()

    async def _in_time(self, course: Course, position: Position, due: float | None) -> tuple[Way, Any]:
        """From here to the end of its paths; what the timeout of the workflow does is done here."""
        timeout = asyncio.timeout_at(due if self._interrupts else None)
        ended: tuple[Way, Any] | None = None
        try:
            async with timeout:
                ended = await self._walk(course, position, None if self._interrupts else due)
                await self._rest(course, ended[0], due)
            return ended
        except Halted:
            pass
        except TimeoutError:
            if not timeout.expired():
                raise
        if ended is not None and not course.paths:
            return ended  # only keepActive kept it
        await course.stop()
        if self.before_end:
            await self._walk(course, Position(self.before_end, course.data, course.done, course.known, 0.0), None)
        raise fault("timeout", f"{self.name} took longer than the timeout of the workflow", "/timeouts")

    async def _walk(self, course: Course, position: Position, due: float | None) -> tuple[Way, Any]:
        """From state to state until one ends the path."""
        name, data, worth = position.state, position.data, LEAST
        while True:
            course.data = data
            left = await self.states[name].run(course, data)
            assert left.way is not None
            data = course.data = left.data
            if left.way.to and due is not None and course.running.loop.time() >= due:
                raise Halted
            if left.way.compensates:
                data = await self._compensate(course, data)
            await left.way.produce(data, course)
            if not left.way.to:
                return left.way, data
            back = self._place[left.way.to] <= self._place[name]
            name = left.way.to
            if back and course.settled >= worth and course.rested and course.alone and not course.running.orphans:
                worth = _checkpoint(course, position, name, data)

    async def _compensate(self, course: Course, data: Any) -> Any:
        """Undo what was done, the last first; what one leaves is given to the next."""
        await course.stop("branch")
        while course.done:
            name = self.states[course.done.pop()].compensated_by
            while name:
                left = await self.states[name].run(course, data)
                data, name = left.data, left.way.to if left.way is not None else ""
        return data

    async def _rest(self, course: Course, way: Way, due: float | None) -> None:
        """Wait until nothing is left that keeps the execution."""
        if way.terminates or way.follower is not None:
            await course.stop()
            return
        if not self.stays:
            await course.paths_end()
            return
        waiter = course.running.listen({}, {})  # it is kept, and nothing wakes it
        try:
            async with asyncio.timeout_at(None if self._interrupts else due):
                await waiter.future
        except TimeoutError:
            await course.paths_end()
        finally:
            course.running.unlisten(waiter)

    async def _follow(self, course: Course, follower: Follower, data: Any) -> Any:
        try:
            input = follower.input(data, course)
            limit = seconds(follower.limit, data, course)
        except Exception as error:
            raise fault_of(error, "/end") from None
        if follower.workflow == self.name and follower.version in (None, self.label):
            since = course.running.loop.time()
            checkpoint(course.running, Position(self.first, input, [], {}, since, limit), undos=False)
        try:
            return await run_child(course.running, follower.workflow, follower.version, input)
        except Exception as error:
            raise fault_of(error, "/end") from None


def _checkpoint(course: Course, position: Position, name: str, data: Any) -> int:
    """Begin again from here, if it is worth it; else how many states have to settle before that is asked again."""
    made = Position(name, data, course.done, course.known, position.since, position.limit)
    size = len(msgspec.json.encode(made))
    if size > LARGEST:
        return 2 * course.settled  # it may become smaller
    if course.settled >= size // COST:
        checkpoint(course.running, made)
    return size // COST


def _is_event(input: Any) -> bool:
    return isinstance(input, dict) and input.keys() == {EVENT}


def _read_schema(reader: StatesReader, value: Any) -> tuple[Schema | None, bool]:
    if value is None:
        return None, True
    at, keys = "/dataInputSchema", ("schema", "failOnValidationErrors")
    found = {"schema": value} if isinstance(value, str) else reader.object(value, at, keys, ("schema",))
    if isinstance(found.get("schema"), str):
        reader.wrong(f"{at}/schema", "a schema that lies elsewhere is not fetched", "put it here, under `schema`")
        return None, True
    strict = reader.flag(found.get(keys[1], True), f"{at}/{keys[1]}")
    return reader.schema({"document": found.get("schema", True)}, at), strict
