"""One tenant has something of every kind; another one, with every right, asks for all of it on every route.

What is another's is answered like what does not exist, to the last word; lists are empty; and no answer, in its body or
its headers, has a word that only the first tenant could know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from msgspec import Struct

from perdure import Listen, Perdure, action, event, person, workflow
from perdure.core.records import Query, id_of
from perdure.http.api import ALL, api
from tests.http.every import BODIES, body_of, place_of
from tests.http.test_api import Door, People, problem

OWNER, STRANGER = "zebra:canary-ann:admin,canary-role", "other:eve:admin"
#: Words that are in everything of the first tenant, and in nothing else.
MARKS = ("zebra", "canary")
HOOK = {"name": "canary-hook", "does": {"do": "start", "workflow": "far-line"}, "secret": "secret://canary"}
DOOR = {
    "machine": "canary-door",
    "initial": "shut",
    "states": {"shut": {"on": {"canary-push": "open"}}, "open": {"final": True}},
}
DAILY = {"name": "canary-daily", "workflow": "far-line", "args": ["canary"], "cron": "0 9 * * *"}
CLOUD = {"specversion": "1.0", "type": "far.paid", "source": "/canary", "id": "1", "data": {"order": "canary-7"}}


@workflow(name="far-line", listens=[Listen("far.paid", event=".data.order", own='"canary-7"')])
async def line(stage: str = "") -> str:
    workflow.publish(stage=stage)
    return await event("go", str)


@workflow(name="far-fails")
async def fails(why: str) -> None:
    raise ValueError(why)


@workflow(name="far-ends")
async def ends(what: str) -> str:
    return what


@workflow(name="far-stuck")
async def stuck(why: str) -> None:
    await asyncio.get_running_loop().create_future()


@workflow(name="far-parent")
async def parent(stage: str) -> str:
    return await line(stage)


@workflow(name="far-asks")
async def asks(what: str) -> Any:
    return await person("canary-task", form={"type": "object"}, assign=["canary-ann"], data={"what": what})


@action(name="far.charge", external=True, queue="far-node")
async def charge(card: str) -> str: ...  # type: ignore[empty-body]


@workflow(name="far-buys")
async def buys(card: str) -> str:
    return await charge(card)


class Estate(Struct):
    """What the first tenant has: ids by what they are of, and what only it was told."""

    ids: dict[str, str]
    token: str
    cursors: dict[str, str]
    door: Door

    async def look(self) -> list[Any]:
        """All of it, as the store has it."""
        store = self.door.app.store
        found: list[Any] = []
        for home in ("zebra", "audit:zebra"):
            for head in await store.find(Query(home, limit=1000)):
                if not head.key.endswith("/callback"):  # it tries again and again
                    found.append((head.key, head.status, head.version, head.mail, head.state))
        return sorted(found)


async def _begin(door: Door, workflow: str, id: str, status: str, **more: Any) -> None:
    body = {"workflow": workflow, "id": id, "args": ["canary-input"], **more}
    answer = await door("POST", "/v1/executions", body)
    assert answer.status_code == 202, answer.text
    await door.app.get(id, "zebra").until(status)  # type: ignore[arg-type]


async def _estate(door: Door) -> Estate:
    door.who = OWNER
    callback = {"url": "http://127.0.0.1:1/canary", "secret": "secret://canary"}
    await _begin(door, "far-line", "canary-run", "waiting", lane="canary-lane")
    await _begin(door, "far-fails", "canary-failed", "failed")
    await _begin(door, "far-ends", "canary-told", "completed", callback=callback)
    await _begin(door, "far-stuck", "canary-stuck", "stuck")
    await _begin(door, "far-stuck", "canary-stuck-2", "stuck")
    await _begin(door, "far-parent", "canary-parent", "waiting")
    await _begin(door, "far-asks", "canary-asks", "waiting")
    await _begin(door, "far-asks", "canary-asks-2", "waiting")
    await _begin(door, "far-buys", "canary-buys", "waiting")
    for path, body in (
        ("definitions", {"definition": DOOR, "note": "canary"}),
        ("schedules", DAILY),
        ("hooks", HOOK),
        ("executions/canary-run/events", {"name": "other", "payload": "canary-payload", "id": "canary-event"}),
        ("executions/canary-run/pause", {"reason": "canary-reason"}),
    ):
        answer = await door("POST", f"/v1/{path}", body)
        assert answer.status_code < 300, answer.text
    await door.app.get("canary-run", "zebra").until("paused")
    await door("POST", "/v1/executions", {"workflow": "canary-door", "id": "canary-drawn"})
    await door.app.get("canary-drawn", "zebra").until("waiting")
    bulk = (await door("POST", "/v1/bulk", {"act": "cancel", "filter": {"workflow": "canary-none"}})).json()["id"]
    await door.app.get(bulk, "zebra").until("completed")
    key = (await door("POST", "/v1/keys", {"name": "canary-key", "roles": ["viewer", "canary-role"]})).json()["key"]
    poll = {"queue": "far-node", "wait": "10s", "lease": "1h", "worker": "canary-worker"}
    [task] = (await door("POST", "/v1/external/poll", poll)).json()["tasks"]
    cursors = {}
    for path in ("executions", "tasks", "dead", "audit"):
        cursors[path] = (await door("GET", f"/v1/{path}?limit=1")).json()["next"]
        assert cursors[path]
    act = (await door("GET", "/v1/audit?limit=1")).json()["acts"][0]["id"]
    [timetable] = await door.app.store.find(Query("zebra", workflow="schedule:"))
    ids = {
        "execution": "canary-run",
        "failed": "canary-failed",
        "ended": "canary-told",
        "callback": "canary-told/callback",
        "dead letter": "canary-stuck",
        "parent": "canary-parent",
        "child": "canary-parent.1",
        "task": "canary-asks.1",
        "external task": "canary-buys.1",
        "machine": "canary-drawn",
        "definition": "canary-door",
        "event": "canary-event",
        "schedule": "canary-daily",
        "execution of a schedule": id_of(timetable.key),
        "bulk operation": bulk,
        "hook": "canary-hook",
        "key": key["id"],
        "act": act,
        "lane": "canary-lane",
        "with its tenant": "../zebra/canary-run",
    }
    return Estate(ids, task["token"], cursors, door)


Test = Callable[[Estate], Awaitable[None]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/all.db"


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Estate]:
    (folder / "zebra").mkdir()
    (folder / "zebra" / "canary").write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    app = Perdure(url, secrets=str(folder), outbound_private=True)
    transport = httpx.ASGITransport(app=api(app, People()))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as client, app.working():
        yield await _estate(Door(app, client))


def between(test: Test, url: str, folder: Path) -> None:
    """The owner has everything; what the test does as a stranger leaves all of it as it is."""

    async def main() -> None:
        async with asyncio.timeout(100), opened(url, folder) as estate:
            before = await estate.look()
            assert len(before) > 15
            estate.door.who = STRANGER
            await test(estate)
            assert await estate.look() == before

    asyncio.run(main())


def blank(answer: httpx.Response, *said: str) -> str:
    """An answer without what was said in the request, once it is sure that nothing else in it is the owner's."""
    text = json.dumps([answer.status_code, *sorted(answer.headers.items()), answer.text])
    for one in sorted({*said, *map(quote, said)}, key=len, reverse=True):
        text = text.replace(one, "…")
    for mark in MARKS:
        assert mark not in text, text
    return text


def other_than(id: str) -> str:
    """An id that nobody has, and that looks alike."""
    return id[:-1] + ("0" if id[-1] != "0" else "1")


NAMED = [one for one in ALL if one.names and one.scope is not None]


def test_what_is_anothers_is_answered_like_what_does_not_exist(url: str, tmp_path: Path) -> None:
    """Every id of the owner on every route that takes one, also on those that are for something else."""

    async def test(estate: Estate) -> None:
        for one in NAMED:
            for kind, id in estate.ids.items():
                answers = []
                for asked in (id, other_than(id)):
                    path = one.path
                    for name in one.names:
                        path = path.replace(f"{{{name}}}", quote(asked, safe=""))
                    answer = await estate.door(one.method, path, body_of(one))
                    # A slash makes another path of it, which may be there for another method.
                    refused = (404, 405) if "/" in asked else (404,)
                    assert answer.status_code in refused, (one.method, one.path, kind, answer.text)
                    answers.append(blank(answer, asked))
                assert answers[0] == answers[1], (one.method, one.path, kind)

    between(test, url, tmp_path)


#: What to ask lists for, so that they would show what is the owner's; `{}` is a cursor of the owner's.
LISTS: dict[str, list[str]] = {
    "/v1/executions": [
        "",
        "limit=1000",
        "cursor={}",
        "parent=canary-parent",
        "parent=zebra/canary-parent",
        "field.stage=canary-input",
        "workflow=far-line",
        "workflow=far-line&status=paused",
        "workflow=person:",
        "workflow=schedule:",
        "workflow=bulk:",
        "workflow=audit:",
        "workflow=lock:",
        "workflow=action:far.charge",
        "status=stuck",
        "status=failed",
        "after=2000-01-01T00:00:00Z",
    ],
    "/v1/definitions": [""],
    "/v1/tasks": [
        "",
        "mine=true",
        "cursor={}",
        "execution=canary-asks",
        "assignee=canary-ann",
        "role=canary-role",
        "name=canary-task",
        "status=open",
    ],
    "/v1/dead": ["", "cursor={}", "cause=never-wakes", "workflow=far-stuck", "oldest=true"],
    "/v1/hooks": [""],
    "/v1/audit": ["", "cursor={}", "actor=canary-ann", "act=executions.pause", "target=canary-run"],
    "/v1/schedules": ["", "ended=true"],
    "/v1/bulk": ["", "limit=1000"],
    "/v1/workers": [""],
    "/v1/keys": [""],
    "/v1/bundle": [""],
}
#: What is no list of things: counts, locks, who calls, and what belongs to the process.
OTHERS = {"/v1/actions", "/v1/workflows", "/v1/caller", "/v1/quota", "/v1/stats", "/v1/locks", "/v1/metrics"}


def test_every_list_is_asked_here() -> None:
    looks = {one.path for one in ALL if one.method == "GET" and not one.names and one.scope is not None}
    assert looks == LISTS.keys() | OTHERS


def test_lists_and_searches_show_nothing_of_another_tenant(url: str, tmp_path: Path) -> None:
    async def test(estate: Estate) -> None:
        for path, queries in LISTS.items():
            for query in queries:
                said = query.format(estate.cursors.get(path.rpartition("/")[2], ""))
                shown = await estate.door("GET", f"{path}?{said}")
                blank(shown)
                if "{}" in query:
                    problem(shown, 422, "invalid-value")
                    continue
                assert shown.status_code == 200, (path, said, shown.text)
                lists = [value for value in shown.json().values() if isinstance(value, list)]
                # Strangers find what they have done themselves, and that is nothing yet.
                assert lists == [[]] and shown.json().get("next") is None, (path, said, shown.text)

    between(test, url, tmp_path)


def test_the_owner_does_find_all_that(url: str, tmp_path: Path) -> None:
    """Or else the searches above would prove nothing."""

    async def test(estate: Estate) -> None:
        estate.door.who = OWNER
        for path, queries in LISTS.items():
            found = 0
            for query in queries:
                said = query.format(estate.cursors.get(path.rpartition("/")[2], ""))
                shown = (await estate.door("GET", f"{path}?{said}")).json()
                found += len(next(value for value in shown.values() if isinstance(value, list)))
            assert found or path == "/v1/workers", path  # one without work is not seen
        assert (await estate.door("GET", "/v1/executions?parent=canary-parent")).json()["executions"]
        assert (await estate.door("GET", "/v1/executions?field.stage=canary-input")).json()["executions"]

    between(test, url, tmp_path)


def test_counts_locks_and_numbers_tell_nothing_of_another_tenant(url: str, tmp_path: Path) -> None:
    async def test(estate: Estate) -> None:
        door = estate.door
        async with door.app.lock("canary-lock", tenant="zebra"):
            await door.app.start(buys, "canary-card", id="canary-more", tenant="zebra")
            await door.app.get("canary-more", "zebra").until("waiting")
            for query in ("", "workflow=far-line", "after=2000-01-01T00:00:00Z"):
                blank(await door("GET", "/v1/quota"))
                counted = await door("GET", f"/v1/stats?{query}")
                assert (counted.json()["total"], counted.json()["workflows"]) == (0, [])
                blank(counted)
            lock = await door("GET", "/v1/locks?name=canary-lock")
            assert lock.json() == {"name": "canary-lock", "held": False}
            async with door.app.lock("canary-lock", tenant="other") as mine:
                assert (await door("GET", "/v1/locks?name=canary-lock")).json()["holder"] == mine.token
            for path in ("/v1/metrics", "/v1/actions", "/openapi.json", "/docs", "/health/live", "/health/ready"):
                answer = await door("GET", path)
                assert answer.status_code == 200
                blank(answer)
        await door.app.get("canary-more", "zebra").cancel()

    async def main() -> None:
        async with asyncio.timeout(100), opened(url, tmp_path) as estate:
            estate.door.who = STRANGER
            await test(estate)

    asyncio.run(main())


def test_tokens_and_ids_in_bodies_are_good_for_their_tenant_only(url: str, tmp_path: Path) -> None:
    async def test(estate: Estate) -> None:
        door = estate.door
        for what, more in (("heartbeat", {}), ("complete", {"result": "x"}), ("fail", {"type": "X"})):
            answers = [
                await door("POST", f"/v1/external/{what}", {"token": token, **more})
                for token in (estate.token, other_than(estate.token), "made-up")
            ]
            for answer in answers:
                problem(answer, 404, "task-not-found")
            assert len({blank(answer) for answer in answers}) == 1
        polled = await door("POST", "/v1/external/poll", {"queue": "far-node", "wait": "100ms", "limit": 100})
        assert polled.json() == {"tasks": []}
        ids = [id for id in estate.ids.values() if "/" not in id]
        for what in ("redrive", "purge"):
            handled = (await door("POST", f"/v1/dead/{what}", {"ids": ids})).json()
            assert handled["missing"] == ids and not (handled["done"] or handled["before"] or handled["not_stuck"])
            for which in ({"all": True}, {"cause": "never-wakes"}, {"workflow": "far-stuck"}):
                blank(await door("POST", f"/v1/dead/{what}", which))
        slashed = await door("POST", "/v1/dead/purge", {"ids": ["../zebra/canary-stuck", "zebra/canary-stuck"]})
        assert len(slashed.json()["missing"]) == 2
        routed = (await door("POST", "/v1/events", CLOUD)).json()
        assert (routed["woken"], routed["started"]) == ([], [])
        asked = (await door("POST", "/v1/bulk", {"act": "cancel", "all": True})).json()["id"]
        await door.app.get(asked, "other").until("completed")
        assert (await door("GET", f"/v1/bulk/{asked}")).json()["found"] == 0
        started = await door("POST", "/v1/executions", {"workflow": "canary-door", "id": "mine"})
        problem(started, 404, "not-registered")
        blank(started, "canary-door")

    between(test, url, tmp_path)


def test_the_same_names_in_another_tenant_are_other_things(url: str, tmp_path: Path) -> None:
    """Nothing collides: neither ids nor names, neither idempotency keys nor lanes."""
    begin = {"workflow": "far-line", "args": ["mine"]}

    async def test(estate: Estate) -> None:
        door = estate.door
        for id in ("canary-run", "canary-stuck", "canary-asks.1", "canary-parent.1"):
            body = {**begin, "id": id, "lane": f"canary-lane{'' if id == 'canary-run' else id}"}
            assert (await door("POST", "/v1/executions", body)).status_code == 202
            # The owner's execution of this lane is paused, and does not keep this one waiting.
            await door.app.get(id, "other").until("waiting")
            mine = (await door("GET", f"/v1/executions/{id}")).json()
            assert mine["state"] == {"stage": "mine"}
        body = {"name": "go", "payload": "mine", "id": "canary-event"}
        assert (await door("POST", "/v1/executions/canary-run/events", body)).status_code == 202
        assert (await door("GET", "/v1/executions/canary-run/result?wait=10s")).json()["result"] == "mine"
        forked = await door("POST", "/v1/executions/canary-run/fork", {"at": 1, "id": "canary-failed"})
        assert forked.json() == {"id": "canary-failed"}
        other = {**DOOR, "states": {"shut": {"on": {"pull": "gone"}}, "gone": {"final": True}}}
        made = await door("POST", "/v1/definitions", {"definition": other})
        assert (made.status_code, made.json()["version"]) == (201, 1)
        kept = await door("POST", "/v1/definitions/drafts", {"definition": {**DOOR, "description": "mine"}})
        assert (kept.status_code, kept.json()["by"]) == (201, "eve")
        bundle = (await door("GET", "/v1/bundle")).json()
        assert [one["body"] for one in bundle["definitions"]] == [other]
        assert (await door("POST", "/v1/bundle", {"bundle": bundle})).status_code == 200
        assert (await door("POST", "/v1/schedules", {**DAILY, "cron": "@hourly"})).status_code == 201
        does = {"do": "start", "workflow": "far-ends"}
        assert (await door("POST", "/v1/hooks", {**HOOK, "does": does})).status_code == 201
        assert (await door("DELETE", "/v1/hooks/canary-hook")).json()["active"] is False
        assert (await door("DELETE", "/v1/schedules/canary-daily")).status_code == 202
        assert (await door("POST", "/v1/definitions/canary-door/deprecate", {"version": 1})).status_code == 204

    between(test, url, tmp_path)


def test_the_same_idempotency_key_of_two_tenants_is_two_keys(url: str, tmp_path: Path) -> None:
    async def test(estate: Estate) -> None:
        door = estate.door
        answers = []
        for who in (STRANGER, "third:eve:admin"):
            door.who = who
            body = {"workflow": "far-line", "args": [who]}
            answers.append(await door("POST", "/v1/executions", body, idempotency_key="one"))
            bulk = {"act": "cancel", "filter": {"workflow": who[:5]}, "dry_run": True}
            answers.append(await door("POST", "/v1/bulk", bulk, idempotency_key="one"))
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 4

    between(test, url, tmp_path)


def test_what_comes_near_an_unknown_workflow_is_never_anothers(url: str, tmp_path: Path) -> None:
    async def main(estate: Estate) -> None:
        door, wrong = estate.door, {"workflow": "canary-dor"}
        answer = await door("POST", "/v1/executions", wrong)
        assert answer.status_code == 404
        blank(answer, "canary-dor")
        door.who = OWNER
        assert "did you mean canary-door?" in (await door("POST", "/v1/executions", wrong)).json()["detail"]

    between(main, url, tmp_path)


def test_every_route_that_writes_is_tried_by_a_stranger() -> None:
    """What is neither about something in its path nor in the tests above would be forgotten."""
    tried = {
        "/v1/executions",
        "/v1/events",
        "/v1/definitions",
        "/v1/definitions/validate",  # keeps nothing, and asks for nothing that is kept
        "/v1/definitions/diagram",  # neither does this
        "/v1/dead/redrive",
        "/v1/dead/purge",
        "/v1/external/poll",
        "/v1/external/heartbeat",
        "/v1/external/complete",
        "/v1/external/fail",
        "/v1/hooks",
        "/v1/schedules",
        "/v1/bulk",
        "/v1/keys",  # its ids are made here, so none can be asked for
        "/v1/definitions/drafts",
        "/v1/bundle",
    }
    assert {place_of(one)[1] for one in ALL if one.method != "GET" and not one.names} == tried
    assert {path for method, path in BODIES if method == "POST" and "{" not in path} == tried
