"""One process as a graph and as a document: their logs have the same shape.

What corresponds is written down here, and nothing else may differ: what a graph has as a node for its beginning and its
end is the beginning and the end of a document; `parallel` begins a fork and `join` ends it; and a graph publishes which
of its nodes are open, while a document leaves that to the records of its tasks.
"""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Run, action
from perdure.core import events as ev
from perdure.testing import World
from tests.flows.documenting import document, listed
from tests.flows.making import graph


@action
async def shape_check(total: int) -> int:
    return total


@action
async def shape_charge(total: int) -> str:
    return f"charged {total}"


@action
async def shape_note(total: int) -> str:
    return f"noted {total}"


GRAPH = graph(
    "same-shape",
    {
        "start": "trigger",
        "check": ("action", {"action": "shape_check", "with": {"total": "${ .trigger.total }"}}),
        "large": ("condition", {"when": ".trigger.total > 10"}),
        "cool": ("delay", {"duration": "1h"}),
        "split": "parallel",
        "charge": ("action", {"action": "shape_charge", "with": {"total": "${ .trigger.total }"}}),
        "nap": ("delay", {"duration": "2h"}),
        "join": "join",
        "note": ("action", {"action": "shape_note", "with": {"total": "${ .trigger.total }"}}),
        "end": "end",
    },
    "start > check > large:true > cool > split > charge > join > note > end",
    "split > nap > join",
    "large:false > note",
)
TOTAL = {"total": "${ $context.total }"}
DOCUMENT = document(
    {
        "check": {"call": "shape_check", "with": TOTAL},
        "large": {"switch": [{"no": {"when": "$context.total <= 10", "then": "note"}}]},
        "cool": {"wait": "PT1H"},
        "split": {
            "fork": {"branches": listed(charge={"call": "shape_charge", "with": TOTAL}, nap={"wait": {"hours": 2}})}
        },
        "note": {"call": "shape_note", "with": TOTAL},
    }
)
#: Nodes of the graph that have no task, and those of a fork: which of their two events is that of the task.
ENDS = ("start", "end")
FORK = {("NodeStarted", "split"): True, ("NodeSettled", "split"): False}
FORK |= {("NodeStarted", "join"): False, ("NodeSettled", "join"): True}


async def shape(world: World, run: Run[Any]) -> list[tuple[str, str]]:
    """The types of its events, with the node or task, the action, or the way in which it settled."""
    await run.result()
    found = []
    for row in await world.rows(run.key):
        event = ev.read(row)
        match event:
            case ev.NodeStarted():
                what = event.node.rpartition("/")[2]
            case ev.NodeSettled():
                what = f"{event.node.rpartition('/')[2]} {event.status}"
            case ev.ActionSettled():
                what = event.name
            case _:
                what = ""
        found.append((type(event).__name__, what))
    return found


def without_what_a_document_lacks(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    kept = []
    for kind, what in found:
        node, _, status = what.partition(" ")
        if kind == "Published" or node in ENDS or not FORK.get((kind, node), True):
            continue
        kept.append((kind, f"split {status}" if node == "join" else what))
    return kept


@pytest.mark.parametrize("total", [5, 50])
async def test_a_graph_and_its_document_run_to_the_same_shape_of_log(total: int, world: World) -> None:
    drawn = await shape(world, await world.start(GRAPH, {"total": total}))
    written = await shape(world, await world.start(DOCUMENT, {"total": total}))
    assert written == without_what_a_document_lacks(drawn)
    assert ("NodeSettled", "split completed") in written or total == 5


async def test_open_nodes_are_told_while_both_are_forked(world: World) -> None:
    seen = {}
    for made in (GRAPH, DOCUMENT):
        run = await world.start(made, {"total": 50})
        await world.advance("90m")
        state = await run.state()
        seen[made.kind] = [path.rpartition("/")[2] for path, node in state.nodes.items() if node.status == "open"]
        await run.cancel("seen")
    assert seen == {"graph": ["nap", "join"], "document": ["split", "nap"]}
