"""The stream of one process: hints go from hand to hand through a hub.

Rules kept here: a hint is expendable, so nothing waits for room and nobody is told of a loss; a hint that was put into
an inbox leaves it only through a `receive` that returns it.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.records import Hint
from perdure.errors import UsageError
from perdure.streams.inbox import Inbox


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
        if hint.ended or hint.news or len(fits) < 2:
            return fits
        if near in fits and not hint.away:
            return [near]
        if near in fits:
            fits.remove(near)
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

    @property
    def carries(self) -> bool:
        return True

    @property
    def trouble(self) -> str:
        return ""

    async def listen(self, key: str) -> None:
        pass

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
