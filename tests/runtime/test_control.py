"""Starting, sending, pausing, cancelling, retrying, forking, asking why: what the client promises."""

from __future__ import annotations

import asyncio
import re
import string
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    EventConflict,
    ExecutionCancelled,
    ExecutionEnded,
    ExecutionExists,
    ExecutionFailed,
    ExecutionNotFound,
    LimitReached,
    Perdure,
    Retry,
    RetryRefused,
    Run,
    action,
    event,
    workflow,
)
from perdure.core import events as ev
from perdure.core.records import Query
from perdure.errors import UsageError
from perdure.runtime.checks import checked_id, checked_name, checked_tenant
from perdure.testing import World
from perdure.testing.swarm import NoFaults
from tests.runtime import computing

seen: list[Any] = []
broken = True


@pytest.fixture(autouse=True)
def forget() -> None:
    global broken
    seen.clear()
    broken = True


@action
async def jot(text: str) -> str:
    seen.append(text)
    return text


@action
async def repairable(text: str) -> str:
    seen.append(f"try {text}")
    if broken:
        raise OSError("broken")
    return text


@workflow
async def waiter(n: int) -> Any:
    await jot(f"before {n}")
    got = await event("go")
    await jot(f"after {n}")
    return got


# Starting.


async def test_the_same_start_twice_is_one_run(world: World) -> None:
    first = await world.start(waiter, 1, id="w")
    again = await world.start(waiter, 1, id="w")
    assert first.key == again.key
    await first.until("waiting")
    assert seen == ["before 1"]


async def test_the_same_id_with_another_input_is_refused(world: World) -> None:
    await world.start(waiter, 1, id="w")
    with pytest.raises(ExecutionExists, match="another input"):
        await world.start(waiter, 2, id="w")


async def test_fifty_starts_at_once_with_one_id_are_one_run(world: World) -> None:
    runs = await asyncio.gather(*(world.start(waiter, 1, id="same") for _ in range(50)))
    assert {run.key for run in runs} == {"default/same"}
    await runs[0].until("waiting")
    assert seen == ["before 1"]


@pytest.mark.parametrize("id", ["", "a/b", "../x", "a b", "x" * 300, "é", "-x", "a\n"])
async def test_ids_that_could_confuse_somebody_are_refused(world: World, id: str) -> None:
    if id == "":
        return  # no id: one is made
    with pytest.raises(UsageError, match="execution id"):
        await world.start(waiter, 1, id=id)


@pytest.mark.parametrize(
    ("check", "refused"),
    [(checked_id, "order/1"), (partial(checked_name, what="lane"), "tür"), (checked_tenant, "a.b")],
)
def test_a_refusal_says_what_would_have_been_taken(check: Callable[[str], str], refused: str) -> None:
    with pytest.raises(UsageError) as refusal:
        check(refused)
    said = re.search(r"1 to (\d+) of a-z, A-Z, 0-9 and (\S+?)(?:,|$)", str(refusal.value))
    assert said is not None
    assert check("a" * int(said[1]))
    with pytest.raises(UsageError):
        check("a" * (int(said[1]) + 1))
    every = [sign for sign in map(chr, range(0x20, 0x100)) if _taken(check, f"a{sign}")]
    assert every == sorted(string.ascii_letters + string.digits + said[2])
    first = every if check is checked_tenant else sorted(string.ascii_letters + string.digits)
    assert [sign for sign in every if _taken(check, sign)] == first
    assert ("the first is a letter or a digit" in str(refusal.value)) is (first != every)


def _taken(check: Callable[[str], str], text: str) -> bool:
    try:
        return check(text) == text
    except UsageError:
        return False


async def test_an_input_that_does_not_fit_is_refused_before_anything_is_written(world: World) -> None:
    with pytest.raises(Exception, match="n"):
        await world.start(waiter, "one", id="bad")  # type: ignore[arg-type]
    with pytest.raises(ExecutionNotFound):
        await world.app.get("bad").status()


async def test_an_input_over_the_limit_is_refused(world: World) -> None:
    @workflow
    async def big(text: str) -> None: ...

    with pytest.raises(LimitReached, match="payload_bytes"):
        await world.start(big, "x" * 1_000_001)


# Sending.


async def test_the_same_event_id_twice_is_one_event(world: World) -> None:
    @workflow
    async def collect() -> list[Any]:
        await event("done")
        return []

    run = await world.start(collect)
    for _ in range(3):
        await run.send("n", 1, id="e1")
    await run.until("waiting")
    await run.send("n", 1, id="e1")
    with pytest.raises(EventConflict, match="e1"):
        await run.send("n", 2, id="e1")
    await run.send("done")
    await run.result()
    assert len([entry for entry in await run.log() if entry.message_id == "e1"]) == 1


async def test_events_for_nobody_and_for_the_dead_are_refused(world: World) -> None:
    with pytest.raises(ExecutionNotFound):
        await world.app.send("nobody", "x")
    run = await world.start(waiter, 1)
    await run.send("go", id="g")
    await run.result()
    with pytest.raises(ExecutionEnded, match="has ended"):
        await run.send("late")
    await run.send("go", id="g")  # accepted before: the answer stays the same


async def test_a_thousand_events_are_folded_once_each_in_order(world: World) -> None:
    @workflow
    async def collect(n: int) -> list[int]:
        return [await event("n", int) for _ in range(n)]

    run = await world.start(collect, 300)
    for n in range(300):
        await run.send("n", n)
    assert await run.result() == list(range(300))


# Pausing.


async def test_a_paused_run_starts_nothing_until_it_is_resumed(world: World) -> None:
    run = await world.start(waiter, 1)
    await run.until("waiting")
    await run.pause(reason="audit", by="ada")
    await run.until("paused")
    await run.send("go", "now")
    assert (await run.status()) == "paused"
    assert seen == ["before 1"]
    await run.resume()
    assert await run.result() == "now"
    log = [(entry.type, entry.data.get("by", "")) for entry in await run.log()]
    assert ("Paused", "ada") in log


async def test_a_running_action_records_its_result_during_a_pause(world: World) -> None:
    began, finish = asyncio.Event(), asyncio.Event()

    @action
    async def slow() -> str:
        began.set()
        await finish.wait()
        return "slow"

    @workflow
    async def work() -> str:
        got = await slow()
        return await jot(got)

    run = await world.start(work)
    await began.wait()
    await run.pause()
    async with asyncio.timeout(5):
        while "Paused" not in [entry.type for entry in await run.log()]:
            await asyncio.sleep(0.001)
    finish.set()
    await run.until("paused")
    async with asyncio.timeout(5):
        while "ActionSettled" not in [entry.type for entry in await run.log()]:
            await asyncio.sleep(0.001)
    assert seen == []
    await run.resume()
    assert await run.result() == "slow"


@pytest.mark.world(concurrency=1)
async def test_an_action_that_waits_for_a_place_does_not_begin_during_a_pause(world: World) -> None:
    finish = asyncio.Event()

    @action(name="control.fills_the_place")
    async def fills_the_place() -> None:
        await finish.wait()

    @workflow(name="control-fills")
    async def fills() -> None:
        await fills_the_place()

    @workflow(name="control-waits-for-a-place")
    async def crowded() -> str:
        return await jot("there is room")

    first = await world.start(fills)
    await world.settle()
    run = await world.start(crowded)
    await world.settle()
    await run.pause()
    await world.settle()
    finish.set()
    await first.result()
    await world.advance("1m")
    assert (await run.status(), seen) == ("paused", [])
    await run.resume()
    assert await run.result() == "there is room"


@pytest.mark.parametrize("kind", ["in_a_thread", "in_a_process"])
@pytest.mark.real_time
async def test_what_waits_for_a_thread_or_a_process_does_not_begin_during_a_pause(tmp_path: Path, kind: str) -> None:
    app = Perdure("memory://", threads=1, pool=1)
    async with asyncio.timeout(20), app, app.working() as worker:

        async def until(met: Callable[[], bool]) -> None:
            while not met():
                await asyncio.sleep(0.005)

        first, second = [await app.start(computing.calls, kind, str(tmp_path), name) for name in ("one", "two")]
        await until((tmp_path / "one began").exists)
        await until(lambda: worker.attempts.running == 2)
        await second.pause()
        await second.until("paused")
        (tmp_path / "end").touch()
        assert await first.result() == "one"
        await until(lambda: worker.attempts.running == 0)
        assert (await second.status(), (tmp_path / "two began").exists()) == ("paused", False)
        await second.resume()
        assert await second.result() == "two"


class Fast(NoFaults):
    """Of whose workers the clocks are too fast."""

    drift = 0.3


def later(world: World, hours: float) -> datetime:
    """By the clock of the store."""
    return datetime.fromtimestamp(world.micros() / 1e6, UTC) + timedelta(hours=hours)


async def resumed(run: Run[Any]) -> list[datetime]:
    return [entry.at for entry in await run.log() if entry.type == "Resumed"]


@pytest.mark.parametrize("faults", [NoFaults, Fast])
@pytest.mark.parametrize("how", ["pause until", "resume at"])
async def test_what_is_paused_until_a_time_resumes_once_then_by_the_clock_of_the_store(
    world: World, faults: type[NoFaults], how: str
) -> None:
    async with World(workers=2, faults=lambda name: faults()) as fleet:
        run = await fleet.start(waiter, 1)
        await run.until("waiting")
        moment = later(fleet, 1)
        if how == "pause until":
            await run.pause(until=moment)
        else:
            await run.pause()
            await run.resume(at=moment)
        await run.send("go", 7)
        await fleet.advance(3580)
        for _ in range(199):  # whoever looks at it must not take it for later than it is
            await run.send("noise")
            await fleet.advance(0.1)
        assert (await run.status(), await resumed(run)) == ("paused", [])
        await fleet.advance(0.2)
        assert (await run.status(), len(await resumed(run))) == ("completed", 1)


@pytest.mark.parametrize("how", ["pause", "pause until", "resume at"])
async def test_a_pause_and_its_end_survive_the_workers(world: World, how: str) -> None:
    run = await world.start(waiter, 1)
    await run.until("waiting")
    await run.pause(until=later(world, 1) if how == "pause until" else None)
    if how == "resume at":
        await run.resume(at=later(world, 1))
    await world.settle()
    await world.crash()
    await run.send("go", 7)
    await world.advance("50m")
    assert (await run.status(), seen) == ("paused", ["before 1"])
    await world.crash()
    await world.advance("20m")
    if how == "pause":
        assert await run.status() == "paused"
        await run.resume()
        await world.settle()
    assert (await run.status(), seen) == ("completed", ["before 1", "after 1"])


async def test_who_resumes_early_cancels_the_time_of_the_pause(world: World) -> None:
    run = await world.start(waiter, 1)
    await run.pause(until=later(world, 1))
    await world.advance("10m")
    await run.resume()
    await world.advance("10m")
    await run.pause()
    await world.advance("2h")
    assert (await run.status(), len(await resumed(run))) == ("paused", 1)
    await run.resume()
    await world.advance("2h")
    assert (await run.status(), len(await resumed(run))) == ("waiting", 2)


async def test_a_naive_time_is_refused(world: World) -> None:
    run = await world.start(waiter, 1)
    with pytest.raises(UsageError, match="time zone"):
        await run.resume(at=datetime(2030, 1, 1))


# Cancelling.


async def test_cancel_runs_the_clean_up(world: World) -> None:
    @workflow
    async def careful() -> None:
        try:
            await event("never")
        finally:
            await jot("cleaned")

    run = await world.start(careful)
    await run.until("waiting")
    await run.cancel("because")
    with pytest.raises(ExecutionCancelled, match="because"):
        await run.result()
    assert seen == ["cleaned"]
    assert await run.status() == "cancelled"


async def test_a_cancel_reaches_children_timers_and_actions_and_nothing_begins_after_it(world: World) -> None:
    tried, stopped = [], asyncio.Event()

    @action(name="control.endless")
    async def endless() -> None:
        tried.append("endless")
        try:
            await asyncio.sleep(10**6)
        finally:
            stopped.set()

    @action(name="control.flaky", retries=Retry(attempts=0, first="1h", cap="1h"))
    async def flaky() -> None:
        tried.append("flaky")
        raise OSError("not yet")

    @action(name="control.elsewhere", queue="control-elsewhere")
    async def elsewhere() -> None:
        tried.append("elsewhere")

    @workflow(name="control-child")
    async def child() -> None:
        await event("never")

    @workflow(name="control-everything")
    async def everything() -> None:
        await asyncio.gather(endless(), flaky(), elsewhere(), child(), asyncio.sleep(10**6), event("never"))
        await jot("after")

    run = await world.start(everything, id="all")
    await world.advance("1m")
    assert sorted(tried) == ["endless", "flaky"]
    await run.cancel("enough")
    with pytest.raises(ExecutionCancelled, match="enough"):
        await run.result()
    await world.settle()
    assert stopped.is_set()
    await world.advance("20d")
    log = await run.log()
    asked = next(place for place, entry in enumerate(log) if entry.type == "CancelRequested")
    before, after = ([entry.type for entry in part] for part in (log[:asked], log[asked + 1 :]))
    assert {"ChildStarted", "ActionScheduled", "ActionAttempted"} <= set(before)
    assert Counter(after) == {"ActionCancelled": 3, "Cancelled": 1}
    world.add_worker(queues=["control-elsewhere"])  # it comes too late
    await world.advance("1h")
    inner = await world.app.store.find(Query("default", parent=run.key))
    assert [(head.workflow, head.status) for head in inner] == [
        ("control-child", "cancelled"),
        ("action:control.elsewhere", "cancelled"),
    ]
    assert sorted(tried) == ["endless", "flaky"] and seen == []


async def test_a_cancel_takes_back_the_timer_of_an_execution_at_rest(world: World) -> None:
    @workflow(name="control-sleeper")
    async def sleeper() -> None:
        await asyncio.sleep(10**6)

    run = await world.start(sleeper)
    await world.advance("1m")
    await run.cancel()
    await world.advance("20d")
    assert [entry.type for entry in await run.log()] == [
        *("Started", "TimerStarted", "CancelRequested", "TimerCancelled", "Cancelled")
    ]


async def test_a_catch_all_cannot_swallow_a_cancel_for_ever(world: World) -> None:
    @workflow
    async def stubborn() -> None:
        while True:
            try:
                await event("never")
            except BaseException:
                await jot("no")

    run = await world.start(stubborn)
    await run.until("waiting")
    await run.cancel("please", timeout="100ms")
    with pytest.raises(ExecutionCancelled):
        await run.result()
    last = (await run.log())[-1]
    assert (last.type, last.data.get("forced")) == ("Cancelled", True)


async def test_an_execution_that_is_cancelled_at_once_takes_its_children_with_it(world: World) -> None:
    @workflow
    async def child() -> None:
        await event("never")

    @workflow
    async def parent() -> None:
        await child()

    run = await world.start(parent, id="p")
    await world.settle()
    await run.cancel(now=True)
    await world.settle()
    assert (await run.status(), await world.app.get("p.1").status()) == ("cancelled", "cancelled")


async def test_a_workflow_that_ignores_the_cancel_and_returns_is_completed_with_a_note(world: World) -> None:
    @workflow
    async def polite() -> str:
        try:
            await event("never")
        except asyncio.CancelledError:
            return "done anyway"
        return "?"

    run = await world.start(polite)
    await run.until("waiting")
    await run.cancel()
    assert await run.result() == "done anyway"
    assert (await run.log())[-1].data["note"] == "a cancel request was ignored"


async def test_cancel_now_skips_the_clean_up(world: World) -> None:
    @workflow
    async def careful() -> None:
        try:
            await event("never")
        finally:
            await jot("cleaned")

    run = await world.start(careful)
    await run.until("waiting")
    await run.cancel(now=True)
    with pytest.raises(ExecutionCancelled):
        await run.result()
    assert seen == []


async def test_a_paused_run_can_be_cancelled(world: World) -> None:
    run = await world.start(waiter, 1)
    await run.pause()
    await run.until("paused")
    await run.cancel("enough")
    with pytest.raises(ExecutionCancelled, match="enough"):
        await run.result()


# Retrying and forking.


async def test_retry_goes_on_from_the_failed_point(world: World) -> None:
    global broken

    @workflow
    async def job() -> str:
        await jot("once")
        return await repairable("job")

    run = await world.start(job, id="j")
    with pytest.raises(ExecutionFailed):
        await run.result()
    broken = False
    again = await run.retry()
    assert again.id != "j"
    assert await again.result() == "job"
    assert seen == ["once", "try job", "try job"]
    assert await run.status() == "failed"


async def test_retry_repeats_what_was_undone(world: World) -> None:
    global broken

    @action
    async def reserve(n: int) -> int:
        seen.append(f"reserve {n}")
        return n

    @reserve.undo
    async def release(n: int, reserved: int) -> None:
        seen.append(f"release {n}")

    @workflow
    async def job() -> str:
        await jot("once")
        await reserve(1)
        return await repairable("job")

    run = await world.start(job)
    with pytest.raises(ExecutionFailed):
        await run.result()
    broken = False
    assert await (await run.retry()).result() == "job"
    assert seen == ["once", "reserve 1", "try job", "release 1", "reserve 1", "try job"]


@pytest.mark.real_time
async def test_retry_after_a_mistake_in_the_code_keeps_the_result() -> None:
    @workflow
    async def job() -> str:
        text = await jot("once")
        if broken:
            raise KeyError("oops")
        return text

    global broken
    app = Perdure("memory://")
    async with app, app.working():
        run = await app.start(job)
        with pytest.raises(ExecutionFailed, match="KeyError"):
            await run.result()
        broken = False
        assert await (await run.retry()).result() == "once"
    assert seen == ["once"]


async def test_only_what_has_failed_can_be_retried(world: World) -> None:
    run = await world.start(waiter, 1)
    await run.until("waiting")
    with pytest.raises(RetryRefused, match="only failed, cancelled and stuck"):
        await run.retry()


async def test_a_replay_as_a_new_run_begins_with_the_original_input_and_repeats_every_step(world: World) -> None:
    @workflow(name="control-replayed")
    async def job(order: dict[str, Any], count: int) -> list[Any]:
        await jot(f"{order['item']} {count}")
        return [order, count]

    run = await world.start(job, {"item": "tea", "notes": ["a", None, 1.5]}, 3, id="r")
    result = await run.result()
    again = await run.fork(at=1)
    assert again.id != run.id and await again.result() == result == [{"item": "tea", "notes": ["a", None, 1.5]}, 3]
    [first], [other] = [[row async for row in one.rows(0, 1)] for one in (run, again)]
    assert ev.read(first).input == ev.read(other).input  # type: ignore[union-attr]
    assert seen == ["tea 3", "tea 3"]
    assert await run.status() == "completed"


async def test_fork_with_an_edited_result(world: World) -> None:
    @workflow
    async def sums() -> list[str]:
        return [await jot("a"), await jot("b"), await jot("c")]

    run = await world.start(sums)
    assert await run.result() == ["a", "b", "c"]
    log = await run.log()
    second = [entry.version for entry in log if entry.type == "ActionSettled"][1]
    fork = await run.fork(at=second, edit={second: "B"}, id="forked")
    assert await fork.result() == ["a", "B", "c"]
    assert seen == ["a", "b", "c", "c"]
    assert (await fork.log())[0].data["forked"] == f"{run.key}@{second}"


async def test_a_fork_starts_its_own_children(world: World) -> None:
    @workflow
    async def child() -> str:
        return str(await event("go"))

    @workflow
    async def parent() -> str:
        await jot("first")
        return await child()

    run = await world.start(parent, id="original")
    await run.until("waiting")
    fork = await run.fork(id="copy")
    await fork.until("waiting")
    await world.app.get("copy.2").send("go", "mine")
    assert await fork.result() == "mine"
    assert await run.status() == "waiting"


async def test_what_cannot_be_edited_is_refused(world: World) -> None:
    run = await world.start(waiter, 1)
    await run.until("waiting")
    with pytest.raises(UsageError, match="ends before it"):
        await run.fork(at=1, edit={99: 1})


# Asking.


async def test_state_at_a_version_and_at_a_time(world: World) -> None:
    run = await world.start(waiter, 1)
    await run.until("waiting")
    await run.send("go", 1)
    await run.result()
    log = await run.log()
    assert (await run.state()).status == "completed"
    assert (await run.state(at=1)).status == "open"
    for entry in log:
        assert (await run.state(at=entry.version)).version == entry.version
        then = max(other.version for other in log if other.at <= entry.at)
        assert (await run.state(at=entry.at)).version == then
    assert (await run.state(at=log[0].at - timedelta(seconds=1))).version == 0


async def test_why_names_the_event(world: World) -> None:
    run = await world.start(waiter, 1)
    await run.until("waiting")
    why = await run.why()
    assert why.status == "waiting"
    assert [reason.kind for reason in why.reasons] == ["event"]
    assert "waits for the event go" in str(why)
    assert any("waiter, line" in place for place in why.at)


async def test_why_names_the_timer_and_the_child_and_the_pause(world: World) -> None:
    @workflow
    async def both() -> None:
        async with asyncio.timeout(3600):
            await waiter(1)

    run = await world.start(both, id="both")
    await run.until("waiting")
    kinds = {reason.kind for reason in (await run.why()).reasons}
    assert kinds == {"timer", "child"}
    await run.pause(reason="audit")
    await run.until("paused")
    assert "audit" in str(await run.why())


async def test_why_names_the_retry_and_its_error(world: World) -> None:
    @action(retries=Retry(attempts=9, first="1h"))
    async def flaky() -> None:
        raise OSError("disk on fire")

    @workflow
    async def job() -> None:
        await flaky()

    run = await world.start(job)
    await run.until("waiting")
    text = str(await run.why())
    assert "flaky failed 1 time(s), last with OSError: disk on fire; next try at" in text


async def test_why_tells_how_it_ended(world: World) -> None:
    @workflow
    async def job() -> None:
        raise ValueError("wrong")

    run = await world.start(job)
    with pytest.raises(ExecutionFailed):
        await run.result()
    assert "it has failed: ValueError: wrong" in str(await run.why())


async def test_find_by_status_workflow_and_page(world: World) -> None:
    for n in range(7):
        await (await world.start(waiter, n, id=f"w{n}")).until("waiting")
    run = world.app.get("w3")
    await run.send("go")
    await run.result()
    assert [h.key for h in (await world.app.find(status="completed")).heads] == ["default/w3"]
    assert len((await world.app.find(status="waiting", workflow="waiter")).heads) == 6
    found, cursor = [], None
    while True:
        page = await world.app.find(limit=3, cursor=cursor)
        found += [head.key for head in page.heads]
        cursor = page.next
        if cursor is None:
            break
    assert found == [f"default/w{n}" for n in reversed(range(7))]


async def test_tenants_do_not_see_each_other(world: World) -> None:
    run = await world.app.start(waiter, 1, id="mine", tenant="acme")
    await run.until("waiting")
    with pytest.raises(ExecutionNotFound):
        await world.app.get("mine").status()
    with pytest.raises(ExecutionNotFound):
        await world.app.send("mine", "go")
    assert not (await world.app.find()).heads
    assert len((await world.app.find(tenant="acme")).heads) == 1


async def test_an_event_cannot_pose_as_a_letter_of_the_engine(world: World) -> None:
    @workflow
    async def grown_up() -> int:
        await event("go")
        return 7

    @workflow
    async def caring() -> int:
        return await grown_up()

    run = await world.start(caring, id="parent")
    await run.until("waiting")
    await run.send("noise", id="child:1")
    with pytest.raises(UsageError, match="event id"):
        await run.send("noise", id="/child:1")
    await world.app.get("parent.1").send("go")
    assert await run.result() == 7


async def test_published_fields_with_taken_names(world: World) -> None:
    @workflow
    async def shows() -> None:
        workflow.publish(status="paid", limit=3)
        await event("never")

    await (await world.start(shows)).until("waiting")
    assert len((await world.app.find(published={"status": "paid", "limit": 3})).heads) == 1
    assert not (await world.app.find(published={"status": "new"})).heads


@pytest.mark.real_time
async def test_one_application_can_run_again_and_again() -> None:
    app = Perdure("memory://")
    for n in range(2):
        async with app, app.working():
            run = await app.start(waiter, n)
            await run.send("go", n)
            assert await run.result() == n


@pytest.mark.real_time
async def test_the_blocking_door_says_so_where_a_loop_runs_already() -> None:
    with pytest.raises(UsageError, match=r"app\.run\(\) blocks.*await app\.start.*__main__"):
        Perdure("memory://").run(waiter, 1)  # a coroutine that nobody awaits would be an error here


async def test_a_fork_draws_the_same_random_values(world: World) -> None:
    @workflow
    async def draws() -> list[str]:
        first = await jot(str(workflow.uuid()))
        second = await jot(str(workflow.random().random()))
        await event("go")
        return [first, second, await jot(str(workflow.uuid()))]

    run = await world.start(draws)
    await run.until("waiting")
    fork = await run.fork()
    await run.send("go")
    await fork.send("go")
    assert await run.result() == await fork.result()


async def test_retry_goes_back_to_before_the_clean_up_of_the_workflow(world: World) -> None:
    global broken

    @workflow
    async def job() -> str:
        await jot("once")
        try:
            return await repairable("job")
        finally:
            await jot("cleaned")

    run = await world.start(job)
    with pytest.raises(ExecutionFailed):
        await run.result()
    broken = False
    assert await (await run.retry()).result() == "job"
    assert seen == ["once", "try job", "cleaned", "try job", "cleaned"]


async def test_a_cancelled_run_can_be_tried_again(world: World) -> None:
    @workflow
    async def job() -> str:
        try:
            return str(await event("go"))
        finally:
            await jot("cleaned")

    run = await world.start(job)
    await run.until("waiting")
    await run.cancel()
    await run.until("cancelled")
    again = await run.retry()
    await again.send("go", 1)
    assert await again.result() == "1"


@pytest.mark.world(resident=1)
async def test_a_full_worker_still_hears_what_is_meant_for_its_own(world: World) -> None:
    @action
    async def hour() -> None:
        await asyncio.sleep(3600)

    @workflow
    async def busy() -> None:
        await hour()

    run = await world.start(busy)
    await run.until("running")
    other = await world.start(waiter, 1)
    await run.cancel("enough")
    with pytest.raises(ExecutionCancelled, match="enough"):
        await run.result(timeout=60)
    await other.send("go", 2)
    assert await other.result(timeout=60) == 2


async def test_the_same_fork_again_is_one_fork_though_the_original_has_gone_on(world: World) -> None:
    run = await world.start(waiter, 1)
    await run.until("waiting")
    fork = await run.fork(id="copy", by="ada")
    await run.send("go", 1)
    await run.result()
    assert (await run.fork(id="copy", by="ada")).key == fork.key
    assert len((await world.app.find(workflow="waiter")).heads) == 2
    with pytest.raises(ExecutionExists):
        await run.fork(id="copy", edit={1: [2]}, by="ada")
    with pytest.raises(ExecutionExists):
        await (await world.start(waiter, 3)).fork(id="copy", by="ada")


async def test_the_same_retry_again_makes_no_second_copy(world: World) -> None:
    @workflow(name="fails_once")
    async def fails_once() -> str:
        return await repairable("it")

    global broken
    run = await world.start(fails_once)
    with pytest.raises(ExecutionFailed):
        await run.result()
    broken = False
    again = await run.retry(id="again", by="ada")
    assert await again.result() == "it"
    assert (await run.retry(id="again", by="ada")).key == again.key
    assert len((await world.app.find(workflow="fails_once")).heads) == 2
    with pytest.raises(ExecutionExists):
        await (await world.start(waiter, 1)).fork(id="again")


# Coming to rest


@action(name="control.forever")
async def forever() -> None:
    await asyncio.sleep(3600)


@workflow(name="control-goes")
async def goes() -> None:
    await event("go")
    await forever()


async def test_what_a_dead_worker_left_in_the_middle_does_not_rest(world: World) -> None:
    run = await world.start(goes)
    await run.until("waiting")
    await run.send("go", id="e1")
    await world.settle()
    world.workers[0].process.kill()
    await world.advance("2m")
    assert (await run.status(), (await run.event("e1")).status) == ("waiting", "processing")
    with pytest.raises(TimeoutError):
        await run.until("waiting", timeout="1m")
    world.add_worker()
    await run.until("running", timeout="1m")


@pytest.mark.world(workers=0)
async def test_what_is_paused_does_not_rest_before_its_mail_is_folded(world: World) -> None:
    worker = world.add_worker()
    run = await world.start(goes)
    await run.pause()
    await run.until("paused")
    worker.process.kill()
    await world.advance("2m")
    await run.send("go")
    with pytest.raises(TimeoutError):
        await run.until("paused", timeout="1m")
    world.add_worker()
    await run.until("paused", timeout="1m")
    assert "EventReceived" in [entry.type for entry in await run.log()]
