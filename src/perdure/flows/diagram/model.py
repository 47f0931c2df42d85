"""What a diagram is: boxes, possibly inside one another, and arrows between them.

Rules kept here: ids are unique, arrows and `inside` name boxes that exist, and no box is inside itself. Whoever holds
a `Diagram` need not check again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from perdure.errors import UsageError

Kind: TypeAlias = Literal["state", "flow"]
Mark: TypeAlias = Literal["", "current", "done", "failed"]
Shape: TypeAlias = Literal["box", "start", "end", "choice", "wait", "person", "split", "join", "loop", "child"]

#: Shapes that say enough without words: their id is not shown in place of a missing label.
WORDLESS: frozenset[Shape] = frozenset({"start", "end", "choice", "split", "join"})


class Box(Struct, frozen=True):
    """A state or a step; with others inside it, a frame around them.

    `box` is an action or a plain state, `choice` a condition or a switch, `wait` a delay, an event or a timer, `split`
    and `join` the bars around what runs in parallel, `child` a workflow of its own. `note` is a second, smaller line.
    """

    id: str
    label: str = ""
    shape: Shape = "box"
    inside: str | None = None
    mark: Mark = ""
    note: str = ""

    @property
    def words(self) -> str:
        """What is written on the box."""
        if self.label.strip():
            return self.label
        return "" if self.shape in WORDLESS else self.id


class Arrow(Struct, frozen=True):
    """A way from one box to another, or back to the same one."""

    source: str
    target: str
    label: str = ""
    mark: Mark = ""


class Diagram(Struct, frozen=True):
    """A definition to be drawn; the order of boxes and arrows decides what stands first where there is a choice.

    >>> door = Diagram("state", "door", (Box("open"), Box("shut")), (Arrow("open", "shut", "push"),))
    >>> door.frames()
    frozenset()
    """

    kind: Kind
    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    def __post_init__(self) -> None:
        boxes: dict[str, Box] = {}
        for box in self.boxes:
            if box.id in boxes:
                raise UsageError(f"diagram {self.title!r}: two boxes have the id {box.id!r}; give each its own")
            boxes[box.id] = box
        for box in self.boxes:
            if box.inside is not None and box.inside not in boxes:
                raise UsageError(f"diagram {self.title!r}: box {box.id!r} is inside {box.inside!r}, which is no box")
        for arrow in self.arrows:
            for end in (arrow.source, arrow.target):
                if end not in boxes:
                    raise UsageError(
                        f"diagram {self.title!r}: the arrow {arrow.source!r} → {arrow.target!r} names {end!r}, "
                        "which is no box"
                    )
        self._check_nesting(boxes)

    def _check_nesting(self, boxes: dict[str, Box]) -> None:
        sound: set[str] = set()
        for box in self.boxes:
            trail: dict[str, None] = {}
            at: str | None = box.id
            while at is not None and at not in sound:
                if at in trail:
                    raise UsageError(f"diagram {self.title!r}: box {at!r} is inside itself; break the circle")
                trail[at] = None
                at = boxes[at].inside
            sound.update(trail)

    def frames(self) -> frozenset[str]:
        """The ids of the boxes that have others inside."""
        return frozenset(box.inside for box in self.boxes if box.inside is not None)
