"""What one evaluation may use, and the meter that counts it.

Rules kept here: every loop, call and output takes a step; every element and character that is made is counted before
it is made; depth is counted in frames of Python, from the shape of the program alone. So an expression stops at the
same place on every machine, whatever called it. No expression can catch that it ran out.
"""

from __future__ import annotations

from typing import Any, NoReturn

from msgspec import Struct

from perdure.errors import ExpressionError

#: How deep values may be nested where an expression has to walk through them.
NESTED = 100
#: How long the text of an expression may be, how deep nested, how many operators or fields may follow one another.
LONGEST = 20_000
DEEPEST = 60
LONGEST_CHAIN = 100


class Limits(Struct, frozen=True):
    """Limits of one evaluation: steps taken, nested frames, elements and characters made."""

    steps: int = 100_000
    depth: int = 500  # what functions of values need on top is bounded by NESTED
    size: int = 5_000_000


class Raised(Exception):
    """An error of the language: `try` and `?` catch it, with its value."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


class Broken(Exception):
    """`break $label` on its way to its label."""

    def __init__(self, label: object) -> None:
        super().__init__()
        self.label = label


class Meter:
    """What is left of the limits during one evaluation; the first element of every environment."""

    __slots__ = ("depth", "limits", "odd", "size", "steps")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps = limits.steps
        self.size = limits.size
        self.depth = 0
        #: Set when a number was made that JSON cannot hold; the outputs are then looked through.
        self.odd = False

    def work(self, steps: int) -> None:
        """Take many steps at once."""
        self.steps -= steps
        if self.steps < 0:
            self.weary()

    def make(self, size: int) -> None:
        """Ask before making `size` elements or characters."""
        self.size -= size
        if self.size < 0:
            raise ExpressionError(
                f"the expression makes more than {self.limits.size:,} elements and characters: let it build less"
            )

    def enter(self, reach: int, total: int) -> None:
        """Count a call: what it calls in turn is `reach` frames deeper, and it needs room for `total` itself."""
        self.steps -= 1
        if self.steps < 0:
            self.weary()
        if self.depth + total > self.limits.depth:
            self.sunk()
        self.depth += reach

    def weary(self) -> NoReturn:
        raise ExpressionError(
            f"the expression takes more than {self.limits.steps:,} steps: does it loop, or is its input too large?"
        )

    def sunk(self) -> NoReturn:
        raise ExpressionError(
            f"the expression is nested deeper than {self.limits.depth} frames: does a function call itself for ever?"
        )


def too_nested() -> Raised:
    return Raised(f"the value is nested deeper than {NESTED} levels")
