"""Regular expressions that cannot run away.

Python's engine tries one way after the other, and a pattern such as `(a+)+$` has more ways than anybody can wait for.
So each pattern is looked at before it is used. At every choice (go on repeating or not, which alternative) the next
character should decide; then there is one way only. A choice that it does not decide is

- refused inside a repetition: the ways would multiply with every turn;
- otherwise counted: each such repetition makes the worst case longer by a factor of the length of the text.

References back to groups are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

#: One of each sort beyond ASCII: letters with and without case, digits, spaces, signs.
_SAMPLES = "éÉßİıſK中١\u00a0\u2003‐😀"


class Refused(Exception):
    """A pattern that may take for ever; the message says why."""


class Judge:
    """Looks through the tree of a pattern; afterwards it knows what the worst case depends on."""

    def __init__(self, tree: Any, flags: int) -> None:
        self.flags = flags
        self.all = frozenset(map(chr, range(128))) | set(_SAMPLES) | set(_literals(tree))
        self.ambiguous = 0  # repetitions that the next character does not end
        self.repeats = False  # whether there are others, which add the length of the text once
        self.factor = 1

    def sequence(self, items: list[Any], follow: frozenset[str], repeated: bool) -> None:
        for place, (op, value) in enumerate(items):
            after = self.first(items[place + 1 :], follow)
            self.item(str(op), value, after, repeated)

    def item(self, op: str, value: Any, follow: frozenset[str], repeated: bool) -> None:
        match op:
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                self.repeat(value, follow, repeated)
            case "SUBPATTERN":
                self.sequence(value[3], follow, repeated)
            case "ATOMIC_GROUP":
                self.sequence(value, follow, repeated)
            case "BRANCH":
                firsts = [self.first(branch, follow) for branch in value[1]]
                if sum(map(len, firsts)) != len(frozenset().union(*firsts)):
                    self.choice(len(firsts), repeated)
                for branch in value[1]:
                    self.sequence(branch, follow, repeated)
            case "ASSERT" | "ASSERT_NOT":
                self.sequence(value[1], self.all, repeated)
            case "GROUPREF" | "GROUPREF_EXISTS" | "GROUPREF_IGNORE":
                raise Refused("it refers back to a group")
            case _:
                pass  # one character, or a place

    def repeat(self, value: Any, follow: frozenset[str], repeated: bool) -> None:
        least, most, body = value
        inner = self.first(body, frozenset())
        many = int(most) > 1
        if many and self.nullable(body):
            raise Refused("it repeats what may be empty")
        if int(most) > int(least):
            decided = not inner & follow
            if many:
                if not decided and repeated:
                    raise Refused("it has a repetition inside a repetition that may share characters")
                self.repeats = self.repeats or decided
                self.ambiguous += not decided
            elif not decided:
                self.choice(2, repeated)
        self.sequence(body, follow | inner if many else follow, repeated or many)

    def choice(self, ways: int, repeated: bool) -> None:
        if repeated:
            raise Refused("it has a choice inside a repetition that the next character does not decide")
        self.factor *= ways

    def nullable(self, items: Iterable[Any]) -> bool:
        return all(self.empty(str(op), value) for op, value in items)

    def empty(self, op: str, value: Any) -> bool:
        match op:
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return int(value[0]) == 0 or self.nullable(value[2])
            case "SUBPATTERN":
                return self.nullable(value[3])
            case "ATOMIC_GROUP":
                return self.nullable(value)
            case "BRANCH":
                return any(self.nullable(branch) for branch in value[1])
            case "AT" | "ASSERT" | "ASSERT_NOT":
                return True
            case _:
                return False

    def first(self, items: Iterable[Any], follow: frozenset[str]) -> frozenset[str]:
        """The characters with which a match of the items, and then of what follows, may begin."""
        found: frozenset[str] = frozenset()
        for op, value in items:
            found |= self.begins(str(op), value)
            if not self.empty(str(op), value):
                return found
        return found | follow

    def begins(self, op: str, value: Any) -> frozenset[str]:
        match op:
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return self.first(value[2], frozenset())
            case "SUBPATTERN":
                return self.first(value[3], frozenset())
            case "ATOMIC_GROUP":
                return self.first(value, frozenset())
            case "BRANCH":
                return frozenset().union(*(self.first(branch, frozenset()) for branch in value[1]))
            case "AT" | "ASSERT" | "ASSERT_NOT":
                return frozenset()
            case "ANY":
                return self.all if self.flags & re.DOTALL else self.all - {"\n"}
            case "LITERAL":
                return self.cased({chr(value)})
            case "NOT_LITERAL":
                return self.all - {chr(value)}
            case "IN":
                return self.members(value)
            case _:
                return self.all

    def members(self, parts: list[Any]) -> frozenset[str]:
        found: set[str] = set()
        negated = False
        for op, value in parts:
            match str(op):
                case "NEGATE":
                    negated = True
                case "LITERAL":
                    found.add(chr(value))
                case "RANGE":
                    found |= {char for char in self.all if value[0] <= ord(char) <= value[1]}
                case "CATEGORY":
                    found |= {char for char in self.all if _in_category(str(value), char)}
                case _:
                    found |= self.all
        cased = self.cased(found)
        return self.all - found if negated else cased

    def cased(self, chars: set[str]) -> frozenset[str]:
        if not self.flags & re.IGNORECASE:
            return frozenset(chars)
        folded = {char.casefold() for char in chars}
        return frozenset(chars) | {char for char in self.all if char.casefold() in folded}


def _literals(items: Any) -> Iterable[str]:
    """Every character that a parsed pattern names, and its neighbours, so that the judge knows them all."""
    if isinstance(items, int) and 128 <= items < 0x10FFFF:
        yield from (chr(items - 1), chr(items), chr(items + 1))
    elif not isinstance(items, (int, type(None))):
        for item in items:
            yield from _literals(item)


def _in_category(name: str, char: str) -> bool:
    kind = name.removeprefix("CATEGORY_").removeprefix("UNI_")
    found = {
        "DIGIT": char.isdecimal(),
        "SPACE": char.isspace(),
        "WORD": char.isalnum() or char == "_",
    }[kind.removeprefix("NOT_")]
    return not found if kind.startswith("NOT_") else found
