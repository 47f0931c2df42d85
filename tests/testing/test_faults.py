"""Processes that die and stop, and gates that lose, refuse and delay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from msgspec import Raw

from perdure.core import events as ev
from perdure.core.records import Commit, Head, Held, Hint, Mail, Start
from perdure.errors import OutcomeUnknown, StoreUnavailable
from perdure.ports import Store, Stream
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import Hub, MemoryStream
from perdure.testing.clock import VirtualLoop, run
from perdure.testing.contract import StoreContract, StreamContract
from perdure.testing.faults import CrashPoints, Gate, GatedStore, GatedStream, Process, WrongClock
from perdure.testing.swarm import Fault, NoFaults, RandomFaults, Rates

KEY = "acme/one"


class TestGatedStoreIsAStore(StoreContract):
    async def make_store(self) -> Store:
        return GatedStore(MemoryStore(self.clock), Gate(Process("p")))


class TestGatedStreamIsAStream(StreamContract):
    async def make_streams(self, count: int) -> Sequence[Stream]:
        hub = Hub()
        return [GatedStream(MemoryStream(hub), Process(f"p{number}")) for number in range(count)]


class Always(NoFaults):
    """Every call of one verb has the same fate."""

    def __init__(self, verb: str, fault: Fault) -> None:
        self.verb = verb
        self.fault = fault

    def call(self, verb: str) -> Fault:
        return self.fault if verb == self.verb else Fault()


def start() -> Start:
    return Start(KEY, "w", "w@1", "default", "sha", (ev.row(ev.Started("w", 1, Raw(b"[]")), 1, 0),))


async def head(store: Store) -> Head:
    found = await store.head(KEY)
    assert found is not None
    return found


def time() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.virtual_time
async def test_a_killed_process_does_nothing_any_more():
    inner, process, seen = MemoryStore(), Process("p"), []
    store = GatedStore(inner, Gate(process))

    async def work() -> None:
        try:
            while True:
                await store.start([start()], 0)
                seen.append(time())
                await asyncio.sleep(1)
        finally:
            seen.append(-1.0)

    process.spawn(work())
    await asyncio.sleep(2.5)
    process.kill()
    await asyncio.sleep(10)
    assert seen == [0.0, 1.0, 2.0], "not even its clean-up runs"
    await process.bury()
    assert seen[-1] == -1.0


@pytest.mark.virtual_time
async def test_a_stopped_process_goes_on_later():
    process, seen = Process("p"), []

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(time())

    task = process.spawn(work())
    await asyncio.sleep(1.5)
    process.stop()
    await asyncio.sleep(10)
    process.cont()
    await task
    assert seen == [1.0, 11.5, 12.5]


@pytest.mark.real_time
async def test_gates_hold_also_where_the_loop_cannot_freeze():
    process = Process("p")
    store = GatedStore(MemoryStore(), Gate(process))
    process.stop()
    waiting = asyncio.create_task(store.now())
    done, _ = await asyncio.wait([waiting], timeout=0.02)
    assert not done
    process.cont()
    await waiting
    process.kill()
    forever = asyncio.create_task(store.now())
    done, _ = await asyncio.wait([forever], timeout=0.02)
    assert not done
    forever.cancel()
    await asyncio.gather(forever, return_exceptions=True)


@pytest.mark.virtual_time
async def test_a_refused_call_has_no_effect():
    inner = MemoryStore()
    store = GatedStore(inner, Gate(Process("p"), Always("start", Fault(fate="refused"))))
    with pytest.raises(StoreUnavailable):
        await store.start([start()], 0)
    assert await inner.head(KEY) is None


@pytest.mark.virtual_time
async def test_a_lost_answer_comes_after_the_effect():
    inner = MemoryStore()
    store = GatedStore(inner, Gate(Process("p"), Always("start", Fault(fate="lost"))))
    with pytest.raises(OutcomeUnknown):
        await store.start([start()], 0)
    assert (await head(inner)).version == 1


@pytest.mark.virtual_time
async def test_a_lost_answer_to_a_question_is_only_an_error():
    store = GatedStore(MemoryStore(), Gate(Process("p"), Always("now", Fault(fate="late", later=1))))
    with pytest.raises(StoreUnavailable):
        await store.now()


@pytest.mark.virtual_time
async def test_a_late_effect_comes_even_if_its_sender_is_dead():
    inner, process = MemoryStore(), Process("p")
    gate = Gate(process, Always("start", Fault(fate="late", later=3)))
    with pytest.raises(OutcomeUnknown):
        await GatedStore(inner, gate).start([start()], 0)
    process.kill()
    await asyncio.sleep(2.9)
    assert await inner.head(KEY) is None
    await asyncio.sleep(0.2)
    assert (await head(inner)).version == 1


@pytest.mark.virtual_time
async def test_effects_under_way_can_be_waited_for_and_called_off():
    inner = MemoryStore()
    gate = Gate(Process("p"), Always("start", Fault(fate="late", later=3)))
    for wait in (gate.close, gate.landed):
        with pytest.raises(OutcomeUnknown):
            await GatedStore(inner, gate).start([start()], 0)
        await wait()
        assert (await inner.head(KEY) is not None) == (wait == gate.landed)


@pytest.mark.virtual_time
async def test_latency_is_on_both_ways():
    inner = MemoryStore()
    store = GatedStore(inner, Gate(Process("p"), Always("start", Fault(there=1, back=2))))
    task = asyncio.create_task(store.start([start()], 0))
    await asyncio.sleep(0.9)
    assert await inner.head(KEY) is None
    await asyncio.sleep(0.2)
    assert await inner.head(KEY) is not None
    await task
    assert time() == 3


@pytest.mark.virtual_time
async def test_of_a_mailbox_the_oldest_letters_may_come_first():
    store = MemoryStore()
    await store.start([start()], 0)
    await store.send([Mail(KEY, name, b"{}") for name in ("a", "b", "c")], 0)
    process = Process("p")
    for letters, brought in ((0, ["a", "b", "c"]), (2, ["a", "b"])):
        looking = GatedStore(store, Gate(process, Always("mail", Fault(letters=letters))))
        assert [one.id for one in (await looking.mail([KEY]))[KEY]] == brought
        holding = GatedStore(store, Gate(process, Always("hold", Fault(letters=letters))))
        [held] = await holding.hold([KEY], "p", 1_000_000)
        assert isinstance(held, Held)
        assert [one.id for one in held.mail] == brought


@pytest.mark.virtual_time
async def test_what_is_sent_is_what_was_meant_then():
    inner = MemoryStore()
    store = GatedStore(inner, Gate(Process("p"), Always("commit", Fault(there=1))))
    await store.start([start()], 0)
    [held] = await store.hold([KEY], "me", 10**7)
    rows = [ev.row(ev.Marked(1, "record"), 2, 0, held.token)]
    task = asyncio.create_task(store.commit([Commit(KEY, held.token, rows)], 0))
    await asyncio.sleep(0.5)
    rows.append(ev.row(ev.Marked(2, "record"), 3, 0, held.token))
    assert await task == ["ok"]
    assert (await head(inner)).version == 2


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.virtual_time
async def test_a_crash_point_kills_at_its_call(after: bool):
    inner, process = MemoryStore(), Process("p")
    points = CrashPoints(2, after=after)
    store = GatedStore(inner, Gate(process, points=points))

    async def work() -> None:
        await store.now()
        await store.start([start()], 0)
        await store.send([Mail(KEY, "m", b"1")], 0)
        raise AssertionError("it should be dead")

    process.spawn(work())
    await asyncio.sleep(1)
    assert process.killed and points.struck
    assert points.calls == ["now", "start", "send"]
    assert (await head(inner)).mail == (1 if after else 0)
    await process.bury()


@pytest.mark.virtual_time
async def test_the_witness_is_told_of_effects_only():
    seen: list[str] = []

    def witness(process: Process, verb: str, asked: object, answer: object) -> None:
        seen.append(f"{process.name} {verb} {answer}")

    gate = Gate(Process("p"), Always("now", Fault(fate="refused")), witness=witness)
    store = GatedStore(MemoryStore(), gate)
    await store.start([start()], 0)
    with pytest.raises(StoreUnavailable):
        await store.now()
    assert seen == ["p start ['created']"]


class Copies(NoFaults):
    def __init__(self, *copies: float) -> None:
        self.copies = copies

    def hint(self, hint: Hint) -> Sequence[float]:
        return self.copies


async def received(faults: NoFaults) -> list[tuple[float, str]]:
    hub = Hub()
    here, there = GatedStream(MemoryStream(hub), Process("a"), faults), GatedStream(MemoryStream(hub), Process("b"))
    await here.open("a", [])
    await there.open("b", ["default"])
    await here.publish([Hint(KEY, "default")])
    got: list[tuple[float, str]] = []
    try:
        async with asyncio.timeout(10):
            while True:
                got += [(time(), hint.key) for hint in await there.receive(10)]
    except TimeoutError:
        pass
    await here.close()
    await there.close()
    return got


def test_hints_can_be_lost_doubled_and_late():
    assert run(received(Copies(0.0))) == [(0.0, KEY)]
    assert run(received(Copies())) == []
    assert run(received(Copies(0.0, 2.0))) == [(0.0, KEY), (2.0, KEY)]
    assert run(received(Copies(3.0))) == [(3.0, KEY)]


@pytest.mark.virtual_time
async def test_hints_for_the_dead_go_to_the_living():
    hub, dying = Hub(), Process("a")
    dead, alive = GatedStream(MemoryStream(hub), dying), GatedStream(MemoryStream(hub), Process("b"))
    await dead.open("a", ["default"])
    await alive.open("b", ["default"])
    dying.kill()
    await asyncio.sleep(0)
    for number in range(3):
        await MemoryStream(hub).publish([Hint(f"acme/{number}", "default")])
    assert len(await alive.receive(10)) == 3
    await alive.close()


@pytest.mark.virtual_time
async def test_a_flush_loses_what_waits_and_nothing_else():
    stream = GatedStream(MemoryStream(), Process("a"))
    await stream.open("a", ["default"])
    await stream.publish([Hint("acme/lost", "default")])
    stream.flush()
    task = asyncio.create_task(stream.receive(10))
    await asyncio.sleep(1)
    await stream.publish([Hint(KEY, "default")])
    assert [hint.key for hint in await task] == [KEY]
    await stream.close()


def test_random_faults_come_as_often_as_asked_and_end_when_healed():
    faults = RandomFaults(Random(1), Rates(refused=0.2, lost=0.1, late=0.1, hint_lost=0.5, latency=0.1))
    fates = [faults.call("commit") for _ in range(1000)]
    assert 150 < sum(fault.fate == "refused" for fault in fates) < 250
    assert 150 < sum(fault.fate in ("lost", "late") for fault in fates) < 250
    assert 400 < sum(faults.hint(Hint(KEY)) == () for _ in range(1000)) < 600
    faults.heal()
    healed = [faults.call("commit") for _ in range(100)]
    assert {fault.fate for fault in healed} == {"done"}
    assert any(fault.there for fault in healed), "latency is not a fault"
    assert all(faults.hint(Hint(KEY)) == [0.0] for _ in range(100))


def test_calls_that_hang_do_so_there_or_back_until_all_is_healed():
    faults = RandomFaults(Random(1), Rates(hang=0.5, longest=8.0, letters=2))
    calls = [faults.call("commit") for _ in range(1000)]
    hung = [one for one in calls if one.there or one.back]
    assert 400 < len(hung) == faults.count["hung"] < 600
    assert all(not (one.there and one.back) and max(one.there, one.back) < 8 for one in hung)
    assert any(one.there for one in hung)
    assert any(one.back for one in hung)
    faults.heal()
    assert {faults.call("commit") for _ in range(100)} == {Fault(letters=2)}


@pytest.mark.virtual_time
async def test_a_wrong_clock_drifts_until_it_asks_again():
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    store = MemoryStore(loop.now)
    clock = WrongClock(store, 0.1)
    await clock.sync()
    await asyncio.sleep(10)
    assert clock.now() - loop.now() == 1_000_000
    await clock.sync()
    assert clock.now() == loop.now()
