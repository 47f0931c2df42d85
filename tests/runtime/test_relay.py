"""When a worker looks at what is due: as soon as it is told, and otherwise seldom."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

import asyncpg
import pytest

from perdure import Perdure, action, workflow
from perdure.core.records import Busy, Commit, Due, Head, Hint, HoldAnswer, Outcome, Park, Query, tenant_of
from perdure.errors import StoreRefused, StoreUnavailable
from perdure.runtime.execution.resident import Resident
from perdure.runtime.managing.tenants import NEWS
from perdure.runtime.settings import Settings
from perdure.runtime.work.rooms import Rooms
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres.address import read_address
from perdure.streams.memory import MemoryStream
from perdure.testing import World


@workflow
async def relayed_nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


class Asked(MemoryStore):
    """Counts questions; the answer to when something is due may take its time on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.late = 0.0
        self.under_way = asyncio.Event()

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        self.count["next_due"] += 1
        answer = await super().next_due(queues, definitions)
        self.under_way.set()
        await asyncio.sleep(self.late)
        return answer

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        self.count["claim"] += 1
        return await super().claim(queues, definitions, limit, grace)


def test_a_timer_that_is_set_while_the_store_is_asked_is_not_forgotten() -> None:
    async def scenario() -> float:
        store = Asked()
        async with Perdure(store, stream=MemoryStream(), linger=0, probe="30s", lease="60s") as app:
            store.late = 0.3
            async with app.working():
                await store.under_way.wait()  # the answer knows nothing of what comes now
                began = time.monotonic()
                run = await app.start(relayed_nap, 0.5)
                await run.result(timeout=20)
                return time.monotonic() - began

    took = asyncio.run(scenario())
    assert 0.5 <= took < 5, f"it woke up after {took:.2f} s"


class Told(MemoryStream):
    """Notes what was dealt with."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Hint] = []

    async def ack(self, hints: Sequence[Hint]) -> None:
        self.done += hints


class Claiming(MemoryStore):
    """Once told so, it says what is due when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        self.asked.set()
        await self.goes_on.wait()
        return await super().claim(queues, definitions, limit, grace)


def test_what_a_worker_is_told_while_it_looks_what_is_due_is_not_forgotten() -> None:
    async def scenario() -> None:
        store, stream = Claiming(), Told()
        async with Perdure(store, stream=stream, lease=60, grace=60, probe=60) as app:
            await app.tenants.suspend("small")
            async with app.working():
                run = await app.start(relayed_nap, 0.0, tenant="small")
                async with asyncio.timeout(10):
                    while run.key not in [hint.key for hint in stream.done]:  # it was passed over
                        await asyncio.sleep(0.001)
                    store.goes_on.clear()
                    store.asked.clear()
                    await stream.publish([Hint("", "default")])
                    await store.asked.wait()
                    stream.done.clear()
                    await app.tenants.resume("small")
                    while NEWS not in [hint.news for hint in stream.done]:
                        await asyncio.sleep(0.001)
                store.goes_on.set()
                await run.result(timeout=20)

    asyncio.run(scenario())


class Parking(MemoryStore):
    """What was parked is found to be due before that is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed = asyncio.Event()
        self.look: Callable[[], Awaitable[None]]

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        dues = await super().claim(queues, definitions, limit, grace)
        if dues:
            self.claimed.set()
        return dues

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        answers = await super().commit(group, grace)
        if any(isinstance(one.settle, Park) for one in group):
            await asyncio.sleep(0.1)
            await self.look()
            await self.claimed.wait()
        return answers


def test_a_timer_that_is_due_before_the_park_is_answered_is_not_late() -> None:
    async def scenario() -> None:
        store, stream = Parking(), MemoryStream()
        store.look = lambda: stream.publish([Hint("", "default")])
        async with Perdure(store, stream=stream, linger=0, lease=60, grace=60, probe=60) as app, app.working():
            run = await app.start(relayed_nap, 0.05)
            await run.result(timeout=20)

    asyncio.run(scenario())


def test_a_worker_at_rest_asks_when_and_not_what() -> None:
    async def scenario() -> Counter[str]:
        store = Asked()
        async with Perdure(store, stream=MemoryStream(), linger=0, probe="100ms") as app, app.working():
            run = await app.start(relayed_nap, 0.1)
            await run.result(timeout=20)
            nap = await app.start(relayed_nap, 60)
            await nap.until("waiting", timeout=20)
            await asyncio.sleep(0.2)
            store.count.clear()
            await asyncio.sleep(1)
            return store.count

    count = asyncio.run(scenario())
    assert count["claim"] == 0
    assert 5 <= count["next_due"] <= 11, "the pause between two looks is a setting"


@action
async def relayed_step() -> None:
    await asyncio.sleep(0.01)


@workflow
async def relayed_steps() -> None:
    await relayed_step()


class Mute(MemoryStream):
    """Tells nobody of work, which is due at once therefore."""

    @property
    def carries(self) -> bool:
        return False

    async def publish(self, hints: Sequence[Hint]) -> None:
        await super().publish([hint for hint in hints if hint.ended])


def test_a_place_that_comes_free_while_the_store_is_asked_is_given_away_at_once() -> None:
    async def scenario() -> None:
        store = Asked()
        async with Perdure(store, stream=Mute(), resident=1, grace=60, linger=0, probe=60) as app:
            runs = [await app.start(relayed_steps) for _ in range(4)]
            store.late = 0.2  # while it is asked when something is due, what was claimed before has long ended
            async with app.working():
                await asyncio.gather(*(run.result(timeout=20) for run in runs))

    asyncio.run(scenario())


class Holding(Asked):
    """What is not there takes its time to be missed."""

    def __init__(self) -> None:
        super().__init__()
        self.holds, self.missed = asyncio.Event(), asyncio.Event()

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        if keys == ["default/gone"]:
            self.holds.set()
            await self.missed.wait()
        return await super().hold(keys, me, lease, known)


def test_a_place_that_was_kept_for_one_who_does_not_come_is_given_away_at_once() -> None:
    async def scenario() -> None:
        store, stream = Holding(), MemoryStream()
        app = Perdure(store, stream=stream, resident=1, lease=60, grace=60, probe=60)
        async with app, Perdure(store, stream=MemoryStream(), grace=0) as outside, app.working():
            await stream.publish([Hint("default/gone", "default")])
            await store.holds.wait()
            due = await outside.start(relayed_steps)
            store.count.clear()
            await stream.publish([Hint("", "default")])
            async with asyncio.timeout(10):
                while not store.count["next_due"]:  # it was looked, and there was no place
                    await asyncio.sleep(0.001)
            store.missed.set()
            await app.get(due.id).result(timeout=20)

    asyncio.run(scenario())


class Held(MemoryStore):
    """Somebody else has one of them."""

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        answers = await super().hold(keys, me, lease, known)
        return [Busy(one.key, "somebody") if one.key == "default/held" else one for one in answers]


class Forwarding(MemoryStream):
    """Notes for somebody else take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def publish(self, hints: Sequence[Hint]) -> None:
        if any(hint.to == "somebody" for hint in hints):
            self.asked.set()
            await self.goes_on.wait()
        await super().publish(hints)


def test_what_has_come_and_gone_before_all_of_its_hold_are_here_is_held_again_when_it_is_due() -> None:
    async def scenario() -> None:
        store, stream = Held(), Forwarding()
        app = Perdure(store, stream=stream, linger=0, lease=60, grace=60, probe=60)
        async with app, Perdure(store, stream=Unheard("nobody"), grace=60) as outside, app.working():
            nap = await outside.start(relayed_nap, 0.05)
            await stream.publish([Hint(nap.key, "default"), Hint("default/held", "default")])
            try:
                async with asyncio.timeout(10):
                    await stream.asked.wait()
                await app.get(nap.id).result(timeout=20)
            finally:
                stream.goes_on.set()

    asyncio.run(scenario())


def test_what_is_asked_for_again_keeps_its_place_when_the_hold_that_brought_it_before_is_over() -> None:
    class One:
        key = "default/one"

    rooms, first, second = Rooms(Settings(resident=2)), object(), object()
    rooms.ask([One.key, "default/two"], first)
    rooms.enter(cast(Resident, One()))
    assert (rooms.free(), [*rooms.holding]) == (0, ["default/two"])
    rooms.residents.clear()
    rooms.ask([One.key], second)
    rooms.answered([One.key, "default/two"], first)
    assert (rooms.free(), [*rooms.holding]) == (1, [One.key])
    rooms.answered([One.key], second)
    assert rooms.free() == 2


@workflow
async def relayed_pair() -> None:
    await asyncio.sleep(0.1)
    await asyncio.gather(relayed_gate(), relayed_step())


class Away(Mute):
    """Tells others alone of what runs apart, and there are none."""

    async def publish(self, hints: Sequence[Hint]) -> None:
        await MemoryStream.publish(self, [hint for hint in hints if not hint.away])


def test_what_runs_apart_and_nobody_else_takes_gets_the_next_place_that_comes_free() -> None:
    async def scenario() -> None:
        Gate.opened = asyncio.Event()
        store = Asked()
        app = Perdure(store, stream=Away(), concurrency=1, spill=0, lease=60, grace=60, probe=60)
        async with app, app.working() as worker:
            run = await app.start(relayed_pair)
            async with asyncio.timeout(10):
                while not (await app.find(workflow=f"action:{relayed_step.name}")).heads:
                    await asyncio.sleep(0.001)
            assert worker.attempts.running == 1
            Gate.opened.set()
            await run.result(timeout=20)

    asyncio.run(scenario())


class Once(MemoryStream):
    """Brings back only the first hint of what runs apart."""

    told = 0

    async def publish(self, hints: Sequence[Hint]) -> None:
        self.told += sum(hint.away for hint in hints)
        await super().publish([hint for hint in hints if not hint.away or self.told == 1])


class Releasing(MemoryStore):
    """What is given back is free when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        self.asked.set()
        await self.goes_on.wait()
        await super().release(holds)


def test_a_place_that_comes_free_while_something_is_given_back_for_want_of_it_is_taken_by_that() -> None:
    async def scenario() -> None:
        Gate.opened = asyncio.Event()
        store = Releasing()
        app = Perdure(store, stream=Once(), concurrency=1, spill=0, lease=60, grace=60, probe=60)
        async with app, app.working() as worker:
            run = await app.start(relayed_pair)
            async with asyncio.timeout(10):
                await store.asked.wait()
                Gate.opened.set()
                while worker.attempts.running:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.05)  # it was looked, and found nothing yet
                store.goes_on.set()
            await run.result(timeout=20)

    asyncio.run(scenario())


@pytest.mark.world(resident=1, grace=0, probe="1h")
async def test_a_full_worker_lets_time_pass_between_two_looks_though_hints_are_given_none(world: World) -> None:
    runs = [await world.start(relayed_long_steps) for _ in range(3)]
    for run in runs:
        await run.result()


class Gate:
    opened: asyncio.Event  # of this loop


@action
async def relayed_gate() -> None:
    await Gate.opened.wait()
    await asyncio.sleep(0.01)


@workflow
async def relayed_behind_a_gate() -> None:
    await relayed_gate()


class Behind(MemoryStream):
    """Has brought the hints of one tenant only: those of the other are behind very many."""

    async def publish(self, hints: Sequence[Hint]) -> None:
        await super().publish([hint for hint in hints if hint.ended or tenant_of(hint.key) != "small"])


@pytest.mark.parametrize("resident", [1, 8])
def test_what_is_due_gets_a_place_though_the_hints_of_others_would_fill_all_of_them(resident: int) -> None:
    count, few = 100 * resident, resident

    async def scenario() -> int:
        Gate.opened = asyncio.Event()
        app = Perdure(MemoryStore(), stream=Behind(), resident=resident, concurrency=100, grace=0.1, linger=0, probe=30)
        async with app, app.working():
            flood = [await app.start(relayed_behind_a_gate, tenant="big") for _ in range(count)]
            small = [await app.start(relayed_steps, tenant="small") for _ in range(few)]
            Gate.opened.set()
            await asyncio.gather(*(run.result(timeout=60) for run in small))
            ended = [await run.status() for run in flood].count("completed")
            await asyncio.gather(*(run.result(timeout=60) for run in flood))
            return ended

    before = asyncio.run(scenario())
    assert before < count / 2, f"{before} of {count} others went before {few} that were due"


@action
async def relayed_long_step() -> None:
    await asyncio.sleep(0.5)


@workflow
async def relayed_long_steps() -> None:
    await relayed_long_step()


class Claims(MemoryStore):
    """Can be told not to answer what is due; notes for how much it was asked."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[int] = []

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        self.limits.append(limit)
        if self.fails:
            raise StoreUnavailable("it takes too long to find out what is due")
        return await super().claim(queues, definitions, limit, grace)


def test_places_that_are_spared_for_what_is_due_are_given_to_hints_if_nobody_can_say_what_is_due() -> None:
    async def scenario() -> None:
        store = Claims()
        app = Perdure(store, stream=MemoryStream(), resident=1, grace=0.1, linger=0, probe=30)
        async with app, app.working() as worker:
            await app.start(relayed_long_steps)
            while not worker.residents:
                await asyncio.sleep(0.001)
            following = [await app.start(relayed_steps) for _ in range(5)]
            async with asyncio.timeout(10):
                while not worker.rooms.spared:
                    await asyncio.sleep(0.001)
            store.fails = True
            for run in following:
                await run.result(timeout=10)

    asyncio.run(scenario())


class Unheard(MemoryStream):
    """Brings only the hints of one execution to those who take them; all others have got lost."""

    def __init__(self, heard: str) -> None:
        super().__init__()
        self.heard = heard

    async def publish(self, hints: Sequence[Hint]) -> None:
        await super().publish([hint for hint in hints if hint.ended or self.heard in hint.key])


def test_hints_get_places_though_what_is_due_would_fill_all_of_them() -> None:
    count = 200

    async def scenario() -> int:
        Gate.opened = asyncio.Event()
        store = MemoryStore()
        async with Perdure(store, stream=Unheard("nobody"), grace=0) as outside:
            flood = [await outside.start(relayed_behind_a_gate) for _ in range(count)]  # all of them are due
            app = Perdure(store, stream=Unheard("hinted"), resident=2, grace=30, linger=0, probe=30)
            async with app, app.working() as worker:
                while not worker.rooms.spared:
                    await asyncio.sleep(0.001)
                hinted = [await app.start(relayed_steps, id=f"hinted-{number}") for number in range(4)]
                Gate.opened.set()
                await asyncio.gather(*(run.result(timeout=60) for run in hinted))
                ended = [await run.status() for run in flood].count("completed")
                await asyncio.gather(*(run.result(timeout=60) for run in flood))
                return ended

    before = asyncio.run(scenario())
    assert before < count / 2, f"{before} of {count} that were due went before 4 that were hinted"


class Tenants(Claims):
    """To look who is suspended takes its time, once somebody waits for that."""

    def __init__(self) -> None:
        super().__init__()
        self.looking, self.looked = asyncio.Event(), asyncio.Event()
        self.looked.set()

    async def find(self, query: Query) -> list[Head]:
        self.looking.set()
        await self.looked.wait()
        return await super().find(query)


def test_nothing_is_claimed_when_all_places_are_taken_while_it_is_looked_who_is_suspended() -> None:
    async def scenario() -> list[int]:
        store, stream = Tenants(), MemoryStream()
        app = Perdure(store, stream=stream, resident=1, grace=0.1, linger=0, probe=30)
        async with app, app.working() as worker:
            while not store.limits:  # the first look is over
                await asyncio.sleep(0.001)
            store.looking.clear()
            store.looked.clear()
            await stream.publish([Hint("", news=NEWS)])
            await store.looking.wait()
            run = await app.start(relayed_long_steps)
            while not worker.residents:
                await asyncio.sleep(0.001)
            store.looked.set()
            await run.result(timeout=10)
            return store.limits

    limits = asyncio.run(scenario())
    assert min(limits) > 0, "to some stores none is as much as all"


class Overtaxed(MemoryStore):
    """A write that hangs is refused in the end, and so is that its execution is stuck."""

    hung = ""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = asyncio.Event()

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        if any(one.key == self.hung for one in group):
            await self.refuses.wait()
            raise StoreRefused("it is too much")
        return await super().commit(group, grace)


def test_a_worker_whose_write_has_hung_takes_what_is_hinted_however_the_write_went() -> None:
    async def scenario() -> None:
        store = Overtaxed()
        app = Perdure(store, stream=MemoryStream(), lease=0.3, grace=30, probe=30, probe_idle=30)
        async with app, app.working() as worker:
            store.hung = (await app.start(relayed_steps, id="hangs")).key
            async with asyncio.timeout(10):
                while worker.rooms.free() > 0:
                    await asyncio.sleep(0.01)
            run = await app.start(relayed_steps)
            await asyncio.sleep(0.1)
            assert run.key not in worker.residents
            store.refuses.set()
            await run.result(timeout=10)

    asyncio.run(scenario())


def test_after_a_write_that_hung_places_that_were_spared_meanwhile_are_given_away_at_once() -> None:
    async def scenario() -> None:
        store = Overtaxed()
        app = Perdure(store, stream=Unheard("h"), resident=2, lease=0.3, grace=30, probe=30, probe_idle=0.1)
        async with app, Perdure(store, stream=Unheard("nobody"), grace=0) as outside, app.working() as worker:
            store.hung = (await app.start(relayed_steps, id="hangs")).key
            async with asyncio.timeout(10):
                while worker.rooms.free() > 0:
                    await asyncio.sleep(0.01)
                due = await outside.start(relayed_steps, id="due")
                while not worker.rooms.spared:
                    await asyncio.sleep(0.01)
            run = await app.start(relayed_steps, id="hinted")
            await asyncio.sleep(0.1)
            store.refuses.set()
            await run.result(timeout=5)
            await app.get(due.id).result(timeout=5)

    asyncio.run(scenario())


@pytest.mark.parametrize("hours", [-24, 1])
def test_the_clock_of_the_database_decides_and_that_of_the_worker_does_not_matter(postgres: str, hours: int) -> None:
    address = read_address(postgres)

    async def scenario() -> None:
        async with Perdure(postgres):
            connection = await asyncpg.connect(address.dsn)
            await connection.execute(
                f'create or replace function "{address.schema}".now_us() returns bigint language sql volatile as'
                f" $$ select ((extract(epoch from clock_timestamp()) + {hours * 3600}) * 1000000)::bigint $$"
            )
            await connection.close()
        async with Perdure(postgres, linger=0, lease="1s", grace=0.2) as app, app.working():
            began = time.monotonic()
            run = await app.start(relayed_nap, 1.2)  # longer than a lease
            await run.result(timeout=20)
            took = time.monotonic() - began
            assert 1.2 <= took < 5, f"it slept for {took:.2f} s"
            log = await run.log()
            assert "TakenOver" not in [entry.type for entry in log]
            for entry in log:
                assert abs(entry.at.timestamp() - time.time() - hours * 3600) < 30, "the log has the database's time"

    asyncio.run(scenario())
