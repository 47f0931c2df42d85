"""One level of a diagram: boxes side by side and above each other, and the lines between them.

A level is what stands directly inside one frame, or in no frame at all. It is drawn in bands, one for each layer, with
gaps between. Within a band all lines are vertical; they bend in the gaps only, where no box and no label is. So no
line crosses a box, and labels have places of their own, like boxes.

Where a line leaves the frame there is a port: a node without size in a first layer on the upper side of the frame or
in a last one on its lower side.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

from msgspec import Struct

from perdure.flows.diagram.columns import columns
from perdure.flows.diagram.layers import Link, Order
from perdure.flows.diagram.lines import Grid, Line, Point, Slot, Tie, draw
from perdure.flows.diagram.ranks import parts, ranks

PAD = 18.0  # between a frame and what is in it
GAP = 42.0  # between two layers of boxes
LABEL_GAP = 20.0  # between a layer of boxes and one of labels
#: More bends than this would take too long: the longest lines are then led around everything, on the right.
BENDS = 15_000
#: How wide a row may become before what hangs together with nothing else begins a new one.
WIDE = 1_000.0
_BESIDE = 36.0  # between two boxes
_LANE = 14.0


class Level(Struct, frozen=True):
    """Where everything is, seen from the upper left corner of the frame; slots by their middle."""

    slots: tuple[Point, ...]
    lines: tuple[Line, ...]
    width: float
    height: float


def arrange(slots: Sequence[Slot], ties: Sequence[Tie], head: Point = (0.0, 0.0), least: float = 0.0) -> Level:
    """Lay out one level; `head` is the room that the title of the frame needs, `least` a height it has to have."""
    return _Arranging(slots, ties, head, least).level()


class _Arranging:
    """The work on one level; nodes are the slots, followed by the bends and labels of the ties."""

    def __init__(self, slots: Sequence[Slot], ties: Sequence[Tie], head: Point, least: float) -> None:
        self.slots = slots
        self.ties = ties
        self.head = head
        self.least = least
        self.left = [slot.width / 2 for slot in slots]
        self.right = [slot.width / 2 + slot.beside for slot in slots]
        self.height = [slot.height for slot in slots]
        self.bend = [False] * len(slots)
        self.row = self._ranks()
        self.chains: list[list[int]] = []
        self.around: dict[int, None] = {}
        self.label_of: dict[int, int] = {}  # tie → node
        self._thread()

    def level(self) -> Level:
        self._place()
        self._stack()
        lanes = self._lanes()
        grid = Grid(self.slots, self.ties, self.x, self.row, self.bands, self.chains, self.label_of, lanes)
        middles = tuple((self.x[node], sum(self.bands[self.row[node]]) / 2) for node in range(len(self.slots)))
        return Level(middles, draw(grid), self.width, self.total)

    def _lanes(self) -> dict[int, float]:
        """Places on the right for the lines that are led around everything."""
        lanes: dict[int, float] = {}
        for number in self.around:
            label = self.ties[number].label
            half = label[0] / 2 if label else 0.0
            lanes[number] = self.width - PAD + _LANE + half
            self.width += _LANE + 2 * half
        return lanes

    # --- ranks ---

    def _ranks(self) -> list[int]:
        inner = [number for number, slot in enumerate(self.slots) if not slot.port]
        names = {number: index for index, number in enumerate(inner)}
        edges = [(names[t.upper], names[t.lower]) for t in self.ties if t.upper in names and t.lower in names]
        found = ranks(len(inner), edges)
        widths = [self.slots[number].width + self.slots[number].beside + _BESIDE for number in inner]
        self._in_rows(found, edges, widths)
        first = int(any(slot.port == "top" for slot in self.slots))
        last = first + max(found, default=-1) + 1
        outer = {"top": 0, "bottom": last}
        rank = [outer[slot.port] if slot.port else first + found[names[n]] for n, slot in enumerate(self.slots)]
        # Labels have layers of their own, between those of the boxes.
        return [value * 2 for value in rank] if any(tie.label for tie in self.ties) else rank

    @staticmethod
    def _in_rows(rank: list[int], edges: list[tuple[int, int]], widths: list[float]) -> None:
        """Parts that do not hang together stand side by side, and below each other when there are many."""
        sizes: list[tuple[list[int], float, int]] = []
        for part in parts(len(rank), edges):
            across: dict[int, float] = {}
            for node in part:
                across[rank[node]] = across.get(rank[node], 0.0) + widths[node]
            sizes.append((part, max(across.values()), max(across) + 1))
        area = sum(width * depth * (GAP * 2) for _, width, depth in sizes)
        limit = max(WIDE, sqrt(area) * 1.5)
        used, top, below = 0.0, 0, 0
        for part, width, depth in sizes:
            if used and used + width > limit:
                used, top = 0.0, below
            for node in part:
                rank[node] += top
            used += width
            below = max(below, top + depth)

    # --- bends ---

    def _thread(self) -> None:
        """Give every tie a node in each layer that it passes, and drop the layers that would be empty."""
        label_ranks = [
            (self.row[tie.lower] - 1 if tie.label_low else self.row[tie.upper] + 1) if tie.label else -1
            for tie in self.ties
        ]
        used = sorted({*self.row, *(rank for rank in label_ranks if rank >= 0)})
        row = {rank: number for number, rank in enumerate(used)}
        self.row = [row[rank] for rank in self.row]
        self.layer_count = len(used)
        spans = [self.row[tie.lower] - self.row[tie.upper] for tie in self.ties]
        budget = BENDS
        far: set[int] = set()
        for number in sorted(range(len(spans)), key=spans.__getitem__):
            budget -= spans[number] - 1
            if budget < 0:
                far.add(number)
        for number, tie in enumerate(self.ties):
            chain = [tie.upper]
            if number not in far:
                for rank in range(self.row[tie.upper] + 1, self.row[tie.lower]):
                    is_label = tie.label is not None and rank == row[label_ranks[number]]
                    chain.append(self._bend(rank, tie.label if is_label else None))
                    if is_label:
                        self.label_of[number] = chain[-1]
            else:
                self.around[number] = None
            chain.append(tie.lower)
            self.chains.append(chain)

    def _bend(self, rank: int, label: Point | None) -> int:
        width, height = label or (0.0, 0.0)
        self.left.append(width / 2)
        self.right.append(width / 2)
        self.height.append(height)
        self.bend.append(True)
        self.row.append(rank)
        return len(self.row) - 1

    # --- left to right ---

    def _place(self) -> None:
        links: list[Link] = []
        for number, chain in enumerate(self.chains):
            if number in self.around:
                continue
            tie = self.ties[number]
            ends = [0.0] * len(chain)
            ends[0], ends[-1] = self._share(tie.upper, tie.upper_at), self._share(tie.lower, tie.lower_at)
            links += [(a, b, ends[i], ends[i + 1]) for i, (a, b) in enumerate(pairwise(chain))]
        layers: list[list[int]] = [[] for _ in range(self.layer_count)]
        for node in self._first_order(links):
            layers[self.row[node]].append(node)
        order = Order(layers, len(self.row), links)
        self.layers = order.improve()
        up = [[other for other, _, _ in near] for near in order.up]
        down = [[other for other, _, _ in near] for near in order.down]
        self.x = columns(self.layers, up, down, self.bend, self._apart)
        nodes = range(len(self.x))
        start = min((self.x[node] - self.left[node] for node in nodes), default=0.0)
        end = max((self.x[node] + self.right[node] for node in nodes), default=0.0)
        room = max(0.0, self.head[0] - (end - start)) / 2
        self.x = [x - start + PAD + room for x in self.x]
        self.width = end - start + 2 * PAD + 2 * room
        self._clear_head()

    def _share(self, node: int, at: float | None) -> float:
        return 0.0 if at is None else at / max(self.slots[node].width, 1.0) * 0.8

    def _first_order(self, links: list[Link]) -> list[int]:
        """Nodes as a walk from the top finds them, so that what hangs together stands together."""
        below: list[list[int]] = [[] for _ in self.row]
        for a, b, _, _ in links:
            below[a].append(b)
        seen = [False] * len(self.row)
        found: list[int] = []
        for start in sorted(range(len(self.row)), key=lambda node: (self.bend[node], self.row[node], node)):
            walk = [start]
            while walk:
                node = walk.pop()
                if not seen[node]:
                    seen[node] = True
                    found.append(node)
                    walk += reversed(below[node])
        return found

    def _apart(self, a: int, b: int) -> float:
        between = 14.0 if self.bend[a] and self.bend[b] else 22.0 if self.bend[a] or self.bend[b] else _BESIDE
        if max(a, b) < len(self.slots) and self.slots[a].port and self.slots[b].port:
            between = 14.0
        return self.right[a] + self.left[b] + between

    def _clear_head(self) -> None:
        """Lines that come in from above pass the title of the frame on its right."""
        edge = PAD + self.head[0] + 10.0
        for node in self.layers[0] if self.layers else ():
            if node < len(self.slots) and self.slots[node].port == "top":
                self.x[node] = max(self.x[node], edge)
                edge = self.x[node] + 10.0
                self.width = max(self.width, edge + PAD)

    # --- top to bottom ---

    def _stack(self) -> None:
        """The bands of the layers, and the gaps between; long ways across get more room."""
        across = [0.0] * self.layer_count
        for chain in self.chains:
            for a, b in pairwise(chain):
                if self.row[b] == self.row[a] + 1:
                    across[self.row[a]] = max(across[self.row[a]], abs(self.x[a] - self.x[b]))
        tall = [max((self.height[node] for node in layer), default=0.0) for layer in self.layers]
        labels = {self.row[node] for node in self.label_of.values()}
        ports = {self.row[n]: slot.port for n, slot in enumerate(self.slots) if slot.port}
        y = 0.0 if ports.get(0) == "top" else PAD + self.head[1]
        self.bands: list[Point] = []
        for number, height in enumerate(tall):
            # Lines that come in from above go straight on until they have passed the title.
            passing = self.head[1] + 10.0 if ports.get(number) == "top" else 0.0
            end = y + height + passing
            self.bands.append((y, end))
            plain = number not in labels and number + 1 not in labels
            y = end + (LABEL_GAP if passing or not plain else GAP) + min(44, across[number] // 10)
        closed = ports.get(self.layer_count - 1) == "bottom"
        end = (self.bands[-1][1] if self.bands else PAD) + (0.0 if closed else PAD)
        self.total = max(end, self.least)
        if closed:
            self.bands[-1] = (self.total, self.total)
