"""What callers may say: ids, tenants, names of locks and lanes, labels, and how much data at once.

Each check gives back what it was given, or raises with what would have been taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Raw, Struct

from perdure.core.records import TENANT
from perdure.errors import LimitReached, UsageError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@~-]{0,199}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@~/-]{0,199}")
_TENANT = re.compile(TENANT)
#: The same in words.
_TAKEN = {
    _ID: "1 to 200 of a-z, A-Z, 0-9 and _.:@~-, of which the first is a letter or a digit",
    _NAME: "1 to 200 of a-z, A-Z, 0-9 and _.:@~/-, of which the first is a letter or a digit",
    _TENANT: "1 to 64 of a-z, A-Z, 0-9 and _-",
}
#: Neither control characters nor halves of characters, which no database stores.
LONGEST_LABEL = 200
_LABEL = re.compile(rf"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{{1,{LONGEST_LABEL}}}")
#: How many tags an execution may have.
MOST_TAGS = 20


class Labels(Struct, frozen=True):
    """What an execution is found by. Tags are a set, so they are sorted, and each is there once."""

    correlation: str = ""
    tags: tuple[str, ...] = ()


NONE = Labels()


def checked_id(text: str, what: str = "execution id") -> str:
    return _checked(_ID, text, what)


def checked_name(text: str, what: str) -> str:
    """Of a lock or a lane: unlike an id it may have slashes."""
    return _checked(_NAME, text, what)


def checked_tenant(text: str) -> str:
    return _checked(_TENANT, text, "tenant")


def checked_labels(correlation: str | None, tags: Sequence[str]) -> Labels:
    if correlation is None and not tags:  # nearly all of them
        return NONE
    if isinstance(tags, str):
        raise UsageError(f"tags are a list of texts: tags=[{tags[:80]!r}]")
    if len(tags) > MOST_TAGS:
        raise UsageError(f"{len(tags)} tags are too many: an execution has at most {MOST_TAGS}")
    about = "" if correlation is None else _checked_label(correlation, "correlation id")
    return Labels(about, tuple(sorted({_checked_label(tag, "tag") for tag in tags})))


def _checked_label(text: str, what: str) -> str:
    if not isinstance(text, str) or not _LABEL.fullmatch(text):
        raise UsageError(
            f"{str(text)[:80]!r} cannot serve as {what}: it is a text of 1 to {LONGEST_LABEL} characters without"
            " control characters"
        )
    return text


def checked_size(data: Raw, most: int, what: str) -> Raw:
    size = len(bytes(data))
    if size > most:
        raise LimitReached(
            f"{what} has {size:,} bytes, more than {most:,}: send a reference to the data, or raise payload_bytes"
        )
    return data


def checked_standing(data: bytes, standing: int, payload: int, what: str) -> None:
    """Of what stays in a log and is published with what it has done, for which half of a payload is kept free."""
    most = min(standing, payload // 2)
    if len(data) > most:
        raising = "standing_bytes" if standing <= payload // 2 else "payload_bytes, of which it may have half"
        raise LimitReached(
            f"{what} has {len(data):,} bytes, more than {most:,}, and is in its log again and again: give a reference"
            f" to the data, or raise {raising}"
        )


def _checked(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise UsageError(f"{text[:80]!r} cannot serve as {what}: it is {_TAKEN[pattern]}")
    return text
