"""How the states of a workflow hang together: names that lead nowhere, states that nothing leads to, compensations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from perdure.flows.states.reader import StatesReader

if TYPE_CHECKING:
    from perdure.flows.states.plan import Plan
    from perdure.flows.states.state import State


def check(reader: StatesReader, plan: Plan) -> None:
    for state in plan.states.values():
        _check_ways(reader, plan, state)
        _check_compensation(reader, plan, state)
    main = _reached(plan, [plan.first])
    before = _check_before(reader, plan, main)
    known = main | before
    known |= _reached(plan, [by for name in known if (by := plan.states[name].compensated_by)])
    for state in plan.states.values():
        if state.name not in known:
            reader.warn(state.at, f"nothing leads to state {state.name!r}", "let something lead there, or remove it")
    ends = [way for state in plan.states.values() for _, way in state.ways() if not way.to]
    if plan.stays and not plan.has_limit and not any(way.terminates or way.follower for way in ends):
        fix = "give it a workflowExecTimeout, or an end with terminate"
        reader.warn("/keepActive", "nothing ends this workflow but being cancelled", fix)


def _check_ways(reader: StatesReader, plan: Plan, state: State) -> None:
    for _, way in state.ways():
        if way.to and way.to not in plan.states:
            reader.wrong(way.at, f"there is no state {way.to!r}", f"there are: {', '.join(plan.states)}")
        elif way.to and plan.states[way.to].compensates != state.compensates:
            what = (
                "only what compensates leads there" if not state.compensates else "what compensates leads to its like"
            )
            reader.wrong(way.at, f"{way.to!r} is not for this: {what}", "usedForCompensation says what a state is for")
        if state.compensates and not way.plain:
            reader.wrong(
                way.at, "a state that compensates just leads on or ends", "it neither compensates nor ends all"
            )


def _check_compensation(reader: StatesReader, plan: Plan, state: State) -> None:
    name, at = state.compensated_by, f"{state.at}/compensatedBy"
    if not name:
        return
    if state.compensates:
        reader.wrong(at, "what compensates is not compensated itself")
    if name not in plan.states:
        reader.wrong(at, f"there is no state {name!r}", f"there are: {', '.join(plan.states)}")
    elif not plan.states[name].compensates:
        reader.wrong(at, f"state {name!r} is not for that", "set its usedForCompensation")


def _check_before(reader: StatesReader, plan: Plan, main: set[str]) -> set[str]:
    name, at = plan.before_end, "/timeouts/workflowExecTimeout/runBefore"
    if name is None:
        return set()
    if not isinstance(name, str) or name not in plan.states:
        reader.wrong(at, f"there is no state {str(name)[:80]!r}", f"there are: {', '.join(plan.states)}")
        return set()
    found = _reached(plan, [name])
    for one in sorted(found & main):
        reader.wrong(at, f"state {one!r} is part of the workflow itself", "what runs before the end stands apart")
    for one in sorted(found):
        if plan.states[one].compensates:
            reader.wrong(at, f"state {one!r} is for compensation", "use another one")
    return found


def _reached(plan: Plan, names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    todo = [name for name in names if name in plan.states]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [way.to for _, way in plan.states[name].ways() if way.to in plan.states]
    return found
