"""Graphs over HTTP: which trigger started what, which nodes are open, what later nodes see and the API shows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure import Perdure, action
from perdure.core import view
from perdure.core.replay import Replay
from perdure.flows.reading import LENGTH
from perdure.runtime.definitions.published import ref_in
from tests.flows.making import body
from tests.http.test_api import Door, problem, served

ORDER = body(
    "http-order",
    {
        "manual": "trigger",
        "ordered": ("trigger", {"event": "http.ordered", "input": ".data"}),
        "returned": ("trigger", {"event": "http.returned", "input": ".data"}),
        "price": ("action", {"action": "httpgraph.price", "with": {"items": "${ .trigger }"}}),
        "keep": ("set", {"variables": {"total": "${ .outputs.price.cents }"}}),
        "both": "parallel",
        "paid": ("wait", {"events": [{"name": "paid"}]}),
        "packed": ("wait", {"events": [{"name": "packed"}]}),
        "met": "join",
        "end": ("end", {"result": "${ [.variables.total, .outputs.price.cents, .metadata.owner, .outputs.met] }"}),
    },
    "manual > price",
    "ordered > price",
    "returned > price > keep > both > paid > met > end",
    "both > packed > met",
    variables={"total": 0, "currency": "EUR"},
    metadata={"owner": "shop"},
)


@action(name="httpgraph.price")
async def price(items: int) -> dict[str, int]:
    return {"cents": 100 * items}


@action(name="httpgraph.long")
async def long(length: int) -> str:
    return "x" * length


async def rested(door: Door, id: str, status: Any = "waiting") -> dict[str, Any]:
    """What the API says of an execution that has come to rest."""
    await door.app.get(id, "acme").until(status)
    answer = await door("GET", f"/v1/executions/{id}/state")
    assert answer.status_code == 200, answer.text
    state: dict[str, Any] = answer.json()
    return state


async def published(door: Door, definition: Any) -> None:
    made = await door("POST", "/v1/definitions", {"definition": definition})
    assert made.status_code == 201, made.text


def test_which_of_three_triggers_started_each_execution_is_recorded() -> None:
    async def main(door: Door) -> None:
        await published(door, ORDER)
        begun = await door("POST", "/v1/executions", {"workflow": "http-order", "input": 3})
        ids = {"manual": begun.json()["id"]}
        for type in ("ordered", "returned"):
            cloud = {"specversion": "1.0", "type": f"http.{type}", "source": "/s", "id": type, "data": 3}
            [ids[type]] = (await door("POST", "/v1/events", cloud)).json()["started"]
        for trigger, id in ids.items():
            state = await rested(door, id)
            assert state["published"]["trigger"] == trigger
            assert [name for name in state["nodes"] if name in ids] == [trigger], "the node of the others never ran"
            found = await door("GET", f"/v1/executions?field.trigger={trigger}")
            assert [one["id"] for one in found.json()["executions"]] == [id]

    served(main)


def test_all_open_nodes_are_told_while_it_is_forked() -> None:
    async def main(door: Door) -> None:
        await published(door, ORDER)
        await door("POST", "/v1/executions", {"workflow": "http-order", "input": 3, "id": "f"})

        async def now_open() -> tuple[list[str], list[str], list[str]]:
            state = await rested(door, "f")
            short = (await door("GET", "/v1/executions/f")).json()["state"]["open"]
            whole = [name for name, one in state["nodes"].items() if one["status"] == "open"]
            return short, state["published"]["open"], sorted(whole)

        assert await now_open() == (["packed", "paid"], ["packed", "paid"], ["packed", "paid"])
        await door("POST", "/v1/executions/f/events", {"name": "packed", "payload": 1})
        assert await now_open() == (["met", "paid"], ["met", "paid"], ["met", "paid"])
        await door("POST", "/v1/executions/f/events", {"name": "paid", "payload": 2})
        assert (await rested(door, "f", "completed"))["published"]["open"] == []

    served(main)


async def refolded(app: Perdure, id: str) -> tuple[view.State, dict[str, Any]]:
    """What the log alone says, and what the code makes of it."""
    run = app.get(id, "acme")
    rows = [row async for row in run.rows()]
    ref = ref_in(run.key, rows)
    assert ref is not None
    replay = Replay(run.key, await app.published.one(ref))
    replay.load(rows)
    shown = dict(replay.published)
    replay.evict()
    return view.final(rows, run.key), shown


def test_variables_outputs_and_metadata_are_seen_by_later_nodes_and_by_the_api_as_the_log_has_them() -> None:
    async def main(door: Door) -> None:
        await published(door, ORDER)
        await door("POST", "/v1/executions", {"workflow": "http-order", "input": 3, "id": "c"})
        state = await rested(door, "c")
        assert state["published"]["metadata"] == {"owner": "shop"}
        assert state["published"]["variables"] == {"total": 300, "currency": "EUR"}
        assert state["nodes"]["price"]["output"] == {"cents": 300}
        known = (await door("GET", "/v1/definitions/http-order?version=1")).json()
        assert known["body"]["metadata"] == {"owner": "shop"} and state["definition"].endswith("http-order@1")
        for name, payload in (("paid", "a"), ("packed", "b")):
            folded, shown = await refolded(door.app, "c")
            assert folded.published == shown == state["published"]
            assert {name: one["output"] for name, one in state["nodes"].items()} == {
                name: one.output for name, one in folded.nodes.items()
            }
            await door("POST", "/v1/executions/c/events", {"name": name, "payload": payload})
            state = await rested(door, "c", "completed" if name == "packed" else "waiting")
        assert state["result"] == [300, 300, "shop", {"paid": ["a"], "packed": ["b"]}]

    served(main)


def sets(name: str, length: int) -> tuple[str, dict[str, Any]]:
    return "set", {"variables": {name: f'${{ "x" * {length} }}'}}


@pytest.mark.parametrize(
    ("nodes", "status", "told"),
    [
        ([("action", {"action": "httpgraph.long", "with": {"length": 1_000_000}})], "failed", "1,000,002 bytes"),
        ([sets("x", 1_000_000)], "stuck", "the data of node n0 has 1,000,008 bytes"),
        ([sets("x", 600_000), sets("y", 600_000)], "stuck", "what it publishes has 1,200,0"),
    ],
    ids=["output", "variable", "all variables"],
)
def test_outputs_and_variables_are_limited(nodes: list[Any], status: Any, told: str) -> None:
    async def main(door: Door) -> None:
        named = {f"n{number}": node for number, node in enumerate(nodes)}
        way = " > ".join(["start", *named, "end"])
        await published(door, body("http-large", {"start": "trigger", **named, "end": "end"}, way))
        await door("POST", "/v1/executions", {"workflow": "http-large", "id": "l"})
        await door.app.get("l", "acme").until(status)
        why = (await door("GET", "/v1/executions/l/why")).json()
        assert told in why["reasons"][0]["text"]

    served(main)


def test_metadata_and_a_definition_are_limited() -> None:
    async def main(door: Door) -> None:
        large = {**ORDER, "metadata": {"note": "x" * LENGTH}}
        refused = await door("POST", "/v1/definitions", {"definition": large})
        assert "too much" in problem(refused, 422, "invalid-value")["detail"]
        refused = await door("POST", "/v1/definitions", {"definition": {**ORDER, "metadata": {"note": "x" * 20_000}}})
        assert "has 20,011 bytes" in refused.text

    served(main, working=False)


def test_the_actions_are_listed_with_name_version_description_and_both_schemas() -> None:
    async def main(door: Door) -> None:
        listed = {one["name"]: one for one in (await door("GET", "/v1/actions")).json()["actions"]}
        assert listed["httpgraph.price"] == {
            "name": "httpgraph.price",
            "version": 1,
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {"items": {"type": "integer"}},
                "required": ["items"],
                "additionalProperties": False,
            },
            "result": {"type": "object", "additionalProperties": {"type": "integer"}},
        }
        assert listed.keys() >= {"httpgraph.long", "http.greet"}
        assert not any(name.startswith("perdure.") for name in listed)
        msgspec.json.encode(listed)

    served(main, working=False)
