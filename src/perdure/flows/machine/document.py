"""A machine as a document: plain data, from JSON or YAML. Every key that is not known is a mistake, and is told.

machine: approval
initial: draft
states:
  draft:
    on: {submit: review}
  review:
    entry: [{action: ask, with: {who: "${ .data.reviewer }"}, set: {asked: "${ .result }"}}]
    after: {PT24H: escalate}
    on:
      approve: {to: approved, roles: [manager], when: "${ .event.payload.amount <= .data.amount }"}
      escalate: {to: director}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.core.retry import Retry
from perdure.errors import DefinitionInvalid, InvalidValue, UsageError
from perdure.flows import listening
from perdure.flows.bound import Bound, Problem
from perdure.flows.given import Calling, action_of, misfits
from perdure.flows.machine.chart import Chart
from perdure.flows.machine.check import check as check_chart, unmatched
from perdure.flows.machine.machine import Machine
from perdure.flows.machine.model import Ask, Do, State, To
from perdure.flows.schema import Schema

_MACHINE = (
    *("machine", "description", "queue", "data", "events", "on", "initial", "states", "output", "publish"),
    *("listens", "starts_on"),
)
_STATE = (
    *("on", "entry", "exit", "after", "always", "done", "error", "final", "settles", "initial", "states"),
    *("description", "person"),
)
_ASK = ("task", "form", "assign", "roles", "with", "due", "priority", "description")
_TO = ("to", "when", "do", "set", "roles", "description")
_DO = ("action", "with", "name", "after", "set", "retries", "timeout", "optional", "description")
_RETRIES = ("attempts", "first", "factor", "cap", "jitter", "elapsed", "step")
_EVENT = ("schema", "description")


class Reader:
    """Turns a document into states; what is wrong is collected."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.calls: list[Calling] = []

    def machine(self, body: Mapping[str, Any]) -> State:
        self._keys(body, _MACHINE, "machine")
        if not isinstance(body.get("machine"), str) or not body["machine"]:
            self._wrong("machine", "the name is missing", "write `machine: order`")
        self._kind(body, "publish", "machine", list)
        self._kind(body, "queue", "machine", str)
        return State(
            on=self._on(body, "machine"),
            initial=self._kind(body, "initial", "machine", str) or "",
            states=self._states(body, "states"),
        )

    def schemas(self, body: Mapping[str, Any]) -> tuple[Schema | None, dict[str, Schema | None]]:
        data = body.get("data")
        events = self._kind(body, "events", "machine", dict) or {}
        read: dict[str, Schema | None] = {}
        for name, about in events.items():
            where = f"events.{name}"
            if self._is(about, dict, where):
                self._keys(about, _EVENT, where)
                read[name] = self._schema(about.get("schema"), f"{where}.schema")
        return self._schema(data, "data"), read

    def _schema(self, schema: Any, where: str) -> Schema | None:
        if schema is None:
            return None
        try:
            return Schema(schema)
        except InvalidValue as error:
            self._wrong(where, str(error))
            return None

    def _states(self, body: Mapping[str, Any], where: str) -> dict[str, State]:
        states = self._kind(body, "states", where, dict) or {}
        return {name: self._state(one, f"{where}.{name}") for name, one in states.items()}

    def _state(self, body: Any, where: str) -> State:
        if body is None:
            return State()
        if not self._is(body, dict, where):
            return State()
        self._keys(body, _STATE, where)
        return State(
            on=self._on(body, where),
            entry=self._dos(body.get("entry"), f"{where}.entry"),
            exit=self._dos(body.get("exit"), f"{where}.exit"),
            after={
                str(key): one if isinstance(one, str) else self._tos(one, f"{where}.after.{key}")
                for key, one in (self._kind(body, "after", where, dict) or {}).items()
            },
            always=self._tos(body.get("always"), f"{where}.always"),
            done=self._tos(body.get("done"), f"{where}.done"),
            error=self._tos(body.get("error"), f"{where}.error"),
            final=bool(self._kind(body, "final", where, bool)),
            settles=bool(self._kind(body, "settles", where, bool)),
            initial=self._kind(body, "initial", where, str) or "",
            states=self._states(body, where),
            description=self._kind(body, "description", where, str) or "",
            person=self._ask(body.get("person"), f"{where}.person"),
        )

    def _ask(self, body: Any, where: str) -> Ask | None:
        if body is None or not self._is(body, dict, where):
            return None
        self._keys(body, _ASK, where)
        form, priority = body.get("form"), body.get("priority", 0)
        if not isinstance(form, dict | bool | None):
            self._wrong(f"{where}.form", "it is not a JSON Schema")
            form = None
        if isinstance(priority, bool) or not isinstance(priority, int):
            self._wrong(f"{where}.priority", f"{str(priority)[:60]!r} is not a number")
            priority = 0
        return Ask(
            self._kind(body, "task", where, str) or "",
            form,
            self._kind(body, "assign", where, str) or "",
            tuple(map(str, self._kind(body, "roles", where, list) or ())),
            body.get("with"),
            body.get("due"),
            priority,
        )

    def _on(self, body: Mapping[str, Any], where: str) -> dict[str, Any]:
        events = self._kind(body, "on", where, dict) or {}
        return {name: self._tos(one, f"{where}.on.{name}") for name, one in events.items()}

    def _tos(self, body: Any, where: str) -> list[To]:
        if body is None:
            return []
        several = body if isinstance(body, list) else [body]
        return [one for index, part in enumerate(several) if (one := self._to(part, f"{where}[{index}]"))]

    def _to(self, body: Any, where: str) -> To | None:
        if isinstance(body, str):
            return To(body)
        if not self._is(body, dict, where):
            return None
        self._keys(body, _TO, where)
        return To(
            self._kind(body, "to", where, str) or "",
            body.get("when"),
            self._dos(body.get("do"), f"{where}.do"),
            body.get("set"),
            tuple(map(str, self._kind(body, "roles", where, list) or ())),
        )

    def _dos(self, body: Any, where: str) -> list[Do]:
        if body is None:
            return []
        several = body if isinstance(body, list) else [body]
        return [one for index, part in enumerate(several) if (one := self._do(part, f"{where}[{index}]"))]

    def _do(self, body: Any, where: str) -> Do | None:
        if isinstance(body, str):
            body = {"action": body}
        if not self._is(body, dict, where):
            return None
        self._keys(body, _DO, where)
        action = self._kind(body, "action", where, str)
        if not action:
            self._wrong(where, "the action is missing", "write `action: charge`")
            return None
        self.calls.append(Calling(where, action, body.get("with")))
        after = body.get("after", [])
        return Do(
            action,
            body.get("with"),
            self._kind(body, "name", where, str) or "",
            (after,) if isinstance(after, str) else tuple(map(str, after if self._is(after, list, where) else ())),
            body.get("set"),
            self._retries(body.get("retries"), f"{where}.retries"),
            body.get("timeout"),
            bool(self._kind(body, "optional", where, bool)),
        )

    def _retries(self, body: Any, where: str) -> int | Retry | None:
        if body is None or (isinstance(body, int) and not isinstance(body, bool) and body >= 0):
            return body
        if not isinstance(body, dict):
            self._wrong(where, f"{str(body)[:60]!r} is neither a number nor an object")
            return None
        self._keys(body, _RETRIES, where)
        try:
            return Retry(**{name: value for name, value in body.items() if name in _RETRIES})
        except (UsageError, TypeError) as error:
            self._wrong(where, str(error))
            return None

    # What is wrong.

    def _keys(self, body: Mapping[str, Any], known: Sequence[str], where: str) -> None:
        for key in body:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1)
                fix = f"did you mean `{near[0]}`?" if near else f"known are: {', '.join(known)}"
                self._wrong(where, f"{key!r} is not known here", fix)

    def _kind(self, body: Mapping[str, Any], key: str, where: str, kind: type) -> Any:
        value = body.get(key)
        return value if value is None or self._is(value, kind, f"{where}.{key}") else None

    def _is(self, value: Any, kind: type, where: str) -> bool:
        if isinstance(value, kind):
            return True
        names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
        self._wrong(where, f"{str(value)[:60]!r} is not {names[kind]}")
        return False

    def _wrong(self, where: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(where, message, fix))


def check(body: Mapping[str, Any]) -> list[Problem]:
    """All that is wrong with a document, seen from this process: its actions must be here."""
    reader = Reader()
    root = reader.machine(body)
    schemas = reader.schemas(body)
    return _problems(body, reader, Chart(root), schemas)


def _problems(
    body: Mapping[str, Any],
    reader: Reader,
    chart: Chart,
    schemas: tuple[Schema | None, dict[str, Schema | None]],
) -> list[Problem]:
    data, events = schemas
    listens, starts_on, wrong = listening.read(body)
    declared = {name: None if schema is None else schema.schema for name, schema in events.items()}
    return [
        *reader.problems,
        *check_chart(chart, events),
        *unmatched(chart, events),
        *(problem for call in reader.calls for problem in _misfits(call)),
        *wrong,
        *listening.problems(listens, starts_on, {**chart.events, **events}),
        *listening.fields_of_listens(listens, declared, True if data is None else data.schema),
    ]


def _misfits(call: Calling) -> Iterable[Problem]:
    action = action_of(call.action)
    return () if action is None else misfits(action, call.given, call.where)


def actions(body: Mapping[str, Any]) -> list[str]:
    """The names of the actions that it calls."""
    return list(dict.fromkeys(one.action for one in calls(body)))


def calls(body: Mapping[str, Any]) -> list[Calling]:
    """Where it calls actions, and with what."""
    reader = Reader()
    reader.machine(body)
    return reader.calls


def build(
    body: Mapping[str, Any], *, version: int = 1, hash: str = "", bounds: Mapping[str, Bound] | None = None
) -> Machine[Any]:
    """A machine of a document. Without `bounds` its actions are those of this process."""
    reader = Reader()
    root = reader.machine(body)
    schemas = reader.schemas(body)
    chart = Chart(root, bounds)
    # What was published was checked then; a later release may check more, and must run it all the same.
    found = reader.problems + chart.problems if hash else _problems(body, reader, chart, schemas)
    if problems := [one for one in found if one.level == "error"]:
        raise DefinitionInvalid(f"machine {body.get('machine')}", problems)
    return Machine.described(body, chart, version, hash, schemas)
