"""What a worker has in its hands: hints that it was given and has not acked.

Rules kept here: the window is what the worker may have in hand from queues, and it is shut while the worker gets on
with nothing, so that a full worker leaves the work to others; an old hint no longer counts, because others are given
it, but it can still be acked; a message is acked when all of its hints are given back; memory is bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec import Struct

from perdure.core.records import Hint
from perdure.streams.inbox import CAPACITY

#: A hand from which nothing was given for so many seconds belongs to a worker that has no room.
STALLED = 0.25


class Message(Struct, eq=False):
    """A message of a queue: where to ack it, and how many of its hints are still in hand."""

    reply: str
    left: int


class _Given(Struct, eq=False):
    message: Message | None  # none if it never was in NATS
    at: float
    counts: bool = True


class Hand:
    """Up to `window` hints count, each for `patience` seconds."""

    def __init__(self, window: int, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.window = window
        self._patience = patience
        self._clock = clock
        self._given: dict[Hint, deque[_Given]] = {}
        self._counted: deque[_Given] = deque()  # by age; some of them may be given back already
        self._count = 0
        self._moved = 0.0
        self._bell = asyncio.Event()

    @property
    def count(self) -> int:
        old = self._clock() - self._patience
        while self._counted and (self._counted[0].at <= old or not self._counted[0].counts):
            self._uncount(self._counted.popleft())
        return self._count

    @property
    def room(self) -> int:
        """How many more hints of queues it may be given; none while it does not get on with those that it has."""
        return self.window - self.count if self.moves else 0

    @property
    def moves(self) -> bool:
        """Whether the worker takes what it is given."""
        return self.count == 0 or self._clock() - self._moved < STALLED

    def take(self, hint: Hint, message: Message | None) -> None:
        if self.count == 0:
            self._moved = self._clock()
        given = _Given(message, self._clock())
        self._count += 1
        self._counted.append(given)
        self._given.setdefault(hint, deque()).append(given)
        if len(self._given) > CAPACITY:
            for one in self._given.pop(next(iter(self._given))):
                self._uncount(one)

    def give(self, hints: Iterable[Hint]) -> list[str]:
        """The worker is done with these: where to ack in NATS."""
        replies: list[str] = []
        for hint in hints:
            given = self._given.get(hint)
            if not given:
                continue
            self._moved = self._clock()
            one = given.popleft()
            self._uncount(one)
            if one.message is not None:
                one.message.left -= 1
                if one.message.left == 0:
                    replies.append(one.message.reply)
            if not given:
                del self._given[hint]
        self._bell.set()
        return replies

    async def wait(self, patience: float) -> None:
        """For something to be given back. Old hints make room as well, and nobody tells of that: not for too long."""
        self._bell.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._bell.wait()

    def left(self) -> list[str]:
        """Where to say that somebody else should have what is in hand."""
        messages = [one.message for given in self._given.values() for one in given]
        return list(dict.fromkeys(message.reply for message in messages if message is not None))

    def forget(self) -> None:
        """What was given does not stand in NATS any more. Another message may stand in its place: do not ack it."""
        for given in self._given.values():
            for one in given:
                one.message = None

    def _uncount(self, given: _Given) -> None:
        if given.counts:
            given.counts = False
            self._count -= 1
