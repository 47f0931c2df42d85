"""Who has an execution: taking, renewing and giving back.

Rules kept here: a hold is a change of one document that fails if anybody else changed it since it was read, so nobody
waits for anybody and a worker that dies leaves nothing closed behind; a barrier goes into the log before the hold is
answered, in one transaction with a write to the hold itself; what cannot be had in a few rounds is left for later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pymongo
from bson import ObjectId
from pymongo import UpdateMany, UpdateOne, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from perdure.core.records import Busy, Gone, Held, HoldAnswer, Queued
from perdure.stores.mongodb import reading
from perdure.stores.mongodb.committing import Committing
from perdure.stores.mongodb.documents import live_holder, rows_of
from perdure.stores.mongodb.layout import Collection, Document, Tables
from perdure.stores.mongodb.link import Contended, InTheWay, Link, Occupied, collect

#: How often holds are tried that others change meanwhile.
ROUNDS = 8
#: So many writes that are hindered go side by side, each for so many seconds.
ABREAST, WAIT = 20, 1.0
#: What is read for hints and leases may still be taken back.
NEWEST = ReadConcern("local")
#: Microseconds after which something is due again whose former holder is still writing.
SOON = 500_000


class Holding:
    """One call of `hold`."""

    def __init__(self, link: Link, me: str, lease: int, known: Mapping[str, tuple[int, int]]) -> None:
        self._link = link
        self._there: Tables = link.tables
        self._me = me
        self._lease = lease
        self._known = known
        self._answers: dict[str, HoldAnswer] = {}

    async def hold(self, keys: Sequence[str]) -> dict[str, HoldAnswer]:
        left = list(keys)
        held: dict[str, Document] = {}
        for _ in range(ROUNDS):
            taken, left = await self._take(left)
            held |= taken
            if not left:
                break
        self._answers.update((key, Queued(key)) for key in left)
        tokens = {key: wake["token"] + 1 for key, wake in held.items()}
        unclean = {key: tokens[key] for key, wake in held.items() if wake["held"] or wake["lapses"]}
        lapses = await self._barriers(unclean)
        for key in unclean.keys() - lapses.keys():
            self._answers[key] = Queued(key)
            del held[key]
        await self._read(held, tokens, lapses)
        return self._answers

    async def _take(self, keys: Sequence[str]) -> tuple[dict[str, Document], list[str]]:
        """What was had, as it was before, and what somebody else changed meanwhile."""
        now = await self._link.now()
        wakes = {one["_id"]: one for one in await collect(self._there.wakes.find({"_id": {"$in": list(keys)}}))}
        again, free = [], []
        firsts = await self._first_in_lanes({one["lane"] for one in wakes.values() if "lane" in one})
        for key in keys:
            wake = wakes.get(key)
            holder = live_holder(wake, now)
            if wake is None:
                self._answers[key] = Gone(key)
            elif holder is not None and holder != self._me:
                self._answers[key] = Busy(key, holder)
            elif "lane" in wake and firsts[wake["lane"]] != key:
                if await self._asleep(key):
                    self._answers[key] = Queued(key)
                else:
                    again.append(key)
            else:
                free.append(wake)
        lapsed = [wake for wake in free if wake["held"] and wake["holder"] != self._me]
        await self._link.end_sessions(wake["session"] for wake in lapsed)
        won = await changed(self._there.wakes, [(wake, self._mine(wake, now)) for wake in free], _together)
        again += [wake["_id"] for wake in free if wake["_id"] not in won]
        return {key: wakes[key] for key in won}, again

    def _mine(self, wake: Document, now: int) -> Document:
        return {
            "holder": self._me,
            "held": True,
            "token": wake["token"] + 1,
            "due": now + self._lease,
            "lapses": wake["lapses"] + (wake["held"] and wake["holder"] != self._me),
            "hints": 0,
            "session": self._link.session_id,
        }

    async def _first_in_lanes(self, lanes: set[str]) -> dict[str, str | None]:
        async def first(lane: str) -> str | None:
            found = await self._there.wakes.find_one({"lane": lane}, ["_id"], sort=[("born", 1)])
            return None if found is None else str(found["_id"])

        return dict(zip(lanes, await asyncio.gather(*map(first, lanes)), strict=True))

    async def _asleep(self, key: str) -> bool:
        now = await self._link.now()
        try:
            return await self._link.transact_holding(
                lambda session: Committing(self._there, session, now).put_to_sleep(key)
            )
        except InTheWay:
            return False

    async def _barriers(self, tokens: dict[str, int]) -> dict[str, int]:
        """Together, or else one by one: a former holder that goes on writing holds up nobody else."""
        if not tokens:
            return {}
        now = await self._link.now()

        def work(some: dict[str, int]) -> Callable[[AsyncClientSession], Awaitable[dict[str, int]]]:
            return lambda session: Committing(self._there, session, now).barriers(some, self._me)

        lapses = await self._tried(work(tokens))
        if lapses is not None:
            return lapses
        found: dict[str, int] = {}
        for key, token in tokens.items():
            one = await self._tried(work({key: token}))
            if one is None:
                await self._give_up(key, token, now)
            else:
                found |= one
        return found

    async def _tried(self, work: Callable[[AsyncClientSession], Awaitable[dict[str, int]]]) -> dict[str, int] | None:
        for _ in range(ROUNDS):
            try:
                return await self._link.transact_holding(work)
            except Occupied:
                continue  # a commit that was in flight: the barrier goes behind it
            except Contended:
                break
        return None

    async def _give_up(self, key: str, token: int, now: int) -> None:
        """Its next holder must write the barrier that this one could not."""
        free = {"holder": None, "held": False, "due": now + SOON, "lapses": {"$max": ["$lapses", 1]}}
        await self._there.wakes.update_one({"_id": key, "token": token, "held": True}, [{"$set": free}])

    async def _read(self, held: dict[str, Document], tokens: dict[str, int], lapses: dict[str, int]) -> None:
        if not held:
            return
        heads = {one["_id"]: one for one in await collect(self._there.heads.find({"_id": {"$in": list(held)}}, _READ))}
        after = {key: self._after(held[key], heads[key]["base"]) for key in held}
        logs = await reading.tails(self._there, after)
        boxes = await reading.unread(self._there, list(held))
        for key, wake in held.items():
            head = heads[key]
            self._answers[key] = Held(
                key,
                tokens[key],
                head["definition"],
                head["queue"],
                lapses.get(key, 0),
                head["status"],
                rows=rows_of(logs[key], after[key]),
                mail=boxes[key],
                parent=head["parent"],
                parent_ref=head["parent_ref"],
                lane="lane" in wake,
            )

    def _after(self, wake: Document, base: int) -> int:
        """What is known counts if nobody has held it since."""
        version, token = self._known.get(wake["_id"], (0, 0))
        return version if token == wake["token"] else base - 1


_READ = ["definition", "queue", "status", "base", "parent", "parent_ref"]


async def changed(
    wakes: Collection,
    changes: Sequence[tuple[Document, Document]],
    write: Callable[[Collection, Sequence[UpdateOne]], Awaitable[int | None]],
) -> set[str]:
    """Change wakes that are still as they were read; answers which of them were."""
    if not changes:
        return set()
    mark = ObjectId()
    writes: list[UpdateOne] = [
        UpdateOne(
            {
                "_id": wake["_id"],
                "token": wake["token"],
                "holder": wake["holder"],
                "due": wake["due"],
                "turn": wake["turn"],
            },
            {"$set": {**change, "mark": mark}},
        )
        for wake, change in changes
    ]
    keys = [wake["_id"] for wake, _ in changes]
    if await write(wakes, writes) == len(keys):
        return set(keys)
    mine: dict[str, Any] = {"_id": {"$in": keys}, "mark": mark}
    return {one["_id"] for one in await collect(wakes.find(mine, ["_id"]))}


async def _together(wakes: Collection, writes: Sequence[UpdateOne]) -> int:
    return (await wakes.bulk_write(writes, ordered=False)).matched_count


async def unhindered(collection: Collection, writes: Sequence[UpdateOne | UpdateMany]) -> int | None:
    """Write together, or else each by itself: a document that an open transaction has is left out and holds up none.

    Answers how many documents there were, if that is known.
    """
    count = await _in_time(collection, writes)
    if count is None:
        here = collection.with_options(write_concern=WriteConcern(1))
        for at in range(0, len(writes), ABREAST):
            await asyncio.gather(*(_in_time(here, [one]) for one in writes[at : at + ABREAST]))
    return count


async def _in_time(collection: Collection, writes: Sequence[UpdateOne | UpdateMany]) -> int | None:
    try:
        with pymongo.timeout(WAIT):
            return (await collection.bulk_write(writes, ordered=False)).matched_count
    except PyMongoError as error:
        if not error.timeout:
            raise
        return None
