"""The verbs of the Store port on DynamoDB, each in a module of its own.

Rules kept here: reads that decide something see the table as it is at that moment, never an index; a store may be
opened again, on another event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from perdure.core.records import (
    Backlog,
    Commit,
    Due,
    Head,
    HoldAnswer,
    Mail,
    Outcome,
    Query,
    Row,
    Sent,
    Start,
    Started,
    key_of,
)
from perdure.stores.dynamodb import committing, holding, layout, search, sending, starting
from perdure.stores.dynamodb.address import read_address
from perdure.stores.dynamodb.claiming import Claiming
from perdure.stores.dynamodb.clock import Clock
from perdure.stores.dynamodb.items import HEAD, STATE, begun, checked, facts_of, home
from perdure.stores.dynamodb.table import Table


class DynamoStore:
    """A Store in one table of DynamoDB; `clock` answers microseconds and is for tests only."""

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None) -> None:
        self._url = url
        self.address = read_address(url)
        self._given = clock
        self._clock = Clock(clock)
        self._make()

    def _make(self) -> None:
        self._table = Table(self.address, self._clock)
        self._claiming = Claiming(self._table)

    async def open(self) -> None:
        self._make()
        await self._table.wire.open()
        try:
            await layout.prepare(self._table)
        except BaseException:
            await self._table.wire.close()
            raise

    async def close(self) -> None:
        await self._table.wire.close()

    def twin(self) -> DynamoStore:
        other = DynamoStore(self._url, clock=self._given)
        other._clock = self._clock  # what one of them learns of the time, the other knows
        return other

    async def schema_number(self) -> int:
        """The number of the layout that the table has; 0 for none."""
        table = Table(self.address, self._clock)
        await table.wire.open()
        try:
            return await layout.number(table)
        finally:
            await table.wire.close()

    async def now(self) -> int:
        return self._clock.now()

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        return await starting.start(self._table, starts, grace)

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        return await sending.send(self._table, mail, grace)

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        return await holding.hold(self._table, keys, me, lease, known or {})

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        return await holding.renew(self._table, holds, lease)

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        await holding.release(self._table, holds)

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        return await holding.mail(self._table, keys)

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        return await committing.commit(self._table, group, grace)

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        return await self._claiming.claim(queues, definitions, limit, grace)

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        return await self._claiming.next_due(queues, definitions)

    async def backlog(self) -> list[Backlog]:
        return await self._claiming.backlog()

    async def begun(self, tenant: str, most: int) -> int:
        parts = {"name": "sp", "by": "ss", "IndexName": STATE}
        return len(await self._table.wire.some(f"{tenant}/begun", most, **parts)) if most > 0 else 0

    async def fresh(self, keys: Sequence[str]) -> set[str]:
        heads = await self._table.heads(keys)
        return {
            key for key, head in heads.items() if head["status"] == "open" and facts_of(head).counts and not begun(head)
        }

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        return await self._table.rows(key, after, until, limit)

    async def message(self, key: str, id: str) -> Mail | Row | None:
        found = await self._table.wire.get(home(checked(key, id)), f"m#{id}")
        if found is None:
            return None
        if "v" in found:
            [row] = await self._table.rows(key, found["v"] - 1, found["v"])
            return row
        data = await self._table.values.read(found["data"])
        assert data is not None
        return Mail(key, id, data, found.get("sha", ""))

    async def listening(self, tenant: str, topics: Sequence[str], limit: int, after: str = "") -> dict[str, list[str]]:
        names = list(dict.fromkeys(topics))
        pages = await asyncio.gather(*(self._listening(key_of(tenant, name), limit, after) for name in names))
        return {name: keys for name, keys in zip(names, pages, strict=True) if keys}

    async def _listening(self, topic: str, limit: int, after: str) -> list[str]:
        # One more, for the page begins with the key itself.
        found = await self._table.wire.some(f"T#{topic}", limit + 1, low=after or None)
        return [item["sk"] for item in found if item["sk"] > after][:limit]

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        return await search.extent(self._table, tenant, workflow)

    async def head(self, key: str) -> Head | None:
        item = await self._table.wire.get(home(key), HEAD)
        return None if item is None else await self._table.head(item, self._clock.now())

    async def find(self, query: Query) -> list[Head]:
        return await search.find(self._table, query)
