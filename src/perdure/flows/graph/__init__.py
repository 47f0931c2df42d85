"""Node graphs, as visual editors save them, run as workflows.

Graph(body)               made in Python and registered, started like any workflow
check(body)               all that is wrong with one
build(body, version=…)    a graph that was published
actions(body)             the names of the actions that it calls
calls(body)               where it calls them, and with what
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Raw

from perdure.core.codec import codec_for
from perdure.core.replay import Replay
from perdure.errors import DefinitionInvalid
from perdure.flows.bound import Bound, Problem, bind_name
from perdure.flows.described import Described
from perdure.flows.diagram import Diagram, Mark
from perdure.flows.given import Calling
from perdure.flows.graph import model
from perdure.flows.graph.check import check, problems_of
from perdure.flows.graph.picture import picture
from perdure.flows.graph.plan import Plan
from perdure.flows.graph.run import Walk
from perdure.flows.graph.state import Scope, State, Token
from perdure.flows.registry import registry
from perdure.flows.schema import Schema

__all__ = ["Graph", "actions", "build", "calls", "check"]


class Graph(Described):
    """A node graph as a workflow.

    >>> from perdure import Perdure
    >>> double = Graph(
    ...     {
    ...         "graph": "double",
    ...         "nodes": [
    ...             {"id": "start", "type": "trigger"},
    ...             {"id": "end", "type": "end", "data": {"result": "${ .trigger * 2 }"}},
    ...         ],
    ...         "edges": [{"source": "start", "target": "end"}],
    ...     }
    ... )
    >>> Perdure("memory://").run(double, 21)
    42
    """

    kind: ClassVar[str] = "graph"

    def __init__(self, body: Mapping[str, Any], *, version: int = 1) -> None:
        self._make(body, version, "", None)
        registry.add_workflow(self)

    def _make(self, body: Mapping[str, Any], version: int, hash: str, bounds: Mapping[str, Bound] | None) -> None:
        read = model.read(body)
        # What was published was checked then; a later release may check more, and must run it all the same.
        found = read.problems if hash else problems_of(read, bounds)
        if wrong := [problem for problem in found if problem.level == "error"]:
            raise DefinitionInvalid(f"graph {read.name or '?'}", wrong)
        bound = {name: bind_name(name) for name in actions(body)} if bounds is None else bounds
        super().__init__(read.name, version, read.queue, read.description, body, bound, hash)
        self.plan = Plan(read, self.bounds)
        self.listens, self.starts_on = read.listens, read.starts_on
        self.events = {
            name: codec_for(Any) if one.schema is None else Schema(one.schema).codec()
            for name, one in read.events.items()
        }

    def check_input(self, value: Any) -> None:
        """InvalidValue if no trigger takes this."""
        self.plan.check(*self.plan.entry(value))

    def input_schema(self) -> dict[str, Any]:
        return self.plan.wants()

    def fresh(self, running: Replay, input: Any) -> Coroutine[Any, Any, Any]:
        return self._begin(running, input)

    async def _begin(self, running: Replay, input: Any) -> Any:
        trigger, payload = self.plan.entry(input)
        state = State(trigger, payload, dict(self.plan.model.variables))
        walk = Walk(self.plan, running, state)
        top = Scope(state.number())
        state.scopes[top.id] = top
        walk.born(top.id, payload, trigger)
        return await walk.run()

    def again(self, running: Replay, position: Raw) -> Coroutine[Any, Any, Any]:
        return Walk(self.plan, running, _stand(position)).run()

    def diagram(self, current: Mapping[str, Mark] | None = None) -> Diagram:
        """As a picture; `current` maps ids of nodes to their marks."""
        return picture(self.plan, current or {})

    def fits(self, position: Raw) -> list[Problem]:
        state = _stand(position)
        found = [problem for token in state.tokens.values() if (problem := self._misfit(token)) is not None]
        for split in state.splits.values():
            if split.node not in self.plan.steps:
                found.append(Problem(f"nodes.{split.node}", "branches of this split are open, and it is not there"))
        return found

    def _misfit(self, token: Token) -> Problem | None:
        where = f"nodes.{token.node}"
        node = self.plan.model.nodes.get(token.node)
        kind = token.kind or {"joined": "join", "looping": "loop"}.get(token.stage, "")
        if node is None:
            return Problem(where, "it is open, and this version does not have it", "keep the node")
        if kind and node.type != kind:
            return Problem(where, f"it is open as {kind}, and in this version its type is {node.type}", "keep the type")
        if isinstance(node.data, model.Wait) and token.stage == "open":
            names = [one["name"] for one in token.given]
            if names != [event.name for event in node.data.events]:
                return Problem(where, f"it waits for {', '.join(names)}, and in this version for others")
        return None


def _stand(position: Raw) -> State:
    return msgspec.json.decode(position, type=State)


def build(body: Mapping[str, Any], *, version: int, hash: str = "", bounds: Mapping[str, Bound] | None = None) -> Graph:
    """A graph that is not registered: what was published is found elsewhere."""
    made = Graph.__new__(Graph)
    made._make(body, version, hash, bounds)
    return made


def actions(body: Mapping[str, Any]) -> list[str]:
    """The names of the actions that a graph calls, in their order."""
    return list(dict.fromkeys(one.action for one in calls(body)))


def calls(body: Mapping[str, Any]) -> list[Calling]:
    """Where a graph calls actions, and with what."""
    nodes = model.read(body).nodes.values()
    return [
        Calling(f"nodes.{one.id}", one.data.action, one.data.given) for one in nodes if isinstance(one.data, model.Act)
    ]
