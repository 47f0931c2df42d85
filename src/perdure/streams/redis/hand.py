"""What a worker has in its hands: hints that it was given and has not acked.

Rules kept here: the window is what the worker may have in hand from queues, and it is shut while the worker gets on
with nothing, so that a full worker leaves the work to others; an old hint no longer counts, because others claim it,
but it can still be acked; an entry is acked when all of its hints are given back; memory is bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from perdure.core.records import Hint
from perdure.streams.inbox import CAPACITY

#: A hand from which nothing was given for so many seconds belongs to a worker that has no room.
STALLED = 0.25


class Entry(NamedTuple):
    """Where a hint stands in Redis."""

    stream: str
    id: bytes


class _Given(NamedTuple):
    entry: Entry | None  # none if it never was in Redis
    age: int | None  # in whole patiences; none if it does not count


class Hand:
    """Up to `window` hints count, each for one to two times `patience`."""

    def __init__(self, window: int, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.window = window
        self._patience = patience
        self._clock = clock
        self._given: dict[Hint, deque[_Given]] = {}
        self._known: dict[Entry, int] = {}  # with how many of its hints are here
        self._counts: dict[int, int] = {}
        self._moved = 0.0

    @property
    def count(self) -> int:
        now = self._now()
        return self._counts.get(now, 0) + self._counts.get(now - 1, 0)

    @property
    def room(self) -> int:
        """How many more hints of queues it may be given; none while it does not get on with those that it has."""
        return self.window - self.count if self.moves else 0

    @property
    def moves(self) -> bool:
        """Whether the worker takes what it is given."""
        return self.count == 0 or self._clock() - self._moved < STALLED

    def knows(self, entry: Entry) -> bool:
        return entry in self._known

    def take(self, hint: Hint, entry: Entry | None, counts: bool = True) -> None:
        age = self._now() if counts else None
        if age is not None:
            if self.count == 0:
                self._moved = self._clock()
            if age not in self._counts:
                self._counts = {age: 0, age - 1: self._counts.get(age - 1, 0)}
            self._counts[age] += 1
        self._given.setdefault(hint, deque()).append(_Given(entry, age))
        if entry is not None:
            self._known[entry] = self._known.get(entry, 0) + 1
        if len(self._given) > CAPACITY:
            self._forget(next(iter(self._given)))

    def give(self, hints: Iterable[Hint]) -> list[Entry]:
        """The worker is done with these: what is to be acked in Redis."""
        entries: list[Entry] = []
        for hint in hints:
            given = self._given.get(hint)
            if not given:
                continue
            self._moved = self._clock()
            entry = self._drop(given.popleft())
            if entry is not None:
                entries.append(entry)
            if not given:
                del self._given[hint]
        return entries

    def lose(self, hints: Iterable[Hint], entry: Entry) -> None:
        """The entry comes once more: it is what comes now that will be given back."""
        for hint in dict.fromkeys(hints):
            given = self._given.pop(hint, deque())
            others = deque(one for one in given if one.entry != entry)
            for one in given:
                if one.entry == entry:
                    self._drop(one)
            if others:
                self._given[hint] = others

    def _forget(self, hint: Hint) -> None:
        for given in self._given.pop(hint):
            self._drop(given)

    def _drop(self, given: _Given) -> Entry | None:
        if given.age in self._counts:
            self._counts[given.age] -= 1
        entry = given.entry
        if entry is None:
            return None
        left = self._known.pop(entry) - 1
        if left:
            self._known[entry] = left
        return None if left else entry

    def _now(self) -> int:
        return int(self._clock() / self._patience)
