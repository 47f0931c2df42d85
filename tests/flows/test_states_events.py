"""Events of workflows of states: those that start one, those that are waited for, those that are let out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import ExecutionFailed, Perdure
from perdure.core.records import id_of
from perdure.flows.states import States
from perdure.runtime.app import Perdure as App
from perdure.testing import World
from tests.flows.stating import body, echoes, operation, result, states

EVENTS = [
    {"name": "paid", "type": "stating.paid", "source": "/bank"},
    {"name": "sent", "type": "stating.sent", "source": "/post"},
    {"name": "whole", "type": "stating.whole", "source": "/bank", "dataOnly": False},
    {"name": "ask", "type": "stating.ask", "kind": "produced"},
]


def event(*on: dict[str, Any], name: str = "e", **more: Any) -> dict[str, Any]:
    way = {} if "transition" in more else {"end": True}
    return {"name": name, "type": "event", "onEvents": list(on), **way, **more}


def on(*names: str, **more: Any) -> dict[str, Any]:
    return {"eventRefs": list(names), **more}


def waiting(*found: dict[str, Any], **more: Any) -> States:
    """It does not begin with what waits, so nothing but a start starts it."""
    first = {"name": "first", "type": "inject", "data": {}, "transition": found[0]["name"]}
    return states(first, *found, events=EVENTS, **more)


# --- waiting ---------------------------------------------------------------------------------------------------------


async def test_of_an_exclusive_state_any_event_is_enough(world: World) -> None:
    made = waiting(event(on("paid", actions=[echoes(a=1)]), on("sent", actions=[echoes(b="${ .n }")])))
    assert await result(world, made, send=[("stating.sent", {"n": 5})]) == {"n": 5, "b": 5}


async def test_of_any_other_state_all_of_them_have_to_come_before_anything_is_done(world: World) -> None:
    made = waiting(event(on("paid", actions=[echoes(a="${ .m }")]), on("sent"), exclusive=False))
    run = await world.start(made, {})
    await run.send("stating.paid", {"n": 1})
    await world.advance("1h")
    assert not [node for node in (await run.state()).nodes if "actions" in node]
    await run.send("stating.sent", {"m": 2})
    assert await run.result() == {"n": 1, "a": None, "m": 2}


@pytest.mark.parametrize("exclusive", [True, False])
async def test_what_does_not_come_in_time_is_not_waited_for(world: World, exclusive: bool) -> None:
    made = waiting(
        event(on("paid", "sent", actions=[echoes(a=1)]), exclusive=exclusive, timeouts={"eventTimeout": "PT1H"})
    )
    assert await result(world, made) == {}


async def test_a_filter_says_what_of_an_event_is_kept_and_where(world: World) -> None:
    filters = {"data": "${ .data.n }", "toStateData": "${ .numbers.last }"}
    made = waiting(event(on("whole", eventDataFilter=filters)))
    assert await result(world, made, send=[("stating.whole", {"n": 5})]) == {"numbers": {"last": 5}}
    made = waiting(event(on("paid", eventDataFilter={"useData": False})))
    assert await result(world, made, send=[("stating.paid", {"n": 5})]) == {}


async def test_a_switch_takes_the_first_event_or_the_default_in_time(world: World) -> None:
    switch = {
        "name": "s",
        "type": "switch",
        "eventConditions": [{"eventRef": "paid", "transition": "p"}, {"eventRef": "sent", "end": True}],
        "timeouts": {"eventTimeout": "PT1H"},
        "defaultCondition": {"transition": "late"},
    }
    made = waiting(switch, operation(echoes(paid=True), name="p"), operation(echoes(late=True), name="late"))
    assert await result(world, made, send=[("stating.paid", {"n": 1})]) == {"n": 1, "paid": True}
    assert await result(world, made, send=[("stating.sent", {"n": 1})]) == {"n": 1}
    assert await result(world, made) == {"late": True}


async def test_a_callback_asks_first_and_then_waits(world: World) -> None:
    made = states(
        {"name": "c", "type": "callback", "action": echoes(asked=True), "eventRef": "paid", "end": True},
        events=EVENTS,
    )
    run = await world.start(made, {})
    await world.settle()
    assert (await run.state()).nodes["/states/c/action/echo"].status == "completed"
    await run.send("stating.paid", {"n": 1})
    assert await run.result() == {"asked": True, "n": 1}


# --- asking ----------------------------------------------------------------------------------------------------------


async def test_an_event_is_let_out_and_answered(world: World) -> None:
    asks = {"eventRef": {"triggerEventRef": "ask", "resultEventRef": "paid", "data": {"n": "${ .n }"}}}
    run = await world.start(states(operation(asks), events=EVENTS), {"n": 3})
    await world.settle()
    [sent] = [entry.data for entry in await run.log() if entry.type == "ActionSettled"]
    assert sent["result"]["type"] == "stating.ask"
    assert sent["result"]["data"] == {"n": 3}
    await run.send("stating.paid", {"m": 4})
    assert await run.result() == {"n": 3, "m": 4}


async def test_an_answer_that_does_not_come_is_an_error(world: World) -> None:
    asks = {"triggerEventRef": "ask", "resultEventRef": "paid", "resultEventTimeout": "PT1M"}
    with pytest.raises(ExecutionFailed, match="event paid did not come within 60 s"):
        await result(world, states(operation({"eventRef": asks}), events=EVENTS))


async def test_an_answer_that_nobody_waits_for_is_not_taken(world: World) -> None:
    asks = {"triggerEventRef": "ask", "resultEventRef": "paid", "invoke": "async"}
    made = states(operation({"eventRef": asks}), events=EVENTS)
    assert await result(world, made, send=[("stating.paid", {"n": 1})]) == {}


# --- starting and belonging together ---------------------------------------------------------------------------------


def on_memory(main: Any) -> None:
    async def run() -> None:
        app = Perdure("memory://")
        async with asyncio.timeout(60), app, app.working():
            await main(app)

    asyncio.run(run())


def cloud(id: str, type: str, source: str, data: Any, **attributes: str) -> dict[str, Any]:
    made = {"specversion": "1.0", "id": id, "type": type, "source": source, "time": "2030-01-01T00:00:00Z"}
    return {**made, **attributes, "data": data}


async def executions(app: App, name: str) -> list[Any]:
    return [app.get(id_of(head.key)) for head in (await app.find(workflow=name)).heads]


def test_a_workflow_that_begins_with_an_event_is_started_by_it() -> None:
    async def main(app: App) -> None:
        found = body(event(on("paid", actions=[echoes(m="${ .n + 1 }")])), events=EVENTS, id="stating-starts")
        await app.definitions.publish(found)
        await app.route(cloud("1", "stating.paid", "/bank", {"n": 1}))
        await app.route(cloud("2", "stating.paid", "/elsewhere", {"n": 1}))
        [run] = await executions(app, "stating-starts")
        assert await run.result(20) == {"n": 1, "m": 2}

    on_memory(main)


def test_events_belong_together_by_their_attributes() -> None:
    common = [{"contextAttributeName": "patientId"}, {"contextAttributeName": "ward", "contextAttributeValue": "7"}]
    events = [
        {"name": "came", "type": "stating.came", "source": "/ward", "correlation": common},
        {"name": "left", "type": "stating.left", "source": "/ward", "correlation": common[:1]},
    ]

    async def main(app: App) -> None:
        found = body(
            event(on("came"), transition="bye"), event(on("left"), name="bye"), events=events, id="stating-together"
        )
        await app.definitions.publish(found)
        await app.route(cloud("1", "stating.came", "/ward", {"ann": 1}, patientid="ann", ward="7"))
        await app.route(cloud("2", "stating.came", "/ward", {"bob": 1}, patientid="bob", ward="7"))
        await app.route(cloud("3", "stating.came", "/ward", {"eve": 1}, patientid="eve", ward="8"))
        await app.route(cloud("4", "stating.came", "/ward", {"who": 1}, ward="7"))
        runs = await executions(app, "stating-together")
        assert len(runs) == 2
        await app.route(cloud("5", "stating.left", "/ward", {"bye": "bob"}, patientid="bob"))
        await app.route(cloud("6", "stating.left", "/ward", {"bye": "ann"}, patientid="ann"))
        assert sorted([sorted((await run.result(20)).items()) for run in runs]) == [
            [("ann", 1), ("bye", "ann")],
            [("bob", 1), ("bye", "bob")],
        ]

    on_memory(main)
