"""A worker: holds executions, runs their turns and actions, and commits for all of them together.

Six loops share one memory: receive and admit (hints become holds), the committer (everything that is ready goes into
the next commit), the relay (what is due is hinted), the mailman (mail for what is held), renewal. Nothing is polled
while idle but one capped look for the next due time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from perdure.core import events as ev, guard, letters
from perdure.core.fairness import RoundRobin
from perdure.core.loop import turns
from perdure.core.records import (
    ACTION,
    PUBLISHED,
    SHORT,
    Busy,
    Commit,
    Due,
    End,
    Gone,
    Held,
    Hint,
    Mail,
    Outcome,
    Queued,
    Start,
    tenant_of,
)
from perdure.errors import OutcomeUnknown, StoreError, Undecodable, UsageError
from perdure.flows.action import Action
from perdure.flows.registry import Registry
from perdure.flows.workflow import Workflow
from perdure.ports import Joining, Store, Stream
from perdure.runtime import joint
from perdure.runtime.attempt import Attempts
from perdure.runtime.circuits import Circuits
from perdure.runtime.clock import Clock
from perdure.runtime.committer import Committer, Group
from perdure.runtime.leases import Leases
from perdure.runtime.metrics import Metrics
from perdure.runtime.migration import LETTER
from perdure.runtime.published import Published, Ref, ref_in, ref_of
from perdure.runtime.resident import FAULTS, Resident
from perdure.runtime.settings import Settings

log = logging.getLogger("perdure.worker")
#: Hints taken from the stream at once.
_HINTS = 1000
_STUCK, _TAKEN_OVER = ev.NUMBERS[ev.Stuck], ev.NUMBERS[ev.TakenOver]


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
        self.residents: dict[str, Resident] = {}
        self._store = store
        self._stream = stream
        self._registry = registry
        self._clock = clock
        self._published = published
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(settings.threads, "perdure-action")
        circuits = Circuits(self._tell, registry.breaker)
        self.attempts = Attempts(self, client, self._executor, circuits)
        self.attempts.counted = self.metrics.attempted
        self._committer = Committer(self, store, clock, settings)
        self._cache: OrderedDict[str, Resident] = OrderedDict()
        self._mailed: set[str] = set()
        self._holding: set[str] = set()
        self._holds: set[asyncio.Task[None]] = set()
        self._mailbell = asyncio.Event()
        self._arrivals: RoundRobin[Hint] = RoundRobin(100 * _HINTS)  # what no longer fits is due by itself
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._nudge = asyncio.Event()
        self._occupied = asyncio.Event()
        self._next_look: int = 0
        self._next_round: int = 0  # to all mailboxes, when full
        self._tasks: list[asyncio.Task[None]] = []
        self._queues = frozenset(settings.queue_names)
        self._leases: Leases | None = None
        self._lease = int(settings.lease * 1e6)
        self._grace = int(settings.grace * 1e6)
        self.metrics.holds.read = lambda: len(self.residents)
        self.metrics.residents.read = lambda: len(self.residents) + len(self._cache)
        self.metrics.attempts.read = lambda: self.attempts.running

    # Life.

    async def start(self) -> None:
        guard.audit()
        for workflow in self._registry.workflows():
            workflow.check()
        self._leases = await Leases.beside(self, self._store, self._stream)
        self._room.set()
        loops = (self._receive, self._admit, self._committer.step, self._relay, self._fetch_mail, self._renew)
        for loop in loops:
            self._tasks.append(asyncio.create_task(self._forever(loop), name=f"perdure-{loop.__name__}"))

    async def stop(self, grace: float | None = None) -> None:
        """No new work; let running actions finish; give everything back."""
        self.draining = True
        self.attempts.close()
        self._ring_all()
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
        await asyncio.gather(*self._tasks, *self._holds, return_exceptions=True)
        await self._give_back()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.attempts.processes.close()
        if self._leases is not None:
            await self._leases.stop()

    async def _give_back(self) -> None:
        left = list(self.residents.values())
        for resident in (*left, *self._cache.values()):
            resident.drop()
        self.residents.clear()
        self._cache.clear()
        if left:
            with contextlib.suppress(StoreError):
                await self._store.release([(resident.key, resident.token) for resident in left])
                await self._stream.publish([Hint(resident.key, resident.queue) for resident in left])

    async def _forever(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop; when something fails, say so, wait a little longer each time, go on."""
        pause = 0.05
        while True:
            try:
                await loop()
                pause = 0.05
            except StoreError as error:
                self._broke(loop, "unknown" if isinstance(error, OutcomeUnknown) else "store")
                log.warning("%s; trying again in %.2g s", error, pause, extra={"worker": self.me})
            except Exception:
                self._broke(loop, "engine")
                log.exception("%s broke; trying again in %.2g s", loop.__name__, pause, extra={"worker": self.me})
            else:
                continue
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _broke(self, loop: Callable[[], Coroutine[Any, Any, None]], kind: str) -> None:
        if loop == self._receive:
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
        if self.residents.get(resident.key) is resident:
            resident._alarm = 0  # it has rung; a clock that was set back since asks for another
            self.ring(resident)

    def _ring_all(self) -> None:
        for resident in self.residents.values():
            self.ring(resident)

    # Receive: hints become holds.

    async def _receive(self) -> None:
        """News and mail for what is held are served at once, however full it is; the rest queues up for a place."""
        hints = await self._stream.receive(_HINTS)
        self.metrics.hints.counts[""] += len(hints)
        served = []
        for hint in hints:
            if hint.news:
                self.attempts.circuits.heard(hint.news, self._clock.now())
            elif not hint.key:
                self._look_at(self._clock.now())
            elif hint.ended:
                self._ended(hint.key, end_of(hint))
            elif hint.key in self.residents:
                self._mailed.add(hint.key)
                self._mailbell.set()
            else:
                self._arrivals.put(tenant_of(hint.key), hint)
                self._arrived.set()
                continue
            served.append(hint)
        if served:
            await self._stream.ack(served)

    def _tell(self, news: str) -> None:
        """Let every worker hear of it, without waiting."""
        task = self._loop.create_task(self._stream.publish([Hint("", news=news)]), name="perdure-news")
        self._holds.add(task)
        task.add_done_callback(self._holds.discard)

    async def _admit(self) -> None:
        await self._arrived.wait()
        if self.draining or self._free() <= 0:
            self._room.clear()
            await self._room.wait()
            return
        hints = [self._arrivals.take() for _ in range(min(self._free(), len(self._arrivals)))]
        if not self._arrivals:
            self._arrived.clear()
        await self._take(list(dict.fromkeys(hint.key for hint in hints)))
        await self._stream.ack(hints)

    def _free(self) -> int:
        return self.settings.resident - len(self.residents) - len(self._holding)

    async def _take(self, keys: Sequence[str]) -> None:
        new = []
        for key in keys:
            if key in self.residents or key in self._holding:
                self._mailed.add(key)
                self._mailbell.set()
            else:
                new.append(key)
        if not new or self.draining:
            return
        self._holding.update(new)
        task = asyncio.create_task(self._hold(new), name="perdure-hold")
        self._holds.add(task)
        task.add_done_callback(self._holds.discard)
        await asyncio.shield(task)  # a hold that was asked for is not forgotten when we are told to stop

    async def _hold(self, new: list[str]) -> None:
        try:
            await self._hold_each(new)
        finally:
            self._holding.difference_update(new)
            self._mailbell.set()

    async def _hold_each(self, new: list[str]) -> None:
        # Out of the cache while the hold is under way: what the answer leaves out must still be here when it comes.
        mine = {key: r for key in new if (r := self._cache.pop(key, None)) is not None}
        try:
            await self._hold_known(new, mine)
        finally:
            for resident in mine.values():
                resident.drop()

    async def _hold_known(self, new: list[str], mine: dict[str, Resident]) -> None:
        known = {key: (resident.version, resident.token) for key, resident in mine.items()}
        sent = asyncio.get_running_loop().time()
        answers = await self._store.hold(new, self.me, self._lease, known)
        forward = []
        described = []
        for answer in answers:
            match answer:
                case Held():
                    self._count_hold(answer)
                    if answer.definition.startswith(PUBLISHED) and answer.queue in self._queues:
                        described.append(answer)
                    else:
                        workflow = self._registry.find(answer.definition)
                        self._move_in(answer, sent, mine.pop(answer.key, None), workflow)
                case Busy():
                    if answer.holder != self.me:
                        forward.append(Hint(answer.key, to=answer.holder))
                case Gone() | Queued():
                    pass
        if forward:
            await self._stream.publish(forward)
        if described:
            await self._move_in_described(described, sent, mine)

    async def _move_in_described(self, helds: Sequence[Held], sent: float, mine: dict[str, Resident]) -> None:
        """What was published is found in the store, unless it is at hand."""
        refs = {held.key: ref_in(held.key, held.rows) or _ref(held, mine.get(held.key)) for held in helds}
        asked = {held.key: _versions(refs[held.key], held.mail) for held in helds}
        try:
            found = await self._published.load([*refs.values(), *(ref for more in asked.values() for ref in more)])
        except BaseException:
            for held in helds:
                self._turn_away(held, mine.pop(held.key, None))
            raise
        for held in helds:
            workflow = found[refs[held.key]]
            resident = mine.pop(held.key, None)
            if resident is not None and (resident.workflow.version, resident.workflow.hash) != (
                workflow.version,
                workflow.hash,
            ):
                resident.drop()
                resident = None
            if (there := self._move_in(held, sent, resident, workflow)) is not None:
                there.offer([found[ref] for ref in asked[held.key]])

    def _count_hold(self, held: Held) -> None:
        if held.rows and held.rows[-1].type == _TAKEN_OVER and held.rows[-1].fence == held.token:
            self.metrics.takeovers.add()

    def _move_in(
        self, held: Held, sent: float, resident: Resident | None, workflow: Workflow[..., Any] | None
    ) -> Resident | None:
        if workflow is None or held.queue not in self._queues:
            self._turn_away(held, resident)
            return None
        now = self._clock.now()
        if resident is not None and (not held.rows or held.rows[0].version == resident.version + 1):
            try:
                resident.again(held, now)
            except FAULTS:
                resident.drop()
                resident = None
        elif resident is not None:
            resident.drop()
            resident = None
        if resident is None:
            resident = Resident(self, held, workflow)
        if held.lapses > self.settings.lapses and held.status != "stuck":
            resident.poison(held.lapses, now)
        resident.lease_until = sent + self.settings.lease * 0.9
        self.residents[held.key] = resident
        self._occupied.set()
        self.ring(resident)
        return resident

    def _turn_away(self, held: Held, resident: Resident | None) -> None:
        """The hint went astray: this is for the workers of another queue, or for those with other code."""
        if resident is not None:
            resident.drop()
        task = self._loop.create_task(self._send_on(held), name="perdure-send-on")
        self._holds.add(task)
        task.add_done_callback(self._holds.discard)

    async def _send_on(self, held: Held) -> None:
        with contextlib.suppress(StoreError):  # then its lease ends by itself
            await self._store.release([(held.key, held.token)])
            if held.queue not in self._queues:
                await self._stream.publish([Hint(held.key, held.queue)])

    # What the committer calls.

    def here(self, resident: Resident) -> bool:
        return self.residents.get(resident.key) is resident

    @property
    def grace(self) -> int:
        """How long children and mail may wait for their hint to arrive."""
        return self._grace if self._stream.carries else 0

    def evict(self, resident: Resident) -> None:
        self._leave(resident)
        resident.drop()

    async def landed(self, group: Group, outcomes: Sequence[Outcome]) -> None:
        """A group was written, or refused, one by one."""
        now = self._clock.now()
        hints: list[Hint] = []
        with turns():
            for resident, commit, outcome in zip(group.batch, group.commits, outcomes, strict=True):
                if outcome == "ok" or (outcome == "mail" and not isinstance(commit.settle, End)):
                    self._count_commit(commit, now)
                if outcome == "ok":
                    hints += [_hint(start) for start in commit.children]
                    hints += [Hint(letter.key, resident.queue_of(letter.key)) for letter in commit.mail]
                    if isinstance(commit.settle, End):
                        hints.append(_news(resident.key, commit.settle))
                        self._ended(resident.key, commit.settle)
                if self.here(resident):  # it may have been lost while this was under way
                    self._settle(resident, commit, outcome, now)
        self.metrics.batch.observe(len(group.commits))
        self.metrics.duration.observe(self._loop.time() - group.since)
        if hints:
            await self._stream.publish(self._addressed(hints))

    def _count_commit(self, commit: Commit, now: int) -> None:
        counts = self.metrics.events.counts
        for row in commit.rows:
            counts[row.type % 1000] += 1
            if row.type == _STUCK and isinstance(stuck := ev.read(row), ev.Stuck):
                self.metrics.stuck.add(stuck.cause)
        if commit.fired is not None:
            self.metrics.lateness.observe(max(0, now - commit.fired) / 1e6)
        if isinstance(commit.settle, End):
            self.metrics.ended.add(commit.settle.status)

    # What joint commits call.

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
        await self.landed(group, ["ok"])

    async def perform(self, whose: Any, ref: int, work: Callable[[Any], Awaitable[Any]]) -> None:
        if not isinstance(self._store, Joining):
            raise UsageError("a transactional action needs a store with transactions of the caller's: postgresql://…")
        await joint.perform(self, self._store, whose, ref, work)

    async def forget(self, resident: Resident) -> None:
        if self.here(resident):
            await self.unknown([resident])

    async def unknown(self, batch: Sequence[Resident]) -> None:
        """Nobody knows whether the group was written: forget all of it and hold each again, behind a barrier."""
        for resident in batch:
            self.evict(resident)
        await self._stream.publish([Hint(resident.key, resident.queue, to=self.me) for resident in batch])

    def _settle(self, resident: Resident, commit: Commit, outcome: Outcome, now: int) -> None:
        match outcome:
            case "ok":
                self._written(resident, now)
            case "mail":
                if resident.ended is None:
                    resident.committed()
                self._mailed.add(resident.key)
                self._mailbell.set()
            case "early":
                self._look_at(now)  # our clock runs ahead: ask for the time, and do not ask for this at once again
                self.ring_at(resident, max(commit.fired or 0, now) + 10_000)
            case "stale":
                self.metrics.errors.add("stale")
                log.info("%s: another worker has gone on with it", resident.key, extra=resident.about)
                self.evict(resident)

    def _addressed(self, hints: list[Hint]) -> list[Hint]:
        """Mail for an execution that we hold ourselves needs no stream; for others the queue finds the holder."""
        rest = []
        for hint in hints:
            if not hint.ended and hint.key in self.residents:
                self._mailed.add(hint.key)
                self._mailbell.set()
            else:
                rest.append(hint)
        return rest

    def _written(self, resident: Resident, now: int) -> None:
        resident.committed()
        if resident.ended is not None:
            self.evict(resident)
            if resident.lane:
                self._look_at(now)  # the next of its lane is due
        elif (park := resident.parked) is not None:
            self._leave(resident)
            self._keep(resident)
            if park.status == "stuck":
                reason = resident.stuck.reason if resident.stuck is not None else ""
                log.warning("%s is stuck: %s", resident.key, reason, extra=resident.about)
                self._ended(resident.key, None)
            if park.due is not None:
                self._look_at(park.due)
        else:
            if self.settings.replay_always:
                resident.relive(now)
                if resident.stuck is not None:
                    self.ring(resident)
                    return
            resident.launch(now)
            if not resident.running:
                self.ring(resident)

    def _keep(self, resident: Resident) -> None:
        """A parked replay stays in memory for a while, unless it is to be replayed always or is of no use."""
        if resident.replay is None or self.settings.cache == 0 or self.settings.replay_always:
            resident.drop()
            return
        resident.gone = True
        self._cache[resident.key] = resident
        while len(self._cache) > self.settings.cache:
            self._cache.popitem(last=False)[1].drop()

    def _leave(self, resident: Resident) -> None:
        if self._free() <= 0:
            self._look_at(self._clock.now())  # there is room again
        self.residents.pop(resident.key, None)
        self._room.set()

    # Mail for what is held.

    async def _fetch_mail(self) -> None:
        await self._mailbell.wait()
        self._mailbell.clear()
        keys = [key for key in self._mailed if key in self.residents]
        self._mailed.intersection_update(self._holding)
        if not keys:
            return
        try:
            boxes = await self._store.mail(keys)
            await self._offer_versions(boxes)
        except StoreError:
            self._mailed.update(keys)
            self._mailbell.set()
            raise
        for key in keys:
            resident = self.residents.get(key)
            if resident is not None:
                resident.deliver(boxes.get(key, ()))
                if resident.ended is not None and not boxes.get(key):
                    # Its end was refused for mail that is still on its way, in a transaction of the sender's.
                    self.ring_at(resident, self._clock.now() + 50_000)
                else:
                    self.ring(resident)

    async def _offer_versions(self, boxes: Mapping[str, Sequence[Mail]]) -> None:
        """Who is asked to go on with another version of its definition gets that before the letter."""
        asked = {
            resident: refs
            for key, mail in boxes.items()
            if (resident := self.residents.get(key)) is not None and (refs := _versions(_own(resident), mail))
        }
        if asked:
            found = await self._published.load([ref for refs in asked.values() for ref in refs])
            for resident, refs in asked.items():
                resident.offer([found[ref] for ref in refs])

    # What is due.

    def _look_at(self, due: int) -> None:
        if due < self._next_look:
            self._next_look = due
            self._nudge.set()

    async def _relay(self) -> None:
        quiet_since = asyncio.get_running_loop().time()
        while True:
            queues, definitions = self.settings.queue_names, self._registry.served()
            now = await self._clock.sync()
            full = self._free() <= 0
            if full and now >= self._next_round:  # hints for what is held may have got lost; nothing else can be taken
                self._next_round = now + self._grace
                self._mailed.update(self.residents)
                self._mailbell.set()
            elif not full and not self.draining:
                limit = min(self._free(), 500)
                dues = await self._store.claim(queues, definitions, limit, self._grace)
                await self._hint(dues)
                if dues:
                    quiet_since = asyncio.get_running_loop().time()
                    if len(dues) == limit:
                        continue
            quiet = asyncio.get_running_loop().time() - quiet_since > 60
            cap = now + int(self._sleep(quiet) * 1e6)
            due = await self._store.next_due(queues, definitions)
            self._nudge.clear()
            soonest = now + (self._grace if full or self.draining else 1000)
            self._next_look = cap if due is None else max(min(due, cap), soonest)
            while (delay := (self._next_look - self._clock.now()) / 1e6) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._nudge.wait()
                self._nudge.clear()

    def _sleep(self, quiet: bool) -> float:
        """How long not to look: no longer than a lease, so that the end of a dead worker's lease is known in time."""
        idle = self.settings.lease if self.settings.probe_idle is None else self.settings.probe_idle
        return idle if quiet else min(self.settings.probe, idle)

    async def _hint(self, dues: Sequence[Due]) -> None:
        here = [due.key for due in dues if due.holder in (None, self.me)]
        elsewhere = [Hint(due.key, due.queue, due.holder) for due in dues if due.holder not in (None, self.me)]
        if here:
            await self._take(here)
        if elsewhere:
            await self._stream.publish(elsewhere)

    # Leases.

    async def _renew(self) -> None:
        if not self.residents:  # an idle worker sleeps
            self._occupied.clear()
            await self._occupied.wait()
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
                self.evict(resident)


def _news(key: str, end: End) -> Hint:
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


def _ref(held: Held, resident: Resident | None) -> Ref:
    return _own(resident) if resident is not None else ref_of(held.key, held.definition)


def _own(resident: Resident) -> Ref:
    workflow = resident.workflow
    return Ref(tenant_of(resident.key), workflow.name, workflow.version, workflow.hash)


def _versions(own: Ref, mail: Sequence[Mail]) -> list[Ref]:
    """The versions that letters ask for."""
    refs = []
    for letter in mail:
        if letter.id.startswith(LETTER):
            with contextlib.suppress(Undecodable):  # folding it will say so
                if isinstance(wish := letters.unseal(letter), letters.MigrateLetter):
                    refs.append(Ref(own.tenant, own.name, wish.version, wish.hash))
    return refs


def _hint(start: Start) -> Hint:
    """An action that runs apart does so because there is no room for it here."""
    return Hint(start.key, start.queue, away=start.workflow.startswith(ACTION))
