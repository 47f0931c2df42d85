"""What workflows can do, through the public surface: events, children, sagas, values from the log, restarts."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import ChildFailed, ExecutionCancelled, ExecutionFailed, InvalidValue, Perdure, action, event, workflow
from perdure.testing import World

seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@dataclass
class Packed:
    tracking: str


@dataclass
class Lost:
    where: str


@action
async def note(text: str) -> str:
    seen.append(text)
    return text


@action
async def fail(text: str) -> None:
    raise ValueError(text)


# Events.


async def test_an_event_wakes_a_waiting_workflow(world: World) -> None:
    @workflow
    async def ship() -> str:
        return (await event("packed", Packed)).tracking

    run = await world.start(ship)
    await run.until("waiting")
    await run.send("packed", Packed("T1"))
    assert await run.result() == "T1"


async def test_events_are_buffered_in_order_until_somebody_asks(world: World) -> None:
    @workflow
    async def collect() -> list[int]:
        await event("go")
        return [await event("n", int) for _ in range(3)]

    run = await world.start(collect)
    for n in (1, 2, 3):
        await run.send("n", n)
    await run.send("go")
    assert await run.result() == [1, 2, 3]


async def test_the_first_of_several_names(world: World) -> None:
    @workflow
    async def either() -> str:
        match await event(("packed", Packed), ("lost", Lost)):
            case Packed(tracking):
                return tracking
            case Lost(where):
                return where

    run = await world.start(either)
    await run.send("lost", Lost("Bremen"))
    assert await run.result() == "Bremen"


async def test_received_says_which_event_came(world: World) -> None:
    @workflow
    async def either() -> list[Any]:
        came = await event.received("yes", "no")
        return [came.name, came.payload, came.by]

    run = await world.start(either)
    await run.send("no", {"why": "price"}, by="ada")
    assert await run.result() == ["no", {"why": "price"}, "ada"]


async def test_a_match_on_payload_fields_leaves_others_buffered(world: World) -> None:
    @workflow
    async def mine() -> list[Any]:
        second = await event("paid", match={"order": 2})
        first = await event("paid", match={"order": 1})
        return [second["n"], first["n"]]

    run = await world.start(mine)
    await run.send("paid", {"order": 1, "n": "a"})
    await run.send("paid", {"order": 2, "n": "b"})
    assert await run.result() == ["b", "a"]


async def test_a_payload_of_the_wrong_type_is_rejected_and_the_wait_goes_on(world: World) -> None:
    @workflow
    async def ship() -> str:
        return (await event("packed", Packed)).tracking

    run = await world.start(ship)
    await run.send("packed", {"tracking": 7})
    await run.send("packed", {"tracking": "T2"})
    assert await run.result() == "T2"
    rejected = next(entry for entry in await run.log() if entry.type == "EventRejected")
    assert "tracking" in rejected.data["reason"]


async def test_declared_events_are_checked_when_they_are_sent(world: World) -> None:
    @workflow(events={"packed": Packed})
    async def ship() -> str:
        return (await event("packed", Packed)).tracking

    run = await world.start(ship)
    with pytest.raises(InvalidValue, match="tracking"):
        await run.send("packed", {"tracking": 7})
    with pytest.raises(InvalidValue, match="takes no event 'lost'"):
        await run.send("lost")
    await run.send("packed", Packed("T3"))
    assert await run.result() == "T3"


async def test_an_event_or_a_timeout_whichever_comes_first(world: World) -> None:
    @workflow
    async def patient() -> str:
        try:
            async with asyncio.timeout(0.05):
                await event("never")
        except TimeoutError:
            return "timed out"
        return "?"

    assert await (await world.start(patient)).result() == "timed out"


# Children.


@workflow
async def double(n: int) -> int:
    await note(f"child {n}")
    return n * 2


@workflow
async def breaks() -> None:
    await fail("broken child")


@workflow
async def endless() -> None:
    try:
        await event("never")
    finally:
        await note(f"cleaned, cancelled={workflow.cancelled}")


async def test_children_are_awaited_like_functions(world: World) -> None:
    @workflow
    async def parent() -> int:
        return sum(await asyncio.gather(double(1), double(2), double(3)))

    run = await world.start(parent, id="p")
    assert await run.result() == 12
    page = await world.app.find(parent="p")
    assert sorted(head.key for head in page.heads) == ["default/p.1", "default/p.2", "default/p.3"]


async def test_a_failed_child_fails_its_await(world: World) -> None:
    @workflow
    async def parent() -> str:
        try:
            await breaks()
        except ChildFailed as failure:
            return f"{failure.type}: {failure}"
        return "?"

    assert "ValueError" in await (await world.start(parent)).result()


async def test_cancelling_a_parent_reaches_its_children(world: World) -> None:
    @workflow
    async def parent() -> None:
        await endless()

    run = await world.start(parent, id="boss")
    await run.until("waiting")
    await world.app.get("boss.1").until("waiting")
    await run.cancel("enough")
    with pytest.raises(ExecutionCancelled, match="enough"):
        await run.result()
    with pytest.raises(ExecutionCancelled):
        await world.app.get("boss.1").result()
    assert seen == ["cleaned, cancelled=True"]


async def test_a_detached_execution_lives_on(world: World) -> None:
    @workflow
    async def parent() -> str:
        return await workflow.start(double, 21, id="detached")

    assert await (await world.start(parent)).result() == "detached"
    assert await world.app.get("detached").result() == 42


async def test_workflows_send_events_to_each_other(world: World) -> None:
    @workflow
    async def listener() -> Any:
        return await event("hello")

    @workflow
    async def speaker(to: str) -> None:
        await workflow.send(to, "hello", {"from": workflow.id})

    run = await world.start(listener, id="ear")
    await (await world.start(speaker, "ear", id="mouth")).result()
    assert await run.result() == {"from": "mouth"}


# Sagas.


@action
async def book(what: str) -> str:
    seen.append(f"book {what}")
    return f"{what}-1"


@book.undo
async def unbook(what: str, booking: str) -> None:
    seen.append(f"undo {what} {booking}")


async def test_undos_run_in_reverse_order_when_the_execution_fails(world: World) -> None:
    @workflow
    async def trip() -> None:
        await book("flight")
        await book("hotel")
        await fail("no car")

    run = await world.start(trip)
    with pytest.raises(ExecutionFailed, match="no car"):
        await run.result()
    assert seen == ["book flight", "book hotel", "undo hotel hotel-1", "undo flight flight-1"]


async def test_undos_run_when_the_execution_is_cancelled(world: World) -> None:
    @workflow
    async def trip() -> None:
        await book("flight")
        await event("never")

    run = await world.start(trip)
    await run.until("waiting")
    await run.cancel()
    with pytest.raises(ExecutionCancelled):
        await run.result()
    assert seen == ["book flight", "undo flight flight-1"]


async def test_no_undo_after_success(world: World) -> None:
    @workflow
    async def trip() -> str:
        return await book("flight")

    assert await (await world.start(trip)).result() == "flight-1"
    assert seen == ["book flight"]


async def test_an_undo_that_fails_does_not_stop_the_others(world: World) -> None:
    @action
    async def hire(what: str) -> str:
        return what

    @hire.undo(retries=0)
    async def unhire(what: str, hired: str) -> None:
        raise OSError("closed")

    @workflow
    async def trip() -> None:
        await book("flight")
        await hire("car")
        await fail("rain")

    with pytest.raises(ExecutionFailed, match="rain.*undo unhire failed too.*closed"):
        await (await world.start(trip)).result()
    assert seen == ["book flight", "undo flight flight-1"]


# Values from the log.


async def test_now_random_and_uuid_come_from_the_log(world: World) -> None:
    @workflow
    async def values() -> list[Any]:
        first = [workflow.now().isoformat(), workflow.random().random(), str(workflow.uuid())]
        await note("between")
        second = [workflow.now().isoformat(), workflow.random().random(), str(workflow.uuid())]
        return [first, second]

    first, second = await (await world.start(values)).result()
    assert first[0] <= second[0]
    assert first[1:] != second[1:]


async def test_a_recorded_value_is_computed_once(world: World) -> None:
    @workflow
    async def region() -> list[str]:
        def read() -> str:
            seen.append("computed")
            return os.environ.get("REGION", "nowhere")

        found = workflow.record(read)
        await note("a")
        await note("b")
        return [found, workflow.record(lambda: "second")]

    assert await (await world.start(region)).result() == ["nowhere", "second"]
    assert seen.count("computed") == 1


async def test_published_fields_are_seen_from_outside(world: World) -> None:
    @workflow
    async def progress(customer: str) -> None:
        workflow.publish(customer=customer, step="packing")
        await event("go")
        workflow.publish(step="done")

    run = await world.start(progress, "ada", id="pub")
    await run.until("waiting")
    assert (await run.state()).published == {"customer": "ada", "step": "packing"}
    found = await world.app.find(customer="ada", step="packing")
    assert [head.key for head in found.heads] == ["default/pub"]
    assert not (await world.app.find(customer="eve")).heads
    await run.send("go")
    await run.result()
    state = await run.state()
    assert state.published == {"customer": "ada", "step": "done"}
    versions = [entry.version for entry in await run.log() if entry.type == "Published"]
    assert (await run.state(at=versions[0])).published["step"] == "packing"


async def test_restart_with_begins_again_and_keeps_the_log_short(world: World) -> None:
    @workflow
    async def count(n: int) -> int:
        await note(f"round {n}")
        if n < 5:
            workflow.restart_with(n + 1)
        extra: int = await event("extra")
        return n + extra

    run = await world.start(count, 1)
    await run.send("extra", 10)
    assert await run.result() == 15
    assert seen == [f"round {n}" for n in range(1, 6)]
    keys = [entry.data["ref"] for entry in await run.log() if entry.type == "ActionSettled"]
    assert len(set(keys)) == 5


async def test_the_version_is_known_inside(world: World) -> None:
    @workflow(name="versioned", version=3)
    async def versioned() -> int:
        return workflow.version

    assert await (await world.start(versioned)).result() == 3


async def test_a_cancelled_action_that_took_effect_is_undone_too(world: World) -> None:
    @action
    async def slow_book(what: str) -> str:
        seen.append(f"booking {what}")
        await asyncio.sleep(5)
        seen.append(f"booked {what}")
        return what

    @slow_book.undo
    async def slow_unbook(what: str, booked: str) -> None:
        seen.append(f"undo {what}")

    @workflow
    async def trip() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(slow_book("flight"))
            group.create_task(fail("no car"))

    with pytest.raises(ExecutionFailed, match="no car"):
        await (await world.start(trip)).result()
    assert seen == ["booking flight", "booked flight", "undo flight"]


async def test_a_timeout_does_not_wait_for_what_may_have_to_be_undone(world: World) -> None:
    @action
    async def slow_hire(what: str) -> str:
        await asyncio.sleep(5)
        seen.append(f"hired {what}")
        return what

    @slow_hire.undo
    async def slow_unhire(what: str, hired: str) -> None:
        seen.append(f"undo {what}")

    @workflow
    async def trip() -> None:
        try:
            async with asyncio.timeout(1):
                await slow_hire("car")
        except TimeoutError:
            await note("gave up on the car")
        await fail("rain")

    with pytest.raises(ExecutionFailed, match="rain"):
        await (await world.start(trip)).result()
    assert seen == ["gave up on the car", "hired car", "undo car"]


async def test_a_failed_child_is_named(world: World) -> None:
    @workflow
    async def parent() -> str:
        try:
            await breaks()
        except ChildFailed as failure:
            return failure.child
        return "?"

    assert await (await world.start(parent, id="p7")).result() == "p7.1"


async def test_what_a_cancelled_task_did_is_undone_even_if_nobody_awaits_the_task(world: World) -> None:
    @action
    async def slow_rent(what: str) -> str:
        await asyncio.sleep(5)
        seen.append(f"rented {what}")
        return what

    @slow_rent.undo
    async def slow_return(what: str, rented: str) -> None:
        seen.append(f"undo {what}")

    @workflow
    async def trip() -> None:
        background = asyncio.create_task(slow_rent("tent"))
        await note("begun")
        background.cancel()
        raise ValueError("rain")

    with pytest.raises(ExecutionFailed, match="rain"):
        await (await world.start(trip)).result()
    assert seen == ["begun", "rented tent", "undo tent"]


@pytest.mark.real_time
async def test_a_result_that_is_there_is_given_at_once() -> None:
    @workflow
    async def quick() -> int:
        return 7

    async with Perdure("memory://", grace=60) as app, app.working():
        run = await app.start(quick)
        while await run.status() != "completed":
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            assert await run.result() == 7
            assert await run.result() == 7
