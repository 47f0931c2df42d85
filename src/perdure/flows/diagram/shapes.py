"""The shapes of boxes: how large they are for their words, and where their borders are.

A form is an outline; several shapes share one and differ in what is drawn on it. Distances are from the middle of the
box, so the same functions serve for the upper and the lower side, and for the left and the right.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal, TypeAlias, assert_never

from msgspec import Struct

from perdure.flows.diagram.model import Box
from perdure.flows.diagram.text import width_of, wrap

Form: TypeAlias = Literal["rect", "frame", "pill", "dot", "diamond", "hexagon", "bar", "port"]

WORDS, WORDS_LINE = 13.0, 17.0
NOTE, NOTE_LINE = 11.0, 14.0
LABEL, LABEL_LINE = 11.5, 15.0
LOOP = 26.0  # the height that a loop beside a box takes, and how far it reaches out
SLANT = 14.0  # the pointed sides of a hexagon
PERSON = 22.0  # the room for the little figure
_LIMIT = 190.0


class Figure(Struct, frozen=True):
    """A box as it will be drawn."""

    form: Form
    width: float
    height: float
    words: tuple[str, ...]
    notes: tuple[str, ...]


def figure(box: Box, loops: int) -> Figure:
    """Size a box that has nothing inside for its words, its note and the loops on its side."""
    limit = 130.0 if box.shape == "choice" else _LIMIT
    words = wrap(box.words, WORDS, limit, 3)
    notes = wrap(box.note, NOTE, limit, 2)
    width = max((width_of(line, WORDS) for line in words), default=0.0)
    width = max([width, *(width_of(line, NOTE) for line in notes)])
    height = len(words) * WORDS_LINE + len(notes) * NOTE_LINE
    form, width, height = _outline(box, width, height)
    height = max(height, loops * LOOP + (20.0 if form == "diamond" else 8.0) if loops else 0.0)
    if form in {"dot", "pill"}:
        width = max(width, height)  # what is round stays round
    return Figure(form, _even(width), _even(height), words, notes)


def _outline(box: Box, width: float, height: float) -> tuple[Form, float, float]:
    """The form around words of this size."""
    match box.shape:
        case "start" | "end":
            if not height:
                return "dot", 22.0, 22.0
            return "pill", max(width + 36, 64.0), max(height + 14, 34.0)
        case "choice":
            if not height:
                return "diamond", 32.0, 32.0
            # The corners of the words touch the sides when both shares add up to one.
            tall = height * 1.9 + 14
            return "diamond", (width + 8) / (1 - height / tall), tall
        case "split" | "join":
            return ("bar", max(width + 24, 90.0), height + 6) if height else ("bar", 90.0, 8.0)
        case "wait":
            return "hexagon", max(width + 2 * SLANT + 14, 72.0), max(height + 16, 36.0)
        case "person" | "loop":
            return "rect", max(width + 28, 64.0) + PERSON, max(height + 16, 36.0)
        case "child":
            return "rect", max(width + 38, 68.0), max(height + 20, 40.0)
        case "box":
            return "rect", max(width + 28, 64.0), max(height + 16, 36.0)
        case _:
            assert_never(box.shape)


def heading(box: Box) -> tuple[tuple[str, ...], tuple[str, ...], float, float]:
    """The words and the note of a frame, with the room that they take at its top."""
    words = wrap(box.words or box.id, WORDS, 300.0, 1)
    notes = wrap(box.note, NOTE, 300.0, 1)
    width = max((width_of(line, WORDS) for line in words), default=0.0) * 1.06  # it is bold
    width = max([width, *(width_of(line, NOTE) for line in notes)])
    if box.shape in {"person", "loop"}:
        width += PERSON
    return words, notes, width, len(words) * WORDS_LINE + len(notes) * NOTE_LINE + 6


def label_size(lines: tuple[str, ...]) -> tuple[float, float]:
    """The room that the label of an arrow takes."""
    return _even(max(width_of(line, LABEL) for line in lines) + 8), len(lines) * LABEL_LINE + 2


def _even(value: float) -> float:
    return float(round(value / 2 + 0.499) * 2)


def reach(form: Form, width: float, height: float) -> float:
    """How far from its middle a line may meet the upper or the lower side."""
    match form:
        case "rect" | "frame":
            return max(0.0, width / 2 - 10)
        case "bar":
            return max(0.0, width / 2 - 4)
        case "pill":
            return max(0.0, (width - height) / 2)
        case "hexagon":
            return max(0.0, width / 2 - SLANT)
        case "diamond":
            return width * 0.3
        case "dot" | "port":
            return 0.0
        case _:
            assert_never(form)


def foot(form: Form, width: float, height: float, x: float) -> float:
    """How far below the middle the lower side is, so far to the left or right."""
    if form == "diamond":
        return height / 2 * (1 - min(1.0, abs(x) * 2 / width))
    return height / 2


def flank(form: Form, width: float, height: float, y: float) -> float:
    """How far right of the middle the right side is, so far above or below."""
    part = min(1.0, abs(y) * 2 / height) if height else 0.0
    if form == "diamond":
        return width / 2 * (1 - part)
    if form == "hexagon":
        return width / 2 - SLANT * part
    if form in {"pill", "dot"}:
        half = height / 2
        return width / 2 - half + sqrt(max(0.0, half * half - y * y))
    return width / 2
