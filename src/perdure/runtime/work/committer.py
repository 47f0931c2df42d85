"""The committer: whatever any execution has ready to be written goes into the next group commit.

No timer, no minimum size: at low load a group is one execution and waits for nothing; under load groups grow while a
commit is in flight. While one group is being written the turns of the next are already run, so that the store and the
code of the workflows work side by side. An execution has at most one commit in flight, and one of which the store will
never take what it writes waits for a person, while the others of its group are written. A write that hangs holds up all
that is here, so whoever hangs should take nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

from perdure.core.failures import storable_text
from perdure.core.loop import turns
from perdure.core.records import Commit, Outcome
from perdure.errors import REFUSALS, OutcomeUnknown, StoreError, StoreRefused
from perdure.ports import Store
from perdure.runtime.clock import Clock
from perdure.runtime.execution.resident import Resident
from perdure.runtime.parting import in_parts
from perdure.runtime.settings import Settings
from perdure.runtime.telemetry.metrics import Metrics

log = logging.getLogger("perdure.worker")

#: Seconds between two tries to write that an execution is stuck, at most.
PAUSE = 300.0


class Floor(Protocol):
    """What the committer needs of its worker."""

    metrics: Metrics

    def here(self, resident: Resident) -> bool: ...
    def evict(self, resident: Resident) -> None: ...
    def grounded(self) -> None: ...
    async def landed(self, group: Group, outcomes: Sequence[Outcome]) -> None: ...
    async def unknown(self, batch: Sequence[Resident]) -> None: ...
    @property
    def grace(self) -> int: ...


class Group:
    """Executions whose commits share one write."""

    def __init__(self) -> None:
        self.batch: list[Resident] = []
        self.commits: list[Commit] = []
        self.bytes = 0
        self.since = float("inf")  # when the first of them rang

    def add(self, resident: Resident, commit: Commit) -> None:
        resident.flying = True
        self.since = min(self.since, resident.rung_at)
        self.batch.append(resident)
        self.commits.append(commit)
        for row in commit.rows:
            self.bytes += len(row.data)


class Committer:
    def __init__(self, floor: Floor, store: Store, clock: Clock, settings: Settings) -> None:
        self._floor = floor
        self._store = store
        self._clock = clock
        self._settings = settings
        self._time = asyncio.get_running_loop().time
        self._ready: deque[Resident] = deque()  # in the order in which they rang
        self._bell = asyncio.Event()
        self._calm = asyncio.Event()
        self._next = Group()
        self._flight: tuple[Group, asyncio.Task[list[Outcome | Exception]]] | None = None
        self._took_off = 0.0

    @property
    def hangs(self) -> bool:
        """Whether a write has been under way for as long as a lease, in which nothing else could be written."""
        return self._flight is not None and self._time() - self._took_off > self._settings.lease

    def ring(self, resident: Resident) -> None:
        """Something came in for this execution."""
        if not resident.rung:
            resident.rung = True
            resident.rung_at = self._time()
            self._ready.append(resident)
            self._bell.set()

    async def calm(self) -> None:
        """Wait until nothing is ready and nothing is being written."""
        while self._ready or self._next.commits or self._flight is not None:
            self._calm.clear()
            await self._calm.wait()

    async def step(self) -> None:
        """Gather the next group, wait for the one in flight, send the next on its way."""
        if not self._ready and not self._next.commits and self._flight is None:
            self._calm.set()
            await self._bell.wait()
        self._gather(self._next)
        if self._flight is not None:
            await self._land()
            self._gather(self._next)  # what became ready meanwhile
        if self._next.commits:
            group, self._next = self._next, Group()
            self._took_off = self._time()
            self._flight = group, asyncio.create_task(self._write(group), name="perdure-commit")

    async def _write(self, group: Group) -> list[Outcome | Exception]:
        """The answer for each. One that the store will not take is found by halves, and the others are written."""
        time = asyncio.get_running_loop().time
        began = time()
        try:
            answers: list[Outcome | Exception] = []
            async for some in in_parts(self._commit, group.commits):
                answers += some
            for place, answer in enumerate(answers):
                if answer == "refused":  # by itself it is told why
                    async for alone in in_parts(self._commit, [group.commits[place]]):
                        answers[place] = alone[0]
            return answers
        finally:
            self._floor.metrics.commit.observe(time() - began)

    async def _commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        outcomes = await self._store.commit(commits, self._floor.grace)
        if outcomes == ["refused"]:
            raise StoreRefused(f"{commits[0].key}: the store will not take what it writes")
        return outcomes

    def _gather(self, group: Group) -> None:
        """Take what is ready, run its turns, and collect what is to be written."""
        now, time = self._clock.now(), self._time()
        ready, most, full = self._ready, self._settings.group, self._settings.group_bytes
        with turns():
            while ready and len(group.commits) < most and group.bytes < full:
                resident = ready.popleft()
                resident.rung = False
                if resident.flying:
                    resident.recalled = True  # its time comes when its commit has landed
                    continue
                if not self._floor.here(resident):
                    continue
                if time > resident.lease_until:
                    text = "%s: the lease ran out before it could be renewed; giving it up"
                    log.warning(text, resident.key, extra=resident.about)
                    self._floor.metrics.errors.add("lost")
                    self._floor.evict(resident)
                elif (commit := self._prepare(resident, now)) is not None:
                    group.add(resident, commit)
                else:
                    resident.launch(now)
        if not self._ready:
            self._bell.clear()

    def _prepare(self, resident: Resident, now: int) -> Commit | None:
        """A mistake of the engine's own concerns one execution: it waits for a person, the others go on."""
        try:
            return resident.prepare(now)
        except Exception as error:
            log.exception("%s broke the engine", resident.key, extra=resident.about)
            self._floor.metrics.errors.add("engine")
            resident.become_stuck("engine", f"{type(error).__name__}: {error}", now)
            return resident.prepare(now)

    async def _land(self) -> None:
        assert self._flight is not None
        group, task = self._flight
        answers = await task
        self._grounded(group)
        if not any(isinstance(answer, Exception) for answer in answers):
            await self._floor.landed(group, cast("list[Outcome]", answers))
            return
        written, outcomes = Group(), []
        written.since = group.since
        unknown: list[Resident] = []
        trouble: Exception | None = None
        for resident, commit, answer in zip(group.batch, group.commits, answers, strict=True):
            if not isinstance(answer, Exception):
                written.batch.append(resident)
                written.commits.append(commit)
                outcomes.append(answer)
            elif isinstance(answer, REFUSALS):
                self.refused(resident, answer)
            elif isinstance(answer, StoreError) and not isinstance(answer, OutcomeUnknown):
                trouble = trouble or answer
                self.ring(resident)  # certainly not written: all of it is still there, to be prepared again
            else:
                trouble = answer
                unknown.append(resident)
        if outcomes:
            await self._floor.landed(written, outcomes)
        if unknown:
            await self._floor.unknown(unknown)
        if trouble is not None:
            raise trouble

    def refused(self, resident: Resident, error: Exception) -> None:
        """The store will never take what this one would write: it waits for a person, and the others go on.

        Where not even that can be written, it is tried again after ever longer pauses, until it is lost to a worker who
        can, or until there is room for it.
        """
        if not self._floor.here(resident):
            return
        self._floor.metrics.errors.add("store")
        words = storable_text(str(error))  # they may have in them what the store does not take
        if resident.refusals == 0:
            log.warning("%s: the store will not take what it writes: %s", resident.key, words, extra=resident.about)
            resident.give_up(words, self._clock.now())
            self.ring(resident)
            return
        pause = min(2.0 ** min(resident.refusals - 1, 10), PAUSE)
        resident.refusals += 1
        text = "%s: the store will not even take that it is stuck; trying again in %.3g s: %s"
        log.error(text, resident.key, pause, words, extra=resident.about)
        resident.flying = True  # in no group until then
        asyncio.get_running_loop().call_later(pause, self._again, resident)

    def _again(self, resident: Resident) -> None:
        self.set_free(resident)
        self.ring(resident)

    def _grounded(self, group: Group) -> None:
        self._flight = None
        for resident in group.batch:
            self.set_free(resident)
        self._floor.grounded()

    async def reserve(self, resident: Resident) -> None:
        """Keep one execution out of all groups: something else writes to its log."""
        while resident.flying:
            if resident.landing is None:
                resident.landing = asyncio.get_running_loop().create_future()
            await asyncio.shield(resident.landing)
        resident.flying = True

    def set_free(self, resident: Resident) -> None:
        resident.flying = False
        if resident.recalled:
            resident.recalled = False
            self.ring(resident)
        if resident.landing is not None:
            resident.landing.set_result(None)
            resident.landing = None
