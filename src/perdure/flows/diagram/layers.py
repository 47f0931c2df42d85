"""The layers of a graph: which edges lead up, and in which order nodes stand within a layer.

Two steps of a layered drawing, on plain integers: some edges are turned round so that no circle is left, and the nodes
of each rank are ordered so that few edges cross. Where nothing else decides, the lower number comes first; there is no
randomness, and the number of rounds is fixed by the size.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

Edge = tuple[int, int]
#: An edge between neighbouring layers, with where it is attached: a fraction of a place left or right of the middle.
Link = tuple[int, int, float, float]


def against(count: int, edges: Sequence[Edge]) -> set[int]:
    """The edges that close a circle, in a walk from the nodes that nothing leads to and then in document order."""
    leaving: list[list[int]] = [[] for _ in range(count)]
    entered = [False] * count
    for number, (a, b) in enumerate(edges):
        leaving[a].append(number)
        entered[b] = True
    turned: set[int] = set()
    state = [0] * count  # 1 while the walk is below the node, 2 afterwards
    for start in sorted(range(count), key=lambda node: entered[node]):
        if state[start]:
            continue
        state[start] = 1
        walk = [(start, iter(leaving[start]))]
        while walk:
            node, ways = walk[-1]
            for number in ways:
                other = edges[number][1]
                if state[other] == 1:
                    turned.add(number)
                elif state[other] == 0:
                    state[other] = 1
                    walk.append((other, iter(leaving[other])))
                    break
            else:
                state[node] = 2
                walk.pop()
    return turned


class Order:
    """The order of nodes within layers, made better by sweeps down and up."""

    def __init__(self, layers: list[list[int]], count: int, links: Sequence[Link]) -> None:
        self.layers = layers
        self.place = [0] * count
        self.up: list[list[tuple[int, float, float]]] = [[] for _ in range(count)]
        self.down: list[list[tuple[int, float, float]]] = [[] for _ in range(count)]
        for a, b, at_a, at_b in links:
            self.down[a].append((b, at_a, at_b))
            self.up[b].append((a, at_b, at_a))
        for layer in layers:
            self._number(layer)

    def improve(self) -> list[list[int]]:
        size = sum(map(len, self.layers))
        rounds = 12 if size < 1_000 else 6 if size < 6_000 else 2
        best, fewest = [layer[:] for layer in self.layers], self.crossings()
        for number in range(rounds):
            if not fewest:
                break
            self._sweep(downwards=number % 2 == 0)
            if size < 1_000:
                self._swap()
            crossings = self.crossings()
            if crossings < fewest:
                best, fewest = [layer[:] for layer in self.layers], crossings
        self.layers = best
        for layer in best:
            self._number(layer)
        return best

    def crossings(self) -> int:
        return sum(self._crossings_below(layer) for layer in self.layers[:-1])

    def _number(self, layer: list[int]) -> None:
        for place, node in enumerate(layer):
            self.place[node] = place

    def _crossings_below(self, layer: list[int]) -> int:
        ends = sorted(
            (self.place[node] + at, self.place[other] + there) for node in layer for other, at, there in self.down[node]
        )
        seen: list[float] = []
        found = 0
        for _, end in ends:
            found += len(seen) - bisect_right(seen, end)
            insort(seen, end)
        return found

    def _sweep(self, downwards: bool) -> None:
        layers = self.layers[1:] if downwards else self.layers[-2::-1]
        near = self.up if downwards else self.down
        for layer in layers:
            middle: dict[int, float] = {}
            for node in layer:
                if ends := near[node]:
                    middle[node] = sum(self.place[other] + there for other, _, there in ends) / len(ends)
            # Who has no neighbour there keeps its place; the others share out the places that are left.
            moving = iter(sorted(middle, key=lambda node: (middle[node], self.place[node])))
            layer[:] = [next(moving) if node in middle else node for node in layer]
            self._number(layer)

    def _swap(self) -> None:
        """Exchange neighbours as long as that takes crossings away."""
        for _ in range(3):
            changed = False
            for layer in self.layers:
                for place in range(len(layer) - 1):
                    a, b = layer[place], layer[place + 1]
                    if self._between(b, a) < self._between(a, b):
                        layer[place], layer[place + 1] = b, a
                        self.place[a], self.place[b] = place + 1, place
                        changed = True
            if not changed:
                return

    def _between(self, left: int, right: int) -> int:
        """How many edges of these two cross when one stands left of the other."""
        found = 0
        for near in (self.up, self.down):
            for a, _, at_a in near[left]:
                end = self.place[a] + at_a
                found += sum(1 for b, _, at_b in near[right] if self.place[b] + at_b < end)
        return found
