"""What a definition listens for: CloudEvents that wake its executions, and those that start one.

A subscription is a property of the start. What an execution listens for is computed from its input when it begins, as
topics: a digest of the definition, what it declares, and the value that the event and the execution have in common. So
whoever has an event computes the same topics from it and finds those that match, and nobody is asked anything. Rules
kept here: a value of null is nothing in common; an expression that fails on an event means that the event is not meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from perdure.core import jq
from perdure.core.cloudevents import SPEC, source_of
from perdure.core.codec import canonical, digest, encode
from perdure.core.events import Received
from perdure.errors import ExpressionError, InvalidValue, UsageError
from perdure.flows import fields
from perdure.flows.bound import Problem
from perdure.flows.fields import JsonSchema

T = TypeVar("T")
#: How many subscriptions a definition may have.
MOST = 100
#: The longest type of an event.
LONGEST = 200


class Listen(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Events of this `type` (and `source`) wake an execution, if `event` of the event is `own` of its input.

    Both are expressions: `event` on the CloudEvent (`.data.order_id`), `own` on the arguments that the execution was
    started with (`.[0].id`). Without them every event of the type is meant. The execution receives it under the
    `name`, which is the type unless another is given.
    """

    type: str
    source: str = ""
    event: str = ""
    own: str = ""
    when: str = ""  # a condition on the CloudEvent
    name: str = ""

    @property
    def called(self) -> str:
        return self.name or self.type


class On(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Events of this `type` (and `source`) start an execution with `input`, an expression on the CloudEvent."""

    type: str
    source: str = ""
    input: str = ".data"
    when: str = ""  # a condition on the CloudEvent


def topics(definition: str, listens: Sequence[Listen], input: Raw) -> tuple[str, ...]:
    """What an execution with this input listens for, or ExpressionError."""
    if not listens:
        return ()
    arguments = msgspec.json.decode(input)
    found = []
    for listen in listens:
        value = jq.compile(jq.expression(listen.own)).one(arguments) if listen.own else None
        if value is not None or not listen.own:
            found.append(_topic(definition, listen, value))
    return tuple(dict.fromkeys(found))


def heard(definition: str, listen: Listen, event: Mapping[str, Any]) -> str | None:
    """The topic of those that an event is for, if it is for any."""
    if not _meant(listen, event):
        return None
    value = _value(listen.event, event) if listen.event else None
    return None if value is None and listen.event else _topic(definition, listen, value)


def begins(on: On, event: Mapping[str, Any]) -> Raw | None:
    """The input of the execution that an event starts, if it starts one."""
    if not _meant(on, event):
        return None
    return Raw(encode([jq.compile(jq.expression(on.input)).one(event)]))


def _meant(one: Listen | On, event: Mapping[str, Any]) -> bool:
    if event["type"] != one.type or (one.source and event["source"] != one.source):
        return False
    if not one.when:
        return True
    holds = _value(one.when, event)
    return holds is not None and holds is not False


def _value(text: str, event: Mapping[str, Any]) -> Any:
    try:
        return jq.compile(jq.expression(text)).one(event)
    except ExpressionError:
        return None


def _topic(definition: str, listen: Listen, value: Any) -> str:
    declared = msgspec.json.encode([listen.type, listen.source, listen.event, listen.when, listen.called])
    return digest(definition, declared, canonical(encode(value)))[:40]


def envelope(key: str, event: Received) -> dict[str, Any]:
    """An event of an execution as a CloudEvent: as it came, or as one that was sent by its name."""
    made = {"specversion": SPEC, "id": event.id, "source": source_of(key), "type": event.name}
    return {**(event.attributes or made), "data": msgspec.json.decode(event.payload)}


# Declarations.


def checked(what: str, listens: Sequence[Listen], starts_on: Sequence[On], events: Mapping[str, Any]) -> None:
    """UsageError if a definition in code cannot listen like that."""
    for problem in problems(listens, starts_on, events):
        raise UsageError(f"{what}: {problem}")


def read(body: Mapping[str, Any]) -> tuple[tuple[Listen, ...], tuple[On, ...], list[Problem]]:
    """What a document says under `listens` and `starts_on`, and what of it cannot be read."""
    found: list[Problem] = []
    listens = tuple(_each(body, "listens", Listen, found))
    starts_on = tuple(_each(body, "starts_on", On, found))
    return listens, starts_on, found


def _each(body: Mapping[str, Any], field: str, kind: type[T], problems: list[Problem]) -> Iterator[T]:
    several = body.get(field, [])
    if not isinstance(several, list):
        problems.append(Problem(field, "is not a list", f"{field}: [{{type: order.paid}}]"))
        return
    for place, one in enumerate(several):
        try:
            yield msgspec.convert({"type": one} if isinstance(one, str) else one, kind)
        except msgspec.ValidationError as error:
            problems.append(Problem(f"{field}[{place}]", str(error)))


def problems(listens: Sequence[Listen], starts_on: Sequence[On], events: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with what a definition listens for; `events` are those that it declares."""
    if len(listens) + len(starts_on) > MOST:
        yield Problem("listens", f"it listens for more than {MOST} kinds of events")
    for place, listen in enumerate(listens):
        where = f"listens[{place}]"
        yield from _expressions(where, listen.type, event=listen.event, own=listen.own, when=listen.when)
        if bool(listen.event) != bool(listen.own):
            fix = "`event` says where the event has the value, `own` where the input has it"
            yield Problem(where, "`event` and `own` go together", fix)
        if events and listen.called not in events:
            fix = f"it takes: {', '.join(events)}; give the one that is meant as `name`"
            yield Problem(where, f"no event {listen.called!r} is declared", fix)
    for place, on in enumerate(starts_on):
        yield from _expressions(f"starts_on[{place}]", on.type, input=on.input, when=on.when)


def fields_of_listens(
    listens: Sequence[Listen], events: Mapping[str, JsonSchema | None], own: JsonSchema = True
) -> Iterator[Problem]:
    """Subscriptions that nothing can match, by the schemas of the events as they are received and of the input."""
    for place, listen in enumerate(listens):
        where, schema = f"listens[{place}]", events.get(listen.called)
        for name, text in (("event", listen.event), ("when", listen.when)):
            for reason in fields.never(schema, jq.expression(text), ("data",)) if schema is not None and text else ():
                yield Problem(f"{where}.{name}", f"no {listen.called!r} can match: {reason}", "mend it or the schema")
        for reason in fields.never(own, jq.expression(listen.own), (0,)) if listen.own else ():
            yield Problem(f"{where}.own", f"no execution can listen: of the data, {reason}", "mend it or the schema")


def _expressions(where: str, type: str, **texts: str) -> Iterator[Problem]:
    if not type or len(type) > LONGEST:
        yield Problem(where, f"the type of the event is a text of 1 to {LONGEST} characters")
    for name, text in texts.items():
        try:
            if text:
                jq.compile(jq.expression(text))
        except InvalidValue as error:
            yield Problem(f"{where}.{name}", str(error))
