"""The rank of every node, such that all edges lead down and are short in total.

Longest paths give a first answer. It is then made better by the network simplex method: a tree of edges that are as
short as they can be holds the nodes together; where cutting one of them lets the part below it move so that more
edges become shorter than longer, that part moves until another edge stops it, which takes the place in the tree.
The work is limited by the size, so that large graphs get a good answer soon rather than the best one late.
"""

from __future__ import annotations

from collections.abc import Sequence

Edge = tuple[int, int]

_WORK = 600_000


def ranks(count: int, edges: Sequence[Edge]) -> list[int]:
    """Ranks from 0 in each part that hangs together; the edges must not form a circle.

    >>> ranks(4, [(0, 1), (1, 2), (3, 2)])
    [0, 1, 2, 1]
    """
    rank = _longest_paths(count, edges)
    share = _WORK // max(1, count + len(edges))
    for nodes in parts(count, edges):
        if len(nodes) > 2:
            _Tree(nodes, edges, rank).shorten(share)
        lowest = min(rank[node] for node in nodes)
        for node in nodes:
            rank[node] -= lowest
    return rank


def parts(count: int, edges: Sequence[Edge]) -> list[list[int]]:
    """The nodes that hang together, each part in document order."""
    head = list(range(count))

    def find(node: int) -> int:
        while head[node] != node:
            head[node] = head[head[node]]
            node = head[node]
        return node

    for a, b in edges:
        low, high = sorted((find(a), find(b)))
        head[high] = low
    found: dict[int, list[int]] = {}
    for node in range(count):
        found.setdefault(find(node), []).append(node)
    return list(found.values())


def _longest_paths(count: int, edges: Sequence[Edge]) -> list[int]:
    below: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for a, b in edges:
        below[a].append(b)
        waiting[b] += 1
    order = [node for node in range(count) if not waiting[node]]
    rank = [0] * count
    for node in order:  # grows while it is walked
        for other in below[node]:
            rank[other] = max(rank[other], rank[node] + 1)
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    return rank


class _Tree:
    """A tree of tight edges over one part of the graph; `rank` is changed in place."""

    def __init__(self, nodes: list[int], edges: Sequence[Edge], rank: list[int]) -> None:
        self.nodes = nodes
        self.rank = rank
        mine = set(nodes)
        self.edges = [edge for edge in edges if edge[0] in mine]
        self.near: dict[int, list[int]] = {node: [] for node in nodes}  # the numbers of all edges of a node
        self.net = dict.fromkeys(nodes, 0)  # edges that leave it below, less those that reach it from above
        for number, (a, b) in enumerate(self.edges):
            self.near[a].append(number)
            self.near[b].append(number)
            self.net[a] += 1
            self.net[b] -= 1
        self.tree: set[int] = set()
        self._grow()

    def _slack(self, number: int) -> int:
        a, b = self.edges[number]
        return self.rank[b] - self.rank[a] - 1

    def _grow(self) -> None:
        """Walk along tight edges; where none is left, move the whole tree until one more edge is tight."""
        reached = {self.nodes[0]}
        walk = [self.nodes[0]]
        while len(reached) < len(self.nodes):
            while walk:
                node = walk.pop()
                for number in self.near[node]:
                    a, b = self.edges[number]
                    other = b if a == node else a
                    if other not in reached and not self._slack(number):
                        reached.add(other)
                        walk.append(other)
                        self.tree.add(number)
            rim = [n for n, (a, b) in enumerate(self.edges) if (a in reached) != (b in reached)]
            if not rim:
                return
            nearest = min(rim, key=self._slack)
            down = self.edges[nearest][0] in reached
            shift = self._slack(nearest) if down else -self._slack(nearest)
            for node in reached:
                self.rank[node] += shift
            walk = [self.edges[nearest][0 if down else 1]]

    def shorten(self, rounds: int) -> None:
        """Move parts as long as that makes the edges shorter in total, at most so many times."""
        last = 0
        for _ in range(rounds):
            found = self._movable(last)
            if found is None:
                return
            last, cut, moving = found
            down = self.edges[cut][1] in moving
            inside, outside = (0, 1) if down else (1, 0)
            stops = [n for n, e in enumerate(self.edges) if e[inside] in moving and e[outside] not in moving]
            stop = min(stops, key=self._slack)
            shift = self._slack(stop) if down else -self._slack(stop)
            for node in moving:
                self.rank[node] += shift
            self.tree.remove(cut)
            self.tree.add(stop)

    def _movable(self, last: int) -> tuple[int, int, set[int]] | None:
        """An edge of the tree to cut, and the nodes that would move; the search goes on where it stopped before."""
        order, edge_up = self._walked()
        position = {node: place for place, node in enumerate(order)}
        total = dict(self.net)
        size = dict.fromkeys(order, 1)
        for node in reversed(order[1:]):
            a, b = self.edges[edge_up[node]]
            parent = a if b == node else b
            total[parent] += total[node]
            size[parent] += size[node]
        for node in [*order[last:], *order[:last]]:
            if node == order[0]:
                continue
            hangs = self.edges[edge_up[node]][1] == node  # below its parent: it can move down
            if total[node] > 0 if hangs else total[node] < 0:
                start = position[node]
                return (start + 1) % len(order), edge_up[node], set(order[start : start + size[node]])
        return None

    def _walked(self) -> tuple[list[int], dict[int, int]]:
        """The nodes of the tree with each part in one piece, and the edge that each hangs on."""
        order: list[int] = []
        edge_up: dict[int, int] = {}
        walk = [(self.nodes[0], -1)]
        while walk:
            node, via = walk.pop()
            order.append(node)
            edge_up[node] = via
            for number in reversed(self.near[node]):
                if number in self.tree and number != via:
                    a, b = self.edges[number]
                    walk.append((b if a == node else a, number))
        return order, edge_up
