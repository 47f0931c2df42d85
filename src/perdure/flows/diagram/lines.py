"""The lines of one level, once everything has its place.

Rules kept here: within the band of a layer a line is vertical, between two bands it bends once. Lines that meet a box
on the same side keep a distance, and one that can be straight is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from msgspec import Struct

from perdure.flows.diagram.shapes import Form, foot, reach

Point: TypeAlias = tuple[float, float]

_APART = 14.0


class Slot(Struct, frozen=True):
    """What has a place in a level: a box, with the room that its loops need on the right, or a port."""

    form: Form
    width: float = 0.0
    height: float = 0.0
    beside: float = 0.0
    port: Literal["", "top", "bottom"] = ""


class Tie(Struct, frozen=True):
    """A line from an upper slot to a lower one; fixed ends are given as distances from the middle of the slot."""

    upper: int
    lower: int
    label: Point | None = None  # its width and height
    label_low: bool = False  # near the lower end, which is where the arrow begins
    upper_at: float | None = None
    lower_at: float | None = None


class Line(Struct, frozen=True):
    """A line as it is drawn, from top to bottom, in one stroke or around its label in two."""

    strokes: tuple[tuple[Point, ...], ...]
    label: Point | None = None  # its middle


class Grid(Struct, frozen=True):
    """A level before its lines are drawn. Nodes are the slots, followed by the bends and labels of the ties."""

    slots: Sequence[Slot]
    ties: Sequence[Tie]
    x: Sequence[float]
    row: Sequence[int]
    bands: Sequence[Point]
    chains: Sequence[Sequence[int]]  # the nodes of each tie
    labels: dict[int, int]  # tie → the node of its label
    lanes: dict[int, float]  # tie → where it is led around everything


def draw(grid: Grid) -> tuple[Line, ...]:
    """All lines of a level, in the order of the ties."""
    ties = grid.ties
    aims = [grid.lanes[n] if n in grid.lanes else grid.x[chain[1]] for n, chain in enumerate(grid.chains)]
    upper = _meet(grid, [tie.upper for tie in ties], [tie.upper_at for tie in ties], aims)
    for number, chain in enumerate(grid.chains):
        if number not in grid.lanes:
            aims[number] = upper[number] if len(chain) == 2 else grid.x[chain[-2]]
    lower = _meet(grid, [tie.lower for tie in ties], [tie.lower_at for tie in ties], aims)
    return tuple(_line(grid, number, upper[number], lower[number]) for number in range(len(ties)))


def _meet(grid: Grid, ends: list[int], fixed: list[float | None], aims: list[float]) -> list[float]:
    """Where each line meets its box, on one side of all boxes."""
    found = [0.0] * len(ends)
    sharing: dict[int, list[int]] = {}
    for number, node in enumerate(ends):
        at = fixed[number]
        if at is None:
            sharing.setdefault(node, []).append(number)
        else:
            found[number] = grid.x[node] + at
    for node, numbers in sharing.items():
        slot, middle = grid.slots[node], grid.x[node]
        room = reach(slot.form, slot.width, slot.height)
        wide = min(room, _APART * (len(numbers) - 1))
        wishes: list[tuple[float, float, int]] = []
        for number in numbers:
            away = aims[number] - middle
            wish = away if abs(away) <= room else wide if away > 0 else -wide
            wishes.append((wish, away, number))
        wishes.sort()
        places = _kept_apart([wish for wish, _, _ in wishes], room)
        for (_, _, number), place in zip(wishes, places, strict=True):
            found[number] = middle + place
    return found


def _kept_apart(wishes: list[float], room: float) -> list[float]:
    """Rising places near the wishes, with a distance between them as far as the room allows."""
    if len(wishes) < 2:
        return wishes
    gap = min(_APART, 2 * room / (len(wishes) - 1))
    rising, falling = wishes[:], wishes[:]
    for number in range(1, len(wishes)):
        rising[number] = max(rising[number], rising[number - 1] + gap)
    for number in range(len(wishes) - 2, -1, -1):
        falling[number] = min(falling[number], falling[number + 1] - gap)
    places = [(a + b) / 2 for a, b in zip(rising, falling, strict=True)]
    # A second look at both ends: nobody leaves the side of the box.
    for number in range(len(places)):
        low, high = -room + gap * number, room - gap * (len(places) - 1 - number)
        places[number] = min(max(places[number], low), high)
    return places


def _line(grid: Grid, number: int, start: float, end: float) -> Line:
    tie, chain = grid.ties[number], grid.chains[number]
    first, last = grid.bands[grid.row[tie.upper]], grid.bands[grid.row[tie.lower]]
    a, b = grid.slots[tie.upper], grid.slots[tie.lower]
    top = sum(first) / 2 + foot(a.form, a.width, a.height, start - grid.x[tie.upper])
    if a.port:
        top = first[0]
    bottom = sum(last) / 2 - foot(b.form, b.width, b.height, end - grid.x[tie.lower])
    before: list[Point] = [(start, top), (start, first[1])]
    after: list[Point] = []
    label: Point | None = None
    passed = [(grid.x[node], grid.bands[grid.row[node]], node) for node in chain[1:-1]]
    lane = grid.lanes.get(number)
    if lane is not None:
        entry, leave = grid.bands[grid.row[tie.upper] + 1][0], grid.bands[grid.row[tie.lower] - 1][1]
        passed = [(lane, (entry, max(entry, leave)), -1)]
    for x, band, node in passed:
        (after if label else before).append((x, band[0]))
        if tie.label and (lane is not None or node == grid.labels.get(number)):
            height = tie.label[1]
            label = (x, sum(band) / 2 if lane is None else band[0] + height / 2)
            before.append((x, label[1] - height / 2))
            after.append((x, label[1] + height / 2))
        (after if label else before).append((x, max(band[1], after[-1][1] if after else band[1])))
    (after if label else before).extend([(end, last[0]), (end, bottom)])
    strokes = [_without_repeats(points) for points in (before, after) if points]
    return Line(tuple(strokes), label)


def _without_repeats(points: list[Point]) -> tuple[Point, ...]:
    rounded = [(round(x, 2), round(y, 2)) for x, y in points]
    return (rounded[0], *(b for a, b in pairwise(rounded) if a != b))
