"""Places for attempts: so many at once in a worker, and of one action where that has limits of its own.

Rules kept here: who waits for a place of its action takes none of the worker's, so a full action holds up nobody else;
tenants are served in turn, each in the order of arrival. Those who lose patience leave a few at a time: where everybody
is busy it helps nobody to send everything away. Of those that run apart already, and wait for a place of the worker,
only a few stay: they go back to where every worker that has a place finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.core.fairness import RoundRobin
from perdure.runtime.attempts.fleet import Fleet
from perdure.runtime.managing.locks import Lock


class Crowded(Exception):
    """No place came free in time."""


class Exit:
    """Lets a few through in a time."""

    def __init__(self, few: int) -> None:
        self._few = few
        self._since = float("-inf")
        self._gone = 0

    def lets(self, time: float) -> bool:
        """Whether one more may go; `time` is that of the few, in seconds."""
        now = asyncio.get_running_loop().time()
        if now - self._since >= time:
            self._since, self._gone = now, 0
        self._gone += 1
        return self._gone <= self._few


class Slots:
    """A number of places, and the line of those who wait for one."""

    def __init__(self, count: int) -> None:
        self.free = count
        self.waiting = 0
        self.reserve = max(1, count // 10)  # so many may wait without being too many
        self.freed: Callable[[], object] | None = None  # called once, when fewer than these wait
        self._exits = {apart: Exit(self.reserve) for apart in (False, True)}
        self._line: RoundRobin[asyncio.Future[None]] = RoundRobin()
        self._closed = False

    def enter_at_once(self) -> bool:
        if self.free <= 0 or self._closed:
            return False
        self.free -= 1
        return True

    async def enter(self, tenant: str, patience: float | None = None, apart: bool = False) -> None:
        """Take a place; after `patience` seconds in the line, give up."""
        if self._closed:
            raise asyncio.CancelledError("no more attempts begin here")
        if self.enter_at_once():
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._line.put(tenant, turn)
        alarm = None if patience is None else loop.call_later(patience, self._give_up, turn, patience, apart)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it was ours already
            elif turn.cancelled():
                self.waiting -= 1
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    def _give_up(self, turn: asyncio.Future[None], patience: float, apart: bool) -> None:
        if turn.done():
            return
        if (apart and self.waiting > self.reserve) or self._exits[apart].lets(patience):
            self.waiting -= 1  # at once: others may ask in the same moment
            turn.set_exception(Crowded())
        else:
            asyncio.get_running_loop().call_later(patience, self._give_up, turn, patience, apart)

    def leave(self) -> None:
        while self._line:
            turn = self._line.take()
            if not turn.done():
                self.waiting -= 1
                turn.set_result(None)
                break
        else:
            self.free += 1
        if self.freed is not None and self.waiting < self.reserve:
            freed, self.freed = self.freed, None
            freed()

    def close(self) -> None:
        """Call off those who wait, and whoever comes."""
        self._closed = True
        while self._line:
            self._line.take().cancel()


class ActionSlots:
    """The places of a worker's attempts."""

    def __init__(self, concurrency: int, fleet: Fleet | None = None) -> None:
        self._count = concurrency
        self._fleet = fleet
        self._worker = Slots(concurrency)
        self._actions: dict[str, Slots] = {}

    @property
    def room(self) -> int:
        """For how many more attempts there is room: those who would find a place, and a few to wait for the next."""
        return self._worker.free + self._worker.reserve - self._worker.waiting

    def when_free(self, call: Callable[[], object]) -> None:
        """Call it once, when there is room again; at once if a place is free."""
        if self._worker.free > 0:
            call()
        else:
            self._worker.freed = call

    @property
    def taken(self) -> int:
        """How many of the worker's places are in use."""
        return self._count - self._worker.free

    def enter_at_once(self) -> bool:
        """Take a place of the worker, if one is free."""
        return self._worker.enter_at_once()

    async def enter(
        self,
        tenant: str,
        action: str,
        limit: int | None,
        patience: float | None = None,
        everywhere: int | None = None,
        apart: bool = False,
    ) -> Lock | None:
        """Take a place of the action, if these are limited, and then one of the worker.

        Where the places of the action are also limited `everywhere`, the one that was taken is given, for `leave`.
        """
        own = self._own(action, limit)
        if own is None:
            await self._worker.enter(tenant, patience, apart)
            return None
        place: Lock | None = None
        # Elsewhere there are no other places than those that are waited for here.
        await own.enter(tenant, patience if everywhere is None else None)
        try:
            if everywhere is not None and self._fleet is not None:
                place = await self._fleet.enter(action, everywhere)
            await self._worker.enter(tenant, patience, apart)
        except (asyncio.CancelledError, Crowded):
            own.leave()
            self._give_back(action, place)
            raise
        return place

    def leave(self, action: str, limit: int | None, place: Lock | None = None) -> None:
        self._worker.leave()
        if (own := self._own(action, limit) if limit is not None else None) is not None:
            own.leave()
            self._give_back(action, place)

    def _give_back(self, action: str, place: Lock | None) -> None:
        if place is not None and self._fleet is not None:
            self._fleet.leave(action, place)

    def close(self) -> None:
        """No more attempts begin: those that wait are called off."""
        for slots in (self._worker, *self._actions.values()):
            slots.close()
        if self._fleet is not None:
            self._fleet.close()

    def _own(self, action: str, limit: int | None) -> Slots | None:
        if limit is None:
            return None
        own = self._actions.get(action)
        if own is None:
            own = self._actions[action] = Slots(limit)
        return own
