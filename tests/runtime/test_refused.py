"""What may not be published, in each of the ways to say a workflow: nothing is written, and the place is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import DefinitionInvalid, InvalidValue, Perdure, Secret, action
from tests.flows import documenting, making

SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "additionalProperties": False}


@action(name="refused.use", retries=0)
async def use(what: str, key: Secret | None = None) -> str:
    return what


def called(name: str = "refused.use", what: str = "x", **more: Any) -> dict[str, Any]:
    return {"action": name, "with": {"what": what, **more}}


def machine(*entry: dict[str, Any], on: Any = None, **more: Any) -> dict[str, Any]:
    begin = {"entry": list(entry), "on": on or {"go": "end"}}
    return {"machine": "refused", "initial": "begin", "states": {"begin": begin, "end": {"final": True}}, **more}


def graph(kind: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return making.body("refused", {"start": "trigger", "bad": (kind, data)}, "start > bad", **more)


def document(*tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**documenting.body("refused", {}), "do": list(tasks), **more}


def states(*others: dict[str, Any], operation: str = "refused.use", what: str = "x", **more: Any) -> dict[str, Any]:
    ref = {"functionRef": {"refName": "use", "arguments": {"what": what}}}
    first = {"name": "a", "type": "operation", "actions": [ref], "end": True}
    functions = [{"name": "use", "type": "custom", "operation": operation}]
    return {"id": "refused", "specVersion": "0.8", "functions": functions, "states": [first, *others], **more}


SAY = {"call": "refused.use", "with": {"what": "x"}}
DOUBLED = making.body("refused", {"start": "trigger", "bad": ("action", called())}, "start > bad")
DOUBLED["nodes"] += DOUBLED["nodes"][1:]
REFUSED: dict[str, tuple[Any, str, str]] = {
    "graph: an id twice": (DOUBLED, "nodes.bad", "two nodes with this id"),
    "document: an id twice": (document({"a": SAY}, {"a": SAY}), "/do/1/a", "two tasks named 'a'"),
    "states: an id twice": (
        states({"name": "a", "type": "inject", "data": {}, "end": True}),
        "/states/1/name",
        "two states are",
    ),
    "machine: an unknown action": (machine(called("refused.none")), "states.begin", "refused.none"),
    "graph: an unknown action": (graph("action", called("refused.none")), "nodes.bad", "refused.none"),
    "document: an unknown action": (
        document({"a": {"call": "refused.none"}}),
        "actions.refused.none",
        "no action of this name",
    ),
    "states: an unknown action": (
        states(operation="refused.none"),
        "actions.refused.none",
        "no action of this name",
    ),
    "machine: a bad expression": (machine(called(what="${ .a. }")), "states.begin", "expression"),
    "graph: a bad expression": (graph("action", called(what="${ .a. }")), "nodes.bad", "expression"),
    "document: a bad expression": (document({"a": {"set": {"n": "${ .a. }"}}}), "/do/0/a", "expression"),
    "states: a bad expression": (states(what="${ .a. }"), "/states/0", "expression"),
    "machine: a wait for nothing": (
        machine(
            on={"paid": {"to": "end", "when": "${ .event.payload.total > 5 }"}}, events={"paid": {"schema": SCHEMA}}
        ),
        "states.begin.on.paid.when",
        "no 'paid' can match",
    ),
    "graph: a wait for nothing": (
        graph("wait", {"events": [{"name": "paid", "match": {"sum": "5"}}]}, events={"paid": {"schema": SCHEMA}}),
        "nodes.bad",
        "no 'paid' can match",
    ),
    "states: a wait for nothing": (
        states({"name": "b", "type": "event", "onEvents": [{"eventRefs": ["paid"]}], "end": True}),
        "/states/1",
        "paid",
    ),
    "machine: a secret that is not there": (machine(called(key="secret://none")), "states.begin", "no secret 'none'"),
    "graph: a secret that is not there": (
        graph("action", called(key="secret://none")),
        "nodes.bad",
        "no secret 'none'",
    ),
    "document: a secret that is not there": (
        document({"a": SAY}, use={"secrets": ["none"]}),
        "/use/secrets",
        "no secret 'none'",
    ),
    "states: a secret that is not there": (states(secrets=["none"]), "/secrets", "no secret 'none'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_not_published(what: str) -> None:
    body, where, message = REFUSED[what]

    async def main() -> None:
        async with Perdure("memory://", secrets=lambda tenant, name: None) as app:
            with pytest.raises(DefinitionInvalid) as caught:
                await app.definitions.publish(body)
            problems = [one for one in caught.value.problems if one.level == "error"]
            assert any(one.where.startswith(where) and message in one.message for one in problems), problems
            assert await app.definitions.list() == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "text", ['{"a": {"final": true}, "a": {"final": true}}', "\n  a: {final: true}\n  a: {final: true}"]
)
def test_a_machine_with_a_state_twice_is_not_published(text: str) -> None:
    head = (
        '{"machine": "refused", "initial": "a", "states": %s}'
        if text.startswith("{")
        else ("machine: refused\ninitial: a\nstates: %s\n")
    )

    async def main() -> None:
        async with Perdure("memory://") as app:
            with pytest.raises(InvalidValue, match="the key 'a' is given twice"):
                await app.definitions.publish(head % text)
            assert await app.definitions.list() == []

    asyncio.run(main())
