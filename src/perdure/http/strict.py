"""JSON that can be kept: what a body must be before anything looks at it.

JSON leaves room for texts that one reader takes for something else than the next: keys that come twice, NaN, numbers
that no machine has, characters that no database stores. Rules kept here: such a text is refused as a whole, and named;
it is found in a few passes of compiled code over the whole text, never character by character. Lone surrogates are
refused by the decoder that follows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from perdure.http.problems import Refused

#: How deep a body may be nested.
DEPTH = 64
#: Integers have 64 bits, with a sign or without.
LEAST, MOST = -(2**63), 2**64 - 1

#: All digits alike, and the signs of exponents gone: so a long number is a plain text to look for.
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_LONG, _HIGH = b"0" * 19, b"0e000"
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_THE_REST = bytes(set(range(256)) - set(b'[]{}"'))
_STRINGS = re.compile(rb'"[^"]*"')


def check(data: bytes) -> None:
    """Raise Refused unless this is JSON that means the same to everybody."""
    alike = data.translate(_ALIKE, b"+")
    decoder = _wary if _LONG in alike or _HIGH in alike else _quick
    try:
        decoder.decode(data.decode())
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # of a text that is no JSON, no UTF-8, or has an integer of thousands of digits
        raise Refused(400, "Not JSON", f"the body is not JSON: {error}") from error
    if _depth(data) > DEPTH:
        raise _too_deep()
    if b"\\u0000" in data and _NUL.search(data):
        raise Refused(400, "Nul Character", "a text has the character \\u0000, which cannot be stored")


def _depth(data: bytes) -> int:
    """How deep valid JSON is nested, at most one more than is allowed: pairs of brackets are taken away from within."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # now every quote begins or ends a string
    brackets = _STRINGS.sub(b"", plain.translate(_BRACKETS, _THE_REST))
    depth = 0
    while brackets and depth <= DEPTH:
        brackets = brackets.replace(b"[]", b"")
        depth += 1
    return depth


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, if none of its keys comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise Refused(400, "Repeated Key", f"an object has the key {twice[:80]!r} twice")
    return found


def _constant(name: str) -> Any:
    raise Refused(400, "Not JSON", f"{name} is not JSON: there is no such number in it")


def _int(text: str) -> int:
    if len(text) > 20 or not LEAST <= (number := int(text)) <= MOST:
        raise _too_large(text)
    return number


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _too_large(text)
    return number


def _too_large(text: str) -> Refused:
    return Refused(400, "Number Too Large", f"the number {text[:30]} is beyond 64 bits: send it as a text")


def _too_deep() -> Refused:
    return Refused(400, "Too Deep", f"the body is nested deeper than {DEPTH}")


_quick = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_constant)
#: Calls back for every number, so it is used only where one may be too large.
_wary = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_constant, parse_int=_int, parse_float=_float)
