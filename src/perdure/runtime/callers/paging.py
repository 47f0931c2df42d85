"""A log, page by page.

Rules kept here: versions have no gaps, so the pages of a log are exactly the versions that were asked for, in order and
each once, also while the log grows. A cursor carries the versions between which its page lies, so it may come alone;
whoever says them again must say the same. No more than one page is in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from perdure.core import entries
from perdure.core.records import Row, id_of, tenant_of
from perdure.errors import ExecutionNotFound, UsageError
from perdure.runtime.cursors import Purpose, refused

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: Beyond every version that a log can have, and within what all stores can compare.
BEYOND = 2_000_000_000


class _Place(Struct, frozen=True, array_like=True):
    """The version before the first page, the last that was asked for, and the last of the page that ended here."""

    after: int
    until: int | None
    done: int


class LogPage(Struct, frozen=True):
    """Events of a log; `next` is the cursor of the page that follows, if there is one."""

    events: list[entries.Entry]
    next: str | None = None


async def rows(
    app: Perdure, key: str, after: int | None, until: int | None, limit: int, cursor: str | None
) -> tuple[list[Row], str | None]:
    """The rows of one page, and the cursor of the page that follows, if there is one."""
    limit = app.cursors.size(limit)
    if (after or 0) < 0 or (until is not None and until < 1):
        raise UsageError("versions begin at 1; `after=0` is before the first one")
    await app.open()
    purpose = Purpose(tenant_of(key), "log", {"execution": id_of(key)})
    place = _Place(after or 0, until, after or 0)
    if cursor is not None:
        place = await app.cursors.read(purpose, cursor, _Place)
        if after not in (None, place.after) or until not in (None, place.until):
            raise refused(purpose)
    last = None if place.until is None else min(place.until, BEYOND)
    found = await app.store.read(key, min(place.done, BEYOND), last, limit + 1)
    if not found and await app.store.head(key) is None:
        raise ExecutionNotFound(f"there is no execution {id_of(key)!r}; `perdure list` shows those that are", key)
    if len(found) <= limit:
        return found, None
    kept = found[:limit]
    return kept, await app.cursors.write(purpose, structs.replace(place, done=kept[-1].version))


async def page(app: Perdure, key: str, after: int | None, until: int | None, limit: int, cursor: str | None) -> LogPage:
    """The events of one page, readable."""
    found, behind = await rows(app, key, after, until, limit, cursor)
    return LogPage([entries.entry(row) for row in found], behind)
