"""Finding executions, page by page, newest first.

A cursor names the last execution of its page, so pages have no gaps and no doubles while executions come and go.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from perdure.core.records import Head, Query, ShownStatus, id_of, key_of
from perdure.errors import UsageError
from perdure.ports import Store
from perdure.runtime.checks import NONE, Labels, checked_cursor


class Page(msgspec.Struct, frozen=True):
    """Executions found, newest first; `next` is the cursor of the page that follows, if there is one."""

    heads: list[Head]
    next: str | None = None


async def find(
    store: Store,
    tenant: str,
    *,
    status: ShownStatus | None,
    workflow: str | None,
    after: datetime | None,
    before: datetime | None,
    parent: str | None,
    labels: Labels = NONE,
    limit: int,
    cursor: str | None,
    fields: dict[str, str | int | float | bool | None],
) -> Page:
    """One page of a tenant's executions. Inner ones are shown only to those who ask for what may be inner."""
    if not 1 <= limit <= 1000:
        raise UsageError("limit must be between 1 and 1000")
    place = None if cursor is None else checked_cursor(cursor, "find()")
    query = Query(
        tenant=tenant,
        status=status,
        workflow=workflow,
        parent=None if parent is None else key_of(tenant, parent),
        inner=parent is not None or workflow is not None or status == "stuck",
        after=None if after is None else int(after.timestamp() * 1e6),
        before=None if before is None else int(before.timestamp() * 1e6),
        fields=fields,
        correlation=labels.correlation or None,
        tags=labels.tags,
        limit=limit + 1,
        cursor=None if place is None else (place[0], key_of(tenant, place[1])),
    )
    heads = await store.find(query)
    if len(heads) <= limit:
        return Page(heads)
    return Page(heads[:limit], cursor_after(heads[limit - 1]))


def cursor_after(head: Head) -> str:
    """Names the page that begins behind this execution."""
    return f"{head.started_at}-{id_of(head.key)}"
