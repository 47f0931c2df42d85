"""Events that name no execution: whom they start, whom they wake, and whom they leave alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import (
    CloudEvent,
    DefinitionInvalid,
    ExpressionError,
    Graph,
    InvalidValue,
    Listen,
    Machine,
    On,
    Perdure,
    Run,
    State,
    event,
    workflow,
)
from perdure.core import cloudevents
from perdure.core.records import Head, Mail, Query, Sent, Start, Started
from perdure.errors import UsageError
from perdure.flows.registry import registry
from perdure.ports import Store
from perdure.runtime.callers import routing
from perdure.runtime.definitions import catalog
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import MemoryStream
from perdure.testing import World


@pytest.fixture(autouse=True)
def only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test declares is gone with it: everybody who is known here hears every event."""
    monkeypatch.setattr(registry, "_workflows", dict(registry._workflows))


def cloud(type: str, data: Any = None, id: str = "1", source: str = "/shop", **more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": id, "source": source, "type": type, "data": data, **more}


def shipping() -> Any:
    @workflow(name="shipping", listens=[Listen("order.paid", event=".data.order", own=".[0].id")])
    async def shipping(order: dict[str, Any]) -> Any:
        return await event("order.paid")

    return shipping


async def test_an_event_wakes_those_whose_input_it_names(world: World) -> None:
    app, flow = world.app, shipping()
    runs = [await app.start(flow, {"id": number}, id=f"s{number}") for number in range(3)]
    routed = await app.route(cloud("order.paid", {"order": 1}))
    assert (routed.woken, routed.started, routed.heard) == (["s1"], [], True)
    assert await runs[1].result() == {"order": 1}
    assert (await runs[0].head()).version == 1


async def test_an_event_that_comes_before_anybody_asked_for_it_waits(world: World) -> None:
    @workflow(name="late", listens=[Listen("order.paid", event=".data", own=".[0]")])
    async def late(order: str) -> Any:
        await asyncio.sleep(3600)
        return await event("order.paid")

    run = await world.app.start(late, "a")
    assert (await world.app.route(cloud("order.paid", "a"))).woken == [run.id]
    assert await run.result() == "a"


async def test_of_a_mixed_stream_exactly_the_matching_events_arrive(world: World) -> None:
    app = world.app

    @workflow(name="all-of-shop", listens=[Listen("tick", source="/shop")])
    async def of_shop() -> list[Any]:
        return [await event("tick") for _ in range(5)]

    @workflow(name="even", listens=[Listen("tick", when=".data % 2 == 0", name="even tick")])
    async def even() -> list[Any]:
        return [await event("even tick") for _ in range(10)]

    @workflow(name="all-there-is", listens=[Listen("tick"), Listen("end")])
    async def all_there_is() -> None:
        await event("end")

    first, second, third = await app.start(of_shop), await app.start(even), await app.start(all_there_is)
    for number in range(20):
        source = "/shop" if number % 4 == 0 else "/elsewhere"
        await app.route(cloud("tick", number, str(number), source))
        await app.route(cloud("tock", number, str(number), source))
    assert await first.result() == [0, 4, 8, 12, 16]
    assert await second.result() == list(range(0, 20, 2))
    await app.route(cloud("end"))
    await third.result()

    async def received(run: Run[Any]) -> list[str]:
        return [entry.data["name"] for entry in await run.log() if entry.type == "EventReceived"]

    assert await received(first) == ["tick"] * 5
    assert await received(second) == ["even tick"] * 10
    assert await received(third) == ["tick"] * 20 + ["end"]


async def test_an_event_that_nobody_listens_for_says_so(world: World) -> None:
    shipping()
    for one in (cloud("order.paid", {"order": 1}), cloud("else"), cloud("order.paid", "no order")):
        routed = await world.app.route(one)
        assert (routed.heard, routed.started, routed.woken, routed.refused) == (False, [], [], [])


async def test_an_execution_that_has_ended_is_not_woken(world: World) -> None:
    run = await world.app.start(shipping(), {"id": 1})
    await world.app.route(cloud("order.paid", {"order": 1}))
    await run.result()
    assert (await world.app.route(cloud("order.paid", {"order": 1}, "2"))).heard is False


async def test_another_tenant_is_never_matched(world: World) -> None:
    flow = shipping()
    await world.app.start(flow, {"id": 1}, id="a", tenant="acme")
    await world.app.start(flow, {"id": 1}, id="b", tenant="globex")
    assert (await world.app.route(cloud("order.paid", {"order": 1}), tenant="acme")).woken == ["a"]
    assert (await world.app.route(cloud("order.paid", {"order": 1}), tenant="globex")).woken == ["b"]


async def test_values_are_compared_as_json(world: World) -> None:
    flow = shipping()
    await world.app.start(flow, {"id": "1"}, id="text")
    await world.app.start(flow, {"id": 1}, id="number")
    await world.app.start(flow, {"id": {"a": 1, "b": 2}}, id="object")
    await world.app.start(flow, {}, id="nothing")
    assert (await world.app.route(cloud("order.paid", {"order": 1}))).woken == ["number"]
    assert (await world.app.route(cloud("order.paid", {"order": "1"}))).woken == ["text"]
    assert (await world.app.route(cloud("order.paid", {"order": {"b": 2, "a": 1}}, "2"))).woken == ["object"]
    assert (await world.app.route(cloud("order.paid", {"order": None}, "3"))).woken == []


async def test_a_fan_out_reaches_all_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "PAGE", 7)
    flow = shipping()
    ids = sorted(f"s{number:03}" for number in range(30))
    await asyncio.gather(*(world.app.start(flow, {"id": 1}, id=id) for id in ids))
    assert (await world.app.route(cloud("order.paid", {"order": 1}))).woken == ids
    for id in ids:
        assert await world.app.get(id).result() == {"order": 1}


async def test_the_same_event_again_is_one_event(world: World) -> None:
    @workflow(name="counting", listens=[Listen("tick"), Listen("tick", source="/shop")])
    async def counting() -> list[Any]:
        async with asyncio.timeout(60):
            return [await event("tick"), await event("tick")]

    run = await world.app.start(counting, id="c")
    for _ in range(3):
        assert (await world.app.route(cloud("tick", 1))).woken == ["c"]
    assert (await world.app.route(cloud("tick", 2, "2"))).woken == ["c"]
    assert await run.result() == [1, 2]
    assert len([one for one in await run.log() if one.type == "EventReceived"]) == 2


async def test_of_two_events_with_one_source_and_id_the_first_counts(world: World) -> None:
    flow = shipping()
    for id, pause in (("in the log", True), ("in the mailbox", False)):
        run = await world.app.start(flow, {"id": id}, id=id.replace(" ", "-"))
        if pause:
            await run.pause()
            await run.until("paused")
        await world.app.route(cloud("order.paid", {"order": id, "cents": 1}))
        await asyncio.sleep(1 if pause else 0)
        routed = await world.app.route(cloud("order.paid", {"order": id, "cents": 2}))
        assert (routed.woken, routed.refused) == ([run.id], [])
        if pause:
            await run.resume()
        assert (await run.result())["cents"] == 1


async def test_an_event_starts_the_newest_version_once(world: World) -> None:
    for number in (1, 2):

        @workflow(name="order", version=number, starts_on=[On("order.created", input=".data.lines")])
        async def order(lines: list[int]) -> list[int]:
            return [workflow.version, *lines]

    routed = await world.app.route(cloud("order.created", {"lines": [5]}))
    [id] = routed.started
    assert (await world.app.route(cloud("order.created", {"lines": [5]}))).started == [id]
    assert (await world.app.route(cloud("order.created", {"lines": [6]}, "2"))).started != [id]
    assert await world.app.get(id).result() == [2, 5]


async def test_who_is_started_by_an_event_does_not_hear_of_it_again(world: World) -> None:
    @workflow(name="echo", starts_on=[On("ping")], listens=[Listen("ping")])
    async def echo(data: Any) -> Any:
        return await event("ping")

    first = await world.app.route(cloud("ping", 1))
    again = await world.app.route(cloud("ping", 1))
    assert again.started == first.started and again.woken == []
    second = await world.app.route(cloud("ping", 2, "2"))
    assert second.woken == first.started and len(second.started) == 1


async def test_a_definition_that_cannot_take_it_does_not_keep_it_from_others(world: World) -> None:
    @workflow(name="numbers", starts_on=[On("new")], listens=[Listen("new")], events={"new": int})
    async def numbers(n: int) -> int:
        return await event("new", int)

    @workflow(name="anything", starts_on=[On("new")])
    async def anything(data: Any) -> Any:
        return data

    await world.app.start(numbers, 1, id="n")
    routed = await world.app.route(cloud("new", "text"))
    assert [await world.app.get(id).result() for id in routed.started] == ["text"]
    assert routed.woken == []
    assert {one.workflow for one in routed.refused} == {"numbers@1"} and routed.heard
    assert len((await world.app.route(cloud("new", 5, "2"))).started) == 2


async def test_a_condition_keeps_a_start_away(world: World) -> None:
    @workflow(name="big", starts_on=[On("new", when=".data > 100", input="{n: .data}")])
    async def big(data: dict[str, int]) -> int:
        return data["n"]

    assert (await world.app.route(cloud("new", 5))).heard is False
    [id] = (await world.app.route(cloud("new", 500, "2"))).started
    assert await world.app.get(id).result() == 500


async def test_children_detached_executions_and_forks_listen(world: World) -> None:
    flow = shipping()

    @workflow(name="parent")
    async def parent() -> Any:
        await workflow.start(flow, {"id": 2}, id="detached")
        return await flow({"id": 1})

    run = await world.app.start(parent, id="p")
    await run.until("waiting")
    [child] = (await world.app.find(parent=run.id)).heads or (await world.app.find(workflow="shipping")).heads[:1]
    fork = await world.app.get("detached").fork(id="fork")
    found = (await world.app.route(cloud("order.paid", {"order": 2}))).woken
    assert found == ["detached", "fork"]
    assert (await world.app.route(cloud("order.paid", {"order": 1}))).woken == [child.key.partition("/")[2]]
    assert await run.result() == {"order": 1}
    assert await fork.result() == {"order": 2}


async def test_a_new_round_keeps_listening_for_what_the_start_named(world: World) -> None:
    @workflow(name="rounds", listens=[Listen("tick", event=".data", own=".[0]")])
    async def rounds(name: str, count: int) -> str:
        await event("tick")
        if count:
            workflow.restart_with("another name", count - 1)
        return "done"

    run = await world.app.start(rounds, "a", 1, id="r")
    for number in range(2):
        assert (await world.app.route(cloud("tick", "a", str(number)))).woken == ["r"]
        await asyncio.sleep(1)
    assert await run.result() == "done"


async def test_an_imported_log_that_is_open_listens(world: World) -> None:
    run = await world.app.start(shipping(), {"id": 1}, id="a")
    rows = [row async for row in run.rows()]
    await world.app.adopt(rows, "b")
    assert (await world.app.route(cloud("order.paid", {"order": 1}))).woken == ["a", "b"]


async def test_machines_and_graphs_in_python_listen(world: World) -> None:
    Machine(
        "parcel",
        initial="packed",
        states={"packed": State(on={"sent": "away"}), "away": State(final=True)},
        starts_on=[On("parcel.packed")],
        listens=[Listen("parcel.sent", name="sent", event=".data.id", own=".[0].id")],
    )
    Graph(
        {
            "graph": "invoice",
            "listens": [{"type": "paid", "event": ".data", "own": ".[0].payload.id"}],
            "nodes": [
                {"id": "by hand", "type": "trigger"},
                {"id": "new", "type": "trigger", "data": {"event": "invoice.new", "source": "/books"}},
                {"id": "wait", "type": "wait", "data": {"events": [{"name": "paid"}]}},
                {"id": "end", "type": "end", "data": {"result": "${ .trigger }"}},
            ],
            "edges": [
                {"source": "by hand", "target": "wait"},
                {"source": "new", "target": "wait"},
                {"source": "wait", "target": "end"},
            ],
        }
    )
    [parcel] = (await world.app.route(cloud("parcel.packed", {"id": 4}))).started
    assert (await world.app.route(cloud("parcel.sent", {"id": 4}))).woken == [parcel]
    assert await world.app.get(parcel).result() == {"id": 4}
    assert (await world.app.route(cloud("invoice.new", {"id": 9}))).heard is False
    [invoice] = (await world.app.route(cloud("invoice.new", {"id": 9}, source="/books"))).started
    assert (await world.app.route(cloud("paid", 9))).woken == [invoice]
    assert await world.app.get(invoice).result() == {"id": 9}


PARCEL = {
    "machine": "published-parcel",
    "initial": "packed",
    "states": {"packed": {"on": {"sent": "away"}}, "away": {"final": True}},
    "starts_on": ["parcel.packed"],
    "listens": [{"type": "parcel.sent", "name": "sent", "event": "${ .data.id }", "own": ".[0].id"}],
}


async def test_what_was_published_listens_in_every_version_and_starts_in_the_newest(world: World) -> None:
    app = world.app
    await app.definitions.publish(PARCEL, tenant="acme")
    old = await app.start("published-parcel", {"id": 1}, id="old", tenant="acme")
    await app.definitions.publish({**PARCEL, "description": "newer", "listens": []}, tenant="acme")
    new = await app.route(cloud("parcel.packed", {"id": 1}), tenant="acme")
    assert (await app.get(new.started[0], "acme").head()).definition == "published:published-parcel@2"
    assert (await app.route(cloud("parcel.packed", {"id": 1}), tenant="globex")).heard is False
    await app.definitions.deprecate("published-parcel", 1, tenant="acme")
    assert (await app.route(cloud("parcel.sent", {"id": 1}), tenant="acme")).woken == ["old"]
    assert await old.result() == {"id": 1}
    await app.definitions.deprecate("published-parcel", 2, tenant="acme")
    assert (await app.route(cloud("parcel.packed", {"id": 2}, "2"), tenant="acme")).heard is False


async def test_definitions_are_read_again_only_when_one_was_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, searches, find = world.app, 0, world.app.store.find

    async def counted(query: Query) -> list[Head]:
        nonlocal searches
        searches += 1
        return await find(query)

    monkeypatch.setattr(app.store, "find", counted)
    await app.definitions.publish(PARCEL)
    for number in range(3):
        assert (await app.route(cloud("parcel.packed", {"id": number}, str(number)))).started
    assert searches == 1
    await app.definitions.deprecate("published-parcel", 1)
    assert not (await app.route(cloud("parcel.packed", {"id": 4}, "4"))).heard
    await app.definitions.restore("published-parcel", 1)
    assert (await app.route(cloud("parcel.packed", {"id": 4}, "4"))).started
    assert searches == 3


async def test_what_another_process_publishes_hears_the_very_next_event(world: World) -> None:
    other = Perdure(world.app.store, stream=MemoryStream())
    assert not (await world.app.route(cloud("parcel.packed", {"id": 1}))).heard
    await other.definitions.publish(PARCEL)
    assert (await world.app.route(cloud("parcel.packed", {"id": 1}))).started
    await other.definitions.deprecate("published-parcel", 1)
    assert not (await world.app.route(cloud("parcel.packed", {"id": 2}, "2"))).heard


async def test_what_is_written_while_definitions_are_read_is_seen_by_the_next_event(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, find = world.app, world.app.store.find
    await app.definitions.publish(PARCEL)

    async def slow(query: Query) -> list[Head]:
        found = await find(query)
        monkeypatch.setattr(app.store, "find", find)
        await app.definitions.publish({**PARCEL, "machine": "second-parcel"})
        return found

    monkeypatch.setattr(app.store, "find", slow)
    assert len((await app.route(cloud("parcel.packed", {"id": 1}))).started) == 1
    assert len((await app.route(cloud("parcel.packed", {"id": 1}))).started) == 2


async def test_more_definitions_than_fit_on_a_page_all_hear(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "PAGE", 2)
    for number in range(5):
        await world.app.definitions.publish({**PARCEL, "machine": f"parcel-{number}"})
    assert len((await world.app.route(cloud("parcel.packed", {"id": 1}))).started) == 5


async def test_a_published_child_of_a_graph_listens(world: World) -> None:
    app = world.app
    await app.definitions.publish(PARCEL)
    Graph(
        {
            "graph": "with-child",
            "nodes": [
                {"id": "start", "type": "trigger"},
                {"id": "child", "type": "child", "data": {"workflow": "published-parcel", "with": {"id": 3}}},
                {"id": "end", "type": "end"},
            ],
            "edges": [{"source": "start", "target": "child"}, {"source": "child", "target": "end"}],
        }
    )
    run = await app.start("with-child", None)
    await run.until("waiting")
    assert len((await app.route(cloud("parcel.sent", {"id": 3}))).woken) == 1
    assert await run.result() == {"id": 3}


async def test_an_execution_that_changes_its_version_listens_on(world: World) -> None:
    app = world.app
    await app.definitions.publish(PARCEL)
    run = await app.start("published-parcel", {"id": 1})
    await run.until("waiting")
    await app.definitions.publish({**PARCEL, "description": "newer"})
    await run.migrate(2)
    assert (await app.route(cloud("parcel.sent", {"id": 1}))).woken == [run.id]
    assert await run.result() == {"id": 1}


async def test_a_cloudevent_that_was_made_here_can_be_routed(world: World) -> None:
    run = await world.app.start(shipping(), {"id": 1})
    made = CloudEvent("1", "/shop", "order.paid", datetime(2030, 1, 1, tzinfo=UTC), {"order": 1}, "seven")
    routed = await world.app.route(made)
    assert routed.woken == [run.id]
    found = await run.cloudevent(routed.id)
    assert (found["subject"], found["time"]) == ("seven", "2030-01-01T00:00:00Z")
    assert (await run.event(routed.id)).name == "order.paid"


async def test_an_input_that_cannot_be_listened_for_is_refused(world: World) -> None:
    @workflow(name="strict", listens=[Listen("tick", event=".data", own=".[0] | tonumber")])
    async def strict(n: str) -> None: ...

    with pytest.raises(ExpressionError):
        await world.app.start(strict, "no number", id="x")
    assert (await world.app.find(workflow="strict")).heads == []


@pytest.mark.parametrize(
    ("listens", "starts_on", "what"),
    [
        ([Listen("a", event=".b")], [], "`event` and `own` go together"),
        ([Listen("a", event=".b |", own=".c")], [], r"listens\[0\]\.event"),
        ([Listen("")], [], "the type of the event"),
        ([Listen("b")], [], "no event 'b' is declared"),
        ([], [On("a", input=".b |")], r"starts_on\[0\]\.input"),
        ([], [On("a", when="(")], r"starts_on\[0\]\.when"),
        ([Listen("a")] * 101, [], "more than 100"),
    ],
)
def test_what_cannot_be_listened_for_is_said_when_it_is_declared(listens: Any, starts_on: Any, what: str) -> None:
    async def body() -> None: ...

    with pytest.raises(UsageError, match=what):
        workflow(name="wrong", events={"a": int}, listens=listens, starts_on=starts_on)(body)
    states = {"x": State(on={"a": "y"}), "y": State(final=True)}
    with pytest.raises(DefinitionInvalid, match=what):
        Machine("wrong", initial="x", states=states, listens=listens, starts_on=starts_on)
    document = {
        "machine": "wrong",
        "initial": "x",
        "states": {"x": {"on": {"a": "y"}}, "y": {"final": True}},
        "listens": msgspec.to_builtins(listens),
        "starts_on": msgspec.to_builtins(starts_on),
    }
    app = Perdure("memory://")
    assert any(problem.level == "error" for problem in app.definitions.validate(document))


@pytest.mark.parametrize("listens", ["tick", [{"typ": "tick"}], [5]])
def test_what_a_document_says_wrong_about_listening_is_told(listens: Any) -> None:
    app = Perdure("memory://")
    assert any(one.where.startswith("listens") for one in app.definitions.validate({**PARCEL, "listens": listens}))
    graph = {"graph": "g", "nodes": [{"id": "t", "type": "trigger"}, {"id": "e", "type": "end"}], "listens": listens}
    graph["edges"] = [{"source": "t", "target": "e"}]
    assert any(one.where.startswith("listens") for one in app.definitions.validate(graph))
    trigger = {"id": "t", "type": "trigger", "data": {"event": "x", "when": "("}}
    wrong = {**graph, "listens": [], "nodes": [trigger, {"id": "e", "type": "end"}]}
    assert [one.where for one in app.definitions.validate(wrong)] == ["nodes.t.when"]


async def test_what_is_no_cloudevent_is_not_routed(world: World) -> None:
    with pytest.raises(InvalidValue, match="source"):
        await world.app.route({"specversion": "1.0", "id": "1", "type": "x"})


# On every store


Play = Callable[[Perdure], Awaitable[None]]


def play(store: str | Store, body: Play, **more: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Perdure(store, **more) as app:
            await body(app)

    asyncio.run(main())


@pytest.fixture(params=["memory", "sqlite", "postgres", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mongodb":
        return str(request.getfixturevalue("mongodb"))
    if request.param == "postgres":
        found: str = request.getfixturevalue("postgres")
        return found
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"


def test_fifty_posts_of_one_event_start_one_execution_and_wake_once(url: str) -> None:
    @workflow(name="fifty", starts_on=[On("ping")])
    async def fifty(data: Any) -> Any:
        return data

    flow = shipping()

    async def body(app: Perdure) -> None:
        run = await app.start(flow, {"id": 1}, id="s")
        async with app.working():
            for type, data in (("ping", 5), ("order.paid", {"order": 1})):
                routed = await asyncio.gather(*(app.route(cloud(type, data)) for _ in range(50)))
                assert len({id for one in routed for id in one.started}) == (type == "ping")
                assert {id for one in routed for id in one.woken} == ({"s"} if type != "ping" else set())
            assert await run.result() == {"order": 1}
            found = (await app.find(workflow="fifty")).heads
            assert len(found) == 1
            received = [one for one in await run.log() if one.type == "EventReceived"]
            assert len(received) == 1

    play(url, body)


class Counted(MemoryStore):
    """Knows how many letters, or starts, each write had."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[int] = []
        self.sent: list[int] = []

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        self.started.append(len(starts))
        return await super().start(starts, grace)

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        self.sent.append(len(mail))
        return await super().send(mail, grace)


def test_events_of_many_callers_share_writes() -> None:
    @workflow(name="pinged", starts_on=[On("ping")])
    async def pinged(data: Any) -> Any:
        return data

    store, flow = Counted(), shipping()

    async def body(app: Perdure) -> None:
        await app.start(flow, {"id": 1}, id="s")
        store.started.clear()
        events = [cloud(type, {"order": 1}, str(n)) for n in range(50) for type in ("ping", "order.paid")]
        await asyncio.gather(*map(app.route, events))

    play(store, body, stream=MemoryStream())
    assert (sum(store.started), sum(store.sent)) == (50, 50)
    assert len(store.started) + len(store.sent) <= 10


def test_very_many_letters_of_one_caller_have_writes_of_their_own() -> None:
    store, flow = Counted(), shipping()

    async def body(app: Perdure) -> None:
        await asyncio.gather(*(app.start(flow, {"id": n}, id=f"s{n}") for n in range(11)))
        [routed] = await app.route_all([cloudevents.read(cloud("order.paid", {"order": 1}))])
        assert (routed.woken, store.sent) == (["s1"], [1])
        await app.route_all([cloudevents.read(cloud("order.paid", {"order": n}, str(n))) for n in range(11)])

    play(store, body, stream=MemoryStream(), group=10)
    assert store.sent == [1, 11]


def test_many_events_wake_many_in_few_writes(url: str) -> None:
    flow = shipping()

    async def body(app: Perdure) -> None:
        await asyncio.gather(*(app.start(flow, {"id": n}, id=f"s{n}") for n in range(300)))
        events = [cloudevents.read(cloud("order.paid", {"order": n}, str(n))) for n in range(300)]
        began = time.perf_counter()
        routed = await app.route_all(events)
        assert time.perf_counter() - began < 10
        assert [one.woken for one in routed] == [[f"s{n}"] for n in range(300)]
        async with app.working():
            assert await app.get("s299").result() == {"order": 299}

    play(url, body)
