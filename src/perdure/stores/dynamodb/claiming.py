"""What is due, for hinting: tenants in turn, wherever their rows lie in a flood of another.

Rules kept here: every tenant has lists of its own, so none is hidden by another; an index only says where to look, and
a row is claimed by whoever changes it from what was read, so claims of many processes are disjoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from perdure.core.fairness import VISITS, share_out
from perdure.core.records import Backlog, Due, tenant_of
from perdure.errors import InvalidValue, StoreError
from perdure.stores.dynamodb.committing import PARCELS, deliver
from perdure.stores.dynamodb.items import (
    DUE,
    HEAD,
    Condition,
    Item,
    begun,
    change,
    facts_of,
    key_at,
    live_holder,
    names,
)
from perdure.stores.dynamodb.table import AGENDAS, Table
from perdure.stores.ticker import DOUBLINGS

#: So many rows of one list are counted for the backlog.
COUNTED = 1000

log = logging.getLogger("perdure.stores")


class Claiming:
    """What one process remembers from claim to claim: which tenant was served last, and which was visited last."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._served = self._visited = ""

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        now = self._table.clock.now()
        grace = max(grace, 1)  # a row that stayed due would be found for ever
        await self._deliver_parcels(limit, now, grace)
        lists = self._visits(await self._lists(queues, definitions))
        due: dict[str, list[Item]] = {}
        entries = await self._entries(lists, limit, now)
        for entry in sorted(entries, key=lambda entry: (entry["due"], entry["pk"])):
            due.setdefault(key_at(entry["pk"]), []).append(entry)
        chosen = share_out(due, limit, self._served)
        heads = await self._table.heads(chosen)
        changes = [(key, op) for key in chosen for op in self._hint(heads.get(key), due[key], now, grace)]
        done = await self._table.update_each([op for _, op in changes])
        ours = {key for (key, _), held in zip(changes, done, strict=True) if held and "tok" in heads.get(key, ())}
        if chosen:
            self._served = tenant_of(chosen[-1])
        found = [(key, heads[key]) for key in chosen if key in ours]
        return [Due(key, head.get("queue", ""), live_holder(head, now)) for key, head in found]

    async def _lists(self, queues: Iterable[str], definitions: Iterable[str]) -> list[tuple[str, str]]:
        """The lists that are served here, with their tenants."""
        ours, known = set(queues), set(definitions)
        found = []
        for name in await self._table.lists(AGENDAS):
            queue, definition, tenant = names(name)
            if queue in ours and definition in known:
                found.append((tenant, name))
        return found

    def _visits(self, lists: Sequence[tuple[str, str]]) -> list[str]:
        """Of very many tenants a few hundred, from the one that was visited last on."""
        tenants = sorted({tenant for tenant, _ in lists})
        if len(tenants) > VISITS:
            later = [tenant for tenant in tenants if tenant > self._visited]
            tenants = (later + tenants)[:VISITS]
            self._visited = tenants[-1]
        visited = set(tenants)
        return [name for tenant, name in lists if tenant in visited]

    async def _entries(self, lists: Sequence[str], limit: int, until: int | None) -> list[Item]:
        partitions = [f"{name}{number}" for name, number in product(lists, range(self._table.shards))]
        found = await asyncio.gather(
            *(self._table.wire.some(pk, limit, name="dp", by="due", high=until, IndexName=DUE) for pk in partitions)
        )
        return [entry for entries in found for entry in entries]

    async def _deliver_parcels(self, limit: int, now: int, grace: int) -> None:
        """What commits have for others and nobody came to deliver; what cannot be delivered waits for a later claim."""
        for entry in await self._entries([PARCELS], limit, now):
            item = await self._table.wire.get(entry["pk"], entry["sk"])
            if item is None:
                continue
            try:
                await deliver(self._table, item, grace)
            except (StoreError, InvalidValue) as error:
                later = {"due": now + grace * 2**DOUBLINGS}
                when: list[Condition] = [("due", "=", item["due"])]
                if await self._table.update(change(self._table.name, item["pk"], item["sk"], later, when=when)):
                    key = key_at(entry["pk"])
                    log.warning("%s: what its commit has for others is not delivered: %s", key, error)

    def _hint(self, head: Item | None, entries: Sequence[Item], now: int, grace: int) -> Iterator[dict[str, Any]]:
        """What claims one execution: each change holds only if nobody else was sooner."""
        letters = [entry for entry in entries if entry["sk"] != HEAD]
        if head is None or "tok" not in head:
            yield from map(self._orphan, letters)
            return
        if len(letters) < len(entries) and head.get("due", now + 1) <= now:
            yield self._wake(head, now, grace)
        for one in letters:
            when: list[Condition] = [("due", "=", one["due"])]
            yield change(self._table.name, one["pk"], one["sk"], {"due": now + grace}, when=when)

    def _wake(self, head: Item, now: int, grace: int) -> dict[str, Any]:
        """Free a lapsed hold and count it; hint again later and later while nobody answers."""
        lapsed = "holder" in head
        values: dict[str, Any] = {
            "due": now + grace * 2 ** min(head["hints"], DOUBLINGS),
            "hints": head["hints"] + 1,
        }
        holder: Condition = ("holder", "=", head["holder"]) if lapsed else ("holder", "absent")
        if lapsed:
            free = {name: value for name, value in head.items() if name != "holder"}
            mark = facts_of(head).mark(head["status"], begun(free))
            values |= {"holder": None, "lapses": head["lapses"] + 1, "tok": head["tok"] + 1, "sp": mark}
        when = [("tok", "=", head["tok"]), ("due", "=", head["due"]), holder]
        return change(self._table.name, head["pk"], HEAD, values, when=when)

    def _orphan(self, entry: Item) -> dict[str, Any]:
        """Nobody will ever fold it: its execution has ended. What is in the log stays known."""
        gone: dict[str, Any] = dict.fromkeys(("dp", "due", "seq", "data", "sha"))
        return change(self._table.name, entry["pk"], entry["sk"], gone, when=[("v", "there")])

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        lists = [PARCELS, *(name for _, name in await self._lists(queues, definitions))]
        return min((entry["due"] for entry in await self._entries(lists, 1, None)), default=None)

    async def backlog(self) -> list[Backlog]:
        now = self._table.clock.now()
        waiting: dict[str, dict[str, int]] = {}
        for name in await self._table.lists(AGENDAS):
            queue = names(name)[0]
            if not queue:
                continue  # nobody is to take it
            for entry in await self._entries([name], COUNTED, now):
                keys = waiting.setdefault(queue, {})
                keys[entry["pk"]] = min(entry["due"], keys.get(entry["pk"], entry["due"]))
        return [Backlog(queue, len(keys), min(keys.values())) for queue, keys in sorted(waiting.items())]
