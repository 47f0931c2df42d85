"""`why` for each class that an execution can be in: what it waits for, since when, who holds it, what went wrong last.

An execution is at work, or waits (for an event, a timer, a child, an action, its turn, a worker, its tenant, or for
somebody to resume it), or is stuck, or has ended.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from perdure import ExecutionFailed, Perdure, Retry, Run, action, event, workflow
from perdure.core.reasons import Reason, Why
from perdure.flows.registry import registry
from perdure.testing import World


@workflow(name="why-waits")
async def waits() -> None:
    await event("go")


@workflow(name="why-naps")
async def naps() -> None:
    await asyncio.sleep(60)
    async with asyncio.timeout(3600):
        await event("never")


@workflow(name="why-sleeps")
async def sleeps() -> None:
    await asyncio.sleep(9_000 * 365 * 86400)


@workflow(name="why-parent")
async def parent() -> None:
    await asyncio.sleep(5)
    await waits()


@workflow(name="why-fails")
async def fails() -> None:
    await asyncio.sleep(5)
    raise ValueError("wrong")


@workflow(name="why-never")
async def never() -> None:
    await asyncio.sleep(5)
    await asyncio.get_running_loop().create_future()


async def only(run: Run[Any], kind: str) -> tuple[Why, Reason]:
    """The answer, and its one reason."""
    why = await run.why()
    assert len(why.reasons) == 1, why
    [reason] = why.reasons
    assert reason.kind == kind, why
    return why, reason


def after(began: datetime, seconds: float) -> datetime:
    return began + timedelta(seconds=seconds)


async def test_a_timer_that_no_calendar_reaches_is_told_of(world: World) -> None:
    run = await world.start(sleeps)
    await world.settle()
    _, reason = await only(run, "timer")
    assert reason.until is not None and reason.until.year == 9999


async def test_an_event_is_waited_for_since_it_was_asked_for(world: World) -> None:
    began = world.now()
    run = await world.start(waits)
    await world.advance("1h")
    why, reason = await only(run, "event")
    assert (why.status, why.holder, reason.since) == ("waiting", None, began)
    assert reason.text == "waits for the event go"


async def test_a_timer_has_run_since_it_was_set(world: World) -> None:
    began = world.now()
    run = await world.start(naps)
    await world.advance("10s")
    _, reason = await only(run, "timer")
    assert (reason.since, reason.until) == (began, after(began, 60))
    await world.advance("10m")
    why = await run.why()
    found = {reason.kind: (reason.since, reason.until) for reason in why.reasons}
    assert found == {"event": (after(began, 60), None), "timer": (after(began, 60), after(began, 3660))}


async def test_a_child_is_waited_for_since_it_was_started(world: World) -> None:
    began = world.now()
    run = await world.start(parent, id="p")
    await world.advance("1h")
    _, reason = await only(run, "child")
    assert (reason.text, reason.since) == ("waits for the child p.2", after(began, 5))


async def test_a_retry_tells_the_last_error_and_when_the_next_try_is(world: World) -> None:
    @action(name="why.flaky", retries=Retry(attempts=9, first="1h", cap="2h", jitter=0))
    async def flaky() -> None:
        raise OSError("disk on fire")

    @workflow(name="why-retries")
    async def retries() -> None:
        await flaky()

    began = world.now()
    run = await world.start(retries)
    await world.advance("10m")
    why, reason = await only(run, "action")
    assert (why.holder, reason.since, reason.until) == (None, began, after(began, 3600))
    next_try = f"next try at {after(began, 3600):%H:%M:%S} UTC"
    assert reason.text == f"why.flaky failed 1 time(s), last with OSError: disk on fire; {next_try}"


async def test_a_pause_lasts_since_somebody_paused_it_whatever_came_since(world: World) -> None:
    run = await world.start(waits)
    await world.advance("1m")
    paused = world.now()
    await run.pause(reason="audit")
    await world.advance("1h")
    await run.send("go", None)
    await world.advance("1h")
    why, reason = await only(run, "pause")
    assert (why.status, reason.since, reason.until) == ("paused", paused, None)
    assert reason.text == "paused until somebody resumes it (audit)"


async def test_what_is_stuck_waits_for_a_person_since_then(world: World) -> None:
    began = world.now()
    run = await world.start(never)
    await world.advance("1h")
    why, reason = await only(run, "person")
    assert (why.status, reason.since) == ("stuck", after(began, 5))
    assert "mend it, then retry" in reason.text


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_what_has_ended_tells_how_and_when(world: World, end: str) -> None:
    began = world.now()
    run: Run[Any] = await world.start(fails if end == "failed" else waits)
    await world.advance("5s")
    if end == "completed":
        await run.send("go", None)
    elif end == "cancelled":
        await run.cancel()
    await world.advance("1h")
    why, reason = await only(run, "nothing")
    assert (why.status, why.holder, reason.since) == (end, None, after(began, 5))
    said = {"completed": "it has completed", "failed": "it has failed: ValueError: wrong"}
    assert reason.text == said.get(end, "it was cancelled")


async def test_what_runs_is_held_by_its_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    @action(name="why.slow")
    async def slow() -> None:
        await asyncio.sleep(600)

    @workflow(name="why-works")
    async def works() -> None:
        await slow()

    began = world.now()
    run = await world.start(works)
    await world.advance("1m")
    why, reason = await only(run, "action")
    assert (why.status, why.holder) == ("running", "worker-1")
    assert (reason.text, reason.since) == ("why.slow runs", began)
    assert [place.partition(", line")[0].rpartition(".")[2] for place in why.at] == ["works"]
    with monkeypatch.context() as patched:
        patched.setattr(registry, "_workflows", {})  # as in a process that has not loaded the code
        why, reason = await only(run, "action")
        assert (reason.text, why.at) == ("its worker runs its code or its actions", [])
    await world.advance("10m")
    assert (await run.why()).holder is None


async def test_what_is_held_between_two_tries_tells_of_the_last_and_of_the_next(world: World) -> None:
    @action(name="why.shaky", retries=Retry(attempts=9, first="1h", cap="2h", jitter=0))
    async def shaky() -> None:
        raise OSError("disk on fire")

    @action(name="why.long")
    async def long() -> None:
        await asyncio.sleep(7200)

    @workflow(name="why-both")
    async def both() -> None:
        await asyncio.gather(shaky(), long())

    began = world.now()
    run = await world.start(both)
    await world.advance("1m")
    why = await run.why()
    assert why.holder == "worker-1"
    running, retrying = why.reasons
    assert (running.kind, running.text, running.since, running.until) == ("action", "why.long runs", began, None)
    assert (retrying.kind, retrying.since, retrying.until) == ("action", began, after(began, 3600))
    assert "last with OSError: disk on fire; next try at" in retrying.text
    await world.advance("1h")
    assert (await run.why()).reasons[0].text == "why.long runs"
    with pytest.raises(ExecutionFailed):
        await run.result()


async def test_a_lane_is_waited_for_since_the_start(world: World) -> None:
    first = await world.start(waits, lane="a")
    began = world.now()
    second = await world.start(waits, lane="a")
    await world.advance("1h")
    _, reason = await only(second, "lane")
    assert (reason.since, "another execution of lane a has not ended" in reason.text) == (began, True)
    await first.send("go", None)
    await world.settle()
    await only(second, "event")


def test_what_nobody_has_begun_needs_a_worker() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            run = await app.start(waits)
            _, reason = await only(run, "worker")
            head = await run.head()
            assert "why-waits@1" in reason.text
            assert reason.since is not None
            assert abs(reason.since.timestamp() * 1e6 - head.started_at) < 30e6

    asyncio.run(main())


async def test_what_rests_because_of_its_tenant_says_so_and_asks_for_no_worker(world: World) -> None:
    app = world.app
    run = await app.start(naps, tenant="acme")
    await world.advance("10s")
    suspended = world.now()
    await app.tenants.suspend("acme", "the invoice of May")
    await world.advance("1s")
    fresh = await app.start(waits, tenant="acme")
    await world.advance("1h")
    _, reason = await only(fresh, "tenant")
    assert (reason.since, "suspended" in reason.text) == (suspended, True)
    assert "invoice" not in str(await run.why())  # that is between others
    assert {one.kind for one in (await run.why()).reasons} == {"timer", "tenant"}
    await app.tenants.resume("acme")
    await world.settle()
    await only(fresh, "event")


def test_what_is_due_is_not_said_to_need_a_worker_while_its_tenant_is_suspended() -> None:
    async def main() -> None:
        async with Perdure("memory://", grace=0.001) as app:
            run = await app.start(waits)
            while "due since" not in str(await run.why()):
                await asyncio.sleep(0.01)
            await only(run, "worker")
            await app.tenants.suspend("default")
            await only(run, "tenant")

    asyncio.run(main())


async def test_what_waits_for_room_in_the_quota_says_so_and_what_has_begun_does_not(world: World) -> None:
    app = world.app
    await app.tenants.limit("acme", running=1)
    first = await app.start(waits, tenant="acme")
    await world.advance("10s")
    began = world.now()
    second = await app.start(waits, tenant="acme")
    await world.advance("1h")
    await only(first, "event")
    _, reason = await only(second, "quota")
    assert (reason.since, "which is 1; it begins when another ends" in reason.text) == (began, True)
    await first.send("go", None)
    await world.advance("1m")
    await only(second, "event")
