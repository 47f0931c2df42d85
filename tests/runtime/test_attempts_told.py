"""Every attempt of an action is told by the log: with what, from when to when, by whom, and how it failed."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec

from perdure import ActionFailed, Retry, Secret, action, secret, workflow
from perdure.core.entries import Entry
from perdure.core.moments import moment
from perdure.runtime.run import Run
from perdure.testing import World

TRIES = ("ActionStarted", "ActionAttempted", "ActionSettled")


async def tries(run: Run[Any]) -> list[Entry]:
    return [entry for entry in await run.log() if entry.type in TRIES]


def told(entries: list[Entry]) -> list[tuple[str, str | None, str]]:
    """The kind of row, the error and the worker."""
    return [(one.type, (one.data.get("error") or {}).get("type"), one.data.get("worker", "")) for one in entries]


async def told_of_state(run: Run[Any], ref: int = 1) -> tuple[str, int, str]:
    known = (await run.state()).actions[ref]
    return known.status, known.attempts, known.worker


@action(retries=Retry(attempts=3, first="1m", factor=1, jitter=0))
async def told_flaky(n: int, token: Secret) -> int:
    await asyncio.sleep(2)
    if action.attempt < 3:
        raise ConnectionError(f"no. {action.attempt}")
    return n


@workflow
async def told_thrice(n: int) -> int:
    return await told_flaky(n, secret("told_token"))


async def test_each_try_has_arguments_times_error_and_worker(world: World, monkeypatch: Any) -> None:
    monkeypatch.setenv("PERDURE_SECRET_TOLD_TOKEN", "hush-hush-hush")
    began = world.now()
    run = await world.start(told_thrice, 7)
    assert await run.result() == 7
    entries, me = await tries(run), world.workers[0].name
    assert told(entries) == [
        ("ActionAttempted", "ConnectionError", me),
        ("ActionAttempted", "ConnectionError", me),
        ("ActionSettled", None, me),
    ]
    assert [one.data["error"]["message"] for one in entries[:2]] == ["no. 1", "no. 2"]
    assert {msgspec.json.encode(one.data["args"]) for one in entries} == {b'[7,"secret://told_token"]'}
    # By the clock of the store, which has nothing to do with that of this machine.
    assert abs(began - datetime.now(began.tzinfo)) > timedelta(days=1)
    starts = [moment(one.data["began"]) - began for one in entries]
    ends = [one.at - began for one in entries]
    assert [round(one.total_seconds()) for one in starts] == [0, 62, 124]
    assert [round(one.total_seconds()) for one in ends] == [2, 64, 126]
    assert await told_of_state(run) == ("completed", 3, me)


async def test_who_takes_over_is_told_of_its_own_tries(world: World, monkeypatch: Any) -> None:
    monkeypatch.setenv("PERDURE_SECRET_TOLD_TOKEN", "hush-hush-hush")
    run = await world.start(told_thrice, 7)
    await world.advance("10s")
    first = world.workers[0].name
    await world.crash()
    assert await run.result() == 7
    other = world.workers[0].name
    assert other != first
    assert [worker for _, _, worker in told(await tries(run))] == [first, other, other]


@action(queue="told-elsewhere")
async def told_away(n: int) -> int:
    return n * 2


@workflow
async def told_apart(n: int) -> int:
    return await told_away(n)


async def test_an_action_that_ran_apart_names_the_worker_that_ran_it(world: World) -> None:
    await world.workers[0].shut_down()
    here, there = world.add_worker(queues=["default"]), world.add_worker(queues=["told-elsewhere"])
    run = await world.start(told_apart, 7)
    assert await run.result() == 14
    assert here.name != there.name
    assert told(await tries(run)) == [("ActionSettled", None, there.name)]
    assert await told_of_state(run) == ("completed", 1, there.name)


@action(at_most_once=True)
async def told_once() -> None:
    await asyncio.sleep(60)


@workflow
async def told_carefully() -> str:
    try:
        await told_once()
    except ActionFailed as error:
        return error.type
    raise AssertionError


async def test_an_attempt_whose_end_nobody_knows_names_the_worker_that_was_lost(world: World) -> None:
    run = await world.start(told_carefully)
    await world.advance("10s")
    lost = world.workers[0].name
    assert await told_of_state(run) == ("open", 0, lost)
    await world.crash()
    assert await run.result() == "Unknown"
    assert told(await tries(run)) == [("ActionStarted", None, lost), ("ActionSettled", "Unknown", lost)]


@action(external=True, queue="told-node")
async def told_outside() -> int: ...  # type: ignore[empty-body]


@workflow
async def told_by_others() -> int:
    return await told_outside()


async def test_external_workers_are_named_as_they_call_themselves(world: World) -> None:
    run = await world.start(told_by_others, id="told")
    poll, complete = world.app.external.poll, world.app.external.complete
    await poll("told-node", wait="1m", lease="5s", worker="lost-node")
    [task] = await poll("told-node", wait="1m", worker="good-node")
    await complete(task.token, 7)
    assert await run.result() == 7
    assert told(await tries(run)) == [("ActionSettled", None, "good-node")]
    assert told(await tries(world.app.get("told.1"))) == [
        ("ActionStarted", None, "lost-node"),
        ("ActionAttempted", "WorkerLost", "lost-node"),
        ("ActionStarted", None, "good-node"),
        ("ActionSettled", None, "good-node"),
    ]
