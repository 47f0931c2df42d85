"""What starts and sends write, inside a transaction.

A transaction sees one moment, and of two that write the same document the second is rolled back and begins anew. Rules
kept here: whoever must not miss another writes a document that the other writes, too: senders and the end meet in the
box, starts and ends of a lane in the lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from pymongo import UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession

from perdure.core.records import ENDED, Mail, Sent, Start, Started, lane_of
from perdure.stores.mongodb.documents import (
    box_document,
    head_document,
    live_holder,
    log_documents,
    mail_document,
    mail_id,
    wake_document,
)
from perdure.stores.mongodb.layout import Document, Tables
from perdure.stores.mongodb.link import collect


class Writing:
    """The verbs of clients, which are also parts of a commit: children are started, and mail is sent to others."""

    def __init__(self, there: Tables, session: AsyncClientSession, now: int) -> None:
        self._there = there
        self._session = session
        self.now = now

    async def _found(self, collection: Any, query: Document, *fields: str) -> list[Document]:
        return await collect(collection.find(query, fields or None, session=self._session))

    async def _by_key(self, collection: Any, keys: Sequence[str], *fields: str) -> dict[str, Document]:
        found = await self._found(collection, {"_id": {"$in": list(keys)}}, *fields) if keys else []
        return {one["_id"]: one for one in found}

    # Start

    async def start(self, starts: Sequence[Start], due: int) -> list[Started]:
        there = await self._by_key(self._there.heads, list({start.key for start in starts}), "sha")
        shas = {key: head["sha"] for key, head in there.items()}
        answers: list[Started] = []
        fresh: list[Start] = []
        for start in starts:
            if start.key in shas:
                answers.append("same" if shas[start.key] == start.sha else "conflict")
            else:
                answers.append("created")
                shas[start.key] = start.sha  # another one of this key in the same call is a second start
                fresh.append(start)
        if fresh:
            await self._create(fresh, due)
        return answers

    async def _create(self, starts: Sequence[Start], due: int) -> None:
        awake = [start for start in starts if start.status not in ENDED]
        wakes = [wake_document(start, self.now, due) for start in awake]
        await self._queue_up(awake, wakes)
        rows = list(chain.from_iterable(log_documents(start.key, start.rows) for start in starts))
        heads = [head_document(start, self.now) for start in starts]
        await self._there.heads.insert_many(heads, session=self._session)
        await self._there.events.insert_many(rows, session=self._session)
        if awake:
            await self._there.wakes.insert_many(wakes, session=self._session)
            await self._there.boxes.insert_many([box_document(start) for start in awake], session=self._session)

    async def _queue_up(self, starts: Sequence[Start], wakes: Sequence[Document]) -> None:
        """Give each its place in its lane. Starts in one lane meet here, so none becomes visible behind a later one."""
        lanes = sorted({lane for start in starts if (lane := lane_of(start)) is not None})
        if not lanes:
            return
        last = {lane: one["last"] for lane, one in (await self._by_key(self._there.lanes, lanes)).items()}
        for start, wake in zip(starts, wakes, strict=True):
            if (lane := lane_of(start)) is not None:
                last[lane] = wake["born"] = max(self.now, last.get(lane, 0) + 1)
        newest = [UpdateOne({"_id": lane}, {"$set": {"last": last[lane]}}, upsert=True) for lane in lanes]
        await self._there.lanes.bulk_write(newest, session=self._session)

    # Send

    async def send(self, mail: Sequence[Mail], due: int) -> list[Sent]:
        keys = sorted({one.key for one in mail})
        # First of all: of several who send to one execution, those that come later notice it before they do more.
        counts = Counter(one.key for one in mail)
        counted = [UpdateOne({"_id": key}, {"$inc": {"place": counts[key]}}) for key in keys]
        await self._there.boxes.bulk_write(counted, session=self._session)
        boxes = await self._by_key(self._there.boxes, keys)
        wakes = await self._by_key(self._there.wakes, keys, "holder", "due")
        shas = {
            (one["key"], one["_id"]["id"]): one["sha"]
            for one in await self._found(
                self._there.messages, {"_id": {"$in": [mail_id(one.key, one.id) for one in mail]}}, "key", "sha"
            )
        }
        folded = await self.folded(keys, [one.id for one in mail])
        closed = await self._by_key(self._there.heads, [key for key in keys if key not in boxes], "queue")
        answers: list[Sent] = []
        letters: list[Document] = []
        for one in mail:
            name, box = (one.key, one.id), boxes.get(one.key)
            queue = box["queue"] if box is not None else closed[one.key]["queue"] if one.key in closed else ""
            holder = live_holder(wakes.get(one.key), self.now)
            if name in shas:
                answers.append(Sent("duplicate" if shas[name] == one.sha else "conflict", queue, holder))
            elif name in folded:
                answers.append(Sent("duplicate", queue, holder, folded[name]))
            elif box is None:
                answers.append(Sent("ended", queue) if one.key in closed else Sent("missing"))
            else:
                answers.append(Sent("accepted", queue, holder))
                shas[name] = one.sha
                counts[one.key] -= 1
                letters.append(mail_document(one, box, due, box["place"] - counts[one.key]))
        if letters:
            await self._there.messages.insert_many(letters, session=self._session)
        return answers

    async def folded(self, keys: Sequence[str], ids: Sequence[str]) -> dict[tuple[str, str], int]:
        """Which of these messages are in the logs, and at which versions."""
        if not keys or not ids:
            return {}
        wanted = set(ids)
        query = {"key": {"$in": list(keys)}, "ids": {"$in": list(wanted)}}
        return {
            (one["key"], id): version
            for one in await self._found(self._there.events, query, "key", "ids", "places")
            for id, version in zip(one["ids"], one["places"], strict=True)
            if id in wanted
        }
