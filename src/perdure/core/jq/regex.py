"""Regular expressions: jq's dialect, by Python's engine, once `judge` has let the pattern pass.

The worst case must stay below `COSTLIEST`, and is charged to the meter.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Any

from msgspec import Struct

from perdure.core.jq.judge import Judge, Refused
from perdure.core.jq.limits import Meter, Raised
from perdure.core.jq.text import bad
from perdure.errors import ExpressionError

#: The longest text and pattern, and the worst case in characters looked at.
LONGEST_TEXT = 10_000
LONGEST_PATTERN = 1_000
COSTLIEST = 20_000_000

# The parser of the standard library has no public name; its tree has been the same since Python 3.11.
_parser: Any = importlib.import_module("re._parser")

_FLAGS = {"i": re.IGNORECASE, "x": re.VERBOSE, "m": re.DOTALL, "p": re.DOTALL, "s": re.NOFLAG}
_POSIX = {
    "alpha": r"^\W\d_",
    "digit": r"\d",
    "alnum": r"^\W_",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "word": r"\w",
    "xdigit": "0-9a-fA-F",
    "punct": r"!-/:-@\[-`{-~",
}


class Pattern(Struct, frozen=True):
    """A pattern that passed: `power` of the length of a text, times `factor`, is its worst case."""

    regex: re.Pattern[str]
    power: int
    factor: int


# --- from one dialect to the other -----------------------------------------------------------------------------------


def _translate(text: str) -> str:
    """The pattern in Python's dialect."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            parts.append(_escape(text[at : at + 2]))
            at += 2
        elif text.startswith("(?<", at) and text[at + 3 : at + 4] not in ("=", "!"):
            parts.append("(?P<")
            at += 3
        elif char == "[":
            at = _translate_set(text, at, parts)
        else:
            parts.append(char)
            at += 1
    return "".join(parts)


def _escape(pair: str, in_set: bool = False) -> str:
    if pair[1:] in ("h", "H"):
        if in_set and pair == "\\H":
            raise Raised("Regex failure: \\H inside a set is not supported")
        return "0-9a-fA-F" if in_set else "[0-9a-fA-F]" if pair == "\\h" else "[^0-9a-fA-F]"
    return {"\\z": r"\Z", "\\Z": r"(?=\n?\Z)"}.get(pair, pair)


def _translate_set(text: str, at: int, parts: list[str]) -> int:
    parts.append("[")
    at += 1
    if text.startswith("^", at):
        parts.append("^")
        at += 1
    first = True
    while at < len(text) and (first or text[at] != "]"):
        first = False
        if text.startswith("[:", at):
            end = text.find(":]", at)
            name = text[at + 2 : end]
            members = _POSIX.get(name)
            if members is None or members[0] == "^":
                raise Raised(f"Regex failure: the class [:{name}:] is not supported here")
            parts.append(members)
            at = end + 2
        elif text[at] == "[" or text.startswith("&&", at):
            raise Raised("Regex failure: sets inside sets are not supported")
        elif text[at] == "\\":
            parts.append(_escape(text[at : at + 2], in_set=True))
            at += 2
        else:
            parts.append("\\" + text[at] if text[at] in "~|&" else text[at])
            at += 1
    parts.append("]")
    return at + 1


@lru_cache(maxsize=512)
def prepare(text: str, flags: int) -> Pattern:
    """Judge and compile; `flags` are those of `re`."""
    if len(text) > LONGEST_PATTERN:
        raise ExpressionError(f"a regular expression has more than {LONGEST_PATTERN:,} characters")
    translated = _translate(text)
    try:
        tree = _parser.parse(translated, flags)
        judge = Judge(list(tree), tree.state.flags | flags)
        judge.sequence(list(tree), frozenset(), False)
        compiled = re.compile(translated, flags)
    except Refused as refused:
        raise ExpressionError(
            f"the regular expression {text!r} may take for ever: {refused}. Let the next character decide every choice"
        ) from None
    except (re.error, OverflowError, RecursionError) as error:
        # Why it is wrong, Python says in words that change with its versions; an expression may catch and keep them.
        raise Raised(f"Regex failure: the pattern {text!r} is not valid") from error
    anchored = bool(tree) and str(tree[0][0]) == "AT" and str(tree[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING")
    return Pattern(compiled, judge.ambiguous + judge.repeats + (not anchored), judge.factor)


# --- using one -------------------------------------------------------------------------------------------------------


def _prepared(meter: Meter, value: Any, text: Any, flags: Any) -> tuple[Pattern, bool, bool]:
    """The pattern, whether all matches are wanted, whether empty ones are left out."""
    if type(value) is not str:
        raise bad(meter, value, "cannot be matched, as it is not a string")
    if type(text) is not str:
        raise bad(meter, text, "is not a string")
    if flags is not None and type(flags) is not str:
        raise bad(meter, flags, "is not a string")
    options = 0
    for flag in flags or "":
        if flag == "l":
            raise Raised("Regex failure: the flag l is not supported")
        if flag not in "gn" and flag not in _FLAGS:
            raise Raised(f"{flags} is not a valid modifier string")
        options |= _FLAGS.get(flag, 0)
    pattern = prepare(text, options)
    if len(value) > LONGEST_TEXT:
        raise ExpressionError(f"a regular expression meets a text of more than {LONGEST_TEXT:,} characters")
    cost = (len(value) + 1) ** max(pattern.power, 1) * pattern.factor
    if cost > COSTLIEST:
        raise ExpressionError(
            f"the regular expression {text!r} may take too long for a text of {len(value):,} characters: "
            "anchor it with ^, use fewer repetitions, or shorten the text"
        )
    meter.work(1 + cost // 1000)
    return pattern, "g" in (flags or ""), "n" in (flags or "")


def matches(meter: Meter, value: Any, text: Any, flags: Any = None) -> bool:
    if flags is None and type(text) is list:
        text, flags = _from_array(text)
    pattern, _, filled = _prepared(meter, value, text, flags)
    if filled:
        return any(match.end() > match.start() for match in pattern.regex.finditer(value))
    return pattern.regex.search(value) is not None


def _from_array(given: list[Any]) -> tuple[Any, Any]:
    if not given:
        raise Raised("array not a string or array")
    return given[0], given[1] if len(given) > 1 else None


def find(meter: Meter, value: Any, text: Any, flags: Any = None) -> list[dict[str, Any]]:
    """Matches as objects."""
    if flags is None and type(text) is list:
        text, flags = _from_array(text)
    pattern, all_of_them, filled = _prepared(meter, value, text, flags)
    names = {place: name for name, place in pattern.regex.groupindex.items()}
    found: list[dict[str, Any]] = []
    at = 0
    while at <= len(value):
        match = pattern.regex.search(value, at)
        if match is None:
            break
        at = match.end() + (match.end() == match.start())
        if filled and match.end() == match.start():
            continue
        meter.work(1)
        meter.make(5 + 5 * pattern.regex.groups + match.end() - match.start())
        found.append(_shown(match, names))
        if not all_of_them:
            break
    return found


def _shown(match: re.Match[str], names: dict[int, str]) -> dict[str, Any]:
    captures = []
    for group in range(1, match.re.groups + 1):
        start, end = match.span(group)
        if start == end:
            capture = {"offset": start, "string": None if start < 0 else "", "length": 0}
        else:
            capture = {"offset": start, "length": end - start, "string": match.group(group)}
        captures.append({**capture, "name": names.get(group)})
    return {
        "offset": match.start(),
        "length": match.end() - match.start(),
        "string": match.group(),
        "captures": captures,
    }


def captured(match: dict[str, Any]) -> dict[str, Any]:
    return {capture["name"]: capture["string"] for capture in match["captures"] if capture["name"] is not None}


def capture(meter: Meter, value: Any, text: Any, flags: Any = None) -> list[dict[str, Any]]:
    return [captured(match) for match in find(meter, value, text, flags)]


def scan(meter: Meter, value: Any, text: Any, flags: Any) -> list[Any]:
    if flags is not None and type(flags) is not str:
        raise bad(meter, flags, "is not a string")
    return [
        [one["string"] for one in match["captures"]] if match["captures"] else match["string"]
        for match in find(meter, value, text, "g" + (flags or ""))
    ]


def splits(meter: Meter, value: Any, text: Any, flags: Any) -> list[str]:
    if flags is not None and type(flags) is not str:
        raise bad(meter, flags, "is not a string")
    pieces = []
    previous = 0
    for match in find(meter, value, text, "g" + (flags or "")):
        pieces.append(value[previous : match["offset"]])
        previous = match["offset"] + match["length"]
    pieces.append(value[previous:])
    return pieces
