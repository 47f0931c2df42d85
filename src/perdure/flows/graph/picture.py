"""A graph as a diagram: the nodes with their labels, bodies of loops inside their loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.flows.diagram import Arrow, Box, Diagram, Mark, Shape
from perdure.flows.graph import model

if TYPE_CHECKING:
    from perdure.flows.graph.plan import Plan

_SHAPES: dict[str, Shape] = {
    "trigger": "start",
    "action": "box",
    "condition": "choice",
    "switch": "choice",
    "delay": "wait",
    "set": "box",
    "wait": "wait",
    "parallel": "split",
    "join": "join",
    "loop": "loop",
    "child": "child",
    "person": "person",
    "end": "end",
}


def picture(plan: Plan, current: Mapping[str, Mark]) -> Diagram:
    """`current` maps nodes to marks; of those in a loop, the last one that is given counts."""
    marks: dict[str, Mark] = {path.rpartition("/")[2]: mark for path, mark in current.items()}
    inside = plan.ways.loop_of
    boxes = [
        Box(
            node.id,
            node.data.label or node.id,
            _SHAPES[node.type],
            inside.get(node.id),
            marks.get(node.id, ""),
            _note(node.data),
        )
        for node in plan.model.nodes.values()
    ]
    arrows = [Arrow(edge.source, edge.target, edge.handle) for edge in plan.model.edges]
    return Diagram("flow", plan.model.name, tuple(boxes), tuple(arrows))


def _note(data: Any) -> str:
    """What matters most about a node, in a few words."""
    match data:
        case model.Act(action=action):
            return action
        case model.Condition(when=when):
            return when
        case model.Switch(value=value):
            return "" if value is None else str(value)
        case model.Delay(duration=duration, unit=unit):
            return f"{duration} {unit or ''}".strip()
        case model.Wait(events=events, mode=mode):
            names = ", ".join(event.name for event in events)
            return names if len(events) == 1 else f"{mode} of {names}"
        case model.Join(mode=mode):
            return "" if mode == "all" else str(mode)
        case model.Loop(items=items):
            return items if isinstance(items, str) else f"{len(items)} items"
        case model.Child(workflow=workflow):
            return workflow
        case model.Person(task=task, roles=roles):
            return f"{task} ({', '.join(roles)})" if roles else task
        case model.Assign(variables=variables):
            return ", ".join(variables)
        case _:
            return ""
