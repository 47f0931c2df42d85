"""`try`: which errors are caught, how often and when the tasks are tried again, and what follows then.

In this order: the filter, `when` and `exceptWhen` decide whether an error is caught; while the retry policy allows it,
the tasks are tried again; then `catch.do` runs, or without one the task completes with its input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from perdure.flows.document.course import Course, Scope
from perdure.flows.document.faults import Fault, matches, within
from perdure.flows.document.reader import Reader
from perdure.flows.document.step import Left, Step
from perdure.flows.document.tasks import Tasks
from perdure.flows.document.terms import See
from perdure.flows.workflow import workflow

_CATCH = ("errors", "as", "when", "exceptWhen", "retry", "do")
_FILTER = ("type", "status", "instance", "title", "detail", "details")
_POLICY = ("when", "exceptWhen", "delay", "backoff", "limit", "jitter")
_BACKOFF = ("constant", "linear", "exponential")
#: The longest pause between two tries, and the first one of a back-off that names none, in microseconds.
LONGEST, FIRST = 86_400_000_000, 1_000_000


class TryStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("try", "catch")

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        self.tasks = Tasks(reader, self.body["try"], f"{self.at}/try", own)
        at = f"{self.at}/catch"
        body = reader.object(self.body.get("catch"), at, _CATCH)
        errors = reader.object(body.get("errors", {}), f"{at}/errors", ("with",))
        self.wanted = reader.object(errors.get("with", {}), f"{at}/errors/with", _FILTER)
        self.called = reader.variable(body.get("as", "error"), f"{at}/as")
        inner = (*names, self.called)
        self.when = reader.test(body.get("when"), f"{at}/when", inner)
        self.unless = reader.test(body.get("exceptWhen"), f"{at}/exceptWhen", inner)
        policy = reader.named(body["retry"], f"{at}/retry", "retries") if "retry" in body else None
        self.retry = None if policy is None else Policy(reader, policy, f"{at}/retry", names, inner)
        self.instead = Tasks(reader, body["do"], f"{at}/do", (*own, self.called)) if "do" in body else None

    def inside(self) -> Iterator[Step]:
        yield from self.tasks.steps
        yield from () if self.instead is None else self.instead.steps

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        began, tries = course.now, 1
        while True:
            try:
                return Left(await self._try(course, given, see, scope), attempts=tries)
            except Fault as error:
                seen = {**see, "context": course.context, self.called: error.problem}
                if not self._catches(error, given, seen):
                    error.tries = tries
                    raise
                pause = None if self.retry is None else self.retry.pause(tries, began, course.now, given, seen)
                if pause is None:
                    return await self._instead(course, given, scope, error, tries)
            tries += 1
            await asyncio.sleep(pause / 1e6)

    async def _try(self, course: Course, given: Any, see: See, scope: Scope) -> Any:
        each = (
            None if self.retry is None or self.retry.each is None else self.retry.each.of(given, see, course.now) / 1e6
        )
        return await within(each, f"an attempt of {self.name}", self.at, self.tasks.run(course, given, scope))

    def _catches(self, error: Fault, given: Any, see: See) -> bool:
        return (
            matches(self.wanted, error.problem)
            and (self.when is None or self.when.true(given, see))
            and (self.unless is None or not self.unless.true(given, see))
        )

    async def _instead(self, course: Course, given: Any, scope: Scope, error: Fault, tries: int) -> Left:
        if self.instead is None:
            return Left(given, attempts=tries)
        inner = scope.with_names(**{self.called: error.problem})
        try:
            return Left(await self.instead.run(course, given, inner), attempts=tries)
        except Fault as worse:
            worse.tries = tries
            raise


class Policy:
    """When to try again: the pause grows as its back-off says, with a jitter on top, until a limit is reached."""

    def __init__(self, reader: Reader, body: Any, at: str, names: Sequence[str], inner: Sequence[str]) -> None:
        body = reader.object(body, at, _POLICY)
        self.when = reader.test(body.get("when"), f"{at}/when", inner)
        self.unless = reader.test(body.get("exceptWhen"), f"{at}/exceptWhen", inner)
        self.delay = reader.length(body["delay"], f"{at}/delay", names) if "delay" in body else None
        backoff = reader.object(body.get("backoff", {"constant": {}}), f"{at}/backoff", _BACKOFF)
        if len(backoff) != 1:
            reader.wrong(f"{at}/backoff", f"exactly one of {', '.join(_BACKOFF)} is expected here")
        self.backoff = next(iter(backoff), "constant")
        limit = reader.object(body.get("limit", {}), f"{at}/limit", ("attempt", "duration"))
        attempt = reader.object(limit.get("attempt", {}), f"{at}/limit/attempt", ("count", "duration"))
        self.count = attempt.get("count")
        if self.count is not None and (type(self.count) is not int or self.count < 1):
            reader.wrong(f"{at}/limit/attempt/count", "a whole number above zero is expected here")
        self.each = _length(reader, attempt, "duration", f"{at}/limit/attempt", names)
        self.total = _length(reader, limit, "duration", f"{at}/limit", names)
        jitter = body.get("jitter", {"from": "PT0S", "to": "PT0S"})
        jitter = reader.object(jitter, f"{at}/jitter", ("from", "to"), ("from", "to"))
        self.least = reader.length(jitter.get("from", "PT0S"), f"{at}/jitter/from", names)
        self.most = reader.length(jitter.get("to", "PT0S"), f"{at}/jitter/to", names)

    def pause(self, tries: int, began: int, now: int, given: Any, see: See) -> int | None:
        """How long to wait before the next try, in microseconds; None if there is none."""
        if self.when is not None and not self.when.true(given, see):
            return None
        if self.unless is not None and self.unless.true(given, see):
            return None
        if self.count is not None and tries >= self.count:
            return None
        pause = min(self._grown(tries, now, given, see), LONGEST)
        least, most = self.least.of(given, see, now), self.most.of(given, see, now)
        if most > least or least:
            pause += round(workflow.random().uniform(least, max(least, most)))
        if self.total is not None and now - began + pause > self.total.of(given, see, began):
            return None
        return pause

    def _grown(self, tries: int, now: int, given: Any, see: See) -> int:
        base = self.delay.of(given, see, now) if self.delay is not None else FIRST if self.backoff != "constant" else 0
        match self.backoff:
            case "linear":
                return base * tries
            case "exponential":
                return base << min(tries - 1, 60)
            case _:
                return base


def _length(reader: Reader, body: dict[str, Any], key: str, at: str, names: Sequence[str]) -> Any:
    return reader.length(body[key], f"{at}/{key}", names) if key in body else None
