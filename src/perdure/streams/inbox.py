"""The hints that wait for one worker of this process: what every stream ends in."""

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
        """An end is news for everybody, other news for all workers, a hint with an address for that worker, work for
        those who serve the queue."""
        if hint.news:
            return bool(self.queues)
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
