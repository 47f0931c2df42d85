"""Workflows of every kind survive a crash at each store call of their worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Retry, Run, action, event, workflow


@action
async def fetch(number: int) -> int:
    await asyncio.sleep(0.3)
    return number


@action(retries=Retry(attempts=4, first=0.5))
async def stubborn(number: int) -> int:
    if action.attempt < 3:
        raise ConnectionError("not yet")
    return number


@action(heartbeat="5s")
async def counting(until: int) -> int:
    for number in range(action.progress or 0, until):
        action.heartbeat(number + 1)
        await asyncio.sleep(1.2)
    return until


@action
async def take(number: int) -> int:
    return number


@take.undo
async def put_back(number: int, taken: int) -> None:
    await asyncio.sleep(0.1)


@action
def in_a_thread(number: int) -> int:
    return number * 2


@workflow
async def countdown(number: int) -> int:
    if number < 0:
        raise ValueError("below zero")
    return await fetch(number) + (await countdown(number - 1) if number else 0)


@workflow
async def children() -> list[int]:
    return await asyncio.gather(countdown(2), countdown(1))


@workflow
async def rounds(left: int) -> int:
    await stubborn(left)
    number: int = await event("go", int)
    if left:
        workflow.restart_with(left - 1)
    return number


@workflow
async def saga() -> None:
    await take(1)
    await take(2)
    await asyncio.sleep(3)
    raise ValueError("no")


@workflow
async def long_action() -> int:
    return await counting(6)


@workflow
async def side_by_side() -> list[int]:
    return await asyncio.gather(in_a_thread(1), in_a_thread(2), fetch(3))


@workflow
async def in_vain() -> str:
    try:
        async with asyncio.timeout(3600):
            return await event("never", str)
    except TimeoutError:
        return "too late"


@workflow
async def first_of_two() -> str:
    racers = [asyncio.create_task(fetch(1)), asyncio.create_task(asyncio.sleep(1000))]
    _, pending = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    for loser in pending:
        loser.cancel()
    await asyncio.sleep(5)
    return "over"


@workflow
async def values_from_the_log() -> str:
    word = workflow.record(lambda: "word")
    await fetch(1)
    if workflow.patched("more"):
        await fetch(2)
    workflow.publish(word=word)
    draw = f"{workflow.uuid()} {workflow.random().random()}"
    await fetch(3)
    return f"{word} {draw} {workflow.now():%H:%M}"


@workflow
async def failing_child() -> str:
    try:
        return str(await countdown(-1))
    except Exception as error:
        return type(error).__name__


@workflow
async def talks_to_itself() -> str:
    other = await workflow.start(values_from_the_log)
    await workflow.send(workflow.id, "self", 3)
    heard: int = await event("self", int)
    return f"{other} {heard}"


@workflow
async def tidy() -> None:
    await take(1)
    try:
        await asyncio.sleep(1e6)
    finally:
        await fetch(9)


async def three_events(run: Run[Any]) -> None:
    for number in range(3):
        await asyncio.sleep(7)
        await run.send("go", number, id=f"go-{number}")


async def a_pause(run: Run[Any]) -> None:
    await asyncio.sleep(0.4)
    await run.pause()
    await asyncio.sleep(30)
    await run.resume()


async def a_cancel(run: Run[Any]) -> None:
    await asyncio.sleep(20)
    await run.cancel(timeout="1h")


CORPUS: list[tuple[Any, tuple[Any, ...], Any, str]] = [
    (children, (), (), "completed"),
    (children, (), a_pause, "completed"),
    (rounds, (2,), three_events, "completed"),
    (saga, (), (), "failed"),
    (long_action, (), (), "completed"),
    (long_action, (), a_pause, "completed"),
    (side_by_side, (), (), "completed"),
    (in_vain, (), (), "completed"),
    (first_of_two, (), (), "completed"),
    (values_from_the_log, (), (), "completed"),
    (failing_child, (), (), "completed"),
    (talks_to_itself, (), (), "completed"),
    (tidy, (), a_cancel, "cancelled"),
]


@pytest.mark.parametrize(("what", "args", "send", "status"), CORPUS)
async def test_it_ends_the_same_way_wherever_its_worker_dies(world, what, args, send, status):
    report = await world.crash_everywhere(what, *args, send=send)
    assert report.status == status
    assert report.runs == 1 + 2 * len(report.calls)
