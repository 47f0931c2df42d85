"""The API on PostgreSQL, as the role of the application, which the policies of the tables hold for.

One process serves and another one works. Every resource is used once, as its own tenant and as a stranger, in the clear
and with a key ring.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from perdure import DirectoryRing, Listen, On, Perdure, action, event, person, workflow
from perdure.core import signing
from perdure.http.api import api
from perdure.http.auth import Authenticator
from perdure.http.keys import Keys
from perdure.stores.postgres import PostgresStore
from perdure.streams.memory import MemoryStream
from perdure.testing.proxy import Proxy
from tests.http.test_api import People
from tests.stores.test_postgres import application

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DOOR = {"machine": "pg-door", "initial": "shut", "states": {"shut": {"on": {"push": "open"}}, "open": {"final": True}}}


@workflow(name="pg-wait", events={"go": str})
async def wait(text: str) -> str:
    workflow.publish(text=text)
    return text + await event("go", str)


@workflow(name="pg-ask")
async def ask() -> Any:
    return await person("look", assign="ann")


@action(name="pg.charge", external=True, queue="pg-node")
async def charge(card: str) -> str: ...  # type: ignore[empty-body]


@workflow(name="pg-buy")
async def buy(card: str) -> str:
    return await charge(card)


@workflow(name="pg-ship", listens=[Listen("pg.paid", event=".data", own=".[0]")])
async def ship(order: str) -> Any:
    return await event("pg.paid")


@workflow(name="pg-begin", starts_on=[On("pg.ordered", input=".data")])
async def begin(order: str) -> str:
    return order


class Site:
    """Two tenants with a key each, before one API."""

    def __init__(self, app: Perdure, client: httpx.AsyncClient, secrets: dict[str, str]) -> None:
        self.app = app
        self.client = client
        self.secrets = secrets

    async def __call__(self, method: str, path: str, body: Any = None, who: str = "acme", status: int = 0) -> Any:
        headers = {"authorization": f"Bearer {self.secrets[who]}"}
        answer = await self.client.request(method, path, json=body, headers=headers)
        assert answer.status_code == status if status else answer.is_success, (method, path, answer.text)
        return answer.json() if answer.content else None

    async def until(self, path: str, looks: Callable[[Any], Any]) -> Any:
        while not looks(found := await self("GET", path)):
            await asyncio.sleep(0.02)
        return found

    async def start(self, workflow: str, id: str, *args: Any) -> None:
        await self("POST", "/v1/executions", {"workflow": workflow, "id": id, "args": args})

    async def result(self, id: str) -> Any:
        return (await self("GET", f"/v1/executions/{id}/result?wait=20s"))["result"]


@asynccontextmanager
async def site(url: str, folder: Path, keyring: str) -> AsyncIterator[Site]:
    (folder / "acme").mkdir()
    (folder / "acme" / "shop").write_text(SECRET)
    options: dict[str, Any] = {"secrets": str(folder), "keyring": keyring, "searchable": "text"}
    async with application(url) as granted, Perdure(granted, **options) as app, Perdure(granted, **options) as worker:
        keys = Keys(app)
        made = {tenant: await keys.create("ann", ["admin"], tenant=tenant) for tenant in ("acme", "evil")}
        there = httpx.ASGITransport(app=api(app, Authenticator(keys=keys)))
        async with (
            asyncio.timeout(60),
            worker.working(drain=0.1),
            httpx.AsyncClient(transport=there, base_url="http://test") as client,
        ):
            yield Site(app, client, {tenant: one.secret for tenant, one in made.items()})
            await keys.close()


async def executions_and_events(site: Site) -> None:
    await site.start("pg-wait", "w", "a")
    await site("POST", "/v1/executions/w/events", {"name": "go", "payload": "b", "id": "e1"})
    assert await site.result("w") == "ab"
    assert (await site("GET", "/v1/executions/w/events/e1"))["status"] == "completed"
    assert [one["id"] for one in (await site("GET", "/v1/executions?field.text=a"))["executions"]] == ["w"]
    await site("POST", "/v1/executions/w/fork", {"at": 1, "id": "w2"})
    sent = [{"name": "go", "payload": "c"}, {"name": "stop"}]
    first, second = await site("POST", "/v1/executions/w2/events/batch", sent)
    assert first["id"] and second["problem"]["status"] == 422
    assert await site.result("w2") == "ac"


async def routed(site: Site) -> None:
    await site.start("pg-ship", "s", "o1")
    cloud = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "pg.paid", "data": "o1"}
    assert (await site("POST", "/v1/events", cloud, who="evil"))["woken"] == []
    assert (await site("POST", "/v1/events", cloud))["woken"] == ["s"]
    assert await site.result("s") == "o1"
    [started] = (await site("POST", "/v1/events", {**cloud, "type": "pg.ordered"}))["started"]
    assert await site.result(started) == "o1"


async def tasks(site: Site) -> None:
    await site.start("pg-ask", "a")
    await site.until("/v1/tasks?mine=true", lambda found: found["tasks"])
    assert (await site("POST", "/v1/tasks/a.1/claim?wait=20s"))["claimed_by"] == "ann"
    assert len((await site("GET", "/v1/tasks?claimed_by=ann"))["tasks"]) == 1
    await site("POST", "/v1/tasks/a.1/complete?wait=20s", {"value": 7})
    assert await site.result("a") == 7


async def schedules(site: Site) -> None:
    await site("POST", "/v1/schedules", {"name": "n", "workflow": "pg-begin", "args": ["x"], "cron": "@daily"})
    started = (await site("POST", "/v1/schedules/n/trigger", {}))["execution"]
    await site.until("/v1/schedules/n", lambda found: found["started"] == 1)
    assert await site.result(started) == "x"
    assert len((await site("GET", "/v1/schedules"))["schedules"]) == 1
    assert len((await site("GET", "/v1/schedules/n/next?count=3"))["times"]) == 3


async def bulk(site: Site) -> None:
    for number in range(3):
        await site.start("pg-wait", f"many{number}", "z")
    await site.until("/v1/executions?status=waiting&workflow=pg-wait", lambda found: len(found["executions"]) == 3)
    body = {"act": "send", "event": "go", "payload": "!", "filter": {"fields": {"text": "z"}}}
    id = (await site("POST", "/v1/bulk", body))["id"]
    assert await site.result("many2") == "z!"
    assert (await site.until(f"/v1/bulk/{id}", lambda found: found["status"] == "completed"))["done"] == 3
    assert len((await site("GET", "/v1/bulk"))["operations"]) == 1


async def external(site: Site) -> None:
    await site.start("pg-buy", "b", "visa")
    [task] = (await site("POST", "/v1/external/poll", {"queue": "pg-node", "wait": "20s"}))["tasks"]
    await site("POST", "/v1/external/complete", {"token": task["token"]}, who="evil", status=404)
    assert (await site("POST", "/v1/external/heartbeat", {"token": task["token"]}))["cancelled"] is False
    await site("POST", "/v1/external/complete", {"token": task["token"], "result": "paid"})
    assert await site.result("b") == "paid"


async def hooks(site: Site) -> None:
    does = {"do": "start", "workflow": "pg-begin"}
    await site("POST", "/v1/hooks", {"name": "shop", "secret": "secret://shop", "does": does})
    data = json.dumps("hooked").encode()
    signed = signing.sign([SECRET], "m1", site.app.clock.now() // 1_000_000, data)
    taken = await site.client.post("/v1/hooks/acme/shop", content=data, headers=signed)
    assert taken.status_code == 202
    assert await site.result(taken.json()["execution"]) == "hooked"
    assert (await site("GET", "/v1/hooks/shop"))["history"][0]["what"] == "created"
    assert len((await site("GET", "/v1/hooks"))["hooks"]) == 1


async def definitions(site: Site) -> None:
    await site("POST", "/v1/definitions", {"definition": DOOR})
    await site("POST", "/v1/executions", {"workflow": "pg-door", "id": "d"})
    await site("POST", "/v1/executions/d/events", {"name": "push"})
    await site("GET", "/v1/executions/d/result?wait=20s")
    assert (await site("GET", "/v1/executions/d"))["status"] == "completed"
    assert len((await site("GET", "/v1/definitions/pg-door/history"))["changes"]) == 1


async def access_and_overview(site: Site) -> None:
    made = await site("POST", "/v1/keys", {"name": "ci", "roles": ["viewer"]})
    site.secrets["ci"] = made["secret"]
    await site("GET", "/v1/executions", who="ci")
    await site("GET", "/v1/keys", who="ci", status=403)
    assert len((await site("GET", "/v1/keys"))["keys"]) == 2
    assert (await site("GET", "/v1/audit?act=keys.create"))["acts"][0]["actor"] == "ann"
    assert (await site("GET", "/v1/stats"))["total"] > 0
    await site("GET", "/v1/workers")
    assert (await site("GET", "/v1/dead"))["dead"] == []
    assert (await site("GET", "/v1/locks?name=printer"))["held"] is False


async def a_stranger(site: Site) -> None:
    """Sees nothing of all that."""
    for path in (
        "executions/w",
        "executions/w/log",
        "executions/w/events/e1",
        "tasks/a.1",
        "schedules/n",
        "hooks/shop",
    ):
        await site("GET", f"/v1/{path}", who="evil", status=404)
    for path in ("executions", "tasks", "schedules", "bulk", "definitions", "hooks", "dead"):
        [found] = [one for one in (await site("GET", f"/v1/{path}", who="evil")).values() if isinstance(one, list)]
        assert found == [], path
    assert (await site("GET", "/v1/stats", who="evil"))["total"] == 0


STORY: list[Callable[[Site], Awaitable[None]]] = [
    executions_and_events,
    routed,
    tasks,
    schedules,
    bulk,
    external,
    hooks,
    definitions,
    access_and_overview,
    a_stranger,
]


@pytest.mark.parametrize("sealed", [False, True], ids=["clear", "sealed"])
def test_every_resource_works_as_the_application_and_a_stranger_sees_nothing(
    postgres: str, tmp_path: Path, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ring = str(tmp_path / "ring") if sealed else ""
    if sealed:
        DirectoryRing.create(ring)
    (tmp_path / "secrets").mkdir()

    async def main() -> None:
        async with site(postgres, tmp_path / "secrets", ring) as there:
            for part in STORY:
                await part(there)

    asyncio.run(main())
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_commit_that_nobody_knows_the_outcome_of_is_503_and_the_same_request_again_is_one_event(
    postgres: str, lost: Literal["request", "reply"]
) -> None:
    host, _, port = postgres.partition("@")[2].partition("/")[0].partition(":")
    key = {"authorization": "Bearer acme:ann:admin", "idempotency-key": "once"}

    async def main() -> None:
        async with asyncio.timeout(20), Proxy(host, int(port)) as wire:
            store = PostgresStore(postgres.replace(f"@{host}:{port}/", f"@127.0.0.1:{wire.port}/"))
            app = Perdure(store, stream=MemoryStream())  # so that no hint is on this wire
            there = httpx.ASGITransport(app=api(app, People()))
            async with app, httpx.AsyncClient(transport=there, base_url="http://test") as client:
                run = await app.start(wait, "a", id="w", tenant="acme")
                place, body = "/v1/executions/w/events", {"name": "go", "payload": "b"}
                await run.send("go", "before")  # the statement is prepared from here on
                wire.cut(lost)
                first = await client.post(place, json=body, headers=key)
                assert (first.status_code, first.headers.get("retry-after")) == (503, "1"), first.text
                assert first.json()["type"] == "urn:perdure:problem:outcome-unknown"
                assert (await run.head()).mail == (2 if lost == "reply" else 1)
                again = [await client.post(place, json=body, headers=key) for _ in range(2)]
                assert [one.status_code for one in again] == [202, 202]
                assert again[0].json() == again[1].json() and (await run.head()).mail == 2

    asyncio.run(main())
