"""Dead letters, from real poison: what they tell, that each is redriven once, and that nothing alive is purged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import ExecutionCancelled, Run, action, event, workflow
from perdure.core import events as ev
from perdure.core.records import Commit, Held, Row
from perdure.errors import UsageError
from perdure.flows.registry import registry
from perdure.runtime.managing import dead
from perdure.testing import World


@action
async def note(text: str) -> str:
    return text


def two_releases(name: str) -> tuple[Any, Any]:
    """Two programs under one name; the second does not fit the logs of the first."""

    @workflow(name=name)
    async def broken(item: str) -> str:
        await event("go")
        return await note("other")

    @workflow(name=name)
    async def fitting(item: str) -> str:
        await note("first")
        await event("go")
        return await note(item)

    return fitting, broken


async def stuck(world: World, release: tuple[Any, Any], *ids: str) -> list[Run[Any]]:
    """Executions that a careless deploy has made stuck."""
    fitting, broken = release
    registry.add_workflow(fitting)
    runs = [await world.start(fitting, f"item of {id}", id=id) for id in ids]
    for run in runs:
        await run.until("waiting")
    registry.add_workflow(broken)
    for run in runs:
        await run.send("go")
        await run.until("stuck")
    return runs


async def types(run: Run[Any]) -> list[str]:
    return [entry.type for entry in await run.log()]


def no_worker(world: World) -> None:
    for machine in world.workers:
        machine.process.kill()


# --- what they tell --------------------------------------------------------------------------------------------------


async def test_a_dead_letter_tells_cause_reason_and_time(world: World) -> None:
    release = two_releases("told")
    await world.advance("1h")
    [run] = await stuck(world, release, "a")
    began = world.now()
    await world.advance("1h")
    [one] = (await world.app.dead()).dead
    assert (one.id, one.tenant, one.workflow, one.definition) == ("a", "default", "told", "told@1")
    assert (one.cause, one.tries, one.lapses, one.mail) == ("nondeterminism", 1, 0, 0)
    assert "records action note as command 1" in one.reason
    assert abs((one.since - began).total_seconds()) < 1
    assert [entry.version for entry in await run.log() if entry.type == "Stuck"] == [one.version]
    registry.add_workflow(release[0])
    await world.app.redrive("a")
    await run.result()


async def test_events_that_come_later_change_neither_its_time_nor_its_version(world: World) -> None:
    release = two_releases("unmoved")
    [run] = await stuck(world, release, "a")
    [before] = (await world.app.dead()).dead
    await world.advance("1h")
    await run.send("hello")
    await world.settle()
    assert "EventReceived" in (await types(run))[-1]
    assert (await world.app.dead()).dead == [before]


async def test_the_whole_case_is_shown(world: World) -> None:
    await stuck(world, two_releases("shown"), "a")
    case = await dead.examine(world.app, "a", events=3)
    assert case.input == ["item of a"]
    assert case.place.startswith('after version 2, ActionSettled note → "first"')
    assert "workflow.patched" in case.mend
    assert [entry.type for entry in case.events] == ["ActionSettled", "Stuck", "EventReceived"]


async def test_only_what_is_stuck_is_a_case(world: World) -> None:
    fitting, _ = two_releases("healthy")
    run = await world.start(fitting, "x", id="fine")
    await run.until("waiting")
    with pytest.raises(UsageError, match="fine is waiting, not stuck"):
        await dead.examine(world.app, "fine")
    assert (await world.app.dead()).dead == []
    assert (await world.app.redrive("fine", "nobody")).not_stuck == ["fine"]
    assert (await world.app.purge("fine", "nobody")).missing == ["nobody"]


def test_every_cause_can_be_mended() -> None:
    from perdure.runtime.execution import course

    assert {*course.CAUSES.values(), "lapses", "sealed", "attempts", "refused", "engine"} == set(dead.CAUSES)


# --- pages and filters -----------------------------------------------------------------------------------------------


async def test_pages_follow_the_order_of_getting_stuck(world: World) -> None:
    release = two_releases("ordered")
    fitting, broken = release
    registry.add_workflow(fitting)
    for id in "abcde":
        await (await world.start(fitting, id, id=id)).until("waiting")
        await world.advance("1s")
    registry.add_workflow(broken)
    for id in "cabed":  # not the order in which they began
        await world.app.send(id, "go")
        await world.app.get(id).until("stuck")
        await world.advance("1s")

    async def ids(oldest: bool) -> list[str]:
        found, cursor = [], None
        while True:
            page = await world.app.dead(oldest=oldest, limit=2, cursor=cursor)
            found += [one.id for one in page.dead]
            cursor = page.next
            if cursor is None:
                return found

    assert await ids(oldest=True) == list("cabed")
    assert await ids(oldest=False) == list("debac")
    with pytest.raises(UsageError, match="not a cursor"):
        await world.app.dead(cursor="x")


async def test_they_are_chosen_by_cause_workflow_and_tenant(world: World) -> None:
    @workflow
    async def hangs() -> None:
        await asyncio.Event().wait()

    await stuck(world, two_releases("chosen"), "a")
    await (await world.start(hangs, id="b")).until("stuck")
    await (await world.app.start(hangs, id="c", tenant="acme")).until("stuck")

    async def ids(**choice: Any) -> list[str]:
        return [one.id for one in (await world.app.dead(**choice)).dead]

    assert sorted(await ids()) == ["a", "b"]
    assert await ids(cause="never-wakes") == ["b"]
    assert await ids(workflow="chosen") == ["a"]
    assert await ids(cause="limit") == []
    assert await ids(tenant="acme") == ["c"]
    assert (await world.app.redrive(cause="never-wakes", dry_run=True)).done == ["b"]
    assert (await world.app.purge(workflow="chosen", dry_run=True)).done == ["a"]
    with pytest.raises(UsageError, match="'bad luck' is no cause; there are: nondeterminism, "):
        await ids(cause="bad luck")


async def test_nothing_chosen_does_not_mean_all(world: World) -> None:
    for each in (world.app.redrive, world.app.purge):
        with pytest.raises(UsageError, match="nothing is chosen"):
            await each()
        with pytest.raises(UsageError, match="not both"):
            await each("a", cause="lapses")


async def test_many_are_handled_page_by_page(world: World) -> None:
    @workflow(name="many")
    async def waits() -> None:
        await event("never")

    @workflow(name="many")
    async def hangs() -> None:
        await asyncio.Event().wait()

    count = dead._PAGE + 50
    runs = await asyncio.gather(*(world.start(hangs, id=f"many-{n}") for n in range(count)))
    for run in runs:
        await run.until("stuck")
    no_worker(world)
    seen: list[int] = []
    handled = await world.app.purge(all=True, progress=seen.append)
    assert (len(handled.done), seen) == (count, [dead._PAGE, count])
    assert len((await world.app.purge(all=True)).before) == count
    world.add_worker()
    for run in runs:
        await run.until("cancelled")
    registry.add_workflow(waits)  # the world replays every log at its end


# --- poison, mended and redriven -------------------------------------------------------------------------------------


async def test_mended_code_and_a_redrive_let_it_go_on(world: World) -> None:
    release = two_releases("goes-on")
    [run] = await stuck(world, release, "a")
    registry.add_workflow(release[0])
    assert (await world.app.redrive(cause="nondeterminism", reason="rolled back", by="ada")).done == ["a"]
    assert await run.result() == "item of a"
    [entry] = [entry for entry in await run.log() if entry.type == "Redriven"]
    assert entry.data == {"reason": "rolled back", "by": "ada", "worker": "worker-1"}


async def test_an_event_of_a_newer_format_waits_for_the_newer_release(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    @workflow
    async def reader() -> str:
        return await event("go", str)

    run = await world.start(reader)
    await run.until("waiting")
    [held] = await world.app.store.hold([run.key], "a newer worker", 10_000_000)
    assert isinstance(held, Held)
    # Given an event that a newer release has folded, in its own format
    number = ev.NUMBERS[ev.EventReceived]
    old = ev.row(ev.EventReceived("go", b'"hi"'), held.rows[-1].version + 1, world.app.clock.now(), held.token)  # type: ignore[arg-type]
    newer = Row(old.version, 1000 + number, b'{"name":"go","payload":"hi","by":"app"}', old.at, old.fence)
    await world.app.store.commit([Commit(run.key, held.token, [newer])], 0)
    await world.app.store.release([(run.key, held.token)])
    await run.until("stuck")
    [one] = (await world.app.dead()).dead
    assert one.cause == "undecodable"
    assert f"event type {number} in format 2" in one.reason
    # When it is redriven with the code at hand, then it is stuck again
    await world.app.redrive(run.id)
    await world.settle()
    [again] = (await world.app.dead()).dead
    assert (again.tries, again.version > one.version) == (2, True)
    # When the newer release is there
    monkeypatch.setitem(ev.FORMATS, number, 2)
    monkeypatch.setitem(ev.UPCASTERS, (number, 1), lambda data: data)
    await world.app.redrive(run.id)
    assert await run.result() == "hi"


async def test_what_took_its_workers_down_goes_on_when_it_no_longer_does(world: World) -> None:
    deaths = 0
    mended = False

    @action
    async def deadly() -> str:
        nonlocal deaths
        if mended:
            return "alive"
        deaths += 1
        await asyncio.sleep(10**6)
        return "never"

    @workflow
    async def poisoned(item: str) -> str:
        return await deadly()

    run = await world.start(poisoned, "piano")
    for death in range(1, 6):
        async with asyncio.timeout(60):
            while deaths < death:
                await asyncio.sleep(0.01)
        await world.crash()
    await run.until("stuck")
    [one] = (await world.app.dead()).dead
    assert (one.cause, one.lapses) == ("lapses", 5)
    assert (await dead.examine(world.app, run.id)).input == ["piano"]
    mended = True
    await world.app.redrive(run.id)
    assert await run.result() == "alive"


# --- once ------------------------------------------------------------------------------------------------------------


async def test_a_redrive_is_applied_once_however_often_it_is_asked_for(world: World) -> None:
    release = two_releases("once")
    [run] = await stuck(world, release, "a")
    no_worker(world)
    others = [world.client("ada"), world.client("bob")]
    answers = await asyncio.gather(*(one.redrive(all=True) for one in (world.app, *others)))
    await run.retry()
    assert sorted((len(one.done), len(one.before)) for one in answers) == [(0, 1), (0, 1), (1, 0)]
    registry.add_workflow(release[0])
    world.add_worker()
    assert await run.result() == "item of a"
    assert (await types(run)).count("Redriven") == 1


async def test_a_redrive_that_comes_late_does_not_count_for_the_next_time(world: World) -> None:
    release = two_releases("late")
    [run] = await stuck(world, release, "a")
    head = await run.head()  # as somebody sees it who then takes his time
    await world.app.redrive("a")
    await world.settle()
    assert (await types(run)).count("Stuck") == 2
    from perdure.core.letters import RedriveLetter

    assert await world.app.post(run.key, dead.redrive_id(head), RedriveLetter()) == "duplicate"
    await world.settle()
    assert (await types(run)).count("Stuck") == 2
    assert (await world.app.redrive("a")).done == ["a"]
    await world.settle()
    assert (await types(run)).count("Stuck") == 3


# --- given up --------------------------------------------------------------------------------------------------------


async def test_a_purge_ends_it_and_keeps_its_log(world: World) -> None:
    release = two_releases("given-up")
    [run] = await stuck(world, release, "a")
    before = await types(run)
    assert (await world.app.purge("a", reason="shipped by hand", by="ada")).done == ["a"]
    with pytest.raises(ExecutionCancelled, match="purged: shipped by hand"):
        await run.result()
    log = await run.log()
    assert [entry.type for entry in log] == [*before, "CancelRequested", "Cancelled"]
    assert log[-2].data["by"] == "ada"
    assert (await world.app.dead()).dead == []
    assert (await world.app.purge("a")).not_stuck == ["a"]
    registry.add_workflow(release[0])  # the world replays every log at its end


async def test_what_was_redriven_first_is_not_purged(world: World) -> None:
    release = two_releases("saved")
    [run] = await stuck(world, release, "a")
    no_worker(world)
    await world.app.redrive("a")
    await world.app.purge("a")
    registry.add_workflow(release[0])
    world.add_worker()
    assert await run.result() == "item of a"
    assert "CancelRequested" not in await types(run)


async def test_what_was_purged_first_is_not_redriven(world: World) -> None:
    release = two_releases("lost")
    [run] = await stuck(world, release, "a")
    no_worker(world)
    await world.app.purge("a")
    await world.app.redrive("a")
    registry.add_workflow(release[0])
    world.add_worker()
    await run.until("cancelled")
    assert "Redriven" not in await types(run)


async def test_a_dry_run_changes_nothing(world: World) -> None:
    [run] = await stuck(world, two_releases("rehearsed"), "a")
    before = await run.head()
    assert (await world.app.redrive(all=True, dry_run=True)).done == ["a"]
    assert (await world.app.purge("a", dry_run=True)).done == ["a"]
    await world.settle()
    assert await run.head() == before
