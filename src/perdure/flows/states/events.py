"""Events of a workflow: those that it waits for, and those that it lets out.

Rules kept here: an event is taken once, by whoever waits first; one that has a correlation belongs to an execution if
its attributes are those of the events before, and the first one decides them; one that was sent to the execution by its
name has no source of its own, so none is asked of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.cloudevents import source_of
from perdure.flows.document.terms import Value
from perdure.flows.listening import Listen, envelope
from perdure.flows.states.course import Course
from perdure.flows.states.data import Data, Target
from perdure.flows.states.reader import StatesReader
from perdure.flows.workflow import emit_event


class Consumed(Struct, frozen=True):
    """An event that is waited for."""

    name: str
    type: str
    source: str
    fixed: dict[str, Any]  # attributes with the values that they must have
    common: tuple[str, ...]  # attributes by which events belong together
    data_only: bool

    def takes(self, name: str, event: Mapping[str, Any], course: Course) -> bool:
        return (
            name == self.type
            and event["source"] in (self.source or event["source"], source_of(course.running.key))
            and all(event.get(key) == value for key, value in self.fixed.items())
            and all(event.get(key) is not None for key in self.common)
            and all(event[key] == course.known.get(key, event[key]) for key in self.common)
        )

    @property
    def when(self) -> str:
        """What can be said of its attributes before there is an execution, as a condition on the CloudEvent."""
        tests = [f".{key} == {json.dumps(value)}" for key, value in self.fixed.items()]
        return " and ".join([*tests, *(f".{key} != null" for key in self.common)])

    def told(self, event: Mapping[str, Any]) -> Any:
        """What filters see of an event."""
        return event.get("data") if self.data_only else dict(event)


def read_consumed(reader: StatesReader, name: Any, at: str) -> Consumed | None:
    found = _refer(reader, name, at, "consumed")
    if found is None:
        return None
    where, body = found
    fixed, common = {}, []
    for number, one in enumerate(reader.list(body.get("correlation"), f"{where}/correlation")):
        place = f"{where}/correlation/{number}"
        keys = ("contextAttributeName", "contextAttributeValue")
        rule = reader.object(one, place, keys, keys[:1])
        key = str(rule.get(keys[0], "")).lower()  # attributes of CloudEvents are in small letters
        if not key.isalnum() or not key.isascii():
            reader.wrong(f"{place}/{keys[0]}", "attributes of an event have letters and digits")
            continue
        if keys[1] in rule:
            fixed[key] = rule[keys[1]]
        else:
            common.append(key)
    if "type" not in body:
        reader.wrong(where, "type is missing")
    type, source = str(body.get("type") or "?"), str(body.get("source", ""))
    data_only = reader.flag(body.get("dataOnly", True), f"{where}/dataOnly")
    made = Consumed(str(name), type, source, fixed, tuple(common), data_only)
    reader.listens.append(Listen(type, source, when=made.when))
    return made


def _refer(reader: StatesReader, name: Any, at: str, kind: str) -> tuple[str, dict[str, Any]] | None:
    found = reader.refer(name, at, "events")
    if found is not None and (its := found[1].get("kind", "consumed")) != kind:
        reader.wrong(at, f"event {name!r} is {its}, and one that is {kind} is meant here", f"set its kind to {kind}")
    return found


async def next_of(course: Course, wanted: Sequence[Consumed]) -> tuple[Consumed, Any]:
    """The next event that is one of these."""

    def meant(name: str, event: Mapping[str, Any]) -> Consumed | None:
        return next((one for one in wanted if one.takes(name, event, course)), None)

    running = course.running
    event, course.event = course.event, None
    if event is None or meant(event["type"], event) is None:
        types = dict.fromkeys((one.type for one in wanted), msgspec.json.decode)
        came, _ = await running.receive(types, {}, lambda one: meant(one.name, envelope(running.key, one)) is not None)
        name, event = came.name, envelope(running.key, came)
    else:
        name = event["type"]
    found = meant(name, event)
    assert found is not None
    course.known |= {key: event[key] for key in found.common}
    return found, found.told(event)


async def in_time(seconds: float | None, course: Course, wanted: Sequence[Consumed]) -> tuple[Consumed, Any] | None:
    """The same; None if none comes in this time."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await next_of(course, wanted)
    except TimeoutError:
        if not limit.expired():
            raise
        return None


class EventFilter:
    """What of an event becomes part of the data, and where."""

    def __init__(self, reader: StatesReader, body: Any, at: str) -> None:
        found = reader.object({} if body is None else body, at, ("useData", "data", "toStateData"))
        self.used = reader.flag(found.get("useData", True), f"{at}/useData")
        self._data = reader.test(found.get("data"), f"{at}/data")
        self._target = read_target(reader, found.get("toStateData"), f"{at}/toStateData")

    def merge(self, told: Any, data: Data, course: Course) -> None:
        if not self.used:
            return
        value = told if self._data is None else self._data.of(told, course.names)
        if value is not None:
            data.add(self._target, value)


def read_target(reader: StatesReader, text: Any, at: str) -> Target | None:
    path = reader.path(text, at)
    return None if path is None else Target(path)


class Produced:
    """An event that is let out."""

    def __init__(self, reader: StatesReader, name: Any, body: dict[str, Any], at: str) -> None:
        found = _refer(reader, name, at, "produced")
        self._event: dict[str, Any] = {}
        if found is not None:
            where, event = found
            if not isinstance(event.get("type"), str):
                reader.wrong(where, "type is missing")
            self._event = {key: event[key] for key in ("type", "source") if event.get(key)}
        if "contextAttributes" in body:
            fix = "put what others need into the data"
            reader.wrong(f"{at}/contextAttributes", "events that leave have no attributes of their own here", fix)
        self._data: Value | None = reader.value(body["data"], f"{at}/data") if "data" in body else None

    async def emit(self, data: Any, course: Course) -> None:
        """Without `data` of its own the event has none."""
        payload = None if self._data is None else self._data.of(data, course.names)
        await emit_event({**self._event, "data": payload})
