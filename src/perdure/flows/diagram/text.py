"""Text in pictures: how wide it is, where it breaks, and which characters may be in it.

The widths are those of a common sans serif, in thousandths of the font size, a little generous: system fonts differ,
and a box that is slightly too wide looks better than text that leaves its box.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_WIDTHS = {
    **dict.fromkeys("ijl'|.,:;!`", 300),
    **dict.fromkeys(' ftrI()[]{}/\\"-', 380),
    **dict.fromkeys("*^", 480),
    **dict.fromkeys("ckszxvyJ?_", 560),
    **dict.fromkeys("abdeghnopqu0123456789LFTEZ$#~+=<>", 630),
    **dict.fromkeys("ABCDGHKNOPQRSUVXY&", 740),
    **dict.fromkeys("mwMW%@—…→", 920),
}
_OTHER = 680
_WIDE = 1100  # east Asian letters and emoji
_GENEROUS = 1.04
#: Marks that turn the direction of text around them: they could make a name read as another one.
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str) -> str:
    """One line without control characters, lone surrogates and marks that turn the direction of text.

    >>> clean("a\\n  b\\u202e")
    'a b'
    """
    return " ".join("".join(_allowed(char) for char in text).split())


@lru_cache(maxsize=4096)
def _allowed(char: str) -> str:
    if char in _TURNING:
        return ""
    if unicodedata.category(char) == "Cc":
        return " "
    code = ord(char)
    return "\ufffd" if 0xD800 <= code <= 0xDFFF or code & 0xFFFE == 0xFFFE else char


@lru_cache(maxsize=4096)
def _char_width(char: str) -> int:
    if (width := _WIDTHS.get(char)) is not None:
        return width
    if unicodedata.combining(char) or unicodedata.category(char) in {"Mn", "Me", "Cf"}:
        return 0
    return _WIDE if unicodedata.east_asian_width(char) in {"W", "F"} else _OTHER


def width_of(text: str, size: float) -> float:
    """How wide a line of text is, about."""
    return sum(map(_char_width, text)) * size * _GENEROUS / 1000


def wrap(text: str, size: float, limit: float, lines: int) -> tuple[str, ...]:
    """At most so many lines of at most this width; an ellipsis says that there is more.

    >>> wrap("wait for the parcel", 13, 70, 2)
    ('wait for', 'the parcel')
    >>> wrap("incomprehensibilities", 13, 70, 1)
    ('incompr…',)
    """
    rest = clean(text)
    found: list[str] = []
    while rest:
        line, rest = _first_line(rest, size, limit)
        if rest and len(found) == lines - 1:
            while line and width_of(line + "…", size) > limit:
                line = line[:-1]
            found.append(line.rstrip() + "…")
            break
        found.append(line)
    return tuple(found)


def _first_line(text: str, size: float, limit: float) -> tuple[str, str]:
    room = limit * 1000 / (size * _GENEROUS)
    end = 0
    while end < len(text) and (room := room - _char_width(text[end])) >= 0:
        end += 1
    if end == len(text):
        return text, ""
    end = max(end, 1)
    blank = text.rfind(" ", 0, end + 1)
    if blank > 0:
        return text[:blank], text[blank + 1 :]
    return text[:end], text[end:]
