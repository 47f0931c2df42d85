"""The ways through a graph, worked out once: what follows what, bodies of loops, splits and their joins.

`flow` is the graph that tokens of one round move in: without the edges into bodies of loops and without those that come
back from there, because a body is walked by tokens of its own. Everything here is iterative: a chain may be long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import cached_property

from perdure.flows.graph.model import Edge, Model

EACH = "each"


class Ways:
    """What a model's edges say."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.out: dict[str, dict[str, list[Edge]]] = {id: {} for id in model.nodes}
        self.into: dict[str, list[Edge]] = {id: [] for id in model.nodes}
        for edge in model.edges:
            self.out[edge.source].setdefault(edge.handle, []).append(edge)
            self.into[edge.target].append(edge)
        self.triggers = [node.id for node in model.nodes.values() if node.type == "trigger"]
        self._sources: dict[tuple[str, str], frozenset[str]] = {}
        self._feeds: dict[tuple[str, str], bool] = {}

    def targets(self, node: str, handle: str = "") -> list[str]:
        return [edge.target for edge in self.out[node].get(handle, ())]

    def all_targets(self, node: str) -> list[str]:
        return [edge.target for edges in self.out[node].values() for edge in edges]

    @cached_property
    def bodies(self) -> dict[str, frozenset[str]]:
        """The nodes that belong to each loop: what hangs on its `each`, without itself."""
        everything = {id: self.all_targets(id) for id in self.out}
        return {
            node.id: reached(everything, self.targets(node.id, EACH), {node.id})
            for node in self.model.nodes.values()
            if node.type == "loop"
        }

    @cached_property
    def loop_of(self) -> dict[str, str]:
        """The innermost loop that a node belongs to, where there is one."""
        found: dict[str, str] = {}
        for loop, body in sorted(self.bodies.items(), key=lambda one: -len(one[1])):
            found.update(dict.fromkeys(body, loop))
        return found

    @cached_property
    def flow(self) -> dict[str, list[str]]:
        bodies = self.bodies
        flow: dict[str, list[str]] = {id: [] for id in self.out}
        for edge in self.model.edges:
            into_body = edge.source in bodies and edge.handle == EACH
            back = edge.target in bodies and edge.source in bodies[edge.target]
            if not into_body and not back:
                flow[edge.source].append(edge.target)
        return flow

    @cached_property
    def backward(self) -> dict[str, list[str]]:
        backward: dict[str, list[str]] = {id: [] for id in self.out}
        for source, targets in self.flow.items():
            for target in targets:
                backward[target].append(source)
        return backward

    def sources(self, join: str, split: str) -> frozenset[str]:
        """The nodes from which a token can come to this join without passing the split again."""
        known = self._sources.get((join, split))
        if known is None:
            known = self._sources[join, split] = reached(self.backward, [join], {split})
        return known

    def feeds(self, split: str, join: str) -> bool:
        """Whether at least two branches of this split can meet in this join."""
        known = self._feeds.get((split, join))
        if known is None:
            # Most splits have nothing to do with a join, and that is seen without looking for ways around each of them.
            known = all(
                len([one for one in self.flow[split] if one in self.sources(join, past)]) > 1 for past in ("", split)
            )
            self._feeds[split, join] = known
        return known


def reached(
    graph: Mapping[str, Iterable[str]], begin: Iterable[str], without: Iterable[str] = (), ends: Iterable[str] = ()
) -> frozenset[str]:
    """All that can be reached, the beginnings included; `without` is not entered, `ends` are not left."""
    left_out, ends = set(without), set(ends)
    seen = {node: None for node in begin if node not in left_out}
    waiting = deque(seen)
    while waiting:
        node = waiting.popleft()
        if node in ends:
            continue
        for target in graph[node]:
            if target not in seen and target not in left_out:
                seen[target] = None
                waiting.append(target)
    return frozenset(seen)


def knots(graph: Mapping[str, list[str]]) -> list[list[str]]:
    """The strongly connected components that hold a cycle (Tarjan, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in graph:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        walk = [(root, iter(graph[root]))]
        while walk:
            node, targets = walk[-1]
            deeper = next((one for one in targets if one not in number or one in on_stack), None)
            if deeper is not None and deeper not in number:
                number[deeper] = low[deeper] = len(number)
                stack.append(deeper)
                on_stack.add(deeper)
                walk.append((deeper, iter(graph[deeper])))
                continue
            if deeper is not None:
                low[node] = min(low[node], number[deeper])
                continue
            walk.pop()
            if walk:
                low[walk[-1][0]] = min(low[walk[-1][0]], low[node])
            if low[node] == number[node]:
                at = stack.index(node)
                group, stack = stack[at:], stack[:at]
                on_stack.difference_update(group)
                if len(group) > 1 or node in graph[node]:
                    found.append(group)
    return found
