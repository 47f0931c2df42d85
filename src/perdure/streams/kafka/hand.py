"""What a worker has in its hands, and how far a partition is confirmed.

Kafka knows one number for each partition: everything before it is done. Rules kept here: it rises only over hints that
were acked, without a gap; one that nobody acks holds it back for `patience` seconds and no longer, because the store's
due times make up for it; a partition that was taken from us is forgotten, and whoever has it now begins at that number.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from perdure.core.records import Hint
from perdure.streams.inbox import CAPACITY


class Part(NamedTuple):
    """A partition."""

    topic: str
    number: int


class Place(NamedTuple):
    """Where a hint stands in Kafka."""

    part: Part
    offset: int


class _Taken(NamedTuple):
    hint: Hint
    place: Place | None  # none if it never was in Kafka
    since: float


class _Reached:
    """One partition: how far it was read, and which of it is not acked."""

    def __init__(self) -> None:
        self.read = 0
        self.said = -1
        self.waiting: dict[int, None] = {}  # ascending, as it was read

    @property
    def done(self) -> int:
        return next(iter(self.waiting), self.read)


class Hand:
    """Hints that were taken, for `patience` seconds each; without `confirms` they are done as soon as they come."""

    def __init__(self, patience: float, *, confirms: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._confirms = confirms
        self._clock = clock
        self._taken: dict[int, _Taken] = {}  # the oldest first
        self._of: dict[Hint, deque[int]] = {}
        self._parts: dict[Part, _Reached] = {}
        self._serial = 0

    @property
    def count(self) -> int:
        return len(self._taken)

    def take(self, hint: Hint, place: Place | None = None) -> None:
        if place is not None:
            self.read(place)
            if self._confirms:
                self._parts[place.part].waiting[place.offset] = None
        self._serial += 1
        self._taken[self._serial] = _Taken(hint, place, self._clock())
        self._of.setdefault(hint, deque()).append(self._serial)
        if len(self._taken) > CAPACITY:
            self._forget(next(iter(self._taken)))

    def read(self, place: Place) -> None:
        """It was read; there may be nothing in it to wait for."""
        reached = self._parts.setdefault(place.part, _Reached())
        reached.read = max(reached.read, place.offset + 1)

    def give(self, hints: Iterable[Hint]) -> None:
        """The worker is done with these."""
        for hint in hints:
            if serials := self._of.get(hint):
                self._forget(serials[0])

    def lose(self, parts: Iterable[Part]) -> None:
        """These are somebody else's now."""
        for part in parts:
            self._parts.pop(part, None)

    def age(self) -> None:
        """Wait no longer for what is too old."""
        before = self._clock() - self._patience
        while self._taken and next(iter(self._taken.values())).since <= before:
            self._forget(next(iter(self._taken)))

    def done(self) -> dict[Part, int]:
        """How far each partition is confirmed, where that is further than was said before."""
        news: dict[Part, int] = {}
        for part, reached in self._parts.items():
            if reached.done > reached.said:
                news[part] = reached.said = reached.done
        return news

    def _forget(self, serial: int) -> None:
        hint, place, _ = self._taken.pop(serial)
        serials = self._of[hint]
        serials.remove(serial)
        if not serials:
            del self._of[hint]
        if place is not None and (reached := self._parts.get(place.part)) is not None:
            reached.waiting.pop(place.offset, None)
