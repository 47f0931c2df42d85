"""A diagram as Mermaid text: `stateDiagram-v2` for state machines, `flowchart TD` for the rest.

Rules kept here: ids are made anew from letters, digits and `_`, with a prefix that no keyword has; of ASCII, text keeps
only what has no meaning in Mermaid, everything else is written as a number. So no name can break out of its place.

Mermaid puts a state into the last frame whose text mentions it, so arrows across frames are written outside of all
frames. It cannot draw an arrow between a frame and its own content: a small state inside stands for the frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from perdure.flows.diagram.model import Arrow, Box, Diagram, Shape
from perdure.flows.diagram.text import clean

_CLASSES = {
    "current": "fill:#dceaff,stroke:#1f6feb,stroke-width:3px,color:#1d2530",
    "done": "fill:#e9f7ec,stroke:#2f8f4e,stroke-width:2px,color:#1d2530",
    "failed": "fill:#ffebe9,stroke:#cf222e,stroke-width:2px,color:#1d2530",
}
_SOLID = "fill:#4a5568,stroke:#4a5568,color:#ffffff"
_STROKES = {"current": "#1f6feb", "done": "#2f8f4e", "failed": "#cf222e"}
_SHAPES: dict[Shape, tuple[str, str]] = {
    "box": ("[", "]"),
    "start": ("([", "])"),
    "end": ("([", "])"),
    "choice": ("{", "}"),
    "wait": ("{{", "}}"),
    "person": ("[/", "/]"),
    "split": ("[", "]"),
    "join": ("[", "]"),
    "loop": ("(", ")"),
    "child": ("[[", "]]"),
}
_BARE: dict[Shape, tuple[str, str]] = {"start": ("((", "))"), "end": ("(((", ")))")}
#: Shapes that stateDiagram-v2 has a word for, as long as there is nothing to write on them.
_STEREOTYPES: dict[Shape, str] = {"choice": "<<choice>>", "split": "<<fork>>", "join": "<<join>>"}
#: ASCII that means something to Mermaid, to Markdown or to HTML. A single dash means nothing, two do; `_` does at the
#: ends of words; and "direction LR" is a command wherever it stands in a line, even in quotes.
_SPECIAL = re.compile(
    r"[^\w .,()/+=?!\u0080-\U0010ffff-]|-(?=-)|(?<=-)-|(?<![^\W_])_|_(?![^\W_])|(?<=direction) ", re.IGNORECASE
)


def mermaid(diagram: Diagram) -> str:
    """Write a diagram as Mermaid text.

    >>> print(mermaid(Diagram("flow", "", (Box("a"), Box("b")), (Arrow("a", "b", "go"),))), end="")
    flowchart TD
      b_a["a"]
      b_b["b"]
      b_a -->|"go"| b_b
    """
    writer = _States(diagram) if diagram.kind == "state" else _Flow(diagram)
    return "\n".join([*_front(diagram.title), *writer.lines()]) + "\n"


def _front(title: str) -> list[str]:
    """The title as front matter: a JSON string is a YAML string, and these signs are looked for in all of the text."""
    if not (shown := clean(title)):
        return []
    quoted = msgspec.json.encode(shown).decode()
    for sign in "<>%{}":
        quoted = quoted.replace(sign, f"\\u{ord(sign):04x}")
    return ["---", f"title: {quoted}", "---"]


def _text(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"#{ord(found[0])};", clean(text))


class _Names:
    """Safe names, close to the ids, no two alike."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def take(self, wish: str) -> str:
        plain = "b_" + re.sub(r"[^A-Za-z0-9]+", "_", wish)[:40].strip("_")
        name, number = plain, 1
        while name in self.taken:
            number += 1
            name = f"{plain}_{number}"
        self.taken.add(name)
        return name


class _Writer:
    """What both kinds share: names, nesting and classes."""

    def __init__(self, diagram: Diagram) -> None:
        self.diagram = diagram
        self.boxes = {box.id: box for box in diagram.boxes}
        names = _Names()
        self.names = {box.id: names.take(box.id) for box in diagram.boxes}
        self.within: dict[str | None, list[Box]] = {None: []}
        for box in diagram.boxes:
            self.within.setdefault(box.inside, []).append(box)
        #: Frames that an arrow joins with their own content: the state inside that stands for them.
        self.proxies: dict[str, str] = {}
        for arrow in diagram.arrows:
            for outer, inner in ((arrow.source, arrow.target), (arrow.target, arrow.source)):
                if outer not in self.proxies and self._around(outer, inner):
                    self.proxies[outer] = names.take(f"{outer} itself")

    def lines(self) -> Iterator[str]:
        raise NotImplementedError

    def _around(self, outer: str, inner: str) -> bool:
        at = self.boxes[inner].inside
        while at is not None and at != outer:
            at = self.boxes[at].inside
        return at is not None

    def _ends(self, arrow: Arrow) -> tuple[str, str]:
        source, target = self.names[arrow.source], self.names[arrow.target]
        if arrow.source in self.proxies and self._around(arrow.source, arrow.target):
            source = self.proxies[arrow.source]
        if arrow.target in self.proxies and self._around(arrow.target, arrow.source):
            target = self.proxies[arrow.target]
        return source, target

    def _shown(self, box: Box) -> str:
        """The text of a box; it is never empty, which would not be read back as text."""
        text = _text(box.words) or _text(box.id) or "…"
        return f"{text}<br/>{note}" if (note := _text(box.note)) else text

    def _marks(self) -> Iterator[str]:
        for mark, style in _CLASSES.items():
            if names := [self.names[box.id] for box in self.diagram.boxes if box.mark == mark]:
                yield f"  classDef {mark} {style}"
                yield f"  class {','.join(names)} {mark}"

    def _nested(self) -> Iterator[tuple[str, Box, bool]]:
        """All boxes from the outside to the inside with their margin; a frame comes again where it ends."""
        walk = [(box, False) for box in reversed(self.within[None])]
        margin = "  "
        while walk:
            box, ends = walk.pop()
            if ends:
                yield margin[2:], box, True
                margin = margin[2:]
                continue
            yield margin, box, False
            if box.id in self.within:
                margin += "  "
                walk.append((box, True))
                walk += [(inner, False) for inner in reversed(self.within[box.id])]


class _Flow(_Writer):
    """`flowchart TD`: frames are subgraphs; all arrows come at the end."""

    def lines(self) -> Iterator[str]:
        yield "flowchart TD"
        for margin, box, ends in self._nested():
            if ends:
                yield f"{margin}end"
            elif box.id in self.within:
                yield f'{margin}subgraph {self.names[box.id]} ["{self._shown(box)}"]'
                if box.id in self.proxies:
                    yield f'{margin}  {self.proxies[box.id]}(["{self._shown(box)}"])'
            else:
                yield f"{margin}{self._box(box)}"
        for arrow in self.diagram.arrows:
            source, target = self._ends(arrow)
            label = f'|"{text}"|' if (text := _text(arrow.label)) else ""
            yield f"  {source} -->{label} {target}"
        yield from self._marks()
        solid = [box for box in self.diagram.boxes if self._is_solid(box)]
        if solid:
            yield f"  classDef solid {_SOLID}"
            yield f"  class {','.join(self.names[box.id] for box in solid)} solid"
        for number, arrow in enumerate(self.diagram.arrows):
            if arrow.mark:
                yield f"  linkStyle {number} stroke:{_STROKES[arrow.mark]},stroke-width:3px"

    def _box(self, box: Box) -> str:
        bare = not _text(box.words) and not _text(box.note)
        left, right = _BARE.get(box.shape, _SHAPES[box.shape]) if bare else _SHAPES[box.shape]
        return f'{self.names[box.id]}{left}"{" " if bare else self._shown(box)}"{right}'

    def _is_solid(self, box: Box) -> bool:
        return box.shape in {"split", "join", "start"} and not box.mark and box.id not in self.within


class _States(_Writer):
    """`stateDiagram-v2`: arrows between the states of one frame are written in it, all others at the end."""

    def __init__(self, diagram: Diagram) -> None:
        super().__init__(diagram)
        self.stars = {box.id for box in diagram.boxes if self._is_star(box)}
        self.inner: dict[str | None, list[Arrow]] = {}
        for arrow in diagram.arrows:
            source, target = self.boxes[arrow.source].inside, self.boxes[arrow.target].inside
            self.inner.setdefault(source if source == target else None, []).append(arrow)

    def _is_star(self, box: Box) -> bool:
        """Whether `[*]` says all there is to say about a start or an end.

        It has no words and no mark, it belongs to the frame whose text mentions it, and it is a start or an end by the
        direction of the arrow alone.
        """
        if box.shape not in {"start", "end"} or box.words.strip() or box.mark or box.note or box.id in self.within:
            return False
        mentions = [arrow for arrow in self.diagram.arrows if box.id in {arrow.source, arrow.target}]
        here = box.inside
        return bool(mentions) and all(
            (arrow.target if box.shape == "start" else arrow.source) != box.id
            and (here is None or self.boxes[arrow.source].inside == self.boxes[arrow.target].inside == here)
            for arrow in mentions
        )

    def lines(self) -> Iterator[str]:
        yield "stateDiagram-v2"
        for margin, box, ends in self._nested():
            if ends:
                yield from self._transitions(margin + "  ", box.id)
                yield f"{margin}}}"
            elif box.id in self.within:
                yield f'{margin}state "{self._shown(box)}" as {self.names[box.id]} {{'
                if box.id in self.proxies:
                    yield f'{margin}  state "{self._shown(box)}" as {self.proxies[box.id]}'
            elif box.id not in self.stars:
                yield margin + self._state(box)
        yield from self._transitions("  ", None)
        yield from self._marks()

    def _state(self, box: Box) -> str:
        bare = not _text(box.words) and not box.note and not box.mark
        if bare and (stereotype := _STEREOTYPES.get(box.shape)):
            return f"state {self.names[box.id]} {stereotype}"
        return f'state "{self._shown(box)}" as {self.names[box.id]}'

    def _transitions(self, margin: str, frame: str | None) -> Iterator[str]:
        for box in self.within[frame]:
            if box.id not in self.stars and box.id not in self.within:
                if box.shape == "start":
                    yield f"{margin}[*] --> {self.names[box.id]}"
                elif box.shape == "end":
                    yield f"{margin}{self.names[box.id]} --> [*]"
        for arrow in self.inner.get(frame, ()):
            source, target = self._ends(arrow)
            source = "[*]" if arrow.source in self.stars else source
            target = "[*]" if arrow.target in self.stars else target
            label = f" : {text}" if (text := _text(arrow.label)) else ""
            yield f"{margin}{source} --> {target}{label}"
