"""Finding executions, page by page, newest first.

A cursor names the last execution of its page, so pages have no gaps and no doubles while executions come and go. It is
good for the same filters. The times between which executions started travel in it: whoever asked for the last two hours
means those before the first page, and need not say them again.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import structs

from perdure.core.moments import to_micros
from perdure.core.records import Head, Query, ShownStatus, id_of, key_of
from perdure.ports import Store
from perdure.runtime.checks import NONE, Labels
from perdure.runtime.cursors import Cursors, Purpose, refused


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The last one of a page: its time and its id; and between which times its list lies."""

    at: int
    id: str
    after: int | None = None
    before: int | None = None


class Page(msgspec.Struct, frozen=True):
    """Executions found, newest first; `next` is the cursor of the page that follows, if there is one."""

    heads: list[Head]
    next: str | None = None


def query_of(
    tenant: str,
    *,
    status: ShownStatus | None = None,
    workflow: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
    parent: str | None = None,
    labels: Labels = NONE,
    fields: dict[str, str | int | float | bool | None],
) -> Query:
    """What to look for. Inner executions are shown only to those who ask for what may be inner."""
    return Query(
        tenant=tenant,
        status=status,
        workflow=workflow,
        parent=None if parent is None else key_of(tenant, parent),
        inner=parent is not None or workflow is not None or status == "stuck",
        after=None if after is None else to_micros(after),
        before=None if before is None else to_micros(before),
        fields=fields,
        correlation=labels.correlation or None,
        tags=labels.tags,
    )


async def find(store: Store, cursors: Cursors, verb: str, query: Query, limit: int, cursor: str | None) -> Page:
    """One page of a tenant's executions; the cursor is good for the same verb and query."""
    blank = structs.replace(query, after=None, before=None)
    filters = {name: value for name, value in structs.asdict(blank).items() if value != getattr(Query(None), name)}
    purpose = Purpose(query.tenant or "", verb, filters)
    limit, place = await begin(cursors, purpose, limit, cursor)
    if place is not None:
        if query.after not in (None, place.after) or query.before not in (None, place.before):
            raise refused(purpose)
        query = structs.replace(query, after=place.after, before=place.before)
    heads, more = await look(store, query, limit, place)
    if not more:
        return Page(heads)
    end = structs.replace(place_of(heads[-1]), after=query.after, before=query.before)
    return Page(heads, await cursors.write(purpose, end))


async def begin(cursors: Cursors, purpose: Purpose, limit: int, cursor: str | None) -> tuple[int, Place | None]:
    """How long a page is and where it begins, once what was asked for can be."""
    size = cursors.size(limit)
    return size, None if cursor is None else await cursors.read(purpose, cursor, Place)


async def look(store: Store, query: Query, limit: int, place: Place | None) -> tuple[list[Head], bool]:
    """The executions behind a place, and whether there are more."""
    behind = None if place is None else (place.at, key_of(query.tenant or "", place.id))
    heads = await store.find(structs.replace(query, limit=limit + 1, cursor=behind))
    return heads[:limit], len(heads) > limit


def place_of(head: Head) -> Place:
    return Place(head.started_at, id_of(head.key))
