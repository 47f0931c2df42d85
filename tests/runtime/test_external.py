"""External tasks: actions that workers in other languages ask for, do, and answer for."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from perdure import ActionFailed, ExecutionFailed, Retry, action, workflow
from perdure.core import events as ev
from perdure.core.records import EXTERNAL, Busy
from perdure.errors import (
    InvalidValue,
    LimitReached,
    NotRegistered,
    OutcomeUnknown,
    StoreUnavailable,
    TaskLost,
    TaskNotFound,
    UsageError,
)
from perdure.flows.bound import Absent, bind
from perdure.flows.registry import registry
from perdure.runtime.external.handing import ExternalTask
from perdure.runtime.external.ticket import read_ticket
from perdure.testing import World
from tests.flows.making import body


class Receipt(Struct):
    id: str
    amount: int


class Declined(Exception):
    pass


@action(
    name="x.charge", external=True, queue="x-node", retries=Retry(attempts=3, first="1m", jitter=0), raises=(Declined,)
)
async def charge(card: str, *, amount: int) -> Receipt: ...  # type: ignore[empty-body]


@action(name="x.quick", external=True, queue="x-node", retries=2, timeout="10s")
async def quick() -> int: ...  # type: ignore[empty-body]


@action(name="x.steady", external=True, queue="x-node", retries=Retry(attempts=2, jitter=0), heartbeat="5s")
async def steady() -> int: ...  # type: ignore[empty-body]


@action(name="x.once", external=True, queue="x-node", at_most_once=True)
async def once() -> int: ...  # type: ignore[empty-body]


@action(name="x.other", external=True, queue="x-other", fatal=(Declined,))
async def other() -> None: ...


@action(name="x-local")
async def local() -> None: ...


@workflow(name="x-buy")
async def buy(card: str) -> str:
    receipt = await charge(card, amount=7)
    return f"{receipt.id} {receipt.amount}"


@workflow(name="x-quick")
async def quickly() -> int:
    return await quick()


@workflow(name="x-steady")
async def steadily() -> int:
    return await steady()


@workflow(name="x-once")
async def only_once() -> int:
    return await once()


async def ask(world: World, queue: str = "x-node", **more: Any) -> list[ExternalTask]:
    return await world.app.external.poll(queue, **{"wait": "1m", **more})


async def one(world: World, **more: Any) -> ExternalTask:
    [task] = await ask(world, **more)
    return task


async def types(world: World, key: str) -> list[str]:
    return [type(ev.read(row)).__name__ for row in await world.rows(f"default/{key}")]


async def test_a_task_says_all_that_a_worker_needs(world: World) -> None:
    run = await world.start(buy, "visa", id="b")
    task = await one(world, worker="node-1")
    assert (task.action, task.version, task.args, task.kwargs) == ("x.charge", 1, ["visa"], {"amount": 7})
    assert (task.key, task.attempt, task.execution, task.deadline) == ("default/b/1/x.charge", 1, "b", None)
    assert 29 < (task.until - world.now()).total_seconds() <= 30
    holder = (await world.app.get("b.1").head()).holder
    assert holder is not None and holder.startswith(f"{EXTERNAL}node-1:")
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await run.result() == "r1 7"
    assert await types(world, "b.1") == ["Started", "ActionStarted", "ActionSettled", "Completed"]


async def test_who_waits_hears_of_a_new_task_at_once(world: World) -> None:
    asking = asyncio.create_task(one(world))
    await world.advance("3s")
    began = world.now()
    await world.start(buy, "visa")
    await asking
    assert world.now() == began


async def test_a_flood_of_tasks_is_not_delayed_by_the_grace_of_hints(world: World) -> None:
    asking = [asyncio.create_task(ask(world, limit=2)) for _ in range(10)]
    await world.advance("3s")
    began = world.now()
    for number in range(20):
        await world.start(buy, f"card-{number}")
    given = [task for tasks in await asyncio.gather(*asking) for task in tasks]
    while len(given) < 20:
        given += await ask(world, limit=100)
    assert len({task.execution for task in given}) == 20 and world.now() == began
    for task in given:
        await world.app.external.complete(task.token, {"id": "r", "amount": 7})


async def test_nothing_to_do_is_an_answer(world: World) -> None:
    began = world.now()
    assert await ask(world, wait="20s") == []
    assert 20 <= (world.now() - began).total_seconds() < 20.1


async def test_those_who_wait_share_their_looks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    claim = world.app.store.claim

    async def counted(*args: Any) -> Any:
        looks.append(1)
        return await claim(*args)

    monkeypatch.setattr(world.app.store, "claim", counted)
    await asyncio.gather(*(ask(world, wait="50s") for _ in range(100)))
    assert len(looks) <= 12


async def test_two_who_ask_never_get_the_same_task(world: World) -> None:
    for number in range(50):
        await world.start(buy, f"card-{number}", id=f"b{number}")
    apps = [world.client(f"api-{number}") for number in range(5)]
    given: list[ExternalTask] = []

    async def work(app: Any) -> None:
        while len(given) < 50:
            given.extend(await app.external.poll("x-node", limit=3, wait="1s"))

    await asyncio.gather(*map(work, apps))
    assert len({task.execution for task in given}) == len(given) == 50
    for task in given:
        await world.app.external.complete(task.token, {"id": "r", "amount": 7})
    for app in apps:
        await app.close()


async def test_another_process_takes_the_answer(world: World) -> None:
    run = await world.start(buy, "visa")
    first, second = world.client("api-1"), world.client("api-2")
    [task] = await first.external.poll("x-node")
    await first.close()
    beat = await second.external.heartbeat(task.token)
    assert not beat.cancelled and beat.until is not None
    await second.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await run.result() == "r1 7"
    await second.close()


async def test_a_lost_worker_makes_room_for_another_and_its_answer_is_dropped_and_counted(world: World) -> None:
    run = await world.start(buy, "visa", id="b")
    lost = await one(world, lease="5s")
    again = await one(world)
    assert (again.attempt, again.key) == (2, lost.key)
    for said, what in (("heartbeat", {"page": 1}), ("complete", {"id": "late", "amount": 1}), ("fail", "Late")):
        with pytest.raises(TaskLost, match="no longer yours"):
            await getattr(world.app.external, said)(lost.token, what)
    late = world.app.external.metrics.late.counts
    assert (late["complete"], late["heartbeat"], late["fail"]) == (1, 1, 1)
    await world.app.external.complete(again.token, {"id": "r2", "amount": 2})
    assert await run.result() == "r2 2"
    attempted = [
        event for row in await world.rows("default/b.1") if isinstance(event := ev.read(row), ev.ActionAttempted)
    ]
    assert [(one.attempt, one.error.type, one.free) for one in attempted] == [(1, "WorkerLost", 1)]


async def test_a_second_answer_is_dropped_and_counted(world: World) -> None:
    run = await world.start(buy, "visa")
    task = await one(world)
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    with pytest.raises(TaskLost, match="it has ended \\(completed\\)"):
        await world.app.external.complete(task.token, {"id": "r2", "amount": 7})
    assert await run.result() == "r1 7" and world.app.external.metrics.late.counts["complete"] == 1


async def test_a_lapsed_lease_ends_the_task_even_if_nobody_else_asked(world: World) -> None:
    await world.start(buy, "visa")
    task = await one(world, lease="5s")
    await world.advance("6s")
    with pytest.raises(TaskLost):
        await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    await world.app.external.complete((await one(world)).token, {"id": "r1", "amount": 7})


async def test_heartbeats_keep_a_task_and_their_details_reach_the_next_attempt(world: World) -> None:
    await world.start(buy, "visa")
    task = await one(world, lease="5s")
    for number in range(5):
        await world.advance("4s")
        assert not (await world.app.external.heartbeat(task.token, {"page": number})).cancelled
    again = await one(world)
    assert (again.attempt, again.progress) == (2, {"page": 4})
    await world.app.external.complete(again.token, {"id": "r1", "amount": 7})


async def test_a_call_whose_arguments_do_not_fit_is_given_to_nobody(world: World) -> None:
    @workflow(name="x-misfit")
    async def misfit(card: Any, amount: Any) -> None:
        await charge(card, amount=amount)

    for card, amount, named in (("visa", "seven", "amount"), (7, 7, "card")):
        run = await world.start(misfit, card, amount)
        assert await ask(world, wait="1s") == []
        with pytest.raises(ExecutionFailed, match=f"InvalidValue: argument {named} of charge: (int|str): expected"):
            await run.result()
        assert await types(world, f"{run.id}.1") == ["Started", "ActionSettled", "Failed"]


async def test_a_failure_is_tried_again_as_the_policy_says(world: World) -> None:
    run = await world.start(buy, "visa", id="b")
    began = world.now()
    for number in (1, 2):
        task = await one(world, wait="10m")
        assert task.attempt == number
        await world.app.external.fail(task.token, "Timeout", "no answer", details={"after": 3})
    task = await one(world, wait="10m")
    assert task.attempt == 3 and 120 <= (world.now() - began).total_seconds() < 121
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await run.result() == "r1 7"
    settled = [event for row in await world.rows(run.key) if isinstance(event := ev.read(row), ev.ActionSettled)]
    assert settled[0].attempts == 3


async def test_who_waits_elsewhere_learns_when_the_next_attempt_is_due(world: World) -> None:
    await world.start(buy, "visa")
    task = await one(world)
    far = world.client("far")
    asking = asyncio.create_task(far.external.poll("x-node", wait="10m"))
    await world.advance("1s")
    await world.app.external.fail(task.token, "Timeout")
    began = world.now()
    [again] = await asking
    assert 60 <= (world.now() - began).total_seconds() < 60.1
    await far.external.complete(again.token, {"id": "r1", "amount": 7})
    await far.close()


async def test_a_service_that_wants_to_be_left_alone_is(world: World) -> None:
    await world.start(buy, "visa")
    began = world.now()
    await world.app.external.fail((await one(world)).token, "Busy", after="5m")
    task = await one(world, wait="10m")
    assert (world.now() - began).total_seconds() >= 300
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})


async def test_a_failure_for_good_reaches_the_workflow_as_its_class(world: World) -> None:
    @workflow(name="x-careful")
    async def careful() -> list[Any]:
        try:
            await charge("visa", amount=7)
        except ActionFailed as error:
            return [isinstance(error, Declined), error.type, str(error), error.details, error.attempts]
        raise AssertionError

    run = await world.start(careful)
    await world.app.external.fail((await one(world)).token, "Declined", "no funds", retry=False, details={"code": 51})
    assert await run.result() == [True, "Declined", "no funds", {"code": 51}, 1]


@pytest.mark.parametrize("name", ["Declined", "Permanent"])
async def test_the_name_of_an_error_tells_its_kind(world: World, name: str) -> None:
    @workflow(name="x-fatal")
    async def fatal() -> str:
        try:
            await other.options(retries=5)()
        except ActionFailed as error:
            return error.kind
        raise AssertionError

    run = await world.start(fatal)
    [task] = await ask(world, "x-other")
    await world.app.external.fail(task.token, name)
    assert await run.result() == "permanent"


async def test_a_result_that_does_not_fit_is_refused_and_the_task_stays(world: World) -> None:
    run = await world.start(buy, "visa")
    task = await one(world)
    with pytest.raises(InvalidValue, match="x.charge returned something else than it declares"):
        await world.app.external.complete(task.token, {"id": "r1", "amount": "much"})
    with pytest.raises(LimitReached):
        await world.app.external.complete(task.token, {"id": "r" * 2_000_000, "amount": 1})
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await run.result() == "r1 7"


async def test_an_attempt_that_takes_too_long_has_failed(world: World) -> None:
    run = await world.start(quickly, id="q")
    task = await one(world, lease="1m")
    assert task.deadline is not None and (task.deadline - world.now()).total_seconds() <= 10
    for _ in range(3):
        await world.advance("3s")
        await world.app.external.heartbeat(task.token)
    await world.advance("2s")
    with pytest.raises(TaskLost):
        await world.app.external.heartbeat(task.token)
    again = await one(world)
    assert again.attempt == 2
    attempted = [
        event for row in await world.rows("default/q.1") if isinstance(event := ev.read(row), ev.ActionAttempted)
    ]
    assert [(one.error.message, one.free) for one in attempted] == [("x.quick took longer than 10s", 0)]
    await world.app.external.complete(again.token, 1)
    assert await run.result() == 1


async def test_silence_is_a_failure_where_heartbeats_were_promised(world: World) -> None:
    @workflow(name="x-silent")
    async def silent() -> str:
        try:
            return str(await steady())
        except TimeoutError as error:
            return str(error)

    run = await world.start(silent)
    for _ in range(2):
        assert (await one(world, lease="1m")).attempt
    assert await ask(world, wait="10s") == []
    assert await run.result() == "x.steady gave no heartbeat for 5s"


@pytest.mark.parametrize(
    ("declared", "said"), [(steady, "gave no heartbeat for 5s"), (quick, "took longer than 10s"), (once, "may have")]
)
async def test_limits_of_time_hold_also_when_nobody_asks_any_more(world: World, declared: Any, said: str) -> None:
    @workflow(name="x-limited")
    async def limited() -> str:
        try:
            return str(await declared.options(retries=0)())
        except ActionFailed as error:
            return str(error)

    run = await world.start(limited)
    await one(world, lease="30s")
    await world.advance("4s")
    assert said in await run.result(timeout="1m")


async def test_a_task_without_limits_waits_for_the_next_who_asks(world: World) -> None:
    await world.start(buy, "visa", id="b")
    await one(world, lease="5s")
    await world.advance("10m")
    assert await types(world, "b.1") == ["Started", "ActionStarted"]
    task = await one(world)
    assert task.attempt == 2
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})


async def test_at_most_once_is_not_given_out_again(world: World) -> None:
    @workflow(name="x-unknown")
    async def unknown() -> str:
        try:
            return str(await once())
        except ActionFailed as error:
            return error.type

    run = await world.start(unknown)
    await one(world, lease="5s")
    assert await ask(world, wait="10s") == []
    assert await run.result() == "Unknown"


async def test_a_task_that_takes_its_workers_down_waits_for_a_person(world: World) -> None:
    await world.start(buy, "visa", id="b")
    for number in range(5):
        assert (await one(world, lease="5s")).attempt == number + 1
    assert await ask(world, wait="10s") == []
    inner = world.app.get("b.1")
    assert await inner.status() == "stuck"
    await world.app.redrive("b.1")
    task = await one(world, wait="10s")
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await world.app.get("b").result() == "r1 7"


async def test_a_heartbeat_tells_that_the_workflow_no_longer_wants_it(world: World) -> None:
    run = await world.start(buy, "visa", id="b")
    task = await one(world)
    await run.cancel("enough")
    await run.until("cancelled")
    assert (await world.app.external.heartbeat(task.token)).cancelled
    assert await world.app.get("b.1").status() == "cancelled"
    with pytest.raises(TaskLost):
        await world.app.external.complete(task.token, {"id": "r1", "amount": 7})


async def test_a_result_that_comes_after_the_cancel_is_dropped(world: World) -> None:
    run = await world.start(buy, "visa", id="b")
    task = await one(world)
    await run.cancel("enough")
    await run.until("cancelled")
    with pytest.raises(TaskLost):
        await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await world.app.get("b.1").status() == "cancelled"


async def test_a_task_that_is_cancelled_before_it_is_given_out_is_never_given_out(world: World) -> None:
    run = await world.start(buy, "visa", id="b")
    await world.settle()
    await run.cancel("enough")
    await run.until("cancelled")
    assert await ask(world, wait="10s") == []
    assert await world.app.get("b.1").status() == "cancelled"


async def test_a_paused_workflow_gives_nothing_out_and_takes_what_was(world: World) -> None:
    run = await world.start(buy, "visa", id="b")
    task = await one(world)
    await run.pause(reason="lunch")
    await run.until("paused")
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    other = await world.start(buy, "visa", id="c")
    await world.settle()
    await other.pause(reason="lunch")
    await other.until("paused")
    assert await ask(world, wait="10s") == []
    await run.resume()
    await other.resume()
    [task] = await ask(world)
    assert task.execution == "c"
    await world.app.external.complete(task.token, {"id": "r2", "amount": 7})
    assert await run.result() == "r1 7" and await other.result() == "r2 7"


async def test_a_tenant_sees_only_its_own(world: World) -> None:
    run = await world.app.start(buy, "visa", tenant="mill")
    assert await ask(world, wait="10s") == []
    [task] = await ask(world, tenant="mill")
    for said in ("heartbeat", "complete"):
        with pytest.raises(TaskNotFound):
            await getattr(world.app.external, said)(task.token)
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7}, tenant="mill")
    assert await run.result() == "r1 7"


async def test_a_token_cannot_be_made_up(world: World) -> None:
    run = await world.start(buy, "visa", id="b")
    task = await one(world, worker="w")
    ticket = read_ticket(task.token)
    assert ticket is not None and ticket.secret not in ((await world.app.get("b.1").head()).holder or "")
    for wrong in ("", "nonsense", "é", "a" * 5000, task.token[:-9]):
        with pytest.raises(TaskNotFound):
            await world.app.external.complete(wrong, {"id": "r1", "amount": 7})
    for key, secret in (("default/b", ticket.secret), ("default/nobody", ticket.secret)):
        with pytest.raises(TaskNotFound):
            await world.app.external.complete(type(ticket)(key, secret, "w", 1).token())
    with pytest.raises(TaskLost):
        await world.app.external.complete(type(ticket)(ticket.key, "guess", "w", 1).token())
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await run.result() == "r1 7"


async def test_a_token_cannot_ask_for_an_endless_lease(world: World) -> None:
    await world.start(buy, "visa")
    task = await one(world)
    ticket = read_ticket(task.token)
    assert ticket is not None
    beat = await world.app.external.heartbeat(type(ticket)(ticket.key, ticket.secret, "", 10**30).token())
    assert beat.until is not None and (beat.until - world.now()).total_seconds() <= 3600
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})


async def test_who_is_overtaken_between_two_looks_writes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.start(buy, "visa", id="b")
    lost = await one(world, lease="5s")
    before = await world.app.get("b.1").head()
    task = await one(world)

    async def stale(key: str) -> Any:
        return before

    with monkeypatch.context() as patched:
        patched.setattr(world.app.store, "head", stale)
        for said, what in (("heartbeat", {"page": 1}), ("complete", {"id": "late", "amount": 1}), ("fail", "Late")):
            with pytest.raises(TaskLost):
                await getattr(world.app.external, said)(lost.token, what)
    assert "ActionProgressed" not in await types(world, "b.1")
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await world.app.get("b").result() == "r1 7"


async def test_mail_that_comes_with_the_answer_is_folded_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.start(buy, "visa", id="b")
    task = await one(world)
    await world.app.get("b.1").pause(reason="lunch")
    mail, looks = world.app.store.mail, [0]

    async def late(keys: Any) -> Any:
        looks[0] += 1
        return {key: [] for key in keys} if looks[0] == 1 else await mail(keys)

    monkeypatch.setattr(world.app.store, "mail", late)
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert looks == [2] and await world.app.get("b").result() == "r1 7"
    assert (await world.app.get("b.1").head()).mail == 0


async def test_a_store_that_fails_while_a_task_is_given_out_gets_it_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(buy, "visa", id="b")
    await world.settle()

    async def away(*args: Any) -> Any:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(world.app.store, "commit", away)
        with pytest.raises(StoreUnavailable):
            await one(world)
    began = world.now()
    task = await one(world)
    assert task.attempt == 1 and (world.now() - began).total_seconds() < 6
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})


async def test_an_answer_that_may_have_been_written_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await world.start(buy, "visa", id="b")
    task = await one(world)
    commit = world.app.store.commit

    async def unknown(*args: Any) -> Any:
        await commit(*args)
        raise OutcomeUnknown("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(world.app.store, "commit", unknown)
        with pytest.raises(OutcomeUnknown):
            await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    with pytest.raises(TaskLost, match="it has ended"):
        await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await run.result() == "r1 7"


async def test_a_published_graph_may_name_an_external_action(world: World) -> None:
    bought = body(
        "x-graph",
        {"start": "trigger", "pay": ("action", {"action": "x.charge", "with": {"card": "visa", "amount": 7}})},
        "start > pay",
    )
    await world.app.definitions.publish(bought)
    run = await world.app.start("x-graph")
    task = await one(world)
    assert (task.action, task.args, task.kwargs) == ("x.charge", ["visa"], {"amount": 7})
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})
    assert await run.result() == {"id": "r1", "amount": 7}


async def test_a_worker_without_the_declaration_sends_it_to_the_right_place(world: World) -> None:
    bound = bind(charge)
    assert bound.external and Absent(bound).how.external
    assert not bind(local).external and "external" not in msgspec.to_builtins(bind(local))


async def test_who_has_left_is_given_nothing(world: World) -> None:
    await world.start(buy, "visa")
    await world.settle()

    async def gone() -> bool:
        return False

    assert await ask(world, listens=gone) == []
    task = await one(world)
    assert task.attempt == 1
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})


async def test_only_the_actions_that_were_asked_for_are_given(world: World) -> None:
    await world.start(buy, "visa", id="b")
    run = await world.start(quickly, id="q")
    await world.settle()
    task = await one(world, actions=["x.quick"], limit=5)
    assert task.action == "x.quick"
    await world.app.external.complete(task.token, 1)
    assert await run.result() == 1
    await world.app.external.complete((await one(world)).token, {"id": "r1", "amount": 7})


async def test_what_cannot_be_asked_for_is_refused(world: World) -> None:
    wrong: list[tuple[str, dict[str, Any], type[Exception], str]] = [
        ("nowhere", {}, NotRegistered, "no external action of queue 'nowhere'"),
        ("x-node", {"actions": ["x.other"]}, NotRegistered, "no external action x.other of queue 'x-node'"),
        ("x-node", {"limit": 0}, UsageError, "limit is from 1 to 100"),
        ("x-node", {"lease": "10ms"}, UsageError, "from one second to one hour"),
        ("x-node", {"worker": "a\nb"}, UsageError, "name of a worker"),
    ]
    for queue, more, kind, text in wrong:
        with pytest.raises(kind, match=text):
            await ask(world, queue, **more)


async def test_no_worker_of_ours_runs_it(world: World) -> None:
    run = await world.start(buy, "visa", id="b")
    await world.advance("1m")
    worker = world.add_worker(queues=["x-node", f"{EXTERNAL}default/x-node"])
    await world.advance("1m")
    assert await types(world, "b.1") == ["Started"] and registry.find("action:x.charge@1") is None
    await worker.shut_down()
    await world.app.external.complete((await one(world)).token, {"id": "r1", "amount": 7})
    assert await run.result() == "r1 7"


async def test_the_hold_of_a_task_stands_while_its_worker_lives(world: World) -> None:
    await world.start(buy, "visa", id="b")
    task = await one(world)
    [answer] = await world.store.hold(["default/b.1"], "somebody", 1_000_000)
    assert isinstance(answer, Busy)
    await world.app.external.complete(task.token, {"id": "r1", "amount": 7})


def test_a_declaration_without_a_queue_is_refused() -> None:
    with pytest.raises(UsageError, match="give it a queue="):

        @action(external=True)
        async def nowhere() -> None: ...


@pytest.mark.parametrize("option", [{"process": True}, {"concurrency": 3}, {"transactional": True}])
def test_options_for_functions_that_run_here_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="leave them out|async"):

        @action(external=True, queue="q", **option)
        async def declared() -> None: ...


def test_outside_of_a_workflow_it_cannot_be_called() -> None:
    with pytest.raises(UsageError, match="run by external workers only"):
        charge("visa", amount=7)
