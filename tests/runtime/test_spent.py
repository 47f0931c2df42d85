"""Actions whose attempts are spent, and whose execution waits for a person instead of failing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw, structs

from perdure import (
    ActionFailed,
    Breaker,
    Contention,
    Do,
    ExecutionFailed,
    ExecutionStuck,
    External,
    Machine,
    Permanent,
    Retry,
    State,
    action,
    event,
    workflow,
)
from perdure.core import events as ev
from perdure.core.entries import Entry
from perdure.core.replay import Replay
from perdure.errors import UsageError
from perdure.flows.apart import Apart, order
from perdure.flows.bound import Call, bind
from perdure.flows.registry import registry
from perdure.runtime.managing.dead import examine
from perdure.runtime.run import Run
from perdure.testing import World
from tests.flows import documenting
from tests.flows.making import body

#: What is wrong with the world outside, by the name of what it is wrong with.
ill: set[str] = set()
tried: list[tuple[str, int, str]] = []
SPENT = Retry(attempts=3, first="1s", jitter=0, spent="stuck")


@pytest.fixture(autouse=True)
def forget() -> None:
    ill.clear()
    tried.clear()


def try_it(name: str) -> str:
    tried.append((name, action.attempt, action.key))
    if name in ill:
        raise ConnectionError(f"{name} is ill")
    return name


def numbers(name: str) -> list[int]:
    return [number for one, number, _ in tried if one == name]


async def types(run: Run[Any]) -> list[str]:
    return [entry.type for entry in await run.log()]


async def last(run: Run[Any], kind: str) -> Entry:
    return next(entry for entry in reversed(await run.log()) if entry.type == kind)


async def mend_and_retry(run: Run[Any]) -> None:
    ill.clear()
    await run.retry(reason="it is well again", by="ada")


@action(retries=SPENT)
async def spent_ship(parcel: str) -> str:
    return try_it(parcel)


@action
async def spent_pack(parcel: str) -> str:
    return f"{parcel} packed"


@workflow
async def spent_order(parcel: str) -> list[str]:
    return [await spent_pack(parcel), await spent_ship(parcel)]


async def test_when_its_attempts_are_spent_the_execution_is_stuck_with_the_reason(world: World) -> None:
    ill.add("tea")
    run = await world.start(spent_order, "tea", id="order-1")
    with pytest.raises(
        ExecutionStuck, match=r"order-1 is stuck \(attempts\): the attempts of spent_ship \(command 2\)"
    ):
        await run.result()
    log = await run.log()
    assert [entry.type for entry in log] == [
        "Started",
        "ActionSettled",
        "ActionAttempted",
        "ActionAttempted",
        "ActionAttempted",
        "Stuck",
    ]
    assert log[-2].text == "spent_ship attempt 3: ConnectionError: tea is ill; none is left"
    assert log[-1].data["reason"] == (
        "the attempts of spent_ship (command 2) are spent: 3 were made, and at last it failed with ConnectionError: tea"
        " is ill"
    )
    assert (log[-1].data["place"], log[-1].data.get("code", "")) == ("/actions/2/spent_ship", "")
    assert "ConnectionError: tea is ill; mend it, then retry the execution" in str(await run.why())
    shown = (await run.state()).actions[2]
    assert (shown.status, shown.attempts, shown.next) == ("spent", 3, None)


async def test_a_redrive_gives_all_attempts_anew_under_the_same_key(world: World) -> None:
    ill.add("tea")
    run = await world.start(spent_order, "tea")
    await run.until("stuck")
    began = world.now()
    await run.retry()
    while (await types(run)).count("Stuck") < 2:
        await asyncio.sleep(0.1)
    assert (await run.state(at=(await last(run, "Redriven")).version)).actions[2].status == "retrying"
    assert 3 <= (world.now() - began).total_seconds() < 3.5  # one second, then two: as at the beginning
    assert numbers("tea") == [1, 2, 3, 4, 5, 6]
    assert "6 were made" in (await last(run, "Stuck")).text
    await mend_and_retry(run)
    assert await run.result() == ["tea packed", "tea"]
    assert numbers("tea") == [1, 2, 3, 4, 5, 6, 7]
    assert len({key for _, _, key in tried}) == 1
    assert (await last(run, "Redriven")).data["by"] == "ada"


async def test_dead_letters_list_it_under_its_cause(world: World) -> None:
    ill.add("tea")
    run = await world.start(spent_order, "tea", id="order-1")
    await run.until("stuck")
    [dead] = (await world.app.dead(cause="attempts")).dead
    assert (dead.id, dead.cause, dead.tries) == ("order-1", "attempts", 1)
    case = await examine(world.app, "order-1")
    assert "all its attempts anew" in case.mend
    assert case.place.startswith("after version 5, ActionAttempted spent_ship attempt 3")
    ill.clear()
    assert (await world.app.redrive(cause="attempts")).done == ["order-1"]
    assert await run.result() == ["tea packed", "tea"]
    worker = world.workers[0].app.worker
    assert worker is not None and worker.metrics.stuck.counts["attempts"] == 1
    assert [worker.metrics.actions.counts[outcome] for outcome in ("retried", "failed", "ok")] == [2, 1, 2]


async def test_the_workflow_sees_nothing_of_it(world: World) -> None:
    @workflow(name="spent-catches")
    async def catches() -> str:
        try:
            return await spent_ship("tea")
        except ActionFailed:
            return "caught"

    ill.add("tea")
    run = await world.start(catches)
    await run.until("stuck")
    await mend_and_retry(run)
    assert await run.result() == "tea"


async def test_what_no_repetition_can_help_fails_as_ever(world: World) -> None:
    class SpentBroken(Exception): ...

    @action(retries=Retry(attempts=3, spent="stuck", fatal=(SpentBroken,)))
    async def spent_fatal(kind: str) -> None:
        raise {"permanent": Permanent, "fatal": SpentBroken}[kind](kind)

    @workflow(name="spent-permanent")
    async def permanent(kind: str) -> None:
        await spent_fatal(kind)

    for kind in ("permanent", "fatal"):
        run = await world.start(permanent, kind)
        await run.until("failed")
        assert await types(run) == ["Started", "ActionSettled", "Failed"]


async def test_what_may_happen_once_only_fails_as_ever(world: World) -> None:
    @action(name="spent-at-most-once", at_most_once=True)
    async def at_most_once() -> None:
        raise ConnectionError("who knows")

    @workflow(name="spent-only-once")
    async def only_once() -> None:
        await at_most_once.options(retries=SPENT)()

    run = await world.start(only_once)
    await run.until("failed")


@pytest.mark.parametrize("limit", ["elapsed", "deadline"])
async def test_time_that_is_spent_is_given_anew(world: World, limit: str) -> None:
    policy = Retry(attempts=0, first="4s", factor=1, jitter=0, spent="stuck")
    if limit == "elapsed":
        policy = Retry(attempts=0, first="4s", factor=1, jitter=0, spent="stuck", elapsed="10s")

    @action(name=f"spent-{limit}", retries=policy, deadline="10s" if limit == "deadline" else None)
    async def timely() -> str:
        await asyncio.sleep(0.5)
        return try_it("time")

    @workflow(name=f"spent-by-{limit}")
    async def by_time() -> str:
        return await timely()

    ill.add("time")
    run = await world.start(by_time)
    await run.until("stuck")
    assert numbers("time") == [1, 2, 3]
    await world.advance("30d")
    await run.retry()
    while (await types(run)).count("Stuck") < 2:
        await asyncio.sleep(1)
    assert numbers("time") == [1, 2, 3, 4, 5, 6]
    await world.advance("30d")
    await mend_and_retry(run)
    assert await run.result() == "time"


async def test_contention_is_free_again_after_a_redrive(world: World) -> None:
    @action(name="spent-seat", retries=Retry(attempts=2, first="1s", jitter=0, spent="stuck"))
    async def seat() -> int:
        if action.attempt <= 102:  # a hundred are free, and two count
            raise Contention("taken")
        if "seat" in ill and action.attempt < 150:
            raise Contention("taken once more")
        return action.attempt

    @workflow(name="spent-seats")
    async def seats() -> int:
        return await seat()

    ill.add("seat")
    run = await world.start(seats)
    await run.until("stuck")
    assert "102 were made" in (await last(run, "Stuck")).text
    await run.retry()
    assert await run.result() == 150
    tries = [entry.data for entry in await run.log() if entry.type == "ActionAttempted"]
    assert [one["free"] for one in tries] == [*range(1, 101), 100, 100, *range(1, 48)]


# What else goes on meanwhile.


async def test_what_runs_may_end_and_nothing_new_begins(world: World) -> None:
    @action(name="spent-slow", concurrency=1)
    async def slow(name: str) -> str:
        tried.append((name, action.attempt, action.key))
        await asyncio.sleep(60)
        return name

    @workflow(name="spent-beside")
    async def beside() -> list[str]:
        first, *rest = await asyncio.gather(slow("first"), slow("second"), spent_ship("tea"))
        return [first, *rest, await slow("third")]

    ill.add("tea")
    run = await world.start(beside)
    await world.advance("10s")
    head = await run.head()
    assert (head.shown, (await run.state()).status) == ("running", "stuck")
    assert "it will be stuck as soon as what still runs is over" in str(await run.why())
    await run.until("stuck")
    assert numbers("first") == [1] and numbers("second") == []
    log = await run.log()
    assert [entry.type for entry in log][-2:] == ["Stuck", "ActionSettled"]
    await world.advance("30d")
    assert await run.log() == log
    await mend_and_retry(run)
    assert await run.result() == ["first", "second", "tea", "third"]
    assert numbers("first") == numbers("second") == [1]


async def test_two_that_are_spent_at_once_are_stuck_once_and_both_begin_anew(world: World) -> None:
    @workflow(name="spent-both")
    async def both() -> list[str]:
        return await asyncio.gather(spent_ship("tea"), spent_ship("milk"))

    ill.update({"tea", "milk"})
    run = await world.start(both)
    await run.until("stuck")
    assert (await types(run)).count("Stuck") == 1
    await run.retry()
    while (await types(run)).count("Stuck") < 2:
        await asyncio.sleep(0.1)
    await run.until("stuck")
    assert numbers("tea") == numbers("milk") == [1, 2, 3, 4, 5, 6]
    await mend_and_retry(run)
    assert await run.result() == ["tea", "milk"]


async def test_events_are_kept_while_it_is_stuck(world: World) -> None:
    @workflow(name="spent-hears")
    async def hears() -> list[str]:
        return list(await asyncio.gather(spent_ship("tea"), event("word", str)))

    ill.add("tea")
    run = await world.start(hears)
    await run.until("stuck")
    await run.send("word", "hello")
    await world.advance("1h")
    await mend_and_retry(run)
    assert await run.result() == ["tea", "hello"]


async def test_one_that_is_paused_is_stuck_and_then_paused(world: World) -> None:
    @action(name="spent-heavy", retries=Retry(attempts=1, spent="stuck"))
    async def heavy() -> str:
        await asyncio.sleep(10)
        return try_it("heavy")

    @workflow(name="spent-paused")
    async def rests() -> str:
        return await heavy()

    ill.add("heavy")
    run = await world.start(rests)
    await world.advance("1s")
    await run.pause()
    await run.until("stuck")
    await mend_and_retry(run)
    await run.until("paused")
    assert (await run.state()).status == "paused"
    assert numbers("heavy") == [1]
    await run.resume()
    assert await run.result() == "heavy"


async def test_the_next_attempt_goes_on_from_the_last_heartbeat(world: World) -> None:
    @action(name="spent-copy", retries=Retry(attempts=1, spent="stuck"))
    async def copy() -> int:
        start = action.progress or 0
        action.heartbeat(start + 5)
        try_it("disk")
        return start

    @workflow(name="spent-copies")
    async def copies() -> int:
        return await copy()

    ill.add("disk")
    run = await world.start(copies)
    await run.until("stuck")
    await mend_and_retry(run)
    assert await run.result() == 5


# Undos and cancels.


@action
async def spent_charge(cents: int) -> str:
    tried.append(("charge", action.attempt, action.key))
    return f"receipt for {cents}"


@spent_charge.undo(retries=SPENT)
async def spent_refund(cents: int, receipt: str) -> None:
    try_it("refund")


@workflow
async def spent_saga(cents: int, wrong: bool) -> str:
    await spent_charge(cents)
    if wrong:
        raise ValueError("out of stock")
    return await spent_ship("tea")


async def test_an_undo_is_not_skipped(world: World) -> None:
    ill.add("refund")
    run = await world.start(spent_saga, 7, True)
    await run.until("stuck")
    assert "the attempts of spent_refund (command 2) are spent" in (await last(run, "Stuck")).text
    await world.advance("30d")
    await mend_and_retry(run)
    with pytest.raises(ExecutionFailed, match="out of stock") as failed:
        await run.result()
    assert "failed too" not in str(failed.value)
    assert numbers("refund") == [1, 2, 3, 4]


async def test_a_cancel_runs_the_clean_up_and_the_undos(world: World) -> None:
    ill.add("tea")
    run = await world.start(spent_saga, 7, False)
    await run.until("stuck")
    await world.advance("30d")
    await run.cancel("given up", by="ada")
    await run.until("cancelled")
    log = await run.log()
    assert [entry.type for entry in log][-6:] == [
        "Stuck",
        "CancelRequested",
        "Redriven",
        "ActionCancelled",
        "ActionSettled",
        "Cancelled",
    ]
    assert (log[-4].data["by"], log[-1].text, log[-1].data.get("forced")) == ("ada", "given up", None)
    assert numbers("refund") == [1]
    assert numbers("tea") == [1, 2, 3]


@pytest.mark.parametrize("verb", ["cancel", "purge"])
async def test_who_does_not_want_a_clean_up_gets_none(world: World, verb: str) -> None:
    ill.add("tea")
    run = await world.start(spent_saga, 7, False)
    await run.until("stuck")
    await (run.cancel(now=True) if verb == "cancel" else world.app.purge(run.id))
    await run.until("cancelled")
    assert (await types(run))[-3:] == ["Stuck", "CancelRequested", "Cancelled"]
    assert (await run.log())[-1].data["forced"] is True
    assert numbers("refund") == []


async def test_the_clean_up_waits_for_what_may_have_to_be_undone_and_for_nothing_else(world: World) -> None:
    ended: list[str] = []

    @action(name="spent-hold")
    async def hold(name: str) -> str:
        try:
            await asyncio.sleep(20 if name == "undoable" else 10_000)
            ended.append(name)
        except asyncio.CancelledError:
            ended.append(f"{name} stopped")
            raise
        return name

    @action(name="spent-hold-undoable")
    async def undoable() -> str:
        return await hold("undoable")

    @undoable.undo
    async def spent_let_go(name: str) -> None:
        ended.append(f"{name} undone")

    @workflow(name="spent-beside-cancelled")
    async def beside() -> None:
        await asyncio.gather(hold("long"), undoable(), spent_ship("tea"))

    ill.add("tea")
    run = await world.start(beside)
    await world.advance("10s")
    assert (await run.state()).status == "stuck"
    await run.cancel()
    await run.until("cancelled")
    assert ended == ["long stopped", "undoable", "undoable undone"]
    assert (await run.log())[-1].data.get("forced") is None


async def test_a_clean_up_that_was_stuck_has_the_time_that_it_had_left(world: World) -> None:
    ill.update({"tea", "refund"})
    run = await world.start(spent_saga, 7, False)
    await run.until("stuck")
    await run.cancel(timeout="1m")
    while (await types(run)).count("Stuck") < 2:
        await asyncio.sleep(0.1)
    await run.until("stuck")
    await world.advance("30d")
    await mend_and_retry(run)
    await run.until("cancelled")
    assert numbers("refund") == [1, 2, 3, 4]
    assert (await run.log())[-1].data.get("forced") is None


@pytest.mark.parametrize(("spent", "deadline"), [(True, 12_000), (False, 5_000)])
def test_the_limit_of_a_clean_up_stands_still_from_the_first_time_that_it_is_stuck(spent: bool, deadline: int) -> None:
    @workflow(name="spent-cleans")
    async def cleans() -> None:
        try:
            await event("never")
        finally:
            await spent_ship("tea")

    args, error = Raw(b'["tea"]'), ev.Error("ConnectionError", "ill")
    replay = Replay("default/cleans", cleans)
    for version, (at, fed) in enumerate(
        [
            (1000, ev.Started("spent-cleans", 1, Raw(b"[]"))),
            (2000, ev.CancelRequested(deadline=5000)),
            (3000, ev.ActionAttempted(1, "spent_ship", args, 3, error, 3000, spent=spent)),
            (3000, ev.Stuck("attempts" if spent else "lapses", "ill")),
            (7000, ev.Stuck("sealed", "no key")),
            (10_000, ev.Redriven()),
        ],
        1,
    ):
        replay.feed(fed, version, at)
    assert (replay.next_due(4000), replay.actions[1].timed) == (deadline, 10_000 if spent else 2000)
    replay.evict()


async def test_what_nobody_awaits_any_more_just_fails(world: World) -> None:
    @action(name="spent-orphan", retries=SPENT)
    async def orphan() -> str:
        await asyncio.sleep(5)
        return try_it("orphan")

    @orphan.undo
    async def spent_unorphan(name: str) -> None: ...

    @workflow(name="spent-orphans")
    async def orphans() -> None:
        await orphan()

    ill.add("orphan")
    run = await world.start(orphans)
    await world.advance("1s")
    await run.cancel()
    await run.until("cancelled")
    assert "Stuck" not in await types(run)
    assert numbers("orphan") == [1, 2, 3]


async def test_an_attempt_that_ends_after_its_cancel_makes_nothing_stuck(world: World) -> None:
    @action(name="spent-deaf", retries=Retry(attempts=1, spent="stuck"))
    async def deaf() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            raise ConnectionError("interrupted") from None

    @workflow(name="spent-times-out")
    async def times_out() -> str:
        try:
            async with asyncio.timeout(5):
                await deaf()
        except TimeoutError:
            return await spent_pack("late")
        return "in time"

    assert await world.run(times_out) == "late packed"


# Elsewhere.


async def test_one_that_runs_apart_is_its_own_dead_letter(world: World) -> None:
    @action(name="spent-apart", queue="spent-elsewhere", retries=3)
    async def apart() -> str:
        return try_it("apart")

    @workflow(name="spent-orders")
    async def orders() -> str:
        return await apart.options(retries=SPENT)()

    await world.workers[0].shut_down()
    for queue in ("default", "spent-elsewhere"):
        world.add_worker(queues=[queue])
    ill.add("apart")
    run = await world.start(orders, id="o")
    await run.until("waiting")
    elsewhere = world.app.get("o.1")
    await elsewhere.until("stuck")
    [dead] = (await world.app.dead(cause="attempts")).dead
    assert (dead.id, dead.workflow, await run.status()) == ("o.1", "action:spent-apart", "waiting")
    assert "as execution o.1, which is stuck (attempts): mend it, then retry o.1" in str(await run.why())
    await mend_and_retry(elsewhere)
    assert await run.result() == "apart"
    assert numbers("apart") == [1, 2, 3, 4]
    assert {key for _, _, key in tried} == {"default/o/1/spent-apart"}


async def test_a_workflow_that_gives_up_ends_what_is_stuck_apart(world: World) -> None:
    @action(name="spent-apart-too", queue="spent-elsewhere", retries=SPENT)
    async def apart() -> str:
        return try_it("apart")

    @workflow(name="spent-orders-too")
    async def orders() -> str:
        return await apart()

    await world.workers[0].shut_down()
    for queue in ("default", "spent-elsewhere"):
        world.add_worker(queues=[queue])
    ill.add("apart")
    run = await world.start(orders, id="o")
    await run.until("waiting")
    await world.app.get("o.1").until("stuck")
    await run.cancel()
    await run.until("cancelled")
    await world.app.get("o.1").until("cancelled")


async def test_an_external_one_is_stuck_until_it_is_redriven(world: World) -> None:
    @action(
        name="spent-external", external=True, queue="spent-node", retries=Retry(attempts=2, jitter=0, spent="stuck")
    )
    async def foreign() -> int: ...  # type: ignore[empty-body]

    @workflow(name="spent-abroad")
    async def abroad() -> int:
        return await foreign()

    run = await world.start(abroad, id="a")
    for attempt in (1, 2):
        [task] = await world.app.external.poll("spent-node", wait="1m")
        assert task.attempt == attempt
        await world.app.external.fail(task.token, "Busy", "not now")
    elsewhere = world.app.get("a.1")
    assert await elsewhere.status() == "stuck"
    assert world.app.external.metrics.stuck.counts["attempts"] == 1
    assert await world.app.external.poll("spent-node", wait="1h") == []
    await elsewhere.retry()
    [task] = await world.app.external.poll("spent-node", wait="1m")
    assert (task.attempt, task.key) == (3, "default/a/1/spent-external")
    await world.app.external.complete(task.token, 7)
    assert await run.result() == 7


async def test_an_open_circuit_uses_up_time_and_then_it_is_stuck(world: World) -> None:
    @action(
        name="spent-guarded",
        breaker=Breaker(failures=2, window="1m", pause="20s"),
        retries=Retry(attempts=0, first="1s", elapsed="10s", jitter=0, spent="stuck"),
    )
    async def guarded() -> str:
        tried.append(("guarded", action.attempt, action.key))
        if "guarded" in ill:
            raise External("503")
        return "well"

    @workflow(name="spent-guards")
    async def guards() -> str:
        return await guarded()

    async def put_off() -> dict[str, Any]:
        entry = await last(run, "ActionAttempted")
        assert entry.text.endswith("left alone for a while; none is left")
        assert entry.data["due"] == entry.data["began"]  # no reason to wait when somebody has mended it
        return entry.data

    ill.add("guarded")
    run = await world.start(guards)
    await run.until("stuck")
    assert "2 were made, and at last it failed with CircuitOpen" in (await last(run, "Stuck")).text
    assert (await put_off())["put_off"] == 1
    await run.retry()  # too soon
    while (await types(run)).count("Stuck") < 2:
        await asyncio.sleep(0.1)
    assert (await put_off())["put_off"] == 1
    await world.advance("14s")
    await mend_and_retry(run)  # the pause of the circuit is over before its time is
    assert await run.result() == "well"
    assert numbers("guarded") == [1, 2, 3]
    assert (await types(run)).count("Stuck") == 2


async def test_who_wants_to_hear_of_an_open_circuit_hears_of_it(world: World) -> None:
    @action(
        name="spent-fast",
        breaker=Breaker(failures=1, pause="20s", fail_fast=True),
        retries=Retry(attempts=3, first="1s", jitter=0, spent="stuck"),
    )
    async def fast() -> None:
        raise External("503")

    @workflow(name="spent-fails-fast")
    async def fails_fast() -> None:
        await fast()

    run = await world.start(fails_fast)
    await run.until("failed")
    assert (await last(run, "Failed")).text.startswith("CircuitOpen")


async def test_why_tells_of_a_child_that_is_stuck(world: World) -> None:
    @workflow(name="spent-parent")
    async def parent() -> list[str]:
        return await spent_order("tea")

    ill.add("tea")
    run = await world.start(parent, id="p")
    await run.until("waiting")
    child = world.app.get("p.1")
    await child.until("stuck")
    assert "waits for the child p.1, which is stuck (attempts): mend it, then retry p.1" in str(await run.why())
    await mend_and_retry(child)
    assert await run.result() == ["tea packed", "tea"]


async def test_it_holds_for_actions_with_places_in_the_fleet(world: World) -> None:
    @action(name="spent-everywhere", everywhere=1, retries=SPENT)
    async def rare(name: str) -> str:
        return try_it(name)

    @workflow(name="spent-rare")
    async def rarely(name: str) -> str:
        return await rare(name)

    ill.add("rare")
    run = await world.start(rarely, "rare")
    await run.until("stuck")
    assert await world.run(rarely, "well") == "well"  # its place was given back
    await mend_and_retry(run)
    assert await run.result() == "rare"


def spent_graph(retries: int | None) -> dict[str, Any]:
    more = {} if retries is None else {"retries": retries}
    call = {"action": "spent_ship", "with": {"parcel": "tea"}, **more}
    return body("spent-graph", {"start": "trigger", "ship": ("action", call)}, "start > ship")


def spent_machine(retries: Any) -> dict[str, Any]:
    more = {} if retries is None else {"retries": retries}
    ship = {"action": "spent_ship", "with": {"parcel": "tea"}, "name": "shipped", **more}
    states = {"ships": {"entry": [ship], "always": "done"}, "done": {"final": True}}
    return {"machine": "spent-machine", "initial": "ships", "states": states}


@pytest.mark.parametrize(
    ("made", "attempts"),
    [
        (spent_graph(None), 3),
        (spent_graph(1), 2),
        (spent_machine(None), 3),
        (spent_machine(1), 2),
        (spent_machine({"attempts": 2, "first": "1s"}), 2),
        (documenting.body("spent-document", {"ship": {"call": "spent_ship", "with": {"parcel": "tea"}}}), 3),
    ],
    ids=["graph", "graph-retries", "machine", "machine-retries", "machine-policy", "document"],
)
async def test_definitions_that_are_data_honour_what_the_action_declares(
    world: World, made: dict[str, Any], attempts: int
) -> None:
    published = await world.app.definitions.publish(made)
    ill.add("tea")
    run = await world.app.start(published.name)
    await run.until("stuck")
    assert numbers("tea") == [*range(1, attempts + 1)]
    assert (await run.log())[-1].data["cause"] == "attempts"
    await mend_and_retry(run)
    await run.until("completed")
    assert numbers("tea") == [*range(1, attempts + 2)]


def test_the_fingerprint_of_a_machine_without_it_is_what_it_was() -> None:
    """Other code redrives what is stuck: a release of the engine is none."""

    def made(policy: Retry) -> str:
        states = {"new": State(entry=[Do(spent_pack, ["tea"], retries=policy)], final=True)}
        return Machine("spent-fingerprint", initial="new", states=states).fingerprint

    assert made(Retry(attempts=3)) == "0b861bdb145846d274502582b02ddb4c82cb6e56ea0feb02ca89c9bbf10a64b7"
    assert made(Retry(attempts=3, spent="stuck")) != made(Retry(attempts=3))


def test_an_action_whose_code_is_elsewhere_keeps_its_own_policy() -> None:
    @action(name="spent-unknown", retries=SPENT, timeout="5s")
    async def unknown() -> None: ...

    def ordered(call: Call) -> Any:
        spec = call.spec()
        assert spec.absent
        replay = Replay("default/o.1", Apart(unknown))
        replay.feed(ev.Started("action:spent-unknown", 2, order(spec, Raw(b"[]"), "key", "default/o", 1)), 1, 1)
        how = replay.actions[1].spec.how
        replay.evict()
        return how

    bound = structs.replace(bind(unknown), version=2)  # no such version is here
    own = ordered(Call(bound))
    assert (own.retry, own.timeout) == (SPENT, 5_000_000)
    given = ordered(Call(bound, 6, "1s"))
    assert (given.retry, given.timeout) == (Retry(attempts=7), 1_000_000)


# The log alone decides.


async def test_another_policy_does_not_diverge(world: World) -> None:
    def declare(policy: Retry) -> Any:
        @action(name="spent-policy", retries=policy)
        async def ruled() -> str:
            return try_it("ruled")

        @workflow(name="spent-by-policy")
        async def rules() -> str:
            return await ruled()

        return rules

    ill.add("ruled")
    before = declare(SPENT)
    run = await world.start(before)
    await run.until("stuck")
    registry.add_workflow(declare(Retry(attempts=2, first="1s", jitter=0)))
    await world.crash()
    assert await run.status() == "stuck"
    await run.retry()
    await run.until("failed")
    assert numbers("ruled") == [1, 2, 3, 4, 5]  # two anew, as the policy says by now


async def test_other_code_of_the_workflow_does_not_try_it_again(world: World) -> None:
    def declare(word: str) -> Any:
        @workflow(name="spent-deployed")
        async def deployed() -> str:
            return f"{await spent_ship('tea')} {word}"

        return deployed

    ill.add("tea")
    run = await world.start(declare("before"))
    await run.until("stuck")
    registry.add_workflow(declare("after"))
    await world.crash()
    await world.advance("1h")
    assert (await types(run)).count("Redriven") == 0
    await mend_and_retry(run)
    assert await run.result() == "tea after"


async def test_a_fork_tries_anew_and_an_import_stays_stuck(world: World) -> None:
    ill.add("tea")
    run = await world.start(spent_order, "tea", id="order-1")
    await run.until("stuck")
    log = await run.log()
    copy = await world.app.adopt([row async for row in run.rows()], "order-2", "default")
    await copy.until("stuck")
    assert numbers("tea") == [1, 2, 3]
    ill.clear()
    fork = await run.fork(id="order-3")
    assert await fork.result() == ["tea packed", "tea"]
    assert [number for _, number, key in tried if "order-3" in key] == [1]
    assert await run.log() == log
    await copy.retry()
    assert await copy.result() == ["tea packed", "tea"]
    assert [number for _, number, key in tried if "order-2" in key] == [4]


async def test_it_survives_a_crash_at_every_store_call(world: World) -> None:
    @action(name="spent-crashing", retries=Retry(attempts=2, first="1s", jitter=0, spent="stuck"))
    async def crashing(key: str) -> int:
        if not mended:
            raise ConnectionError("ill")
        return 7

    @workflow(name="spent-crashes")
    async def crashes() -> int:
        return await crashing("x") + await crashing("y")

    mended: list[bool] = []

    async def mend(run: Run[Any]) -> None:
        mended.clear()
        await run.until("stuck")
        mended.append(True)
        await run.retry()

    async def check(run: Run[Any]) -> None:
        log = await run.log()
        assert [entry.type for entry in log].count("Stuck") == 1
        assert [entry.data["attempt"] for entry in log if entry.type == "ActionAttempted"] == [1, 2]

    report = await world.crash_everywhere(crashes, send=mend, check=check, same_inputs=False)
    assert report.runs > 10


def test_policies_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="spent is 'fail' or 'stuck', not 'park'"):
        Retry(spent="park")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="never tried again"):

        @action(at_most_once=True, retries=Retry(attempts=1, spent="stuck"))
        async def spent_once() -> None: ...


def test_a_number_for_one_call_leaves_the_rest_of_what_was_declared() -> None:
    assert spent_ship.options(retries=7).how.retry == Retry(attempts=8, spent="stuck")
    assert spent_ship.options(retries=Retry(attempts=8)).how.retry == Retry(attempts=8)
