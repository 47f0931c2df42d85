"""What an action of a state invokes: a function, an event that is answered, another workflow.

A function is an action of the registry, an operation of an API that is described by OpenAPI, or an expression on the
data; nothing else is called from here. What is invoked without being waited for says so by `apart`, and gives nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Raw

from perdure.core.codec import encode
from perdure.flows.bound import Bound, Call, arguments
from perdure.flows.document.faults import fault
from perdure.flows.document.http import OpenApiRemote
from perdure.flows.document.terms import Expression, Length
from perdure.flows.given import Calling
from perdure.flows.graph.children import run_child
from perdure.flows.secret import SCHEME
from perdure.flows.states.course import Course, Kind
from perdure.flows.states.events import Consumed, Produced, in_time, read_consumed
from perdure.flows.states.limits import seconds
from perdure.flows.states.reader import NAMES, StatesReader
from perdure.flows.workflow import start_apart

_REFERENCES = ("functionRef", "eventRef", "subFlowRef")
_EVENT = ("triggerEventRef", "resultEventRef", "resultEventTimeout", "data", "contextAttributes", "invoke")
_ACTION = re.compile(r"[A-Za-z0-9_.-]+")
_REST = re.compile(r"https?://[^#\s$]+#[^#$]+")


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
        spec, values = self._call.spec(), self._given.of(given, course.names)
        return await course.running.act(spec, arguments(self._call.bound, values, spec), spec.compensation)


class Operation(Invoked):
    """An operation of an API. The engine's own action calls it, so it is in every worker."""

    def __init__(self, reader: StatesReader, address: str, given: Any, at: str) -> None:
        document, _, operation = address.partition("#")
        body = {"document": {"endpoint": document}, "operationId": operation, "parameters": given}
        self._call = OpenApiRemote(reader, body, at, NAMES)
        text = json.dumps(given)
        named = [name for name in reader.see["SECRETS"] if "$SECRETS" in text and name in text]
        self._call.secrets = tuple(dict.fromkeys([*self._call.secrets, *named]))
        reader.calls.append(Calling(at, "", [f"{SCHEME}{one}" for one in self._call.secrets]))

    async def invoke(self, course: Course, given: Any) -> Any:
        return await self._call.call(given, course.names)


class Computed(Invoked):
    """A function that is an expression."""

    def __init__(self, expression: Expression | None) -> None:
        self._expression = expression

    async def invoke(self, course: Course, given: Any) -> Any:
        return given if self._expression is None else self._expression.of(given, course.names)


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
        limit = seconds(self._limit, given, course)
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


def read_invoked(reader: StatesReader, body: dict[str, Any], at: str) -> Invoked:
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
    elif function.get("type", "rest") == "rest":
        operation = str(function.get("operation"))
        made = Operation(reader, operation, given, at) if _REST.fullmatch(operation) else Computed(None)
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
    """What is called from here, and what is not."""
    for name, (at, body) in reader.defined["functions"].items():
        kind = body.get("type", "rest")
        if kind == "rest" and not _REST.fullmatch(str(body.get("operation"))):
            fix = "write https://api.example/openapi.json#operation, or let an action do it: type custom"
            reader.wrong(f"{at}/operation", "this is no operation of an API that is described behind an address", fix)
        if kind not in ("rest", "custom", "expression"):
            fix = "let an action do it: type custom, with the name of the action as its operation"
            reader.wrong(f"{at}/type", f"function {name!r} is of type {kind}, which is not called from here", fix)
        if "operation" not in body:
            reader.wrong(at, "operation is missing")
        if "authRef" in body:
            reader.wrong(f"{at}/authRef", "nothing here authenticates", "let the action do it, with a secret")
        if kind == "expression":
            reader.test(body.get("operation"), f"{at}/operation")
