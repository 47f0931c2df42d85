"""States that wait for events: `event`, and `callback`, which asks for one first.

Rules kept here: of an exclusive state any event is enough, else all of them have to come, and only then anything is
done; what does not come in time is not waited for any longer, and the state leads on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

from msgspec import Struct

from perdure.flows.states.course import Course
from perdure.flows.states.data import Data
from perdure.flows.states.events import Consumed, EventFilter, in_time, next_of, read_consumed
from perdure.flows.states.invoking import Invocation, Invocations
from perdure.flows.states.limits import seconds
from perdure.flows.states.plain import MODES
from perdure.flows.states.reader import StatesReader
from perdure.flows.states.state import State
from perdure.flows.states.ways import Way


class On(Struct, frozen=True):
    """Events, and what is done when they have come."""

    events: list[Consumed]
    filter: EventFilter
    actions: Invocations


class Event(State):
    type: ClassVar[str] = "event"
    keys: ClassVar[tuple[str, ...]] = ("exclusive", "onEvents")
    needs: ClassVar[tuple[str, ...]] = ("onEvents",)
    times: ClassVar[tuple[str, ...]] = ("stateExecTimeout", "actionExecTimeout", "eventTimeout")

    def make(self, reader: StatesReader) -> None:
        self.exclusive = reader.flag(self.body.get("exclusive", True), f"{self.at}/exclusive")
        found = reader.list(self.body.get("onEvents"), f"{self.at}/onEvents")
        self.on = [self._read(reader, one, number) for number, one in enumerate(found)]
        if not found:
            reader.wrong(f"{self.at}/onEvents", "it waits for nothing", "name an event in eventRefs")

    def _read(self, reader: StatesReader, one: Any, number: int) -> On:
        at, path = f"{self.at}/onEvents/{number}", f"{self.path}/onEvents/{number}"
        body = reader.object(one, at, ("eventRefs", "actionMode", "actions", "eventDataFilter"), ("eventRefs",))
        names = reader.list(body.get("eventRefs"), f"{at}/eventRefs")
        if "eventRefs" in body and not names:
            reader.wrong(f"{at}/eventRefs", "it waits for nothing", "name an event here")
        read = [read_consumed(reader, name, f"{at}/eventRefs/{place}") for place, name in enumerate(names)]
        mode = reader.one_of(body.get("actionMode", "sequential"), f"{at}/actionMode", MODES)
        return On(
            [event for event in read if event is not None],
            EventFilter(reader, body.get("eventDataFilter"), f"{at}/eventDataFilter"),
            Invocations(reader, body.get("actions"), f"{at}/actions", f"{path}/actions", self.limits, mode),
        )

    def events(self) -> Iterator[Consumed]:
        for one in self.on:
            yield from one.events

    async def work(self, course: Course, data: Data) -> Way | None:
        limit = seconds(self.limits.event, data.value, course)
        came = await self._any(course, limit) if self.exclusive else await self._all(course, limit)
        for on, told in came:
            for one in told:
                on.filter.merge(one, data, course)
            await on.actions.run(course, data, self.scope)
        return None

    async def _any(self, course: Course, limit: float | None) -> list[tuple[On, list[Any]]]:
        came = await in_time(limit, course, list(self.events()))
        if came is None:
            return []
        found, told = came
        return [(next(on for on in self.on if any(one is found for one in on.events)), [told])]

    async def _all(self, course: Course, limit: float | None) -> list[tuple[On, list[Any]]]:
        wanted, told = list(self.events()), dict[int, Any]()
        timeout = asyncio.timeout(limit)
        try:
            async with timeout:
                while wanted:
                    found, event = await next_of(course, wanted)
                    told[id(found)] = event
                    wanted = [one for one in wanted if one is not found]
        except TimeoutError:
            if not timeout.expired():
                raise
            return []
        return [(on, [told[id(event)] for event in on.events]) for on in self.on]


class Callback(State):
    type: ClassVar[str] = "callback"
    keys: ClassVar[tuple[str, ...]] = ("action", "eventRef", "eventDataFilter")
    needs: ClassVar[tuple[str, ...]] = ("action", "eventRef")
    times: ClassVar[tuple[str, ...]] = ("stateExecTimeout", "actionExecTimeout", "eventTimeout")

    def make(self, reader: StatesReader) -> None:
        self.action = Invocation(
            reader, self.body.get("action", {}), f"{self.at}/action", f"{self.path}/action", self.limits
        )
        name = self.body.get("eventRef")
        self.event = read_consumed(reader, name, f"{self.at}/eventRef") if "eventRef" in self.body else None
        self.filter = EventFilter(reader, self.body.get("eventDataFilter"), f"{self.at}/eventDataFilter")

    async def work(self, course: Course, data: Data) -> Way | None:
        if (gave := await self.action.run(course, data.value, self.scope)) is not None:
            data.add(gave.target, gave.value)
        assert self.event is not None
        came = await in_time(seconds(self.limits.event, data.value, course), course, [self.event])
        if came is not None:
            self.filter.merge(came[1], data, course)
        return None
