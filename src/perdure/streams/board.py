"""A board on which the workers of one database leave notes for each other, and which everybody reads.

What streams have in common that go through a channel of the store's own. Rules kept here: what this worker serves
itself never leaves it; work for a queue is a nudge to look at it, and however much work there is, it is one nudge until
that is sent, and one until it is received; what waits to be sent has a bound; publishing never waits and never raises;
a note that cannot be read is left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from perdure.core.records import Hint
from perdure.errors import UsageError
from perdure.streams.inbox import Inbox

#: Hints that wait to be sent while the server is away; beyond it the oldest are dropped.
WAITING = 10_000
#: How long what was published last is waited for when a stream is closed, in seconds.
FAREWELL = 2.0

log = logging.getLogger("perdure.streams")


class Note(Struct, frozen=True, array_like=True):
    """Queues to look at, then hints for workers, ends of executions and other news."""

    queues: list[str]
    hints: list[Hint]


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Note).decode


class Board:
    """The side of one worker, for as long as its stream is open."""

    def __init__(self, me: str, queues: Sequence[str]) -> None:
        self._inbox = Inbox(me, queues)
        self._nudged: set[str] = set()  # queues whose nudge waits in the inbox
        self._queues: dict[str, None] = {}  # to be nudged elsewhere
        self._hints: dict[Hint, None] = {}  # to be sent
        self.bell = asyncio.Event()  # there is something to be sent
        self._calm = asyncio.Event()  # nothing is, and nothing is being sent
        self._calm.set()

    def publish(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            here = self._inbox.wants(hint) and not hint.away
            if here:
                self._inbox.put(hint)
            if hint.ended or hint.news or (hint.to is not None and not here):
                self._hints[hint] = None
            elif hint.to is None and not here:
                self._queues[hint.queue] = None
        while len(self._hints) > WAITING:
            del self._hints[next(iter(self._hints))]
        if self._hints or self._queues:
            self.bell.set()
            self._calm.clear()

    def take(self) -> Note:
        """All that is to be sent; whoever asks says when it was `sent`, or could not be."""
        self.bell.clear()
        note = Note(list(self._queues), list(self._hints))
        self._queues, self._hints = {}, {}
        return note

    def sent(self) -> None:
        if not self._hints and not self._queues:
            self._calm.set()

    async def farewell(self) -> None:
        """Let what was published last be sent, but not wait for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self._calm.wait()

    def arrived(self, text: str | bytes) -> None:
        """A note of somebody else's."""
        try:
            note = decode(text)
        except msgspec.MsgspecError as error:
            log.warning("a note of another worker cannot be read: %s", error)
            return
        self._nudge(self._inbox.queues.intersection(note.queues))
        for hint in note.hints:
            if self._inbox.wants(hint):
                self._inbox.put(hint)

    def look(self) -> None:
        """Tell our own worker to look at all that it serves: nobody knows what was missed."""
        self._nudge(self._inbox.queues)

    def _nudge(self, queues: Iterable[str]) -> None:
        for queue in queues:
            if queue not in self._nudged:
                self._nudged.add(queue)
                self._inbox.put(Hint("", queue))

    async def receive(self, limit: int) -> list[Hint]:
        hints = await self._inbox.take(limit)
        for hint in hints:
            if not hint.key and not hint.news:
                self._nudged.discard(hint.queue)
        return hints

    def close(self) -> None:
        self._inbox.close()


class BoardStream:
    """What a Stream over a board need not say again; it has a board while it is open."""

    _board: Board | None = None

    @property
    def carries(self) -> bool:
        return False

    async def listen(self, key: str) -> None:
        pass  # every end is told to everybody

    async def publish(self, hints: Sequence[Hint]) -> None:
        if self._board is not None:
            self._board.publish(hints)

    async def receive(self, limit: int) -> Sequence[Hint]:
        if self._board is None:
            raise UsageError("the stream is not open: nothing can be received")
        return await self._board.receive(limit)

    async def ack(self, hints: Sequence[Hint]) -> None:
        pass
