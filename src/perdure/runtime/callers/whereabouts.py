"""What has become of an event that was sent.

    pending     durable, and not in the log yet
    processing  in the log; the execution has not come to rest since, or keeps the event for later
    completed   taken: the code waited for it, or the machine's step is done; or the execution is over
    failed      rejected, with the reason: it does not fit, or not the state that the machine is in

Rules kept here: the answer comes from what is durable, never from somebody's memory; the log is read from the event on,
and only as far as it takes: up to the row that settles it or the next checkpoint, which names all that still waits. A
status only moves forward, with one exception that nobody can help: what the code of a stuck execution made of an event
is open again, because other code may go on with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from perdure.core import events as ev, letters
from perdure.core.moments import moment
from perdure.core.records import ENDED, Head, Mail, Row, id_of
from perdure.errors import EventNotFound, ExecutionNotFound, Undecodable
from perdure.ports import Store

EventState: TypeAlias = Literal["pending", "processing", "completed", "failed"]
#: Rows behind the event that are read at first; nearly always they tell.
_NEAR = 100
_FAR = 1000


class EventStatus(Struct, frozen=True, omit_defaults=True):
    """An event and where it stands. `result` is the state that it led a machine to, `error` why it was rejected."""

    id: str
    execution: str
    name: str
    status: EventState
    at: datetime | None = None  # when it came into the log
    version: int | None = None  # of the log, where it is
    result: Any = None
    error: str | None = None


class Sent(Struct, frozen=True):
    """An event as it was sent; without a version it is in the mailbox."""

    id: str
    name: str
    payload: Raw
    attributes: dict[str, str | int | bool]
    version: int = 0
    at: int = 0
    rejected: str = ""


async def sent(store: Store, key: str, id: str) -> Sent:
    """The event of this id, or EventNotFound."""
    found = await store.message(key, id)
    try:
        match found:
            case Mail() if isinstance(letter := letters.unseal(found), letters.EventLetter):
                return Sent(id, letter.name, letter.payload, letter.attributes)
            case Row() if isinstance(event := ev.read(found), ev.EventReceived):
                return Sent(id, event.name, event.payload, event.attributes, found.version, found.at)
            case Row() if isinstance(event := ev.read(found), ev.EventRejected):  # it could not be read
                return Sent(id, event.name, ev.NULL, {}, found.version, found.at, event.reason)
            case _:
                pass
    except Undecodable:
        pass  # a letter that nobody can read; folding it will say so
    if await store.head(key) is None:
        raise ExecutionNotFound(f"there is no execution {id_of(key)!r}; `perdure list` shows those that are", key)
    raise EventNotFound(f"no event {id!r} was sent to {id_of(key)}", key)


async def status(store: Store, key: str, id: str) -> EventStatus:
    """Where an event stands; see the module."""
    event = await sent(store, key, id)
    if not event.version:
        return EventStatus(id, id_of(key), event.name, "pending")

    def at(state: EventState, result: Any = None, error: str | None = None) -> EventStatus:
        return EventStatus(id, id_of(key), event.name, state, moment(event.at), event.version, result, error)

    if event.rejected:
        return at("failed", error=event.rejected)
    # The head first: what it says of the event is then in the rows, too.
    head = await store.head(key)
    trail = _Trail(id)
    whole = trail.follow(await store.read(key, event.version, limit=_NEAR), _NEAR)
    if not trail.settled and head is not None and not _taken(head, event):
        return at("processing")
    while not whole:
        whole = trail.follow(await store.read(key, trail.seen, limit=_FAR), _FAR)
    if trail.rejected is not None:
        return at("failed", error=trail.rejected)
    if trail.over and trail.state is None and await _is_machine(store, key):
        return at("failed", error="the machine came to its end before it was the event's turn")
    return at("completed", trail.state)


def _taken(head: Head, event: Sent) -> bool:
    """Whether the execution has come to rest, or to its end, since, and does not keep the event."""
    if head.status in ENDED:
        return True
    waits = msgspec.json.decode(head.waits) if head.waits else {}
    if event.version > waits.get("through", 0) or waits.get("taking") == event.id:
        return False
    return not any(first <= event.version <= last for first, last in waits.get("kept", ()))


async def _is_machine(store: Store, key: str) -> bool:
    """A machine enters its first state when it begins."""
    return any(isinstance(ev.read(row), ev.StateChanged) for row in await store.read(key, limit=4))


class _Trail:
    """What the rows behind an event say of it."""

    def __init__(self, id: str) -> None:
        self._id = id
        self.state: str | None = None
        self.rejected: str | None = None
        self.settled = False  # nothing more will be said of it
        self.over = False  # the execution has ended
        self.seen = 0

    def follow(self, rows: Sequence[Row], asked: int) -> bool:
        """Whether all is read that has to be."""
        for row in rows:
            self.seen = row.version
            self._note(ev.read(row))
            if self.settled:
                return True
        return len(rows) < asked

    def _note(self, event: ev.Event) -> None:
        match event:
            case ev.EventRejected(id=self._id):
                self.rejected, self.settled = event.reason, True
            case ev.StateChanged(id=self._id):
                self.state = event.to_state
            case ev.StateChanged() if event.id and self.state is not None:
                self.settled = True  # the next step has begun
            case ev.Restarted():
                self.settled = all(one.id != self._id for one in event.buffered)
            case ev.Completed() | ev.Failed() | ev.Cancelled():
                self.settled = self.over = True
            case _:
                pass
