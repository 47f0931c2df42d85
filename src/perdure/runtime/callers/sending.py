"""How events and other letters get into mailboxes.

Rules kept here: an event that the workflow does not declare, or whose payload does not fit its declaration, is refused
before anything is written; every letter says who sends it, which is the application itself where the caller names
nobody, but roles are always somebody's; a letter that was sent before is a duplicate, unless it said something else;
every other answer of the store is an error that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core import events as ev, letters as mail
from perdure.core.behalf import acting_as
from perdure.core.codec import digest, encode
from perdure.core.records import Mail, Row
from perdure.core.tracing import HEADER
from perdure.errors import (
    EventConflict,
    EventRefused,
    ExecutionEnded,
    ExecutionNotFound,
    InvalidValue,
    PerdureError,
    UsageError,
)
from perdure.flows.current import traceparent
from perdure.flows.machine import Machine
from perdure.flows.workflow import Workflow
from perdure.ports import Store
from perdure.runtime.callers.workflows import Workflows
from perdure.runtime.callers.writing import Writes
from perdure.runtime.checks import checked_id, checked_size


class NewEvent(Struct, frozen=True):
    """One of several events to send. Without an id it gets one."""

    name: str
    payload: Any = None
    id: str | None = None
    attributes: dict[str, str | int | bool] = {}  # of the CloudEvent that it came as


class Sends:
    """`most` is the size of the longest payload, in bytes; `actor` is who sends what nobody else does."""

    def __init__(self, writes: Writes, workflows: Workflows, store: Store, most: int, actor: str) -> None:
        self._writes = writes
        self._workflows = workflows
        self._store = store
        self._most = most
        self._actor = actor

    async def payload(self, key: str, name: str, payload: Any, by: str, roles: Sequence[str]) -> Raw:
        """Checked against the workflow's declaration, where it declares its events."""
        raw = Raw(encode(payload))
        workflows = self._workflows
        definition = await workflows.definition(key)
        try:
            _check_payload(await workflows.declared(key, definition), key, name, raw, by, roles)
        except (InvalidValue, EventRefused):
            if (current := await workflows.current(key, definition)) == definition:
                raise
            workflows.remember(key, current)
            _check_payload(await workflows.declared(key, current), key, name, raw, by, roles)
        return checked_size(raw, self._most, f"the payload of {name}")

    async def judge(self, key: str, name: str, by: str, roles: Sequence[str]) -> None:
        """Refuse what a machine that rests in its state does not take. One that is at work may be elsewhere soon."""
        head = await self._store.head(key)
        if head is None or head.holder is not None or head.mail or head.status != "open" or not head.state:
            return
        found = await self._workflows.declared(key, await self._workflows.running(head))
        state = msgspec.json.decode(head.state).get("state")
        if isinstance(found, Machine) and isinstance(state, str) and (reason := found.refuses(state, name, by, roles)):
            raise EventRefused(f"{key} does not take {name}: {reason}", key)

    async def post(
        self, key: str, id: str, letter: mail.Letter, sha: str = "", connection: Any = None
    ) -> Literal["accepted", "duplicate"]:
        """Put a letter into a mailbox, or say why that cannot be."""
        if mail.nameless(letter):
            roles = letter.roles if isinstance(letter, mail.EventLetter) else ()
            letter = structs.replace(letter, by=self._sender(key, "", roles))
        if isinstance(letter, mail.Sent) and (roles := acting_as()):
            letter = structs.replace(letter, acting_as=roles)
        if isinstance(letter, mail.EventLetter) and (trace := _trace(letter.attributes)):
            letter = structs.replace(letter, trace=trace)
        sealed = Mail(key, id, mail.seal(letter), sha)
        if connection is None:
            sent = await self._writes.sends.put(sealed)
        else:
            [sent] = await self._writes.joining().send_in(connection, [sealed], 0)
        answer = sent.answer
        if sent.version and isinstance(letter, mail.EventLetter):
            answer = (await self._compare(key, {0: (sent.version, letter)}))[0]
        if (refusal := _refusal(key, id, answer)) is not None:
            raise refusal
        return "duplicate" if answer == "duplicate" else "accepted"

    async def post_all(
        self, key: str, events: Sequence[NewEvent], by: str, roles: Sequence[str], new_id: Callable[[], str]
    ) -> list[str | PerdureError]:
        """Send many events to one execution: the id of each, or why it was not accepted. One call writes them all."""
        answers: list[str | PerdureError] = []
        letters: dict[int, mail.EventLetter] = {}
        sealed: list[Mail] = []
        for place, made in enumerate(await self._letters(key, events, by, roles)):
            try:
                if isinstance(made, PerdureError):
                    raise made
                answers.append(checked_id(events[place].id or new_id(), "event id"))
            except PerdureError as error:
                answers.append(error)
                continue
            letters[place] = made
            sealed.append(Mail(key, str(answers[place]), mail.seal(made), digest(made.name, bytes(made.payload))))
        sent = dict(zip(letters, await self._writes.send_in_order(sealed), strict=True))
        if any(one.answer == "missing" for one in sent.values()):
            raise ExecutionNotFound(f"there is no execution {key}", key)
        logged = {place: (one.version, letters[place]) for place, one in sent.items() if one.version}
        there = await self._compare(key, logged)
        for place, one in sent.items():
            refusal = _refusal(key, str(answers[place]), there.get(place, one.answer))
            answers[place] = answers[place] if refusal is None else refusal
        return answers

    async def _letters(
        self, key: str, events: Sequence[NewEvent], by: str, roles: Sequence[str]
    ) -> list[mail.EventLetter | PerdureError]:
        """Checked against the workflow as it is in mind, and only then against the version that is current."""
        workflows = self._workflows
        definition = await workflows.definition(key)
        made = self._checked(await workflows.declared(key, definition), key, events, by, roles)
        if any(isinstance(one, PerdureError) for one in made):
            if (current := await workflows.current(key, definition)) != definition:
                workflows.remember(key, current)
                again = self._checked(await workflows.declared(key, current), key, events, by, roles)
                made = [new if isinstance(old, PerdureError) else old for old, new in zip(made, again, strict=True)]
        return made

    def _checked(
        self,
        declared: Workflow[..., Any] | None,
        key: str,
        events: Sequence[NewEvent],
        by: str,
        roles: Sequence[str],
    ) -> list[mail.EventLetter | PerdureError]:
        made: list[mail.EventLetter | PerdureError] = []
        for event in events:
            try:
                made.append(self.letter(declared, key, event, by, roles))
            except PerdureError as error:
                made.append(error)
        return made

    def letter(
        self, declared: Workflow[..., Any] | None, key: str, event: NewEvent, by: str, roles: Sequence[str]
    ) -> mail.EventLetter:
        """An event as it goes into the mailbox, checked against this declaration."""
        payload = event.payload if isinstance(event.payload, Raw) else Raw(encode(event.payload))
        _check_payload(declared, key, event.name, payload, by, roles)
        checked_size(payload, self._most, f"the payload of {event.name}")
        by = self._sender(key, by, roles)
        source = str(event.attributes.get("source", ""))
        trace = _trace(event.attributes)
        return mail.EventLetter(event.name, payload, by, source, tuple(roles), event.attributes, trace, acting_as())

    def _sender(self, key: str, by: str, roles: Sequence[str]) -> str:
        if roles and not by:
            raise UsageError(f"{key}: an event with the roles {', '.join(roles)} does not say who sent it (by=…)")
        return by or self._actor

    async def _compare(
        self, key: str, logged: Mapping[int, tuple[int, mail.EventLetter]]
    ) -> dict[int, Literal["duplicate", "conflict"]]:
        """Whether duplicates say the same as the events that the log has at their versions."""
        rows: dict[int, Row] = {}
        while left := sorted({version for version, _ in logged.values()} - rows.keys()):
            rows |= {row.version: row for row in await self._store.read(key, left[0] - 1, left[-1])}
        found: dict[int, Literal["duplicate", "conflict"]] = {}
        for place, (version, letter) in logged.items():
            there = ev.read(rows[version])
            said = (there.name, bytes(there.payload)) if isinstance(there, ev.EventReceived) else None
            found[place] = "duplicate" if said == (letter.name, bytes(letter.payload)) else "conflict"
        return found


def _trace(attributes: Mapping[str, object]) -> str:
    """Whose event it is; a CloudEvent that says so itself is not told a second time."""
    return "" if HEADER in attributes else traceparent()


def _refusal(key: str, id: str, answer: str) -> PerdureError | None:
    """What an answer of the store means to whoever sent the event; nothing if all is well."""
    match answer:
        case "conflict":
            return EventConflict(f"{key}: event {id!r} was sent before with another name or payload", key)
        case "ended":
            return ExecutionEnded(f"{key} has ended and takes no more events; `perdure show` tells how", key)
        case "missing":
            return ExecutionNotFound(f"there is no execution {key}", key)
        case _:
            return None


def _check_payload(
    declared: Workflow[..., Any] | None, key: str, name: str, payload: Raw, by: str, roles: Sequence[str]
) -> None:
    if declared is not None and declared.events:
        if name not in declared.events:
            names = ", ".join(declared.events)
            raise InvalidValue(f"{declared.definition} takes no event {name!r}; it takes: {names}")
        declared.events[name].decode(payload)
    if isinstance(declared, Machine) and (reason := declared.refuses("", name, by, roles)):
        raise EventRefused(f"{key} does not take {name}: {reason}", key)
