"""Where everything in a diagram is drawn.

Frames are laid out from the inside to the outside, each as one level in which the frames within are single boxes. An
arrow across the border of a frame is cut there into pieces with a port between them; which side the port is on is
decided first, from the outside to the inside, so that an arrow always leads down, or up, in one direction.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perdure.flows.diagram.layers import against
from perdure.flows.diagram.level import Level, arrange
from perdure.flows.diagram.lines import Line, Point, Slot, Tie
from perdure.flows.diagram.model import Box, Diagram
from perdure.flows.diagram.shapes import LABEL, LOOP, Figure, figure, flank, heading, label_size
from perdure.flows.diagram.text import wrap

_LABEL_WIDTH = 150.0
_LOOP_REACH = 26.0


class Placed(Struct, frozen=True):
    """A box with its upper left corner; `depth` is the number of frames around it."""

    x: float
    y: float
    figure: Figure
    depth: int


class Route(Struct, frozen=True):
    """The strokes of an arrow from its source to its target, and the middle and the lines of its label.

    A loop has three points: where it begins, how far it reaches out, and where it ends.
    """

    strokes: tuple[tuple[Point, ...], ...]
    label: Point | None
    words: tuple[str, ...]
    loop: bool = False


class Layout(Struct, frozen=True):
    """Boxes and arrows in the order of the diagram."""

    width: float
    height: float
    boxes: tuple[Placed, ...]
    routes: tuple[Route, ...]


class _Piece(Struct, frozen=True):
    """A part of an arrow within one level: between two boxes, or between a box and a port of the level's frame."""

    arrow: int
    box: str
    other: str | None  # None is the port
    port: Literal["", "top", "bottom"] = ""
    label: bool = False


def lay_out(diagram: Diagram) -> Layout:
    """Give every box and every arrow its place.

    >>> layout = lay_out(Diagram("flow", "", (Box("a"), Box("b")), ()))
    >>> [placed.y for placed in layout.boxes]
    [18.0, 18.0]
    """
    return _Layout(diagram).layout()


class _Layout:
    def __init__(self, diagram: Diagram) -> None:
        self.diagram = diagram
        self.boxes = {box.id: box for box in diagram.boxes}
        self.within: dict[str | None, list[str]] = {None: []}
        for box in diagram.boxes:
            self.within.setdefault(box.inside, []).append(box.id)
        self.depth = self._depths()
        self.words = [
            wrap(arrow.label, LABEL, _LABEL_WIDTH, 1 if arrow.source == arrow.target else 2) for arrow in diagram.arrows
        ]
        self.loops: dict[str | None, list[int]] = {}
        self.upward: set[int] = set()
        self.pieces: dict[str | None, list[_Piece]] = {}
        self.figures: dict[str, Figure] = {}
        self.levels: dict[str | None, Level] = {}
        self.ports: dict[tuple[str, int], float] = {}  # frame and arrow → how far right of the middle

    def layout(self) -> Layout:
        self._cut()
        frames = [id for id in self.within if id is not None]
        for frame in sorted(frames, key=lambda id: -self.depth[id]):
            self._arrange(frame)
        self._arrange(None)
        return self._assembled()

    def _depths(self) -> dict[str, int]:
        depths: dict[str, int] = {}
        ready = list(self.within[None])
        for id in ready:  # grows while it is walked
            inside = self.boxes[id].inside
            depths[id] = 0 if inside is None else depths[inside] + 1
            ready += self.within.get(id, ())
        return depths

    # --- arrows are cut at frames ---

    def _trail(self, id: str) -> list[str]:
        """The frames around a box from the outside, and the box."""
        trail = [id]
        while (inside := self.boxes[trail[-1]].inside) is not None:
            trail.append(inside)
        return trail[::-1]

    def _cut(self) -> None:
        meeting: dict[str | None, list[tuple[int, str, str]]] = {}
        trails: dict[int, tuple[list[str], list[str], int]] = {}
        for number, arrow in enumerate(self.diagram.arrows):
            if arrow.source == arrow.target:
                self.loops.setdefault(arrow.source, []).append(number)
                continue
            source, target = self._trail(arrow.source), self._trail(arrow.target)
            shared = 0
            while shared < min(len(source), len(target)) and source[shared] == target[shared]:
                shared += 1
            trails[number] = source, target, shared
            if shared < min(len(source), len(target)):
                frame = source[shared - 1] if shared else None
                meeting.setdefault(frame, []).append((number, source[shared], target[shared]))
        for frame, arrows in meeting.items():
            index = {id: place for place, id in enumerate(self.within[frame])}
            turned = against(len(index), [(index[a], index[b]) for _, a, b in arrows])
            self.upward |= {arrows[place][0] for place in turned}
            for number, a, b in arrows:
                self.pieces.setdefault(frame, []).append(_Piece(number, a, b, label=bool(self.words[number])))
        for number, (source, target, shared) in trails.items():
            self._cut_within(number, source, target, shared)

    def _cut_within(self, number: int, source: list[str], target: list[str], shared: int) -> None:
        """The pieces below the level where both ends meet; between a frame and its own content, all of them."""
        up = number in self.upward
        labelled = bool(self.words[number])
        own = shared == min(len(source), len(target))
        for trail, port in ((source, "top" if up else "bottom"), (target, "bottom" if up else "top")):
            # A frame that is itself an end of the arrow has a port for it on the inside.
            first = shared - 1 if own and len(trail) > shared else shared
            for place in range(first, len(trail) - 1):
                side: Literal["top", "bottom"] = "top" if port == "top" else "bottom"
                piece = _Piece(number, trail[place + 1], None, side, labelled and own and place == first)
                self.pieces.setdefault(trail[place], []).append(piece)

    # --- levels are arranged ---

    def _arrange(self, frame: str | None) -> None:
        ids = self.within[frame]
        slots = [self._slot(id) for id in ids]
        index = {id: place for place, id in enumerate(ids)}
        pieces = self.pieces.get(frame, [])
        ties: list[Tie] = []
        for piece in pieces:
            if piece.other is None:
                slots.append(Slot("port", port=piece.port))
            ties.append(self._tie(piece, index, len(slots) - 1))
        words, notes, wide, high = heading(self.boxes[frame]) if frame is not None else ((), (), 0.0, 0.0)
        level = self.levels[frame] = arrange(slots, ties, (wide, high), self._loops_height(frame))
        if frame is None:
            return
        self.figures[frame] = Figure("frame", level.width, level.height, words, notes)
        for piece, tie in zip(pieces, ties, strict=True):
            if piece.other is None:
                port = tie.upper if piece.port == "top" else tie.lower
                self.ports[frame, piece.arrow] = level.slots[port][0] - level.width / 2

    def _loops_height(self, frame: str | None) -> float:
        return len(self.loops.get(frame, ())) * LOOP + 2 * LOOP if frame in self.loops else 0.0

    def _slot(self, id: str) -> Slot:
        loops = self.loops.get(id, [])
        if id not in self.figures:
            self.figures[id] = figure(self.boxes[id], len(loops))
        beside = 0.0
        for number in loops:
            words = self.words[number]
            beside = max(beside, _LOOP_REACH + (label_size(words)[0] if words else 0.0))
        shown = self.figures[id]
        return Slot(shown.form, shown.width, shown.height, beside)

    def _tie(self, piece: _Piece, index: dict[str, int], port: int) -> Tie:
        up = piece.arrow in self.upward
        size = label_size(self.words[piece.arrow]) if piece.label else None
        here, at = index[piece.box], self.ports.get((piece.box, piece.arrow))
        if piece.other is None and piece.port == "top":
            return Tie(port, here, size, up, None, at)
        if piece.other is None:
            return Tie(here, port, size, up, at, None)
        there, there_at = index[piece.other], self.ports.get((piece.other, piece.arrow))
        if up:
            return Tie(there, here, size, True, there_at, at)
        return Tie(here, there, size, False, at, there_at)

    # --- levels are put into each other ---

    def _assembled(self) -> Layout:
        corners: dict[str | None, Point] = {None: (0.0, 0.0)}
        found: dict[int, list[tuple[Line, Point]]] = {}
        for id in [None, *self.depth]:  # from the outside to the inside
            if id not in self.levels:
                continue
            level, (x, y) = self.levels[id], corners[id]
            for inner, (at_x, at_y) in zip(self.within[id], level.slots, strict=False):
                shown = self.figures[inner]
                corners[inner] = x + at_x - shown.width / 2, y + at_y - shown.height / 2
            for piece, line in zip(self.pieces.get(id, ()), level.lines, strict=True):
                found.setdefault(piece.arrow, []).append((line, (x, y)))
        boxes = tuple(Placed(*corners[box.id], self.figures[box.id], self.depth[box.id]) for box in self.diagram.boxes)
        routes: list[Route] = []
        for number, arrow in enumerate(self.diagram.arrows):
            if arrow.source == arrow.target:
                routes.append(self._loop(number, self.boxes[arrow.source], corners[arrow.source]))
            else:
                routes.append(self._joined(number, found[number]))
        outer = self.levels[None]
        return Layout(outer.width, outer.height, boxes, tuple(routes))

    def _joined(self, number: int, lines: list[tuple[Line, Point]]) -> Route:
        """The pieces of an arrow as one way; they are in order from top to bottom when sorted by height."""
        strokes: list[list[Point]] = []
        label: Point | None = None
        moved = [
            (tuple(tuple((x + dx, y + dy) for x, y in stroke) for stroke in line.strokes), line.label, (dx, dy))
            for line, (dx, dy) in lines
        ]
        for pieces, at, (dx, dy) in sorted(moved, key=lambda piece: (piece[0][0][0][1], piece[0][-1][-1][1])):
            if at is not None:
                label = at[0] + dx, at[1] + dy
            for place, stroke in enumerate(pieces):
                if strokes and place == 0:
                    strokes[-1] += stroke
                else:
                    strokes.append(list(stroke))
        if number in self.upward:
            strokes = [stroke[::-1] for stroke in strokes[::-1]]
        return Route(tuple(map(tuple, strokes)), label, self.words[number])

    def _loop(self, number: int, box: Box, corner: Point) -> Route:
        shown, loops = self.figures[box.id], self.loops[box.id]
        middle = corner[1] + shown.height / 2 + (loops.index(number) - (len(loops) - 1) / 2) * LOOP
        ends: list[Point] = []
        for y in (middle - 7, middle + 7):
            beside = flank(shown.form, shown.width, shown.height, y - corner[1] - shown.height / 2)
            ends.append((corner[0] + shown.width / 2 + beside, y))
        words = self.words[number]
        right = corner[0] + shown.width + _LOOP_REACH
        label = (right + label_size(words)[0] / 2 - 4, middle) if words else None
        start, end = ends
        return Route(((start, (right, middle), end),), label, words, loop=True)
