"""A worker: holds executions, runs their turns and actions, and commits for all of them together.

Six loops share one memory, the `rooms`: receive and admit of the `intake` (hints become holds), the `committer`
(everything that is ready goes into the next commit; what follows its answer is the `landing`), the `relay` (what is due
is hinted), the `mailman` (mail for what is held), and renewal, which is here. Nothing is polled while idle but one
capped look for the next due time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from perdure.core import guard, tracing
from perdure.core.records import Commit, End, Hint
from perdure.errors import REFUSALS, OutcomeUnknown, PerdureError, StoreError, UsageError
from perdure.flows.action import Action
from perdure.flows.registry import Registry
from perdure.flows.workflow import Workflow
from perdure.ports import Joining, Store, Stream
from perdure.runtime.attempts import joint
from perdure.runtime.attempts.attempt import Attempts
from perdure.runtime.attempts.circuits import Circuits
from perdure.runtime.attempts.fleet import Fleet
from perdure.runtime.clock import Clock
from perdure.runtime.definitions.published import Published
from perdure.runtime.execution.resident import Resident
from perdure.runtime.managing.tenants import Resting
from perdure.runtime.settings import Settings
from perdure.runtime.telemetry.metrics import Metrics
from perdure.runtime.work.committer import Committer, Group
from perdure.runtime.work.intake import Intake
from perdure.runtime.work.landing import Landing
from perdure.runtime.work.leases import Leases
from perdure.runtime.work.mailman import Mailman
from perdure.runtime.work.quotas import Quotas
from perdure.runtime.work.relay import Relay
from perdure.runtime.work.rooms import Rooms
from perdure.runtime.work.sharing import Sharing

T = TypeVar("T")

log = logging.getLogger("perdure.worker")


class Worker:
    """See the module. `me` must be unique in space and time: it names the lease."""

    def __init__(
        self,
        me: str,
        store: Store,
        stream: Stream,
        registry: Registry,
        settings: Settings,
        clock: Clock,
        client: Any,
        published: Published,
        ended: Callable[[str, End | None], None] = lambda key, end: None,
    ) -> None:
        self.me = me
        self.settings = settings
        self.draining = False
        self.metrics = Metrics()
        self.rooms = Rooms(settings)
        self.residents = self.rooms.residents
        self.here = self.rooms.here
        self._store = store
        self._stream = stream
        self._registry = registry
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(settings.threads, "perdure-action")
        circuits = Circuits(self._tell, registry.breaker)
        self._fleet = Fleet(store, me, settings.lease)
        self.attempts = Attempts(self, client, self._executor, circuits, self._fleet)
        self.attempts.counted = self.metrics.attempted
        self._resting = Resting(store)
        self._quotas = Quotas(self, store, self._resting)
        self._mailman = Mailman(self, self.rooms, store, stream, published)
        waits = self._resting, self._quotas
        self._intake = Intake(self, self.rooms, *waits, store, stream, registry, published, self._mailman, ended)
        self._relay = Relay(self, self.rooms, *waits, store, stream, registry, clock, self._intake, self._mailman)
        self._landing = Landing(self, self.rooms, self._quotas, stream, clock, self._relay, self._mailman, ended)
        self._committer = Committer(self._landing, store, clock, settings)
        self.rooms.closed = lambda: self._committer.hangs
        self._sharing = Sharing(self, store, stream, self._landing.evict, self._relay.look_when_free)
        self.patience = self._sharing.patience
        self.give_back = self._sharing.give_back
        self._errands: set[asyncio.Task[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._leases: Leases | None = None
        self._lease = int(settings.lease * 1e6)
        self.metrics.holds.read = lambda: len(self.residents)
        self.metrics.residents.read = lambda: len(self.residents) + len(self.rooms.parked)
        self.metrics.over_quota.read = lambda: self._quotas.waiting
        self.metrics.attempts.read = lambda: self.attempts.running

    # Life.

    async def start(self) -> None:
        guard.audit()
        for workflow in self._registry.workflows():
            workflow.check()
        self._leases = await Leases.beside(self, self._store, self._stream)
        await self._resting.look(self._loop.time(), 0)  # before the first hint is taken
        loops = (
            self._intake.receive,
            self._intake.admit,
            self._committer.step,
            self._relay.relay,
            self._mailman.fetch_mail,
            self._renew,
        )
        with tracing.working(self._trace_of):
            for loop in loops:
                self._tasks.append(asyncio.create_task(self._forever(loop), name=f"perdure-{loop.__name__}"))

    async def stop(self, grace: float | None = None) -> None:
        """No new work; let running actions finish; give everything back."""
        self.draining = True
        self.attempts.close()
        self._ring_all()
        self.rooms.vacated.set()  # nobody waits for a place any more
        limit = self.settings.drain if grace is None else grace
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while any(resident.running for resident in self.residents.values()):
                    tasks = [r.task for resident in self.residents.values() for r in resident.running.values()]
                    await asyncio.wait([task for task in tasks if task], return_when=asyncio.FIRST_COMPLETED)
        self._ring_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._committer.calm()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._errands, return_exceptions=True)
        await self._give_back()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._fleet.calm()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.attempts.processes.close()
        if self._leases is not None:
            await self._leases.stop()
        await self._intake.leave()

    def _trace_of(self, key: str) -> tracing.Trace | None:
        """For lines about executions that are here, whoever writes them."""
        resident = self.residents.get(key) or self.rooms.parked.get(key)
        return None if resident is None else resident.trace

    async def _give_back(self) -> None:
        left = self.rooms.clear()
        if left:
            with contextlib.suppress(StoreError):
                await self._store.release([(resident.key, resident.token) for resident in left])
                await self._stream.publish([Hint(resident.key, resident.queue, away=True) for resident in left])

    async def _forever(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop; when something fails, say so, wait a little longer each time, go on."""
        pause = 0.05
        while True:
            try:
                await loop()
                pause = 0.05
            except StoreError as error:
                self._broke(loop, _kind(error))
                log.warning("%s; trying again in %.2g s", error, pause, extra={"worker": self.me})
            except Exception:
                self._broke(loop, "engine")
                log.exception("%s broke; trying again in %.2g s", loop.__name__, pause, extra={"worker": self.me})
            else:
                continue
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _broke(self, loop: Callable[[], Coroutine[Any, Any, None]], kind: str) -> None:
        if loop == self._intake.receive:
            self.metrics.subscription_errors.add()
        else:
            self.metrics.errors.add(kind)

    @property
    def spill(self) -> float | None:
        """How long an action waits for a place here before it is offered to others, where there may be others."""
        if self.settings.spill is None:
            return 1.0 if isinstance(self._store, Joining) else None
        return self.settings.spill

    # What residents call.

    def now(self) -> int:
        return self._clock.now()

    def findable(self, action: Action[..., Any]) -> bool:
        return self._registry.findable(action)

    def use(self, workflow: Workflow[..., Any]) -> None:
        self._registry.use(workflow)

    def ring(self, resident: Resident) -> None:
        self._committer.ring(resident)

    def ring_at(self, resident: Resident, due: int) -> None:
        delay = max(0.0, (due - self._clock.now()) / 1e6)
        self._loop.call_later(delay, self._ring_if_here, resident)

    def _ring_if_here(self, resident: Resident) -> None:
        if self.here(resident):
            resident.alarm = 0  # it has rung; a clock that was set back since asks for another
            self.ring(resident)

    def _ring_all(self) -> None:
        for resident in self.residents.values():
            self.ring(resident)

    # What its parts call.

    def look_at(self, due: int) -> None:
        self._relay.look_at(due)

    def spawn(self, errand: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Something that is done beside the loops, and before the worker has stopped."""
        task = self._loop.create_task(errand, name=name)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task

    def _tell(self, news: str) -> None:
        """Let every worker hear of it, without waiting."""
        self.spawn(self._stream.publish([Hint("", news=news)]), "perdure-news")

    # What joint commits call.

    @property
    def grace(self) -> int:
        return self._landing.grace

    async def reserve(self, resident: Resident) -> None:
        await self._committer.reserve(resident)

    def set_free(self, resident: Resident) -> None:
        self._committer.set_free(resident)
        if self.here(resident):
            self.ring(resident)

    async def joined(self, resident: Resident, commit: Commit) -> None:
        group = Group()
        group.add(resident, commit)
        self._committer.set_free(resident)
        await self._landing.landed(group, ["ok"])

    async def perform(self, whose: Any, ref: int, work: Callable[[Any], Awaitable[Any]]) -> bool:
        if not isinstance(self._store, Joining):
            raise UsageError("a transactional action needs a store with transactions of the caller's: postgresql://…")
        return await joint.perform(self, self._store, whose, ref, work)

    async def forget(self, resident: Resident, error: PerdureError | None) -> None:
        """A joint commit was refused, because another worker has gone on, or the store failed at it."""
        if isinstance(error, REFUSALS):
            self._committer.refused(resident, error)
            return
        self.metrics.errors.add("stale" if error is None else _kind(error))
        why = error or "another worker has gone on with it"
        log.warning("%s: a transaction was not committed: %s", resident.key, why, extra=resident.about)
        if self.here(resident):
            await self._landing.unknown([resident])

    # Leases.

    async def _renew(self) -> None:
        if not self.residents:  # an idle worker sleeps
            self.rooms.occupied.clear()
            await self.rooms.occupied.wait()
        await asyncio.sleep(self.settings.lease / 3)
        holds = [(resident.key, resident.token) for resident in self.residents.values()]
        if not holds:
            return
        sent = asyncio.get_running_loop().time()
        kept = await self._store.renew(holds, self._lease)
        self.renewed(holds, kept, sent)

    def renewed(self, holds: Sequence[tuple[str, int]], kept: set[str], sent: float) -> None:
        """Leases were renewed, or not, by what was asked at `sent` of the loop's clock."""
        for key, token in holds:
            resident = self.residents.get(key)
            if resident is None or resident.token != token:
                continue
            if resident.flying and key not in kept:
                continue  # its own commit may just have ended or parked it; the answer to that will tell
            if key in kept:
                resident.lease_until = max(resident.lease_until, sent + self.settings.lease * 0.9)
            else:
                self.metrics.errors.add("lost")
                log.warning("%s: lost to another worker", key, extra=resident.about)
                self._landing.evict(resident)


def _kind(error: PerdureError) -> str:
    """Which kind of trouble it is, as the metrics have it."""
    return "unknown" if isinstance(error, OutcomeUnknown) else "store"
