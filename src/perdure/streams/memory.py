"""The stream of one process: hints go from hand to hand through a hub.

Rules kept here: a hint is expendable, so nothing waits for room and nobody is told of a loss; a hint that was put into
an inbox leaves it only through a `receive` that returns it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from perdure.core.records import Hint
from perdure.errors import UsageError

#: Beyond this many unread hints the oldest are dropped; their executions are still due in the store.
CAPACITY = 100_000


class Inbox:
    """The hints that wait for one worker."""

    def __init__(self, me: str, queues: Sequence[str]) -> None:
        self.me = me
        self.queues = frozenset(queues)
        self._hints: deque[Hint] = deque(maxlen=CAPACITY)
        self._bell = asyncio.Event()
        self._open = True

    def wants(self, hint: Hint) -> bool:
        """News is for everybody, a hint with an address for that worker, work for those who serve the queue."""
        if hint.ended:
            return True
        return hint.to == self.me if hint.to is not None else hint.queue in self.queues

    def put(self, hint: Hint) -> None:
        self._hints.append(hint)
        self._bell.set()

    async def take(self, limit: int) -> list[Hint]:
        # Nothing awaits between the bell and the hints, so a cancelled receiver leaves them for the next one.
        while not self._hints:
            if not self._open:
                raise UsageError("the stream is closed: nothing can be received any more")
            self._bell.clear()
            await self._bell.wait()
        return [self._hints.popleft() for _ in range(min(limit, len(self._hints)))]

    def close(self) -> None:
        """Wake who waits: nothing will come any more."""
        self._open = False
        self._hints.clear()
        self._bell.set()


class Hub:
    """Where the workers of one process find each other."""

    def __init__(self) -> None:
        self._inboxes: dict[str, Inbox] = {}
        self._turn = 0

    def join(self, inbox: Inbox) -> None:
        self._inboxes[inbox.me] = inbox

    def leave(self, inbox: Inbox) -> None:
        if self._inboxes.get(inbox.me) is inbox:
            del self._inboxes[inbox.me]

    def route(self, hint: Hint, near: Inbox | None) -> list[Inbox]:
        """Who gets a hint; work goes to `near` if it serves the queue, else to the others in turn."""
        fits = [inbox for inbox in self._inboxes.values() if inbox.wants(hint)]
        if hint.ended or len(fits) < 2:
            return fits
        if near in fits:
            return [near]
        self._turn += 1
        return [fits[self._turn % len(fits)]]


class MemoryStream:
    """A Stream inside one process; streams that share a hub are several workers.

    >>> hub = Hub()
    >>> here, there = MemoryStream(hub), MemoryStream(hub)
    """

    def __init__(self, hub: Hub | None = None) -> None:
        self._hub = hub or Hub()
        self._inbox: Inbox | None = None

    async def open(self, me: str, queues: Sequence[str]) -> None:
        self._inbox = Inbox(me, queues)
        self._hub.join(self._inbox)

    async def close(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            self._hub.leave(inbox)
            inbox.close()

    async def publish(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            for inbox in self._hub.route(hint, self._inbox):
                inbox.put(hint)

    async def receive(self, limit: int) -> Sequence[Hint]:
        if self._inbox is None:
            raise UsageError("the stream is not open: nothing can be received")
        return await self._inbox.take(limit)

    async def ack(self, hints: Sequence[Hint]) -> None:
        pass
