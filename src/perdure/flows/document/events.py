"""`emit` and `listen`: CloudEvents that leave, and those that are waited for.

Rules kept here: an event is taken once, by the first that waits for it, in the order in which they came; one that fits
nobody waits; events that only end a `listen` are not part of its output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Raw

from perdure.core import cloudevents, jq
from perdure.core.cloudevents import SPEC
from perdure.core.events import Received
from perdure.errors import ExpressionError, InvalidValue
from perdure.flows.document.course import Course, Scope
from perdure.flows.document.reader import Reader, escaped
from perdure.flows.document.step import Left, Outlet, Step
from perdure.flows.document.tasks import Tasks
from perdure.flows.document.terms import Expression, See, Value
from perdure.flows.listening import Listen, envelope
from perdure.flows.workflow import emit_event

_EMITTED = ("id", "source", "type", "time", "subject", "datacontenttype", "data")
_INPUT = re.compile(r"\s*\$\{\s*\$workflow\.input((?:\.[A-Za-z_][A-Za-z0-9_]*)+)\s*\}\s*")
_MODES = ("one", "any", "all")


class EmitStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("emit",)

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        at = f"{self.at}/emit"
        event = reader.object(self.body["emit"], at, ("event",), ("event",)).get("event", {})
        found = reader.object(event, f"{at}/event", ("with",), ("with",)).get("with", {})
        body = reader.object(found, f"{at}/event/with", _EMITTED, ("type",))
        self.event = reader.value(body, f"{at}/event/with", names)

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        event = self.event.of(given, see)
        try:  # before it is let out, which is tried again and again
            cloudevents.read({"specversion": SPEC, "id": "?", "source": "?", **event})
        except InvalidValue as error:
            raise ExpressionError(str(error)) from None
        return Left(msgspec.to_builtins(await emit_event(event)))


class Filter:
    """One kind of event that is waited for. Its `type` is a plain text: by it executions are found."""

    def __init__(self, reader: Reader, body: Any, at: str, names: Sequence[str]) -> None:
        found = reader.object(body, at, ("with", "correlate"), ("with",))
        wanted = found.get("with")
        self.type = ""
        self.tests: dict[str, Expression] = {}
        self.values: dict[str, Any] = {}
        self.correlate: dict[str, tuple[Expression | None, Value | None]] = {}
        if not isinstance(wanted, dict):
            reader.wrong(f"{at}/with", "an object of attributes is expected here")
            return
        for name, value in wanted.items():
            if isinstance(value, str) and "${" in value:
                if (test := reader.test(value, f"{at}/with/{escaped(name)}", names)) is not None:
                    self.tests[name] = test
            else:
                self.values[name] = value
        self.type = str(self.values.pop("type", ""))
        if not self.type:
            reader.wrong(f"{at}/with", "the type of the event is missing", "give it as a text without an expression")
        correlate = found.get("correlate", {})
        if not isinstance(correlate, dict):
            reader.wrong(f"{at}/correlate", "an object of names is expected here, each with `from`")
            correlate = {}
        for name, one in correlate.items():
            where = f"{at}/correlate/{escaped(name)}"
            one = reader.object(one, where, ("from", "expect"), ("from",))
            expect = reader.value(one["expect"], f"{where}/expect", names) if "expect" in one else None
            self.correlate[name] = reader.test(one.get("from"), f"{where}/from", names), expect
        event, own = next((pair for one in correlate.values() if (pair := _common(one)) is not None), ("", ""))
        reader.listens.append(Listen(self.type or "?", str(self.values.get("source", "")), event, own))

    def takes(self, event: Mapping[str, Any], given: Any, see: See, known: Mapping[str, Any]) -> bool:
        """Whether an event is meant; `known` are values that events before it had."""
        try:
            return (
                all(event.get(name) == value for name, value in self.values.items())
                and all(test.true(event.get(name), see) for name, test in self.tests.items())
                and all(
                    value == self._expected(name, given, see, known, value) for name, value in self.keys(event, see)
                )
            )
        except ExpressionError:  # what cannot be computed of an event does not fit it
            return False

    def keys(self, event: Mapping[str, Any], see: See) -> list[tuple[str, Any]]:
        """The values that tell what an event belongs to."""
        return [(name, source.of(event, see)) for name, (source, _) in self.correlate.items() if source is not None]

    def _expected(self, name: str, given: Any, see: See, known: Mapping[str, Any], value: Any) -> Any:
        expect = self.correlate[name][1]
        return known.get(name, value) if expect is None else expect.of(given, see)


class ListenStep(Step):
    keys: ClassVar[tuple[str, ...]] = ("listen", "foreach")
    rests: ClassVar[bool] = True

    def make(self, reader: Reader, names: Sequence[str], own: Sequence[str]) -> None:
        at = f"{self.at}/listen"
        body = reader.object(self.body["listen"], at, ("to", "read"), ("to",))
        self.read = body.get("read", "data")
        if self.read not in ("data", "envelope", "raw"):
            reader.wrong(f"{at}/read", "one of data, envelope and raw is expected here")
        to = reader.object(body.get("to", {}), f"{at}/to", (*_MODES, "until"))
        self.mode, self.filters = _strategy(reader, to, f"{at}/to", names)
        until = to.get("until")
        self.until: Expression | None = None
        self.ends: tuple[str, list[Filter]] = ("", [])
        if until is not None and self.mode != "any":
            reader.wrong(f"{at}/to/until", "only `any` has an `until`")
        if isinstance(until, str):
            self.until = reader.test(until, f"{at}/to/until", names)
        elif until is not None:
            self.ends = _strategy(reader, reader.object(until, f"{at}/to/until", _MODES), f"{at}/to/until", names)
        self._make_foreach(reader, own)

    def inside(self) -> Iterator[Step]:
        yield from () if self.each is None else self.each.steps

    def _make_foreach(self, reader: Reader, own: Sequence[str]) -> None:
        self.each: Tasks | None = None
        self.outlet: Outlet | None = None
        if "foreach" not in self.body:
            return
        at = f"{self.at}/foreach"
        body = reader.object(self.body["foreach"], at, ("item", "at", "do", "output", "export"))
        self.item = reader.variable(body.get("item", "item"), f"{at}/item")
        self.index = reader.variable(body.get("at", "index"), f"{at}/at")
        inner = (*own, self.item, self.index)
        self.each = Tasks(reader, body["do"], f"{at}/do", inner) if "do" in body else None
        self.outlet = Outlet(reader, body, at, inner)

    async def work(self, course: Course, given: Any, see: See, scope: Scope) -> Left:
        resumed = course.take_up()
        taken, known, wanted, ends = self._heard({} if resumed is None else resumed.heard)
        while wanted:
            see = {**see, "context": course.context}
            with course.resting(self.at, heard=self._tell(taken, known, wanted, ends)):
                found, event = await self._next(course, [*wanted, *ends], given, see, known)
            if found in ends:
                ends = [one for one in ends if one is not found] if self.ends[0] == "all" else []
                if not ends:
                    break
                continue
            known |= {name: value for name, value in found.keys(event, see) if name not in known}
            taken.append(await self._given_on(course, event, len(taken), see, scope))
            if self.mode == "all":
                wanted.remove(found)
            elif (
                self.mode == "one"
                or not (self.ends[1] or self.until)
                or (self.until is not None and self.until.true(taken, {**see, "context": course.context}))
            ):
                break
        return Left(taken)

    def _heard(self, heard: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any], list[Filter], list[Filter]]:
        """What was taken, what it has in common, and what is still waited for; of a position, or from the beginning."""
        wanted, ends = (
            filters if key not in heard else [filters[place] for place in heard[key]]
            for key, filters in (("wanted", self.filters), ("ends", self.ends[1]))
        )
        return list(heard.get("taken", ())), dict(heard.get("known", {})), list(wanted), list(ends)

    def _tell(
        self, taken: list[Any], known: dict[str, Any], wanted: list[Filter], ends: list[Filter]
    ) -> dict[str, Any]:
        """The same, as data; and which types it waits for, by which another version knows it again."""
        places = {
            key: [filters.index(one) for one in left]
            for key, filters, left in (("wanted", self.filters, wanted), ("ends", self.ends[1], ends))
        }
        return {"types": self.types, "taken": list(taken), "known": dict(known), **places}

    @property
    def types(self) -> list[str]:
        """Of the events that it waits for, in their order."""
        return [one.type for one in (*self.filters, *self.ends[1])]

    async def _next(
        self, course: Course, filters: list[Filter], given: Any, see: See, known: Mapping[str, Any]
    ) -> tuple[Filter, dict[str, Any]]:
        def meant(event: Received) -> Filter | None:
            seen = envelope(course.running.key, event)
            fits = (one for one in filters if one.type == event.name and one.takes(seen, given, see, known))
            return next(fits, None)

        wanted = dict.fromkeys((one.type for one in filters), _plain)
        event, _ = await course.running.receive(wanted, {}, lambda event: meant(event) is not None)
        found = meant(event)
        assert found is not None
        return found, envelope(course.running.key, event)

    async def _given_on(self, course: Course, event: dict[str, Any], number: int, see: See, scope: Scope) -> Any:
        value = event.get("data") if self.read == "data" else event
        if self.outlet is None:
            return value
        names = {self.item: value, self.index: number}
        if self.each is not None:
            value = await self.each.run(course, value, scope.round(f"{self.at}/foreach", number, names))
        return self.outlet.let(course, value, {**see, **names, "context": course.context})


def _common(correlation: Any) -> tuple[str, str] | None:
    """How an event and an execution are matched before it is sent: where the input tells what is expected.

    Otherwise every execution of the document gets the event, and decides by itself whether it is meant.
    """
    if not isinstance(correlation, dict):
        return None
    source, expect = correlation.get("from"), correlation.get("expect")
    found = _INPUT.fullmatch(expect) if isinstance(expect, str) else None
    if found is None or not isinstance(source, str):
        return None
    try:
        jq.compile(jq.expression(source), ())
    except ExpressionError:  # it is wrong, which is told elsewhere, or sees what only the execution has
        return None
    return jq.expression(source), f"try .[0]{found[1]} catch null"


def _strategy(reader: Reader, body: dict[str, Any], at: str, names: Sequence[str]) -> tuple[str, list[Filter]]:
    modes = [mode for mode in _MODES if mode in body]
    if len(modes) != 1:
        reader.wrong(at, f"exactly one of {', '.join(_MODES)} is expected here")
        return "one", []
    [mode] = modes
    found = [body[mode]] if mode == "one" else body[mode]
    if not isinstance(found, list) or not found:
        reader.wrong(f"{at}/{mode}", "a list of events is expected here, each with its type")
        return mode, []
    places = [f"{at}/{mode}" if mode == "one" else f"{at}/{mode}/{number}" for number in range(len(found))]
    return mode, [Filter(reader, one, place, names) for one, place in zip(found, places, strict=True)]


def _plain(payload: Raw) -> Any:
    return msgspec.json.decode(payload)
