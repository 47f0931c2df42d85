"""What has become of an event: pending, processing, completed, failed; from the mailbox to the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import EventNotFound, ExecutionNotFound, Machine, Perdure, Retry, State, To, action, event, workflow
from perdure.core import letters
from perdure.core.records import Hint, Mail
from perdure.flows.machine import Do
from perdure.testing import World

gate = False


@pytest.fixture(autouse=True)
def shut() -> None:
    global gate
    gate = False


@action(name="status.pass_gate", retries=Retry(attempts=50, first=10.0, factor=1.0, jitter=0))
async def pass_gate() -> None:
    if not gate:
        raise OSError("shut")


@action(name="status.step")
async def step(number: int) -> int:
    return number


@workflow(name="status-two-steps")
async def two_steps() -> list[Any]:
    first = await event("first", int)
    await pass_gate()
    return [first, await event("second", int)]


@workflow(name="status-many-steps")
async def many_steps() -> Any:
    for number in range(250):
        await step(number)
    return await event("late", int)


@workflow(name="status-rounds")
async def rounds(count: int) -> str:
    await event("next")
    if count:
        workflow.restart_with(count - 1)
    return "done"


door = Machine(
    "status-door",
    initial="shut",
    states={
        "shut": State(on={"push": To("open", do=[Do(pass_gate)]), "lock": "gone"}),
        "open": State(always=To("wide"), on={"lock": "gone"}),
        "wide": State(on={"pull": "shut", "lock": "gone"}),
        "gone": State(final=True),
    },
)


async def told(world: World, id: str) -> tuple[str, Any, Any]:
    found = await world.app.get("x").event(id)
    return found.status, found.result, found.error


async def test_an_event_is_pending_processing_and_completed(world: World) -> None:
    global gate
    app: Perdure = world.app
    run = await app.start(two_steps, id="x")
    await run.until("waiting")
    assert (await run.event(await run.send("second", 2, id="early"))).name == "second"
    await run.until("waiting")
    early = await run.event("early")
    assert (early.status, early.execution, early.at is not None) == ("processing", "x", True)
    await run.send("first", 1, id="e1")
    await asyncio.sleep(5)
    assert await told(world, "early") == ("processing", None, None)
    gate = True
    assert await run.result() == [1, 2]
    assert await told(world, "e1") == ("completed", None, None)
    assert await told(world, "early") == ("completed", None, None)


def test_an_event_is_pending_while_no_worker_lives() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            run = await app.start(two_steps, id="x")
            await run.send("first", 1, id="e1")
            found = await run.event("e1")
            assert (found.status, found.name, found.at, found.version) == ("pending", "first", None, None)
            async with app.working():
                await run.until("waiting")
                assert (await run.event("e1")).version == 2

    asyncio.run(main())


async def test_an_event_that_was_taken_stays_completed_while_others_wait(world: World) -> None:
    run = await world.app.start(two_steps, id="x")
    await run.send("first", 1, id="e1")
    await asyncio.sleep(5)
    assert await told(world, "e1") == ("completed", None, None)
    for number in range(30):
        await run.send("noise", number, id=f"n{number}")
        await run.send("second" if number == 9 else "noise", number, id=f"m{number}")
    await asyncio.sleep(5)
    assert await told(world, "e1") == ("completed", None, None)
    assert {(await run.event(f"n{number}")).status for number in range(30)} == {"processing"}


async def test_an_event_whose_payload_does_not_fit_has_failed(world: World) -> None:
    run = await world.app.start(two_steps, id="x")
    await run.send("first", "no number", id="e1")
    await run.until("waiting")
    status, _, error = await told(world, "e1")
    assert status == "failed" and "int" in error


async def test_an_event_that_is_rejected_long_after_it_came_has_failed(world: World) -> None:
    run = await world.app.start(many_steps, id="x")
    await run.send("late", "no number", id="bad")
    await run.send("late", 7, id="good")
    assert await run.result() == 7
    assert (await told(world, "bad"))[0] == "failed"
    assert (await told(world, "good"))[0] == "completed"


async def test_an_event_that_waits_through_a_restart_is_processing_until_it_is_taken(world: World) -> None:
    run = await world.app.start(rounds, 1, id="x")
    await run.send("other", id="never")
    await run.send("next", id="one")
    await run.until("waiting")
    assert [(await told(world, id))[0] for id in ("one", "never")] == ["completed", "processing"]
    await run.send("next", id="two")
    assert await run.result() == "done"
    assert (await told(world, "two"))[0] == "completed"


async def test_an_event_of_a_fork_is_told_by_its_own_log(world: World) -> None:
    run = await world.app.start(rounds, 5, id="x")
    await run.until("waiting")
    await run.pause()
    await run.resume()
    await run.send("other", id="kept")
    await run.send("next", id="one")
    await asyncio.sleep(1)
    fork = await run.fork(id="y")
    await fork.until("waiting")
    assert (await fork.event("one")).status == "completed"
    assert (await fork.event("kept")).status == "processing"


async def test_an_event_that_comes_during_a_pause_is_processing(world: World) -> None:
    run = await world.app.start(two_steps, id="x")
    await run.pause()
    await run.until("paused")
    await run.send("first", 1, id="e1")
    await asyncio.sleep(1)
    assert (await told(world, "e1"))[0] == "processing"
    await run.resume()
    await asyncio.sleep(1)
    assert (await told(world, "e1"))[0] == "completed"


async def test_an_event_of_a_machine_tells_the_state_that_it_led_to(world: World) -> None:
    global gate
    run = await world.app.start(door, id="x")
    await run.send("pull", id="refused")
    await run.send("push", id="e1")
    await run.send("pull", id="e2")
    await asyncio.sleep(5)
    assert (await told(world, "refused"))[0] == "failed"
    assert [(await told(world, id))[0] for id in ("e1", "e2")] == ["processing", "processing"]
    gate = True
    await run.until("waiting")
    await asyncio.sleep(30)
    assert await told(world, "e1") == ("completed", "wide", None)
    assert await told(world, "e2") == ("completed", "shut", None)
    await run.send("lock", id="e3")
    await run.result()
    assert await told(world, "e3") == ("completed", "gone", None)


async def test_an_event_that_a_machine_never_came_to_has_failed(world: World) -> None:
    global gate
    run = await world.app.start(door, id="x")
    await run.send("push", id="e1")
    await run.send("lock", id="e2")
    await run.send("pull", id="e3")
    gate = True
    await run.result()
    status, _, error = await told(world, "e3")
    assert (status, error) == ("failed", "the machine came to its end before it was the event's turn")


async def test_a_letter_that_cannot_be_read_has_failed(world: World) -> None:
    run = await world.app.start(two_steps, id="x")
    await world.app.store.send([Mail(run.key, "broken", b"?")], 0)
    with pytest.raises(EventNotFound):
        await run.event("broken")
    await asyncio.sleep(60)
    assert (await told(world, "broken"))[0] == "failed"


async def test_an_event_that_nobody_sent_is_not_found(world: World) -> None:
    run = await world.app.start(two_steps, id="x")
    with pytest.raises(EventNotFound, match="no event 'e9' was sent to x"):
        await run.event("e9")
    with pytest.raises(ExecutionNotFound):
        await world.app.get("nobody").event("e9")
    await run.pause()
    await asyncio.sleep(1)
    [pause] = [row.message_id async for row in run.rows() if row.message_id]
    with pytest.raises(EventNotFound):
        await run.event(pause)
    await world.app.post(run.key, "/resume:1", letters.ResumeLetter())


# Forward, and once


RANKS = {"pending": 0, "processing": 1, "completed": 2, "failed": 2}


@workflow(name="status-errands")
async def errands(count: int) -> int:
    done = 0
    while done < count:
        await asyncio.sleep(await event("errand", int))
        done += await step(1)
    return done


@pytest.mark.world(workers=2, lease="3s", grace="1s")
@pytest.mark.parametrize("flow", [errands, door], ids=["code", "machine"])
async def test_a_status_only_moves_forward_whoever_dies_meanwhile(world: World, flow: Any) -> None:
    global gate
    run = await world.app.start(flow, *([20] if flow is errands else []), id="x")
    seen: dict[str, list[str]] = {}

    async def watch() -> None:
        while True:
            for id, past in list(seen.items()):
                if (now := (await run.event(id)).status) != (past or [""])[-1]:
                    past.append(now)
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    for number in range(20):
        name = "errand" if flow is errands else ("push", "pull", "pull")[number % 3]
        await run.send(name, number % 3 if flow is errands else None, id=f"e{number}")
        seen[f"e{number}"] = []
        await asyncio.sleep(1)
        if number % 4 == 3:
            world.workers[0].process.kill()
            world.add_worker()
        gate = number % 2 == 0
    gate = True
    while {past[-1] for past in seen.values() if past} - {"completed", "failed"} or not all(seen.values()):
        await asyncio.sleep(1)
    watching.cancel()
    for id, past in seen.items():
        ranks = [RANKS[status] for status in past]
        assert ranks == sorted(set(ranks)), (id, past)
    assert {"processing", "completed"} <= {status for past in seen.values() for status in past}


async def test_hints_and_messages_that_come_ten_times_change_nothing(world: World) -> None:
    global gate
    app = world.app
    done = await app.start(rounds, 0, id="done")
    await done.send("next", id="one")
    await done.result()
    run = await app.start(two_steps, id="x")
    await run.send("first", 1, id="e1")
    await world.settle()
    hints = [Hint(key, "default") for key in (run.key, done.key, "default/nobody", "nobody/x")]

    async def shower() -> tuple[Any, ...]:
        for number in range(10):
            await app.stream.publish(hints if number % 2 else hints[::-1])
            assert await run.send("first", 1, id="e1") == "e1"
            assert await done.send("next", id="one") == "one"
        await world.settle()
        heads = [await one.head() for one in (run, done)]
        rows = [[row async for row in one.rows()] for one in (run, done)]
        return [head.mail for head in heads], rows, await told(world, "e1"), await done.event("one")

    before = [await run.log(), await done.log()]
    first = await shower()
    assert await shower() == first
    assert [await run.log(), await done.log()] == before
    assert first[0] == [0, 0] and first[2][0] == first[3].status == "completed"
    gate = True
    await run.send("second", 2)
    assert await run.result() == [1, 2]
    assert [entry.type for entry in await run.log()].count("EventReceived") == 2
