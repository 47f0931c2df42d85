"""Asks for the work of a queue: one request is open at a time, and NATS answers it as work comes.

Rules kept here: an idle process costs one open request for each queue; a worker that has its hands full asks for
nothing and leaves the queue to others; a request that is not answered in its time, or refused because what it is for
has vanished, ends the line.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from perdure.streams.nats.hand import STALLED, Hand
from perdure.streams.nats.line import TIMEOUT, Line, Vanished
from perdure.streams.nats.names import Names

#: A request is over: nothing was there, or its time is; anything else that NATS says of it is wrong.
OVER = ("404", "408")
HEARTBEAT = "100"

#: What is done with a message: its queue, its content and where to ack it.
Come = Callable[[str, bytes, str], None]


class Pace(Struct, frozen=True):
    """How much is asked for at once, and how long is waited for it, in seconds."""

    batch: int
    block: float
    lease: float
    idle: float


class _Request(Struct, eq=False):
    reply: str
    left: int
    over: asyncio.Future[None]


class Reader:
    """Asks for the work of one queue over one line; there are `share` of them that share the hand."""

    def __init__(self, line: Line, names: Names, queue: str, hand: Hand, pace: Pace, share: int) -> None:
        self._line = line
        self._hand = hand
        self._pace = pace
        self._share = share
        self._queue = queue
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{names.stream}.{names.consumer(queue)}"
        self._inbox = line.client.new_inbox()
        self._request: _Request | None = None
        self._heard: Any = None

    async def run(self, come: Come) -> None:
        """Ask, for as long as the line holds."""

        async def arrived(message: Any) -> None:
            # Work comes under the subject of its queue; the answer to a request has the subject of that request.
            status = (message.headers or {}).get("Status")
            if status is None:
                come(self._queue, message.data, message.reply)
                self._count()
            elif self._request is not None and message.subject == self._request.reply:
                self._answered(status, message.headers.get("Description", ""))

        self._heard = await self._line.hear(f"{self._inbox}.*", arrived)
        for number in itertools.count(1):
            while (room := self._hand.room) <= 0:
                await self._hand.wait(max(STALLED, min(self._pace.block, self._pace.lease)))
            await self._ask(number, max(1, min(self._pace.batch, room // self._share)))

    async def leave(self) -> None:
        """Ask for nothing more, and take what is on its way already."""
        if self._heard is not None:
            await self._heard.drain()

    async def _ask(self, number: int, count: int) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = _Request(f"{self._inbox}.{number}", count, over)
        how = msgspec.json.encode({"batch": count, "expires": max(1, int(self._pace.block * 1e9))})
        await self._line.client.publish(self._subject, how, reply=self._request.reply)
        async with asyncio.timeout(self._pace.block + TIMEOUT):
            await over

    def _count(self) -> None:
        request = self._request
        if request is not None:
            request.left -= 1
            if request.left == 0 and not request.over.done():
                request.over.set_result(None)

    def _answered(self, status: str, said: str) -> None:
        assert self._request is not None
        over = self._request.over
        if over.done() or status == HEARTBEAT:
            return
        if status in OVER:
            over.set_result(None)
        else:
            over.set_exception(Vanished(said or "nobody answers for it"))
