"""Webhooks as they lie in the store.

A webhook is an execution without code, of its tenant: its log has one event for each act (`created`, `rotated`,
`revoked`), its head shows the record. Rules kept here: the record is a function of the log; it has references to
secrets, never a secret; one that was revoked may be made anew under its name.

A call that was taken is kept beside it, as an execution that has ended from the outset, under all that was signed: id,
time and body. The same call again is known by it for ever; the sender's next try, which is signed anew, is another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core import copies, events as ev
from perdure.core.codec import digest
from perdure.core.records import Head, Row, Start, key_of
from perdure.core.signing import Kind
from perdure.errors import Undecodable
from perdure.runtime.managing.publishing import Ledger

#: The workflow of such an execution.
HOOK = "hook:"
#: How its id begins: no id that people choose has a slash.
_PLACE = "hook/"
#: The workflow of a call that was taken.
_CALL = "hook-call:"
_RECEIVED = ev.NUMBERS[ev.EventReceived]


class HookStart(Struct, frozen=True, tag="start", tag_field="do", forbid_unknown_fields=True, omit_defaults=True):
    """Start a workflow. `input` and `id` are jq on the body; without an `id` it follows from that of the call."""

    workflow: str
    input: str = "."
    id: str = ""
    version: int | None = None


class HookSend(Struct, frozen=True, tag="send", tag_field="do", forbid_unknown_fields=True, omit_defaults=True):
    """Send an event. `execution` and `payload` are jq on the body; the first gives the id of an execution."""

    event: str
    execution: str
    payload: str = "."


class HookRoute(Struct, frozen=True, tag="route", tag_field="do", forbid_unknown_fields=True, omit_defaults=True):
    """Make a CloudEvent of the call, for whoever listens. Its id is that of the call.

    `data` is jq on the body. `type` and `source` are texts, or `${ … }` with jq on the body; without a `source` it is
    the webhook itself.
    """

    type: str
    source: str = ""
    data: str = "."


#: What a webhook does with a call.
Does: TypeAlias = HookStart | HookSend | HookRoute


class HookAct(Struct, frozen=True, omit_defaults=True):
    """What the log of a webhook says of one act. Times are microseconds since the epoch; 0 is never."""

    name: str = ""
    kind: Kind = "standard"
    secret: str = ""
    does: Does | None = None
    overlap: int = 0  # until when the secret before is good, too


class Record(Struct, frozen=True, omit_defaults=True):
    """A webhook as its head shows it."""

    name: str = ""
    kind: Kind = "standard"
    secret: str = ""
    does: Does | None = None
    by: str = ""
    created: int = 0
    former: str = ""  # the reference to the secret before
    overlap: int = 0
    rotated: int = 0
    revoked: int = 0

    @property
    def active(self) -> bool:
        return bool(self.created) and not self.revoked

    def secrets(self, now: int) -> list[str]:
        """References to all secrets that are good now."""
        return [self.secret, self.former] if self.former and now < self.overlap else [self.secret]


def key_of_hook(tenant: str, name: str) -> str:
    return key_of(tenant, _PLACE + name)


def key_of_call(tenant: str, name: str, id: str, at: str, body: bytes) -> str:
    return f"{key_of_hook(tenant, name)}/{digest(id, at, body)[:40]}"


def taken(key: str, name: str, id: str, at: str, now: int) -> Start:
    """A call as it is kept; `at` is the time that was signed."""
    first = ev.Started(_CALL, 1, Raw(msgspec.json.encode([id, at])), f"{HOOK}{name}")
    return copies.as_start(key, [ev.row(first, 1, now), ev.row(ev.Completed(), 2, now)], "")


def record_of(head: Head | None) -> Record:
    return Record() if head is None or head.state is None else msgspec.json.decode(head.state, type=Record)


def fold(record: Record, rows: Iterable[Row]) -> Record:
    """The record after these rows of the log."""
    for row in rows:
        if row.type % 1000 == _RECEIVED and isinstance(event := ev.read(row), ev.EventReceived):
            record = _after(record, event, row.at)
    return record


def _after(record: Record, event: ev.EventReceived, at: int) -> Record:
    try:
        act = msgspec.json.decode(event.payload, type=HookAct)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"an act of a webhook cannot be read: {error}") from error
    match event.name:
        case "created":
            return Record(act.name, act.kind, act.secret, act.does, event.by, at)
        case "rotated":
            return structs.replace(record, secret=act.secret, former=record.secret, overlap=act.overlap, rotated=at)
        case "revoked":
            return structs.replace(record, revoked=at)
        case _:
            return record


def _blank(key: str) -> Start:
    """A webhook that is not yet one: on no queue, so no worker ever claims it."""
    first = ev.Started(HOOK, 1, Raw(b"[]"))
    return Start(key, HOOK, f"{HOOK}@1", "", "hook", (ev.row(first, 1, 0),))


LEDGER = Ledger(_blank, Record(), fold, record_of)
