"""Who waits for the end of which execution in this process, and what is known of ends that nobody has asked for yet.

Rules kept here: news may get lost with its hint, so whoever has waited for `grace` is told to look, and later and later
from then on: a long wait costs next to nothing. The end of an execution that was started here is kept for whoever asks,
for a while, but not a long result.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

from perdure.core.records import SHORT, End, Hint

#: Executions whose end is kept for whoever asks.
_KEPT = 10_000
#: The time between two looks doubles so often.
_DOUBLINGS = 5


def news_of(key: str, end: End) -> Hint:
    if end.result is None or len(end.result) > SHORT:
        return Hint(key, ended=True)
    return Hint(key, ended=True, status=end.status, result=end.result.decode())


def end_of(hint: Hint) -> End | None:
    """The end of an execution as the news tells it, if it does."""
    match hint.status:
        case "completed" | "failed" | "cancelled" as status:
            return End(status, hint.result.encode())
        case _:
            return None


class _Pending:
    """Not known yet."""


_PENDING = _Pending()
#: The end, as far as it is known; None tells to look.
News: TypeAlias = asyncio.Future[End | None]


class Ends:
    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._futures: dict[str, set[News]] = {}
        self._line: list[tuple[float, int, News]] = []  # who is told to look next, by time
        self._numbers = itertools.count()
        self._alarm: asyncio.Handle | None = None
        self._rings = 0.0  # when the alarm does: not every loop's handles tell
        self._expected: OrderedDict[str, End | _Pending | None] = OrderedDict()
        self._watches: dict[str, Callable[[End | None], None]] = {}

    def watch(self, key: str, tell: Callable[[End | None], None]) -> None:
        """Somebody wants to hear of this name as often as there is news."""
        self._watches[key] = tell

    def unwatch(self, key: str) -> None:
        self._watches.pop(key, None)

    def expect(self, key: str) -> None:
        """This execution is about to be started here."""
        if len(self._expected) >= _KEPT:
            self._expected.popitem(last=False)
        self._expected[key] = _PENDING

    def expects(self, key: str) -> bool:
        return key in self._expected

    def forget(self, key: str) -> None:
        self._expected.pop(key, None)

    def of(self, key: str, looks: int = 0) -> News:
        """Done when the execution has ended, as far as this process hears of it, or when it is time to look again.

        `looks` is how often that was the case before.
        """
        loop = asyncio.get_running_loop()
        future: News = loop.create_future()
        known = self._expected.pop(key, _PENDING)
        if not isinstance(known, _Pending):  # it was quicker than whoever asks
            future.set_result(known)
            return future
        self._futures.setdefault(key, set()).add(future)
        until = loop.time() + self._grace * 2 ** min(looks, _DOUBLINGS)
        heappush(self._line, (until, next(self._numbers), future))
        if self._alarm is None or until < self._rings:
            self._ring_at(until)
        return future

    def leave(self, key: str, future: News) -> None:
        """Nobody waits for this one any more."""
        future.cancel()
        waiting = self._futures.get(key)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._futures[key]

    def came(self, key: str, end: End | None = None) -> None:
        """An execution has ended."""
        if (tell := self._watches.get(key)) is not None:
            tell(end)
        if key in self._expected:
            self._expected[key] = end if end is not None and len(end.result or b"") <= SHORT else None
        for future in self._futures.get(key, ()):
            if not future.done():
                future.set_result(end)

    def missed(self) -> None:
        """Nobody has listened for a while: whoever waits has to look, and to listen anew."""
        for tell in list(self._watches.values()):
            tell(None)
        for future in [future for futures in self._futures.values() for future in futures]:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._line.clear()
        self._expected.clear()
        self._watches.clear()

    def _ring_at(self, time: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._rings = time
        self._alarm = asyncio.get_running_loop().call_at(time, self._time_to_look)

    def _time_to_look(self) -> None:
        self._alarm = None
        now = max(self._rings, asyncio.get_running_loop().time())  # a loop may ring a little early
        while self._line:
            until, _, future = self._line[0]
            if not future.done():
                if until > now:
                    self._ring_at(until)
                    return
                future.set_result(None)
            heappop(self._line)
