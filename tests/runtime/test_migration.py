"""Running executions go on with another version of their definition: at rest, where it fits, and never half."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from perdure import action, workflow
from perdure.core import events as ev, letters as mail
from perdure.errors import DefinitionNotFound, ExecutionEnded, MigrationRefused, UsageError
from perdure.flows.registry import registry
from perdure.runtime.run import Run
from perdure.testing import World
from perdure.testing.faults import CrashPoints
from tests.flows.script import known, script

done: list[Any] = []


@pytest.fixture(autouse=True)
def _kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    done.clear()
    monkeypatch.setattr(registry, "_workflows", {})  # other tests have workflows of these names
    with known():
        yield


@action(name="migration.charge")
async def charge(amount: int) -> str:
    done.append(amount)
    return f"charged {amount}"


@charge.undo
async def migration_refund(amount: int, receipt: str) -> None:
    done.append(-amount)


CHARGE = {"act": "migration.charge", "with": [7]}
ONE = script("order", CHARGE, {"wait": "packed"})
TWO = script("order", CHARGE, {"wait": "packed"}, {"act": "migration.charge", "with": [1]}, {"wait": "paid"})


async def begun(world: World, *bodies: dict[str, Any], id: str = "o1") -> Run[Any]:
    """An execution of the first body, at rest; the others are published after it began."""
    await world.app.definitions.publish(bodies[0])
    run = await world.app.start("order", id=id)
    await run.until("waiting")
    for body in bodies[1:]:
        await world.app.definitions.publish(body)
    return run


async def last(run: Run[Any]) -> Any:
    return (await run.log())[-1]


async def test_an_execution_at_rest_goes_on_with_another_version(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await run.migrate(2, by="ada")
    restarted = await last(run)
    assert (restarted.type, restarted.data["version"], restarted.data["by"]) == ("Restarted", 2, "ada")
    assert (await run.state()).definition == "published:order@2"
    await run.send("packed", 1)
    await run.send("paid", 2)
    assert await run.result() == ["charged 7", 1, "charged 1", 2]
    assert done == [7, 1]


async def test_it_stays_there_after_a_crash(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await run.migrate(2)
    await world.crash()
    await run.send("packed", 1)
    await run.send("paid", 2)
    assert await run.result() == ["charged 7", 1, "charged 1", 2]


@pytest.mark.world(replay_always=False)
async def test_a_worker_that_still_remembers_the_old_version_builds_it_anew(world: World) -> None:
    # Given two workers: the first has parked the execution and keeps its replay, the second changes the version
    run = await begun(world, ONE, TWO)
    first = world.workers[0]
    assert first.app.worker is not None and run.key in first.app.worker.rooms.parked
    first.process.stop()
    second = world.add_worker()
    await run.migrate(2)
    # When the first goes on with it
    await second.shut_down()
    first.process.cont()
    await run.send("packed", 1)
    await run.send("paid", 2)
    assert await run.result() == ["charged 7", 1, "charged 1", 2]


async def test_what_was_done_before_is_still_undone(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await run.migrate(2)
    await run.send("packed")
    await world.settle()
    await run.cancel()
    await run.until("cancelled")
    assert done == [7, 1, -1, -7]


async def test_events_that_nobody_took_are_kept(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await run.send("paid", "early")
    await run.migrate(2)
    await run.send("packed", 1)
    assert await run.result() == ["charged 7", 1, "charged 1", "early"]


async def test_a_timer_goes_on_where_it_was(world: World) -> None:
    run = await begun(world, script("order", {"sleep": 100}), script("order", {"sleep": 100}, {"wait": "packed"}))
    await world.advance("60s")
    await run.migrate(2)
    before = world.micros()
    await run.send("packed", 1)
    assert await run.result() == ["slept", 1]
    assert 39e6 < world.micros() - before < 41e6


async def test_to_its_own_version_nothing_happens(world: World) -> None:
    run = await begun(world, ONE)
    await run.migrate(1)
    assert [entry.type for entry in await run.log()][-1] != "Restarted"


async def test_there_and_back_again(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await run.migrate(2)
    await run.migrate(1)
    await run.send("packed", 1)
    assert await run.result() == ["charged 7", 1]


async def test_a_version_that_does_not_fit_is_refused(world: World) -> None:
    run = await begun(world, ONE, script("order", {"wait": "packed"}))
    with pytest.raises(MigrationRefused, match=r"it waits at packed, not at the end") as caught:
        await run.migrate(2)
    assert [one.where for one in caught.value.problems] == ["steps[1]"]
    assert "EventRejected" not in [entry.type for entry in await run.log()]
    await run.send("packed", 1)
    assert await run.result() == ["charged 7", 1]


async def test_a_version_that_lacks_the_undo_of_what_was_done_is_refused(world: World) -> None:
    run = await begun(world, ONE, script("order", {"sleep": 1}, {"wait": "packed"}))
    before = registry._actions.pop("migration_refund")
    try:
        with pytest.raises(MigrationRefused, match="migration_refund"):
            await run.migrate(2)
    finally:
        registry._actions["migration_refund"] = before


async def test_only_an_execution_at_rest_can_change_its_version(world: World) -> None:
    go = asyncio.Event()

    @action(name="migration.slow")
    async def slow() -> None:
        await go.wait()

    await world.app.definitions.publish(script("order", {"act": "migration.slow"}, {"wait": "packed"}))
    await world.app.definitions.publish(script("order", {"act": "migration.slow"}, {"wait": "packed"}, {"sleep": 1}))
    run = await world.app.start("order", version=1)
    await world.settle()
    with pytest.raises(MigrationRefused, match=r"not at rest.*migration\.slow"):
        await run.migrate(2)
    go.set()
    await run.until("waiting")
    await run.migrate(2)
    await run.send("packed")
    assert await run.result() == [None, None, "slept"]


async def test_a_paused_execution_keeps_its_version(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await run.pause()
    await run.until("paused")
    with pytest.raises(MigrationRefused, match="paused; resume it first"):
        await run.migrate(2)


async def test_an_unknown_version_and_an_ended_execution_are_refused(world: World) -> None:
    run = await begun(world, ONE, TWO)
    with pytest.raises(DefinitionNotFound):
        await run.migrate(9)
    await run.send("packed")
    await run.result()
    with pytest.raises(ExecutionEnded):
        await run.migrate(2)


async def test_code_has_no_other_version_to_go_to(world: World) -> None:
    @workflow
    async def sleeper() -> None:
        await asyncio.sleep(100)

    run = await world.start(sleeper)
    with pytest.raises(UsageError, match="is code"):
        await run.migrate(2)


async def letter(world: World, run: Run[Any], version: int, hash: str | None = None) -> Any:
    """Ask for a version without judging first, as one does who has judged before something else happened."""
    wanted = hash or (await world.app.definitions.get("order", version)).hash
    await world.app.post(run.key, "/migrate:x", mail.MigrateLetter(version, wanted, "ada"))
    await world.settle()
    rows = [row for row in await world.rows(run.key) if row.message_id == "/migrate:x"]
    assert len(rows) == 1
    return ev.read(rows[0])


async def test_whoever_holds_it_judges_again(world: World) -> None:
    run = await begun(world, ONE, script("order", {"wait": "packed"}), TWO)
    rejected = await letter(world, run, 2)
    assert isinstance(rejected, ev.EventRejected)
    assert (rejected.name, "it waits at packed" in rejected.reason) == ("migrate", True)
    await run.send("packed", 1)
    assert await run.result() == ["charged 7", 1]


@pytest.mark.parametrize(
    ("version", "hash", "why"),
    [(9, "abc", "was not published"), (2, "abc", "another content"), (1, None, "at version 1 already")],
)
async def test_a_letter_that_asks_for_what_is_not_there_changes_nothing(
    world: World, version: int, hash: str | None, why: str
) -> None:
    run = await begun(world, ONE, TWO)
    rejected = await letter(world, run, version, hash)
    assert isinstance(rejected, ev.EventRejected)
    assert why in rejected.reason
    await run.send("packed", 1)
    assert await run.result() == ["charged 7", 1]


async def test_a_letter_that_comes_to_the_end_is_rejected(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await world.workers[0].shut_down()
    await run.send("packed", 1)
    two = await world.app.definitions.get("order", 2)
    await world.app.post(run.key, "/migrate:x", mail.MigrateLetter(2, two.hash))
    world.add_worker()
    assert await run.result() == ["charged 7", 1]
    rejected, completed = (await run.log())[-2:]
    assert (rejected.data["reason"], completed.type) == ("position: it goes on to its end without a rest", "Completed")


async def test_what_came_before_the_change_is_not_replayed_with_the_new_version(world: World) -> None:
    # Given a version that begins otherwise, and then runs an action, so that the worker keeps the execution
    run = await begun(world, ONE, script("order", {"sleep": 1}, {"wait": "packed"}, CHARGE))
    await world.workers[0].shut_down()
    migrating = asyncio.create_task(run.migrate(2))
    await world.settle()
    await run.send("packed", 1)
    world.add_worker()
    await migrating
    assert await run.result() == ["charged 7", 1, "charged 7"]


@pytest.mark.world(linger="1m")
async def test_a_letter_reaches_an_execution_that_is_held_while_it_rests(world: World) -> None:
    await world.app.definitions.publish(script("order", {"sleep": 30}))
    await world.app.definitions.publish(script("order", {"sleep": 30}, {"sleep": 1}))
    run = await world.app.start("order", version=1)
    await world.advance("5s")
    assert await run.status() == "running"
    await run.migrate(2)
    assert await run.result() == ["slept", "slept"]


async def test_the_queue_of_an_execution_does_not_change(world: World) -> None:
    run = await begun(world, ONE, {**TWO, "queue": "elsewhere"})
    before = registry._actions.pop("migration.charge")
    try:
        await run.migrate(2)
        await run.send("packed", 1)
        await run.until("waiting")
        [ordered] = [entry for entry in await run.log() if entry.type == "ActionScheduled"]
        assert ordered.data["queue"] == "default"
    finally:
        registry._actions["migration.charge"] = before
    await run.send("paid", 2)
    assert await run.result() == ["charged 7", 1, "charged 1", 2]


async def test_an_action_that_runs_on_is_no_rest(world: World) -> None:
    # Given a version that does not wait for its action, and says that it is at rest
    go = asyncio.Event()

    @action(name="migration.runs_on")
    async def runs_on() -> None:
        await go.wait()

    beside = {"beside": "migration.runs_on", "act": "migration.runs_on"}
    await world.app.definitions.publish(script("order", beside, {"wait": "packed"}))
    await world.app.definitions.publish(script("order", beside, {"wait": "packed"}, {"sleep": 1}))
    run = await world.app.start("order", version=1)
    await world.settle()
    with pytest.raises(MigrationRefused, match="not at rest"):
        await run.migrate(2)
    go.set()
    await run.until("waiting")
    await run.migrate(2)
    await run.send("packed")
    assert await run.result() == ["beside", None, "slept"]


async def test_a_letter_that_waited_with_the_execution_is_served(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await world.workers[0].shut_down()
    migrating = asyncio.create_task(run.migrate(2))
    await world.settle()
    world.add_worker()
    await migrating
    assert (await run.state()).definition == "published:order@2"


async def test_who_asks_waits_no_longer_than_it_says(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await world.workers[0].shut_down()
    with pytest.raises(TimeoutError):
        await run.migrate(2, timeout="5s")


async def test_events_are_checked_against_the_version_that_runs(world: World) -> None:
    run = await begun(world, script("order", {"wait": "packed"}, declares=True), script("order", {"wait": "packed"}))
    await run.migrate(2)
    await run.send("anything")
    await run.send("packed", 7)
    assert await run.result() == [7]


async def test_a_hundred_executions_change_their_version_at_once(world: World) -> None:
    await world.app.definitions.publish(ONE)
    runs = [await world.app.start("order") for _ in range(100)]
    for run in runs:
        await run.until("waiting")
    await world.app.definitions.publish(TWO)
    await asyncio.gather(*(run.migrate(2) for run in runs))
    for run in runs:
        await run.send("packed", 1)
        await run.send("paid", 2)
        assert await run.result() == ["charged 7", 1, "charged 1", 2]


async def test_a_fork_of_a_migrated_execution_goes_on_with_its_version(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await run.migrate(2)
    fork = await run.fork()
    await fork.send("packed", 1)
    await fork.send("paid", 2)
    assert await fork.result() == ["charged 7", 1, "charged 1", 2]


@pytest.mark.virtual_time
async def test_a_worker_may_die_at_any_store_call() -> None:
    async def one(points: CrashPoints) -> list[str]:
        done.clear()
        async with World(workers=0) as world:
            await world.app.definitions.publish(ONE)
            world.add_worker(points).process.on_kill.append(world.add_worker)
            run = await world.app.start("order", id="o1")
            await run.until("waiting")
            await world.app.definitions.publish(TWO)
            await run.migrate(2)
            await run.send("packed", 1)
            await run.send("paid", 2)
            assert await run.result() == ["charged 7", 1, "charged 1", 2]
            restarted = [entry for entry in await run.log() if entry.type == "Restarted"]
            assert [entry.data["version"] for entry in restarted] == [2]
        return points.calls

    calls = await one(CrashPoints())
    for at in range(len(calls)):
        for after in (False, True):
            await one(CrashPoints(at, after=after))
    assert len(calls) > 10
