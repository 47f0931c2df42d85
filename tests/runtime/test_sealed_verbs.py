"""Everything an application can do, with a key ring: it works as without one, and nothing readable is left behind.

Each scene puts the canary wherever people put what is theirs: into inputs, payloads, values that events are matched by,
names of people, forms, results. After it the bytes of the store are searched, and those of Redis.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import msgspec
import pytest

from perdure import (
    Callback,
    DirectoryRing,
    HookStart,
    Listen,
    On,
    Perdure,
    Retry,
    action,
    event,
    person,
    role,
    workflow,
)
from perdure.core import copies, signing
from perdure.core.behalf import noted_already
from perdure.errors import CallTaken, ExecutionFailed, KeyShredded, Unauthenticated, UsageError
from perdure.http.api import api
from perdure.http.auth import Authenticator, Open
from perdure.runtime.callers.sending import NewEvent
from tests.http.receiver import receiving
from tests.runtime.test_sealed import dumped_postgres, dumped_redis
from tests.stores.sealing import Ring

CANARY = "canary-9b71"
ADA, HEADS = f"ada {CANARY}", f"heads {CANARY}"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
Scene: TypeAlias = Callable[[Perdure], Awaitable[None]]


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_SHOP", SECRET)


@workflow(name="sv-ask")
async def ask(text: str) -> str:
    said: str = await person("look", form={"type": "string"}, title=text, assign=[ADA, role(HEADS)], data=text)
    return said


@workflow(name="sv-ship", listens=[Listen("sv.paid", event=".data.order", own=".[0]")])
async def ship(order: str) -> Any:
    return (await event("sv.paid"))["order"]


@workflow(name="sv-begin", starts_on=[On("sv.ordered", input=".data")])
async def begin(order: dict[str, str]) -> str:
    return order["order"]


@workflow(name="sv-wait", events={"more": str})
async def wait(text: str) -> str:
    return text + await event("more", str)


@workflow(name="sv-many", events={"more": str})
async def many(text: str) -> str:
    workflow.publish(text=text, colour=text)
    return text + await event("more", str)


@action(name="sv.charge", external=True, queue="sv-node", retries=Retry(attempts=3, first="10ms"))
async def charge(card: str) -> str: ...  # type: ignore[empty-body]


@workflow(name="sv-buy")
async def buy(card: str) -> str:
    return await charge(card)


broken = True


@workflow(name="sv-stuck")
async def stuck(text: str) -> str:
    if broken:
        await asyncio.get_running_loop().create_future()
    return text


@action(name="sv.fail")
async def fail(text: str) -> str:
    if broken:
        raise ValueError(text)
    return text


@workflow(name="sv-fails")
async def fails(text: str) -> str:
    return await fail(text)


def door(*more: str) -> dict[str, Any]:
    states: dict[str, Any] = {"shut": {"on": {"push": "open", **{name: name for name in more}}}}
    states |= {name: {"on": {"push": "open"}} for name in more}
    return {"machine": "sv-door", "initial": "shut", "states": {**states, "open": {"final": True}}}


def cloud(type: str, id: str = "1") -> dict[str, Any]:
    return {"specversion": "1.0", "id": id, "source": "/shop", "type": type, "data": {"order": CANARY}}


async def until(looks: Callable[[], Awaitable[Any]]) -> Any:
    while not (found := await looks()):
        await asyncio.sleep(0.02)
    return found


# The scenes.


async def tasks_for_people(app: Perdure) -> None:
    runs = [await app.start(ask, CANARY, id=f"ask{number}") for number in range(2)]
    await until(lambda: _tasks(app, 2))
    for found in (
        await app.tasks.mine(ADA),
        await app.tasks.mine("bob", [HEADS]),
        await app.tasks.list(assignee=ADA),
        await app.tasks.list(role=HEADS, name="look", status="open"),
    ):
        assert {(one.id, one.title, one.users) for one in found.tasks} == {
            ("ask0.1", CANARY, (ADA,)),
            ("ask1.1", CANARY, (ADA,)),
        }
    assert (await app.tasks.mine("bob")).tasks == []
    assert (await app.tasks.claim("ask0.1", by=ADA, wait="20s")).claimed_by == ADA
    assert [one.id for one in (await app.tasks.list(claimed_by=ADA)).tasks] == ["ask0.1"]
    assert [one.id for one in (await app.tasks.mine("bob", [HEADS])).tasks] == ["ask1.1"]
    assert (await app.tasks.get("ask0.1")).data == CANARY
    for run in runs:
        await app.tasks.complete(f"{run.id}.1", f"done {CANARY}", by=ADA, wait="20s")
        assert await run.result(20) == f"done {CANARY}"
    assert len((await app.tasks.mine(ADA, status="completed")).tasks) == 2


async def _tasks(app: Perdure, count: int) -> bool:
    return len((await app.tasks.list()).tasks) == count


async def routed_events(app: Perdure) -> None:
    run = await app.start(ship, CANARY, id="ship")
    await app.start(ship, "another", id="other")
    routed = await asyncio.gather(*(app.route(cloud("sv.paid")) for _ in range(50)))
    assert {tuple(one.woken) for one in routed} <= {("ship",), ()}  # it may have ended before the last of them
    assert await run.result(20) == CANARY
    assert [entry.type for entry in await run.log()].count("EventReceived") == 1
    [started] = (await app.route(cloud("sv.ordered"))).started
    assert (await app.route(cloud("sv.ordered"))).started == [started]
    assert await app.get(started).result(20) == CANARY


async def where_events_are(app: Perdure) -> None:
    run = await app.start(wait, CANARY, id="where")
    await run.until("waiting", timeout=20)
    with noted_already():  # a reason is also in the audit, which is in the clear
        await run.pause(reason=CANARY)
    await run.until("paused", timeout=20)
    await run.send("more", CANARY, id="e1")
    assert (await run.event("e1")).status in ("pending", "processing")
    assert b"canary" in bytes((await run.cloudevent("e1"))["data"])
    await run.resume()
    assert await run.result(20) == CANARY * 2
    assert (await run.event("e1")).status == "completed"
    again = await app.start(wait, CANARY, id="batch")
    answers = await again.send_all([NewEvent("more", CANARY, "a"), NewEvent("less", CANARY), NewEvent("more", 7)])
    assert answers[0] == "a" and all(isinstance(one, UsageError) for one in answers[1:])
    assert (await again.send_all([NewEvent("more", CANARY, "a")])) == ["a"]
    assert await again.result(20) == CANARY * 2


async def schedules(app: Perdure) -> None:
    for number in range(3):
        made = await app.schedules.create("often", wait, [f"{number} {CANARY}"], every="1s", overlap="all", note=CANARY)
        assert made.args == (await app.schedules.get("often")).args == [f"{number} {CANARY}"]
        await app.schedules.create("often", wait, [f"{number} {CANARY}"], every="1s", overlap="all", note=CANARY)
        if number == 0:
            await until(lambda: _fired(app))
            [one] = (await app.schedules.get("often")).recent[:1]
            assert await app.get(one.id).until("waiting", timeout=20)
        await app.schedules.delete("often")
        await until(lambda: _no_schedules(app))
    assert len(await app.schedules.list(ended=True)) == 3
    await app.schedules.create("daily", wait, [CANARY], cron="@daily")
    assert [one.name for one in await app.schedules.list()] == ["daily"]


async def _fired(app: Perdure) -> int:
    return (await app.schedules.get("often")).started


async def _no_schedules(app: Perdure) -> bool:
    return not await app.schedules.list()


async def bulk_operations(app: Perdure) -> None:
    for number in range(3):
        await (await app.start(many, CANARY, id=f"many{number}")).until("waiting", timeout=20)
    sends = await app.bulk.start("send", status="waiting", workflow="sv-many", event="more", payload=CANARY)
    await sends.result(20)
    assert await app.get("many1").result(20) == CANARY * 2
    told = await app.bulk.get(sends.id)
    assert (told.found, told.done, told.failed) == (3, 3, 0)
    by_field = await app.bulk.start("cancel", fields={"colour": CANARY})  # `searchable`
    await by_field.result(20)
    assert {one.id for one in await app.bulk.list()} == {sends.id, by_field.id}
    assert (await app.bulk.get(by_field.id)).found == 3
    with pytest.raises(UsageError, match="searchable"):
        await app.bulk.start("cancel", fields={"text": CANARY})


async def external_tasks(app: Perdure) -> None:
    run = await app.start(buy, CANARY, id="buy")
    [task] = await app.external.poll("sv-node", wait="20s")
    assert task.args == [CANARY]
    assert not (await app.external.heartbeat(task.token, {"at": CANARY})).cancelled
    await app.external.complete(task.token, f"paid {CANARY}")
    assert await run.result(20) == f"paid {CANARY}"


async def webhooks(app: Perdure) -> None:
    await app.hooks.create("shop", HookStart("sv-begin", input=".what"), secret="secret://shop")
    body = msgspec.json.encode({"what": {"order": CANARY}})
    said = signing.sign([SECRET], "msg_1", app.clock.now() // 1_000_000, body)
    receipt = await app.hooks.receive(app.tenant, "shop", said, body)
    with pytest.raises(CallTaken):
        await app.hooks.receive(app.tenant, "shop", said, body)
    anew = signing.sign([SECRET], "msg_1", app.clock.now() // 1_000_000 - 9, body)
    assert await app.hooks.receive(app.tenant, "shop", anew, body) == receipt
    assert await app.get(receipt.execution).result(20) == CANARY
    assert [one.name for one in await app.hooks.list()] == ["shop"]
    assert [one.what for one in await app.hooks.history("shop")] == ["created"]


async def callbacks(app: Perdure) -> None:
    async with receiving() as receiver:
        await app.start(begin, {"order": CANARY}, id="told", callback=Callback(receiver.url, "secret://shop"))
        [got] = await receiver.until(1)
        assert got.json["data"]["result"] == CANARY


async def dead_letters(app: Perdure) -> None:
    global broken
    runs = [await app.start(stuck, CANARY, id=f"dead{number}") for number in range(2)]
    for run in runs:
        await run.until("stuck", timeout=20)
    assert {one.id for one in (await app.dead(workflow="sv-stuck")).dead} == {"dead0", "dead1"}
    assert (await app.purge("dead1")).done == ["dead1"]
    broken = False
    with noted_already():
        assert (await app.redrive("dead0", reason=CANARY)).done == ["dead0"]
    assert await runs[0].result(20) == CANARY
    broken = True


async def forks_and_retries(app: Perdure) -> None:
    global broken
    run = await app.start(fails, CANARY, id="fails")
    with pytest.raises(ExecutionFailed, match=CANARY):
        await run.result(20)
    broken = False
    assert await (await run.retry()).result(20) == CANARY
    done = await app.start(begin, {"order": CANARY}, id="forked")
    assert await done.result(20) == await (await done.fork(at=1)).result(20) == CANARY
    broken = True


async def definitions(app: Perdure) -> None:
    with noted_already():
        first = await app.definitions.publish(door(), by=CANARY, note=CANARY)
    run = await app.start("sv-door", {"text": CANARY}, id="door")
    await run.until("waiting", timeout=20)
    second = await app.definitions.publish(door("ajar"))
    assert (first.version, second.version) == (1, 2)
    await run.migrate(2, timeout=20)
    await run.send("push", CANARY)
    await run.until("completed", timeout=20)
    assert [one.name for one in await app.definitions.list()] == ["sv-door"]
    assert CANARY in str(await app.definitions.history("sv-door"))
    assert await app.definitions.import_(await app.definitions.export()) == []


async def copies_of_logs(app: Perdure) -> None:
    run = await app.start(begin, {"order": CANARY}, id="copied")
    await run.result(20)
    followed = [entry.type async for entry in run.follow()]
    assert followed == [entry.type for entry in await run.log()]
    head = await run.head()
    document = copies.export(head.key, head.queue, [row async for row in run.rows()])
    queue, rows = copies.restore(document)
    adopted = await app.adopt(rows, "adopted", queue)
    assert await adopted.result(5) == CANARY


SCENES: list[Scene] = [
    tasks_for_people,
    routed_events,
    where_events_are,
    schedules,
    bulk_operations,
    external_tasks,
    webhooks,
    callbacks,
    dead_letters,
    forks_and_retries,
    definitions,
    copies_of_logs,
]


@pytest.fixture
def ring(tmp_path: Path) -> str:
    DirectoryRing.create(str(tmp_path / "ring"))
    return str(tmp_path / "ring")


@pytest.fixture(autouse=True)
def _begins_broken() -> None:
    global broken
    broken = True


OPTIONS: dict[str, Any] = {"searchable": "colour", "outbound_private": True}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_it_works_as_without_a_key_ring_and_the_canary_is_not_in_the_file(
    scene: Scene, tmp_path: Path, ring: str
) -> None:
    async def main() -> None:
        app = Perdure(f"sqlite:///{tmp_path / 's.db'}", keyring=ring, **OPTIONS)
        async with asyncio.timeout(60), app, app.working(drain=0.1):
            await scene(app)

    asyncio.run(main())
    assert CANARY.encode() not in b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())


def test_it_works_on_postgresql_and_redis_and_the_canary_is_in_neither(
    postgres: str, redis_url: str, ring: str
) -> None:
    async def main() -> None:
        options = {**OPTIONS, "stream": redis_url, "stream_prefix": f"verbs{os.getpid()}", "keyring": ring}
        worker = Perdure(postgres, **options)
        async with asyncio.timeout(120), Perdure(postgres, **options) as client, worker, worker.working(drain=0.1):
            for scene in SCENES:
                await scene(client)
            for found in (await dumped_postgres(postgres), await dumped_redis(redis_url)):
                assert CANARY.encode() not in found and CANARY.encode().hex().encode() not in found

    asyncio.run(main())


# After the keys of a tenant are gone.


async def lived_in(app: Perdure, tenant: str) -> None:
    """One of everything that a tenant can have."""
    await app.start(wait, CANARY, id="w", tenant=tenant)
    await app.start(ask, CANARY, id="a", tenant=tenant)
    await app.start(buy, CANARY, id="b", tenant=tenant)
    await app.start(ship, CANARY, id="s", tenant=tenant)
    await app.definitions.publish(door(), tenant=tenant)
    await app.schedules.create("daily", wait, [CANARY], cron="@daily", tenant=tenant)
    await app.hooks.create("shop", HookStart("sv-begin", input=".what"), secret="secret://shop", tenant=tenant)
    await app.bulk.start("pause", workflow="nothing", id="bulk", tenant=tenant)
    await app.send("w", "more", CANARY, event_id="e1", tenant=tenant)
    await until(lambda: _asked(app, tenant))


async def _asked(app: Perdure, tenant: str) -> bool:
    return bool((await app.tasks.list(tenant=tenant)).tasks)


#: Everything over HTTP that needs what a tenant has, or would add to it.
SHREDDED: list[tuple[str, str, Any]] = [
    ("GET", "/v1/executions/w", None),
    ("GET", "/v1/executions/w/log", None),
    ("GET", "/v1/executions/w/state", None),
    ("GET", "/v1/executions/w/why", None),
    ("GET", "/v1/executions/w/result", None),
    ("GET", "/v1/executions/w/stream", None),
    ("GET", "/v1/executions/w/events/e1", None),
    ("POST", "/v1/executions", {"workflow": "sv-wait", "args": ["x"]}),
    ("POST", "/v1/executions/w/events", {"name": "more", "payload": "x"}),
    ("POST", "/v1/executions/w/events/batch", [{"name": "more", "payload": "x"}]),
    ("POST", "/v1/executions/w/pause", {}),
    ("POST", "/v1/executions/w/cancel", {}),
    ("POST", "/v1/executions/w/retry", {}),
    ("POST", "/v1/executions/w/fork", {}),
    ("POST", "/v1/events", cloud("sv.paid")),
    ("POST", "/v1/events", cloud("sv.ordered")),
    ("GET", "/v1/tasks", None),
    ("GET", "/v1/tasks?mine=true", None),
    ("GET", "/v1/tasks/a.1", None),
    ("POST", "/v1/tasks/a.1/claim", {}),
    ("POST", "/v1/tasks/a.1/complete", {"value": "x"}),
    ("GET", "/v1/schedules", None),
    ("GET", "/v1/schedules/daily", None),
    ("GET", "/v1/schedules/daily/next", None),
    ("POST", "/v1/schedules", {"name": "new", "workflow": "sv-wait", "args": ["x"], "cron": "@daily"}),
    ("POST", "/v1/schedules/daily/trigger", {}),
    ("PATCH", "/v1/schedules/daily", {"note": "x"}),
    ("DELETE", "/v1/schedules/daily", None),
    ("GET", "/v1/bulk", None),
    ("GET", "/v1/bulk/bulk", None),
    ("POST", "/v1/bulk", {"act": "cancel", "all": True}),
    ("GET", "/v1/definitions", None),
    ("GET", "/v1/definitions/sv-door", None),
    ("POST", "/v1/definitions", {"definition": door()}),
    ("GET", "/v1/hooks", None),
    ("GET", "/v1/hooks/shop", None),
    ("DELETE", "/v1/hooks/shop", None),
]


def test_after_the_keys_are_destroyed_everything_is_gone_and_other_tenants_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        keys = Ring()
        app = Perdure("memory://", keyring=keys, secrets=str(tmp_path))
        async with asyncio.timeout(60), app, app.working(drain=0.1):
            for tenant in ("acme", "rival"):
                await lived_in(app, tenant)
            keys.shredded.add("acme")
            there = api(app, Authenticator(open=Open("acme", "ann")))
            transport = httpx.ASGITransport(there, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                told = {}
                for method, path, body in SHREDDED:
                    answer = await client.request(method, path, json=body)
                    told[f"{method} {path} {answer.text[:300]}"] = answer.status_code
                assert {what: status for what, status in told.items() if status != 410} == {}
                poll = await client.post("/v1/external/poll", json={"queue": "sv-node", "wait": "0s"})
                assert poll.json() == {"tasks": []}
            assert await app.get("w", "rival").result(20) == CANARY * 2
            assert (await app.tasks.complete("a.1", "x", by=ADA, tenant="rival")).status == "completed"
            assert (await app.route(cloud("sv.paid"), tenant="rival")).woken == ["s"]
            [task] = await app.external.poll("sv-node", wait="20s", tenant="rival")
            assert task.args == [CANARY]
            assert len(await app.schedules.list(tenant="rival")) == len(await app.hooks.list(tenant="rival")) == 1

    asyncio.run(main())


def test_a_stranger_does_not_learn_that_a_webhook_was_there_whose_keys_are_gone(tmp_path: Path) -> None:
    async def main() -> None:
        keys = Ring()
        (tmp_path / "acme").mkdir()
        (tmp_path / "acme" / "shop").write_text(SECRET)
        async with Perdure("memory://", keyring=keys, secrets=str(tmp_path)) as app:
            await app.hooks.create("shop", HookStart("sv-begin", input=".what"), secret="secret://shop", tenant="acme")
            body = msgspec.json.encode({"what": {"order": "x"}})
            said = signing.sign([SECRET], "msg_1", app.clock.now() // 1_000_000, body)
            await app.hooks.receive("acme", "shop", said, body)
            keys.shredded.add("acme")
            # Whoever has the secret may know, for as long as this process has the webhook in mind.
            with pytest.raises(KeyShredded):
                await app.hooks.receive("acme", "shop", said, body)
            with pytest.raises(Unauthenticated):
                await app.hooks.receive("acme", "shop", {}, body)

    asyncio.run(main())


def test_whoever_looks_after_an_external_task_leaves_it_when_its_keys_are_gone() -> None:
    async def main() -> None:
        keys = Ring()
        async with asyncio.timeout(20), Perdure("memory://", keyring=keys) as app, app.working(drain=0.1):
            await app.start(buy, CANARY, id="b", tenant="acme")
            [task] = await app.external.poll("sv-node", wait="10s", tenant="acme")
            await app.external.fail(task.token, "Busy", tenant="acme")
            [task] = await app.external.poll("sv-node", wait="10s", tenant="acme")
            keys.shredded.add("acme")
            await app.external._handing.overdue._follow("acme/b.1", "somebody", 0.0)
            with pytest.raises(KeyShredded):
                await app.external.complete(task.token, "x", tenant="acme")

    asyncio.run(main())


def test_an_execution_whose_seal_is_broken_does_not_stop_a_bulk_operation(tmp_path: Path, ring: str) -> None:
    async def main() -> None:
        place = tmp_path / "s.db"
        async with asyncio.timeout(30), Perdure(f"sqlite:///{place}", keyring=ring) as app, app.working(drain=0.1):
            for id in ("f1", "f2"):
                await (await app.start(fails, CANARY, id=id)).until("failed", timeout=10)
            with closing(sqlite3.connect(place)) as intruder, intruder:
                intruder.execute(
                    "update heads set result = (select result from heads where key = 'default/f2')"
                    " where key = 'default/f1'"
                )
            run = await app.bulk.start("retry", status="failed", workflow="sv-fails")
            await run.result(20)
            told = await app.bulk.get(run.id)
            assert (told.done, told.failed, [one.id for one in told.errors]) == (1, 1, ["f1"])
            assert "its seal is broken" in told.errors[0].reason

    asyncio.run(main())
