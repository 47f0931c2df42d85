"""Who waits for the end of which execution in this process, and what is known of ends that nobody has asked for yet.

Rules kept here: news may get lost with its hint, so whoever has waited for `grace` is told to look; the end of an
execution that was started here is kept for whoever asks, for a while, but not a long result.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeAlias

from perdure.core.records import SHORT, End, Hint

#: Executions whose end is kept for whoever asks.
_KEPT = 10_000


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
        self._line: deque[tuple[float, News]] = deque()  # who is told to look next
        self._alarm: asyncio.TimerHandle | None = None
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

    def of(self, key: str) -> News:
        """Done when the execution has ended, as far as this process hears of it, or when it is time to look."""
        loop = asyncio.get_running_loop()
        future: News = loop.create_future()
        known = self._expected.pop(key, _PENDING)
        if not isinstance(known, _Pending):  # it was quicker than whoever asks
            future.set_result(known)
            return future
        self._futures.setdefault(key, set()).add(future)
        self._line.append((loop.time() + self._grace, future))
        if self._alarm is None:
            self._alarm = loop.call_later(self._grace, self._time_to_look)
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

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._line.clear()
        self._expected.clear()
        self._watches.clear()

    def _time_to_look(self) -> None:
        loop = asyncio.get_running_loop()
        self._alarm = None
        while self._line:
            until, future = self._line[0]
            if not future.done():
                if until > loop.time():
                    self._alarm = loop.call_at(until, self._time_to_look)
                    return
                future.set_result(None)
            self._line.popleft()
