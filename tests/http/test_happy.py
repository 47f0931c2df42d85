"""Every route answers well once, and what it answers is what the served description says.

Rules kept here: the requests are a story of one tenant that has something of every kind, told in an order in which each
is possible; a route that is not in it is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs

from perdure.core import signing
from perdure.http.api import ALL, VERSION
from perdure.http.openapi import describe
from perdure.http.route import Route
from tests.http.every import place_of
from tests.http.test_foreign import CLOUD, DAILY, DOOR, HOOK, OWNER, Estate, opened

DESCRIBED = describe(ALL, VERSION)
SECOND, THIRD = ({**DOOR, "description": text} for text in ("the second", "the third"))


def told(route: Route, answer: httpx.Response) -> None:
    """It went well, and the answer is of the form that was promised for its status."""
    where = (route.method, str(answer.url), answer.text)
    assert answer.status_code in route.answers, where
    promised = DESCRIBED["paths"][route.path][route.method.lower()]["responses"][str(answer.status_code)]
    media = answer.headers.get("content-type", "").partition(";")[0]
    assert (media in promised["content"]) if "content" in promised else not answer.content, where
    if media == "application/json":
        schema = {**promised["content"][media]["schema"], "components": DESCRIBED["components"]}
        faults = [fault.message for fault in jsonschema_rs.Draft202012Validator(schema).iter_errors(answer.json())]
        assert faults == [], (*where, faults)


class Story:
    """Asks as the owner, and remembers which routes have answered."""

    def __init__(self, estate: Estate) -> None:
        self.estate = estate
        self.seen: set[tuple[str, str]] = set()

    async def __call__(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **named: str
    ) -> Any:
        """`path` is that of the route; what it names, or its query, follows."""
        [route] = [one for one in ALL if place_of(one) == (method, path)]
        query = named.pop("query", "")
        for name, value in named.items():
            path = path.replace(f"{{{name}}}", value)
        said = {"authorization": f"Bearer {OWNER}", **(headers or {})}
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await self.estate.door.client.request(method, path + query, headers=said, **content)
        told(route, answer)
        self.seen.add(place_of(route))
        return answer.json() if answer.headers.get("content-type") == "application/json" else None

    async def get(self, path: str, **named: str) -> Any:
        return await self("GET", path, **named)

    async def post(self, path: str, body: Any = None, **named: str) -> Any:
        return await self("POST", path, body, **named)


async def _looks(story: Story) -> None:
    ids = story.estate.ids
    for part in ("", "/state", "/log", "/why", "/diagram"):
        await story.get(f"/v1/executions/{{id}}{part}", id="canary-drawn")
    for part in ("/result", "/stream"):
        await story.get(f"/v1/executions/{{id}}{part}", id="canary-told")
    await story.get("/v1/executions/{id}/events/{event_id}", id="canary-run", event_id="canary-event")
    await story.get("/v1/executions/{id}/log/{version}", id="canary-run", version="1")
    for part in ("", "/history", "/diagram"):
        await story.get(f"/v1/definitions/{{name}}{part}", name="canary-door")
    await story.get("/v1/workflows/{name}", name="canary-door")
    for part in ("", "/next"):
        await story.get(f"/v1/schedules/{{name}}{part}", name="canary-daily")
    await story.get("/v1/tasks/{id}", id="canary-asks.1")
    await story.get("/v1/hooks/{name}", name="canary-hook")
    await story.get("/v1/bulk/{id}", id=ids["bulk operation"])
    await story.get("/v1/keys/{id}", id=ids["key"])
    async with story.estate.door.app.lock("canary-lock", tenant="zebra"):
        await story.get("/v1/locks", query="?name=canary-lock")
    for route in ALL:
        if route.method == "GET" and not route.names and route.path != "/v1/locks":
            await story.get(route.path)


async def _executions(story: Story) -> None:
    begin = {"workflow": "far-line", "args": ["x"], "id": "new", "tags": ["a"], "correlation": "b"}
    await story.post("/v1/executions", begin, query="?wait=10s")
    await story.post("/v1/executions", {**begin, "id": "newer"})
    await story.post("/v1/executions/{id}/pause", {}, id="new")
    await story.post("/v1/executions/{id}/resume", {}, id="new")
    await story.post("/v1/executions/{id}/events/batch", [{"name": "go", "payload": 1}, {"name": "go"}], id="newer")
    await story.post("/v1/executions/{id}/events", {"name": "go", "payload": "x"}, id="new", query="?wait=10s")
    await story.post("/v1/executions/{id}/events", {"name": "go"}, id="canary-run")
    await story.post("/v1/executions/{id}/cancel", {}, id="canary-asks-2")
    await story.post("/v1/executions/{id}/retry", {}, id="canary-failed")
    await story.post("/v1/executions/{id}/fork", {"at": 1}, id="canary-told")
    await story.post("/v1/events", CLOUD)
    await story.post("/v1/bulk", {"act": "cancel", "all": True, "dry_run": True})
    await story.post("/v1/dead/redrive", {"ids": ["canary-stuck"]})
    await story.post("/v1/dead/purge", {"ids": ["canary-stuck-2"]})


async def _definitions(story: Story) -> None:
    await story.post("/v1/definitions/validate", {"definition": SECOND})
    await story.post("/v1/definitions/diagram", {"definition": SECOND})
    await story.post("/v1/definitions", {"definition": SECOND})
    await story.post("/v1/executions/{id}/migrate", {"version": 2}, id="canary-drawn")
    await story.post("/v1/definitions/{name}/deprecate", {"version": 1}, name="canary-door")
    await story.post("/v1/definitions/{name}/restore", {"version": 1}, name="canary-door")
    await story.post("/v1/definitions/drafts", {"definition": THIRD})
    await story.post("/v1/definitions/{name}/draft/publish", {}, name="canary-door")
    await story.post("/v1/definitions/drafts", {"definition": SECOND})
    await story("DELETE", "/v1/definitions/{name}/draft", name="canary-door")
    await story.post("/v1/bundle", {"bundle": await story.get("/v1/bundle")})


async def _people_and_workers(story: Story) -> None:
    task = {"id": "canary-asks.1"}
    await story.post("/v1/tasks/{id}/claim", **task)
    await story.post("/v1/tasks/{id}/release", **task)
    await story.post("/v1/tasks/{id}/assign", {"users": ["canary-ann"]}, **task)
    await story.post("/v1/tasks/{id}/complete", {"value": {}}, **task)
    await story.post("/v1/external/heartbeat", {"token": story.estate.token})
    await story.post("/v1/external/complete", {"token": story.estate.token, "result": "x"})
    await story.post("/v1/executions", {"workflow": "far-buys", "args": ["x"], "id": "buys"})
    [given] = (await story.post("/v1/external/poll", {"queue": "far-node", "wait": "10s"}))["tasks"]
    await story.post("/v1/external/fail", {"token": given["token"], "type": "X"})


async def _administers(story: Story) -> None:
    await story.post("/v1/hooks", {**HOOK, "name": "second"})
    now = story.estate.door.app.clock.now() // 1_000_000
    signed = signing.sign(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], "m1", now, b'"x"')
    await story("POST", "/v1/hooks/{tenant}/{name}", b'"x"', signed, tenant="zebra", name="second")
    await story("PUT", "/v1/hooks/{name}/secret", {"secret": "secret://canary"}, name="second")
    await story("DELETE", "/v1/hooks/{name}", name="second")
    await story.post("/v1/schedules", {**DAILY, "name": "weekly"})
    await story("PATCH", "/v1/schedules/{name}", {"note": "x"}, name="weekly")
    for verb in ("pause", "resume"):
        await story.post(f"/v1/schedules/{{name}}/{verb}", name="weekly")
    await story.post("/v1/schedules/{name}/trigger", {}, name="weekly")
    await story("DELETE", "/v1/schedules/{name}", name="weekly")
    id = (await story.post("/v1/keys", {"name": "x", "roles": ["viewer"]}))["key"]["id"]
    await story.post("/v1/keys/{id}/rotate", {}, id=id)
    await story.post("/v1/keys/{id}/revoke", id=id)


def test_every_route_answers_well_and_as_it_is_described(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), opened("memory://", tmp_path) as estate:
            story = Story(estate)
            for part in (_looks, _executions, _definitions, _people_and_workers, _administers):
                await part(story)
            assert {place_of(one) for one in ALL} - story.seen == set()

    asyncio.run(main())
