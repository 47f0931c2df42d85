"""Sends what is to be sent, one flight at a time: what comes meanwhile is joined in the next one.

Rules kept here: nobody waits for NATS; NATS has to confirm the last message of a flight that it is to keep, and so all
before it; what failed is tried again until newer hints take its place; what is lost is counted and never raised.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

import msgspec
from nats.js.errors import APIError

from perdure.streams.inbox import CAPACITY
from perdure.streams.nats.line import Line
from perdure.streams.nats.notes import Parcel

#: Messages in one flight.
FLIGHT = 1000
#: What is kept to be tried again while nothing gets through. More would be stale when it does.
KEPT = 1000


class Sender:
    """Messages go out in order, over one line after the other."""

    def __init__(self) -> None:
        self._parcels: deque[Parcel] = deque()
        self._most = CAPACITY
        self._bell = asyncio.Event()
        self._calm = asyncio.Event()
        self._calm.set()
        self.lost = 0

    def send(self, parcels: Iterable[Parcel]) -> None:
        self._parcels.extend(parcels)
        self._drop_oldest()
        if self._parcels:
            self._calm.clear()
            self._bell.set()

    async def calm(self) -> None:
        """Everything has been sent."""
        await self._calm.wait()

    async def run(self, line: Line) -> None:
        """Send over this line until it fails."""
        self._most = CAPACITY
        while True:
            await self._bell.wait()
            flight = [self._parcels.popleft() for _ in range(min(FLIGHT, len(self._parcels)))]
            try:
                await self._fly(line, flight)
            except BaseException:
                self._parcels.extendleft(reversed(flight))
                raise
            if not self._parcels:
                self._bell.clear()
                self._calm.set()

    def wait(self) -> None:
        """There is no line at present: keep only what is new."""
        self._most = KEPT
        self._drop_oldest()

    async def _fly(self, line: Line, flight: list[Parcel]) -> None:
        fit = [parcel for parcel in flight if len(parcel.payload) <= line.client.max_payload]
        self.lost += sum(parcel.hints for parcel in flight) - sum(parcel.hints for parcel in fit)
        last = max((place for place, parcel in enumerate(fit) if parcel.kept), default=None)
        for place, parcel in enumerate(fit):
            if place != last:
                await line.client.publish(parcel.subject, parcel.payload)
        if last is not None:
            confirm(await line.ask(fit[last].subject, fit[last].payload))

    def _drop_oldest(self) -> None:
        while len(self._parcels) > self._most:
            self.lost += self._parcels.popleft().hints


def confirm(answer: bytes) -> None:
    """JetStream says where it has put a message, or why it has not."""
    said = msgspec.json.decode(answer)
    if "error" in said:
        raise APIError.from_error(said["error"])
