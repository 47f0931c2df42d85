"""Workflows of the CNCF Serverless Workflow DSL, version 0.8: states and transitions, run as workflows.

States(body)              made in Python and registered, started like any workflow
check(body)               all that is wrong with one
build(body, version=…)    a workflow that was published
actions(body)             the names of the actions that it calls
calls(body)               where it calls them, and with what
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Raw

from perdure.core.replay import Replay
from perdure.core.view import State as View
from perdure.errors import DefinitionInvalid
from perdure.flows import given
from perdure.flows.bound import Bound, Problem, bind_name
from perdure.flows.described import MARKS, Described
from perdure.flows.diagram import Diagram, Mark
from perdure.flows.given import Calling, Wanted
from perdure.flows.registry import registry
from perdure.flows.states.picture import picture
from perdure.flows.states.plan import Plan, Position, called

__all__ = ["States", "actions", "build", "called", "calls", "check", "secrets"]


class States(Described):
    """A workflow of states. Its name is its `id`.

    >>> from perdure import Perdure
    >>> greet = States(
    ...     {
    ...         "id": "states_greet",
    ...         "specVersion": "0.8",
    ...         "functions": [{"name": "polite", "type": "expression", "operation": '"Good day, " + .name'}],
    ...         "states": [
    ...             {
    ...                 "name": "greet",
    ...                 "type": "operation",
    ...                 "actions": [
    ...                     {"functionRef": "polite", "actionDataFilter": {"toStateData": "${ .greeting }"}},
    ...                 ],
    ...                 "end": True,
    ...             },
    ...         ],
    ...     }
    ... )
    >>> Perdure("memory://").run(greet, {"name": "Ann"})
    {'name': 'Ann', 'greeting': 'Good day, Ann'}
    """

    kind: ClassVar[str] = "states"

    def __init__(self, body: Mapping[str, Any], *, version: int = 1) -> None:
        self._make(body, version, "", None)
        registry.add_workflow(self)

    def _make(self, body: Mapping[str, Any], version: int, hash: str, bounds: Mapping[str, Bound] | None) -> None:
        # What was published was checked then; a later release may check more, and must run it all the same.
        found = [] if hash else check(body)
        if wrong := [problem for problem in found if problem.level == "error"]:
            raise DefinitionInvalid(f"workflow {called(body) or '?'}", wrong)
        bound = {name: bind_name(name) for name in actions(body)} if bounds is None else bounds
        self.plan = plan = Plan(body, bound)
        super().__init__(plan.name, version, "default", plan.description, body, bound, hash)
        self.label, self.listens, self.starts_on = plan.label, plan.listens, plan.starts_on

    def check_input(self, value: Any) -> None:
        """InvalidValue if it does not fit the schema of the input."""
        self.plan.check_input(value)

    def input_schema(self) -> dict[str, Any]:
        return {} if self.plan.wants is None else self.plan.wants.shown()

    def fresh(self, running: Replay, input: Any) -> Coroutine[Any, Any, Any]:
        return self.plan.begin(running, input)

    def again(self, running: Replay, position: Raw) -> Coroutine[Any, Any, Any]:
        return self.plan.go_on(running, msgspec.json.decode(position, type=Position))

    def diagram(self, current: Mapping[str, Mark] | None = None) -> Diagram:
        """As a picture; `current` maps names of states to their marks."""
        return picture(self.plan, current or {})

    def marks(self, state: View) -> dict[str, Mark]:
        """Those of the states only: an action may have the name of one."""
        paths = {one.path: name for name, one in self.plan.states.items()}
        return {paths[path]: MARKS.get(node.status, "") for path, node in state.nodes.items() if path in paths}

    def fits(self, position: Raw) -> list[Problem]:
        name = msgspec.json.decode(position, type=Position).state
        if name in self.plan.states:
            return []
        return [
            Problem("/states", f"the execution is at {name!r}, and this version does not have it", "keep the state")
        ]


def build(
    body: Mapping[str, Any], *, version: int, hash: str = "", bounds: Mapping[str, Bound] | None = None
) -> States:
    """A workflow that is not registered: what was published is found elsewhere."""
    made = States.__new__(States)
    made._make(body, version, hash, bounds)
    return made


def check(body: Mapping[str, Any]) -> list[Problem]:
    """All that is wrong with a workflow."""
    return Plan(body, {}).problems


def secrets(body: Mapping[str, Any]) -> list[Wanted]:
    """The secrets that its calls name, and those that it declares besides: expressions may name them."""
    plan = Plan(body, {})
    named = given.secrets(plan.calls)
    known = {one.name for one in named}
    return named + [Wanted("/secrets", name) for name in plan.see["SECRETS"] if name not in known]


def actions(body: Mapping[str, Any]) -> list[str]:
    """The names of the actions that a workflow calls, in their order."""
    return list(dict.fromkeys(one.action for one in calls(body) if one.action))


def calls(body: Mapping[str, Any]) -> list[Calling]:
    """Where a workflow calls actions, and with what."""
    return Plan(body, {}).calls
