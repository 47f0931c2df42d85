"""Words of the command line as values: JSON, fields, times.

Times are given as people say them: `2024-05-01T12:00`, `2024-05-01T12:00Z`, `12:30`, `+90s` (from now), `-2h` (ago).
A time without a zone is local. What cannot be read is a usage error that shows how to write it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, time, timedelta
from typing import Any

import msgspec

from perdure.core.durations import micros
from perdure.errors import InvalidValue, UsageError

#: What begins like JSON must be JSON; any other word may stand for itself.
_LIKE_JSON = re.compile(r'\s*[\[{"\d-]')
_TIMES = "write 2024-05-01T12:00Z, 12:30, +90s (from now) or -2h (ago)"


def json_value(text: str, what: str) -> Any:
    """The value of a JSON text; a plain word is taken as a string."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        if text and not _LIKE_JSON.match(text):
            return text
        raise UsageError(f"{what} is not JSON: {text!r} ({error})") from error


def json_list(text: str) -> list[Any]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"--input is not JSON: {error}") from error
    if not isinstance(value, list):
        raise UsageError("--input is the list of all arguments: --input '[\"order-42\", 3]'")
    return value


def fields(pairs: Sequence[str]) -> dict[str, Any]:
    """`k=v` pairs; a value is JSON or a plain word."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--field takes name=value, not {pair!r}")
        found[name] = json_value(value, f"the value of {name}")
        if isinstance(found[name], list | dict):
            raise UsageError(f"--field {name} takes one plain value, not {value!r}")
    return found


def edits(pairs: Sequence[str]) -> dict[int, Any]:
    """`VERSION=JSON` pairs."""
    found = {}
    for pair in pairs:
        version, equals, value = pair.partition("=")
        if not equals or not version.isdecimal():
            raise UsageError(f"--edit takes VERSION=JSON, such as 4='{{\"ok\": true}}', not {pair!r}")
        found[int(version)] = json_value(value, f"the edit of version {version}")
    return found


def moment(text: str) -> datetime:
    """A point in time; see the module."""
    now = datetime.now().astimezone()
    word = text.strip()
    try:
        if word[:1] in "+-" and word[1:2]:
            return now + timedelta(microseconds=micros(word, negative=True))
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", word):
            return datetime.combine(now.date(), time.fromisoformat(word.zfill(5))).astimezone()
        return datetime.fromisoformat(word).astimezone()
    except (ValueError, OverflowError, InvalidValue) as error:
        raise UsageError(f"{text!r} is not a time: {_TIMES}") from error


def since(text: str) -> datetime:
    """A point in the past, or how long ago: `2h` and `-2h` mean the same."""
    try:
        return datetime.now().astimezone() - timedelta(microseconds=micros(text))
    except InvalidValue:
        return moment(text)


def version_or_moment(text: str) -> int | datetime:
    return int(text) if text.isdecimal() else moment(text)
