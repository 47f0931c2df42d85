"""Cursors: where a page ended, as a text that only this deployment can have made and only the same question may use.

A cursor is a place in JSON behind 16 bytes of HMAC-SHA256, fit for a URL. Signed with the place is what it is for: the
tenant, the verb and the filters. Rules kept here: one that was changed, or made for anything else, is refused before
the store is asked for anything, always with the same words; it says where to go on and never what may be seen, so
whoever asks is checked as if there were no cursor; what is looked at for a cursor that somebody brings is never
written.

The key is 32 random bytes in an ended execution of the engine's own. It is made when the first cursor is, by whoever
comes first, and read by all others. So all processes on a store agree, also after restarts, and nobody sets it up.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from perdure.core import copies, events as ev
from perdure.core.records import Row, Start, key_of
from perdure.errors import InvalidValue, OutcomeUnknown, UsageError
from perdure.ports import Store

#: The workflow of that execution, and its home: a tenant that nobody can have.
CURSORS = "cursors:"
KEY = key_of(CURSORS, "key")
_SIGNATURE, _SECRET = 16, 32
#: No id is so long that its cursor would be longer.
_LONGEST = 8000
_TRIES = 3
#: The most entries that anybody may ask for at once: a page is made in memory, as a whole.
LONGEST_PAGE = 1000
T = TypeVar("T")


class Purpose(Struct, frozen=True):
    """What a cursor is for. How long a page may be is no filter: it may change from page to page."""

    tenant: str
    verb: str
    filters: Mapping[str, Any]


class Cursors:
    """The cursors of one deployment, whose pages have at most `page` entries."""

    def __init__(self, store: Store, page: int = LONGEST_PAGE) -> None:
        self._store = store
        self._page = page
        self._key: bytes | None = None

    def size(self, limit: int) -> int:
        """How many entries the page has of somebody who asks for so many; the cursor leads on to the rest."""
        if not 1 <= limit <= LONGEST_PAGE:
            raise UsageError(f"limit must be between 1 and {LONGEST_PAGE}, not {limit}")
        return min(limit, self._page)

    async def write(self, purpose: Purpose, place: Any) -> str:
        """A cursor that goes on behind this place."""
        return _signed(self._key or await self._made(), purpose, msgspec.json.encode(place))

    async def read(self, purpose: Purpose, text: str, into: type[T]) -> T:
        """The place that a cursor of this purpose names; InvalidValue for any other text."""
        key = self._key or await self._found()
        place = None if key is None else _checked(key, purpose, text)
        if place is None:
            raise refused(purpose)
        try:
            return msgspec.json.decode(place, type=into)
        except msgspec.MsgspecError as error:  # made by another release, for which it was a place
            raise refused(purpose) from error

    async def _found(self) -> bytes | None:
        """The key, if there is one: without it no cursor was ever made."""
        rows = await self._store.read(KEY, 0, 1)
        self._key = _secret(rows[0]) if rows else None
        return self._key

    async def _made(self) -> bytes:
        """The key, made if need be. Of several that are made at once the store keeps the first."""
        tries = 0
        while (key := await self._found()) is None:
            tries += 1
            try:
                await self._store.start([_new()], 0)  # whatever it answers, one is there
            except OutcomeUnknown:  # look whether it is there
                if tries == _TRIES:
                    raise
        return key


def _signed(key: bytes, purpose: Purpose, place: bytes) -> str:
    """The one text that stands for this place and this purpose.

    >>> cursor = _signed(b"key", Purpose("acme", "find", {"status": "stuck"}), b"[17,\\"a\\"]")
    >>> cursor, _checked(b"key", Purpose("acme", "find", {"status": "stuck"}), cursor)
    ('DqIoSUc_eXrSnqYb0SMnZ1sxNywiYSJd', b'[17,"a"]')
    """
    # The standard library's JSON takes all that callers may look for: large numbers, NaN, halves of characters.
    meant = json.dumps([purpose.tenant, purpose.verb, purpose.filters, place.decode()], sort_keys=True, default=str)
    signature = hmac.digest(key, meant.encode(), "sha256")[:_SIGNATURE]
    return base64.urlsafe_b64encode(signature + place).decode().rstrip("=")


def _checked(key: bytes, purpose: Purpose, text: str) -> bytes | None:
    """The place, if the text is what was signed, letter for letter: base64 has many spellings for the same bytes."""
    if len(text) > _LONGEST:
        return None
    try:
        place = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[_SIGNATURE:]
        right = _signed(key, purpose, place)
        return place if hmac.compare_digest(text.encode(), right.encode()) else None
    except ValueError:
        return None


def refused(purpose: Purpose) -> InvalidValue:
    """What is said of every cursor that is not for this, whatever is wrong with it."""
    return InvalidValue(
        f"this is not a cursor that {purpose.verb} gave for the same question, or it was changed: begin again without a"
        " cursor"
    )


def _new() -> Start:
    """On no queue and ended, so that no worker ever claims it."""
    told = base64.b64encode(secrets.token_bytes(_SECRET)).decode()
    rows = [ev.row(ev.Started(CURSORS, 1, Raw(msgspec.json.encode([told]))), 1, 0), ev.row(ev.Completed(), 2, 0)]
    return copies.as_start(KEY, rows, "")


def _secret(row: Row) -> bytes:
    first = ev.read(row)
    assert isinstance(first, ev.Started)
    [told] = msgspec.json.decode(first.input, type=list[str])
    return base64.b64decode(told)
