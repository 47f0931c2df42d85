"""Lists of tasks, run one after the other; and the kinds of tasks that are made of others: `do`, `for`, `fork`, `try`.

Rules kept here: `then` goes to a task of the same list, `exit` leaves the list, `end` the execution. Branches of a fork
run side by side; the first error ends the others, and where they compete, the first one that completes does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from perdure.errors import ExpressionError
from perdure.flows.document.course import Course, Open, Scope
from perdure.flows.document.faults import End
from perdure.flows.document.reader import Reader, escaped, kind
from perdure.flows.document.step import MOST_NESTED, Left, Step
from perdure.flows.document.terms import See

#: Parts of a pointer: each task inside another takes three or four.
_DEEPEST = 5 * MOST_NESTED
_DIRECTIVES = ("continue", "exit", "end")
#: Called before each task of the main list, with its name, its input and whether the list goes back to it.
Between = Callable[[str, Any, bool], None]


class Tasks:
    """A list of tasks."""

    def __init__(self, reader: Reader, body: Any, at: str, names: Sequence[str]) -> None:
        self.at = at
        self.steps: list[Step] = []
        self.place: dict[str, int] = {}
        if at.count("/") > _DEEPEST or len(reader.inside) > MOST_NESTED:
            reader.wrong(at, "this is too deep", f"at most {MOST_NESTED} tasks stand inside one another")
            return
        if not isinstance(body, list) or not body:
            reader.wrong(at, "a list of tasks is expected here", "each of them is an object with one key, its name")
            return
        for number, one in enumerate(body):
            if not isinstance(one, dict) or len(one) != 1:
                reader.wrong(f"{at}/{number}", "a task is an object with one key, its name")
                continue
            [(name, task)] = one.items()
            where = f"{at}/{number}/{escaped(name)}"
            if name in self.place:
                reader.wrong(where, f"this list has two tasks named {name!r}", "give each its own name")
            if name in _DIRECTIVES:
                reader.wrong(where, f"{name!r} is where a task may go on, and cannot be the name of one")
            self.place[name] = len(self.steps)
            if (step := read_step(reader, name, task, where, names)) is not None:
                self.steps.append(step)
        for step in self.steps:
            for where, then in step.ways():
                if then and then not in _DIRECTIVES and then not in self.place:
                    reader.wrong(where, f"there is no task {then!r} beside it", f"there are: {', '.join(self.place)}")

    async def run(
        self,
        course: Course,
        value: Any,
        scope: Scope,
        first: str = "",
        between: Between | None = None,
        waiting: Open | None = None,
    ) -> Any:
        """Until the list is at its end; gives the output of its last task. The first may be `waiting` already."""
        place, back = self.place.get(first, 0), False
        while place < len(self.steps):
            step = self.steps[place]
            if between is not None:
                between(step.name, value, back)
            left = await step.run(course, value, scope, waiting)
            value, waiting = left.output, None
            match left.then:
                case "continue":
                    place, back = place + 1, False
                case "exit":
                    break
                case "end":
                    raise End(value)
                case name:
                    back, place = self.place[name] <= place, self.place[name]
        return value


class DoStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("do",)

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        self.tasks = Tasks(reader, self.body["do"], f"{self.at}/do", own)

    def inside(self) -> Iterator[Step]:
        yield from self.tasks.steps

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        return Left(await self.tasks.run(course, given, scope))


class ForStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("for", "while", "do")

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        body = reader.object(self.body["for"], f"{self.at}/for", ("each", "in", "at"), ("in",))
        self.item = reader.variable(body.get("each", "item"), f"{self.at}/for/each")
        self.index = reader.variable(body.get("at", "index"), f"{self.at}/for/at")
        if self.item == self.index:
            reader.wrong(f"{self.at}/for/at", f"${self.item} would be both the item and its number", "name them apart")
        inner = (*own, self.item, self.index)
        self.items = reader.value(body.get("in", []), f"{self.at}/for/in", names, bare=True)
        self.holds = reader.test(self.body.get("while"), f"{self.at}/while", (*names, *inner))
        self.tasks = Tasks(reader, self.body.get("do"), f"{self.at}/do", inner)

    def inside(self) -> Iterator[Step]:
        yield from self.tasks.steps

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        items = self.items.of(given, see)
        if not isinstance(items, list):
            raise ExpressionError(f"for.in gave {kind(items)}, and a loop needs a list")
        value = given
        for number, item in enumerate(items):
            names = {self.item: item, self.index: number}
            if self.holds is not None and not self.holds.true(value, {**see, "context": course.context, **names}):
                break
            value = await self.tasks.run(course, value, scope.round(self.at, number, names))
        return Left(value)


class ForkStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("fork",)

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        body = reader.object(self.body["fork"], f"{self.at}/fork", ("branches", "compete"))
        self.competes = reader.flag(body.get("compete", False), f"{self.at}/fork/compete")
        self.branches = Tasks(reader, body.get("branches"), f"{self.at}/fork/branches", own)
        for branch in self.branches.steps:
            for where, then in branch.ways():
                if then and then not in _DIRECTIVES:
                    reader.wrong(where, "a branch has nothing beside it to go on to", "use continue, exit or end")

    def inside(self) -> Iterator[Step]:
        yield from self.branches.steps

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        tasks = [asyncio.create_task(self._branch(one, course, given, scope)) for one in self.branches.steps]
        try:
            return Left(await (_first(tasks) if self.competes else _all(tasks)))
        finally:
            for task in tasks:
                task.cancel()
            if not course.running.loop.closed:
                await asyncio.wait(tasks)

    async def _branch(self, step: Step, course: Course, given: Any, scope: Scope) -> Any:
        left = await step.run(course, given, scope)
        if left.then == "end":
            raise End(left.output)
        return left.output


async def _all(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        if task in done and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in tasks]


async def _first(tasks: list[asyncio.Task[Any]]) -> Any:
    """The output of the first that completes; if none does, the error of the first that failed."""
    waiting, failed = set(tasks), []
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in (one for one in tasks if one in done):
            error = task.exception()
            if error is None:
                return task.result()
            if isinstance(error, End):
                raise error
            failed.append(error)
    raise failed[0]


def read_step(reader: Reader, name: str, body: Any, at: str, names: Sequence[str]) -> Step | None:
    """The step of a task, if it can be told what it is."""
    from perdure.flows.document.catalog import KINDS

    if not isinstance(body, dict):
        reader.wrong(at, "a task is an object", f"with one of: {', '.join(KINDS)}")
        return None
    found = [key for key in KINDS if key in body]
    if len(found) > 1:  # `for` and `do` stand side by side in a loop
        found = [key for key in found if key != "do"]
    if len(found) != 1:
        what = f"it is {' and '.join(found)} at once" if found else "it does not say what it does"
        reader.wrong(at, what, f"give it one of: {', '.join(KINDS)}")
        return None
    return KINDS[found[0]](reader, name, body, at, names)
