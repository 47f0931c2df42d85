"""Heads by what is known of them, newest first.

Rules kept here: what a search goes by is a list in the table, read as it is at this moment; only searches by a status
that is rare go by an index, which may be a moment behind. What is found is compared with the head itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from perdure.core.records import Head, Query, labels_wanted
from perdure.stores.dynamodb.items import HEAD, STATE, Item, home, listing, names, place
from perdure.stores.dynamodb.table import LISTINGS, Table
from perdure.stores.fitting import fits

#: Statuses that few executions have: those are found by an index.
RARE = frozenset({"paused", "stuck", "failed", "cancelled"})
#: Places that are read from a list at a time, and heads that are looked at together.
PAGE = 100


async def find(table: Table, query: Query) -> list[Head]:
    found: list[Head] = []
    now = table.clock.now()
    batch: list[str] = []
    lines = [_Line(table, source, query) for source in await _sources(table, query)]
    async for key in _merged(lines):
        batch.append(key)
        if len(batch) >= min(PAGE, max(query.limit - len(found), 1)):
            found += await _fitting(table, batch, query, now)
            batch = []
            if len(found) >= query.limit:
                return found[: query.limit]
    return (found + await _fitting(table, batch, query, now))[: query.limit]


async def _sources(table: Table, query: Query) -> list[tuple[str, bool]]:
    """The lists to go through, and whether each is one of the index."""
    if labels := labels_wanted(query):
        return [(f"L#{labels[0]}", False)]  # the others are compared
    if query.parent is not None:
        return [(f"P#{query.parent}", False)]
    lists = [names(name) for name in await _listings(table, query.tenant)]
    if query.status in RARE:
        tenants = sorted({tenant for tenant, _ in lists})
        return [(f"{tenant}/{query.status}", True) for tenant in tenants]
    wanted = [
        (tenant, workflow)
        for tenant, workflow in lists
        if query.workflow in (None, workflow) and (query.inner or ":" not in workflow)
    ]
    return [(f"W#{listing(*one)}{number}", False) for one in wanted for number in range(table.shards)]


async def _listings(table: Table, tenant: str | None) -> list[str]:
    if tenant is None:
        return await table.lists(LISTINGS)
    begin = listing(tenant, "")[:-2]  # without the end of an empty name
    return [name for name in await table.lists(LISTINGS, begin, begin + "\U0010ffff") if names(name)[0] == tenant]


class _Line:
    """The places of one list, newest first."""

    def __init__(self, table: Table, source: tuple[str, bool], query: Query) -> None:
        pk, by_index = source
        self._places: list[str] = []
        high = "~" if query.before is None else f"{query.before:020d}"
        if query.cursor is not None:
            high = min(high, place(*query.cursor))
        low = f"{query.after or 0:020d}"
        self._name = "ss" if by_index else "sk"
        parts = {"name": "sp", "IndexName": STATE} if by_index else {}
        size = min(query.limit + 1, PAGE)
        self._pages = table.wire.pages(
            pk, by=self._name, low=low, high=high, ScanIndexForward=False, Limit=size, **parts
        )
        self._ended = low > high

    async def top(self) -> str | None:
        while not self._places and not self._ended:
            page = await anext(self._pages, None)
            self._ended = page is None
            self._places = [item[self._name] for item in reversed(page or [])]
        return self._places[-1] if self._places else None

    def pop(self) -> None:
        self._places.pop()


async def _merged(lines: Sequence[_Line]) -> AsyncIterator[str]:
    """The keys of all lists, newest first; what is in two of them comes once."""
    last = None
    await asyncio.gather(*(line.top() for line in lines))  # the first pages together
    while True:
        tops = [(top, line) for line in lines if (top := await line.top()) is not None]
        if not tops:
            return
        newest, line = max(tops, key=lambda pair: pair[0])
        line.pop()
        if newest != last:
            last = newest
            yield newest.partition("#")[2]


async def _fitting(table: Table, keys: Sequence[str], query: Query, now: int) -> list[Head]:
    items = await table.heads(keys)
    heads = await asyncio.gather(*(table.head(items[key], now) for key in keys if key in items))
    return [head for head in heads if fits(head, query)]


async def extent(table: Table, tenant: str, workflow: str) -> tuple[int, int]:
    lists = [f"W#{listing(tenant, workflow)}{number}" for number in range(table.shards)]
    found = await asyncio.gather(*(table.wire.all(pk) for pk in lists))
    keys = [item["sk"].partition("#")[2] for items in found for item in items]
    heads: dict[tuple[str, str], Item] = await table.wire.get_many((home(key), HEAD) for key in keys)
    return len(heads), sum(head["v"] for head in heads.values())
