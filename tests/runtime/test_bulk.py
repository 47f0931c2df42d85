"""Bulk operations: found page by page, done once each, counted right."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from perdure import event, workflow
from perdure.errors import ExecutionCancelled, ExecutionNotFound, InvalidValue, LimitReached, UsageError
from perdure.flows import bulk as flows
from perdure.runtime.run import Run
from perdure.testing import World
from perdure.testing.swarm import RandomFaults, Rates

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
#: So that tests see more than one page and more than one round.
flags: dict[str, bool] = {}


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    flags.clear()
    monkeypatch.setattr("perdure.runtime.managing.bulk.PAGE", 3)
    monkeypatch.setattr(flows, "ROUND", 2)


@workflow(name="bulk-waits", events={"go": int})
async def waits(colour: str) -> int:
    workflow.publish(colour=colour)
    return await event("go", int)


@workflow(name="bulk-fails")
async def fails() -> str:
    if workflow.record(lambda: "mended" not in flags):
        raise ValueError("not yet")
    return "well"


async def begun(world: World, count: int, colour: str = "red") -> list[Run[int]]:
    runs = [await world.start(waits, colour, id=f"{colour}-{number:02}") for number in range(count)]
    await world.settle()
    return runs


async def statuses(runs: list[Run[Any]]) -> set[str]:
    return {await run.status() for run in runs}


async def test_all_that_fit_are_cancelled_and_counted(world: World) -> None:
    red, blue = await begun(world, 10), await begun(world, 2, "blue")
    run = await world.app.bulk.start("cancel", fields={"colour": "red"}, reason="sold out", by="ann")
    await run.result()
    await world.settle()
    assert await statuses(red) == {"cancelled"} and await statuses(blue) == {"waiting"}
    told = await world.app.bulk.get(run.id)
    assert (told.act, told.status, told.reason, told.by) == ("cancel", "completed", "sold out", "ann")
    assert (told.found, told.done, told.skipped, told.failed) == (10, 10, 0, 0)
    [asked] = [entry for entry in await red[0].log() if entry.type == "CancelRequested"]
    assert (asked.data["reason"], asked.data["by"]) == ("sold out", "ann")


async def test_what_began_just_before_is_meant_also_where_the_clock_is_slow(world: World) -> None:
    slow = world.client("slow", RandomFaults(Random(1), Rates(drift=-0.01)))
    await slow.open()
    await world.advance("1h")
    runs = await begun(world, 3)
    run = await slow.bulk.start("pause", all=True)
    await run.result()
    assert (await slow.bulk.get(run.id)).found == 3
    await world.settle()
    assert await statuses(runs) == {"paused"}
    await slow.close()


async def test_a_dry_run_finds_and_does_nothing(world: World) -> None:
    red = await begun(world, 4)
    run = await world.app.bulk.start("cancel", workflow="bulk-waits", dry_run=True)
    await run.result()
    told = await world.app.bulk.get(run.id)
    assert (told.found, told.done, told.dry_run) == (4, 0, True)
    assert sorted(told.first) == [f"red-0{number}" for number in range(4)]
    assert await statuses(red) == {"waiting"}


async def test_executions_are_paused_and_resumed_and_sent_to(world: World) -> None:
    red = await begun(world, 7)
    await (await world.app.bulk.start("pause", workflow="bulk-waits")).result()
    await world.settle()
    assert await statuses(red) == {"paused"}
    await (await world.app.bulk.start("resume", status="paused")).result()
    await world.settle()
    assert await statuses(red) == {"waiting"}
    await (await world.app.bulk.start("send", status="waiting", event="go", payload=5)).result()
    assert [await run.result() for run in red] == [5] * 7


async def test_failed_ones_are_tried_again(world: World) -> None:
    failed = [await world.start(fails, id=f"f{number}") for number in range(4)]
    await world.settle()
    flags["mended"] = True
    run = await world.app.bulk.start("retry", status="failed")
    await run.result()
    await world.settle()
    told = await world.app.bulk.get(run.id)
    assert (told.found, told.done) == (4, 4) and await statuses(failed) == {"failed"}
    again = (await world.app.find(workflow="bulk-fails", status="completed")).heads
    assert sorted(head.key.partition("~")[0] for head in again) == [f"default/f{number}" for number in range(4)]


async def test_what_cannot_be_done_to_one_is_told_and_the_others_go_on(world: World) -> None:
    await begun(world, 4)
    await world.start(fails, id="other")
    run = await world.app.bulk.start("migrate", workflow="bulk-waits", version=2)
    await run.result()
    told = await world.app.bulk.get(run.id)
    assert (told.found, told.done, told.failed) == (4, 0, 4)
    assert "which is code" in told.errors[0].reason
    sent = await world.app.bulk.start("send", workflow="bulk-waits", event="stop")
    await sent.result()
    assert "takes no event" in (await world.app.bulk.get(sent.id)).errors[0].reason


async def test_what_has_ended_is_skipped(world: World) -> None:
    red = await begun(world, 3)
    await red[0].send("go", 1)
    await red[0].result()
    run = await world.app.bulk.start("pause", workflow="bulk-waits")
    await run.result()
    told = await world.app.bulk.get(run.id)
    assert (told.found, told.done, told.skipped) == (3, 2, 1)


async def test_what_starts_later_is_left_alone(world: World) -> None:
    await begun(world, 2)
    await world.advance("1h")
    late = await world.start(waits, "red", id="late")
    await world.settle()
    await (await world.app.bulk.start("cancel", all=True, before=NEW_YEAR + timedelta(minutes=30))).result()
    await world.settle()
    assert await late.status() == "waiting"
    assert (await world.app.find(status="cancelled")).heads[0].key == "default/red-01"


async def test_an_operation_is_paused_and_cancelled_like_any_execution(world: World) -> None:
    red = await begun(world, 4)
    for worker in world.workers:
        worker.process.stop()  # or else they might be done before they are paused
    runs = [await world.app.bulk.start("cancel", workflow="bulk-waits", dry_run=dry) for dry in (True, False)]
    for run in runs:
        await run.pause()
    for worker in world.workers:
        worker.process.cont()
    await world.settle()
    assert await statuses(runs) == {"paused"}
    await runs[0].resume()
    await runs[1].cancel("changed my mind")
    assert (await runs[0].result())["found"] == 4
    await world.settle()
    assert await runs[1].status() == "cancelled" and await statuses(red) == {"waiting"}


async def test_all_does_not_mean_the_engines_own(world: World) -> None:
    await world.app.schedules.create("daily", waits, ["red"], cron="@daily")
    await begun(world, 1)
    run = await world.app.bulk.start("cancel", all=True)
    await run.result()
    await world.settle()
    assert (await world.app.bulk.get(run.id)).found == 1
    assert [one.name for one in await world.app.schedules.list()] == ["daily"]


async def test_a_crash_at_any_call_counts_each_execution_once(world: World) -> None:
    order = flows.Order("cancel", flows.Filter(workflow="bulk-waits", before=2**62), "enough", by="ann")

    async def check(run: Run[Any]) -> None:
        for number in range(4):
            one = run._app.get(f"red-0{number}")
            with suppress(ExecutionCancelled):
                await one.result()
            assert [entry.type for entry in await one.log()].count("CancelRequested") == 1

    @workflow(name="bulk-scene")
    async def scene() -> flows.Tally:
        for number in range(4):
            await workflow.start(waits, "red", id=f"red-0{number}")
        tally: flows.Tally = await flows.bulk(order, flows.Tally())
        return tally

    report = await world.crash_everywhere(scene, check=check, same_inputs=False)
    assert report.status == "completed"


async def test_operations_are_listed_newest_first_and_are_their_tenants_own(world: World) -> None:
    ids = []
    for act in ("pause", "resume"):
        ids.append((await world.app.bulk.start(act, all=True)).id)  # type: ignore[arg-type]
        await world.advance("1s")
    assert [one.id for one in await world.app.bulk.list()] == ids[::-1]
    assert await world.app.bulk.list(tenant="other") == []
    with pytest.raises(ExecutionNotFound):
        await world.app.bulk.get(ids[0], tenant="other")
    [run] = await begun(world, 1)
    with pytest.raises(ExecutionNotFound, match="no bulk operation"):
        await world.app.bulk.get(run.id)


@pytest.mark.virtual_time
async def test_an_operation_is_shown_before_a_worker_has_seen_it() -> None:
    async with World(workers=0, check_at_end=False) as world:
        run = await world.app.bulk.start("pause", all=True, id="op-1")
        told = await world.app.bulk.get("op-1")
        assert run.id == "op-1" and (told.act, told.status, told.found) == ("pause", "waiting", 0)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"act": "cancel"}, UsageError),
        ({"act": "explode", "all": True}, InvalidValue),
        ({"act": "cancel", "status": "asleep"}, InvalidValue),
        ({"act": "cancel", "workflow": "schedule:"}, UsageError),
        ({"act": "send", "all": True}, UsageError),
        ({"act": "cancel", "all": True, "event": "go"}, UsageError),
        ({"act": "migrate", "all": True}, UsageError),
        ({"act": "pause", "all": True, "version": 2}, UsageError),
        ({"act": "cancel", "after": datetime(2030, 1, 1)}, UsageError),
        ({"act": "cancel", "all": True, "reason": "x" * 200_000}, LimitReached),
    ],
)
async def test_what_is_no_operation_is_refused(world: World, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await world.app.bulk.start(given.pop("act"), **given)
