"""Two streams as one: hints go through the first, and through the second while the first has trouble.

A fleet on PostgreSQL and Redis goes on without Redis: LISTEN and NOTIFY tell workers to look, and what is new is due at
once. Both are always listened to, so nobody has to agree with anybody on when the change happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.core.records import Hint
from perdure.ports import Stream


class Pair:
    """A Stream; see the module."""

    def __init__(self, first: Stream, second: Stream) -> None:
        self.first = first
        self.second = second
        self._reading: dict[asyncio.Task[Sequence[Hint]], Stream] = {}

    async def open(self, me: str, queues: Sequence[str]) -> None:
        await self.first.open(me, queues)
        await self.second.open(me, queues)

    async def close(self) -> None:
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        self._reading.clear()
        await self.first.close()
        await self.second.close()

    @property
    def carries(self) -> bool:
        return not self.first.trouble and self.first.carries

    @property
    def trouble(self) -> str:
        return self.first.trouble

    async def listen(self, key: str) -> None:
        await self.first.listen(key)
        await self.second.listen(key)

    async def publish(self, hints: Sequence[Hint]) -> None:
        await (self.second if self.first.trouble else self.first).publish(hints)

    async def receive(self, limit: int) -> Sequence[Hint]:
        """What comes first. A read that is under way is kept for the next call, so nothing gets lost between them."""
        for stream in (self.first, self.second):
            if stream not in self._reading.values():
                self._reading[asyncio.create_task(_read(stream, limit), name="perdure-receive")] = stream
        done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
        hints: list[Hint] = []
        for task in done:
            del self._reading[task]
            hints += task.result()
        return hints

    async def ack(self, hints: Sequence[Hint]) -> None:
        await self.first.ack(hints)
        await self.second.ack(hints)


async def _read(stream: Stream, limit: int) -> Sequence[Hint]:
    return await stream.receive(limit)
