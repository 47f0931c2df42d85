"""What is due, for hinting: the earliest rows and, where more is due than those, the earliest of each tenant.

Rules kept here: each look goes by an index, so it stays short however much of others is due; tenants take turns, also
from one claim to the next, so a flood of one makes nobody else wait for its end; what is found is changed only if
nobody has changed it since, so two claims never answer the same wake. A claim does not wait long for a transaction that
a dead worker has left open, or for a majority: all others are due too, and what is lost of a claim is due again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

from bson import ObjectId
from pymongo import UpdateMany

from perdure.core.fairness import VISITS, WINDOW, share_out
from perdure.core.records import Due, tenant_of
from perdure.stores.mongodb.documents import live_holder
from perdure.stores.mongodb.holding import NEWEST, changed, unhindered
from perdure.stores.mongodb.layout import Collection, Document
from perdure.stores.mongodb.link import Link, collect
from perdure.stores.mongodb.reading import served
from perdure.stores.ticker import DOUBLINGS

#: So many tenants are visited side by side.
ABREAST = 20


class Turns:
    """Which tenant was served last, and which was visited last, for the next claim of this process."""

    def __init__(self) -> None:
        self.served = self.visited = ""


class Claiming:
    """One claim."""

    def __init__(self, link: Link, turns: Turns, now: int, limit: int, grace: int) -> None:
        self._link = link
        self._wakes = link.tables.wakes.with_options(read_concern=NEWEST)
        self._messages = link.tables.messages.with_options(read_concern=NEWEST)
        self._turns = turns
        self._now = now
        self._limit = limit
        self._near = limit * WINDOW
        self._grace = grace

    async def claim(self, queues: Sequence[str], definitions: Sequence[str]) -> list[Due]:
        wakes: dict[str, Document] = {}
        mail: dict[str, Document] = {}
        for query in served(queues, definitions):
            wakes.update((one["_id"], one) for one in await self._due(self._wakes, query, {"held": False}))
            # The earliest letter of each execution is what counts.
            for one in await self._due(self._messages, query, {}):
                mail[one["key"]] = min(mail.get(one["key"], one), one, key=lambda letter: letter["due"])
        times = {key: min(found[key]["due"] for found in (wakes, mail) if key in found) for key in {*wakes, *mail}}
        chosen = share_out(sorted(times, key=lambda key: (times[key], key)), self._limit, self._turns.served)
        if not chosen:
            return []
        self._turns.served = tenant_of(chosen[-1])
        woken = await self._wake([wakes[key] for key in chosen if key in wakes])
        written = await self._again([key for key in chosen if key in mail])
        return await self._answers([key for key in chosen if key in woken or key in written])

    async def _due(self, collection: Collection, query: Document, at_rest: Document) -> list[Document]:
        due = {**query, "due": {"$gt": 0, "$lte": self._now}}
        early = await collect(collection.find(due).sort("due", 1).limit(self._near))
        if len(early) < self._near:
            return early
        return early + await self._of_each(collection, {**due, **at_rest})

    async def _of_each(self, collection: Collection, due: Document) -> list[Document]:
        """The earliest of each tenant, from the one that was visited last on, and round."""
        every = sorted(await collection.distinct("tenant", due))
        begin = bisect_right(every, self._turns.visited)
        tenants = [*every[begin:], *every[:begin]][:VISITS]
        share = max(1, self._near // max(1, len(tenants)))
        found: list[Document] = []
        for at in range(0, len(tenants), ABREAST):
            visits = [
                collect(collection.find({**due, "tenant": tenant}).sort("due", 1).limit(share))
                for tenant in tenants[at : at + ABREAST]
            ]
            for one in await asyncio.gather(*visits):
                found += one
        if tenants:
            self._turns.visited = tenants[-1]
        return found

    async def _wake(self, wakes: Sequence[Document]) -> set[str]:
        """Free lapsed holds and count them; hint again later and later while nobody answers."""
        await self._link.end_sessions(wake["session"] for wake in wakes if wake["held"])
        return await changed(self._wakes, [(wake, self._hinted(wake)) for wake in wakes], unhindered)

    def _hinted(self, wake: Document) -> Document:
        return {
            "holder": None,
            "held": False,
            "lapses": wake["lapses"] + wake["held"],
            "token": wake["token"] + wake["held"],
            "due": self._now + self._grace * 2 ** min(wake["hints"], DOUBLINGS),
            "hints": wake["hints"] + 1,
        }

    async def _again(self, keys: Sequence[str]) -> set[str]:
        """Make mail due later again; answers for which executions nobody else did so meanwhile."""
        if not keys:
            return set()
        mark = ObjectId()
        later = {"$set": {"due": self._now + self._grace, "mark": mark}}
        moves = [UpdateMany({"key": key, "due": {"$lte": self._now}}, later) for key in keys]
        await unhindered(self._messages, moves)
        mine = {"key": {"$in": list(keys)}, "mark": mark}
        return {one["key"] for one in await collect(self._messages.find(mine, ["key"]))}

    async def _answers(self, keys: Sequence[str]) -> list[Due]:
        fields = ["queue", "holder", "due"]
        live = {one["_id"]: one for one in await collect(self._wakes.find({"_id": {"$in": list(keys)}}, fields))}
        return [Due(key, live[key]["queue"], live_holder(live[key], self._now)) for key in keys if key in live]
