"""The HTTP API, in process over ASGI, with a worker beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from perdure import Perdure, action, event, workflow
from perdure.core.reasons import rests
from perdure.core.records import Commit, Head, Held, Park, id_of
from perdure.errors import Unauthenticated
from perdure.flows.registry import registry
from perdure.http import forms
from perdure.http.api import ALL, api
from perdure.http.caller import Caller, caller_of
from perdure.runtime.definitions.published import key_of_definition
from tests.http.every import body_of, path_of, place_of


@action(name="http.greet")
async def greet(name: str) -> str:
    return f"hello {name}"


@workflow(name="http-hello", events={"go": int})
async def hello(name: str) -> str:
    said = await greet(name)
    return f"{said} {await event('go', int)}"


@workflow(name="http-child")
async def child() -> int:
    return 7


@workflow(name="http-parent")
async def parent() -> int:
    workflow.publish(stage="born")
    return await child()


@workflow(name="http-fails")
async def fails() -> None:
    raise ValueError("as always")


@workflow(name="http-stuck")
async def stuck() -> None:
    await asyncio.get_running_loop().create_future()


MACHINE = {
    "machine": "http-door",
    "initial": "shut",
    "states": {
        "shut": {"on": {"push": {"to": "open", "roles": ["owner"]}}},
        "open": {"on": {"pull": "shut", "lock": {"to": "gone"}}},
        "gone": {"final": True},
    },
}


class People:
    """Credentials of this test: `Bearer TENANT:USER:ROLE,ROLE`."""

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        kind, _, said = headers.get("authorization", "").partition(" ")
        if kind != "Bearer" or said.count(":") != 2:
            raise Unauthenticated("this needs a credential")
        tenant, user, roles = said.split(":")
        return caller_of(tenant, user, roles.split(","), "test")


Test = Callable[["Door"], Awaitable[None]]


class Door:
    def __init__(self, app: Perdure, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client
        self.who = "acme:ann:admin,owner"

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        said = {"authorization": f"Bearer {self.who}", **{name.replace("_", "-"): one for name, one in headers.items()}}
        return await self.client.request(method, path, json=body, headers=said)

    async def start(self, workflow: str = "http-hello", id: str = "h1", **more: Any) -> httpx.Response:
        body = {"workflow": workflow, "id": id, **({"args": ["ann"]} if workflow == "http-hello" else {}), **more}
        return await self("POST", "/v1/executions", body)


@asynccontextmanager
async def opened(working: bool = True, **settings: Any) -> AsyncIterator[Door]:
    app = Perdure("memory://", **settings)
    transport = httpx.ASGITransport(app=api(app, People()))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        if not working:
            yield Door(app, client)
            return
        async with app.working():
            yield Door(app, client)


def served(test: Callable[[Door], Awaitable[None]], working: bool = True, **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), opened(working, **settings) as door:
            await test(door)

    asyncio.run(main())


def problem(answer: httpx.Response, status: int, name: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = answer.json()
    assert told["type"] == f"urn:perdure:problem:{name}" and told["status"] == status and told["detail"]
    return told


def test_an_execution_is_started_sent_to_and_asked_for_its_result() -> None:
    async def main(door: Door) -> None:
        started = await door.start()
        assert (started.status_code, started.json()) == (202, {"id": "h1"})
        assert started.headers["location"] == "/v1/executions/h1"
        sent = await door("POST", "/v1/executions/h1/events", {"name": "go", "payload": 7, "id": "e1"})
        assert (sent.status_code, sent.json()) == (202, {"id": "e1", "execution": "h1"})
        done = await door("GET", "/v1/executions/h1/result?wait=10s")
        assert done.json() == {"status": "completed", "result": "hello ann 7"}
        got = (await door("GET", "/v1/executions/h1")).json()
        assert (got["id"], got["workflow"], got["status"]) == ("h1", "http-hello", "completed")

    served(main)


def test_an_event_is_accepted_while_no_worker_lives() -> None:
    async def main(door: Door) -> None:
        await door.start()
        sent = await door("POST", "/v1/executions/h1/events", {"name": "go", "payload": 7})
        assert sent.status_code == 202
        async with door.app.working():
            assert (await door("GET", "/v1/executions/h1/result?wait=10s")).json()["result"] == "hello ann 7"

    served(main, working=False)


def test_a_submit_that_waits_answers_with_where_it_stands() -> None:
    async def main(door: Door) -> None:
        started = await door("POST", "/v1/executions?wait=10s", {"workflow": "http-hello", "args": ["ann"], "id": "h1"})
        assert (started.status_code, started.json()["status"]) == (200, "waiting")
        sent = await door("POST", "/v1/executions/h1/events?wait=10s", {"name": "go", "payload": 1})
        assert (sent.status_code, sent.json()["result"]) == (200, "hello ann 1")

    served(main)


def goes_on_at_rest(door: Door, event: str, payload: Any) -> None:
    """What is seen at rest has gone on, to its end, before it is told."""
    of = door.app.heads.of

    async def later(key: str) -> Head | None:
        head = await of(key)
        if head is not None and rests(head):
            door.app.heads.of = of  # type: ignore[method-assign]
            run = door.app.get(id_of(key), "acme")
            await run.send(event, payload)
            await run.result(10)
        return head

    door.app.heads.of = later  # type: ignore[method-assign]


def test_a_submit_that_waits_is_answered_with_the_rest_that_it_waited_for_and_not_with_what_came_after() -> None:
    async def main(door: Door) -> None:
        goes_on_at_rest(door, "go", 1)
        started = await door("POST", "/v1/executions?wait=10s", {"workflow": "http-hello", "args": ["ann"], "id": "h1"})
        assert (started.status_code, started.json()["status"]) == (200, "waiting")
        assert (await door("GET", "/v1/executions/h1")).json()["status"] == "completed"

        await door("POST", "/v1/definitions", {"definition": MACHINE})
        await door("POST", "/v1/executions?wait=10s", {"workflow": "http-door", "id": "d1"})
        goes_on_at_rest(door, "lock", None)
        pushed = await door("POST", "/v1/executions/d1/events?wait=10s", {"name": "push"})
        assert (pushed.status_code, pushed.json()["state"]) == (200, {"state": "open"})
        assert (await door("GET", "/v1/executions/d1")).json()["status"] == "completed"

    served(main)


def test_a_submit_that_waits_in_vain_is_answered_like_one_that_does_not() -> None:
    async def main(door: Door) -> None:
        await door.start()
        place = "/v1/executions/h1/events"
        later = await door("POST", f"{place}?wait=50ms", {"name": "go", "payload": 7, "id": "e1"})
        atonce = await door("POST", place, {"name": "go", "payload": 7, "id": "e1"})
        for answer in (later, atonce):
            assert (answer.status_code, answer.json()) == (202, {"id": "e1", "execution": "h1"})
            assert answer.headers["location"] == f"{place}/e1"
        async with door.app.working():
            done = await door("POST", f"{place}?wait=5s", {"name": "go", "payload": 7, "id": "e1"})
            assert (done.status_code, done.json()["result"]) == (200, "hello ann 7")
            assert done.headers["location"] == f"{place}/e1"

    served(main, working=False)


def test_an_idempotency_key_makes_one_event_of_many() -> None:
    async def main(door: Door) -> None:
        await door.start()
        send = {"name": "go", "payload": 7}
        answers = await asyncio.gather(
            *(door("POST", "/v1/executions/h1/events", send, idempotency_key="k1") for _ in range(50))
        )
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        await door("GET", "/v1/executions/h1/result?wait=10s")
        log = (await door("GET", "/v1/executions/h1/log?limit=1000")).json()["events"]
        assert [entry["type"] for entry in log].count("EventReceived") == 1
        other = await door("POST", "/v1/executions/h1/events", {"name": "go", "payload": 8}, idempotency_key="k1")
        problem(other, 422, "idempotency-key-reused")

    served(main)


def test_a_start_with_an_idempotency_key_is_one_start() -> None:
    async def main(door: Door) -> None:
        body = {"workflow": "http-hello", "args": ["ann"]}
        first, again = [await door("POST", "/v1/executions", body, idempotency_key="s1") for _ in range(2)]
        assert first.json() == again.json()
        problem(
            await door("POST", "/v1/executions", {**body, "args": ["bob"]}, idempotency_key="s1"),
            422,
            "idempotency-key-reused",
        )
        own = {**body, "id": "own"}
        for key in ("s1", "s2"):  # an id of one's own comes first
            assert (await door("POST", "/v1/executions", own, idempotency_key=key)).json() == {"id": "own"}
        other = await door("POST", "/v1/executions", {**own, "args": ["bob"]}, idempotency_key="s1")
        problem(other, 409, "execution-exists")

    served(main)


def test_one_idempotency_key_is_another_on_every_route_and_for_every_execution() -> None:
    async def main(door: Door) -> None:
        key = {"idempotency_key": "one"}
        body = {"workflow": "http-hello", "args": ["ann"]}
        first = (await door("POST", "/v1/executions", body, **key)).json()["id"]
        await door.start(id="h2")
        send = {"name": "go", "payload": 7}
        sent = [await door("POST", f"/v1/executions/{id}/events", send, **key) for id in (first, "h2")]
        assert {one.status_code for one in sent} == {202}
        assert len({first, *(one.json()["id"] for one in sent)}) == 3
        batch = await door("POST", "/v1/executions/h2/events/batch", [{"name": "go", "payload": 8}], **key)
        assert "problem" not in batch.json()[0]

    served(main, working=False)


def test_a_fork_and_a_retry_with_an_idempotency_key_make_one_copy_each() -> None:
    async def main(door: Door) -> None:
        await door.start("http-fails", "x1", args=[])
        await door("GET", "/v1/executions/x1/result?wait=10s")
        for what in ("fork", "retry"):
            path = f"/v1/executions/x1/{what}"
            first, again = [await door("POST", path, {}, idempotency_key="k1") for _ in range(2)]
            assert first.status_code == again.status_code == 202
            assert first.json() == again.json()
            other = await door("POST", path, {}, idempotency_key="k2")
            named = await door("POST", path, {"id": f"own-{what}"}, idempotency_key="k2")
            assert named.json() == {"id": f"own-{what}"} != other.json()
        reused = await door("POST", "/v1/executions/x1/fork", {"at": 1}, idempotency_key="k1")
        problem(reused, 422, "idempotency-key-reused")
        found = (await door("GET", "/v1/executions?workflow=http-fails")).json()["executions"]
        assert len(found) == 7

    served(main)


def test_executions_are_listed_page_by_page() -> None:
    async def main(door: Door) -> None:
        for number in range(5):
            await door.start(id=f"h{number}")
        first = (await door("GET", "/v1/executions?limit=3&workflow=http-hello")).json()
        rest = (await door("GET", f"/v1/executions?limit=3&workflow=http-hello&cursor={first['next']}")).json()
        found = [one["id"] for one in (*first["executions"], *rest["executions"])]
        assert sorted(found) == [f"h{number}" for number in range(5)] and rest["next"] is None

    served(main)


def test_the_log_is_read_page_by_page_and_the_state_at_a_point() -> None:
    async def main(door: Door) -> None:
        await door.start()
        await door("POST", "/v1/executions/h1/events?wait=10s", {"name": "go", "payload": 1})
        seen: list[int] = []
        more = ""
        while more is not None:
            part = (await door("GET", f"/v1/executions/h1/log?limit=2{more}")).json()
            seen += [entry["version"] for entry in part["events"]]
            more = f"&cursor={part['next']}" if part["next"] else None
        assert seen == list(range(1, len(seen) + 1)) and len(seen) == 4
        assert (await door("GET", "/v1/executions/h1/state?at=1")).json()["status"] == "open"
        now = (await door("GET", "/v1/executions/h1/state")).json()
        assert now["status"] == "completed" and set(now) == set(forms.StateOut.__struct_fields__)
        problem(await door("GET", "/v1/executions/h1/state?at=noon"), 400, "usage-error")

    served(main)


def test_an_execution_is_paused_resumed_cancelled_and_forked() -> None:
    async def main(door: Door) -> None:
        await door.start()
        run = door.app.get("h1", "acme")
        await run.until("waiting")
        assert (await door("POST", "/v1/executions/h1/pause", {"reason": "lunch"})).status_code == 202
        await run.until("paused")
        assert "paused" in (await door("GET", "/v1/executions/h1/why")).text
        await door("POST", "/v1/executions/h1/resume", {})
        await run.until("waiting")
        forked = (await door("POST", "/v1/executions/h1/fork", {"at": 1, "id": "f1"})).json()
        assert forked == {"id": "f1"}
        await door("POST", "/v1/executions/h1/cancel", {"reason": "enough"})
        await run.until("cancelled")
        assert (await door("GET", "/v1/executions/h1/result")).json()["status"] == "cancelled"
        again = (await door("POST", "/v1/executions/h1/retry", {})).json()["id"]
        assert again != "h1"
        log = [entry for entry in await run.log() if entry.type in ("Paused", "CancelRequested")]
        assert [entry.data["by"] for entry in log] == ["ann", "ann"]

    served(main)


def test_a_failed_execution_tells_its_error() -> None:
    async def main(door: Door) -> None:
        await door.start("http-fails", "x1", args=[])
        done = (await door("GET", "/v1/executions/x1/result?wait=10s")).json()
        assert (done["status"], done["error"]["type"], done["error"]["message"]) == (
            "failed",
            "ValueError",
            "as always",
        )

    served(main)


def test_definitions_are_published_and_run_and_drawn() -> None:
    async def main(door: Door) -> None:
        assert (await door("POST", "/v1/definitions/validate", {"definition": MACHINE})).json() == {"problems": []}
        made = await door("POST", "/v1/definitions", {"definition": MACHINE, "note": "first"})
        assert (made.status_code, made.json()["version"]) == (201, 1)
        assert (await door("POST", "/v1/executions", {"workflow": "http-door", "id": "d1"})).status_code == 202
        await door.app.get("d1", "acme").until("waiting")
        refused = await door("POST", "/v1/executions/d1/events?validate=now", {"name": "pull"})
        problem(refused, 409, "event-refused")
        pushed = await door("POST", "/v1/executions/d1/events?wait=10s", {"name": "push"})
        assert pushed.json()["state"] == {"state": "open"}
        drawn = await door("GET", "/v1/executions/d1/diagram")
        assert drawn.headers["content-type"] == "image/svg+xml" and drawn.text.startswith("<svg")
        said = await door("GET", "/v1/executions/d1/diagram?form=mermaid")
        assert said.headers["content-type"].startswith("text/plain") and "class b_open current" in said.text
        problem(await door("GET", "/v1/executions/d1/diagram?form=png"), 422, "invalid-request")
        [listed] = (await door("GET", "/v1/definitions")).json()["definitions"]
        assert (listed["name"], listed["newest"]) == ("http-door", 1)
        assert (await door("POST", "/v1/definitions/http-door/deprecate", {"version": 1})).status_code == 204
        assert (await door("GET", "/v1/definitions/http-door?version=1")).json()["deprecated"] is not None
        assert (await door("POST", "/v1/definitions/http-door/restore", {"version": 1})).status_code == 204
        changes = (await door("GET", "/v1/definitions/http-door/history")).json()["changes"]
        assert [one["what"] for one in changes] == ["published", "deprecated", "restored"]
        assert {one["by"] for one in changes} == {"ann"}
        bad = await door("POST", "/v1/definitions", {"definition": {**MACHINE, "initial": "nowhere"}})
        assert problem(bad, 422, "definition-invalid")["problems"][0]["where"] == "machine.initial"

    registry._workflows.pop(("http-door", 1), None)
    served(main)


def test_a_start_names_its_version_and_stays_on_it() -> None:
    async def main(door: Door) -> None:
        two = {**MACHINE, "initial": "open"}
        for definition in (MACHINE, two):
            await door("POST", "/v1/definitions", {"definition": definition})
        first = {"workflow": "http-door", "version": 1, "id": "d1", "correlation": "order-7"}
        assert (await door("POST", "/v1/executions?wait=10s", first)).json()["state"] == {"state": "shut"}
        newest = await door("POST", "/v1/executions?wait=10s", {"workflow": "http-door", "id": "d2"})
        assert newest.json()["state"] == {"state": "open"}
        await door("POST", "/v1/definitions", {"definition": {**MACHINE, "description": "a third"}})
        pushed = (await door("POST", "/v1/executions/d1/events?wait=10s", {"name": "push"})).json()
        assert (pushed["definition"], pushed["state"]) == ("published:http-door@1", {"state": "open"})
        [found] = (await door("GET", "/v1/executions?correlation=order-7")).json()["executions"]
        assert (found["id"], found["definition"]) == ("d1", "published:http-door@1")
        missing = await door("POST", "/v1/executions", {"workflow": "http-door", "version": 9})
        problem(missing, 404, "not-registered")

    served(main)


def test_an_input_that_does_not_fit_is_refused_and_nothing_is_started() -> None:
    async def main(door: Door) -> None:
        for args in ([7], [], ["ann", "bob"], [None]):
            body = {"workflow": "http-hello", "args": args, "id": "h1"}
            problem(await door("POST", "/v1/executions", body), 422, "invalid-value")
        problem(await door("GET", "/v1/executions/h1"), 404, "execution-not-found")

    served(main, working=False)


def test_every_filter_of_the_list_finds_what_it_says() -> None:
    async def main(door: Door) -> None:
        await door.start(id="a", correlation="order-7", tags=["eu"])
        await door("POST", "/v1/executions/a/events?wait=10s", {"name": "go", "payload": 1})
        await door.start("http-fails", "b", args=[])
        await door("GET", "/v1/executions/b/result?wait=10s")
        between = datetime.now(UTC).isoformat().replace("+", "%2B")
        await door.start("http-parent", "c", args=[])
        await door("GET", "/v1/executions/c/result?wait=10s")

        async def found(query: str) -> str:
            answer = await door("GET", f"/v1/executions?{query}")
            assert answer.status_code == 200, answer.text
            return " ".join(sorted(one["id"] for one in answer.json()["executions"]))

        assert await found("") == "a b c c.1"
        assert await found("status=failed") == "b"
        assert await found("status=completed&workflow=http-hello") == "a"
        assert await found("workflow=http-child") == "c.1"
        assert await found("parent=c") == "c.1"
        assert await found(f"before={between}") == "a b"
        assert await found(f"after={between}&workflow=http-parent") == "c"
        assert await found("correlation=order-7") == await found("tag=eu") == "a"
        assert await found("field.stage=born") == "c"
        assert await found("tag=eu&status=failed") == ""

    served(main)


def test_an_execution_is_held_until_a_time_and_goes_on_at_one() -> None:
    async def main(door: Door) -> None:
        run, soon = door.app.get("h1", "acme"), datetime.now(UTC) + timedelta(seconds=0.3)
        await door.start()
        await run.until("waiting")
        await door("POST", "/v1/executions/h1/pause", {"until": soon.isoformat(), "reason": "a nap"})
        assert (await door("GET", "/v1/executions/h1/why")).status_code == 200
        await run.until("waiting")
        assert datetime.now(UTC) >= soon
        await door("POST", "/v1/executions/h1/pause", {})
        await run.until("paused")
        later = datetime.now(UTC) + timedelta(seconds=0.3)
        await door("POST", "/v1/executions/h1/resume", {"at": later.isoformat()})
        await run.until("waiting")
        assert datetime.now(UTC) >= later
        resumed = [entry.at for entry in await run.log() if entry.type == "Resumed"]
        assert [at >= wanted for at, wanted in zip(resumed, (soon, later), strict=True)] == [True, True]
        naive = await door("POST", "/v1/executions/h1/pause", {"until": "2030-01-01T00:00:00"})
        problem(naive, 400, "usage-error")

    served(main)


def test_the_registry_of_actions_is_listed_with_schemas() -> None:
    async def main(door: Door) -> None:
        listed = (await door("GET", "/v1/actions")).json()["actions"]
        [found] = [one for one in listed if one["name"] == "http.greet"]
        assert (found["version"], found["parameters"]["properties"]) == (1, {"name": {"type": "string"}})
        assert found["result"] == {"type": "string"}
        assert [one for one in listed if one["name"].startswith("perdure.")] == []

    served(main, working=False)


def test_dead_letters_are_listed_redriven_and_purged() -> None:
    async def main(door: Door) -> None:
        await door.start("http-stuck", "s1", args=[])
        run = door.app.get("s1", "acme")
        await run.until("stuck")
        [one] = (await door("GET", "/v1/dead")).json()["dead"]
        assert (one["id"], one["cause"]) == ("s1", "never-wakes")
        assert (await door("POST", "/v1/dead/redrive", {"ids": ["s1"], "dry_run": True})).json()["done"] == ["s1"]
        assert (await door("POST", "/v1/dead/redrive", {"ids": ["s1"]})).json()["done"] == ["s1"]
        problem(await door("POST", "/v1/dead/redrive", {}), 400, "usage-error")
        while [one["tries"] for one in (await door("GET", "/v1/dead")).json()["dead"]] != [2]:
            await asyncio.sleep(0.01)
        door.who = "acme:ann:operator"
        problem(await door("POST", "/v1/dead/purge", {"ids": ["s1"]}), 403, "not-allowed")
        door.who = "acme:ann:admin"
        await door("POST", "/v1/dead/purge", {"ids": ["s1"], "reason": "enough"})
        await run.until("cancelled")

    served(main)


def test_health_follows_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.errors import StoreUnavailable
    from perdure.runtime.telemetry import health

    monkeypatch.setattr(health, "EVERY", 0.0)

    async def main(door: Door) -> None:
        assert (await door.client.get("/health/live")).json() == {"status": "live"}
        assert (await door.client.get("/health/ready")).json() == {"status": "ready"}

        async def away(key: str) -> None:
            raise StoreUnavailable("gone")

        with monkeypatch.context() as patch:
            patch.setattr(door.app.store, "head", away)
            assert (await door.client.get("/health/ready")).status_code == 503
            assert (await door.client.get("/health/live")).status_code == 200
        assert (await door.client.get("/health/ready")).json() == {"status": "ready"}

    served(main, working=False)


def test_the_roles_of_the_credential_go_with_the_event() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/definitions", {"definition": MACHINE})
        await door("POST", "/v1/executions", {"workflow": "http-door", "id": "d1"})
        door.who = "acme:eve:sender"
        problem(await door("POST", "/v1/executions/d1/events", {"name": "push"}), 409, "event-refused")
        door.who = "acme:oli:sender,owner"
        assert (await door("POST", "/v1/executions/d1/events", {"name": "push"})).status_code == 202

    served(main)


@pytest.mark.parametrize(
    ("path", "data", "kind", "status", "name"),
    [
        ("/v1/executions", b"{", "application/json", 400, "not-json"),
        ("/v1/executions", b"[1]", "application/json", 422, "invalid-request"),
        ("/v1/executions", b'{"workflow": "x", "more": 1}', "application/json", 422, "invalid-request"),
        ("/v1/executions", b'{"workflow": "nobody"}', "application/json", 404, "not-registered"),
        (
            "/v1/executions",
            b'{"workflow": "http-hello", "args": ["x"], "id": "a b"}',
            "application/json",
            400,
            "usage-error",
        ),
        (
            "/v1/executions",
            b'{"workflow": "http-hello", "args": [], "id": "x"}',
            "application/json",
            422,
            "invalid-value",
        ),
        ("/v1/executions", b"x" * 2_000_001, "application/json", 413, "too-large"),
        ("/v1/executions", b"[" * 100_000, "application/json", 400, "too-deep"),
        ("/v1/executions", b"{}", "text/plain", 415, "unsupported-media-type"),
        ("/v1/executions?wit=5s", b'{"workflow": "x"}', "application/json", 422, "invalid-request"),
        ("/v1/executions/h1/pause?x=1", b"{}", "application/json", 400, "unknown-parameter"),
        ("/v1/nowhere", b"{}", "application/json", 404, "no-such-route"),
        ("/v1/actions", b"{}", "application/json", 405, "method-not-allowed"),
    ],
    ids=lambda value: None if not isinstance(value, str) or "/" in value else value,
)
def test_bad_requests_are_problems(path: str, data: bytes, kind: str, status: int, name: str) -> None:
    async def main(door: Door) -> None:
        headers = {"authorization": "Bearer acme:ann:admin", "content-type": kind}
        problem(await door.client.post(path, content=data, headers=headers), status, name)

    served(main, working=False)


def test_a_broken_handler_tells_an_id_and_nothing_else(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    async def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the password is 12345")

    async def main(door: Door) -> None:
        monkeypatch.setattr(Perdure, "find", broken)
        told = problem(await door("GET", "/v1/executions"), 500, "internal")
        assert "12345" not in json.dumps(told)
        assert told["detail"].split()[-1] in caplog.text

    served(main, working=False)


def test_a_row_of_ours_that_cannot_be_read_is_no_mistake_of_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/definitions", {"definition": MACHINE})
        key = key_of_definition("acme", "http-door")
        store = door.app.store
        [held] = await store.hold([key], "vandal", 10_000_000)
        assert isinstance(held, Held)
        torn = Park("open", None, b'{"versions": "three"}')
        assert await store.commit([Commit(key, held.token, [], torn)], 0) == ["ok"]
        told = problem(await door("GET", "/v1/definitions/http-door"), 500, "internal")
        assert "versions" not in json.dumps(told)
        assert f"{told['detail'].split()[-1]}: a request failed" in caplog.text

    served(main, working=False)


def test_an_unknown_outcome_is_503_and_never_202(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.errors import OutcomeUnknown

    async def main(door: Door) -> None:
        await door.start()

        async def unknown(*args: Any) -> Any:
            raise OutcomeUnknown("the connection was lost")

        monkeypatch.setattr(door.app.store, "send", unknown)
        answer = await door("POST", "/v1/executions/h1/events", {"name": "go", "payload": 1})
        problem(answer, 503, "outcome-unknown")
        assert answer.headers["retry-after"] == "1"

    served(main, working=False)


def test_the_description_names_every_route_and_every_schema() -> None:
    async def main(door: Door) -> None:
        told = (await door.client.get("/openapi.json")).json()
        assert told["openapi"] == "3.1.0"
        paths = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
        assert paths == {(one.method, one.path) for one in ALL}
        refs = set(json.dumps(told).split('"#/components/schemas/')[1:])
        assert {ref.partition('"')[0] for ref in refs} <= set(told["components"]["schemas"])
        submit = told["paths"]["/v1/executions/{id}/events"]["post"]
        assert [one["name"] for one in submit["parameters"]] == ["id", "wait", "validate", "Idempotency-Key"]
        assert set(submit["responses"]) == {"202", "200", "default"}

    served(main, working=False)


def test_a_browser_gets_a_page_that_describes_every_route_and_runs_nothing() -> None:
    async def main(door: Door) -> None:
        answer = await door.client.get("/docs")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert all(f">{one.path}</span>" in answer.text for one in ALL)
        assert "<script" not in answer.text and "http://" not in answer.text and "https://" not in answer.text

    served(main)


def test_the_description_names_the_routes_that_take_an_idempotency_key_and_no_others() -> None:
    async def main(door: Door) -> None:
        described = (await door("GET", "/openapi.json")).json()["paths"]
        said = {
            (method.upper(), path)
            for path, methods in described.items()
            for method, told in methods.items()
            if any(one["name"] == "Idempotency-Key" for one in told.get("parameters", ()))
        }
        heeded = set()
        for route in ALL:
            if route.method == "POST":
                answer = await door("POST", path_of(route), body_of(route), idempotency_key="k" * 256)
                if answer.status_code == 400 and "Idempotency-Key" in answer.json()["detail"]:
                    heeded.add(place_of(route))
        assert said == heeded
        assert len(said) == 11

    served(main, working=False)
