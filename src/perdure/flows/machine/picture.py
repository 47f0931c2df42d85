"""A machine as a diagram."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from perdure.flows.diagram import Arrow, Box, Diagram, Mark
from perdure.flows.machine.chart import Chart, Node, Task, Transition

_ANY = "any state"


def draw(chart: Chart, title: str, marks: Mapping[str, Mark]) -> Diagram:
    """States by their paths; a marked state marks those around it too."""
    known: dict[Node, Mark] = {chart.nodes[path]: mark for path, mark in marks.items() if path in chart.nodes}
    shown: Mapping[str, Mark] = {around.path: mark for node, mark in known.items() for around in node.line()}
    nodes = _in_order(chart)
    boxes = [box for node in nodes for box in _boxes(node, shown.get(node.path, ""))]
    arrows = [arrow for node in nodes for arrow in _arrows(node)]
    if any(arrow.source == _ANY for arrow in arrows):
        boxes.append(Box(_ANY))
    return Diagram("state", title, tuple(boxes), tuple(arrows))


def _in_order(chart: Chart) -> list[Node]:
    """States as they are come by, from the first one on: the order in a document may be another, or none."""
    found = dict.fromkeys(chart.root.leaf().line()[::-1])
    waiting = deque(found)
    while waiting:
        for arrow in _arrows(waiting.popleft()):
            for node in chart.nodes[arrow.target].leaf().line()[::-1]:
                if node not in found:
                    found[node] = None
                    waiting.append(node)
    return list(dict.fromkeys([*found, *chart.nodes.values()]))


def _boxes(node: Node, mark: Mark) -> Iterator[Box]:
    if node.parent is not None:
        name = node.path.rpartition(".")[2]
        around = node.parent.path or None
        yield Box(node.path, name, "end" if node.final else "box", around, mark, " · ".join(_notes(node)))
    if node.initial is not None:
        yield Box(_start(node), shape="start", inside=node.path or None)


def _start(node: Node) -> str:
    return f"{node.path} start".strip()


def _notes(node: Node) -> Iterator[str]:
    if node.state.person is not None:
        yield "asks" if callable(node.state.person.task) else f"asks: {node.state.person.task}"
    if node.entry:
        yield f"in: {_names(node.entry)}"
    if node.exit:
        yield f"out: {_names(node.exit)}"
    for name, transitions in node.on.items():
        for one in transitions:
            if one.target is None:
                yield _label(name, one)
    for timer in node.after:
        if timer.event:
            yield f"after {timer.key}: {timer.event}"


def _arrows(node: Node) -> Iterator[Arrow]:
    source = node.path or _ANY
    if node.initial is not None:
        yield Arrow(_start(node), node.initial.path)
    named: list[tuple[str, Sequence[Transition]]] = [*node.on.items()]
    named += [(f"after {timer.key}", timer.transitions) for timer in node.after]
    named += [("", node.always), ("done", node.done), ("error", node.error)]
    for name, transitions in named:
        for one in transitions:
            if one.target is not None:
                yield Arrow(source, one.target.path, _label(name, one))


def _label(name: str, transition: Transition) -> str:
    parts = [name] if name else []
    if transition.roles:
        parts.append(f"({', '.join(sorted(transition.roles))})")
    if transition.words:
        parts.append(f"[{transition.words}]")
    if transition.do:
        parts.append(f"/ {_names(transition.do)}")
    return " ".join(parts)


def _names(tasks: Sequence[Task]) -> str:
    return ", ".join(task.name for task in tasks)
