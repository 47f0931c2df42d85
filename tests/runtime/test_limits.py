"""How many attempts run at once, and whose turn it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Perdure, action, workflow
from perdure.core.records import tenant_of
from perdure.errors import UsageError
from perdure.runtime.attempts.slots import ActionSlots, Slots
from perdure.testing import World, simulate

seen: list[Any] = []
running = 0


@pytest.fixture(autouse=True)
def forget() -> None:
    global running
    seen.clear()
    running = 0


async def busy(seconds: float = 1.0) -> None:
    """Note how many of us are at work."""
    global running
    running += 1
    seen.append(running)
    try:
        await asyncio.sleep(seconds)
    finally:
        running -= 1


@action(name="limits.few", concurrency=3)
async def few(number: int) -> int:
    await busy()
    return number


@action(name="limits.many")
async def many(name: str) -> str:
    seen.append(name)
    await asyncio.sleep(1)
    return name


@workflow(name="limits.some")
async def some(count: int) -> int:
    return sum(await asyncio.gather(*(few(number) for number in range(count))))


@workflow(name="limits.named")
async def named(name: str) -> str:
    return await many(name)


async def test_no_more_attempts_of_an_action_run_at_once_than_it_allows(world: World) -> None:
    runs = [await world.start(some, 5) for _ in range(4)]
    assert [await run.result() for run in runs] == [10, 10, 10, 10]
    assert len(seen) == 20
    assert max(seen) == 3


@pytest.mark.world(concurrency=4)
async def test_no_more_attempts_run_at_once_than_the_worker_has_places(world: World) -> None:
    @action(name="limits.unlimited")
    async def unlimited() -> None:
        await busy()

    @workflow(name="limits.all")
    async def everything(count: int) -> None:
        await asyncio.gather(*(unlimited() for _ in range(count)), *(few(number) for number in range(count)))

    for run in [await world.start(everything, 5) for _ in range(4)]:
        await run.result()
    assert len(seen) == 40
    assert max(seen) == 4


@pytest.mark.world(concurrency=4)
async def test_a_full_action_takes_no_places_that_others_could_have(world: World) -> None:
    await world.start(some, 50)
    await world.settle()
    before = world.now()
    assert await world.run(named, "x") == "x"
    assert (world.now() - before).total_seconds() == 1, "it did not wait for the others"


async def test_first_come_first_served(world: World) -> None:
    @action(concurrency=1)
    async def note(number: int) -> None:
        seen.append(number)
        await asyncio.sleep(1)

    @workflow
    async def notes() -> None:
        await asyncio.gather(*(note(number) for number in range(10)))

    await world.run(notes)
    assert seen == list(range(10))


async def test_the_place_of_an_attempt_that_fails_or_is_cancelled_is_free_again(world: World) -> None:
    @action(concurrency=1)
    async def only(how: str) -> str:
        if how == "fail":
            raise ValueError("no")
        await asyncio.sleep(5)
        return how

    @workflow
    async def one(how: str) -> str:
        return await only(how)

    await (await world.start(one, "fail")).until("failed")
    runs = [await world.start(one, how) for how in ("running", "waiting", "last")]
    await world.advance("1s")
    for run in runs[:2]:
        await run.cancel()
    assert await runs[2].result() == "last"


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        action(concurrency=0)


# --- in all workers together -----------------------------------------------------------------------------------------


@action(name="limits.shared", everywhere=2)
async def shared(seconds: float = 1.0) -> None:
    await busy(seconds)


@workflow(name="limits.shares")
async def shares(seconds: float = 1.0) -> None:
    await asyncio.gather(*(shared(seconds) for _ in range(3)))


@pytest.mark.world(workers=3)
async def test_no_more_attempts_run_at_once_in_all_workers_than_the_action_allows(world: World) -> None:
    for run in [await world.start(shares) for _ in range(8)]:
        await run.result()
    assert len(seen) == 24
    assert max(seen) == 2
    assert len({entry for head in await world.heads() for entry in await ran_by(world, head.key)}) > 1


async def ran_by(world: World, key: str) -> set[str]:
    """The workers that ran the actions of an execution."""
    log = await world.app.get(key.partition("/")[2]).log() if key.startswith("default/") else []
    return {entry.data["worker"] for entry in log if entry.type == "ActionSettled"}


@pytest.mark.world(workers=2, concurrency=4)
async def test_who_waits_for_a_place_elsewhere_takes_none_that_others_could_have(world: World) -> None:
    for _ in range(20):
        await world.start(shares, 600.0)
    await world.advance("1s")
    before = world.now()
    assert await world.run(named, "x") == "x"
    assert (world.now() - before).total_seconds() == 1


@pytest.mark.world(workers=2, lease="10s")
async def test_the_places_of_a_worker_that_died_are_free_when_its_lease_is_over(world: World) -> None:
    await world.start(shares, 5.0)
    await world.advance("1s")
    assert seen == [1, 2]
    for machine in list(world.workers):
        machine.process.kill()
    global running
    running = 0
    world.add_worker()
    before = world.now()
    run = await world.start(shares, 5.0)
    await run.result()
    assert max(seen) == 2
    assert (world.now() - before).total_seconds() < 60


@pytest.mark.world(workers=1)
async def test_a_worker_that_stops_does_not_wait_for_places_and_gives_its_own_back(world: World) -> None:
    run = await world.start(shares, 5.0)
    await world.advance("1s")
    (leaving,) = world.workers
    world.add_worker()
    before = world.now()
    await leaving.shut_down()
    assert (world.now() - before).total_seconds() == 4
    await run.result()
    assert (world.now() - before).total_seconds() < 11
    assert (len(seen), max(seen)) == (3, 2)


def test_places_in_all_workers_hold_up_nothing_for_ever_whatever_goes_wrong() -> None:
    simulate(shares, seeds=range(8))


def test_an_external_action_has_no_places_here() -> None:
    with pytest.raises(UsageError, match="everywhere"):
        action(external=True, queue="limits-x", everywhere=1)(lambda: None)
    with pytest.raises(UsageError, match="everywhere must be at least 1"):
        action(everywhere=0)


# --- places, by themselves -------------------------------------------------------------------------------------------


def test_a_place_that_was_given_to_somebody_who_left_is_passed_on() -> None:
    async def body() -> None:
        slots = Slots(1)
        await slots.enter("a")
        leaves, stays = asyncio.create_task(slots.enter("a")), asyncio.create_task(slots.enter("a"))
        await asyncio.sleep(0)
        slots.leave()
        leaves.cancel()  # it has its place but does not know it yet
        await asyncio.wait_for(asyncio.gather(leaves, stays, return_exceptions=True), 20)
        assert leaves.cancelled()
        slots.leave()
        assert slots.free == 1

    asyncio.run(body())


def test_who_stops_waiting_for_the_worker_gives_the_place_of_its_action_back() -> None:
    async def body() -> None:
        slots = ActionSlots(1)
        await slots.enter("a", "other", None)
        waiting = asyncio.create_task(slots.enter("a", "few", 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        slots.leave("other", None)
        await asyncio.wait_for(slots.enter("a", "few", 1), 20)

    asyncio.run(body())


def test_nobody_enters_after_the_end() -> None:
    async def body() -> None:
        slots = ActionSlots(1)
        await slots.enter("a", "few", 1)
        waiting = [asyncio.create_task(slots.enter("a", name, limit)) for name, limit in (("few", 1), ("x", None))]
        await asyncio.sleep(0)
        slots.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert all(task.cancelled() for task in waiting)
        slots.leave("few", 1)
        with pytest.raises(asyncio.CancelledError):
            await slots.enter("a", "few", 1)

    asyncio.run(body())


# --- tenants ---------------------------------------------------------------------------------------------------------


async def start(app: Perdure, tenant: str, name: str) -> None:
    await app.start(named, name, id=name, tenant=tenant)


@pytest.mark.world(concurrency=1)
async def test_tenants_take_turns_at_the_places_of_a_worker(world: World) -> None:
    for number in range(100):
        await start(world.app, "flood", f"flood-{number}")
    await world.settle()
    await start(world.app, "small", "small")
    await world.advance("3s")
    assert "small" in seen[:3]


@pytest.mark.world(concurrency=4)
async def test_tenants_take_turns_at_the_places_of_an_action(world: World) -> None:
    @action(concurrency=1)
    async def single(name: str) -> None:
        seen.append(name)
        await asyncio.sleep(1)

    @workflow
    async def singles(name: str, count: int) -> None:
        await asyncio.gather(*(single(name) for _ in range(count)))

    await world.app.start(singles, "flood", 50, tenant="flood")
    await world.settle()
    await world.app.start(singles, "small", 1, tenant="small")
    await world.advance("3s")
    assert "small" in seen[:3]


@pytest.mark.world(resident=10, grace="1h")
async def test_a_tenant_that_floods_a_worker_does_not_keep_another_out(world: World) -> None:
    # Given a worker that is full, and many more that wait for a place
    await asyncio.gather(*(start(world.app, "flood", f"flood-{number}") for number in range(5000)))
    await world.settle()
    assert len(seen) == 10
    # When another tenant comes with one
    await start(world.app, "small", "small")
    await world.settle()
    (machine,) = world.workers
    assert machine.app.worker is not None
    assert {tenant_of(key) for key in machine.app.worker.residents} == {"flood"}
    # Then it is among the next that are let in.
    await world.advance("1s")
    assert "small" in seen[:20]
