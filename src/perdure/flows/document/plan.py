"""A document made ready to run: what it says of itself, its tasks, and how an execution of it goes from end to end.

A checkpoint is made between two tasks of the main list, where it goes back to an earlier one: there the context and the
data tell all. Whether one is made follows from the log alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.core.replay import Replay
from perdure.errors import InvalidValue
from perdure.flows.bound import Bound
from perdure.flows.described import checkpoint
from perdure.flows.document.authentication import check_all as check_authentications
from perdure.flows.document.calling import read_function
from perdure.flows.document.course import Course, Open, Position, Scope
from perdure.flows.document.faults import End, fault_of, within
from perdure.flows.document.reader import Reader
from perdure.flows.document.starting import starts
from perdure.flows.document.tasks import Tasks
from perdure.flows.document.terms import FIRST, INSIDE, LAST, Value
from perdure.flows.schema import Schema
from perdure.flows.secret import NAME as SECRET, SCHEME

_TOP = ("document", "input", "use", "do", "timeout", "output", "schedule", "evaluate")
_ABOUT = ("dsl", "namespace", "name", "version", "title", "summary", "tags", "metadata")
_USE = ("authentications", "errors", "functions", "retries", "secrets", "timeouts")
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z.+-]+)?")
#: Tasks that settle between two checkpoints, at the least; what a settled task costs in the log, about; and the size of
#: a position that is not written down, in bytes. They are part of what a replay does.
LEAST, COST, LARGEST = 50, 400, 500_000


def called(body: Any) -> str:
    """The name of a document, as far as it has one: `namespace.name`."""
    about = body.get("document") if isinstance(body, Mapping) else None
    parts = [str(about.get(key)) for key in ("namespace", "name")] if isinstance(about, Mapping) else []
    return ".".join(parts) if all(_NAME.fullmatch(one) for one in parts) else ""


class Plan:
    """It is shared by all its executions."""

    def __init__(self, body: Mapping[str, Any], bounds: Mapping[str, Bound]) -> None:
        reader = Reader(use if isinstance(use := body.get("use"), dict) else {}, bounds)
        self.body = body
        self._read_about(reader)
        reader.object(dict(body), "", _TOP, ("document", "do"))
        self._read_use(reader)
        given = reader.object(body.get("input", {}), "/input", ("schema", "from"))
        self.wants: Schema | None = reader.schema(given.get("schema"), "/input/schema")
        self._from = reader.value(given["from"], "/input/from", FIRST, bare=True) if "from" in given else None
        left = reader.object(body.get("output", {}), "/output", ("schema", "as"))
        self._as: Value | None = reader.value(left["as"], "/output/as", LAST, bare=True) if "as" in left else None
        self._gives = reader.schema(left.get("schema"), "/output/schema")
        self._limit = reader.limit(body.get("timeout"), "/timeout", FIRST)
        self.tasks = Tasks(reader, body.get("do"), "/do", ())
        check_authentications(reader, INSIDE)
        for name, function in reader.used("functions").items():
            read_function(reader, name, function)
        self.starts_on = starts(reader, body.get("schedule"))
        self.listens = tuple(dict.fromkeys(reader.listens))
        self.problems, self.calls = reader.problems, reader.calls

    def _read_about(self, reader: Reader) -> None:
        about = reader.object(self.body.get("document"), "/document", _ABOUT, ("dsl", "namespace", "name", "version"))
        self.name = called(self.body)
        self.label = str(about.get("version", ""))
        self.description = str(about.get("summary") or about.get("title") or "")
        for key in ("namespace", "name"):
            if key in about and not (isinstance(about[key], str) and _NAME.fullmatch(about[key])):
                reader.wrong(f"/document/{key}", "a name has letters, digits and dashes, and at most 63 of them")
        for key in ("dsl", "version"):
            if key in about and not (isinstance(about[key], str) and _VERSION.fullmatch(about[key])):
                reader.wrong(f"/document/{key}", "a version is like 1.0.3", "write it as a text")
        if isinstance(about.get("dsl"), str) and not about["dsl"].startswith("1.0."):
            reader.wrong("/document/dsl", f"version {about['dsl'][:40]} of the DSL is not known here", "1.0.x is")
        evaluate = reader.object(self.body.get("evaluate", {}), "/evaluate", ("language", "mode"))
        if evaluate.get("language", "jq") != "jq" or evaluate.get("mode", "strict") != "strict":
            reader.wrong("/evaluate", "expressions are in jq, and strict: in ${ }")

    def _read_use(self, reader: Reader) -> None:
        use = reader.object(self.body.get("use", {}), "/use", _USE)
        for key in ("errors", "functions", "retries", "timeouts"):
            reader.object(use.get(key, {}), f"/use/{key}", list(reader.used(key)))
        names = use.get("secrets", [])
        if not isinstance(names, list) or not all(isinstance(name, str) and SECRET.fullmatch(name) for name in names):
            reader.wrong("/use/secrets", "a list of names is expected here", "letters, digits and _.- are in a name")
            names = []
        self.secrets = {name: f"{SCHEME}{name}" for name in names}

    def check_input(self, value: Any) -> None:
        if self.wants is not None:
            self.wants.refuse({} if value is None else value, f"the input of {self.name}")

    async def begin(self, running: Replay, input: Any) -> Any:
        course = Course(running, self.body, input, None, self.secrets)
        try:
            self.check_input(input)
            value = input if self._from is None else self._from.of(input, course.about)
        except Exception as error:
            raise fault_of(error, "/input") from None
        course.context = value
        return await self._finish(course, value, "", None)

    async def go_on(self, running: Replay, position: Position) -> Any:
        course = Course(running, self.body, position.input, position.context, self.secrets)
        return await self._finish(course, position.value, position.task, position.open)

    async def _finish(self, course: Course, value: Any, first: str, open: Open | None) -> Any:
        left = self._left(course)
        value = await within(left, "the workflow", "/", self._main(course, value, first, open))
        try:
            output = value if self._as is None else self._as.of(value, course.about)
            if self._gives is not None:
                self._gives.refuse(output, f"the output of {self.name}")
        except Exception as error:
            raise fault_of(error, "/output") from None
        return output

    async def _main(self, course: Course, value: Any, first: str, open: Open | None) -> Any:
        worth = LEAST

        def between(task: str, value: Any, back: bool) -> None:
            nonlocal worth
            course.standing = Position(task, value, None, course.input)
            if not back or course.settled < worth or not course.rested or course.running.orphans:
                return
            position = Position(task, value, course.context, course.input)
            size = len(msgspec.json.encode(position))
            worth = max(LEAST, size // COST)
            if size > LARGEST:
                worth = 2 * course.settled  # it may become smaller
            elif course.settled >= worth:
                checkpoint(course.running, position)

        try:
            return await self.tasks.run(course, value, Scope(), first, between, open)
        except End as end:
            return end.output

    def _left(self, course: Course) -> float | None:
        """The seconds that it may still take."""
        try:
            began = course.running.began
            limit = None if self._limit is None else self._limit.of(course.input, course.about, began) / 1e6
        except InvalidValue as error:
            raise fault_of(error, "/timeout") from None
        return None if limit is None else max(0.0, limit - course.running.loop.time())
