"""How executions come in: hints are received, wait for a place, become holds, and those become residents.

Rules kept here:
- News and mail for what is held are served at once, however full it is; the rest queues up, tenants in turn.
- A hint is acknowledged after the answer to its hold: from then on the end of the lease is a due time.
- A hold that was asked for is not forgotten when the worker is told to stop.
- What is of a tenant that is suspended stays where it is, and so does what is new of one that is at its quota.
- What is for another queue or for other code is given back; what another worker holds is hinted to that one.
- A worker that is told to stop hands on what waits for a place, and what still comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from perdure.core import events as ev
from perdure.core.fairness import RoundRobin
from perdure.core.records import ACTION, PUBLISHED, Busy, End, Gone, Held, Hint, HoldAnswer, Queued, tenant_of
from perdure.errors import StoreError
from perdure.flows.registry import Registry
from perdure.flows.workflow import Workflow
from perdure.ports import Store, Stream
from perdure.runtime.callers.ends import end_of
from perdure.runtime.definitions.published import Published, Ref, ref_in, ref_of
from perdure.runtime.execution.course import FAULTS
from perdure.runtime.execution.migration import asked_for
from perdure.runtime.execution.resident import House, Resident
from perdure.runtime.managing.tenants import NEWS, Resting
from perdure.runtime.work.mailman import Mailman
from perdure.runtime.work.quotas import Quotas
from perdure.runtime.work.rooms import Rooms

#: Hints taken from the stream at once.
_HINTS = 1000
#: What workers are told when one has stopped: it looks no more at what is due, of which nobody else need know.
LEFT = "left:"
_TAKEN_OVER = ev.NUMBERS[ev.TakenOver]


class Floor(House, Protocol):
    """What this needs of the worker, and what those who move in need of it."""

    def look_at(self, due: int) -> None: ...
    def spawn(self, errand: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


class Intake:
    def __init__(
        self,
        floor: Floor,
        rooms: Rooms,
        resting: Resting,
        quotas: Quotas,
        store: Store,
        stream: Stream,
        registry: Registry,
        published: Published,
        mailman: Mailman,
        ended: Callable[[str, End | None], None],
    ) -> None:
        self._floor = floor
        self._rooms = rooms
        self._resting = resting
        self._quotas = quotas
        self._store = store
        self._stream = stream
        self._registry = registry
        self._published = published
        self._mailman = mailman
        self._ended = ended
        self._arrivals: RoundRobin[Hint] = RoundRobin(100 * _HINTS)  # what no longer fits is due by itself
        self._arrived = asyncio.Event()
        self._handed: dict[str, list[Hint]] = {}  # on to others, since we were told to stop, by key
        self._queues = frozenset(floor.settings.queue_names)
        self._lease = int(floor.settings.lease * 1e6)

    async def receive(self) -> None:
        """News and mail for what is held are served at once, however full it is; the rest queues up for a place."""
        floor = self._floor
        hints = await self._stream.receive(_HINTS)
        floor.metrics.hints.counts[""] += len(hints)
        served = []
        for hint in hints:
            if hint.news == NEWS:
                self._resting.stale()
                floor.look_at(floor.now())
            elif hint.news == LEFT:
                floor.look_at(floor.now())
            elif hint.news:
                floor.attempts.circuits.heard(hint.news, floor.now())
            elif not hint.key:
                floor.look_at(floor.now())
            elif hint.ended:
                self._ended(hint.key, end_of(hint))
            elif hint.key in self._rooms.residents:
                self._mailman.call(hint.key)
            else:
                self._arrivals.put(tenant_of(hint.key), hint)
                self._arrived.set()
                continue
            served.append(hint)
        if served:
            await self._stream.ack(served)

    async def admit(self) -> None:
        rooms = self._rooms
        await self._arrived.wait()
        if self._floor.draining:
            await self._hand_on()
            return
        free = rooms.free()
        if free <= rooms.spared:
            rooms.vacated.clear()
            if free > 0:
                self._floor.look_at(self._floor.now())  # what is spared is for what is due
            await rooms.vacated.wait()
            return
        hints = [self._arrivals.take() for _ in range(min(free - rooms.spared, len(self._arrivals)))]
        if not self._arrivals:
            self._arrived.clear()
        await self.take(list(dict.fromkeys(hint.key for hint in hints)))
        await self._stream.ack(hints)

    async def _hand_on(self) -> None:
        """Let others have what waits here for a place, each once: where all stop, hints would go round among them.

        It is acknowledged when we leave, for a stream gives less to whoever has much of it in hand.
        """
        hints = [self._arrivals.take() for _ in range(len(self._arrivals))]
        self._arrived.clear()
        fresh = {hint.key: hint for hint in hints if hint.queue and hint.key not in self._handed}
        await self._stream.publish([Hint(hint.key, hint.queue, away=True) for hint in fresh.values()])
        for hint in hints:
            self._handed.setdefault(hint.key, []).append(hint)

    async def leave(self) -> None:
        """Hand on all that has come, also what nobody has received yet, and let others look at what is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                while True:
                    await self.receive()
        await self._hand_on()
        back = [hints[-1] for hints in self._handed.values() if len(hints) > 1 and hints[-1].queue]
        await self._stream.publish([Hint(hint.key, hint.queue, away=True) for hint in back])
        await self._stream.publish([Hint("", news=LEFT)])
        await self._stream.ack([hint for hints in self._handed.values() for hint in hints])

    async def take(self, keys: Sequence[str]) -> None:
        """Hold what is not here yet; for what is here there may be mail."""
        new = []
        for key in keys:
            if key in self._rooms.residents or key in self._rooms.holding:
                self._mailman.call(key)
            else:
                new.append(key)
        new = self._resting.awake(new)
        if not new or self._floor.draining:
            return
        self._rooms.ask(new, new)
        task = self._floor.spawn(self._hold(new), "perdure-hold")
        await asyncio.shield(task)  # a hold that was asked for is not forgotten when we are told to stop

    async def _hold(self, new: list[str]) -> None:
        try:
            if admitted := await self._quotas.admitted(new):
                await self._hold_each(admitted, new)
        finally:
            self._quotas.settled(new)
            self._answered(new, new)
            self._mailman.moved_in()

    def _answered(self, keys: Sequence[str], asker: object) -> None:
        full = self._rooms.free() <= 0
        self._rooms.answered(keys, asker)
        if full and self._rooms.free() > 0:
            self._floor.look_at(self._floor.now())  # who was asked for has not come: there is room again

    async def _hold_each(self, new: list[str], asker: object) -> None:
        # Out of the cache while the hold is under way: what the answer leaves out must still be here when it comes.
        mine = {key: r for key in new if (r := self._rooms.parked.pop(key, None)) is not None}
        try:
            await self._hold_known(new, mine, asker)
        finally:
            for resident in mine.values():
                resident.drop()

    async def _hold_known(self, new: list[str], mine: dict[str, Resident], asker: object) -> None:
        me = self._floor.me
        known = {key: (resident.version, resident.token) for key, resident in mine.items()}
        sent = asyncio.get_running_loop().time()
        answers = await self._store.hold(new, me, self._lease, known)
        self._answered([one.key for one in answers if not isinstance(one, Held)], asker)
        counted = [one for one in answers if isinstance(one, Held) and self._quotas.counts(one.key)]
        if counted:
            keys = {one.key for one in counted}
            answers = [one for one in answers if one.key not in keys]
        await self._take_in(answers, sent, mine)
        if counted:
            await self._take_in(await self._within_quota(counted), sent, mine)

    async def _within_quota(self, helds: Sequence[Held]) -> list[Held]:
        """Without those that are too many by now, which are given back."""
        back = {held.key for held in helds}
        try:
            back = await self._quotas.surplus(helds)
        finally:
            for held in helds:
                if held.key in back:
                    self._turn_away(held, None)
        return [held for held in helds if held.key not in back]

    async def _take_in(self, answers: Sequence[HoldAnswer], sent: float, mine: dict[str, Resident]) -> None:
        me = self._floor.me
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
                    if answer.holder != me:
                        forward.append(Hint(answer.key, to=answer.holder))
                case Gone() | Queued():
                    pass
        if forward:
            await self._stream.publish(forward)
        if any(_was_given_back(answer) for answer in answers):
            self._floor.look_at(self._floor.now())
        if described:
            await self._move_in_described(described, sent, mine)

    async def _move_in_described(self, helds: Sequence[Held], sent: float, mine: dict[str, Resident]) -> None:
        """What was published is found in the store, unless it is at hand."""
        refs = {held.key: ref_in(held.key, held.rows) or _ref(held, mine.get(held.key)) for held in helds}
        asked = {held.key: asked_for(refs[held.key], held.mail) for held in helds}
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
                there.mailbox.offer([found[ref] for ref in asked[held.key]])

    def _count_hold(self, held: Held) -> None:
        if held.rows and held.rows[-1].type == _TAKEN_OVER and held.rows[-1].fence == held.token:
            self._floor.metrics.takeovers.add()

    def _move_in(
        self, held: Held, sent: float, resident: Resident | None, workflow: Workflow[..., Any] | None
    ) -> Resident | None:
        if workflow is None or held.queue not in self._queues:
            self._turn_away(held, resident)
            return None
        settings, now = self._floor.settings, self._floor.now()
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
            resident = Resident(self._floor, held, workflow)
        if held.lapses > settings.lapses and held.status != "stuck":
            resident.poison(held.lapses, now)
        resident.lease_until = sent + settings.lease * 0.9
        self._rooms.enter(resident)
        self._floor.ring(resident)
        return resident

    def _turn_away(self, held: Held, resident: Resident | None) -> None:
        """The hint went astray: this is for the workers of another queue, or for those with other code."""
        if resident is not None:
            resident.drop()
        self._floor.spawn(self._send_on(held), "perdure-send-on")

    async def _send_on(self, held: Held) -> None:
        with contextlib.suppress(StoreError):  # then its lease ends by itself
            await self._store.release([(held.key, held.token)])
            if held.queue not in self._queues:
                await self._stream.publish([Hint(held.key, held.queue)])


def _was_given_back(answer: HoldAnswer) -> bool:
    """Whether it is an action that somebody has held before: perhaps more of them wait for whoever has a place."""
    return isinstance(answer, Held) and answer.token > 1 and answer.definition.startswith(ACTION)


def _ref(held: Held, resident: Resident | None) -> Ref:
    return resident.runs if resident is not None else ref_of(held.key, held.definition)
