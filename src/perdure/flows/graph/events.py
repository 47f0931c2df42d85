"""Events, as nodes wait for them.

Rules kept here: events are taken in the order in which they came, also those that came before the wait; a payload that
does not fit is rejected, recorded, and the wait goes on; what is not needed stays for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.core.commands import Waiter
from perdure.core.events import Received
from perdure.core.replay import Replay
from perdure.errors import InvalidValue
from perdure.flows.schema import Schema


class Want(Struct, frozen=True):
    """One event that a node waits for."""

    number: int
    name: str
    match: dict[str, Any]
    schema: Any = None  # a Schema: msgspec need not know it

    def read(self, payload: Raw) -> Any:
        return read(payload, self.name, self.schema)


def read(payload: Raw, name: str, schema: Schema | None) -> Any:
    value = msgspec.json.decode(payload)
    if schema is not None:
        schema.refuse(value, f"the payload of {name}")
    return value


async def collect(running: Replay, wants: Sequence[Want], got: dict[int, Any], needed: int) -> None:
    """Fill `got`, by the number of the event, until there are as many as needed."""
    waiters: dict[int, Waiter] = {}
    try:
        while len(got) < needed:
            missing = [want for want in wants if want.number not in got]
            if not waiters and (found := _buffered(running, missing)) is not None:
                number, event, value = found
            else:
                number, event, value = await _next(running, missing, waiters)
            got[number] = {"name": event.name, "payload": value}
    finally:
        for waiter in waiters.values():
            running.unlisten(waiter)


async def _next(running: Replay, missing: Sequence[Want], waiters: dict[int, Waiter]) -> tuple[int, Received, Any]:
    for want in missing:
        if want.number not in waiters:
            waiters[want.number] = running.listen({want.name: want.read}, want.match)
    await asyncio.wait([waiter.future for waiter in waiters.values()], return_when=asyncio.FIRST_COMPLETED)
    # An event wakes one of them, and each event has a turn of its own.
    number = next(number for number, waiter in waiters.items() if waiter.future.done())
    event, value = waiters.pop(number).future.result()
    return number, event, value


def _buffered(running: Replay, wants: Sequence[Want]) -> tuple[int, Received, Any] | None:
    """The first of the events that came before anybody asked."""
    for event in list(running.buffer):
        for want in wants:
            if not _takes(want, event):
                continue
            running.buffer.remove(event)
            try:
                return want.number, event, want.read(event.payload)
            except InvalidValue as error:
                running.reject(event, str(error))
                break
    return None


def _takes(want: Want, event: Received) -> bool:
    return event.name == want.name and Waiter({want.name: want.read}, want.match, _NOBODY, 0).takes(event)


_NOBODY: Any = None
