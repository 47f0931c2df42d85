"""How the nodes of a graph hang together: what cannot be reached, circles, splits without joins, handles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from perdure.flows.bound import Problem
from perdure.flows.graph.model import Model, Node
from perdure.flows.graph.ways import EACH, Ways, knots, reached

#: Handles by type, besides "error". A parallel node may name its branches as it likes.
_HANDLES = {
    "condition": ("true", "false"),
    "loop": (EACH, "done"),
    "wait": ("", "timeout"),
    "person": ("", "timeout"),
    "end": (),
}
#: How deep loops may nest. What ends or fails goes through all of them at once.
MOST_LOOPS = 20
_FEW = "connect it to a second node, or remove it"
#: Types that cannot fail, or say what follows themselves.
_NO_ERROR = ("trigger", "parallel", "join", "end")


def check_shape(graph: Model) -> list[Problem]:
    ways = Ways(graph)
    if not ways.triggers:
        return [Problem("nodes", "there is no trigger", 'begin with a node of type "trigger"')] if graph.nodes else []
    return [
        *_unreachable(ways),
        *(problem for node in graph.nodes.values() for problem in _handles(ways, node)),
        *_leaks(ways),
        *_nesting(ways),
        *_circles(ways),
        *_splits(ways),
        *_joins(ways),
    ]


def handles_of(node: Node) -> tuple[str, ...]:
    """The handles by which a token may leave a node."""
    if node.type == "switch":
        return (*dict.fromkeys(case.handle for case in node.data.cases), "default")
    if node.type in ("wait", "person") and node.data.timeout is None:
        return ("",)
    return _HANDLES.get(node.type, ("",))


def _unreachable(ways: Ways) -> Iterator[Problem]:
    everything = {id: ways.all_targets(id) for id in ways.out}
    found = reached(everything, ways.triggers)
    for id in ways.out:
        if id not in found:
            yield Problem(f"nodes.{id}", "no trigger leads here", "connect it, or remove it")
    for id in ways.triggers:
        if ways.into[id]:
            yield Problem(f"nodes.{id}", "an edge leads to a trigger", "lead it to the node behind the trigger")


def _handles(ways: Ways, node: Node) -> Iterator[Problem]:
    where, out = f"nodes.{node.id}", ways.out[node.id]
    if node.data is None or node.type == "parallel":
        if node.data is not None and len(ways.all_targets(node.id)) < 2:
            yield Problem(where, "a parallel node with less than two edges splits nothing", _FEW, "warning")
        return
    handles = handles_of(node)
    known = handles if node.type in _NO_ERROR else (*handles, "error")
    for handle, edges in out.items():
        if handle not in known:
            shown = f"no handle {handle!r}" if handle else "no plain handle"
            names = ", ".join(repr(name) if name else "none" for name in known) or "no edge"
            yield Problem(where, f"a node of type {node.type} has {shown}", f"it may have: {names}")
        elif len(edges) > 1:
            by = f" by {handle!r}" if handle else ""
            yield Problem(where, f"{len(edges)} edges leave it{by}", "put a parallel node between")
    if getattr(node.data, "on_error", "") == "handle" and "error" not in out:
        yield Problem(where, 'onError is "handle", but no edge leaves by "error"', 'add an edge with "error"')
    for handle in handles:
        if handle and handle not in out:
            missing = f"no edge leaves by {handle!r}"
            if handle == EACH:
                yield Problem(where, missing, "connect it to what is done for each item")
            elif handle != "done":
                yield Problem(where, missing, "connect it, unless its way is meant to end here", "warning")


def _leaks(ways: Ways) -> Iterator[Problem]:
    """Bodies of loops that lead out of them."""
    for loop, body in ways.bodies.items():
        rest = {
            id: [edge.target for edges in out.values() for edge in edges if (id, edge.handle) != (loop, EACH)]
            for id, out in ways.out.items()
        }
        outside = reached(rest, ways.triggers)
        for id in ways.out:
            if id in body and id in outside and any(edge.source not in outside for edge in ways.into[id]):
                fix = f"let the body end, or come back to {loop}; what follows the loop hangs on its 'done'"
                yield Problem(f"nodes.{id}", f"the body of loop {loop} leads here, and so do others", fix)


def _nesting(ways: Ways) -> Iterator[Problem]:
    for loop in ways.bodies:
        around = sum(loop in body for body in ways.bodies.values())
        if around == MOST_LOOPS:  # those within it need not be named as well
            yield Problem(f"nodes.{loop}", f"it is within {around} other loops", "put an inner part into a child")


def _circles(ways: Ways) -> Iterator[Problem]:
    for knot in knots(ways.flow):
        inside = set(knot)
        if any(target not in inside for id in knot for target in ways.flow[id]):
            continue
        nodes = [ways.model.nodes[id] for id in knot]
        if any(node.data is None or _may_end(ways, node) for node in nodes):
            continue
        names = ", ".join(id for id in ways.out if id in inside)
        yield Problem(f"nodes.{knot[0]}", f"there is no way out of the circle of {names}", "let a condition lead out")


def _may_end(ways: Ways, node: Node) -> bool:
    """Whether a token may end at this node, because a handle leads nowhere."""
    return node.type != "parallel" and any(handle not in ways.out[node.id] for handle in handles_of(node))


def _splits(ways: Ways) -> Iterator[Problem]:
    """Nodes that would run twice, because branches of a split meet there without a join."""
    joins = {node.id for node in ways.model.nodes.values() if node.type == "join"}
    twice: set[str] = set()
    for split in [node.id for node in ways.model.nodes.values() if node.type == "parallel"]:
        branches = [reached(ways.flow, [target], {split}, joins) for target in ways.flow[split]]
        for one, other in combinations(branches, 2):
            twice |= one & other
        # What follows a join is a branch as well, as long as others of the split go past that join.
        for join in joins:
            past = [branch for branch in branches if join not in branch]
            if past and len(branches) - len(past) > 1:
                beyond = reached(ways.flow, ways.flow[join], {split}, joins)
                for branch in past:
                    twice |= beyond & branch
    for id in ways.out:
        # Only the first of them is told; what follows it runs twice because of it.
        if id in twice - joins and not twice - joins >= set(ways.backward[id]):
            fix = "put a join node before it"
            yield Problem(f"nodes.{id}", "branches that run at the same time meet here: it would run twice", fix)


def _joins(ways: Ways) -> Iterator[Problem]:
    splits = [node.id for node in ways.model.nodes.values() if node.type == "parallel"]
    for node in ways.model.nodes.values():
        if node.type != "join" or node.data is None:
            continue
        where, sources = f"nodes.{node.id}", len({edge.source for edge in ways.into[node.id]})
        if not any(ways.feeds(split, node.id) for split in splits):
            yield Problem(where, "no parallel node splits what is joined here", "lead the edges to the next node")
        elif isinstance(node.data.mode, int) and not 1 <= node.data.mode <= sources:
            wrong = f"mode {node.data.mode} is not between 1 and {sources}, the number of its branches"
            yield Problem(where, wrong, 'write such a number, or "all" or "any"')
