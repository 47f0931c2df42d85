"""Runs that need a person: code that does not fit the log, poison, missing versions; and how they go on."""

from __future__ import annotations

import asyncio
import importlib
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import ExecutionFailed, ExecutionNotFound, ExecutionStuck, Forbidden, Perdure, action, event, workflow
from perdure.core import events as ev
from perdure.core.records import Commit
from perdure.errors import RetryRefused, Undecodable
from perdure.runtime.telemetry.logs import JsonLines
from perdure.testing import World

steps: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    steps.clear()


@action
async def step(name: str) -> str:
    steps.append(name)
    return name


def old_and_new(name: str) -> tuple[Any, Any]:
    """Two programs under one name: what was deployed first, and what a careless deploy brought."""

    @workflow(name=name)
    async def new() -> list[str]:
        await event("go")
        return [await step("other")]

    @workflow(name=name)
    async def old() -> list[str]:
        first = await step("first")
        await event("go")
        return [first, await step("second")]

    return old, new


def deploy(definition: Any) -> None:
    from perdure.flows.registry import registry

    registry.add_workflow(definition)


async def test_divergence_names_the_command_and_makes_the_run_stuck_not_failed(world: World) -> None:
    old, new = old_and_new("diverging")
    run = await world.start(old)
    await run.until("waiting")
    deploy(new)
    await run.send("go")
    with pytest.raises(ExecutionStuck, match="nondeterminism.*records action step as command 1"):
        await run.result()
    assert await run.status() == "stuck"
    assert "retry" in str(await run.why())
    assert steps == ["first"]


async def test_log_lines_say_which_execution_they_are_about(world: World, caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def hangs_too() -> None:
        await asyncio.Event().wait()

    run = await world.start(hangs_too)
    await run.until("stuck")
    [record] = [record for record in caplog.records if "is stuck" in record.getMessage()]
    line = json.loads(JsonLines().format(record))
    assert (line["tenant"], line["execution"], line["version"]) == ("default", run.id, 2)


async def test_the_right_code_and_a_retry_resume_a_stuck_run(world: World) -> None:
    old, new = old_and_new("mended")
    run = await world.start(old)
    await run.until("waiting")
    deploy(new)
    await run.send("go")
    await run.until("stuck")
    deploy(old)
    assert (await run.retry(by="ada")).key == run.key
    assert await run.result() == ["first", "second"]
    assert steps == ["first", "second"]
    assert "Redriven" in [entry.type for entry in await run.log()]


async def test_events_that_come_while_it_is_stuck_are_kept(world: World) -> None:
    old, new = old_and_new("patient")
    run = await world.start(old)
    await run.until("waiting")
    deploy(new)
    await run.send("hello")
    await run.until("stuck")
    await run.send("go")
    async with asyncio.timeout(5):
        while (await run.head()).mail or (await run.head()).holder:
            await asyncio.sleep(0.001)
    deploy(old)
    await run.retry()
    assert await run.result() == ["first", "second"]


async def test_retrying_with_the_wrong_code_makes_it_stuck_again_not_a_busy_loop(world: World) -> None:
    old, new = old_and_new("hopeless")
    run = await world.start(old)
    await run.until("waiting")
    deploy(new)
    await run.send("go")
    await run.until("stuck")
    await run.retry()
    async with asyncio.timeout(5):
        while [entry.type for entry in await run.log()].count("Stuck") < 2:
            await asyncio.sleep(0.001)
    assert await run.status() == "stuck"


async def test_a_stuck_run_can_be_cancelled(world: World) -> None:
    old, new = old_and_new("doomed")
    run = await world.start(old)
    await run.until("waiting")
    deploy(new)
    await run.send("go")
    await run.until("stuck")
    await run.cancel()
    await run.until("cancelled")
    deploy(old)  # the world replays every log at its end


async def test_a_workflow_that_can_never_wake_is_stuck_at_once_with_the_place(world: World) -> None:
    @workflow
    async def hangs() -> None:
        await asyncio.Event().wait()

    run = await world.start(hangs)
    with pytest.raises(ExecutionStuck, match=r"never-wakes.*hangs, line \d+"):
        await run.result()


async def test_a_workflow_that_never_rests_is_stuck(world: World) -> None:
    @workflow
    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    run = await world.start(spins)
    with pytest.raises(ExecutionStuck, match="does not come to rest"):
        await run.result()


def test_what_cannot_be_replayed_is_refused_at_registration() -> None:
    with pytest.raises(Forbidden, match=r"time\.time.*workflow\.now"):

        @workflow
        async def clock() -> float:
            return time.time()


async def test_threads_are_refused_at_the_call(world: World) -> None:
    @workflow
    async def threads() -> str:
        try:
            await asyncio.get_running_loop().run_in_executor(None, print)
        except Forbidden as refusal:
            return str(refusal)
        return "?"

    line = threads.fn.__code__.co_firstlineno + 3
    told = await (await world.start(threads)).result()
    assert f"threads (test_stuck.py:{line}) calls loop.run_in_executor()" in told
    assert "put what needs it into an action" in told


async def test_what_a_library_does_on_behalf_of_a_workflow_is_refused_with_the_line_of_the_workflow(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "stuck_library.py").write_text("import socket\ndef ask():\n    socket.getaddrinfo('localhost', 1)\n")
    monkeypatch.syspath_prepend(folder)
    library = importlib.import_module("stuck_library")

    @workflow
    async def asks() -> None:
        library.ask()

    line = asks.fn.__code__.co_firstlineno + 2
    refusal = rf"asks \(test_stuck.py:{line}\) causes socket.getaddrinfo, which happens again .*: put it into an action"
    with pytest.raises(ExecutionFailed, match=refusal):
        await world.run(asks)


async def test_an_unknown_event_type_parks_the_run_with_a_clear_reason(world: World) -> None:
    @workflow
    async def plain() -> None:
        await event("go")

    run = await world.start(plain)
    await run.until("waiting")
    held = (await world.app.store.hold([run.key], "somebody", 10_000_000))[0]
    version = held.rows[-1].version + 1  # type: ignore[union-attr]
    strange = ev.row(ev.Resumed(), version, world.app.clock.now(), held.token)  # type: ignore[union-attr]
    future = type(strange)(strange.version, 999, b"{}", strange.at, strange.fence)
    await world.app.store.commit([Commit(run.key, held.token, [future])], 0)  # type: ignore[union-attr]
    await world.app.store.release([(run.key, held.token)])  # type: ignore[union-attr]
    await run.send("go")
    with pytest.raises(ExecutionStuck, match="newer release"):
        await run.result()


async def test_versions_live_side_by_side_and_a_run_stays_on_its_own(world: World) -> None:
    @workflow(name="greeting", version=1)
    async def first() -> str:
        await event("go")
        return "one"

    run = await world.start(first)
    await run.until("waiting")

    @workflow(name="greeting", version=2)
    async def second() -> str:
        await event("go")
        return "two"

    newer = await world.app.start_by_name("greeting", [])
    for each in (run, newer):
        await each.send("go")
    assert [await run.result(), await newer.result()] == ["one", "two"]
    assert await (await world.app.start_by_name("greeting", [], version=1)).status() in ("running", "waiting")


async def test_patched_takes_the_new_path_only_in_new_runs(world: World) -> None:
    @workflow(name="patching")
    async def before() -> list[str]:
        done = [await step("a")]
        await event("go")
        return [*done, await step("b")]

    @workflow(name="patching")
    async def after() -> list[str]:
        done = []
        if workflow.patched("check first"):
            done.append(await step("check"))
        done.append(await step("a"))
        await event("go")
        return [*done, await step("b")]

    deploy(before)
    old = await world.start(before)
    await old.until("waiting")
    deploy(after)
    new = await world.start(after)
    await new.until("waiting")
    for run in (old, new):
        await run.send("go")
    assert await old.result() == ["a", "b"]
    assert await new.result() == ["check", "a", "b"]


async def test_cancelling_a_stuck_run_reaches_its_children_and_keeps_what_it_published(world: World) -> None:
    @workflow
    async def offspring() -> None:
        await event("never")

    @workflow(name="stuck-parent")
    async def broken() -> None:
        await step("other")

    @workflow(name="stuck-parent")
    async def parent() -> None:
        workflow.publish(stage="waiting")
        await asyncio.gather(offspring(), event("go"))

    run = await world.start(parent, id="sp")
    await run.until("waiting")
    deploy(broken)
    await run.send("go")
    await run.until("stuck")
    assert len((await world.app.find(stage="waiting", status="stuck")).heads) == 1
    await run.cancel()
    await run.until("cancelled")
    await world.app.get("sp.1").until("cancelled")
    assert (await world.app.find(stage="waiting")).heads[0].status == "cancelled"
    deploy(parent)


async def test_what_takes_its_workers_down_again_and_again_is_stuck(world: World) -> None:
    began: list[int] = []

    @action
    async def deadly() -> None:
        began.append(action.fence)
        await asyncio.sleep(10**6)

    @workflow
    async def poison() -> None:
        await deadly()

    run = await world.start(poison)
    for death in range(1, 6):
        async with asyncio.timeout(60):
            while len(began) < death:
                await asyncio.sleep(0.01)
        await world.crash()
    with pytest.raises(ExecutionStuck, match="lapses.*5 workers in a row"):
        await run.result()
    assert len(began) == 5
    assert began == sorted(began)


async def test_a_healthy_run_is_not_poison_however_often_its_workers_die(world: World) -> None:
    began: list[int] = []

    @action
    async def slow(n: int) -> int:
        began.append(n)
        await asyncio.sleep(5)
        return n

    @workflow
    async def healthy() -> int:
        return sum([await slow(n) for n in range(10)])

    run = await world.start(healthy)
    for death in range(1, 9):
        async with asyncio.timeout(600):
            while len(set(began)) < death:
                await asyncio.sleep(0.1)
        await world.crash()
    assert await run.result() == 45


async def test_a_run_whose_version_no_worker_has_waits_visibly_and_goes_on_when_one_comes(world: World) -> None:
    from perdure.core import summary
    from perdure.core.records import Hint
    from perdure.flows.registry import registry

    first = ev.Started("ghost", 9, msgspec.Raw(b"[]"), "app")
    start = summary.begin("default/ghost-1", first, "default", world.app.clock.now())
    await world.app.store.start([start], 0)
    await world.app.stream.publish([Hint("default/ghost-1", "default")])
    await asyncio.sleep(60)
    run = world.app.get("ghost-1")
    head = await run.head()
    assert (head.shown, head.version, head.lapses) == ("waiting", 1, 0)
    assert "it needs one that serves queue 'default' and has ghost@9" in str(await run.why())

    @workflow(name="ghost", version=9)
    async def ghost() -> str:
        return await step("boo")

    assert registry.find("ghost@9") is ghost
    assert await run.result() == "boo"


async def test_the_same_retry_is_known_after_the_run_has_ended(world: World) -> None:
    old, new = old_and_new("asked")
    run = await world.start(old)
    await run.until("waiting")
    deploy(new)
    await run.send("go")
    await run.until("stuck")
    deploy(old)
    assert (await run.retry(id="again")).key == run.key
    await run.result()
    assert (await run.retry(id="again")).key == run.key
    with pytest.raises(RetryRefused, match="completed"):
        await run.retry(id="another")


async def test_the_same_retry_of_a_run_that_is_stuck_again_is_not_a_second_one(world: World) -> None:
    @workflow(name="stuck_again")
    async def stuck_again() -> None:
        await asyncio.Event().wait()

    run = await world.start(stuck_again)
    await run.until("stuck")
    assert (await run.retry(id="again")).key == run.key
    while [entry.type for entry in await run.log()].count("Stuck") < 2:
        await asyncio.sleep(0.1)
    assert (await run.retry(id="again")).key == run.key
    assert [entry.type for entry in await run.log()].count("Redriven") == 1


@workflow(name="stuck-robbed")
async def robbed() -> list[str]:
    first = await step("first")
    await event("go")
    return [first, await step("second")]


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("true", "the log of default/run is gone"),
        ("version = 1", "begins with version 2, which is no beginning"),
        ("version = 2", "has only 2 of the rows from 1 to 3"),
    ],
)
@pytest.mark.real_time
async def test_what_has_lost_of_its_log_is_stuck_and_does_not_begin_anew(tmp_path: Path, lost: str, said: str) -> None:
    async with asyncio.timeout(20), Perdure(f"sqlite:///{tmp_path}/s.db", cache=0, linger=0) as app:
        run, other = [await app.start(robbed, id=id) for id in ("run", "other")]
        async with app.working():
            await run.send("noise", id="noise")
            for one in (run, other):
                await one.until("waiting")
        with closing(sqlite3.connect(tmp_path / "s.db")) as db, db:
            for (trigger,) in db.execute("select name from sqlite_master where type = 'trigger'").fetchall():
                db.execute(f"drop trigger {trigger}")
            assert db.execute("select count(*) from events where key = 'default/run'").fetchone() == (3,)
            db.execute(f"delete from events where key = 'default/run' and {lost}")
        if lost == "true":
            with pytest.raises(Undecodable, match="is gone"):
                await run.state()
        async with app.working():
            for one in (run, other):
                await one.send("go")
            with pytest.raises(ExecutionStuck, match=said):
                await run.result()
            assert await other.result() == ["first", "second"]  # its neighbours go on
            assert steps == ["first", "first", "second"]
            await app.purge("run")
            await run.until("cancelled")


@pytest.mark.real_time
async def test_what_never_was_is_not_found_and_not_made_by_whatever_is_asked_of_it() -> None:
    async with Perdure("memory://") as app:
        run = app.get("nobody")
        asked = (run.status, run.state, run.log, run.why, run.pause, run.resume, run.cancel, run.retry, run.result)
        for ask in (*asked, lambda: run.send("go"), lambda: run.fork(at=1)):
            with pytest.raises(ExecutionNotFound):
                await ask()
        assert (await app.find()).heads == []
