"""Actions of states: a function is called, an event is sent and answered, another workflow is run.

What an action gives is filtered and handed back; the state merges it into its data. Rules kept here: every passage is
noted as started and settled; each try has its own timeout; what is invoked without being waited for gives nothing, is
not tried again, and what goes wrong with it is in the log and concerns nobody else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Raw, Struct

from perdure.core.codec import encode
from perdure.core.events import NodeSettled, NodeStarted
from perdure.core.failures import describe
from perdure.flows.bound import Bound, Call, arguments
from perdure.flows.document.course import Scope
from perdure.flows.document.faults import Fault, fault, fault_of, within
from perdure.flows.document.reader import escaped
from perdure.flows.document.terms import Expression, Length
from perdure.flows.given import Calling
from perdure.flows.graph.children import run_child
from perdure.flows.states.course import Course, Kind, cancelled
from perdure.flows.states.data import Data, Target
from perdure.flows.states.errors import Retries
from perdure.flows.states.events import Consumed, Produced, in_time, read_consumed, read_target
from perdure.flows.states.limits import Limits, seconds
from perdure.flows.states.reader import StatesReader
from perdure.flows.workflow import start_apart

_KEYS = (
    *("id", "name", "functionRef", "eventRef", "subFlowRef", "sleep", "retryRef", "retryableErrors"),
    *("nonRetryableErrors", "actionDataFilter", "condition"),
)
_REFERENCES = ("functionRef", "eventRef", "subFlowRef")
_EVENT = (*("triggerEventRef", "resultEventRef", "resultEventTimeout", "data", "contextAttributes", "invoke"),)
_ACTION = re.compile(r"[A-Za-z0-9_.-]+")


class Gave(Struct, frozen=True):
    """What an action gave, and where it belongs; without a target to the whole of the data."""

    value: Any
    target: Target | None = None


class Invoked:
    """What an action invokes. `apart` says what it is while nobody waits for it."""

    apart: Kind | None = None
    label: str = ""

    async def invoke(self, course: Course, given: Any) -> Any:
        raise NotImplementedError


class Function(Invoked):
    """An action of the registry."""

    def __init__(self, reader: StatesReader, name: str, given: Any, at: str) -> None:
        reader.calls.append(Calling(at, name, given))
        self._call = Call(reader.bounds.get(name, Bound(name)))
        self._given = reader.value(given, f"{at}/arguments")

    async def invoke(self, course: Course, given: Any) -> Any:
        spec, values = self._call.spec(), self._given.of(given, course.see)
        return await course.running.act(spec, arguments(self._call.bound, values, spec), spec.compensation)


class Computed(Invoked):
    """A function that is an expression."""

    def __init__(self, expression: Expression | None) -> None:
        self._expression = expression

    async def invoke(self, course: Course, given: Any) -> Any:
        return given if self._expression is None else self._expression.of(given, course.see)


class Exchange(Invoked):
    """An event that is sent, and the one that answers it."""

    def __init__(self, reader: StatesReader, body: Any, at: str) -> None:
        found = reader.object(body, at, _EVENT, ("triggerEventRef", "resultEventRef"))
        self.label = str(found.get("triggerEventRef", ""))
        self._trigger = Produced(reader, found.get("triggerEventRef"), found, at)
        self._result: Consumed | None = read_consumed(reader, found.get("resultEventRef"), f"{at}/resultEventRef")
        self._limit: Length | None = reader.duration(found.get("resultEventTimeout"), f"{at}/resultEventTimeout")
        self._waits = reader.one_of(found.get("invoke", "sync"), f"{at}/invoke", ("sync", "async")) == "sync"
        self._at = at

    async def invoke(self, course: Course, given: Any) -> Any:
        await self._trigger.emit(given, course)
        if not self._waits or self._result is None:
            return None
        limit = seconds(self._limit, given, course.see)
        answer = await in_time(limit, course, [self._result])
        if answer is None:
            raise fault("timeout", f"event {self._result.name} did not come within {limit:g} s", self._at)
        return answer[1]


class SubFlow(Invoked):
    """Another workflow, by its id."""

    def __init__(self, reader: StatesReader, body: Any, at: str) -> None:
        if isinstance(body, str):
            body = {"workflowId": body}
        keys = ("workflowId", "version", "onParentComplete", "invoke")
        found = reader.object(body, at, keys, ("workflowId",))
        self.label = reader.text(found["workflowId"], f"{at}/workflowId") if "workflowId" in found else ""
        self._version = found.get("version")
        if self._version is not None:
            reader.text(self._version, f"{at}/version")
        waits = reader.one_of(found.get("invoke", "sync"), f"{at}/invoke", ("sync", "async")) == "sync"
        ends = reader.one_of(
            found.get("onParentComplete", "terminate"), f"{at}/onParentComplete", ("terminate", "continue")
        )
        self.apart = None if waits or ends == "continue" else "child"
        self._lives_on = not waits and ends == "continue"

    async def invoke(self, course: Course, given: Any) -> Any:
        if self._lives_on:
            await start_apart(self.label, self._version, Raw(encode([given])))
            return None
        return await run_child(course.running, self.label, self._version, given)


class Invocation:
    """One action of a state."""

    def __init__(self, reader: StatesReader, body: Any, at: str, path: str, limits: Limits) -> None:
        self.at = at
        found = reader.object(body, at, _KEYS)
        self._what = _read(reader, found, at)
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
        self._used = reader.yes(shaped.get("useResults", True), f"{where}/useResults")
        self._results = reader.test(shaped.get("results"), f"{where}/results")
        self._target: Target | None = read_target(reader, shaped.get("toStateData"), f"{where}/toStateData")

    async def run(self, course: Course, value: Any, scope: Scope) -> Gave | None:
        """One passage; gives what is to be merged, if anything is."""
        path = scope.path(self.path)
        try:
            if self._condition is not None and not self._condition.true(value, course.see):
                course.note(NodeStarted(path))
                course.settle(NodeSettled(path, "skipped"))
                return None
            given = value if self._from is None else self._from.of(value, course.see)
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
                result = self._results.of(result, course.see)
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
                limit = seconds(self._limit, given, course.see)
                async with within(limit, "the action", self.at):
                    return await self._what.invoke(course, given), tries
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
        await asyncio.sleep(length.of(given, course.see) / 1e6)


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


Work: TypeAlias = Any  # a coroutine


async def together(course: Course, works: Sequence[Work]) -> list[Any]:
    """Side by side, what all of them give; the first error ends the others."""
    tasks = [asyncio.create_task(work) for work in works]
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


def _read(reader: StatesReader, body: dict[str, Any], at: str) -> Invoked:
    found = [key for key in _REFERENCES if key in body]
    if len(found) != 1:
        reader.wrong(at, f"exactly one of {', '.join(_REFERENCES)} is expected here")
        return Computed(None)
    [key] = found
    match key:
        case "functionRef":
            return _function(reader, body[key], f"{at}/{key}")
        case "eventRef":
            return Exchange(reader, body[key], f"{at}/{key}")
        case _:
            return SubFlow(reader, body[key], f"{at}/{key}")


def _function(reader: StatesReader, body: Any, at: str) -> Invoked:
    if isinstance(body, str):
        body = {"refName": body}
    found = reader.object(body, at, ("refName", "arguments", "selectionSet", "invoke"), ("refName",))
    name = found.get("refName")
    defined = reader.refer(name, f"{at}/refName", "functions") if "refName" in found else None
    if defined is None:
        return Computed(None)
    where, function = defined
    given = found.get("arguments", {})
    if not isinstance(given, dict):
        reader.wrong(f"{at}/arguments", "arguments are an object")
        given = {}
    waits = reader.one_of(found.get("invoke", "sync"), f"{at}/invoke", ("sync", "async")) == "sync"
    made: Invoked
    if function.get("type") == "expression":
        if given:
            reader.wrong(f"{at}/arguments", f"{name!r} is an expression on the data, and takes no arguments")
        made = Computed(reader.test(function.get("operation"), f"{where}/operation"))
    else:
        made = Function(reader, called(str(name), function), given, at)
    made.label = str(name)
    made.apart = None if waits else "call"
    return made


def called(name: str, function: dict[str, Any]) -> str:
    """The action that a function stands for: its operation, or if that cannot be a name, its own."""
    operation = str(function.get("operation", ""))
    return operation if _ACTION.fullmatch(operation) else name


def check_functions(reader: StatesReader) -> None:
    """Only actions and expressions are called from here."""
    for name, (at, body) in reader.defined["functions"].items():
        kind = body.get("type", "rest")
        if kind not in ("custom", "expression"):
            fix = "let an action do it: type custom, with the name of the action as its operation"
            reader.wrong(f"{at}/type", f"function {name!r} is of type {kind}, which is not called from here", fix)
        if "operation" not in body:
            reader.wrong(at, "operation is missing")
        if "authRef" in body:
            reader.wrong(f"{at}/authRef", "nothing here authenticates", "let the action do it, with a secret")
        if kind == "expression":
            reader.test(body.get("operation"), f"{at}/operation")
