"""A workflow of states as a diagram: its states, branches inside of those that have some, and where they lead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perdure.flows.diagram import Arrow, Box, Diagram, Mark, Shape
from perdure.flows.states.many import Parallel
from perdure.flows.states.plain import Sleep

if TYPE_CHECKING:
    from perdure.flows.states.plan import Plan
    from perdure.flows.states.state import State

_SHAPES: dict[str, Shape] = {
    "event": "wait",
    "operation": "box",
    "switch": "choice",
    "sleep": "wait",
    "parallel": "split",
    "inject": "box",
    "foreach": "loop",
    "callback": "wait",
}


def picture(plan: Plan, current: Mapping[str, Mark]) -> Diagram:
    """`current` maps names of states to marks."""
    boxes = [Box("start", shape="start")]
    arrows = [Arrow("start", plan.states[plan.first].at)]
    ends = False
    for state in plan.states.values():
        mark = current.get(state.name, "")
        boxes.append(Box(state.at, state.name, _SHAPES[state.type], None, mark, _note(state)))
        if isinstance(state, Parallel):
            boxes += [Box(branch.at, branch.name, "box", state.at) for branch in state.branches]
        for label, way in state.ways():
            ends = ends or not way.to
            arrows.append(Arrow(state.at, plan.states[way.to].at if way.to else "end", label))
        if state.compensated_by:
            arrows.append(Arrow(state.at, plan.states[state.compensated_by].at, "compensate"))
    if ends:
        boxes.append(Box("end", shape="end"))
    return Diagram("flow", plan.name, tuple(boxes), tuple(dict.fromkeys(arrows)))


def _note(state: State) -> str:
    return str(state.body.get("duration", "")) if isinstance(state, Sleep) else ""
