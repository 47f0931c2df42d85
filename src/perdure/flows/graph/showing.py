"""What expressions, the log and the outside see of a walk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Raw

from perdure.core.events import NULL
from perdure.core.records import id_of
from perdure.flows import described
from perdure.flows.graph import model
from perdure.flows.graph.nodes import Step
from perdure.flows.graph.state import Token

if TYPE_CHECKING:
    from perdure.flows.graph.run import Walk

#: Of open nodes and tasks so many are published; more would make every turn expensive.
MOST_SHOWN = 20


def see(walk: Walk, token: Token) -> dict[str, Any]:
    """What expressions see; dicts of their own, because ours change."""
    scope = walk.scope(token)
    names, outputs = [scope.names], [scope.outputs]
    while scope.loop:
        scope = walk.scope(walk.state.tokens[scope.loop])
        names.append(scope.names)
        outputs.append(scope.outputs)
    seen: dict[str, Any] = {}
    for one in reversed(names):
        seen.update(one)
    return seen | {
        "trigger": walk.state.payload,
        "outputs": {id: output for one in reversed(outputs) for id, output in one.items()},
        "variables": walk.state.variables,
        "metadata": walk.plan.model.metadata,
        "execution": id_of(walk.running.key),
    }


def begins_with(walk: Walk, step: Step[Any], given: Any, path: str) -> Raw:
    """What the log keeps of what a node begins with; what it decides at once is its output."""
    if isinstance(step.data, model.Loop):
        return Raw(b'{"items":%d}' % len(given))
    return NULL if step.instant or given is None else encoded(walk, given, path)


def encoded(walk: Walk, value: Any, node: str) -> Raw:
    return described.encoded(walk.running, value, f"node {node}")


def publish(walk: Walk) -> None:
    """Show where it stands, in short."""
    under_way = [token for token in walk.state.tokens.values() if token.stage != "ready"]
    paths = sorted({walk.path(token) for token in under_way})
    tasks = [
        {"node": walk.path(token), **token.given, **({} if token.due is None else {"due": token.due})}
        for token in under_way
        if token.kind == "person"
    ]
    fields: dict[str, Any] = {"trigger": walk.state.trigger, "open": paths[:MOST_SHOWN]}
    some = {
        "tasks": tasks[:MOST_SHOWN],
        "variables": walk.state.variables,
        "metadata": walk.plan.model.metadata,
        "more": len(paths[MOST_SHOWN:]),
    }
    published = walk.running.published
    walk.running.publish(fields | {name: value for name, value in some.items() if value or name in published})
