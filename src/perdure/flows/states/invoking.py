"""Actions of states, made ready to run: one, and several in a row or side by side.

What an action gives is filtered and handed back; the state merges it into its data. Rules kept here: every passage is
noted as started and settled; each try has its own timeout; what is invoked without being waited for gives nothing, is
not tried again, and what goes wrong with it is in the log and concerns nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from perdure.core.events import NodeSettled, NodeStarted
from perdure.core.failures import describe
from perdure.flows.document.course import Scope
from perdure.flows.document.faults import Fault, fault_of, within
from perdure.flows.document.reader import escaped
from perdure.flows.document.terms import Length
from perdure.flows.states.course import Course, cancelled, spawn
from perdure.flows.states.data import Data, Target
from perdure.flows.states.errors import Retries
from perdure.flows.states.events import read_target
from perdure.flows.states.invoked import read_invoked
from perdure.flows.states.limits import Limits, seconds
from perdure.flows.states.reader import StatesReader

_KEYS = (
    *("id", "name", "functionRef", "eventRef", "subFlowRef", "sleep", "retryRef", "retryableErrors"),
    *("nonRetryableErrors", "actionDataFilter", "condition"),
)


class Gave(Struct, frozen=True):
    """What an action gave, and where it belongs; without a target to the whole of the data."""

    value: Any
    target: Target | None = None


class Invocation:
    """One action of a state."""

    def __init__(self, reader: StatesReader, body: Any, at: str, path: str, limits: Limits) -> None:
        self.at = at
        found = reader.object(body, at, _KEYS)
        self._what = read_invoked(reader, found, at)
        label = str(found.get("name") or self._what.label)
        self.path = f"{path}/{escaped(label)}" if label else path
        self._limit = limits.action
        self._condition = reader.test(found.get("condition"), f"{at}/condition")
        self._retries = Retries(reader, found, at)
        sleep = reader.object(found.get("sleep", {}), f"{at}/sleep", ("before", "after"))
        self._before = reader.duration(sleep.get("before"), f"{at}/sleep/before")
        self._after = reader.duration(sleep.get("after"), f"{at}/sleep/after")
        where = f"{at}/actionDataFilter"
        keys = ("fromStateData", "useResults", "results", "toStateData")
        shaped = reader.object(found.get("actionDataFilter", {}), where, keys)
        self._from = reader.test(shaped.get("fromStateData"), f"{where}/fromStateData")
        self._used = reader.flag(shaped.get("useResults", True), f"{where}/useResults")
        self._results = reader.test(shaped.get("results"), f"{where}/results")
        self._target: Target | None = read_target(reader, shaped.get("toStateData"), f"{where}/toStateData")

    async def run(self, course: Course, value: Any, scope: Scope) -> Gave | None:
        """One passage; gives what is to be merged, if anything is."""
        path = scope.path(self.path)
        try:
            if self._condition is not None and not self._condition.true(value, course.names):
                course.note(NodeStarted(path))
                course.settle(NodeSettled(path, "skipped"))
                return None
            given = value if self._from is None else self._from.of(value, course.names)
        except Exception as error:
            course.note(NodeStarted(path))
            raise self._failed(course, path, error) from None
        course.note(NodeStarted(path, course.encoded(given, path)))
        if self._what.apart is None:
            return await self._passage(course, given, path, tries=True)
        course.begin(self._what.apart, self._passage(course, given, path, tries=False))
        await asyncio.sleep(0)  # it has begun, also if the very next thing is the end
        return None

    async def _passage(self, course: Course, given: Any, path: str, *, tries: bool) -> Gave | None:
        try:
            await _sleep(self._before, given, course)
            result, attempts = await self._tried(course, given, tries)
            await _sleep(self._after, given, course)
            if self._results is not None and self._used:
                result = self._results.of(result, course.names)
            course.settle(NodeSettled(path, output=course.encoded(result, path), attempts=attempts))
        except asyncio.CancelledError:
            if not course.running.loop.closed:
                course.settle(NodeSettled(path, "cancelled"))
            raise
        except Exception as error:
            raise self._failed(course, path, error) from None
        return Gave(result, self._target) if self._used and result is not None else None

    async def _tried(self, course: Course, given: Any, again: bool) -> tuple[Any, int]:
        tries = 1
        while True:
            try:
                limit = seconds(self._limit, given, course)
                return await within(limit, "the action", self.at, self._what.invoke(course, given)), tries
            except Exception as error:
                found = fault_of(error, self.at)
                pause = self._retries.pause(found, tries) if again else None
                if pause is None:
                    found.__dict__["tries"] = tries
                    raise found from None
            tries += 1
            await asyncio.sleep(pause / 1e6)

    def _failed(self, course: Course, path: str, error: Exception) -> Fault:
        found = fault_of(error, self.at)
        tries = found.__dict__.pop("tries", 1)
        course.settle(NodeSettled(path, "failed", error=describe(found), attempts=tries))
        return found


async def _sleep(length: Length | None, given: Any, course: Course) -> None:
    if length is not None:
        await asyncio.sleep(length.of(given, course.names, course.now) / 1e6)


class Invocations:
    """The actions of a state, a branch or an event."""

    def __init__(
        self, reader: StatesReader, body: Any, at: str, path: str, limits: Limits, mode: str = "sequential"
    ) -> None:
        self.each = [
            Invocation(reader, one, f"{at}/{number}", f"{path}/{number}", limits)
            for number, one in enumerate(reader.list(body, at))
        ]
        self.parallel = mode == "parallel"

    async def run(self, course: Course, data: Data, scope: Scope) -> None:
        """One after the other, each with the data that those before it left; or side by side, all with the same."""
        await self.give(course, lambda: data.value, scope, lambda gave: data.add(gave.target, gave.value))

    async def give(self, course: Course, value: Callable[[], Any], scope: Scope, taken: Callable[[Gave], None]) -> None:
        if not self.parallel:
            for one in self.each:
                if (gave := await one.run(course, value(), scope)) is not None:
                    taken(gave)
            return
        given = value()
        for gave in await together(course, [one.run(course, given, scope) for one in self.each]):
            if gave is not None:
                taken(gave)


async def together(course: Course, works: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Side by side, what all of them give; the first error ends the others."""
    tasks = [spawn(work) for work in works]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return results(tasks)
    finally:
        await cancelled(course, tasks)


def results(tasks: Sequence[asyncio.Task[Any]]) -> list[Any]:
    """What tasks gave that are done, or the error of the first that has one."""
    for task in tasks:
        if task.done() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in tasks if task.done()]
