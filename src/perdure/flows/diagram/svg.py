"""A diagram as an SVG that stands alone: no script, no font, no reference to anything outside.

Rules kept here: all text goes through one function that escapes it; colours come from the style sheet alone; a mark is
shown by a sign and in the description as well, never by its colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from html import escape
from itertools import pairwise

from perdure.flows.diagram.layout import Layout, Placed, Route, lay_out
from perdure.flows.diagram.lines import Point
from perdure.flows.diagram.model import Arrow, Box, Diagram
from perdure.flows.diagram.shapes import (
    LABEL_LINE,
    NOTE_LINE,
    PERSON,
    SLANT,
    WORDS_LINE,
    Figure,
)
from perdure.flows.diagram.style import STYLE
from perdure.flows.diagram.text import clean, width_of, wrap

_XMLNS = "http://www.w3.org/2000/svg"


def svg(diagram: Diagram) -> str:
    """Draw a diagram.

    >>> svg(Diagram("flow", "greet", (Box("hello"),), ())).startswith("<svg ")
    True
    """
    layout = lay_out(diagram)
    title = wrap(diagram.title, 15.0, max(layout.width - 40, 240.0), 1)
    above = 34.0 if title else 0.0
    width = max(layout.width, *(width_of(line, 16.0) + 40 for line in title)) if title else layout.width
    height = layout.height + above
    said = _escaped(diagram.title), _escaped(_described(diagram))
    content = "\n".join(_content(diagram, layout))
    name = "pd" + sha256("\n".join([*said, content]).encode()).hexdigest()[:10]
    size = f'width="{_n(width)}" height="{_n(height)}"'
    names = f'role="img" aria-labelledby="{name}-title {name}-desc"'
    parts = [
        f'<svg xmlns="{_XMLNS}" class="perdure-diagram" {size} viewBox="0 0 {_n(width)} {_n(height)}" {names}>',
        f'<title id="{name}-title">{said[0]}</title>',
        f'<desc id="{name}-desc">{said[1]}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="bg" {size} rx="8"/>',
        *(f'<text class="title" x="18" y="28">{_escaped(line)}</text>' for line in title),
        f'<g transform="translate({_n((width - layout.width) / 2)} {_n(above)})">',
        content,
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def _content(diagram: Diagram, layout: Layout) -> Iterator[str]:
    """Frames from the outside to the inside, then arrows, then boxes: what is drawn later lies above."""
    frames: list[tuple[Placed, Box]] = []
    boxes: list[tuple[Placed, Box]] = []
    for box, placed in zip(diagram.boxes, layout.boxes, strict=True):
        (frames if placed.figure.form == "frame" else boxes).append((placed, box))
    for placed, box in sorted(frames, key=lambda frame: frame[0].depth):
        yield _group(box, placed, _frame(box, placed))
    for arrow, route in zip(diagram.arrows, layout.routes, strict=True):
        yield _arrow(arrow, route)
    for placed, box in boxes:
        yield _group(box, placed, _box(box, placed))


def _described(diagram: Diagram) -> str:
    what = "State machine" if diagram.kind == "state" else "Flow"
    said = [f"{what} with {len(diagram.boxes)} boxes and {len(diagram.arrows)} arrows."]
    for mark in ("current", "done", "failed"):
        marked = [box.words or box.id for box in diagram.boxes if box.mark == mark]
        if marked:
            said.append(f"{mark.capitalize()}: {', '.join(marked)}.")
    return " ".join(said)


def _escaped(text: str) -> str:
    return escape(clean(text), quote=True)


def _n(value: float) -> str:
    """A number, short: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")


# --- boxes ---


def _group(box: Box, placed: Placed, inner: str) -> str:
    """A box with a tooltip that has all of its text, also where the picture has an ellipsis."""
    said = " — ".join(part for part in (box.words or box.id, box.note, box.mark) if part)
    return f"<g><title>{_escaped(said)}</title>{inner}{_sign(box, placed)}</g>"


def _frame(box: Box, placed: Placed) -> str:
    shown, x, y = placed.figure, placed.x, placed.y
    tint = f"frame {'odd' if placed.depth % 2 else 'even'} {box.mark}".strip()
    dashed = " dashed" if box.shape in {"split", "join"} else ""
    parts = [_rect(f"{tint}{dashed}", x, y, shown.width, shown.height, 10)]
    if box.shape == "child":
        parts.append(_rect(f"{tint} bare", x + 4, y + 4, shown.width - 8, shown.height - 8, 7))
    left, line = x + 16, y + 24
    if box.shape in {"person", "loop"}:
        parts.append(_icon(box, left + 6, line - 4))
        left += PERSON
    for words in shown.words:
        parts.append(f'<text class="head" x="{_n(left)}" y="{_n(line)}">{_escaped(words)}</text>')
        line += NOTE_LINE
    for words in shown.notes:
        parts.append(f'<text class="note head" x="{_n(left)}" y="{_n(line)}">{_escaped(words)}</text>')
    return "".join(parts)


def _box(box: Box, placed: Placed) -> str:
    shown, x, y = placed.figure, placed.x, placed.y
    w, h = shown.width, shown.height
    tint = {"wait": "box wait", "choice": "box choice", "person": "box person"}.get(box.shape, "box")
    tint = f"{tint} {box.mark}".strip()
    middle, inverse = x + w / 2, ""
    match shown.form:
        case "dot":
            outline = _dot(box, tint, middle, y + h / 2, h / 2)
        case "diamond":
            outline = _polygon(tint, [(middle, y), (x + w, y + h / 2), (middle, y + h), (x, y + h / 2)])
        case "hexagon":
            top = [(x + SLANT, y), (x + w - SLANT, y), (x + w, y + h / 2)]
            outline = _polygon(tint, [*top, (x + w - SLANT, y + h), (x + SLANT, y + h), (x, y + h / 2)])
        case "bar":
            solid = box.mark or "solid"
            inverse = "" if box.mark else " inverse"
            outline = _rect(f"box {solid}", x, y, w, h, 4)
        case "pill":
            outline = _rect(tint, x, y, w, h, h / 2)
            if box.shape == "end":
                outline += _rect(f"{tint} bare", x + 3.5, y + 3.5, w - 7, h - 7, h / 2 - 3.5)
        case _:
            outline = _rect(tint, x, y, w, h, 7)
            if box.shape == "child":
                outline += _rect(f"{tint} bare", x + 4, y + 4, w - 8, h - 8, 4)
    if box.shape in {"person", "loop"}:
        outline += _icon(box, x + 20, y + h / 2)
        middle += PERSON / 2
    return outline + _words(shown, middle, y + h / 2, inverse)


def _words(shown: Figure, x: float, y: float, inverse: str) -> str:
    line = y - (len(shown.words) * WORDS_LINE + len(shown.notes) * NOTE_LINE) / 2
    parts: list[str] = []
    for words in shown.words:
        parts.append(f'<text class="words{inverse}" x="{_n(x)}" y="{_n(line + 12.8)}">{_escaped(words)}</text>')
        line += WORDS_LINE
    for words in shown.notes:
        parts.append(f'<text class="note{inverse}" x="{_n(x)}" y="{_n(line + 10.5)}">{_escaped(words)}</text>')
        line += NOTE_LINE
    return "".join(parts)


def _dot(box: Box, tint: str, x: float, y: float, radius: float) -> str:
    tone = box.mark or "solid"
    if box.shape == "start":
        return f'<circle class="box {tone}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius - 1)}"/>'
    ring = f'<circle class="{tint}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius - 1)}"/>'
    return f'{ring}<circle class="box {tone}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius - 6)}"/>'


def _icon(box: Box, x: float, y: float) -> str:
    """A little figure for people, an arrow that goes round for loops."""
    if box.shape == "person":
        body = f"M{_n(x - 7)} {_n(y + 8)}c0-9 14-9 14 0z"
        return f'<circle class="solid" cx="{_n(x)}" cy="{_n(y - 4)}" r="3.6"/><path class="solid" d="{body}"/>'
    ring = f'<path class="line" d="M{_n(x + 4)} {_n(y - 4)}A5.6 5.6 0 1 0 {_n(x + 5.6)} {_n(y + 1)}"/>'
    return f'{ring}<path class="tip" d="M{_n(x + 7)} {_n(y - 7.5)}v6.5h-6.5z"/>'


def _sign(box: Box, placed: Placed) -> str:
    """What a mark means to somebody who does not see its colour, on the upper right of the box."""
    if not box.mark:
        return ""
    shown = placed.figure
    inset = {"hexagon": SLANT, "dot": 2.0}.get(shown.form, 4.0)
    x, y = placed.x + shown.width - inset, placed.y
    if shown.form == "diamond":  # on the border, near the right corner, away from the words
        x, y = placed.x + shown.width * 0.87, placed.y + shown.height * 0.37
    forms = {
        "current": "m-2.2-3.6 5 3.6-5 3.6z",
        "done": "m-3.4.2 2.4 2.6 4.4-5.2",
        "failed": "m-2.8-2.8 5.6 5.6m0-5.6-5.6 5.6",
    }
    disc = f'<circle class="tip {box.mark}" cx="{_n(x)}" cy="{_n(y)}" r="7"/>'
    return f'{disc}<path class="sign" d="M{_n(x)} {_n(y)}{forms[box.mark]}"/>'


def _rect(tint: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    size = f'width="{_n(width)}" height="{_n(height)}"'
    return f'<rect class="{tint}" x="{_n(x)}" y="{_n(y)}" {size} rx="{_n(radius)}"/>'


def _polygon(tint: str, points: list[Point]) -> str:
    return f'<polygon class="{tint}" points="{" ".join(f"{_n(x)},{_n(y)}" for x, y in points)}"/>'


# --- arrows ---


def _arrow(arrow: Arrow, route: Route) -> str:
    tone = f" {arrow.mark}" if arrow.mark else ""
    if route.loop:
        (x, top), (out, _), (end, bottom) = route.strokes[0]
        path = f"M{_n(x)} {_n(top)}C{_n(out)} {_n(top - 8)} {_n(out)} {_n(bottom + 8)} {_n(end + 5)} {_n(bottom + 1)}"
        tip = f"M{_n(end)} {_n(bottom)}l9-1.5-3 7.5z"
    else:
        *rest, last = route.strokes
        x, y = last[-1]
        way = 1 if y >= route.strokes[0][0][1] else -1
        path = "".join(_stroke(stroke) for stroke in rest) + _stroke((*last[:-1], (x, y - 6 * way)))
        tip = f"M{_n(x)} {_n(y)}l-4.5 {-9 * way}h9z"
    said = f"{arrow.source} → {arrow.target}" + (f": {arrow.label}" if arrow.label else "")
    parts = [f"<g><title>{_escaped(said)}</title>", f'<path class="line{tone}" d="{path}"/>']
    parts.append(f'<path class="tip{tone}" d="{tip}"/>')
    if route.label is not None:
        x, y = route.label
        line = y - len(route.words) * LABEL_LINE / 2 + 11
        for number, words in enumerate(route.words):
            at = f'x="{_n(x)}" y="{_n(line + number * LABEL_LINE)}"'
            parts.append(f'<text class="label" {at}>{_escaped(words)}</text>')
    return "".join(parts) + "</g>"


def _stroke(points: tuple[Point, ...]) -> str:
    """Straight lines where it goes straight up or down, and a bend in between."""
    path = f"M{_n(points[0][0])} {_n(points[0][1])}"
    for (x, y), (to_x, to_y) in pairwise(points):
        if abs(x - to_x) < 0.05:
            path += f"V{_n(to_y)}"
        else:
            half = _n((y + to_y) / 2)
            path += f"C{_n(x)} {half} {_n(to_x)} {half} {_n(to_x)} {_n(to_y)}"
    return path
