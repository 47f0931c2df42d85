"""What is wrong with a machine as a whole: states that nobody reaches, circles, timers that nothing answers."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from perdure.core import jq
from perdure.flows import fields
from perdure.flows.bound import Problem
from perdure.flows.machine.chart import Chart, Node, Transition
from perdure.flows.machine.model import To
from perdure.flows.schema import Schema


def check(chart: Chart, events: Mapping[str, Any] | None = None) -> list[Problem]:
    """All problems, those of single pieces first."""
    found = list(chart.problems)
    if chart.root.initial is None:
        return found
    reached = _reached(chart)
    for node in chart.nodes.values():
        if node is chart.root:
            continue
        where = f"states.{node.path}"
        if node not in reached:
            found.append(Problem(where, "no transition leads here", "add one, or take the state out"))
        found += _ends(node, where)
        found += _timers(chart, node, where)
        found += _asks(node, where)
        if node.done and node.state.person is None and not any(child.final for child in node.children.values()):
            found.append(Problem(f"{where}.done", "there is no final state inside", "mark one as final"))
    found += _circles(chart)
    for name in events or {}:
        if name not in chart.events:
            found.append(Problem(f"events.{name}", "no state takes it", "add a transition", "warning"))
    return found


def unmatched(chart: Chart, events: Mapping[str, Schema | None]) -> Iterator[Problem]:
    """Transitions of a document that no event can cause, by what is declared of the events.

    Not all events need be declared. But where a declared one is taken nowhere, one that is named almost like it was
    meant to be that one.
    """
    idle = [name for name in events if name not in chart.events]
    for node in chart.nodes.values():
        where = f"states.{node.path}.on" if node.path else "machine.on"
        for name, tos in node.state.on.items():
            if name not in events and (near := difflib.get_close_matches(name, idle, 1, 0.8)):
                message = f"no event {name!r} is declared, and nothing takes {near[0]!r}"
                yield Problem(f"{where}.{name}", message, f"write {near[0]}, or declare {name} in `events`")
            schema = events.get(name)
            for to in [tos] if isinstance(tos, To | str) else tos:
                if schema is not None and isinstance(to, To) and isinstance(to.when, str):
                    for reason in fields.never(schema.schema, jq.expression(to.when), ("event", "payload")):
                        fix = "mend the condition or the schema"
                        yield Problem(f"{where}.{name}.when", f"no {name!r} can match: {reason}", fix)


def _transitions(node: Node) -> Iterator[Transition]:
    for several in (
        *node.on.values(),
        node.always,
        node.done,
        node.error,
        *(timer.transitions for timer in node.after),
    ):
        yield from several


def _reached(chart: Chart) -> set[Node]:
    reached: set[Node] = set()
    waiting = [chart.root.leaf()]
    while waiting:
        for node in waiting.pop().line():
            if node not in reached:
                reached.add(node)
                waiting += [one.target.leaf() for one in _transitions(node) if one.target is not None]
    return reached


def _ends(node: Node, where: str) -> Iterator[Problem]:
    state = node.state
    if state.final:
        if state.on or state.after or state.always or state.states or state.exit or state.person:
            yield Problem(where, "a final state is the end: it has no transitions, timers, tasks or states inside")
    elif not node.children and all(
        one.target is None or one.target.leaf() is node for around in node.line() for one in _transitions(around)
    ):
        yield Problem(where, "nothing leads out of it", "mark it as final, or add a transition", "warning")


def _asks(node: Node, where: str) -> Iterator[Problem]:
    if node.state.person is not None and not node.state.final:
        if not node.state.person.task:
            yield Problem(f"{where}.person", "the task has no title", "write `task: Approve it`")
        if not node.done:
            yield Problem(f"{where}.person", "nothing follows when it is done", "add `done`, as `done: approved`")


def _timers(chart: Chart, node: Node, where: str) -> Iterator[Problem]:
    """An event of a timer must be one that the state takes, wherever inside it the machine is."""
    for timer in node.after:
        takers = [name for around in _inside(node) for name in chart.takes(around)]
        if timer.event and timer.event not in takers:
            fix = f"add `on.{timer.event}`, or give a transition: {{to: …}}"
            yield Problem(f"{where}.after.{timer.key}", f"the state does not take {timer.event!r}", fix)


def _inside(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children.values():
        yield from _inside(child)


def _circles(chart: Chart) -> Iterator[Problem]:
    """Transitions without event and condition that lead back to where they begin."""
    forced: dict[Node, Node] = {}
    for node in chart.nodes.values():
        if node.children or node.final:
            continue
        always = [one for around in node.line() for one in around.always]
        free = next((one for one in always if one.when is None), None)
        if free is not None:
            forced[node] = node if free.target is None else free.target.leaf()
    told: set[Node] = set()
    for begin in forced:
        path: list[Node] = []
        at: Node | None = begin
        while at is not None and at not in path and at not in told:
            path.append(at)
            at = forced.get(at)
        if at is not None and at in path:
            circle = " → ".join(one.path for one in [*path[path.index(at) :], at])
            yield Problem(f"states.{at.path}.always", f"it goes round for ever: {circle}", "give one a condition")
        told.update(path)
