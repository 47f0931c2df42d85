"""Many events at once: for one execution, or for whoever listens.

Rules kept here: every event has its id before anything is sent, so a batch whose answer got lost is sent again and does
nothing twice; more events than one request takes go in several, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from perdure.client.door import Door, error_of, path_of
from perdure.core.cloudevents import BATCH, Envelope
from perdure.errors import PerdureError, UsageError
from perdure.http.cloudevents import MOST
from perdure.http.events import Receipt
from perdure.http.forms import EventIn
from perdure.http.routing import OneRouted
from perdure.runtime.callers.routing import Routed
from perdure.runtime.callers.sending import NewEvent

T = TypeVar("T")


async def send_all(door: Door, id: str, events: Sequence[NewEvent]) -> list[str | PerdureError]:
    """The id of each, or the error that kept it out."""
    if any(one.attributes for one in events):
        raise UsageError("attributes are those of a CloudEvent, which tells them itself: `route` takes such an event")
    wanted = [EventIn(one.name, one.payload, one.id or door.new_id()) for one in events]
    path, answers = path_of("executions", id, "events", "batch"), list[Receipt]()
    for part in _parts(wanted):
        answers += await door.post(path, part, list[Receipt])
    return [_answer(one) for one in answers]


def _answer(receipt: Receipt) -> str | PerdureError:
    if receipt.problem is not None:
        return error_of(receipt.problem)
    assert receipt.id is not None
    return receipt.id


async def route_all(door: Door, events: Sequence[Envelope]) -> list[Routed]:
    """What became of each; the first that the server does not take is raised."""
    answers: list[OneRouted] = []
    for part in _parts([one.document() for one in events]):
        answers += await door.post(path_of("events"), part, list[OneRouted], media=BATCH)
    return [_routed(one) for one in answers]


def _routed(one: OneRouted) -> Routed:
    if one.problem is not None:
        raise error_of(one.problem)
    assert one.routed is not None
    return one.routed


def _parts(several: list[T]) -> Iterator[list[T]]:
    for first in range(0, len(several), MOST):
        yield several[first : first + MOST]
