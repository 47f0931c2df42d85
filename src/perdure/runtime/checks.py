"""What callers may say: ids, tenants, names of locks and lanes, and how much data at once.

Each check gives back what it was given, or raises with what would have been taken.
"""

from __future__ import annotations

import re

from msgspec import Raw

from perdure.core.records import TENANT
from perdure.errors import LimitReached, UsageError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@~-]{0,199}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@~/-]{0,199}")
_TENANT = re.compile(TENANT)


def checked_id(text: str, what: str = "execution id") -> str:
    return _checked(_ID, text, what)


def checked_name(text: str, what: str) -> str:
    """Of a lock or a lane: unlike an id it may have slashes."""
    return _checked(_NAME, text, what)


def checked_tenant(text: str) -> str:
    return _checked(_TENANT, text, "tenant")


def checked_cursor(text: str, verb: str) -> tuple[int, str]:
    """A time and an id, as pages name the last one they show. It says where to go on, not what may be seen."""
    at, _, id = text.partition("-")
    if not (at.isascii() and at.isdecimal() and len(at) < 19 and id.isprintable() and 0 < len(id) < 1000):
        raise UsageError(f"{text[:80]!r} is not a cursor that {verb} gave")
    return int(at), id


def checked_size(data: Raw, most: int, what: str) -> Raw:
    size = len(bytes(data))
    if size > most:
        raise LimitReached(
            f"{what} has {size:,} bytes, more than {most:,}: send a reference to the data, or raise payload_bytes"
        )
    return data


def _checked(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise UsageError(
            f"{text[:80]!r} cannot serve as {what}: it takes letters, digits and"
            f" {'_-' if what == 'tenant' else '_.:@~-'}, and is at most {64 if what == 'tenant' else 200} long"
        )
    return text
