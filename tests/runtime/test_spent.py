"""Actions whose attempts are spent, and whose execution waits for a person instead of failing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import (
    ActionFailed,
    Breaker,
    Contention,
    ExecutionFailed,
    ExecutionStuck,
    External,
    Permanent,
    Retry,
    action,
    event,
    workflow,
)
from perdure.core import events as ev
from perdure.core.view import Entry
from perdure.errors import UsageError
from perdure.runtime.run import Run
from perdure.testing import World

#: What is wrong with the world outside, by the name of what it is wrong with.
ill: set[str] = set()
tried: list[tuple[str, int, str]] = []
SPENT = Retry(attempts=3, first="1s", jitter=0, spent="stuck")


@pytest.fixture(autouse=True)
def forget() -> None:
    ill.clear()
    tried.clear()


def try_it(name: str) -> str:
    tried.append((name, action.attempt, action.key))
    if name in ill:
        raise ConnectionError(f"{name} is ill")
    return name


def numbers(name: str) -> list[int]:
    return [number for one, number, _ in tried if one == name]


async def types(run: Run[Any]) -> list[str]:
    return [entry.type for entry in await run.log()]


async def last(run: Run[Any], kind: str) -> Entry:
    return next(entry for entry in reversed(await run.log()) if entry.type == kind)


async def mend_and_retry(run: Run[Any]) -> None:
    ill.clear()
    await run.retry(reason="it is well again", by="ada")


@action(retries=SPENT)
async def spent_ship(parcel: str) -> str:
    return try_it(parcel)


@action
async def spent_pack(parcel: str) -> str:
    return f"{parcel} packed"


@workflow
async def spent_order(parcel: str) -> list[str]:
    return [await spent_pack(parcel), await spent_ship(parcel)]


async def test_when_its_attempts_are_spent_the_execution_is_stuck_with_the_reason(world: World) -> None:
    ill.add("tea")
    run = await world.start(spent_order, "tea", id="order-1")
    with pytest.raises(ExecutionStuck, match=r"order-1 is stuck \(attempts\): the attempts of spent_ship \(command 2\)"):
        await run.result()
    log = await run.log()
    assert [entry.type for entry in log] == [
        "Started",
        "ActionSettled",
        "ActionAttempted",
        "ActionAttempted",
        "ActionAttempted",
        "Stuck",
    ]
    assert log[-2].text == "spent_ship attempt 3: ConnectionError: tea is ill; none is left"
    assert log[-1].data["reason"] == (
        "the attempts of spent_ship (command 2) are spent: 3 were made, and at last it failed with ConnectionError: tea"
        " is ill"
    )
    assert (log[-1].data["place"], log[-1].data.get("code", "")) == ("/actions/2/spent_ship", "")
    assert "ConnectionError: tea is ill; mend it, then retry the execution" in str(await run.why())
    shown = (await run.state()).actions[2]
    assert (shown.status, shown.attempts, shown.next) == ("spent", 3, None)


async def test_a_redrive_gives_all_attempts_anew_under_the_same_key(world: World) -> None:
    ill.add("tea")
    run = await world.start(spent_order, "tea")
    await run.until("stuck")
    began = world.now()
    await run.retry()
    await run.until("running", "waiting")
    assert (await run.state()).actions[2].status == "retrying"
    while [entry.type for entry in await run.log()].count("Stuck") < 2:
        await asyncio.sleep(0.1)
    assert 3 <= (world.now() - began).total_seconds() < 3.5  # one second, then two: as at the beginning
    assert numbers("tea") == [1, 2, 3, 4, 5, 6]
    assert "6 were made" in (await last(run, "Stuck")).text
    await mend_and_retry(run)
    assert await run.result() == ["tea packed", "tea"]
    assert numbers("tea") == [1, 2, 3, 4, 5, 6, 7]
    assert len({key for _, _, key in tried}) == 1
    assert (await last(run, "Redriven")).data["by"] == "ada"


async def test_dead_letters_list_it_under_its_cause(world: World) -> None:
    ill.add("tea")
    run = await world.start(spent_order, "tea", id="order-1")
    await run.until("stuck")
    [dead] = (await world.app.dead(cause="attempts")).dead
    assert (dead.id, dead.cause, dead.tries) == ("order-1", "attempts", 1)
    case = await world.app.examine("order-1")
    assert "all its attempts anew" in case.mend
    assert case.place.startswith("after version 5, ActionAttempted spent_ship attempt 3")
    ill.clear()
    assert (await world.app.redrive(cause="attempts")).done == ["order-1"]
    assert await run.result() == ["tea packed", "tea"]
    [metrics] = [machine.app.worker.metrics for machine in world.workers if machine.app.worker is not None]
    assert metrics.stuck.counts["attempts"] == 1
