"""Actions that run apart and wait for a place: a worker that has none gives them back, for one that has."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from perdure import Run, action, workflow
from perdure.core.records import Query
from perdure.errors import StoreUnavailable
from perdure.runtime.work.worker import Worker
from perdure.testing import World
from perdure.testing.machine import Machine

calls: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()


@action(queue="elsewhere")
async def shoot(seconds: float) -> float:
    calls[action.key] += 1
    await asyncio.sleep(seconds)
    return seconds


@workflow(name="sharing-film")
async def film(scenes: int, seconds: float) -> int:
    return len(await asyncio.gather(*(shoot(seconds) for _ in range(scenes))))


@action(queue="elsewhere", everywhere=1)
async def print_out(seconds: float) -> None:
    calls[action.key] += 1
    await asyncio.sleep(seconds)


@workflow(name="sharing-book")
async def book(pages: int) -> None:
    await asyncio.gather(*(print_out(5) for _ in range(pages)))


@action(queue="elsewhere", concurrency=1)
async def scan(seconds: float) -> None:
    calls[action.key] += 1
    await asyncio.sleep(seconds)


@workflow(name="sharing-archive")
async def archive(pages: int) -> None:
    await asyncio.gather(*(scan(5) for _ in range(pages)))


def one_place(**settings: Any) -> World:
    return World(workers=0, concurrency=1, **settings)


async def crew(world: World, count: int) -> list[Machine]:
    """One for workflows, and so many for what they order elsewhere."""
    world.add_worker(queues=["default"])
    made = [world.add_worker(queues=["elsewhere"]) for _ in range(count)]
    await world.settle()
    return made


def worker_of(machine: Machine) -> Worker:
    assert machine.app.worker is not None
    return machine.app.worker


def given_back(*machines: Machine) -> int:
    return sum(worker_of(machine).metrics.given_back.counts[""] for machine in machines)


def waiting(machine: Machine) -> int:
    return len(worker_of(machine).residents) - worker_of(machine).attempts.running


async def seconds_until_done(world: World, run: Run[Any]) -> float:
    began = world.micros()
    await run.result()
    return (world.micros() - began) / 1e6


async def test_one_that_comes_later_gets_its_share_of_what_the_first_has_no_place_for(world: World) -> None:
    async with one_place() as fleet:
        [first] = await crew(fleet, 1)
        run = await fleet.start(film, 12, 10)
        await fleet.advance("500ms")
        assert waiting(first) == 11, "it has taken all that was hinted to it"
        second = fleet.add_worker(queues=["elsewhere"])
        assert await seconds_until_done(fleet, run) < 75
        assert list(calls.values()) == [1] * 12
        assert given_back(first) > 0 and worker_of(second).metrics.actions.counts["ok"] >= 5


async def test_what_nobody_hinted_is_taken_as_far_as_there_are_places(world: World) -> None:
    async with one_place() as fleet:
        fleet.add_worker(queues=["default"])
        run = await fleet.start(film, 12, 10)
        await fleet.advance("10s")
        first = fleet.add_worker(queues=["elsewhere"])
        await fleet.advance("5s")
        assert waiting(first) <= 2, "the rest is anybody's"
        fleet.add_worker(queues=["elsewhere"])
        assert await seconds_until_done(fleet, run) < 75
        assert list(calls.values()) == [1] * 12


async def test_many_who_are_idle_hear_of_it_soon(world: World) -> None:
    async with one_place() as fleet:
        [first] = await crew(fleet, 1)
        run = await fleet.start(film, 60, 1)
        await fleet.advance("500ms")
        assert waiting(first) == 59
        for _ in range(5):
            fleet.add_worker(queues=["elsewhere"])
        assert await seconds_until_done(fleet, run) < 14
        assert list(calls.values()) == [1] * 60


async def test_a_place_that_comes_free_is_taken_soon_by_what_waits_in_the_store(world: World) -> None:
    async with one_place(spill="1h") as fleet:
        fleet.add_worker(queues=["default"])
        run = await fleet.start(film, 10, 1)
        await fleet.advance("10s")
        fleet.add_worker(queues=["elsewhere"])
        assert await seconds_until_done(fleet, run) < 12
        assert list(calls.values()) == [1] * 10


async def test_alone_a_worker_gets_through_all_of_it(world: World) -> None:
    async with one_place() as fleet:
        await crew(fleet, 1)
        run = await fleet.start(film, 10, 5)
        assert await seconds_until_done(fleet, run) < 55
        assert list(calls.values()) == [1] * 10


async def test_where_everybody_is_busy_little_is_moved(world: World) -> None:
    async with one_place() as fleet:
        busy = await crew(fleet, 2)
        run = await fleet.start(film, 22, 2000)
        await fleet.advance("500s")
        moved = given_back(*busy)
        assert moved > 0
        await fleet.advance("500s")
        # Each has one or two that wait, for 32 s by now; the others wait for whoever has a place.
        assert given_back(*busy) - moved <= 2 * 2 * 500 / 32
        await run.cancel("enough")
        await run.until("cancelled")


async def test_a_pause_and_a_resume_find_those_that_move(world: World) -> None:
    async with one_place() as fleet:
        await crew(fleet, 2)
        run = await fleet.start(film, 8, 10)
        for moment in (900, 1100, 300):
            await fleet.advance(f"{moment}ms")
            await run.pause()
            await run.until("paused")
            before = calls.total()
            await fleet.advance("1m")
            assert calls.total() == before
            await run.resume()
        assert await run.result() == 8
        assert list(calls.values()) == [1] * 8


async def test_a_cancel_finds_those_that_move(world: World) -> None:
    async with one_place() as fleet:
        await crew(fleet, 2)
        runs = [await fleet.start(film, 6, 1000, id=f"film-{number}") for number in range(3)]
        for number, run in enumerate(runs):
            await fleet.advance(f"{900 + 100 * number}ms")
            await run.cancel("enough")
        for run in runs:
            await run.until("cancelled")
            apart = await fleet.store.find(Query(tenant=None, parent=run.key))
            for head in apart:
                assert await fleet.app.get(head.key.partition("/")[2]).until("cancelled") == "cancelled"


async def test_what_waits_for_a_limit_that_holds_everywhere_stays_where_it_is(world: World) -> None:
    async with World(workers=0, concurrency=10) as fleet:
        both = await crew(fleet, 2)
        await (await fleet.start(book, 6)).result()
        assert list(calls.values()) == [1] * 6
        assert given_back(*both) == 0


async def test_what_waits_for_a_limit_of_its_worker_moves_to_another(world: World) -> None:
    async with World(workers=0, concurrency=10) as fleet:
        first, second = await crew(fleet, 2)
        await second.shut_down()
        run = await fleet.start(archive, 6)
        await fleet.advance("500ms")
        third = fleet.add_worker(queues=["elsewhere"])
        assert await seconds_until_done(fleet, run) < 25
        assert given_back(first) > 0 and worker_of(third).metrics.actions.counts["ok"] > 0


async def test_a_worker_that_is_told_to_stop_gives_back_what_waits(world: World) -> None:
    async with one_place(drain="5s") as fleet:
        first, _ = await crew(fleet, 2)
        run = await fleet.start(film, 6, 3)
        await fleet.advance("990ms")
        await first.shut_down()
        assert await seconds_until_done(fleet, run) < 25
        assert list(calls.values()) == [1] * 6


@pytest.mark.parametrize("under_way", ["flying", "inputs", "letters", "progress", "rows", "done", "draining"])
async def test_one_of_which_something_is_under_way_stays(world: World, under_way: str) -> None:
    async with one_place(spill="1h") as fleet:
        [first] = await crew(fleet, 1)
        run = await fleet.start(film, 2, 1)
        await fleet.advance("500ms")
        worker = worker_of(first)
        [resident] = [one for one in worker.residents.values() if not calls[f"{run.key}/{one.key[-1]}/shoot"]]
        [running] = resident.running.values()
        resident.running.clear()
        with pytest.MonkeyPatch.context() as patch:
            match under_way:
                case "flying":
                    patch.setattr(resident, "flying", True)
                case "draining":
                    patch.setattr(worker, "draining", True)
                case "inputs":
                    patch.setattr(resident, "inputs", [object()])
                case "letters":
                    patch.setattr(resident.mailbox, "letters", [object()])
                case "progress":
                    patch.setattr(resident, "_progress", {1: object()})
                case name:
                    patch.setattr(resident.draft, name, [object()])
            assert not worker.give_back(resident)
        resident.running[1] = running
        assert not worker.give_back(resident), "it is in the line"
        assert await run.result() == 2


async def test_nothing_is_lost_or_done_twice_when_they_crash_at_any_call(world: World) -> None:
    async with one_place() as fleet:
        report = await fleet.crash_everywhere(film, 3, 5.0, same_inputs=False)
        assert report.runs > 4


async def test_a_release_that_fails_only_costs_a_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_place() as fleet:
        [first] = await crew(fleet, 1)

        async def release(_: object) -> None:
            raise StoreUnavailable("not now")

        monkeypatch.setattr(worker_of(first)._sharing._store, "release", release)
        run = await fleet.start(film, 4, 10)
        await fleet.advance("500ms")
        fleet.add_worker(queues=["elsewhere"])
        assert await run.result() == 4
        assert given_back(first) > 0
        assert list(calls.values()) == [1] * 4
