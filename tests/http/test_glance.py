"""An observer looks at a tenant that has a word in all of its data: on every route, and it is nowhere in the answers.

Whoever may read sees the word on the same routes, so these tests can fail; and the log has it afterwards as before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Struct

from perdure import Perdure, Retry, action, event, person, workflow
from perdure.core import entries, events as ev, reasons
from perdure.core.records import Query, id_of
from perdure.flows.registry import registry
from perdure.http import glance
from perdure.http.api import ALL, api
from perdure.http.auth import Authenticator
from perdure.http.gate import Gate
from perdure.http.keys import Keys
from perdure.http.route import Answer, Route
from perdure.runtime.callers.paging import LogPage
from perdure.runtime.managing.scheduled import Fired, Schedule
from tests.http.every import GLANCES, body_of, path_of, place_of
from tests.http.test_api import Door, People, opened, problem

OWNER, VIEWER, OBSERVER = "acme:ann:admin", "acme:vic:viewer", "acme:obi:observer"
#: In all data, and in no name and no id.
WORD = "canary"


class Trouble(Exception):
    pass


@action(name="glance.tries", retries=Retry(attempts=2, first="1ms"))
async def tries(item: str) -> str:
    if action.attempt == 1:
        raise Trouble(f"not {item}")
    return item


@action(name="glance.again", retries=Retry(attempts=9, first="1h"))
async def again(item: str) -> str:
    raise Trouble(item)


@action(name="glance.pays", external=True, queue="glance-node")
async def pays(card: str) -> str: ...  # type: ignore[empty-body]


@workflow(name="glance-ends")
async def ends(what: str) -> str:
    return what


@workflow(name="glance-waits")
async def waits(item: str) -> str:
    workflow.publish(stage=item)
    workflow.record(lambda: item)
    await tries(item)
    await ends(item)
    await event("paid", match={"order": item})
    return item


@workflow(name="glance-fails")
async def fails(item: str) -> None:
    try:
        raise ValueError(item)
    except ValueError as error:
        raise Trouble(f"it was {item}") from error


@workflow(name="glance-retries")
async def retries(item: str) -> str:
    return await again(item)


@workflow(name="glance-rounds")
async def rounds(item: str) -> None:
    workflow.publish(item=item)
    await event("next", int)
    workflow.restart_with(item)


@workflow(name="glance-asks")
async def asks(item: str) -> Any:
    return await person("approve", form={"type": "object", "title": item}, assign=["ann"], data={"item": item})


@workflow(name="glance-buys")
async def buys(item: str) -> str:
    return await pays(item)


def two_releases() -> tuple[Any, Any]:
    """The second calls an action with something else, so what the first has begun gets stuck."""

    @workflow(name="glance-stuck")
    async def broken(item: str) -> None:
        await tries(f"other {item}")
        await event("go")

    @workflow(name="glance-stuck")
    async def fitting(item: str) -> None:
        await tries(item)
        await event("go")

    return fitting, broken


GRAPH = {
    "graph": "glance-graph",
    "description": WORD,
    "nodes": [
        {"id": "start", "type": "trigger"},
        {"id": "wait", "type": "wait", "data": {"events": [{"name": "paid"}]}},
        {"id": "end", "type": "end", "data": {"result": "${ .trigger }"}},
    ],
    "edges": [{"source": "start", "target": "wait"}, {"source": "wait", "target": "end"}],
}
DAILY = {"name": "daily", "workflow": "glance-ends", "args": [WORD], "cron": "0 9 * * *", "note": WORD}
CLOUD = {"specversion": "1.0", "type": "other", "source": f"/{WORD}", "id": "c1", "subject": WORD, "data": WORD}


async def _done(door: Door, path: str, body: Any, **headers: str) -> Any:
    answer = await door("POST", f"/v1/{path}", body, **headers)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


async def _begin(door: Door, workflow: str, id: str, status: str, **more: Any) -> None:
    await _done(door, "executions", {"workflow": workflow, "id": id, "args": [WORD], **more})
    await door.app.get(id, "acme").until(status)  # type: ignore[arg-type]


async def _poison(door: Door) -> None:
    """An execution that the next worker cannot go on with, and a reason for that which quotes the data."""
    fitting, broken = two_releases()
    registry.add_workflow(fitting)
    async with door.app.working():
        await _begin(door, "glance-stuck", "stuck", "waiting")
    registry.add_workflow(broken)


async def _furnish(door: Door) -> dict[str, list[str]]:
    """Something of every kind, with the word in it; gives what can be named in a path."""
    callback = {"url": f"http://127.0.0.1:1/{WORD}", "secret": f"secret://{WORD}"}
    await _begin(door, "glance-waits", "waits", "waiting")
    await _begin(door, "glance-waits", "paused", "waiting")
    await _begin(door, "glance-waits", "stopped", "waiting")
    await _begin(door, "glance-fails", "failed", "failed")
    await _begin(door, "glance-ends", "done", "completed", callback=callback)
    await _begin(door, "glance-retries", "retries", "waiting")
    await _begin(door, "glance-rounds", "rounds", "waiting")
    await _begin(door, "glance-asks", "asks", "waiting")
    await _begin(door, "glance-buys", "buys", "waiting")
    [task] = (await _done(door, "external/poll", {"queue": "glance-node", "wait": "10s", "lease": "1h"}))["tasks"]
    await _done(door, "external/heartbeat", {"token": task["token"], "details": {"page": WORD}})
    await _done(door, "executions/waits/events", {"name": "paid", "payload": {"order": WORD}, "id": "e1"})
    await door.app.get("waits", "acme").until("completed")
    await _done(door, "executions/paused/events", CLOUD, content_type="application/cloudevents+json")
    await _done(door, "executions/paused/pause", {"reason": WORD})
    await _done(door, "executions/stopped/cancel", {"reason": WORD})
    for payload in (WORD, 7):  # the first is rejected
        await _done(door, "executions/rounds/events", {"name": "next", "payload": payload})
    await _done(door, "definitions", {"definition": GRAPH, "note": WORD})
    await _begin(door, "glance-graph", "graph", "waiting", args=None, input=WORD)
    await _done(door, "executions/graph/events", {"name": "paid", "payload": WORD})
    await _done(door, "definitions/glance-graph/deprecate", {"version": 1, "reason": WORD})
    await _done(door, "schedules", DAILY)
    await _done(door, "bulk", {"act": "send", "event": "x", "payload": WORD, "filter": {"workflow": "none"}})
    await _done(door, "hooks", {"name": "hook", "does": {"do": "start", "workflow": "x"}, "secret": f"secret://{WORD}"})
    await _done(door, "executions/stuck/events", {"name": "go", "payload": WORD})
    for id, status in (("stuck", "stuck"), ("paused", "paused"), ("stopped", "cancelled"), ("graph", "completed")):
        await door.app.get(id, "acme").until(status)  # type: ignore[arg-type]
    heads = await door.app.store.find(Query("acme", limit=1000))
    ids = [id_of(head.key) for head in heads]
    names = ["glance-graph", "daily", "hook"]
    return {"id": [id for id in ids if "/" not in id], "name": names, "event_id": ["e1"], "version": ["1"]}


Test = Callable[[Door, dict[str, list[str]]], Awaitable[None]]


Furnished = Callable[[Test], None]


@pytest.fixture
def furnished(tmp_path: Path) -> Furnished:
    """Runs a test with a tenant that has everything. Callbacks may go to this machine, where nobody answers."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / WORD).write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    async def main(test: Test) -> None:
        app = Perdure("memory://", secrets=str(tmp_path), outbound_private=True)
        transport = httpx.ASGITransport(app=api(app, People()))
        async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            door = Door(app, client)
            door.who = OWNER
            async with asyncio.timeout(40):
                await _poison(door)
                async with app.working():
                    await test(door, await _furnish(door))

    return lambda test: asyncio.run(main(test))


def _paths(route: Route, named: dict[str, list[str]]) -> list[str]:
    """The requests to a route: about each thing that its first name can be of, and the first of any other name."""
    if not route.names:
        return [path_of(route)]
    first, *rest = route.names
    others = {name: named[name][0] for name in rest if name in named}
    return [path_of(route, **{first: one}, **others) for one in named.get(first, ["x"])]


def _whole(answer: httpx.Response) -> str:
    return json.dumps([*answer.headers.items(), answer.text])


def _is_open_flow(route: Route) -> bool:
    return route.path.endswith("/stream")


def test_an_observer_finds_the_data_on_no_route_and_a_viewer_does(furnished: Furnished) -> None:
    async def main(door: Door, named: dict[str, list[str]]) -> None:
        door.who = OBSERVER
        got = set()
        for one in ALL:
            for path in _paths(one, named):
                answer = await door(one.method, path, body_of(one))
                assert WORD not in _whole(answer), (path, answer.text)
                if place_of(one) in GLANCES:
                    assert answer.status_code in (200, 404), (path, answer.text)
                    got |= {place_of(one)} if answer.status_code == 200 else set()
                elif one.scope is not None:
                    problem(answer, 403, "not-allowed")
        assert got == GLANCES.keys()
        door.who = VIEWER
        seen = set()
        for one in ALL:
            if one.scope == "read" and not _is_open_flow(one):
                answers = [await door(one.method, path) for path in _paths(one, named)]
                seen |= {place_of(one)} if any(WORD in answer.text for answer in answers) else set()
        assert GLANCES.keys() - seen == {("GET", f"/v1/{what}") for what in ("stats", "workers", "caller")}
        assert {path for _, path in seen} >= {
            "/v1/executions/{id}/result",
            "/v1/executions/{id}/state",
            "/v1/tasks/{id}",
        }

    furnished(main)


def test_an_observer_sees_the_same_events_by_their_names_and_times(furnished: Furnished) -> None:
    kinds = set()

    async def main(door: Door, named: dict[str, list[str]]) -> None:
        for id in named["id"]:
            path = f"/v1/executions/{id}/log?limit=1000"
            door.who = VIEWER
            whole = (await door("GET", path)).json()
            door.who = OBSERVER
            glimpse = (await door("GET", path)).json()
            assert glimpse["next"] == whole["next"]
            for one, other in zip(whole["events"], glimpse["events"], strict=True):
                assert all(one[same] == other[same] for same in ("version", "at", "type", "fence", "message_id"))
                kept = other["data"].keys() & glance.KEPT
                assert {name: one["data"][name] for name in kept} == {name: other["data"][name] for name in kept}
                if WORD in json.dumps(one):
                    kinds.add(one["type"])

    furnished(main)
    # The word was in the data of nearly every type of event that can have data.
    assert kinds >= {
        *("Started", "Completed", "Failed", "CancelRequested", "Cancelled", "Paused", "Stuck", "Restarted"),
        *("ActionAttempted", "ActionProgressed", "ActionScheduled", "ActionSettled", "EventReceived", "EventRejected"),
        *("NodeSettled", "ChildStarted", "ChildSettled", "Marked", "Published"),
    }


def test_what_stands_in_place_of_the_data(furnished: Furnished) -> None:
    async def main(door: Door, named: dict[str, list[str]]) -> None:
        door.who = OBSERVER
        failed = (await door("GET", "/v1/executions/failed")).json()
        assert (failed["status"], failed["workflow"], failed["result"]) == ("failed", "glance-fails", "redacted")
        assert (await door("GET", "/v1/executions/paused")).json()["state"] == "redacted"
        events = (await door("GET", "/v1/executions/failed/log")).json()["events"]
        assert events[0]["text"] == 'glance-fails@1 "redacted"'
        assert (events[0]["data"]["input"], events[0]["data"]["by"]) == ("redacted", "ann")
        assert events[-1]["text"] == "Trouble: redacted"
        error = events[-1]["data"]["error"]
        assert (error["type"], error["message"], error["where"]) == ("Trouble", "redacted", "redacted")
        [reason] = (await door("GET", "/v1/executions/failed/why")).json()["reasons"]
        assert (reason["kind"], reason["text"]) == ("nothing", "it has ended") and reason["since"]
        [reason] = (await door("GET", "/v1/executions/retries/why")).json()["reasons"]
        assert reason["text"] == "its actions run, or are to run" and reason["until"]
        [dead] = (await door("GET", "/v1/dead")).json()["dead"]
        assert (dead["id"], dead["cause"], dead["reason"]) == ("stuck", "nondeterminism", "redacted")
        [daily] = (await door("GET", "/v1/schedules")).json()["schedules"]
        assert (daily["cron"], daily["args"], daily["note"]) == ("0 9 * * *", ["redacted"], "redacted")
        [graph] = (await door("GET", "/v1/definitions")).json()["definitions"]
        assert (graph["name"], graph["versions"][0]["deprecated"]) == ("glance-graph", "redacted")
        assert (await door("GET", "/v1/stats")).json()["by_status"]["failed"] == 1

    furnished(main)


def test_after_an_observer_has_looked_the_log_is_whole_and_replayed_as_it_is() -> None:
    async def main() -> None:
        async with asyncio.timeout(30), opened(working=False) as door:
            app = door.app
            async with app.working():
                await _begin(door, "glance-waits", "w1", "waiting")
            run = app.get("w1", "acme")
            before = [row async for row in run.rows()]
            door.who = OBSERVER
            for path in ("", "/log", "/why"):
                assert WORD not in (await door("GET", f"/v1/executions/w1{path}")).text
            assert [row async for row in run.rows()] == before
            assert any(WORD.encode() in row.data for row in before)
            async with app.working():
                await run.send("paid", {"order": WORD})
                assert await run.result() == WORD

    asyncio.run(main())


def test_an_observer_cannot_ask_whether_a_published_field_or_a_label_has_a_value(furnished: Furnished) -> None:
    async def main(door: Door, named: dict[str, list[str]]) -> None:
        path = f"/v1/executions?field.stage={WORD}"
        door.who = VIEWER
        assert (await door("GET", path)).json()["executions"]
        door.who = OBSERVER
        told = problem(await door("GET", path), 403, "not-allowed")
        assert told["detail"].startswith("obi may not read: that takes one of the roles viewer, ")
        problem(await door("GET", "/v1/executions?field.stage=other"), 403, "not-allowed")
        for query in ("correlation=x", "tag=x", "tag=x&tag=y"):
            problem(await door("GET", f"/v1/executions?{query}"), 403, "not-allowed")

    furnished(main)


def test_an_observer_gets_the_log_as_cloudevents_without_the_data_and_no_others(furnished: Furnished) -> None:
    accept = "application/cloudevents-batch+json, application/cloudevents+json"

    async def main(door: Door, named: dict[str, list[str]]) -> None:
        async def both(path: str) -> tuple[httpx.Response, httpx.Response]:
            door.who = VIEWER
            whole = await door("GET", path, accept=accept)
            assert WORD in whole.text + str(whole.headers)
            door.who = OBSERVER
            return whole, await door("GET", path, accept=accept)

        whole, seen = await both("/v1/executions/paused/log")
        assert [list(one) for one in whole.json()] != [] and len(seen.json()) == len(whole.json())
        assert WORD not in seen.text
        own = [one for one in seen.json() if one["type"].startswith("perdure.log.")]
        entries = {one["version"]: one for one in (await door("GET", "/v1/executions/paused/log")).json()["events"]}
        assert own and all(one["data"] == entries[one["data"]["version"]] for one in own)
        for version in entries:
            for form in ("entry", "structured", "binary"):
                told = await door("GET", f"/v1/executions/paused/log/{version}?form={form}")
                assert told.status_code == 200 and WORD not in told.text + str(told.headers)
        _, refused = await both("/v1/executions/waits/events/e1")
        problem(refused, 403, "not-allowed")

    furnished(main)


def test_who_may_read_as_well_sees_everything(furnished: Furnished) -> None:
    async def main(door: Door, named: dict[str, list[str]]) -> None:
        door.who = "acme:obi:observer,viewer"
        assert WORD in (await door("GET", "/v1/executions/failed/log")).text
        door.who = "acme:obi:observer,worker"
        assert WORD not in (await door("GET", "/v1/executions/failed/log")).text

    furnished(main)


def test_an_api_key_can_be_an_observers(furnished: Furnished) -> None:
    async def main(door: Door, named: dict[str, list[str]]) -> None:
        keys = Keys(door.app)
        secret = (await keys.create("wall", ["observer"], tenant="acme")).secret
        transport = httpx.ASGITransport(app=api(door.app, Authenticator(keys=keys)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            client.headers["authorization"] = f"Bearer {secret}"
            answer = await client.get("/v1/executions/failed/log")
            assert answer.status_code == 200 and WORD not in answer.text
            problem(await client.get("/v1/executions/failed/result"), 403, "not-allowed")
        await keys.close()

    furnished(main)


# --- what is hidden, whatever an execution does -----------------------------------------------------------------------

#: The fields of events that have data, or may have. A new field is in neither list, and has to be thought about.
HIDDEN = {
    *(
        "acting_as",
        "args",
        "attributes",
        "buffered",
        "callback",
        "cancel",
        "code",
        "correlation",
        "details",
        "error",
        "input",
    ),
    *("lasting", "tags"),
    *("message", "note", "output", "patches", "payload", "published", "reason", "result", "roles", "seed", "source"),
    *("state", "trace", "undos", "value", "where"),
}


def test_every_field_of_every_event_is_known_to_be_data_or_none() -> None:
    fields = {name for kind in (*ev.NUMBERS, ev.Error) for name in kind.__struct_fields__}
    assert fields == glance.KEPT | HIDDEN
    assert not glance.KEPT & HIDDEN


def _full(kind: type[Struct]) -> Struct:
    """An event with the word in every field that is hidden, and in what is in these."""
    callback = {"url": WORD, "secret": WORD}
    error = {"type": "Trouble", "message": WORD, "where": WORD, "details": WORD, "kind": "permanent"}
    owed = {"undo": WORD, "args": WORD, "result": WORD, "version": 1}
    values: dict[str, Any] = {
        "error": {**error, "cause": error},
        "callback": callback,
        "cancel": {"reason": WORD, "by": "ann"},
        "buffered": [{"id": "e", "name": "go", "payload": WORD}],
        "undos": [owed],
        "patches": [WORD],
        "roles": [WORD],
        "acting_as": [WORD],
        "tags": [WORD],
        "attributes": {WORD: WORD},
        "lasting": [1],
    }
    for field in msgspec.structs.fields(kind):
        if field.name in HIDDEN:
            values.setdefault(field.name, WORD)
        else:
            values[field.name] = "kept" if field.type is str else field.type is bool or 1
    wanted = {name: value for name, value in values.items() if name in kind.__struct_fields__}
    return msgspec.json.decode(msgspec.json.encode(wanted), type=kind)


@pytest.mark.parametrize("kind", ev.NUMBERS, ids=lambda kind: kind.__name__)
def test_an_event_that_is_full_of_data_is_shown_without(kind: type[Any]) -> None:
    row = ev.row(_full(kind), 7, 1_000_000, 3, "m1")  # type: ignore[arg-type]
    whole = entries.entry(row)
    shown = glance.entry(whole)
    assert (shown.version, shown.at, shown.type, shown.fence, shown.message_id) == (7, whole.at, whole.type, 3, "m1")
    assert WORD not in repr(shown)
    assert WORD in repr(whole) or not HIDDEN & set(kind.__struct_fields__) - {"lasting"}
    kept = glance.KEPT & whole.data.keys()
    assert {name: shown.data[name] for name in kept} == {name: whole.data[name] for name in kept}


def test_an_event_of_another_release_shows_nothing_but_its_type() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    for kind, data in (("Unknown99", {"x": WORD}), ("Started", {"another": WORD})):
        shown = glance.entry(entries.Entry(4, at, kind, f"about {WORD}", data, 2, "m"))
        assert shown == entries.Entry(4, at, kind, "redacted", {}, 2, "m")


def test_a_reason_of_a_new_kind_is_not_told() -> None:
    told = reasons.Why("x", "waiting", [reasons.Reason("omen", WORD)], "w1", [f"{WORD}, line 7"])
    assert glance.why(told) == reasons.Why("x", "waiting", [reasons.Reason("omen", "redacted")], "w1")


def test_why_a_schedule_could_not_start_something_is_not_told() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    fired = [Fired("daily~1", at, "failed", WORD), Fired("daily~2", at, "started")]
    times = {"cron": "", "every": "1h", "at": [], "timezone": "UTC", "start": at, "end": None, "next": at}
    counts = {"started": 1, "skipped": 0, "failed": 1, "pending": 0, "created_at": at, "recent": fired}
    told = {"name": "daily", "workflow": "x", "args": [], "version": None, "note": "", "paused": False, "ended": False}
    one = Schedule(**told, **times, **counts, overlap="skip", catch_up="last", jitter="0s")  # type: ignore[arg-type]
    shown = glance.schedule(one)
    assert [fire.reason for fire in shown.recent] == ["redacted", ""]
    assert msgspec.structs.replace(shown, recent=fired, args=[]) == one


def test_an_answer_in_another_form_than_the_declared_one_is_refused() -> None:
    """Should a handler forget to ask: what is not the struct that a glance is made for is not sent."""

    async def handler(call: Any) -> Answer:
        return Answer([WORD], media="application/other+json", headers={"x": WORD})

    async def main() -> None:
        async with opened(working=False) as door:
            gate = Gate(door.app, None)  # type: ignore[arg-type]
            route = Route("GET", "/v1/x", "read", handler, answers={200: LogPage}, glance=glance.log)
            caller = await _caller(OBSERVER)
            with pytest.raises(Exception, match="obi may only glance"):
                await gate.served(None, route, caller, handler(None))  # type: ignore[arg-type]
            reader = await _caller(VIEWER)
            answer = await gate.served(None, route, reader, handler(None))  # type: ignore[arg-type]
            assert answer.data == [WORD]

    asyncio.run(main())


async def _caller(who: str) -> Any:
    return await People().caller({"authorization": f"Bearer {who}"})
