"""Executions of one lane run one at a time, in the order of their starts, on whichever worker."""

from __future__ import annotations

import asyncio

import pytest

from perdure import action, event, workflow
from perdure.errors import UsageError
from perdure.testing import World

steps: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    steps.clear()


@action
async def step(name: str) -> None:
    steps.append(name)
    await asyncio.sleep(1)


@workflow
async def two_steps(name: str) -> str:
    await step(f"{name} 1")
    await asyncio.sleep(60)
    await step(f"{name} 2")
    return name


async def test_one_runs_after_the_other_on_several_workers(world: World) -> None:
    world.add_worker()
    world.add_worker()
    runs = [await world.start(two_steps, name, lane="l") for name in "abc"]
    assert [await run.result() for run in runs] == ["a", "b", "c"]
    assert steps == ["a 1", "a 2", "b 1", "b 2", "c 1", "c 2"]


async def test_the_end_of_one_wakes_the_next_at_once(world: World) -> None:
    runs = [await world.start(two_steps, name, lane="l") for name in "ab"]
    began = world.micros()
    await runs[1].result()
    assert world.micros() - began < 125_000_000  # two of 62 seconds


async def test_a_crash_of_the_first_does_not_let_the_second_in(world: World) -> None:
    runs = [await world.start(two_steps, name, lane="l") for name in "ab"]
    await world.advance("30s")
    await world.crash()
    await asyncio.gather(*(run.result() for run in runs))
    assert [name for name in steps if name.startswith("b")] == steps[-2:]


async def test_events_for_one_that_waits_are_kept(world: World) -> None:
    @workflow
    async def listens() -> str:
        return await event("say", str)

    first = await world.start(two_steps, "a", lane="l")
    second = await world.start(listens, lane="l")
    await second.send("say", "hello")
    await world.advance("30s")
    assert await second.status() == "waiting"
    assert "waits for its turn" in str(await second.why())
    await first.result()
    assert await second.result() == "hello"


async def test_a_cancelled_execution_frees_its_lane(world: World) -> None:
    first = await world.start(two_steps, "a", lane="l")
    second = await world.start(two_steps, "b", lane="l")
    await world.advance("10s")
    await first.cancel()
    assert await second.result() == "b"


async def test_a_bad_name_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="lane"):
        await world.app.start(two_steps, "a", lane="a b")
