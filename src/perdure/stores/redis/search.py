"""Searches: a query begins with the smallest index that has all it asks for, and the rest is compared.

Rules kept here: each script looks at so many executions at most and says where it stopped, so a long search is many
short ones and holds nobody up; what is published is compared here, for scripts look into no value. The order is that of
the start and then of the key, newest first, whichever index is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from msgspec import Struct

from perdure.core.records import Head, Query, key_of, labels_wanted
from perdure.stores.fitting import place as place_of, publishes
from perdure.stores.redis.packing import read_head

#: How many executions one script looks at, and how many heads it answers.
SCAN, PAGE = 2000, 200

#: Runs a script that only reads.
Read: TypeAlias = Callable[..., Awaitable[Any]]


class _Place(Struct, frozen=True):
    """Where a search goes on: at this start, and there before this key if there is one."""

    start: int | None
    key: str | None = None


async def find_in(read: Read, tenant: str, query: Query) -> list[Head]:
    """The newest of a tenant that fit the query, its limit at most."""
    found: list[Head] = []
    place: _Place | None = _begin(query)
    while place is not None and len(found) < query.limit:
        many = PAGE if query.fields else min(PAGE, query.limit - len(found))
        heads, place = await _page(read, tenant, query, place, many)
        found += [head for head in heads if publishes(head.state, query.fields)]
    return found[: query.limit]


def newest(heads: Iterable[Head], limit: int) -> list[Head]:
    return sorted(heads, key=place_of, reverse=True)[:limit]


def _begin(query: Query) -> _Place:
    before = None if query.before is None else query.before - 1
    if query.cursor is not None and (before is None or query.cursor[0] <= before):
        return _Place(*query.cursor)
    return _Place(before)


async def _page(read: Read, tenant: str, query: Query, place: _Place, many: int) -> tuple[list[Head], _Place | None]:
    held = {"running": True, "waiting": False}.get(query.status or "")
    status = query.status if held is None else "open"
    labels = labels_wanted(query)
    now, stopped, found = await read(
        "heads",
        _indexes(tenant, query, status, labels),
        place.start,
        place.key,
        query.after,
        status,
        held,
        query.workflow,
        query.parent,
        query.inner,
        labels,
        many,
        SCAN,
    )
    heads = [read_head(key.decode(), pairs, version, mail, int(now)) for key, pairs, version, mail in found]
    return heads, None if stopped is None else _Place(int(stopped[0]), stopped[1].decode())


def _indexes(tenant: str, query: Query, status: str | None, labels: tuple[str, ...]) -> list[str]:
    """Every index that has all executions which the query asks for."""
    kinds = {
        "held": query.status == "running" or None,
        f"s:{status}": status,
        f"w:{query.workflow}": query.workflow,
        f"p:{query.parent}": query.parent,
    }
    return [
        key_of(tenant, ""),
        *labels,
        *(key_of(tenant, kind) for kind, wanted in kinds.items() if wanted is not None),
    ]
