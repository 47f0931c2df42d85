"""States that follow one path: `inject`, `sleep`, `operation`, and `switch` by the data or by an event."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

from perdure.flows.document.terms import Expression
from perdure.flows.given import is_constant
from perdure.flows.states.course import Course
from perdure.flows.states.data import Data
from perdure.flows.states.events import Consumed, EventFilter, in_time, read_consumed
from perdure.flows.states.invoking import Invocations
from perdure.flows.states.limits import seconds
from perdure.flows.states.reader import NAMES, StatesReader
from perdure.flows.states.state import State
from perdure.flows.states.ways import Way, read_way

MODES = ("sequential", "parallel")


class Inject(State):
    type: ClassVar[str] = "inject"
    keys: ClassVar[tuple[str, ...]] = ("data",)
    needs: ClassVar[tuple[str, ...]] = ("data",)

    def make(self, reader: StatesReader) -> None:
        self.data = self.body.get("data")
        if not isinstance(self.data, dict):
            reader.wrong(f"{self.at}/data", "an object is expected here")
        elif not is_constant(self.data):
            fix = "compute it in an action, with a function that is an expression"
            reader.warn(f"{self.at}/data", "what is injected is taken as it is, with its ${ }", fix)

    async def work(self, course: Course, data: Data) -> Way | None:
        data.add(None, self.data)
        return None


class Sleep(State):
    type: ClassVar[str] = "sleep"
    keys: ClassVar[tuple[str, ...]] = ("duration",)
    needs: ClassVar[tuple[str, ...]] = ("duration",)

    def make(self, reader: StatesReader) -> None:
        self.length = reader.length(self.body.get("duration", "PT0S"), f"{self.at}/duration", NAMES)

    async def work(self, course: Course, data: Data) -> Way | None:
        await asyncio.sleep(self.length.of(data.value, course.names, course.now) / 1e6)
        return None


class Operation(State):
    type: ClassVar[str] = "operation"
    keys: ClassVar[tuple[str, ...]] = ("actions", "actionMode")
    needs: ClassVar[tuple[str, ...]] = ("actions",)
    times: ClassVar[tuple[str, ...]] = ("stateExecTimeout", "actionExecTimeout")

    def make(self, reader: StatesReader) -> None:
        mode = reader.one_of(self.body.get("actionMode", "sequential"), f"{self.at}/actionMode", MODES)
        at, path = f"{self.at}/actions", f"{self.path}/actions"
        self.actions = Invocations(reader, self.body.get("actions"), at, path, self.limits, mode)

    async def work(self, course: Course, data: Data) -> Way | None:
        await self.actions.run(course, data, self.scope)
        return None


class Switch(State):
    """The first condition that holds, or the first event that comes, decides; else the default does."""

    type: ClassVar[str] = "switch"
    keys: ClassVar[tuple[str, ...]] = ("dataConditions", "eventConditions", "defaultCondition")
    needs: ClassVar[tuple[str, ...]] = ("defaultCondition",)
    times: ClassVar[tuple[str, ...]] = ("stateExecTimeout", "eventTimeout")
    leads: ClassVar[bool] = False

    def make(self, reader: StatesReader) -> None:
        self.tests: list[tuple[str, Expression, Way]] = []
        self.events: list[tuple[Consumed, EventFilter, Way]] = []
        if ("dataConditions" in self.body) == ("eventConditions" in self.body):
            reader.wrong(self.at, "one of dataConditions and eventConditions is expected here")
        for number, one in enumerate(reader.list(self.body.get("dataConditions"), f"{self.at}/dataConditions")):
            self._make_test(reader, one, f"{self.at}/dataConditions/{number}")
        for number, one in enumerate(reader.list(self.body.get("eventConditions"), f"{self.at}/eventConditions")):
            self._make_event(reader, one, f"{self.at}/eventConditions/{number}")
        at = f"{self.at}/defaultCondition"
        default = reader.object(self.body.get("defaultCondition", {}), at, ("name", "transition", "end"))
        self.default = read_way(reader, default, at, self.own, needed="defaultCondition" in self.body)

    def _make_test(self, reader: StatesReader, one: Any, at: str) -> None:
        body = reader.object(one, at, ("name", "condition", "transition", "end", "metadata"), ("condition",))
        test = reader.test(body.get("condition"), f"{at}/condition")
        way = read_way(reader, body, at, self.own)
        if test is not None and way is not None:
            self.tests.append((str(body.get("name") or body["condition"]), test, way))

    def _make_event(self, reader: StatesReader, one: Any, at: str) -> None:
        keys = ("name", "eventRef", "transition", "end", "eventDataFilter", "metadata")
        body = reader.object(one, at, keys, ("eventRef",))
        event = read_consumed(reader, body.get("eventRef"), f"{at}/eventRef") if "eventRef" in body else None
        shaped = EventFilter(reader, body.get("eventDataFilter"), f"{at}/eventDataFilter")
        way = read_way(reader, body, at, self.own)
        if event is not None and way is not None:
            self.events.append((event, shaped, way))

    def ways(self) -> Iterator[tuple[str, Way]]:
        for label, _, way in self.tests:
            yield label, way
        for event, _, way in self.events:
            yield event.name, way
        if self.default is not None:
            yield "", self.default
        yield from super().ways()

    async def work(self, course: Course, data: Data) -> Way | None:
        for _, test, way in self.tests:
            if test.true(data.value, course.names):
                return way
        if self.events:
            limit = seconds(self.limits.event, data.value, course)
            came = await in_time(limit, course, [event for event, _, _ in self.events])
            if came is not None:
                found, told = came
                shaped, way = next((shaped, way) for event, shaped, way in self.events if event is found)
                shaped.merge(told, data, course)
                return way
        return self.default
