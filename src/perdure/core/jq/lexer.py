"""Words of an expression.

A string is one token; its interpolations are lists of tokens of their own. Every token knows where it stands, and
`wrong` draws the line with a caret under the place.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from perdure.core.jq.limits import DEEPEST
from perdure.errors import ExpressionError

KEYWORDS = frozenset(
    {
        *("def", "if", "then", "else", "elif", "end", "as", "reduce", "foreach", "try", "catch"),
        *("label", "break", "and", "or", "import", "include", "module"),
    }
)

_TOKEN = re.compile(
    r"""(?P<space>[ \r\n\t]+|\#(?:\\(?:\\|\r?\n)|[^\n\\]|\\)*)
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<field>\.[a-zA-Z_][a-zA-Z_0-9]*)
    |(?P<variable>\$(?:[a-zA-Z_][a-zA-Z_0-9]*::)*[a-zA-Z_][a-zA-Z_0-9]*)
    |(?P<word>(?:[a-zA-Z_][a-zA-Z_0-9]*::)*[a-zA-Z_][a-zA-Z_0-9]*)
    |(?P<format>@[a-zA-Z0-9_]+)
    |(?P<mark>\?//|//=|\|=|\+=|-=|\*=|/=|%=|==|!=|<=|>=|//|\.\.|[.?=;,:|+\-*/%<>()\[\]{}])
    |(?P<quote>")""",
    re.VERBOSE,
)
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


class Token(Struct, frozen=True):
    """`kind` is one of number, field, variable, word, keyword, format, mark, string, end."""

    kind: str
    value: Any
    at: int


def wrong(text: str, at: int, message: str) -> ExpressionError:
    """An error at a place of the text, with the line and a caret below it."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : end if end >= 0 else len(text)]
    column = at - start
    cut = max(0, column - 60)
    shown = line[cut : cut + 100]
    where = f"line {text.count(chr(10), 0, at) + 1}, column {column + 1}"
    return ExpressionError(f"{message}, at {where}:\n  {shown}\n  {' ' * (column - cut)}^", at)


def tokens(text: str) -> list[Token]:
    found, _ = _scan(text, 0, 0)
    return found


def _scan(text: str, at: int, level: int) -> tuple[list[Token], int]:
    """Tokens from `at`: to the end of the text, or, inside a string, to the parenthesis that ends the interpolation."""
    found: list[Token] = []
    open_parens = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise wrong(text, at, f"no expression has {text[at]!r} here")
        kind, value = match.lastgroup or "", match.group()
        if kind == "quote":
            parts, end = _string(text, match.end(), level)
            found.append(Token("string", parts, at))
            at = end
            continue
        if level and value == ")" and not open_parens:
            found.append(Token("end", "the end of the interpolation", at))
            return found, match.end()
        if kind == "mark":
            open_parens += (value == "(") - (value == ")")
        if kind != "space":
            if kind == "word" and value in KEYWORDS:
                kind = "keyword"
            found.append(Token(kind, value[1:] if kind in ("field", "variable", "format") else value, at))
        at = match.end()
    if level:
        raise wrong(text, len(text), "the string's interpolation is not closed")
    found.append(Token("end", "the end", len(text)))
    return found, at


def _string(text: str, at: int, level: int) -> tuple[tuple[str | list[Token], ...], int]:
    """The parts of a string whose opening quote stands before `at`."""
    parts: list[str | list[Token]] = []
    chars: list[str] = []
    opened = at - 1
    while True:
        if at >= len(text):
            raise wrong(text, opened, "the string is not closed")
        if text[at] == '"':
            break
        plain = _PLAIN.match(text, at)
        if plain is not None:
            chars.append(plain.group())
            at = plain.end()
        elif text.startswith("\\(", at):
            if level >= DEEPEST // 2:
                raise wrong(text, at, "strings are nested too deep")
            inner, end = _scan(text, at + 2, level + 1)
            parts += ["".join(chars), inner]
            chars, at = [], end
        else:
            char, at = _escape(text, at)
            chars.append(char)
    parts.append("".join(chars))
    return tuple(part for part in parts if part != ""), at + 1


def _escape(text: str, at: int) -> tuple[str, int]:
    letter = text[at + 1 : at + 2]
    if letter in _ESCAPES and letter:
        return _ESCAPES[letter], at + 2
    code = _HEX.match(text, at + 2) if letter == "u" else None
    if code is None:
        raise wrong(text, at, "no such escape in a string")
    point = int(code.group(), 16)
    if 0xD800 <= point < 0xDC00 and text.startswith("\\u", at + 6):
        low = _HEX.match(text, at + 8)
        if low is not None and 0xDC00 <= int(low.group(), 16) < 0xE000:
            return chr(0x10000 + ((point - 0xD800) << 10) + int(low.group(), 16) - 0xDC00), at + 12
    if 0xD800 <= point < 0xE000:
        raise wrong(text, at, "half of a surrogate pair is no character")
    return chr(point), at + 6
