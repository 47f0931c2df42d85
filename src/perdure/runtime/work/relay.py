"""The relay: asks the store what is due, takes it or hints it to its holder, and sleeps until the next due time.

Rules kept here: one look at a time, and none before something is due but one that is capped: hints may get lost, and a
dead worker's lease ends without a word. A full worker takes nothing; it only looks into the mailboxes of what it holds.
If something has been due for longer than a hint takes, some of the places that come free next are for what the store
gives, tenants in turn: a stream has one order, and in it one tenant's hints may be behind very many of another's.
One that has no place for another attempt leaves actions that run apart to others, until a place is free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from perdure.core.records import ACTION, Due, Hint
from perdure.flows.registry import Registry
from perdure.ports import Store, Stream
from perdure.runtime.attempts.attempt import Attempts
from perdure.runtime.clock import Clock
from perdure.runtime.managing.tenants import Resting
from perdure.runtime.settings import Settings
from perdure.runtime.work.intake import Intake
from perdure.runtime.work.mailman import Mailman
from perdure.runtime.work.quotas import EVERY, Quotas
from perdure.runtime.work.rooms import Rooms

T = TypeVar("T")

#: Later than anything is due.
FAR = 2**63
#: Of a full worker's places, one in so many is spared, once in every `grace`.
_SPARED = 2
#: Who is full, or has hinted something, does not come back to it before so many microseconds, however short `grace` is.
_AGAIN = 100_000


class Floor(Protocol):
    """What the relay needs of the worker."""

    me: str
    settings: Settings
    draining: bool
    attempts: Attempts

    def spawn(self, errand: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]: ...


class Relay:
    def __init__(
        self,
        floor: Floor,
        rooms: Rooms,
        resting: Resting,
        quotas: Quotas,
        store: Store,
        stream: Stream,
        registry: Registry,
        clock: Clock,
        intake: Intake,
        mailman: Mailman,
    ) -> None:
        self._floor = floor
        self._rooms = rooms
        self._resting = resting
        self._quotas = quotas
        self._store = store
        self._stream = stream
        self._registry = registry
        self._clock = clock
        self._intake = intake
        self._mailman = mailman
        self._grace = max(int(floor.settings.grace * 1e6), _AGAIN)
        self._nudge = asyncio.Event()
        self._next_look: int = 0
        self._next_round: int = 0  # to all mailboxes, when full
        self._crowded = False  # there was no place for another attempt when it was last looked

    def look_at(self, due: int) -> None:
        """Something is due then."""
        if due < self._next_look:
            self._next_look = due
            self._nudge.set()

    def look_when_free(self) -> None:
        """Something waits for a place."""
        self._floor.attempts.slots.when_free(lambda: self.look_at(self._clock.now()))

    async def relay(self) -> None:
        try:
            await self._look_again_and_again()
        finally:
            self._rooms.spare(0)  # when looking fails nobody comes for these places, but hints do

    async def _look_again_and_again(self) -> None:
        quiet_since = asyncio.get_running_loop().time()
        expected = True  # something should be due; else the store is asked for a time first, and for no more
        while True:
            self._next_look = FAR  # what we are told from here on counts: it may not be in any answer of this look
            queues, definitions = self._floor.settings.queue_names, self._taken()
            due = FAR if expected else await self._first_due(queues, definitions)
            now = await self._clock.sync()
            full = self._rooms.free() <= 0
            goes_round = (full or self._crowded) and now >= self._next_round
            if goes_round:
                # Hints for what is held may have got lost, and what is due is not asked for, or not all of it.
                self._next_round = now + self._grace
                self._mailman.call_round()
            if not full and not self._floor.draining:
                await self._look_who_waits()
                expected = expected or min(due, self._next_look) <= now
                limit = min(self._rooms.free(), 500)
                found, more = await self._take(queues, definitions, limit) if expected else (0, False)
                self._rooms.spare(max(0, self._rooms.spared - found) if more else 0)
                if found:
                    quiet_since = asyncio.get_running_loop().time()
                    if more:
                        continue
            if expected:
                due = await self._first_due(queues, self._taken())
            if full and goes_round and due <= now:
                self._rooms.spare(-(-self._floor.settings.resident // _SPARED))
            quiet = asyncio.get_running_loop().time() - quiet_since > 60
            cap = now + int(self._sleep(quiet) * 1e6)
            full = self._rooms.free() <= 0  # a place may have come free while the store was asked
            soonest = now + (self._grace if full or self._floor.draining else 1000)
            self._next_look = max(min(due, self._next_look, cap), soonest)
            await self._sleep_until_then()
            expected = self._next_look < cap

    def _taken(self) -> list[str]:
        """What can be taken: all that is served, or, where there is no place for another attempt, all but actions."""
        served = self._registry.served()
        self._crowded = self._floor.attempts.slots.room <= 0
        if not self._crowded:
            return served
        self.look_when_free()
        return [one for one in served if not one.startswith(ACTION)]

    async def _take(self, queues: Sequence[str], definitions: Sequence[str], limit: int) -> tuple[int, bool]:
        """Take what is due, or hint it; how many these are, and whether there may be more.

        What was claimed is due again only later, so it is not forgotten when we are told to stop.
        """

        async def take() -> tuple[int, bool]:
            dues, more = await self._claim(queues, definitions, limit)
            await self._hint(dues)
            return len(dues), more

        return await asyncio.shield(self._floor.spawn(take(), "perdure-claim"))

    async def _claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int) -> tuple[list[Due], bool]:
        """What is due, no more actions than there is room for; and whether there may be more."""
        if limit <= 0:  # others have moved in meanwhile; to some stores none is as much as all
            return [], True
        room = self._floor.attempts.slots.room
        if self._crowded or room >= limit:
            dues = await self._store.claim(queues, definitions, limit, self._grace)
            return dues, len(dues) == limit
        others = [one for one in definitions if not one.startswith(ACTION)]
        dues = await self._store.claim(queues, others, limit, self._grace)
        most = min(room, limit - len(dues))
        if most <= 0:
            return dues, True
        actions = [one for one in definitions if one.startswith(ACTION)]
        found = await self._store.claim(queues, actions, most, self._grace)
        return [*dues, *found], len(found) == most

    async def _first_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int:
        due = await self._store.next_due(queues, definitions)
        return FAR if due is None else due

    async def _sleep_until_then(self) -> None:
        while (delay := (self._next_look - self._clock.now()) / 1e6) > 0:
            self._nudge.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._nudge.wait()

    async def _look_who_waits(self) -> None:
        """What was passed over because of its tenant is taken up when nothing is in the way any more."""
        time = asyncio.get_running_loop().time()
        await self._resting.look(time, self._floor.settings.probe)
        if awake := self._resting.again(max(0, self._rooms.free())):
            await self._intake.take(awake)
        if self._quotas.waiting and (ready := self._quotas.again(self._rooms.free())):
            await self._intake.take(ready)

    def _sleep(self, quiet: bool) -> float:
        """How long not to look: no longer than a lease, so that the end of a dead worker's lease is known in time."""
        settings = self._floor.settings
        idle = settings.lease if settings.probe_idle is None else settings.probe_idle
        longest = idle if quiet else min(settings.probe, idle)
        return min(longest, EVERY) if self._quotas.waiting else longest

    async def _hint(self, dues: Sequence[Due]) -> None:
        me = self._floor.me
        for due in dues:
            if due.holder is None and (resident := self._rooms.residents.get(due.key)) is not None:
                resident.overdue = True
        here = [due.key for due in dues if due.holder in (None, me)]
        elsewhere = [Hint(due.key, due.queue, due.holder) for due in dues if due.holder not in (None, me)]
        if here:
            await self._intake.take(here)
        if self._floor.draining:  # nothing was taken any more
            residents = self._rooms.residents
            elsewhere += [
                Hint(due.key, due.queue, away=True) for due in dues if due.holder is None and due.key not in residents
            ]
        if elsewhere:
            await self._stream.publish(elsewhere)
