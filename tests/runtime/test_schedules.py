"""Schedules: each time once, whatever happens, and only when it is wanted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import action, event, workflow
from perdure.core.moments import to_micros
from perdure.core.records import Query
from perdure.errors import ExecutionExists, ExecutionNotFound, InvalidValue, LimitReached, NotRegistered, UsageError
from perdure.flows import schedule as schedules
from perdure.flows.cron import Times
from perdure.flows.registry import registry
from perdure.runtime.run import Run
from perdure.testing import World

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


@action(name="schedules.note")
async def note(what: str) -> str:
    return what


@workflow(name="schedules-report")
async def report(what: str) -> str:
    return await note(what)


@workflow(name="schedules-long")
async def long(hours: float) -> None:
    await note("begun")
    await asyncio.sleep(hours * 3600)


@workflow(name="schedules-waits")
async def waits() -> None:
    await event("go")


async def started(world: World, workflow: str = "schedules-report") -> list[str]:
    heads = await world.store.find(Query("default", workflow=workflow, limit=1000))
    return sorted(head.key.partition("/")[2] for head in heads)


async def test_each_time_starts_one_execution_that_is_named_after_it(world: World) -> None:
    await world.app.schedules.create("daily", report, ["sales"], cron="0 9 * * *")
    await world.advance("2d")
    assert await started(world) == ["daily@2030-01-01T09:00:00Z", "daily@2030-01-02T09:00:00Z"]
    assert await world.app.get("daily@2030-01-01T09:00:00Z").result() == "sales"
    told = await world.app.schedules.get("daily")
    assert (told.started, told.skipped, told.failed) == (2, 0, 0)
    assert told.next == datetime(2030, 1, 3, 9, tzinfo=UTC) and [fire.fate for fire in told.recent] == ["started"] * 2


async def test_an_interval_begins_with_the_schedule_and_a_zone_has_its_own_nine_o_clock(world: World) -> None:
    await world.advance("7s")
    await world.app.schedules.create("often", report, ["a"], every="30m")
    await world.app.schedules.create("berlin", report, ["b"], cron="0 1 * * *", timezone="Europe/Berlin")
    await world.advance("61m")
    assert await started(world) == ["often@2030-01-01T00:30:07Z", "often@2030-01-01T01:00:07Z"]
    await world.advance("1d")
    assert "berlin@2030-01-02T00:00:00Z" in await started(world)


async def test_a_list_of_times_ends_with_the_last_one(world: World) -> None:
    times = [NEW_YEAR + timedelta(hours=2), datetime(2030, 1, 1, 1)]
    await world.app.schedules.create("twice", report, ["x"], at=times)
    await world.advance("1d")
    assert await started(world) == ["twice@2030-01-01T01:00:00Z", "twice@2030-01-01T02:00:00Z"]
    with pytest.raises(ExecutionNotFound):
        await world.app.schedules.get("twice")
    [ended] = await world.app.schedules.list(ended=True)
    assert ended.ended and ended.next is None and ended.started == 2


async def test_a_schedule_that_is_created_twice_is_one_schedule(world: World) -> None:
    for _ in range(2):
        await world.app.schedules.create("daily", report, ["sales"], every="1h")
        await world.advance("7m")
    assert len(await world.app.schedules.list()) == 1
    with pytest.raises(ExecutionExists, match="update it"):
        await world.app.schedules.create("daily", report, ["sales"], every="2h")


@pytest.mark.virtual_time
async def test_a_schedule_is_known_before_a_worker_has_seen_it() -> None:
    async with World(workers=0, check_at_end=False) as world:
        await world.app.schedules.create("daily", report, ["sales"], cron="@daily")
        [told] = await world.app.schedules.list()
        assert told.name == "daily" and told.next == NEW_YEAR + timedelta(days=1)
        await world.app.schedules.pause("daily")
        assert (await world.app.schedules.get("daily")).pending == 1


async def test_while_one_runs_the_next_is_skipped(world: World) -> None:
    await world.app.schedules.create("hourly", long, [2.5], every="1h")
    await world.advance("4h30m")
    assert await started(world, "schedules-long") == ["hourly@2030-01-01T01:00:00Z", "hourly@2030-01-01T04:00:00Z"]
    told = await world.app.schedules.get("hourly")
    assert (told.started, told.skipped) == (2, 2)
    assert told.recent[1].reason == "hourly@2030-01-01T01:00:00Z is still running"


async def statuses(world: World, *ids: str) -> list[str]:
    return [await world.app.get(f"hourly@2030-01-01T{id}:00:00Z").status() for id in ids]


async def test_they_queue_and_run_one_after_the_other(world: World) -> None:
    await world.app.schedules.create(
        "hourly", long, [2], every="1h", overlap="queue", end=NEW_YEAR + timedelta(hours=3)
    )
    await world.advance("4h30m")
    assert await statuses(world, "01", "02", "03") == ["completed", "waiting", "waiting"]
    await world.advance("3h")
    assert await statuses(world, "01", "02", "03") == ["completed"] * 3


async def test_all_of_them_run_at_once(world: World) -> None:
    await world.app.schedules.create("hourly", long, [5], every="1h", overlap="all", end=NEW_YEAR + timedelta(hours=3))
    await world.advance("3h30m")
    assert await statuses(world, "01", "02", "03") == ["waiting"] * 3
    await world.advance("5h")
    assert await statuses(world, "01", "02", "03") == ["completed"] * 3


async def test_the_one_before_is_cancelled_for_the_next(world: World) -> None:
    await world.app.schedules.create(
        "hourly", long, [5], every="1h", overlap="cancel_old", end=NEW_YEAR + timedelta(hours=3)
    )
    await world.advance("9h")
    assert await statuses(world, "01", "02", "03") == ["cancelled", "cancelled", "completed"]


@pytest.mark.parametrize(("catch_up", "expected"), [("all", [1, 2, 3, 4, 5]), ("last", [1, 4, 5]), ("none", [1, 5])])
@pytest.mark.virtual_time
async def test_what_was_missed_is_caught_up_with_as_asked(catch_up: Any, expected: list[int]) -> None:
    async with World(workers=1) as world:
        await world.app.schedules.create("hourly", report, ["x"], every="1h", overlap="queue", catch_up=catch_up)
        await world.advance("1h30m")
        world.workers[0].process.kill()
        await asyncio.sleep(3 * 3600)
        world.add_worker()
        await world.advance("1h")
        assert await started(world) == [f"hourly@2030-01-01T0{hour}:00:00Z" for hour in expected]


async def test_what_passes_during_a_pause_does_not_happen(world: World) -> None:
    app = world.app.schedules
    await app.create("hourly", report, ["x"], every="1h", catch_up="all")
    await world.advance("90m")
    await app.pause("hourly", by="ann")
    await world.advance("2h")
    assert (await app.get("hourly")).paused
    await app.resume("hourly", by="bob")
    await world.advance("1h")
    assert await started(world) == ["hourly@2030-01-01T01:00:00Z", "hourly@2030-01-01T04:00:00Z"]
    log = await world.app.get("schedule/hourly").log()
    assert [entry.data["by"] for entry in log if entry.type == "EventReceived"] == ["ann", "bob"]


async def test_a_schedule_can_begin_paused_and_be_triggered_by_hand(world: World) -> None:
    app = world.app.schedules
    await app.create("daily", report, ["x"], cron="@daily", paused=True)
    await world.advance("3d")
    ids = [await app.trigger("daily", id="t1"), await app.trigger("daily", id="t1")]
    assert ids == ["daily~t1"] * 2
    await world.advance("1s")
    assert await started(world) == ["daily~t1"]
    assert (await app.get("daily")).started == 1


async def test_a_trigger_may_overlap_where_the_schedule_does_not(world: World) -> None:
    app = world.app.schedules
    await app.create("daily", waits, cron="@daily")
    await app.trigger("daily", id="t1")
    await app.trigger("daily", id="t2")
    await app.trigger("daily", id="t3", overlap="all")
    await world.advance("1m")
    assert await started(world, "schedules-waits") == ["daily~t1", "daily~t3"]


async def test_an_update_changes_what_is_given_and_keeps_the_rest(world: World) -> None:
    app = world.app.schedules
    await app.create("hourly", report, ["a"], every="1h", note="first")
    await world.advance("90m")
    await app.update("hourly", args=["b"])
    await app.update("hourly", cron="15 * * * *", overlap="all")
    await world.advance("1h")
    told = await app.get("hourly")
    assert (told.args, told.cron, told.every, told.overlap, told.note) == (["b"], "15 * * * *", "", "all", "first")
    assert await started(world) == ["hourly@2030-01-01T01:00:00Z", "hourly@2030-01-01T02:15:00Z"]
    assert await world.app.get("hourly@2030-01-01T02:15:00Z").result() == "b"
    with pytest.raises(UsageError, match="nothing is given"):
        await app.update("hourly")
    with pytest.raises(InvalidValue):
        await app.update("hourly", cron="every day")


async def test_a_deleted_schedule_starts_nothing_and_its_name_is_free(world: World) -> None:
    app = world.app.schedules
    for number in range(3):
        await app.create("hourly", report, [str(number)], every="1h")
        await world.advance("61m")
        await app.delete("hourly")
        await world.advance("5h")
    assert len(await started(world)) == 3 and await app.list() == []
    assert [one.args for one in await app.list(ended=True)] == [["0"], ["1"], ["2"]]
    for verb in (app.pause, app.resume, app.trigger, app.delete, app.get, app.next):
        with pytest.raises(ExecutionNotFound):
            await verb("hourly")


async def test_the_next_times_are_foreseen(world: World) -> None:
    app = world.app.schedules
    await app.create("early", report, ["x"], cron="30 2 * * *", timezone="Europe/Berlin", start=datetime(2030, 3, 30))
    assert [str(at) for at in await app.next("early", 2)] == ["2030-03-30 02:30:00+01:00", "2030-04-01 02:30:00+02:00"]
    with pytest.raises(UsageError):
        await app.next("early", 0)


async def test_jitter_delays_each_start_by_less_than_itself(world: World) -> None:
    await world.app.schedules.create("hourly", report, ["x"], every="1h", jitter="10m")
    await world.advance("5h30m")
    ids = [f"hourly@2030-01-01T0{hour}:00:00Z" for hour in range(1, 6)]
    assert await started(world) == ids
    late = [(await world.app.get(id).head()).started_at % 3_600_000_000 for id in ids]
    assert all(0 <= one <= 600_000_000 for one in late) and len(set(late)) == 5


async def test_the_log_of_a_schedule_is_replayed_from_its_last_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "ROUND", 3)
    await world.app.schedules.create("often", report, ["x"], every="1m")
    await world.app.schedules.update("often", args=["y"])
    await world.advance("20m30s")
    told = await world.app.schedules.get("often")
    state = await world.app.get("schedule/often").state()
    assert (told.started, told.args, len(told.recent)) == (20, ["y"], schedules.RECENT)
    assert state.version > 100 and state.version - state.base < 20


async def test_a_crash_at_any_call_starts_each_time_once(world: World) -> None:
    hours = [to_micros(NEW_YEAR) + 3_600_000_000]
    target = schedules.Target("schedules-report", ["x"])
    spec = schedules.Spec("hourly", target, Times(at=tuple(hours)), "queue", "all")

    async def check(run: Run[None]) -> None:
        heads = await run._app.store.find(Query("default", workflow="schedules-report"))
        assert sorted(head.key for head in heads) == [f"default/{schedules.id_of_time('hourly', at)}" for at in hours]

    report = await world.crash_everywhere(schedules.schedule, spec, schedules.Place(0), check=check, same_inputs=False)
    assert report.status == "completed" and report.points > 10


async def test_a_start_that_cannot_be_is_told_and_the_schedule_goes_on(world: World) -> None:
    await world.start(long, 1, id="hourly@2030-01-01T01:00:00Z")
    await world.app.schedules.create("hourly", report, ["x"], every="1h")
    await world.advance("150m")
    told = await world.app.schedules.get("hourly")
    assert (told.started, told.failed) == (1, 1) and "exists already" in told.recent[0].reason


async def test_a_worker_that_does_not_know_the_workflow_starts_what_was_known(world: World) -> None:
    @workflow(name="schedules-lost")
    async def lost() -> str:
        return "found"

    await world.app.schedules.create("daily", lost, cron="@daily")
    kept = registry._workflows.pop(("schedules-lost", 1))
    await world.advance("36h")
    registry._workflows["schedules-lost", 1] = kept
    run = world.app.get("daily@2030-01-02T00:00:00Z")
    assert await run.result() == "found"


async def test_tenants_have_schedules_of_their_own(world: World) -> None:
    app = world.app.schedules
    await app.create("daily", report, ["a"], cron="@daily", tenant="acme")
    await app.create("daily", report, ["b"], cron="@hourly")
    assert [one.args for one in await app.list(tenant="acme")] == [["a"]]
    await world.advance("25h")
    assert await world.app.get("daily@2030-01-02T00:00:00Z", "acme").result() == "a"
    with pytest.raises(ExecutionNotFound):
        await app.get("daily", tenant="other")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, UsageError),
        ({"cron": "@daily", "every": "1h"}, UsageError),
        ({"cron": "whenever"}, InvalidValue),
        ({"every": "10ms"}, InvalidValue),
        ({"every": "1h", "timezone": "Mars/Base"}, InvalidValue),
        ({"every": "1h", "overlap": "maybe"}, InvalidValue),
        ({"every": "1h", "catch_up": "some"}, InvalidValue),
        ({"at": [datetime(2029, 1, 1, tzinfo=UTC)]}, InvalidValue),
        ({"at": []}, InvalidValue),
        ({"cron": "@daily", "end": datetime(2029, 1, 1, tzinfo=UTC)}, InvalidValue),
        ({"at": [datetime(2030, 3, 31, 2, 30)], "timezone": "Europe/Berlin"}, InvalidValue),
        ({"cron": "@daily", "start": datetime(9999, 12, 31, 23, tzinfo=UTC)}, InvalidValue),
        (
            {"cron": "@daily", "start": datetime(9998, 12, 31), "timezone": "Asia/Tokyo", "note": "x" * 200_000},
            LimitReached,
        ),
        ({"every": "3500000d"}, InvalidValue),
        ({"cron": "@daily", "jitter": "25h"}, InvalidValue),
        ({"cron": "@daily", "name": "a/b"}, UsageError),
        ({"cron": "@daily", "workflow": "schedules-report", "args": [1, 2]}, InvalidValue),
        ({"cron": "@daily", "args": ["x" * 200_000]}, LimitReached),
        ({"cron": "@daily", "workflow": "nobody-knows"}, NotRegistered),
        ({"cron": "@daily", "workflow": "schedule:"}, NotRegistered),
    ],
)
async def test_what_cannot_be_scheduled_is_refused(world: World, given: dict[str, Any], error: type[Exception]) -> None:
    wanted = {"name": "bad", "workflow": report, "args": ["x"], **given}
    with pytest.raises(error):
        await world.app.schedules.create(wanted.pop("name"), wanted.pop("workflow"), **wanted)
    assert await world.app.schedules.list() == []
