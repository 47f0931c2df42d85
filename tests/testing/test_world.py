"""The world of a test: virtual time, crashes, checks."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter

import pytest

from perdure import ExecutionFailed, ExecutionStuck, action, event, workflow
from perdure.core import events as ev
from perdure.errors import UsageError
from perdure.testing import Deadlock, World, run

DAY = 24 * 3600
calls: Counter[str] = Counter()
fences: list[int] = []


@pytest.fixture(autouse=True)
def _fresh():
    calls.clear()
    fences.clear()


@action(retries=5)
async def flaky(number: int) -> int:
    calls["flaky"] += 1
    if calls["flaky"] % 3:
        raise ConnectionError("not today")
    return number + 1


@workflow
async def month(number: int) -> int:
    for _ in range(30):
        number = await flaky(number)
        await asyncio.sleep(DAY)
    return number


async def test_thirty_days_of_timers_and_retries_take_moments(world):
    began = time.monotonic()
    assert await world.run(month, 1) == 31
    assert world.now().month == 1 and world.now().day == 31
    await world.check()
    assert time.monotonic() - began < 20


@action
async def effect(name: str) -> str:
    calls[name] += 1
    fences.append(action.fence)
    await asyncio.sleep(60)
    calls[f"{name} done"] += 1
    return name


@workflow
async def two_effects() -> str:
    return await effect("a") + await effect("b")


async def test_another_worker_takes_over_after_a_crash(world):
    going = await world.start(two_effects)
    await world.advance("90s")
    assert await going.status() == "running"
    await world.crash()
    assert await going.result() == "ab"
    assert calls == {"a": 1, "a done": 1, "b": 2, "b done": 1}, "what was recorded is not run again"
    assert world.attempts == {f"{going.key}/1/effect": 1, f"{going.key}/2/effect": 2}
    assert fences[2] > fences[1], "the fence rises with a take-over"
    assert "TakenOver" in [entry.type for entry in await world.log(going)]
    await world.check()


async def test_nothing_of_a_crashed_worker_runs_any_more(world):
    await world.start(two_effects)
    await world.advance("30s")
    await world.crash()
    world.workers[0].process.kill()
    await world.advance("1h")
    assert calls == {"a": 1}


async def test_advance_lets_everything_happen_up_to_that_moment(world):
    going = await world.start(month, 1)
    await world.advance("15d")
    state = await going.state()
    assert sum(each.status == "completed" for each in state.actions.values()) == 15


@workflow
async def waits_for_a_letter(kind: str) -> str:
    letter: str = await event(kind, str)
    return letter


async def test_events_reach_a_run(world):
    waiting = await world.start(waits_for_a_letter, "love")
    await world.advance("30d")
    await waiting.send("love", "at last")
    assert await waiting.result() == "at last"
    assert world.now().day == 31


def test_waiting_for_what_never_comes_is_an_error_that_says_why():
    async def main() -> None:
        async with World() as world:
            await world.run(waits_for_a_letter, "love", id="lonely")

    began = time.monotonic()
    with pytest.raises(Deadlock, match="lonely is waiting: waits for the event love"):
        run(main())
    assert time.monotonic() - began < 20


def test_a_test_that_looks_for_ever_is_called_off(monkeypatch):
    monkeypatch.setattr("perdure.testing.world.JUMPS", 1000)

    async def main() -> None:
        async with World() as world:
            waiting = await world.start(waits_for_a_letter, "love")
            while await waiting.status() != "completed":
                await asyncio.sleep(0.1)

    with pytest.raises(Deadlock, match="nothing has happened but waiting"):
        run(main())


def test_a_world_outside_of_virtual_time_says_what_to_do():
    async def main() -> None:
        async with World():
            pass

    with pytest.raises(UsageError, match="virtual_time"):
        asyncio.run(main())


@workflow(name="far-away-from-all", queue="far-away")
async def elsewhere() -> str:
    return "done"


async def test_all_queues_are_served(world):
    assert await world.run(elsewhere) == "done"


@workflow
async def unsteady(then: int) -> None:
    # As if the code read something that is not in the log.
    calls["unsteady"] += 1
    await note(f"round {calls['unsteady']}")
    await asyncio.sleep(then)


async def test_nondeterminism_is_found_at_the_next_step(world):
    with pytest.raises(ExecutionStuck, match="nondeterminism"):
        await world.run(unsteady, 60)


def test_nondeterminism_of_the_last_step_is_found_at_the_end():
    async def main(check: bool) -> None:
        async with World(check_at_end=check) as world:
            await world.run(unsteady, 0)

    run(main(check=False))
    with pytest.raises(AssertionError, match="I12, default/id-00001: the log cannot be replayed"):
        run(main(check=True))


@action
def in_a_thread(number: int) -> int:
    time.sleep(0.01)
    return number * 2


@workflow
async def threads() -> list[int]:
    return await asyncio.gather(*(in_a_thread(number) for number in range(5)))


async def test_actions_in_threads_work_and_take_no_time(world):
    assert await world.run(threads) == [0, 2, 4, 6, 8]
    assert world.now().second == 0


async def test_every_world_begins_at_the_same_time_with_the_same_ids(world):
    await world.advance("3d")
    first = await world.start(month, 1)
    async with World() as other:
        assert other.now().day == 1
        assert (await other.start(month, 1)).id == first.id


@pytest.mark.world(workers=3)
async def test_several_workers_share_the_work(world):
    runs = [await world.start(two_effects) for _ in range(20)]
    assert [await each.result() for each in runs] == ["ab"] * 20
    await world.check()


@pytest.mark.world(check_at_end=False)
async def test_check_finds_a_broken_log(world):
    going = await world.start(two_effects)
    await going.result()
    execution = world.store._executions[going.key]
    execution.rows.insert(1, execution.rows[1])
    with pytest.raises(AssertionError, match="I3, default/"):
        await world.check()


@pytest.mark.world(check_at_end=False)
async def test_check_finds_a_log_that_its_code_does_not_give(world):
    going = await world.start(two_effects)
    await going.result()
    execution = world.store._executions[going.key]
    last = execution.rows[-1]
    execution.rows[-1] = ev.row(ev.Completed(ev.Raw(b'"other"')), last.version, last.at, last.fence, worker="w")
    with pytest.raises(AssertionError, match="I12"):
        await world.check()


@pytest.mark.world(check_at_end=False)
async def test_check_finds_an_execution_that_nothing_will_wake(world):
    going = await world.start(month, 1)
    await world.advance("1h")
    world.store._executions[going.key].wake.due = None
    with pytest.raises(AssertionError, match="I17"):
        await world.check()


def test_a_mistake_inside_a_worker_fails_the_test(monkeypatch):
    monkeypatch.setattr("perdure.runtime.execution.resident.Resident.launch", lambda self, now: 1 / 0)

    async def main() -> None:
        async with World() as world:
            await world.run(two_effects)

    with pytest.raises(AssertionError, match="broke"):
        run(main())


def test_a_crashed_world_leaves_nothing_behind():
    async def main() -> int:
        async with World() as world:
            for _ in range(3):
                await world.start(two_effects)
            await world.advance("30s")
            await world.crash()
            await world.advance("30s")
            await world.crash()
        return len(asyncio.all_tasks())

    assert run(main()) == 1
    gc.collect()


# Crashing everywhere.


@action(at_most_once=True)
async def ring_once() -> str:
    calls["rung"] += 1
    return "rung"


@action
async def note(text: str) -> str:
    calls[f"note {text}"] += 1
    return text.upper()


@workflow
async def child(text: str) -> str:
    return await note(text)


@workflow
async def order() -> list[str]:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(note("a"))
        second = group.create_task(child("b"))
    packed: str = await event("packed", str)
    await asyncio.sleep(3600)
    workflow.publish(packed=packed)
    return [first.result(), second.result(), packed]


async def test_a_workflow_survives_a_crash_at_every_store_call(world):
    runs: list[str] = []

    async def check(going) -> None:
        runs.append(await going.status())

    report = await world.crash_everywhere(order, send=[("packed", "yes")], check=check)
    assert report.status == "completed"
    assert report.points == 2 * len(report.calls) > 20
    assert report.runs == len(runs) == report.points + 1
    assert set(runs) == {"completed"}
    assert max(report.attempts.values()) == 2, "some crash fell between an effect and its record"


async def test_a_driver_may_do_more_than_send(world):
    async def drive(going) -> None:
        await asyncio.sleep(10)
        await going.pause()
        await asyncio.sleep(100)
        await going.resume()
        await going.send("packed", "later")

    report = await world.crash_everywhere(order, send=drive)
    assert report.status == "completed"


@workflow
async def fails() -> None:
    await note("a")
    raise ValueError("as always")


async def test_a_failure_is_the_same_failure_every_time(world):
    with pytest.raises(ExecutionFailed, match="as always"):
        await world.run(fails)
    report = await world.crash_everywhere(fails)
    assert report.status == "failed"


@workflow
async def rings() -> str:
    try:
        return await ring_once()
    except Exception as error:
        return getattr(error, "type", "?")


async def test_an_outcome_that_depends_on_the_crash_is_found(world):
    with pytest.raises(AssertionError, match="with one as") as found:
        await world.crash_everywhere(rings)
    assert "store call" in found.value.__notes__[0]


async def test_an_at_most_once_action_never_runs_twice(world):
    @workflow
    async def tries() -> str:
        await asyncio.wait([asyncio.create_task(ring_once())])
        return "over"

    report = await world.crash_everywhere(tries, same_inputs=False)
    assert set(report.attempts.values()) == {1}
