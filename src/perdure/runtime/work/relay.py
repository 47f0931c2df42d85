"""The relay: asks the store what is due, takes it or hints it to its holder, and sleeps until the next due time.

Rules kept here: one look at a time, and none before something is due but one that is capped: hints may get lost, and a
dead worker's lease ends without a word. A full worker takes nothing; it only looks into the mailboxes of what it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from perdure.core.records import Due, Hint
from perdure.flows.registry import Registry
from perdure.ports import Store, Stream
from perdure.runtime.clock import Clock
from perdure.runtime.managing.tenants import Resting
from perdure.runtime.settings import Settings
from perdure.runtime.work.intake import Intake
from perdure.runtime.work.mailman import Mailman
from perdure.runtime.work.quotas import EVERY, Quotas
from perdure.runtime.work.rooms import Rooms

#: Later than anything is due.
FAR = 2**63


class Floor(Protocol):
    """What the relay needs of the worker."""

    me: str
    settings: Settings
    draining: bool


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
        self._grace = int(floor.settings.grace * 1e6)
        self._nudge = asyncio.Event()
        self._next_look: int = 0
        self._next_round: int = 0  # to all mailboxes, when full

    def look_at(self, due: int) -> None:
        """Something is due then."""
        if due < self._next_look:
            self._next_look = due
            self._nudge.set()

    async def relay(self) -> None:
        quiet_since = asyncio.get_running_loop().time()
        expected = True  # something should be due; else the store is asked for a time first, and for no more
        while True:
            queues, definitions = self._floor.settings.queue_names, self._registry.served()
            due = FAR if expected else await self._first_due(queues, definitions)
            now = await self._clock.sync()
            full = self._rooms.free() <= 0
            if full and now >= self._next_round:  # hints for what is held may have got lost; nothing else can be taken
                self._next_round = now + self._grace
                self._mailman.call_round()
            elif not full and not self._floor.draining:
                await self._look_who_waits()
                expected = expected or min(due, self._next_look) <= now
                limit = min(self._rooms.free(), 500)
                dues = await self._store.claim(queues, definitions, limit, self._grace) if expected else []
                await self._hint(dues)
                if dues:
                    quiet_since = asyncio.get_running_loop().time()
                    if len(dues) == limit:
                        continue
            if expected:
                due = await self._first_due(queues, definitions)
            quiet = asyncio.get_running_loop().time() - quiet_since > 60
            cap = now + int(self._sleep(quiet) * 1e6)
            soonest = now + (self._grace if full or self._floor.draining else 1000)
            self._next_look = max(min(due, self._next_look, cap), soonest)
            await self._sleep_until_then()
            expected = self._next_look < cap

    async def _first_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int:
        """What we are told from here on counts as well: the answer may be from before."""
        self._next_look = FAR
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
        if awake := await self._resting.look(time, self._floor.settings.probe):
            await self._intake.take(awake[: self._rooms.free()])
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
        here = [due.key for due in dues if due.holder in (None, me)]
        elsewhere = [Hint(due.key, due.queue, due.holder) for due in dues if due.holder not in (None, me)]
        if here:
            await self._intake.take(here)
        if elsewhere:
            await self._stream.publish(elsewhere)
