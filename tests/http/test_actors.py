"""Who did it is kept with everything that is done over HTTP: in the log of what it was done to, and in the audit.

Every verb is called here by somebody of its own name, so a verb that forgets its caller, or remembers another one, is
found out.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from perdure import Listen, On, Perdure, event, person, workflow
from perdure.core import events as ev
from perdure.core.records import Query
from perdure.http.api import ALL
from perdure.http.audit import NOTED, act_of
from perdure.http.route import Route
from tests.http.every import SCOPES, Place
from tests.http.test_api import Door, problem, served

DOOR = {
    "machine": "by-door",
    "initial": "shut",
    "states": {"shut": {"on": {"push": "open"}}, "open": {"final": True}},
}
TOPIC = {"specversion": "1.0", "source": "/by", "id": "1"}


@workflow(
    name="by-line",
    listens=[Listen("by.paid", event=".data", own='"x"')],
    starts_on=[On("by.ordered", input=".data")],
)
async def line(what: str = "") -> str:
    return await event("go", str)


@workflow(name="by-fails")
async def fails() -> None:
    raise ValueError("as always")


@workflow(name="by-stuck")
async def stuck() -> None:
    await asyncio.get_running_loop().create_future()


@workflow(name="by-asks")
async def asks() -> Any:
    return await person("look", form={"type": "object"})


class Town:
    """A door where everybody comes under the name of what they are about to do."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.acts: dict[Place, str] = {}  # who has called what, last
        self._numbers = itertools.count()

    async def __call__(self, method: str, template: str, body: Any = None, /, **named: str) -> httpx.Response:
        who = f"u{next(self._numbers)}"
        self.acts[method, template] = who
        self.door.who = f"acme:{who}:admin,staff"
        path = template
        for name, value in named.items():
            path = path.replace(f"{{{name}}}", value)
        answer = await self.door(method, path, body, x_reason=f"as {who} says")
        assert answer.status_code < 300, (method, path, answer.text)
        return answer

    async def begin(self, workflow: str, id: str, status: str) -> None:
        self.door.who = "acme:starter:admin"
        started = await self.door("POST", "/v1/executions", {"workflow": workflow, "id": id, "args": []})
        assert started.status_code == 202, started.text
        await self.until(id, status)

    async def until(self, id: str, status: Any) -> None:
        await self.door.app.get(id, "acme").until(status)

    async def log(self, id: str, kind: type[Any], count: int = 1) -> list[Any]:
        """The events of a kind in a log, once there are so many."""
        while True:
            rows = [ev.read(row) async for row in self.door.app.get(id, "acme").rows()]
            if len(found := [one for one in rows if isinstance(one, kind)]) >= count:
                for one in found:
                    self._check_roles(one)
                return found
            await asyncio.sleep(0.01)

    def _check_roles(self, told: Any) -> None:
        """What somebody did tells as what; what follows from it does not tell it again."""
        if not isinstance(told, ev.ChildSettled | ev.StateChanged) and getattr(told, "by", "") in self.acts.values():
            assert told.acting_as == ("admin", "staff"), told

    def who(self, method: str, template: str) -> str:
        return self.acts[method, template]


def in_town(test: Callable[[Town], Awaitable[None]]) -> Town:
    towns = []

    async def main(door: Door) -> None:
        towns.append(Town(door))
        await test(towns[0])

    served(main)
    return towns[0]


async def executions(town: Town) -> None:
    place = "/v1/executions/{id}"
    await town("POST", "/v1/executions", {"workflow": "by-line", "args": [], "id": "a"})
    [began] = await town.log("a", ev.Started)
    assert began.by == town.who("POST", "/v1/executions")
    await town.until("a", "waiting")
    await town("POST", f"{place}/pause", {}, id="a")
    [paused] = await town.log("a", ev.Paused)
    assert paused.by == town.who("POST", f"{place}/pause")
    await town("POST", f"{place}/resume", {}, id="a")
    [resumed] = await town.log("a", ev.Resumed)
    assert resumed.by == town.who("POST", f"{place}/resume")
    await town("POST", f"{place}/fork", {"at": 1, "id": "b"}, id="a")
    [forked] = await town.log("b", ev.Started)
    assert forked.by == town.who("POST", f"{place}/fork") and forked.forked == "acme/a@1"
    await town("POST", f"{place}/cancel", {}, id="a")
    [asked] = await town.log("a", ev.CancelRequested)
    assert asked.by == town.who("POST", f"{place}/cancel")


async def events(town: Town) -> None:
    await town.begin("by-line", "c", "waiting")
    await town("POST", "/v1/executions/{id}/events", {"name": "other"}, id="c")
    await town("POST", "/v1/executions/{id}/events/batch", [{"name": "other"}, {"name": "other"}], id="c")
    await town("POST", "/v1/events", {**TOPIC, "type": "by.paid", "data": "x"})
    received = await town.log("c", ev.EventReceived, 4)
    one, batch = (town.who("POST", f"/v1/executions/{{id}}/events{tail}") for tail in ("", "/batch"))
    assert [it.by for it in received] == [one, batch, batch, town.who("POST", "/v1/events")]
    assert {it.roles for it in received} == {("staff",)}
    routed = await town("POST", "/v1/events", {**TOPIC, "type": "by.ordered", "data": "y"})
    [began] = await town.log(routed.json()["started"][0], ev.Started)
    assert began.by == town.who("POST", "/v1/events")


async def what_failed(town: Town) -> None:
    await town.begin("by-fails", "d", "failed")
    again = (await town("POST", "/v1/executions/{id}/retry", {}, id="d")).json()["id"]
    [began] = await town.log(again, ev.Started)
    assert began.by == town.who("POST", "/v1/executions/{id}/retry")
    await town.begin("by-stuck", "e", "stuck")
    await town("POST", "/v1/executions/{id}/retry", {}, id="e")
    [driven] = await town.log("e", ev.Redriven)
    assert driven.by == town.who("POST", "/v1/executions/{id}/retry")
    await town.log("e", ev.Stuck, 2)
    await town.until("e", "stuck")
    await town("POST", "/v1/dead/redrive", {"ids": ["e"]})
    [_, driven] = await town.log("e", ev.Redriven, 2)
    assert driven.by == town.who("POST", "/v1/dead/redrive")
    await town.log("e", ev.Stuck, 3)
    await town.until("e", "stuck")
    await town("POST", "/v1/dead/purge", {"ids": ["e"]})
    [asked] = await town.log("e", ev.CancelRequested)
    assert asked.by == town.who("POST", "/v1/dead/purge")


async def definitions(town: Town) -> None:
    place = "/v1/definitions/{name}"
    made = await town("POST", "/v1/definitions", {"definition": DOOR})
    assert made.json()["by"] == town.who("POST", "/v1/definitions")
    town.door.who = "acme:starter:admin"
    await town.door("POST", "/v1/executions?wait=10s", {"workflow": "by-door", "id": "m"})
    first = town.who("POST", "/v1/definitions")
    await town("POST", "/v1/definitions", {"definition": {**DOOR, "description": "again"}, "new": True})
    second = town.who("POST", "/v1/definitions")
    await town("POST", "/v1/executions/{id}/migrate", {"version": 2}, id="m")
    [moved] = [one for one in await town.log("m", ev.Restarted) if one.by]
    assert moved.by == town.who("POST", "/v1/executions/{id}/migrate")
    await town("POST", f"{place}/deprecate", {"version": 1}, name="by-door")
    await town("POST", f"{place}/restore", {"version": 1}, name="by-door")
    changes = (await town.door("GET", "/v1/definitions/by-door/history")).json()["changes"]
    ends = [town.who("POST", f"{place}/{what}") for what in ("deprecate", "restore")]
    assert [one["by"] for one in changes] == [first, second, *ends]


async def drafts(town: Town) -> None:
    place, gate = "/v1/definitions/{name}", {**DOOR, "machine": "by-gate"}
    await town("POST", "/v1/definitions/drafts", {"definition": gate})
    by = [town.who("POST", "/v1/definitions/drafts")]
    await town("DELETE", f"{place}/draft", None, name="by-gate")
    await town("POST", "/v1/definitions/drafts", {"definition": gate})
    await town("POST", f"{place}/draft/publish", {}, name="by-gate")
    by += [town.who("DELETE", f"{place}/draft"), town.who("POST", "/v1/definitions/drafts")]
    by.append(town.who("POST", f"{place}/draft/publish"))
    changes = (await town.door("GET", "/v1/definitions/by-gate/history")).json()["changes"]
    assert [one["by"] for one in changes] == by
    async with Perdure("memory://") as elsewhere:
        await elsewhere.definitions.publish({**DOOR, "machine": "by-hatch"})
        bundle = await elsewhere.definitions.export()
    await town("POST", "/v1/bundle", {"bundle": json.loads(bundle)})
    [change] = (await town.door("GET", "/v1/definitions/by-hatch/history")).json()["changes"]
    assert change["by"] == town.who("POST", "/v1/bundle")


async def tasks(town: Town) -> None:
    place = "/v1/tasks/{id}"
    await town.begin("by-asks", "f", "waiting")
    await town("POST", f"{place}/assign", {"roles": ["staff"]}, id="f.1")
    await town("POST", f"{place}/claim", None, id="f.1")
    claimed = town.who("POST", f"{place}/claim")
    town.door.who = f"acme:{claimed}:admin,staff"  # only who has claimed it may give it back
    assert (await town.door("POST", "/v1/tasks/f.1/release")).status_code == 200
    town.acts["POST", f"{place}/release"] = claimed
    await town("POST", f"{place}/complete", {"value": {}}, id="f.1")
    completed = town.who("POST", f"{place}/complete")
    received = await town.log("f.1", ev.EventReceived, 4)
    assigned = town.who("POST", f"{place}/assign")
    assert [one.by for one in received] == [assigned, claimed, claimed, completed]
    assert {one.roles for one in received} == {("staff",)}
    assert [one.by for one in await town.log("f.1", ev.StateChanged)][-4:] == [one.by for one in received]


async def schedules(town: Town) -> None:
    place = "/v1/schedules/{name}"
    await town("POST", "/v1/schedules", {"name": "daily", "workflow": "by-line", "args": [], "cron": "0 9 * * *"})
    verbs = [("PATCH", place, {"note": "x"}), ("POST", f"{place}/pause", None), ("POST", f"{place}/resume", None)]
    for method, path, body in [*verbs, ("POST", f"{place}/trigger", {}), ("DELETE", place, None)]:
        await town(method, path, body, name="daily")
    [head] = await town.door.app.store.find(Query("acme", workflow="schedule:"))
    id = head.key.partition("/")[2]
    [began] = await town.log(id, ev.Started)
    assert began.by == town.who("POST", "/v1/schedules")
    received = await town.log(id, ev.EventReceived, 5)
    wished = [("PATCH", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/trigger"), ("DELETE", "")]
    assert [one.by for one in received] == [town.who(method, place + tail) for method, tail in wished]


async def bulk(town: Town) -> None:
    await town.begin("by-line", "g", "waiting")
    body = {"act": "send", "event": "other", "filter": {"workflow": "by-line", "status": "waiting"}}
    operation = (await town("POST", "/v1/bulk", body)).json()["id"]
    [began] = await town.log(operation, ev.Started)
    assert began.by == town.who("POST", "/v1/bulk")
    *_, sent = await town.log("g", ev.EventReceived)
    assert (sent.by, sent.roles) == (town.who("POST", "/v1/bulk"), ("staff",))
    for act, kind in (("pause", ev.Paused), ("resume", ev.Resumed), ("cancel", ev.CancelRequested)):
        await town("POST", "/v1/bulk", {"act": act, "filter": {"workflow": "by-line"}})
        [done] = await town.log("g", kind)
        assert done.by == town.who("POST", "/v1/bulk")
    await town.begin("by-fails", "h", "failed")
    await town("POST", "/v1/bulk", {"act": "retry", "filter": {"workflow": "by-fails"}})
    while not (found := [id for id in await _ids(town) if id.startswith("h~")]):
        await asyncio.sleep(0.01)
    [began] = await town.log(found[0], ev.Started)
    assert began.by == town.who("POST", "/v1/bulk")


async def _ids(town: Town) -> list[str]:
    return [head.key.partition("/")[2] for head in (await town.door.app.find(tenant="acme", limit=1000)).heads]


async def registers(town: Town) -> None:
    hook, key = "/v1/hooks/{name}", "/v1/keys/{id}"
    does = {"do": "start", "workflow": "by-line"}
    await town("POST", "/v1/hooks", {"name": "shop", "does": does, "secret": "secret://old"})
    await town("PUT", f"{hook}/secret", {"secret": "secret://new"}, name="shop")
    await town("DELETE", hook, None, name="shop")
    acts = [("POST", "/v1/hooks"), ("PUT", f"{hook}/secret"), ("DELETE", hook)]
    history = (await town.door("GET", "/v1/hooks/shop")).json()["history"]
    assert [one["by"] for one in history] == [town.who(*one) for one in acts]
    id = (await town("POST", "/v1/keys", {"name": "ci", "roles": ["viewer"]})).json()["key"]["id"]
    await town("POST", f"{key}/rotate", {}, id=id)
    await town("POST", f"{key}/revoke", None, id=id)
    acts = [("POST", "/v1/keys"), ("POST", f"{key}/rotate"), ("POST", f"{key}/revoke")]
    history = (await town.door("GET", f"/v1/keys/{id}")).json()["history"]
    assert [one["by"] for one in history] == [town.who(*one) for one in acts]


PARTS = [executions, events, what_failed, definitions, drafts, tasks, schedules, bulk, registers]
#: What is done by no person: workers are named in the leases, and the caller of a webhook is the webhook.
NOBODYS = {place for place in SCOPES if place[1].startswith("/v1/external/") or place[1] == "/v1/hooks/{tenant}/{name}"}


def _writes(route: Route) -> bool:
    return route.method != "GET" and not route.harmless and (route.method, route.path) not in NOBODYS


def test_whoever_does_something_is_named_in_the_log_and_in_the_audit() -> None:
    async def test(town: Town) -> None:
        for part in PARTS:
            await part(town)
        assert town.acts.keys() == {(one.method, one.path) for one in ALL if _writes(one)}
        town.door.who = "acme:ann:admin"
        acts = (await town.door("GET", "/v1/audit?limit=1000")).json()["acts"]
        for one in ALL:
            if _writes(one) and one.scope in NOTED:
                latest = next(it for it in acts if it["act"] == act_of(one))
                assert latest["actor"] == town.who(one.method, one.path), act_of(one)
                assert latest["roles"] == ["admin", "staff"] and latest["credential"] == "test"
                assert latest["reason"] == f"as {latest['actor']} says"
                assert latest["node"] == town.door.app.me and latest["at"]
        assert "" not in {it["actor"] for it in acts}

    in_town(test)


def test_who_has_no_name_does_not_get_in() -> None:
    async def test(door: Door) -> None:
        door.who = "acme::admin,owner"
        for (method, path), scope in SCOPES.items():
            if scope is not None:
                asked = await door(method, path.format(id="a", name="a", event_id="a", version="1"))
                assert "does not say who calls" in problem(asked, 401, "unauthenticated")["detail"]
        refused = await door("POST", "/v1/executions", {"workflow": "by-line", "args": []})
        problem(refused, 401, "unauthenticated")
        assert (await door.app.find(tenant="acme")).heads == []

    served(test, working=False)
