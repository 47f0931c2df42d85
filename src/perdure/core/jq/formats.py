"""The formats: `@csv`, `@base64` and their like, each a function from a value to text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from perdure.core.jq.limits import Meter, Raised
from perdure.core.jq.text import bad, dump, is_nan, tostring

_HTML = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "\0": "\\0"},
)
_TSV = str.maketrans({"\t": "\\t", "\r": "\\r", "\n": "\\n", "\\": "\\\\", "\0": "\\0"})
_CSV = str.maketrans({'"': '""', "\0": "\\0"})
_SHELL = str.maketrans({"'": "'\\''", "\0": "\\0"})
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


def _row(name: str, separator: str, quoted: Callable[[str], str]) -> Callable[[Meter, Any], str]:
    def write(meter: Meter, value: Any) -> str:
        if type(value) is not list:
            raise bad(meter, value, f"cannot be {name}-formatted, only array")
        meter.work(len(value))
        cells = []
        for item in value:
            if item is None or is_nan(item):
                cells.append("")
            elif type(item) is str:
                cells.append(quoted(item))
            elif type(item) in (list, dict):
                raise bad(meter, item, "is not valid in a csv row")
            else:
                cells.append(dump(meter, item))
        return separator.join(cells)

    return write


def _shell(meter: Meter, value: Any) -> str:
    words = []
    for item in value if type(value) is list else [value]:
        meter.work(1)
        if type(item) in (list, dict):
            raise bad(meter, item, "can not be escaped for shell")
        words.append(f"'{item.translate(_SHELL)}'" if type(item) is str else dump(meter, item))
    return " ".join(words)


def _html(meter: Meter, value: Any) -> str:
    return tostring(meter, value).translate(_HTML)


def _uri(meter: Meter, value: Any) -> str:
    return quote(tostring(meter, value), safe="-_.~", errors="replace")


def _uri_decoded(meter: Meter, value: Any) -> str:
    text = tostring(meter, value)
    pieces = text.split("%")
    try:
        for piece in pieces[1:]:
            if len(piece) < 2 or not set(piece[:2]) <= set("0123456789abcdefABCDEF"):
                raise ValueError(piece)
        return unquote_to_bytes(text).decode()
    except ValueError:
        raise bad(meter, text, "is not a valid uri encoding") from None


def _base64(meter: Meter, value: Any) -> str:
    return base64.b64encode(tostring(meter, value).encode(errors="replace")).decode()


def _base64_decoded(meter: Meter, value: Any) -> str:
    text = tostring(meter, value)
    data = text.partition("=")[0]
    if not set(data) <= _BASE64:
        raise bad(meter, text, "is not valid base64 data")
    if len(data) % 4 == 1:
        raise bad(meter, text, "trailing base64 byte found")
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4)).decode(errors="replace")
    except binascii.Error:  # pragma: no cover - the alphabet and the length were checked
        raise bad(meter, text, "is not valid base64 data") from None


def _base32(meter: Meter, value: Any) -> str:
    return base64.b32encode(tostring(meter, value).encode(errors="replace")).decode()


def _base32_decoded(meter: Meter, value: Any) -> str:
    text = tostring(meter, value)
    try:
        return base64.b32decode(text).decode(errors="replace")
    except binascii.Error:
        raise bad(meter, text, "is not valid base32 data") from None


FORMATS: dict[str, Callable[[Meter, Any], str]] = {
    "text": tostring,
    "json": dump,
    "csv": _row("csv", ",", lambda text: f'"{text.translate(_CSV)}"'),
    "tsv": _row("tsv", "\t", lambda text: text.translate(_TSV)),
    "html": _html,
    "uri": _uri,
    "urid": _uri_decoded,
    "sh": _shell,
    "base64": _base64,
    "base64d": _base64_decoded,
    "base32": _base32,
    "base32d": _base32_decoded,
}


def write(meter: Meter, value: Any, name: Any) -> str:
    """`format(name)`"""
    if type(name) is not str:
        raise bad(meter, name, "is not a valid format")
    if name not in FORMATS:
        raise Raised(f"{name} is not a valid format")
    text = FORMATS[name](meter, value)
    meter.make(len(text))
    return text
