"""Where a walk through a graph stands: plain data, so that a checkpoint is simply this.

Things refer to each other by number. A token stands at a node; a scope is the whole graph or one round of a loop, with
the outputs made in it; a split is one passage through a `parallel` node; rounds are a loop that is under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from msgspec import Struct

#: ready: about to enter its node; open: the node is at work; joined: it waits for others at a join; looping: the rounds
#: of its loop are under way.
Stage: TypeAlias = Literal["ready", "open", "joined", "looping"]


class Token(Struct, omit_defaults=True):
    id: int
    node: str
    scope: int
    split: int = 0  # the innermost one it belongs to
    value: Any = None  # what it carries: the output of the node before
    source: str = ""  # the node that it comes from
    stage: Stage = "ready"
    kind: str = ""  # of an open node: its type
    given: Any = None  # of an open node: what its expressions gave
    due: int | None = None  # of an open node: when its time is over, in microseconds since the epoch
    got: dict[int, Any] = {}  # of an open wait: what came already, by the number of the event


class Scope(Struct, omit_defaults=True):
    id: int
    loop: int = 0  # the token that stands at the loop, if it is a round
    index: int = 0
    prefix: str = ""  # before the ids of its nodes: `each[3]/`
    names: dict[str, Any] = {}  # what expressions see besides
    outputs: dict[str, Any] = {}
    live: int = 0  # tokens
    last: Any = None  # what the last token that ended here carried


class Split(Struct, omit_defaults=True):
    node: str
    parent: int = 0


class Rounds(Struct, omit_defaults=True):
    items: list[Any]
    results: list[Any]
    begun: int = 0
    open: list[int] = []  # scopes


class State(Struct, omit_defaults=True):
    trigger: str
    payload: Any
    variables: dict[str, Any]
    tokens: dict[int, Token] = {}
    scopes: dict[int, Scope] = {}
    splits: dict[int, Split] = {}
    loops: dict[int, Rounds] = {}  # by the token that stands at the loop
    numbers: int = 0
    result: Any = None  # of the last end that was reached
    ended: bool = False  # whether one was

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def chain(self, split: int) -> list[int]:
        """A split and those around it, the outermost first."""
        chain: list[int] = []
        while split:
            chain.append(split)
            split = self.splits[split].parent
        return chain[::-1]

    def under(self, split: int) -> Iterator[Token]:
        """The tokens that belong to a split, or to one within it."""
        within = {id: id == split for id in (0, split)}
        for token in self.tokens.values():
            if self._within(token.split, within):
                yield token

    def _within(self, split: int, known: dict[int, bool]) -> bool:
        passed: list[int] = []
        while split not in known:
            passed.append(split)
            split = self.splits[split].parent
        for one in passed:
            known[one] = known[split]
        return known[split]

    def prune(self, token: Token) -> None:
        """A split of which one token is left is none any more."""
        while token.split and next((one for one in self.under(token.split) if one is not token), None) is None:
            token.split = self.splits[token.split].parent

    def sweep(self) -> None:
        """Forget splits that no token belongs to."""
        used = {id for token in self.tokens.values() for id in self.chain(token.split)}
        self.splits = {id: split for id, split in self.splits.items() if id in used}
