"""States that do several things side by side: `parallel` and `foreach`.

Rules kept here: each branch and each round has its own copy of the data; what they give is merged in their order when
the state is done; the first error ends the others. What a parallel state does not wait for runs on beside the path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from perdure.core import jq
from perdure.core.events import NodeSettled, NodeStarted
from perdure.core.failures import describe
from perdure.errors import InvalidValue
from perdure.flows.document.faults import fault_of, within
from perdure.flows.document.reader import escaped
from perdure.flows.states.course import Course, cancelled, spawn
from perdure.flows.states.data import Data, merged
from perdure.flows.states.events import read_target
from perdure.flows.states.invoking import Gave, Invocations, results, together
from perdure.flows.states.limits import Limits, seconds
from perdure.flows.states.plain import MODES
from perdure.flows.states.reader import StatesReader
from perdure.flows.states.state import State
from perdure.flows.states.ways import Way

_BRANCH = ("actionExecTimeout", "branchExecTimeout")


class Branch:
    """One of the things that a parallel state does."""

    def __init__(self, reader: StatesReader, body: Any, at: str, path: str, limits: Limits) -> None:
        found = reader.object(body, at, ("name", "timeouts", "actions"), ("name", "actions"))
        self.name = str(found.get("name", ""))
        self.at, self.path = at, f"{path}/{escaped(self.name)}"
        self._limits = limits.read(reader, found.get("timeouts", {}), f"{at}/timeouts", _BRANCH)
        self.actions = Invocations(reader, found.get("actions"), f"{at}/actions", f"{self.path}/actions", self._limits)

    async def run(self, course: Course, data: Data, state: State) -> Data:
        course.note(NodeStarted(self.path, course.encoded(data.value, self.path)))
        try:
            limit = seconds(self._limits.branch, data.value, course)
            await within(limit, f"branch {self.name}", self.at, self.actions.run(course, data, state.scope))
            course.settle(NodeSettled(self.path, output=course.encoded(data.value, self.path)))
        except asyncio.CancelledError:
            if not course.running.loop.closed:
                course.settle(NodeSettled(self.path, "cancelled"))
            raise
        except Exception as error:
            found = fault_of(error, self.at)
            course.settle(NodeSettled(self.path, "failed", error=describe(found)))
            raise found from None
        return data


class Parallel(State):
    type: ClassVar[str] = "parallel"
    keys: ClassVar[tuple[str, ...]] = ("branches", "completionType", "numCompleted")
    needs: ClassVar[tuple[str, ...]] = ("branches",)
    times: ClassVar[tuple[str, ...]] = ("stateExecTimeout", "actionExecTimeout", "branchExecTimeout")

    def make(self, reader: StatesReader) -> None:
        self.branches = [
            Branch(reader, one, f"{self.at}/branches/{number}", f"{self.path}/branches/{number}", self.limits)
            for number, one in enumerate(reader.list(self.body.get("branches"), f"{self.at}/branches"))
        ]
        at = f"{self.at}/completionType"
        self._some = reader.one_of(self.body.get("completionType", "allOf"), at, ("allOf", "atLeast")) == "atLeast"
        number, at = self.body.get("numCompleted"), f"{self.at}/numCompleted"
        if self._some == (number is None):
            reader.wrong(at, "atLeast has a numCompleted, and allOf has none")
        computed = isinstance(number, str) and jq.is_expression(number)
        if number is not None and not computed and not 1 <= reader.number(number, at) <= len(self.branches):
            reader.wrong(at, f"a number from 1 to {len(self.branches)}, of the branches, is expected here")
        self._number = reader.value(number, at)

    async def work(self, course: Course, data: Data) -> Way | None:
        count = len(self.branches)
        if self._some:
            count = _whole(self._number.of(data.value, course.names), "numCompleted")
        tasks = [spawn(one.run(course, data.copy(), self)) for one in self.branches]
        try:
            done = await _at_least(tasks, count)
        except BaseException:
            await cancelled(course, tasks)
            raise
        for one in done:
            data.take(one)
        for task in tasks:
            if not task.done():
                course.beside("branch", task)
        return None


async def _at_least(tasks: list[asyncio.Task[Any]], count: int) -> list[Data]:
    """What those have made of the data that were first, in the order of the branches."""
    done: list[Data] = []
    while len(done) < min(count, len(tasks)):
        await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        done = results(tasks)
    return done


class ForEach(State):
    type: ClassVar[str] = "foreach"
    keys: ClassVar[tuple[str, ...]] = (
        *("inputCollection", "outputCollection", "iterationParam", "batchSize", "mode", "actions"),
    )
    needs: ClassVar[tuple[str, ...]] = ("inputCollection", "actions")
    times: ClassVar[tuple[str, ...]] = ("stateExecTimeout", "actionExecTimeout")

    def make(self, reader: StatesReader) -> None:
        self.items = reader.test(self.body.get("inputCollection"), f"{self.at}/inputCollection")
        self.target = read_target(reader, self.body.get("outputCollection"), f"{self.at}/outputCollection")
        self.item = jq.expression(str(self.body.get("iterationParam", "item"))).strip().removeprefix(".")
        self.parallel = reader.one_of(self.body.get("mode", "parallel"), f"{self.at}/mode", MODES[::-1]) == "parallel"
        size = self.body.get("batchSize")
        self._size = None if size is None else reader.value(size, f"{self.at}/batchSize")
        at, path = f"{self.at}/actions", f"{self.path}/actions"
        self.actions = Invocations(reader, self.body.get("actions"), at, path, self.limits)

    async def work(self, course: Course, data: Data) -> Way | None:
        items = [] if self.items is None else self.items.of(data.value, course.names)
        if not isinstance(items, list):
            raise InvalidValue("inputCollection gives no list")
        size = len(items) or 1
        if not self.parallel:
            size = 1
        elif self._size is not None:
            size = _whole(self._size.of(data.value, course.names), "batchSize")
        gathered: list[Any] = []
        for first in range(0, len(items), size):
            batch = range(first, min(first + size, len(items)))
            rounds = [Round(self, number, items[number], data) for number in batch]
            await together(course, [one.run(course) for one in rounds])
            for one in rounds:
                if self.target is None:
                    data.take(one.data)
                gathered.append(one.result)
        if self.target is not None:
            data.add(self.target, gathered, append=True)
        return None


class Round:
    """One round of a `foreach`: the data with its item in it. What is gathered is merged nowhere else."""

    def __init__(self, state: ForEach, number: int, item: Any, data: Data) -> None:
        self._state = state
        inner = {**data.value, state.item: item} if isinstance(data.value, Mapping) else {state.item: item}
        self.data = data.copy(inner)
        self.scope = state.scope.round(state.path, number, {})
        self.result: Any = None

    async def run(self, course: Course) -> None:
        await self._state.actions.give(course, lambda: self.data.value, self.scope, self._take)

    def _take(self, gave: Gave) -> None:
        both = isinstance(self.result, dict) and isinstance(gave.value, dict)
        self.result = merged(self.result, gave.value) if both else gave.value
        if self._state.target is None or gave.target is not None or isinstance(gave.value, dict):
            self.data.add(gave.target, gave.value)


def _whole(value: Any, what: str) -> int:
    try:
        found = int(value) if not isinstance(value, bool) else 0
    except (TypeError, ValueError):
        found = 0
    if found < 1:
        raise InvalidValue(f"{what} gives {str(value)[:40]!r}, and a whole number above zero is expected")
    return found
