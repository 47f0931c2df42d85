"""Graphs in few words, for tests: nodes by id, edges as `a > b:true > c`."""

from __future__ import annotations

import itertools
from typing import Any

from perdure.core import events as ev
from perdure.flows.graph import Graph
from perdure.runtime.run import Run
from perdure.testing import World


def body(name: str, nodes: dict[str, Any], *ways: str, **more: Any) -> dict[str, Any]:
    """`nodes` maps ids to a type, or to a type and its data; a way names nodes, each with the handle it is left by."""
    made = []
    for id, node in nodes.items():
        kind, data = (node, {}) if isinstance(node, str) else node
        made.append({"id": id, "type": kind, "data": data, "position": {"x": 0, "y": 0}})
    edges: list[dict[str, Any]] = []
    for way in ways:
        stops = [stop.strip().partition(":") for stop in way.split(">")]
        for (source, _, handle), (target, _, _) in itertools.pairwise(stops):
            edge = {"id": f"e{len(edges)}", "source": source, "target": target, "sourceHandle": handle or None}
            edges.append(edge)
    return {"graph": name, "nodes": made, "edges": edges, **more}


def graph(name: str, nodes: dict[str, Any], *ways: str, **more: Any) -> Graph:
    return Graph(body(name, nodes, *ways, **more))


async def settled(world: World, run: Run[Any]) -> list[tuple[str, str]]:
    """Nodes and how they settled, in order."""
    events = [ev.read(row) for row in await world.rows(run.key)]
    return [(event.node, event.status) for event in events if isinstance(event, ev.NodeSettled)]


async def node(world: World, run: Run[Any], id: str) -> ev.NodeSettled:
    events = [ev.read(row) for row in await world.rows(run.key)]
    return next(event for event in events if isinstance(event, ev.NodeSettled) and event.node == id)
