"""A document as a diagram: its tasks from the first to the last, those of other tasks inside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perdure.flows.diagram import Arrow, Box, Diagram, Mark, Shape
from perdure.flows.document.plain import RaiseStep
from perdure.flows.document.tasks import ForkStep, Tasks

if TYPE_CHECKING:
    from perdure.flows.document.plan import Plan
    from perdure.flows.document.step import Step

_SHAPES: dict[str, Shape] = {
    "call": "box",
    "do": "box",
    "emit": "box",
    "for": "loop",
    "fork": "split",
    "listen": "wait",
    "raise": "end",
    "run": "child",
    "set": "box",
    "switch": "choice",
    "try": "box",
    "wait": "wait",
}


def picture(plan: Plan, current: Mapping[str, Mark]) -> Diagram:
    """`current` maps pointers or names of tasks to marks."""
    boxes = [Box("start", shape="start")]
    arrows: list[Arrow] = []
    ends = _draw(plan.tasks, None, boxes, arrows, current, ["start"])
    boxes.append(Box("end", shape="end"))
    arrows += [Arrow(one, "end") for one in dict.fromkeys(ends)]
    return Diagram("flow", plan.name, tuple(boxes), tuple(arrows))


def _draw(
    tasks: Tasks,
    inside: Step | None,
    boxes: list[Box],
    arrows: list[Arrow],
    current: Mapping[str, Mark],
    before: list[str],
) -> list[str]:
    """Draw a list of tasks; gives those after which the list is left."""
    ends: list[str] = []
    around = None if inside is None else inside.at
    for place, step in enumerate(tasks.steps):
        kind = step.keys[0]
        mark = current.get(step.at, current.get(step.name, ""))
        boxes.append(Box(step.at, step.name, _SHAPES[kind], around, mark, _note(step, kind)))
        if place == 0:
            arrows += [Arrow(one, step.at) for one in before]
        for inner in _lists(step):
            _draw(inner, step, boxes, arrows, current, [])
        for label, then in () if isinstance(inside, ForkStep) else _ways(step):
            if then == "continue" and place + 1 < len(tasks.steps):
                arrows.append(Arrow(step.at, tasks.steps[place + 1].at, label))
            elif then in tasks.place and then not in ("continue", "exit", "end"):
                arrows.append(Arrow(step.at, tasks.steps[tasks.place[then]].at, label))
            else:
                ends.append(step.at)
    return ends


def _ways(step: Step) -> Iterator[tuple[str, str]]:
    if isinstance(step, RaiseStep):
        return
    cases: list[tuple[str, Any, str]] = getattr(step, "cases", [])
    for at, _, then in cases:
        yield at.split("/")[-2], then
    if not any(test is None for _, test, _ in cases):
        yield "", step.then


def _lists(step: Step) -> Iterator[Tasks]:
    for name in ("tasks", "branches", "instead", "each"):
        if isinstance(found := getattr(step, name, None), Tasks):
            yield found


def _note(step: Step, kind: str) -> str:
    match step.body.get(kind):
        case str() as text if kind == "call":
            return text
        case {"in": str() as items}:
            return items
        case str() as duration if kind == "wait":
            return duration
        case _:
            return ""
