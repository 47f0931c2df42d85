"""A worker that is told to stop, at every call of its store: nothing is half done, nobody takes it for dead.

Between the way of a call to the store and its way back time passes here, so the worker is told while it holds, commits
and renews. A hold that is not given back would lapse, and whoever comes next would write that into the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perdure import Perdure, Retry, Run, action, event, workflow
from perdure.core import events as ev
from perdure.core.records import ENDED, Hint
from perdure.streams.memory import MemoryStream
from perdure.testing import World
from perdure.testing.clock import EPOCH
from perdure.testing.faults import CrashPoints
from perdure.testing.swarm import Fault, NoFaults


class Slow(NoFaults):
    """A store that is some way off."""

    def call(self, verb: str) -> Fault:
        return Fault(there=0.01, back=0.01)


class DrainPoints(CrashPoints):
    """Not a crash: at that call the worker is told to stop."""

    tell: Callable[[], None]

    def kills(self, number: int | None, *, after: bool) -> bool:
        if number is not None and number == self.at and after is self.after:
            self.tell()
        return False


@action
async def quick(number: int) -> int:
    await asyncio.sleep(0.005)
    return number


@action
async def slow(number: int) -> int:
    await asyncio.sleep(1.5)
    return number


@action(retries=Retry(attempts=3, first=0.2))
async def stubborn(number: int) -> int:
    if action.attempt < 3:
        raise ConnectionError("not yet")
    return number


@workflow
async def part(number: int) -> int:
    return await quick(number)


@workflow
async def whole() -> list[int]:
    """Something of everything."""
    one = await quick(1)
    two, three = await asyncio.gather(slow(2), quick(3))
    await asyncio.sleep(0.3)
    four, five = await part(4), await stubborn(5)
    await asyncio.sleep(3)
    return [one, two, three, four, five, await event("six", int)]


async def one(points: DrainPoints) -> tuple[list[str], list[ev.TakenOver], dict[str, int]]:
    """How all of them ended, what was taken over, and how often each action was called."""
    async with World(workers=0, faults=lambda name: Slow(), lease="1s", grace="0.5s") as world:
        leaving = world.add_worker(points)

        def tell() -> None:
            leaving._over.set()
            world.add_worker()

        points.tell = tell
        runs: list[Run[Any]] = [await world.start(whole, id=f"whole-{number}") for number in range(3)]
        for run in runs:
            await run.send("six", 6, id="six")
        ends = [str(await run.result()) for run in runs]
        points.counting = False
        logs = [await world.rows(head.key) for head in await world.heads() if head.status in ENDED]
        taken = [event for log in logs for row in log if isinstance(event := ev.read(row), ev.TakenOver)]
        return ends, taken, dict(world.attempts)


@pytest.mark.parametrize("after", [False, True], ids=["on the way there", "on the way back"])
async def test_a_worker_may_be_told_to_stop_at_any_call(after: bool, world: World) -> None:
    count = DrainPoints()
    ends, _, calls = await one(count)
    assert len(count.calls) > 20
    for at, verb in enumerate(count.calls):
        found = await one(DrainPoints(at, after=after))
        assert found == (ends, [], calls), f"told to stop at call {at + 1}, {verb}"


@action(name="drain.long")
async def long(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return action.attempt


@workflow(name="drain.works")
async def works(seconds: float) -> int:
    return await long(seconds)


@workflow(name="drain.asks")
async def asks(seconds: float) -> int:
    return await works(seconds)


@workflow(name="drain.sleeps")
async def sleeps(seconds: float) -> None:
    await asyncio.sleep(seconds)


#: Whoever is not told at once comes far too late.
FAR: dict[str, Any] = {"lease": "1h", "grace": "1h", "probe": "10h", "probe_idle": "10h"}


def passed(world: World) -> float:
    return (world.micros() - EPOCH) / 1e6


@pytest.mark.virtual_time
async def test_what_waits_for_a_place_of_a_worker_that_stops_goes_to_others() -> None:
    async with World(workers=0, resident=1, **FAR) as world:
        leaving = world.add_worker()
        runs = [await world.start(works, seconds) for seconds in (20, 1, 1)]
        await world.advance("1s")
        world.add_worker()
        await world.settle()
        stopping = asyncio.create_task(leaving.shut_down())
        assert [await run.result() for run in runs[1:]] == [1, 1]
        assert passed(world) < 10
        runs.append(await world.start(works, 1))
        runs.append(await world.start(works, 1))
        assert [await run.result() for run in runs[3:]] == [1, 1]
        assert passed(world) < 10
        await stopping


@pytest.mark.virtual_time
async def test_what_came_to_a_worker_just_before_it_has_stopped_goes_to_others() -> None:
    async with World(workers=0, **FAR) as world:
        leaving = world.add_worker()
        runs = [await world.start(works, 19)]
        await world.advance("1s")
        world.add_worker()
        await world.settle()
        stopping = asyncio.create_task(leaving.shut_down())
        for _ in range(4):
            await world.advance("4.45s")
            runs += [await world.start(works, 0.1) for _ in range(2)]
            await world.settle()
            runs += [await world.start(works, 0.1) for _ in range(2)]
        await stopping
        assert [await run.result() for run in runs] == [1] * 17
        assert passed(world) < 20


@pytest.mark.virtual_time
async def test_what_a_worker_that_stops_has_to_give_up_is_taken_up_by_others() -> None:
    async with World(workers=2, drain="1s", **FAR) as world:
        runs = [await world.start(works, 30) for _ in range(2)]
        await world.advance("1s")
        await world.workers[0].shut_down()
        assert [await run.result() for run in runs] == [1, 1]
        assert passed(world) < 40


@pytest.mark.virtual_time
@pytest.mark.parametrize("which", [0, 1])
async def test_the_timers_of_a_worker_that_stops_are_kept_by_others(which: int) -> None:
    async with World(workers=2, **FAR) as world:
        runs = [await world.start(sleeps, seconds) for seconds in (600, 60)]
        await world.advance("1s")
        await world.workers[which].shut_down()
        await runs[1].result()
        assert passed(world) < 61
        await runs[0].result()
        assert passed(world) < 601


@pytest.mark.virtual_time
async def test_whoever_is_told_of_by_the_last_write_of_a_worker_that_stops_goes_on_elsewhere() -> None:
    async with World(workers=0, linger=0, **FAR) as world:
        leaving = world.add_worker()
        run = await world.start(asks, 3)
        await world.advance("1s")
        world.add_worker()
        await world.settle()
        await leaving.shut_down()
        assert await run.result() == 1
        assert passed(world) < 4


class SlowRelease(NoFaults):
    def call(self, verb: str) -> Fault:
        return Fault(there=1.0 if verb == "release" else 0.0)


@pytest.mark.virtual_time
async def test_what_comes_while_a_worker_gives_back_goes_to_others() -> None:
    async with World(workers=0, faults=lambda name: SlowRelease(), drain="0.5s", **FAR) as world:
        leaving = world.add_worker()
        runs = [await world.start(works, 30)]
        await world.advance("1s")
        world.add_worker()
        await world.settle()
        stopping = asyncio.create_task(leaving.shut_down())
        await world.advance("1s")
        runs += [await world.start(works, 0.1) for _ in range(4)]
        await stopping
        assert [await run.result() for run in runs] == [1] * 5
        assert passed(world) < 40


class SlowAnswers(NoFaults):
    def call(self, verb: str) -> Fault:
        return Fault(back=1.0 if verb == "claim" else 0.0)


@pytest.mark.virtual_time
@pytest.mark.parametrize("which", [0, 1])
async def test_what_is_given_to_a_worker_while_it_stops_goes_to_others(which: int) -> None:
    async with World(workers=2, faults=lambda name: SlowAnswers(), **FAR) as world:
        run = await world.start(sleeps, 60)
        await world.advance("60.5s")
        await world.workers[which].shut_down()
        await run.result()
        assert passed(world) < 65


class Noting(MemoryStream):
    """Knows what was handed on, and what was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.handed: list[str] = []
        self.acked: list[str] = []

    async def publish(self, hints: Sequence[Hint]) -> None:
        self.handed += [hint.key for hint in hints if hint.away]
        await super().publish(hints)

    async def ack(self, hints: Sequence[Hint]) -> None:
        self.acked += [hint.key for hint in hints]


def test_a_hint_is_handed_on_once_and_once_more_in_the_end_when_it_is_acknowledged() -> None:
    async def scenario() -> None:
        stream = Noting()
        async with Perdure("memory://", stream=stream) as app, app.working() as worker:
            run = await app.start(works, 0.5)
            async with asyncio.timeout(20):
                while not worker.attempts.running:
                    await asyncio.sleep(0.001)
                stopping = asyncio.create_task(worker.stop())
                await stream.publish([Hint("default/a", "default")])
                while "default/a" not in stream.handed:
                    await asyncio.sleep(0)
                await stream.publish([Hint("default/a", "default"), Hint("default/b", "default")])
                while "default/b" not in stream.handed:
                    await asyncio.sleep(0)
            assert stream.handed == ["default/a", "default/b"]
            assert not {"default/a", "default/b"}.intersection(stream.acked)
            await stopping
            assert await run.status() == "completed"
            assert sorted(stream.handed[2:]) == ["default/a", "default/b"]
            assert {"default/a", "default/b"} < set(stream.acked)

    asyncio.run(scenario())
