"""A task made ready to run: what every task has, whatever it does.

Data flows through it in one order: the condition sees what comes in; its input is checked, then transformed; it works;
its output is transformed, then checked; what it exports becomes the context. Rules kept here: every passage is noted as
started and settled, also when it fails, is skipped or no longer wanted; whatever goes wrong is a Fault that names the
task where it began; `then: end` goes through everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from msgspec import Struct, structs

from perdure.core.events import NULL, NodeSettled, NodeStarted
from perdure.core.failures import describe
from perdure.errors import InvalidValue
from perdure.flows.document.course import Course, Open, Scope
from perdure.flows.document.faults import End, fault_of, within
from perdure.flows.document.reader import Reader
from perdure.flows.document.terms import AFTER, BEFORE, INSIDE, See
from perdure.flows.schema import Schema

#: How deep tasks may stand inside one another, functions that are called included: each takes some of the stack.
MOST_NESTED = 40
#: What every task may have.
COMMON = ("if", "input", "output", "export", "timeout", "then", "metadata")


class Left(Struct, frozen=True):
    """How a task is left: with an output, and where to go on."""

    output: Any
    then: str = ""  # unless it says where, its task does
    attempts: int = 1


class Outlet:
    """What becomes of an output: it is transformed and checked, and so is what becomes the context."""

    def __init__(self, reader: Reader, body: dict[str, Any], at: str, names: Sequence[str]) -> None:
        left = reader.object(body.get("output", {}), f"{at}/output", ("schema", "as"))
        self._as = _transform(reader, left, "as", f"{at}/output", (*INSIDE, *names))
        self._gives = reader.schema(left.get("schema"), f"{at}/output/schema")
        out = reader.object(body.get("export", {}), f"{at}/export", ("schema", "as"))
        self._exports = _transform(reader, out, "as", f"{at}/export", (*AFTER, *names))
        self._context = reader.schema(out.get("schema"), f"{at}/export/schema")

    def let(self, course: Course, raw: Any, see: See) -> Any:
        """The output; the context of the course is set."""
        output = raw if self._as is None else self._as.of(raw, see)
        _fits(self._gives, output, "the output")
        if self._exports is not None:
            context = self._exports.of(output, {**see, "output": output})
            _fits(self._context, context, "what it exports")
            course.context = context
        return output


class Step:
    """A task. `keys` are those that its kind has, the first one names it."""

    keys: ClassVar[tuple[str, ...]] = ()
    instant: ClassVar[bool] = False  # what it does follows at once from what it is given
    rests: ClassVar[bool] = False  # it waits for a time, or for events

    def __init__(self, reader: Reader, name: str, body: dict[str, Any], at: str, names: Sequence[str]) -> None:
        self.name = name
        self.at = at
        self.body = body
        reader.object(body, at, (*self.keys, *COMMON))
        self.condition = reader.test(body.get("if"), f"{at}/if", (*BEFORE, *names))
        given = reader.object(body.get("input", {}), f"{at}/input", ("schema", "from"))
        self._wants = reader.schema(given.get("schema"), f"{at}/input/schema")
        self._from = _transform(reader, given, "from", f"{at}/input", (*BEFORE, *names))
        self._outlet = Outlet(reader, body, at, names)
        self._limit = reader.limit(body.get("timeout"), f"{at}/timeout", (*INSIDE, *names))
        self.then = reader.text(body.get("then", "continue"), f"{at}/then")
        self.make(reader, (*INSIDE, *names), names)
        self.height: int = 1 + max((step.height for step in self.inside()), default=0)
        if self.height == MOST_NESTED + 1:  # it is told once, at the innermost that is too much
            reader.wrong(at, f"there are more than {MOST_NESTED} tasks inside one another", "run some as a workflow")

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        """Read what the kind has; `own` of the names are variables of the document."""

    def inside(self) -> Iterator[Step]:
        """The tasks that it is made of, or calls."""
        yield from ()

    def ways(self) -> Iterator[tuple[str, str]]:
        """Where it may go on, each with its place."""
        yield f"{self.at}/then", self.then

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        raise NotImplementedError

    async def run(self, course: Course, raw: Any, scope: Scope, open: Open | None = None) -> Left:
        """One passage through the task, or the rest of one that is `open`."""
        path = scope.path(self.at)
        began = course.now if open is None else open.began
        see = course.see(self.name, self.at, self.body, raw, scope, began)
        if open is not None:
            course.resumed, see["input"] = open, open.given
            return await self._settled(course, path, open.given, see, scope, open)
        try:
            if self.condition is not None and not self.condition.true(raw, see):
                course.note(NodeStarted(path))
                course.settle(NodeSettled(path, "skipped"))
                return Left(raw, "continue")
            _fits(self._wants, raw, "the input")
            given = raw if self._from is None else self._from.of(raw, see)
            shown = NULL if self.instant else course.encoded(given, path)
        except Exception as error:
            course.note(NodeStarted(path))
            raise self._failed(course, path, error) from None
        course.note(NodeStarted(path, shown))
        see["input"] = given
        return await self._settled(course, path, given, see, scope, Open(self.keys[0], given, began))

    async def _settled(
        self, course: Course, path: str, given: Any, see: dict[str, Any], scope: Scope, open: Open
    ) -> Left:
        try:
            left = await self._passage(course, given, see, scope, open)
            course.settle(NodeSettled(path, output=course.encoded(left.output, path), attempts=left.attempts))
            return left
        except End as end:
            course.settle(NodeSettled(path, output=course.encoded(end.output, path)))
            raise
        except asyncio.CancelledError:
            if not course.running.loop.closed:
                course.settle(NodeSettled(path, "cancelled"))
            raise
        except Exception as error:
            raise self._failed(course, path, error) from None

    async def _passage(self, course: Course, given: Any, see: dict[str, Any], scope: Scope, open: Open) -> Left:
        deadline = open.deadline
        if self._limit is not None and deadline is None:
            deadline = course.now + self._limit.of(given, see, course.now)
        after = None if deadline is None else max(0, deadline - course.now) / 1e6
        if self.rests and course.standing is not None:
            course.standing = structs.replace(course.standing, open=structs.replace(open, deadline=deadline))
        left = await within(after, f"task {self.name}", self.at, self.work(course, given, see, scope))
        # Tasks inside it, and beside it, may have exported meanwhile.
        see |= {"task": {**see["task"], "output": left.output}, "context": course.context}
        return Left(self._outlet.let(course, left.output, see), left.then or self.then, left.attempts)

    def _failed(self, course: Course, path: str, error: Exception) -> Exception:
        found = fault_of(error, self.at)
        attempts = max(found.tries, getattr(error, "attempts", 1))
        found.tries = 1  # of this task; those around it were tried once
        course.settle(NodeSettled(path, "failed", error=describe(found), attempts=attempts))
        return found


def _transform(reader: Reader, given: dict[str, Any], key: str, at: str, names: Sequence[str]) -> Any:
    return reader.value(given[key], f"{at}/{key}", names, bare=True) if key in given else None


def _fits(schema: Schema | None, value: Any, what: str) -> None:
    if schema is not None and (wrong := schema.check(value)):
        raise InvalidValue(f"{what} does not fit its schema: {'; '.join(wrong[:5])}")
