"""The verbs of each facade against a real server: that they do what they say, and the error that says why not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Struct

from perdure import (
    Client,
    CloudEvent,
    DefinitionConflict,
    DefinitionInvalid,
    DefinitionNotFound,
    EventConflict,
    EventNotFound,
    EventRefused,
    ExecutionExists,
    ExecutionNotFound,
    FormInvalid,
    HookSend,
    HookStart,
    InvalidValue,
    Listen,
    MigrationRefused,
    NewEvent,
    On,
    Retry,
    action,
    event,
    person,
    role,
    workflow,
)
from perdure.client import RemoteRun
from perdure.core import cloudevents
from perdure.errors import (
    HookNotFound,
    KeyNotFound,
    NotAllowed,
    OutcomeUnknown,
    PerdureError,
    RequestRefused,
    TaskLost,
    TaskNotFound,
    UsageError,
)
from perdure.http.api import ALL
from perdure.http.audit import NOTED, act_of
from tests.client.served import Served, run
from tests.client.test_client import Flaky


class Approval(Struct):
    yes: bool


@workflow(name="verbs-approve")
async def approve(amount: int) -> bool:
    return (await person("approve", form=Approval, assign=["ann", role("heads")], data={"amount": amount})).yes


@workflow(name="verbs-wait", events={"paid": int})
async def waiting(stage: str = "new") -> int:
    workflow.publish(stage=stage)
    return await event("paid", int)


@workflow(
    name="verbs-shipment",
    listens=[Listen("verbs.paid", event=".data.order", own=".[0].id")],
    starts_on=[On("verbs.ordered", input=".data")],
)
async def shipment(order: dict[str, Any]) -> Any:
    return await event("verbs.paid")


@workflow(name="verbs-fails")
async def fails() -> None:
    raise ValueError("as always")


@workflow(name="verbs-hangs")
async def hangs() -> None:
    await asyncio.get_running_loop().create_future()


@action(name="verbs.charge", external=True, queue="verbs-node", retries=Retry(attempts=2, first="10ms"))
async def charge(card: str) -> int: ...  # type: ignore[empty-body]


@workflow(name="verbs-buy")
async def buy(card: str) -> int:
    return await charge(card)


SHUT = {"on": {"push": "open"}}
DOOR = {"machine": "verbs-door", "initial": "shut", "states": {"shut": SHUT, "open": {"final": True}}}
PORTAL = {**DOOR, "states": {"shut": SHUT, "open": {"on": {"pull": "gone"}}, "gone": {"final": True}}}
OTHER = {"machine": "verbs-door", "initial": "new", "states": {"new": {"on": {"a": "old"}}, "old": {"final": True}}}


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    while not await look():
        await asyncio.sleep(0.02)


# Tasks for people.


def test_a_task_is_found_claimed_given_back_passed_on_and_completed() -> None:
    async def main(place: Served, ann: Client) -> None:
        bob = await place.client("acme:bob:operator,heads")
        waits = await ann.start(approve, 7, id="a")
        await waits.until("waiting", timeout="10s")
        [task] = (await ann.tasks.list(name="approve", assignee="ann", execution="a")).tasks
        assert [one.id for one in (await bob.tasks.mine(status="open")).tasks] == [task.id]
        assert (await ann.tasks.get(task.id)).data == {"amount": 7}
        assert (await ann.tasks.claim(task.id)).claimed_by == "ann"
        with pytest.raises(EventRefused):
            await bob.tasks.claim(task.id)
        assert (await ann.tasks.release(task.id, wait=10)).status == "open"
        assert (await ann.tasks.assign(task.id, [role("heads")])).roles == ("heads",)
        with pytest.raises(FormInvalid) as caught:
            await bob.tasks.complete(task.id, {"yes": "perhaps"})
        assert caught.value.problems[0].where
        assert (await bob.tasks.complete(task.id, {"yes": True})).completed_by == "bob"
        assert await waits.result("10s") is True

    run(main)


def test_what_is_asked_of_a_task_has_the_id_that_it_was_given() -> None:
    async def main(place: Served, ann: Client) -> None:
        waits = await ann.start(approve, 7, id="a")
        await waits.until("waiting", timeout="10s")
        [task] = (await ann.tasks.list()).tasks
        await ann.tasks.claim(task.id, event_id="c1")
        assert (await ann.get(task.id).event("c1")).status == "completed"
        assert (await ann.tasks.claim(task.id, event_id="c1")).claimed_by == "ann"
        with pytest.raises(EventConflict):
            await ann.tasks.release(task.id, event_id="c1")

    run(main)


def test_without_a_verdict_in_time_a_task_says_so() -> None:
    async def main(place: Served, ann: Client) -> None:
        async with place.app.working():
            waits = await ann.start(approve, 7, id="a")
            await waits.until("waiting", timeout="10s")
            [task] = (await ann.tasks.list()).tasks
        with pytest.raises(TimeoutError, match="durable and will be judged"):
            await ann.tasks.claim(task.id, wait="50ms")

    run(main, working=False)


# Schedules.


def test_a_schedule_is_made_changed_triggered_and_ended() -> None:
    async def main(place: Served, ann: Client) -> None:
        schedules = ann.schedules
        start = datetime.now(UTC) + timedelta(days=1)
        made = await schedules.create(
            "nightly", waiting, ["later"], every=3600, start=start, jitter=timedelta(seconds=5)
        )
        assert (made.workflow, made.args, made.every, made.jitter) == ("verbs-wait", ["later"], "1h", "5s")
        assert (
            await schedules.create("nightly", "verbs-wait", ["later"], every="1h", start=start, jitter="5s")
        ) == made
        with pytest.raises(ExecutionExists):
            await schedules.create("nightly", waiting, every="2h")
        assert len(await schedules.next("nightly", 3)) == 3
        await schedules.update("nightly", workflow=waiting, args=["soon"], note="for ann")
        await schedules.pause("nightly")
        assert await schedules.trigger("nightly", id="t1") == await schedules.trigger("nightly", id="t1")
        assert await ann.get("nightly~t1").until("waiting", timeout="10s") == "waiting"
        shown = await schedules.get("nightly")
        assert (shown.args, shown.note, shown.paused, shown.started) == (["soon"], "for ann", True, 1)
        await schedules.resume("nightly")
        await schedules.delete("nightly")
        await until(lambda: _none(schedules.list()))
        assert [one.name for one in await schedules.list(ended=True)] == ["nightly"]
        with pytest.raises(ExecutionNotFound, match="nightly"):
            await schedules.get("nightly")

    run(main)


async def _none(listed: Awaitable[list[Any]]) -> bool:
    return not await listed


def test_the_end_of_a_schedule_is_changed_only_if_it_is_given() -> None:
    async def main(place: Served, ann: Client) -> None:
        end = datetime.now(UTC) + timedelta(days=9)
        await ann.schedules.create("nightly", "verbs-wait", cron="0 3 * * *", end=end)
        await ann.schedules.update("nightly", note="x")
        await until(lambda: _shows(ann, note="x"))
        assert (await ann.schedules.get("nightly")).end == end
        await ann.schedules.update("nightly", end=None)
        await until(lambda: _shows(ann, end=None))

    run(main)


async def _shows(client: Client, **wanted: Any) -> bool:
    found = await client.schedules.get("nightly")
    return all(getattr(found, name) == value for name, value in wanted.items())


# Bulk operations.


def test_one_thing_is_done_to_many_executions() -> None:
    async def main(place: Served, ann: Client) -> None:
        for number in range(3):
            one = await ann.start(waiting, "old" if number else "new", id=f"w{number}")
            await one.until("waiting", timeout="10s")
        found = await ann.find(workflow="verbs-wait", stage="old")
        assert {one.id for one in found.executions} == {"w1", "w2"}
        assert [one.id for one in (await ann.find(published={"stage": "new"})).executions] == ["w0"]
        did = await ann.bulk.start("send", fields={"stage": "old"}, event="paid", payload=5, id="bulk-1")
        assert (
            await ann.bulk.start("send", fields={"stage": "old"}, event="paid", payload=5, id="bulk-1")
        ).id == did.id
        await did.result("20s")
        told = await ann.bulk.get("bulk-1")
        assert (told.found, told.done, told.by) == (2, 2, "ann")
        assert [one.id for one in await ann.bulk.list()] == ["bulk-1"]
        assert await ann.get("w1").result("10s") == 5
        with pytest.raises(UsageError, match="nothing is chosen"):
            await ann.bulk.start("cancel")
        with pytest.raises(ExecutionNotFound):
            await ann.bulk.get("w1")

    run(main)


# External tasks.


def test_an_external_task_is_polled_kept_completed_and_failed() -> None:
    async def main(place: Served, ann: Client) -> None:
        worker = (await place.client("acme:node:worker")).external
        assert await worker.poll("verbs-node", wait=0) == []
        bought = await ann.start(buy, "visa", id="b1")
        [task] = await worker.poll("verbs-node", actions=["verbs.charge"], wait=10, lease=timedelta(seconds=20))
        assert (task.action, task.args, task.attempt) == ("verbs.charge", ["visa"], 1)
        assert (await worker.heartbeat(task.token, {"page": 1})).cancelled is False
        with pytest.raises(InvalidValue):
            await worker.complete(task.token, "much")
        await worker.fail(task.token, "CardDeclined", "no funds", after=0.01)
        [again] = await worker.poll("verbs-node")
        assert (again.attempt, again.progress) == (2, {"page": 1})
        await worker.complete(again.token, 42)
        assert await bought.result("10s") == 42
        with pytest.raises(TaskLost):
            await worker.complete(again.token, 42)
        with pytest.raises(TaskNotFound):
            await worker.heartbeat("nothing")

    run(main)


# Events.


def test_what_became_of_an_event_is_told() -> None:
    async def main(place: Served, ann: Client) -> None:
        one = await ann.start(waiting, id="w1")
        sent = await one.send("paid", 3)
        assert await one.result("10s") == 3
        status = await one.event(sent)
        assert (status.id, status.name, status.status) == (sent, "paid", "completed")
        cloud = await one.cloudevent(sent)
        begun = await one.entry(1)
        assert (begun.type, (await one.cloudevent(1))["data"]["text"]) == ("Started", begun.text)
        with pytest.raises(EventNotFound):
            await one.entry(1000)
        assert (cloud["type"], cloud["data"], cloud["source"]) == ("paid", 3, "/tenants/acme/executions/w1")
        with pytest.raises(EventNotFound):
            await one.event("nothing")

    run(main)


def test_many_events_are_sent_at_once_and_each_is_answered() -> None:
    async def main(place: Served, ann: Client) -> None:
        one = await ann.start(waiting, id="w1")
        first, second, third = await one.send_all(
            [NewEvent("paid", 1, "e1"), NewEvent("paid", "x"), NewEvent("paid", 2)]
        )
        assert first == "e1" and isinstance(second, InvalidValue) and isinstance(third, str)
        assert await one.send_all([]) == []
        [again] = await ann.send_all("w1", [NewEvent("paid", 2, "e1")])
        assert isinstance(again, EventConflict) and again.key.endswith("w1")
        with pytest.raises(UsageError, match="CloudEvent"):
            await one.send_all([NewEvent("paid", 1, attributes={"source": "/shop"})])
        with pytest.raises(ExecutionNotFound):
            await ann.send_all("nobody", [NewEvent("paid", 1)])

    run(main)


def test_more_events_than_one_request_takes_go_in_several() -> None:
    async def main(place: Served, ann: Client) -> None:
        one = await ann.start(waiting, id="w1")
        sent = await one.send_all([NewEvent("paid", number, f"e{number}") for number in range(1_200)])
        assert sent == [f"e{number}" for number in range(1_200)]

    run(main, working=False)


def test_a_cloudevent_starts_and_wakes_whoever_listens() -> None:
    async def main(place: Served, ann: Client) -> None:
        now = datetime.now(UTC)
        ordered = CloudEvent("1", "/shop", "verbs.ordered", now, {"id": "o1"})
        routed = await ann.route(ordered)
        assert routed.heard and len(routed.started) == 1
        assert await ann.route(ordered) == routed
        paid = {"specversion": "1.0", "id": "2", "source": "/shop", "type": "verbs.paid", "data": {"order": "o1"}}
        other = {**paid, "id": "3", "type": "verbs.unheard"}
        woke, unheard = await ann.route_all([cloudevents.read(paid), cloudevents.read(other)])
        assert woke.woken == routed.started and not unheard.heard
        assert await ann.get(routed.started[0]).result("10s") == {"order": "o1"}
        assert await ann.route_all([]) == []
        with pytest.raises(InvalidValue, match="specversion"):
            await ann.route({"id": "1"})

    run(main)


# Definitions.


def test_an_execution_is_drawn_and_goes_on_with_another_version() -> None:
    async def main(place: Served, ann: Client) -> None:
        await ann.definitions.publish(DOOR)
        door = await ann.start("verbs-door", None, id="d1")
        await door.until("waiting", timeout="10s")
        assert (await door.diagram()).startswith("<svg")
        assert "stateDiagram" in await door.diagram("mermaid")
        await ann.definitions.publish(PORTAL)
        await door.migrate(2, timeout="20s")
        await door.migrate(2)
        assert (await door.state()).definition.endswith("verbs-door@2")
        with pytest.raises(DefinitionNotFound):
            await door.migrate(9)
        await ann.definitions.publish(OTHER)
        with pytest.raises(MigrationRefused) as caught:
            await door.migrate(3)
        assert caught.value.problems and caught.value.key.endswith("d1")

    run(main)


def test_a_wish_to_migrate_waits_for_a_worker() -> None:
    async def main(place: Served, ann: Client) -> None:
        await ann.definitions.publish(DOOR)
        async with place.app.working():
            door = await ann.start("verbs-door", None, id="d1")
            await door.until("waiting", timeout="10s")
        await ann.definitions.publish(PORTAL)
        with pytest.raises(TimeoutError):
            await door.migrate(2, timeout="300ms")
        # Two letters say the same now: the second one is refused, and yet all is well.
        again = asyncio.create_task(door.migrate(2, timeout="20s"))
        await until(lambda: _has_mail(door, 2))
        async with place.app.working():
            await again
        assert (await door.state()).definition.endswith("verbs-door@2")

    run(main, working=False)


async def _has_mail(run: RemoteRun[Any], count: int) -> bool:
    return (await run.head()).mail == count


def test_definitions_are_exported_with_all_versions() -> None:
    async def main(place: Served, ann: Client) -> None:
        definitions = ann.definitions
        await definitions.publish(DOOR)
        await definitions.publish(PORTAL)
        assert [one.version for one in await definitions.versions("verbs-door")] == [1, 2]
        assert await definitions.export() == await place.app.definitions.export(tenant="acme")
        assert await definitions.export(["verbs-door"]) == await definitions.export()
        assert "verbs.charge" in [one["name"] for one in await definitions.actions()]
        with pytest.raises(DefinitionNotFound):
            await definitions.versions("nothing")
        with pytest.raises(DefinitionNotFound):
            await definitions.export(["nothing"])

    run(main)


def test_definitions_are_imported_by_another_tenant() -> None:
    async def main(place: Served, ann: Client) -> None:
        await ann.definitions.publish(DOOR)
        await ann.definitions.publish(PORTAL)
        bundle, eve = await ann.definitions.export(), await place.client("globex:eve:author")
        would = await eve.definitions.import_(bundle, dry_run=True)
        assert await eve.definitions.list() == []
        assert await eve.definitions.import_(bundle) == would
        assert [(one.name, one.version, one.body) for one in would] == [
            ("verbs-door", 1, DOOR),
            ("verbs-door", 2, PORTAL),
        ]
        assert await eve.definitions.import_(bundle.encode()) == []
        with pytest.raises(InvalidValue, match="bundle"):
            await eve.definitions.import_("{}")
        await (await place.client("third:joe:author")).definitions.publish(OTHER)
        with pytest.raises(DefinitionConflict, match="nothing was imported"):
            await (await place.client("third:joe:author")).definitions.import_(bundle)
        with pytest.raises(NotAllowed):
            await (await place.client("third:vic:viewer")).definitions.import_(bundle)

    run(main)


def test_a_draft_is_kept_published_and_given_up() -> None:
    async def main(place: Served, ann: Client) -> None:
        definitions = ann.definitions
        kept = await definitions.draft({**DOOR, "initial": "nowhere"})
        assert await definitions.get("verbs-door", draft=True) == kept
        with pytest.raises(DefinitionInvalid):
            await definitions.publish_draft("verbs-door")
        await definitions.draft(DOOR)
        assert (await definitions.publish_draft("verbs-door", note="done")).version == 1
        await definitions.draft(PORTAL)
        await definitions.discard_draft("verbs-door")
        with pytest.raises(DefinitionNotFound):
            await definitions.publish_draft("verbs-door")
        told = [one.what for one in await definitions.history("verbs-door")]
        assert told == ["drafted", "drafted", "published", "drafted", "discarded"]

    run(main)


# Access.


def test_a_webhook_is_made_rotated_and_revoked() -> None:
    async def main(place: Served, ann: Client) -> None:
        hooks = ann.hooks
        made = await hooks.create("shop", HookStart("verbs-wait"), secret="secret://shop")
        assert (made.tenant, made.by, made.does) == ("acme", "ann", HookStart("verbs-wait"))
        await hooks.create("paid", HookSend("paid", ".order"), secret="secret://paid", kind="github")
        rotated = await hooks.rotate("shop", "secret://newer", overlap=timedelta(hours=1))
        assert (rotated.secret, rotated.former) == ("secret://newer", "secret://shop")
        assert (await hooks.revoke("shop")).active is False
        assert [one.name for one in await hooks.list()] == ["paid", "shop"]
        assert (await hooks.get("shop")).revoked_at is not None
        assert [one.what for one in await hooks.history("shop")] == ["created", "rotated", "revoked"]
        with pytest.raises(HookNotFound):
            await hooks.get("nothing")

    run(main)


def test_an_api_key_is_made_rotated_and_revoked() -> None:
    async def main(place: Served, ann: Client) -> None:
        keys = ann.keys
        made = await keys.create("ci", ["sender"], expires=timedelta(days=90))
        assert made.secret.startswith("pdk_") and made.key.expires_at is not None
        newer = await keys.rotate(made.key.id, overlap="1h")
        assert newer.secret != made.secret
        assert (await keys.revoke(made.key.id)).status == "revoked"
        assert [one.id for one in await keys.list()] == [made.key.id]
        assert (await keys.get(made.key.id)).name == "ci"
        assert [one.what for one in await keys.history(made.key.id)] == ["created", "rotated", "revoked"]
        with pytest.raises(KeyNotFound):
            await keys.revoke("nothing")
        with pytest.raises(NotAllowed):
            await (await place.client("acme:bob:viewer")).keys.list()

    run(main)


def test_an_observer_looks_through_the_same_verbs_and_sees_no_data() -> None:
    async def main(place: Served, ann: Client) -> None:
        await ann.schedules.create("daily", "verbs-wait", ["sales"], cron="0 9 * * *")
        one = await ann.start(waiting, "sales", id="w1")
        await one.until("waiting")
        await one.cancel("too many sales")
        await one.until("cancelled")
        obi = await place.client("acme:obi:observer")
        seen = obi.get("w1")
        assert await seen.status() == await one.status()
        assert (await seen.head()).result == "redacted"
        log = await seen.log()
        assert [entry.type for entry in log] == [entry.type for entry in await one.log()]
        assert "sales" in repr(await one.log()) and "sales" not in repr(log)
        assert (await seen.why()).reasons[0].text == "it has ended"
        assert [head.id for head in (await obi.find()).executions] == ["w1"]
        assert [daily.args for daily in await obi.schedules.list()] == [["redacted"]]
        assert (await obi.dead()).dead == [] and await obi.definitions.list() == []
        assert (await obi.stats()).total == 1 and await obi.workers() == await ann.workers()
        for refused in (seen.result(), seen.state(), seen.event("e1"), seen.cancel(), obi.find(published={"a": 1})):
            with pytest.raises(NotAllowed):
                await refused

    run(main)


def test_a_lost_answer_makes_no_second_key() -> None:
    async def main(place: Served, ann: Client) -> None:
        flaky = await place.client(transport=Flaky(1))
        with pytest.raises(OutcomeUnknown, match="look before you repeat it"):
            await flaky.keys.create("ci", ["sender"])
        assert len(await ann.keys.list()) == 1

    run(main, working=False)


def test_acts_are_in_the_audit() -> None:
    async def main(place: Served, ann: Client) -> None:
        one = await ann.start(waiting, id="w1")
        await one.pause(reason="lunch")
        await one.cancel("no more", timeout=timedelta(seconds=5))
        page = await ann.audit.find(actor="ann", target="w1", limit=1)
        assert [(act.act, act.reason) for act in page.acts] == [("executions.cancel", "no more")]
        assert [act.act async for act in ann.audit.all(actor="ann")] == ["executions.cancel", "executions.pause"]
        with pytest.raises(NotAllowed):
            await (await place.client("acme:bob:operator")).audit.find()

    run(main)


# Correlation ids and tags.


def test_every_verb_that_administers_says_why() -> None:
    why = "Lager räumen, 50 %"

    async def main(place: Served, ann: Client) -> None:
        one = await ann.start(waiting, id="w1")
        machine = {"machine": "verbs-why", "initial": "a", "states": {"a": {"on": {"go": "b"}}, "b": {"final": True}}}
        does, key = HookStart("verbs-wait"), (await ann.keys.create("ci", ["viewer"], reason=why)).key.id
        daily: dict[str, Any] = {"cron": "0 3 * * *", "reason": why}
        doing: list[Awaitable[object]] = [
            one.pause(reason=why),
            one.resume(reason=why),
            one.fork(at=1, reason=why),
            one.migrate(2, reason=why),
            one.cancel(why),
            one.retry(reason=why),
            ann.definitions.draft(machine, reason=why),
            ann.definitions.publish_draft("verbs-why", reason=why),
            ann.definitions.discard_draft("verbs-why", reason=why),
            ann.definitions.publish(machine, note="for readers", reason=why),
            ann.definitions.deprecate("verbs-why", 1, why),
            ann.definitions.restore("verbs-why", 1, reason=why),
            ann.tasks.assign("nobodys", "eve", reason=why),
            ann.schedules.create("daily", waiting, **daily),
            ann.schedules.update("daily", **daily),
            ann.schedules.pause("daily", reason=why),
            ann.schedules.resume("daily", reason=why),
            ann.schedules.trigger("daily", reason=why),
            ann.schedules.delete("daily", reason=why),
            ann.hooks.create("in", does, secret="secret://x", reason=why),
            ann.hooks.rotate("in", "secret://y", reason=why),
            ann.hooks.revoke("in", reason=why),
            ann.keys.rotate(key, reason=why),
            ann.keys.revoke(key, reason=why),
            ann.bulk.start("pause", workflow="none", reason=why),
            ann.redrive("x", reason=why),
            ann.purge("x", reason=why),
        ]
        for verb in doing:
            with suppress(PerdureError):  # that it was asked for is enough
                await verb
        bundle = await ann.definitions.export()
        await ann.definitions.import_(bundle, reason=why)
        acts = [act async for act in ann.audit.all()]
        assert [act.act for act in acts if act.reason != why] == []
        noted = {act_of(one) for one in ALL if one.method != "GET" and one.scope in NOTED and not one.harmless}
        assert noted == {act.act for act in acts}

    run(main)


def test_executions_are_found_by_what_they_are_about() -> None:
    async def main(place: Served, ann: Client) -> None:
        one = await ann.start(waiting, id="w1", correlation="order 7/ä&b", tags=["vip", "eu"])
        await ann.start(waiting, id="w2", tags=["eu"])
        head = await one.head()
        assert (head.correlation, head.tags) == ("order 7/ä&b", ("eu", "vip"))
        assert [each.id for each in (await ann.find(correlation="order 7/ä&b")).executions] == ["w1"]
        assert [each.id for each in (await ann.find(tag="eu")).executions] == ["w2", "w1"]
        assert [each.id for each in (await ann.find(tag=["eu", "vip"])).executions] == ["w1"]
        did = await ann.bulk.start("cancel", correlation="order 7/ä&b", tag="vip", dry_run=True)
        await did.result("20s")
        assert (await ann.bulk.get(did.id)).first == ["w1"]
        with pytest.raises(ExecutionExists):
            await ann.start(waiting, id="w1", correlation="order 8")
        with pytest.raises(UsageError, match="tags are a list"):
            await ann.start(waiting, tags="eu")

    run(main)


# The whole.


def test_the_whole_is_seen_at_a_glance() -> None:
    async def main(place: Served, ann: Client) -> None:
        one = await ann.start(waiting, id="w1")
        await one.until("waiting", timeout="10s")
        seen = await ann.stats(workflow="verbs-wait", before=datetime.now(UTC) + timedelta(hours=1))
        assert (seen.total, seen.by_status) == (1, {"waiting": 1})
        assert await ann.workers() == []
        quota = await ann.quota()
        assert (quota.suspended, quota.running.now, quota.running.most) == (False, 1, None)
        assert await ann.lock("a/printer") is None
        async with place.app.lock("a/printer", tenant="acme") as lock:
            held = await ann.lock("a/printer")
            assert held is not None and (held.name, held.fence) == ("a/printer", lock.fence)
            assert held.since is not None and held.since < held.until and held.age is not None and held.age >= 0
        assert "perdure" in await ann.metrics()
        with pytest.raises(RequestRefused):
            await ann.stats(workflow="verbs-wait", after=datetime(2030, 1, 1, tzinfo=UTC), before="soon")  # type: ignore[arg-type]

    run(main)


# What all of them keep.


def test_a_lost_answer_does_nothing_twice() -> None:
    async def main(place: Served, ann: Client) -> None:
        waits = await ann.start(approve, 7, id="a")
        await waits.until("waiting", timeout="10s")
        [task] = (await ann.tasks.list()).tasks
        await ann.schedules.create("yearly", waiting, every="365d")
        await (await place.client(transport=Flaky(1))).tasks.claim(task.id)
        await (await place.client(transport=Flaky(1))).tasks.complete(task.id, {"yes": True})
        started = await (await place.client(transport=Flaky(1))).schedules.trigger("yearly")
        await (await place.client(transport=Flaky(1))).bulk.start("pause", workflow="verbs-wait", dry_run=True)
        sent = await (await place.client(transport=Flaky(1))).send_all(started, [NewEvent("paid", 4)])
        assert await ann.get(started).result("10s") == 4
        assert await waits.result("10s") is True
        assert len((await ann.find(workflow="verbs-wait")).executions) == len(await ann.bulk.list()) == len(sent) == 1

    run(main)


def test_a_lost_answer_makes_no_second_copy() -> None:
    async def main(place: Served, ann: Client) -> None:
        done = await ann.start(fails, id="f")
        await done.until("failed", timeout="10s")
        retried = await (await place.client(transport=Flaky(1))).get("f").retry(reason="perhaps")
        forked = await (await place.client(transport=Flaky(1))).get("f").fork(at=1)
        assert {one.id for one in (await ann.find(workflow="verbs-fails")).executions} == {"f", retried.id, forked.id}

    run(main)


def test_a_lost_answer_redrives_what_is_stuck_once() -> None:
    async def main(place: Served, ann: Client) -> None:
        one = await ann.start(hangs, id="s")
        await one.until("stuck", timeout="10s")
        flaky = Flaky(1)
        again = await (await place.client(transport=flaky)).get("s").retry()
        assert (again.id, flaky.losses) == ("s", 0)
        await until(lambda: _is_stuck_again(one))
        assert [entry.type for entry in await one.log()].count("Redriven") == 1

    run(main)


async def _is_stuck_again(run: RemoteRun[Any]) -> bool:
    stuck = [entry.type for entry in await run.log()].count("Stuck") == 2
    return stuck and not (await run.head()).mail


@pytest.mark.parametrize("id", ["", ".", ".."])
def test_an_id_that_would_lead_to_another_route_is_refused(id: str) -> None:
    async def main() -> None:
        async with Client("http://127.0.0.1:9", patience=0.0) as client:
            with pytest.raises(InvalidValue, match="cannot be an id"):
                client.get(id)
            with pytest.raises(InvalidValue, match="cannot be an id"):
                await client.hooks.revoke(id)

    asyncio.run(main())


def test_an_id_with_slashes_stays_one_part_of_the_path() -> None:
    async def main(place: Served, ann: Client) -> None:
        made = await ann.keys.create("ci", ["sender"])
        with pytest.raises((RequestRefused, HookNotFound)):
            await ann.hooks.revoke(f"../keys/{made.key.id}/revoke")
        assert (await ann.keys.get(made.key.id)).status == "active"

    run(main, working=False)


def test_what_is_another_tenants_is_not_there() -> None:
    async def main(place: Served, ann: Client) -> None:
        await ann.start(waiting, id="w1")
        await ann.schedules.create("nightly", waiting, cron="0 3 * * *")
        eve = await place.client("evil:eve:admin")
        with pytest.raises(ExecutionNotFound):
            await eve.get("w1").send_all([NewEvent("paid", 1)])
        with pytest.raises(ExecutionNotFound):
            await eve.schedules.delete("nightly")
        assert (await eve.audit.find(actor="ann")).acts == []

    run(main, working=False)
