"""A worker that is told to stop, at every call of its store: nothing is half done, nobody takes it for dead.

Between the way of a call to the store and its way back time passes here, so the worker is told while it holds, commits
and renews. A hold that is not given back would lapse, and whoever comes next would write that into the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Retry, Run, action, event, workflow
from perdure.core import events as ev
from perdure.core.records import ENDED
from perdure.testing import World
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
