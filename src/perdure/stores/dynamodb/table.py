"""What all verbs share: the wire, the clock, what is known of executions for good, and which lists there are."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from perdure.core.records import Head, Row, id_of
from perdure.stores.dynamodb.address import Address
from perdure.stores.dynamodb.clock import Clock
from perdure.stores.dynamodb.items import (
    HEAD,
    Facts,
    Item,
    facts_of,
    home,
    key_at,
    live_holder,
    put,
    read_rows,
    version_key,
)
from perdure.stores.dynamodb.values import Values
from perdure.stores.dynamodb.wire import Refused, Wire
from perdure.stores.dynamodb.writing import Unit, Writing

#: Executions whose unchanging facts are remembered.
REMEMBERED = 20_000
AGENDAS, LISTINGS = "R#due", "R#heads"


class Table:
    """One table, seen from one event loop."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self.name = address.table
        self.shards = address.shards  # until the table says how many it has
        self.clock = clock
        self.wire = Wire(address, clock)
        self.values = Values(self.wire)
        self._facts: OrderedDict[str, Facts] = OrderedDict()
        self._listed: set[tuple[str, str]] = set()
        self.owing: set[str] = set()  # executions of which a parcel could not be delivered from here

    @property
    def mailbox_page(self) -> int:
        """So much mail is read at a time, and so much is folded by one commit: each is an item of its transaction."""
        return max(1, (self.address.items - 4) // 2)

    async def write(self, units: Sequence[Unit], writing: Writing | None = None, *, apart: bool = False) -> None:
        """Write these units; what is refused has its refusals, and its pieces are gone.

        One that is broken raises its error, unless the caller looks after it (`apart`).
        """
        writing = writing or Writing(self.wire)
        with writing.told():
            await writing.write(units)
            for unit in units:
                if unit.broken is not None and not apart:
                    raise unit.broken
        for unit in units:
            if (unit.refusals or unit.broken) and unit.pieces:
                await self.values.drop(unit.pieces)

    async def update(self, op: dict[str, Any]) -> bool:
        """Change one item; False if its condition does not hold."""
        [(kind, parameters)] = op.items()
        try:
            await self.wire.write(f"{kind.lower()}_item", **parameters)
        except Refused:
            return False
        return True

    async def update_each(self, ops: Sequence[dict[str, Any]]) -> list[bool]:
        """Change many items, each by itself, in few calls; of each, whether its condition held."""
        if len(ops) == 1:
            return [await self.update(ops[0])]  # costs half of a transaction
        units = [Unit("", [op]) for op in ops]
        await self.write(units)
        return [not unit.refusals for unit in units]

    # What is known for good

    def remember(self, facts: Facts) -> Facts:
        self._facts[facts.key] = facts
        self._facts.move_to_end(facts.key)
        if len(self._facts) > REMEMBERED:
            self._facts.popitem(last=False)
        return facts

    async def facts(self, keys: Iterable[str]) -> dict[str, Facts]:
        """What never changes about these executions; those that are not there are left out."""
        wanted = list(dict.fromkeys(keys))
        missing = [key for key in wanted if key not in self._facts]
        if missing:
            await self.heads(missing)
        return {key: self._facts[key] for key in wanted if key in self._facts}

    async def heads(self, keys: Iterable[str]) -> dict[str, Item]:
        """The head items of these executions, as they are now."""
        found = await self.wire.get_many((home(key), HEAD) for key in keys)
        items = {key_at(pk): item for (pk, _), item in found.items()}
        for item in items.values():
            self.remember(facts_of(item))
        return items

    # Which lists there are

    async def enlist(self, names: Iterable[tuple[str, str]]) -> None:
        """Before anything is put into a list: whoever looks for lists must find it."""
        fresh = set(names) - self._listed
        ops = [put(self.name, {"pk": pk, "sk": sk}, new=False)["Put"] for pk, sk in sorted(fresh)]
        await asyncio.gather(*(self.wire.write("put_item", **op) for op in ops))
        self._listed |= fresh

    async def lists(self, kind: str, low: str | None = None, high: str | None = None) -> list[str]:
        return [item["sk"] for item in await self.wire.all(kind, low=low, high=high)]

    # Logs and heads

    async def rows(self, key: str, after: int, until: int | None = None, limit: int | None = None) -> list[Row]:
        """Rows of a log; what was written together is read together."""
        last = version_key(10**16 - 1)
        found: list[Row] = []
        async for page in self.wire.pages(home(key), low=version_key(after + 1), high=last):
            for item in page:
                data = await self.values.read(item["rows"])
                assert data is not None
                rows = read_rows(data)
                found += [row for row in rows if row.version > after and (until is None or row.version <= until)]
                done = until is not None and rows[-1].version >= until
                if done or (limit is not None and len(found) >= limit):
                    return found[:limit]
        return found

    async def head(self, item: Item, now: int) -> Head:
        key = key_at(item["pk"])
        state, waits, result = await asyncio.gather(
            *(self.values.read(item.get(name)) for name in ("state", "waits", "result"))
        )
        open_ = "tok" in item
        return Head(
            key=key,
            workflow=item["workflow"],
            definition=item["definition"],
            queue=item.get("queue", ""),
            status=item["status"],
            version=item["v"],
            sha=item.get("sha", ""),
            parent=item.get("parent"),
            parent_ref=item.get("ref"),
            state=state,
            waits=waits,
            result=result,
            started_at=item["at"],
            changed_at=item["changed"],
            holder=live_holder(item, now) if open_ else None,
            due=item.get("due") if open_ else None,
            lapses=item.get("lapses", 0) if open_ else 0,
            mail=item.get("waiting", 0),
            lane=id_of(item["lane"]) if open_ and "lane" in item else None,
            token=item["tok"] if open_ else 0,
            base=item["base"],
            correlation=item.get("correlation"),
            tags=tuple(item.get("tags", ())),
        )
