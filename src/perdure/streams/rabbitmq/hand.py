"""What a worker has in its hands: hints that it was given and has not acked.

Rules kept here: a message is acked when all of its hints are given back; what lies here for longer than the patience
is let go of, for others or because the store has it due by now, and what the worker has not even read of it then is
not given to it any more; what came over a connection that is gone cannot be acked, but is still work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from perdure.core.records import Hint

#: A hand from which nothing was given for so many seconds belongs to a worker that has no room.
STALLED = 0.25


class Parcel:
    """Hints that came together; without a tag they need no ack."""

    __slots__ = ("left", "since", "tag")

    def __init__(self, tag: int | None, left: int, since: float) -> None:
        self.tag = tag
        self.left = left
        self.since = since


class Hand:
    """A hint that never was in a queue is let go of after `patience` seconds, a message of a queue after `idle`."""

    def __init__(self, patience: float, idle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._idle = idle
        self._clock = clock
        self._given: dict[Hint, deque[Parcel]] = {}
        self._moved = 0.0
        self.count = 0

    @property
    def moves(self) -> bool:
        """Whether the worker takes what it is given."""
        return self.count == 0 or self._clock() - self._moved < STALLED

    def copies(self, hint: Hint) -> int:
        """How often it was given and is not given back."""
        return len(self._given.get(hint, ()))

    def take(self, hints: Iterable[Hint], tag: int | None = None) -> None:
        those = list(hints)
        now = self._clock()
        if self.count == 0:
            self._moved = now
        parcel = Parcel(tag, len(those), now)
        for hint in those:
            self._given.setdefault(hint, deque()).append(parcel)
        self.count += len(those)

    def give(self, hints: Iterable[Hint]) -> list[int]:
        """The worker is done with these: the tags of the messages that are to be acked."""
        tags: list[int] = []
        for hint in hints:
            parcels = self._given.get(hint)
            if parcels is None:
                continue
            parcel = parcels.popleft()
            if not parcels:
                del self._given[hint]
            self.count -= 1
            self._moved = self._clock()
            parcel.left -= 1
            if not parcel.left and parcel.tag is not None:
                tags.append(parcel.tag)
        return tags

    def let_go(self) -> list[int]:
        """Forget what lies here for too long: the tags of the messages that others may have."""
        now = self._clock()
        tags: dict[int, None] = {}
        for hint, parcels in list(self._given.items()):
            late = [parcel for parcel in parcels if now - parcel.since >= self._limit(parcel)]
            if not late:
                continue
            tags.update(dict.fromkeys(parcel.tag for parcel in late if parcel.tag is not None))
            self.count -= len(late)
            rest = deque(parcel for parcel in parcels if parcel not in late)
            if rest:
                self._given[hint] = rest
            else:
                del self._given[hint]
        return list(tags)

    def loosen(self) -> None:
        """The connection that they came over is gone: the broker gives them to somebody again."""
        for parcels in self._given.values():
            for parcel in parcels:
                parcel.tag = None

    def _limit(self, parcel: Parcel) -> float:
        return self._patience if parcel.tag is None else self._idle
