"""Tasks that are done in themselves: `set`, `switch`, `raise`, `wait`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from perdure.errors import ExpressionError
from perdure.flows.document.course import Course, Scope
from perdure.flows.document.faults import Fault
from perdure.flows.document.reader import Reader, escaped, kind
from perdure.flows.document.step import Left, Step
from perdure.flows.document.terms import Expression, See, is_whole

_WORDS = {"type": "text", "status": "number"}


class SetStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("set",)
    instant: ClassVar[bool] = True

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        value = self.body["set"]
        if not (isinstance(value, dict) and value) and not is_whole(value):
            reader.wrong(f"{self.at}/set", "an object with at least one key, or an expression, is expected here")
        self.value = reader.value(value, f"{self.at}/set", names)
        for key, one in value.items() if isinstance(value, dict) else ():
            if isinstance(one, str) and one.startswith("$") and not one.startswith("${"):
                reader.warn(f"{self.at}/set/{escaped(key)}", f"{one!r} is a text", f"an expression is ${{ {one} }}")

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        return Left(self.value.of(given, see))


class SwitchStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("switch",)
    instant: ClassVar[bool] = True

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        self.cases: list[tuple[str, Expression | None, str]] = []
        cases = self.body["switch"]
        if not isinstance(cases, list) or not cases:
            reader.wrong(f"{self.at}/switch", "a list of cases is expected here")
            return
        defaults = 0
        for number, one in enumerate(cases):
            at = f"{self.at}/switch/{number}"
            if not isinstance(one, dict) or len(one) != 1:
                reader.wrong(at, "a case is an object with one key, its name")
                continue
            [(name, case)] = one.items()
            at = f"{at}/{escaped(name)}"
            body = reader.object(case, at, ("when", "then"), ("then",))
            defaults += "when" not in body
            test = reader.test(body.get("when"), f"{at}/when", names)
            self.cases.append((f"{at}/then", test, reader.text(body.get("then", "continue"), f"{at}/then")))
        if defaults > 1:
            reader.wrong(f"{self.at}/switch", f"{defaults} cases have no `when`", "only one can be the default")

    def ways(self) -> Iterator[tuple[str, str]]:
        yield from super().ways()
        for at, _, then in self.cases:
            yield at, then

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        default = ""
        for _, test, then in self.cases:
            if test is None:
                default = then
            elif test.true(given, see):
                return Left(given, then)
        return Left(given, default)


class RaiseStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("raise",)
    instant: ClassVar[bool] = True

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        at = f"{self.at}/raise"
        error = reader.object(self.body["raise"], at, ("error",), ("error",)).get("error")
        keys = ("type", "status", "title", "detail", "instance")
        named = reader.named(error, f"{at}/error", "errors")
        body = {} if named is None else reader.object(named, f"{at}/error", keys, ("type", "status"))
        for key, type_ in (("type", str), ("status", int)):
            if key in body and type(body[key]) is not type_ and not is_whole(body[key]):
                reader.wrong(f"{at}/error/{key}", f"this is {kind(body[key])}, and should be a {_WORDS[key]}")
        self.error = reader.value(body, f"{at}/error", names)

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        found = self.error.of(given, see)
        if not isinstance(found["type"], str) or type(found["status"]) is not int:
            raise ExpressionError("an error has a type, which is a text, and a status, which is a number")
        raise Fault({**found, "instance": self.at})


class WaitStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("wait",)
    rests: ClassVar[bool] = True

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        self.length = reader.length(self.body["wait"], f"{self.at}/wait", names)

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        resumed = course.take_up()
        due = course.now + self.length.of(given, see, course.now) if resumed is None else resumed.due
        with course.resting(self.at, due):
            await asyncio.sleep(max(0, due - course.now) / 1e6)
        return Left(given)
