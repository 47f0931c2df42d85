"""Machines and graphs while everything fails: workers die or hang, answers and hints get lost, clocks jump."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Do, Graph, Machine, Run, State, To, action
from perdure.testing import simulate

SEEDS = 20


@action(name="faults.work")
async def work(step: str, seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return step


@work.undo
async def unwork(step: str, done: str) -> None: ...


def does(step: str, seconds: float = 0.0, **options: Any) -> Do:
    return Do(work, [step, seconds], name=step, **options)


machine = Machine(
    "faults-machine",
    initial="new",
    states={
        "new": State(
            after={"40s": "late"},
            on={
                "pay": To(
                    "paid",
                    do=[
                        does("reserve", 2.0),
                        does("charge", 1.0),
                        does("pack", after=["reserve", "charge"], set=lambda data, result: {**data, "packed": result}),
                    ],
                ),
                "late": To("new", do=[does("remind")]),
            },
        ),
        "paid": State(
            initial="waiting",
            exit=[does("bye")],
            on={"ship": To("sent", roles=["packer"], set=lambda data, event: {**data, "by": event.by})},
            states={"waiting": State(after={"30s": To("reminded", do=[does("nudge")])}), "reminded": State()},
        ),
        "sent": State(final=True),
    },
)

graph = Graph(
    {
        "graph": "faults-graph",
        "nodes": [
            {"id": "start", "type": "trigger"},
            {"id": "both", "type": "parallel"},
            {"id": "left", "type": "action", "data": {"action": "faults.work", "with": ["left", 2.0]}},
            {"id": "nap", "type": "delay", "data": {"duration": "20s"}},
            {"id": "right", "type": "action", "data": {"action": "faults.work", "with": ["right"]}},
            {"id": "met", "type": "join"},
            {"id": "each", "type": "loop", "data": {"items": "[1, 2, 3]", "mode": "parallel", "limit": 2}},
            {"id": "pack", "type": "action", "data": {"action": "faults.work", "with": ["${ \"pack \\(.item)\" }"]}},
            {"id": "go", "type": "wait", "data": {"events": [{"name": "go"}], "mode": "any"}},
            {"id": "end", "type": "end", "data": {"result": "${ [.outputs.met, .outputs.each] }"}},
        ],
        "edges": [
            {"source": "start", "target": "both"},
            {"source": "both", "target": "left"},
            {"source": "both", "target": "right"},
            {"source": "right", "target": "nap"},
            {"source": "left", "target": "met"},
            {"source": "nap", "target": "met"},
            {"source": "met", "target": "each"},
            {"source": "each", "sourceHandle": "each", "target": "pack"},
            {"source": "pack", "target": "each"},
            {"source": "each", "sourceHandle": "done", "target": "go"},
            {"source": "go", "target": "end"},
        ],
    }
)  # fmt: skip


async def trade(run: Run[Any]) -> None:
    await run.send("pay", id="pay")
    await run.send("pay", id="again")  # too late, always
    await run.send("ship", id="ship", by="pat", roles=["packer"])


def in_order(log: list[Any]) -> list[str]:
    return [entry.data["to_state"] for entry in log if entry.type == "StateChanged"]


@pytest.mark.parametrize("batch", range(2))
def test_a_machine_keeps_its_rules_whatever_fails(batch: int) -> None:
    async def check(run: Run[Any]) -> None:
        states = in_order(await run.log())
        assert (states[0], states[-1]) == ("new", "sent")
        assert "paid.waiting" in states

    report = simulate(machine, {}, seeds=range(batch * SEEDS, (batch + 1) * SEEDS), send=trade, check=check)
    assert report.executions == 3 * SEEDS


@pytest.mark.parametrize("batch", range(2))
def test_a_graph_keeps_its_rules_whatever_fails(batch: int) -> None:
    async def check(run: Run[Any]) -> None:
        nodes = (await run.state()).nodes
        assert {node.status for node in nodes.values()} == {"completed"}
        assert {"left", "right", "nap", "met", "each[0]/pack", "each[1]/pack", "each[2]/pack", "go", "end"} < set(nodes)

    report = simulate(graph, None, seeds=range(batch * SEEDS, (batch + 1) * SEEDS), send=[("go", None)], check=check)
    assert report.executions == 3 * SEEDS
