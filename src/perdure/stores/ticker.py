"""What stores agree on: a clock that never runs backwards, when lost hints are made up for, what a plain step is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from perdure.core.events import NUMBERS, Restarted, TakenOver
from perdure.core.records import Commit

#: An unanswered hint is repeated after grace * 2**n, n at most this.
DOUBLINGS = 5
RESTARTED = NUMBERS[Restarted]
#: When mail is due that must not wake its execution by itself, for that has to wait for its lane.
NEVER = 1 << 62
TAKEN_OVER = NUMBERS[TakenOver]


class Ticker:
    """A clock in microseconds that never runs backwards, whatever the host's clock does."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or host_clock
        self._last = 0
        self._lock = threading.Lock()

    def now(self) -> int:
        return self.seen(self._clock())

    def seen(self, at: int) -> int:
        """Never fall behind a time that the store wrote earlier."""
        with self._lock:
            self._last = max(self._last, at)
            return self._last


def host_clock() -> int:
    return time.time_ns() // 1000


def is_step(commit: Commit) -> bool:
    """Rows and nothing else; a checkpoint also moves the base."""
    if commit.settle is not None or commit.status is not None or commit.fired is not None:
        return False
    if commit.done or commit.children or commit.mail:
        return False
    for row in commit.rows:  # noqa: SIM110 - this is asked of every commit, and a generator costs more
        if row.type % 1000 == RESTARTED:
            return False
    return True
