"""Actions that run apart from their workflow: on the workers of another queue, each as an execution of its own."""

from __future__ import annotations

import asyncio

import pytest

from perdure import ActionFailed, Retry, action, workflow
from perdure.core import events as ev
from perdure.core.records import Query
from perdure.errors import UsageError
from perdure.runtime.run import Run
from perdure.testing import World

calls: list[tuple[str, int, str]] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()


async def split(world: World) -> World:
    """One worker for workflows, one for what they order elsewhere."""
    await world.workers[0].shut_down()
    for queue in ("default", "elsewhere"):
        world.add_worker(queues=[queue])
    await world.settle()
    return world


def note() -> None:
    calls.append((action.key, action.attempt, action.execution))


@action(queue="elsewhere")
async def shrink(n: int) -> int:
    note()
    return n * 2


@workflow
async def album(n: int) -> list[int]:
    return [await shrink(n), *await asyncio.gather(shrink(n + 1), shrink(n + 2))]


async def types(world: World, run: Run[object]) -> list[str]:
    return [entry.type for entry in await world.log(run)]


async def test_the_result_comes_back_and_the_key_is_that_of_the_call(world: World) -> None:
    fleet = await split(world)
    run = await fleet.start(album, 1, id="a")
    assert await run.result() == [2, 4, 6]
    assert sorted(calls) == [(f"default/a/{ref}/shrink", 1, "a") for ref in (1, 2, 3)]
    assert (await types(fleet, run)).count("ActionScheduled") == 3


async def test_a_worker_of_both_queues_runs_it_itself(world: World) -> None:
    run = await world.start(album, 1)
    assert await run.result() == [2, 4, 6]
    assert "ActionScheduled" not in await types(world, run)


async def test_executions_of_actions_are_found_only_when_asked_for(world: World) -> None:
    fleet = await split(world)
    await (await fleet.start(album, 1, id="a")).result()
    assert [head.key for head in (await fleet.app.find()).heads] == ["default/a"]
    assert len((await fleet.app.find(parent="a")).heads) == 3


async def test_retries_follow_the_options_of_the_call(world: World) -> None:
    fleet = await split(world)

    @action(queue="elsewhere")
    async def flaky() -> int:
        note()
        if action.attempt < 3:
            raise ConnectionError("not yet")
        return action.attempt

    @workflow
    async def patient() -> int:
        return await flaky.options(retries=Retry(attempts=3, first="10s", factor=1, step="20s", jitter=0))()

    began = fleet.micros()
    run = await fleet.start(patient)
    assert await run.result() == 3
    assert (fleet.micros() - began) // 1_000_000 == 10 + 30
    assert [attempt for _, attempt, _ in calls] == [1, 2, 3]
    settled = [ev.read(row) for row in await fleet.rows(run.key)]
    assert [event.attempts for event in settled if isinstance(event, ev.ActionSettled)] == [3]


async def test_a_failure_reaches_the_workflow_as_if_it_had_run_here(world: World) -> None:
    fleet = await split(world)

    class Refused(Exception):
        details = {"code": 7}

    @action(queue="elsewhere", raises=(Refused,))
    async def refuse() -> None:
        raise Refused("no")

    @workflow
    async def ask() -> list[object]:
        try:
            await refuse()
        except ActionFailed as error:
            if not isinstance(error, Refused):
                raise
            return [error.type, error.details, str(error)]
        raise AssertionError

    assert await fleet.run(ask) == ["Refused", {"code": 7}, "no"]


async def test_cancelling_the_workflow_ends_the_action(world: World) -> None:
    fleet = await split(world)
    gone = asyncio.Event()

    @action(queue="elsewhere")
    async def endless() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            gone.set()

    @workflow
    async def waits() -> None:
        await endless()

    run = await fleet.start(waits, id="w")
    await fleet.advance("1m")
    await run.cancel("enough")
    await run.until("cancelled")
    await asyncio.wait_for(gone.wait(), 60)
    assert await fleet.app.get("w.1").until("cancelled") == "cancelled"


async def test_a_timeout_recalls_the_action_and_its_late_result_changes_nothing(world: World) -> None:
    fleet = await split(world)

    @action(queue="elsewhere")
    async def slow() -> int:
        await asyncio.sleep(100)
        return 1

    @workflow
    async def hasty() -> str:
        try:
            async with asyncio.timeout(10):
                await slow()
        except TimeoutError:
            await asyncio.sleep(200)
            return "gave up"
        raise AssertionError

    run = await fleet.start(hasty, id="h")
    assert await run.result() == "gave up"
    assert await fleet.app.get("h.2").status() == "cancelled"
    assert "ActionSettled" not in await types(fleet, run)


async def test_what_nobody_awaited_ends_with_the_execution(world: World) -> None:
    fleet = await split(world)

    @action(queue="elsewhere")
    async def aside() -> None:
        await asyncio.sleep(1e6)

    @workflow
    async def leaves() -> str:
        keep.append(asyncio.create_task(aside()))
        await asyncio.sleep(1)
        return "done"

    keep: list[asyncio.Task[None]] = []
    assert await fleet.run(leaves, id="l") == "done"
    assert await fleet.app.get("l.2").until("cancelled") == "cancelled"


async def test_pause_stops_what_runs_apart_and_resume_lets_it_go_on(world: World) -> None:
    fleet = await split(world)

    @action(queue="elsewhere", retries=Retry(attempts=0, first="1m", jitter=0))
    async def again() -> None:
        note()
        if len(calls) < 5:
            raise ConnectionError("later")

    @workflow
    async def insists() -> str:
        await again()
        return "at last"

    run = await fleet.start(insists, id="i")
    await fleet.advance("90s")
    await run.pause()
    await run.until("paused")
    await fleet.app.get("i.1").until("paused")
    before = len(calls)
    await fleet.advance("1h")
    assert len(calls) == before
    await run.resume()
    assert await run.result() == "at last"


async def test_the_worker_that_runs_it_may_die(world: World) -> None:
    fleet = await split(world)
    run = await fleet.start(album, 1, id="a")
    fleet.workers[1].process.kill()
    await fleet.advance("1m")
    fleet.add_worker(queues=["elsewhere"])
    assert await run.result() == [2, 4, 6]
    assert len({key for key, _, _ in calls}) == 3


async def test_an_at_most_once_action_is_unknown_after_a_crash(world: World) -> None:
    fleet = await split(world)

    @action(queue="elsewhere", at_most_once=True)
    async def once() -> None:
        note()
        await asyncio.sleep(60)

    @workflow
    async def careful() -> str:
        try:
            await once()
        except ActionFailed as error:
            return error.type
        raise AssertionError

    run = await fleet.start(careful)
    await fleet.advance("10s")
    fleet.workers[1].process.kill()
    fleet.add_worker(queues=["elsewhere"])
    assert await run.result() == "Unknown"
    assert len(calls) == 1


async def test_why_names_the_execution_that_runs_the_action(world: World) -> None:
    fleet = await split(world)
    fleet.workers[1].process.kill()
    run = await fleet.start(album, 1, id="a")
    await fleet.advance("10s")
    assert "shrink runs apart, as execution a.1" in str(await run.why())


async def test_two_slow_actions_of_one_execution_run_on_two_workers_and_join(world: World) -> None:
    @action(queue="elsewhere")
    async def slow(n: int) -> int:
        await asyncio.sleep(5)
        return n

    @workflow
    async def both() -> int:
        return sum(await asyncio.gather(slow(1), slow(2)))

    async with World(workers=0, concurrency=1) as fleet:
        for queue in ("default", "elsewhere", "elsewhere"):
            fleet.add_worker(queues=[queue])
        await fleet.settle()
        began = fleet.micros()
        assert await fleet.run(both, id="b") == 3
        assert fleet.micros() - began < 7_000_000


async def test_workflows_with_actions_elsewhere_survive_a_crash_at_every_call(world: World) -> None:
    report = await world.crash_everywhere(album, 1)
    assert report.runs > 4


@action
async def slowly(n: int) -> int:
    note()
    await asyncio.sleep(5)
    return n


@workflow
async def slowly_side_by_side(count: int) -> int:
    return sum(await asyncio.gather(*(slowly(n) for n in range(count))))


async def test_an_action_for_which_there_is_no_room_runs_where_there_is(world: World) -> None:
    async with World(workers=2, concurrency=1, spill="1s") as fleet:
        began = fleet.micros()
        run = await fleet.start(slowly_side_by_side, 2, id="s")
        assert await run.result() == 1
        assert fleet.micros() - began < 7_000_000
        assert "ActionScheduled" in await types(fleet, run)
        assert sorted(calls) == [(f"default/s/{ref}/slowly", 1, "s") for ref in (1, 2)]


async def test_an_action_with_a_queue_finds_room_only_on_that_queue(world: World) -> None:
    @action(queue="elsewhere")
    async def picky(n: int) -> int:
        await asyncio.sleep(5)
        return n

    @workflow
    async def several() -> int:
        return sum(await asyncio.gather(*(picky(n) for n in range(3))))

    async with World(workers=0, concurrency=1, spill="1s") as fleet:
        fleet.add_worker(queues=["default", "elsewhere"])
        await fleet.settle()
        run = await fleet.start(several)
        fleet.add_worker(queues=["default"])
        assert await run.result() == 3
        apart = (await fleet.app.find(parent=run.id)).heads
        assert [head.queue for head in apart] == ["elsewhere"] * 2


async def test_a_crowd_is_sent_away_a_few_at_a_time(world: World) -> None:
    async with World(workers=1, concurrency=10, spill="1s") as lonely:
        run = await lonely.start(slowly_side_by_side, 100)
        await lonely.advance("4500ms")
        apart = await lonely.store.find(Query(tenant=None, parent=run.key, limit=1000))
        assert 1 <= len(apart) <= 4
        assert await run.result() == 4950
        assert len(calls) == 100


async def test_alone_a_worker_gets_through_all_that_it_has_no_room_for(world: World) -> None:
    async with World(workers=1, concurrency=2, spill="1s") as lonely:
        assert await lonely.run(slowly_side_by_side, 10) == 45
        assert len(calls) == 10


async def test_what_waits_for_a_place_survives_a_crash_at_every_call(world: World) -> None:
    async with World(workers=0, concurrency=1, spill="1s") as crowded:
        report = await crowded.crash_everywhere(slowly_side_by_side, 3, same_inputs=False)
        assert report.runs > 4


def test_two_actions_of_one_name_are_refused_if_one_has_a_queue() -> None:
    def declare(module: str, **options: str) -> None:
        async def enlarge() -> None: ...

        enlarge.__qualname__, enlarge.__module__ = "enlarge", module
        enlarge.__code__ = enlarge.__code__.replace(co_filename=f"{module}.py")
        action(**options)(enlarge)

    declare("one")
    with pytest.raises(UsageError, match="two actions enlarge: one.enlarge and two.enlarge"):
        declare("two", queue="elsewhere")
