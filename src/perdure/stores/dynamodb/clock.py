"""What time it is. DynamoDB has no clock to ask, but its answers carry a date, in whole seconds.

Rules kept here: each answer says that the server's clock was within one second of its date while the call was under
way; where all of them leave room for the host's clock, that is right, and otherwise it is moved by as little as makes
it agree. So hosts whose clocks are off by minutes still agree to within a second or so. What is left of the skew makes
leases and timers early or late by as much; tokens and versions, not clocks, keep what is written right.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from perdure.stores.ticker import Ticker, host_clock

SECOND = 1_000_000
#: Two clocks drift apart by less than this part of the time that passes.
DRIFT = 1e-4


class Clock:
    """The host's clock in microseconds, corrected by the dates of answers; a test's clock is never corrected."""

    def __init__(self, given: Callable[[], int] | None = None) -> None:
        self._given = given
        self._ticker = Ticker(given or self._corrected)
        self._least, self._most = float("-inf"), float("inf")  # how far the server is ahead
        self._seen = time.monotonic()
        self._lock = threading.Lock()

    def now(self) -> int:
        return self._ticker.now()

    @property
    def correction(self) -> int:
        """How many microseconds are added to the host's clock."""
        return round(min(max(0.0, self._least), self._most))

    def _corrected(self) -> int:
        return host_clock() + self.correction

    def observe(self, date: str | None, sent: int, received: int) -> None:
        """An answer of this date to a call that was under way between these two times of the host's clock.

        >>> clock = Clock()
        >>> clock.observe("Tue, 14 Nov 2023 22:13:20 GMT", 1_700_000_060_000_000, 1_700_000_060_010_000)
        >>> clock.correction
        -59000000
        """
        if self._given is not None or date is None:
            return
        try:
            at = int(parsedate_to_datetime(date).timestamp()) * SECOND
        except (ValueError, TypeError):
            return
        least, most = at - received, at + SECOND - sent
        with self._lock:
            here = time.monotonic()
            drift = (here - self._seen) * SECOND * DRIFT
            self._seen = here
            both = max(least, self._least - drift), min(most, self._most + drift)
            # If they contradict each other, somebody has set a clock: the newest answer counts.
            self._least, self._most = both if both[0] <= both[1] else (least, most)
