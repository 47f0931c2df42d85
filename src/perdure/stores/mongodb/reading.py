"""What is only read: logs, mailboxes, who listens, what is due when, how much there is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain

from perdure.core.records import Backlog, Mail, Row, key_of
from perdure.stores.mongodb.documents import mail_id, read_mail, rows_of
from perdure.stores.mongodb.layout import Collection, Document, Tables
from perdure.stores.mongodb.link import collect

#: So many logs are asked for at once, each from a place of its own.
AT_ONCE = 100
#: An index is read in so many places at once for an answer in order; the server would sort everything beyond 200.
PLACES = 100
#: Counted up to a limit: what is needed is whether there is much to do, not how much exactly.
COUNTED = 10_000


async def tails(there: Tables, after: Mapping[str, int]) -> dict[str, list[Document]]:
    """The documents with what is behind these versions of these logs."""
    found: dict[str, list[Document]] = {key: [] for key in after}
    whole = [key for key, version in after.items() if not version]
    parts = [{"key": key, "versions": {"$gt": version}} for key, version in after.items() if version]
    queries: list[Document] = [{"key": {"$in": whole}}] if whole else []
    queries += [{"$or": parts[begin : begin + AT_ONCE]} for begin in range(0, len(parts), AT_ONCE)]
    for query in queries:
        for one in await collect(there.events.find(query, {"_id": 0})):
            found[one["key"]].append(one)
    return found


async def log(there: Tables, key: str, after: int, until: int | None, limit: int) -> list[Row]:
    last = after + limit if until is None else min(until, after + limit)
    found = await collect(there.events.find({"key": key, "versions": {"$elemMatch": {"$gt": after, "$lte": last}}}))
    return [row for row in rows_of(found, after) if row.version <= last]


async def unread(there: Tables, keys: Sequence[str]) -> dict[str, list[Mail]]:
    """The mailboxes in order, without what is in the logs."""
    boxes: dict[str, list[Mail]] = {key: [] for key in keys}
    found = await collect(there.messages.find({"key": {"$in": list(boxes)}}))
    if not found:
        return boxes
    found.sort(key=lambda one: one["place"])
    ids = list({one["_id"]["id"] for one in found})
    query = {"key": {"$in": list({one["key"] for one in found})}, "ids": {"$in": ids}}
    known = {(one["key"], id) for one in await collect(there.events.find(query, ["key", "ids"])) for id in one["ids"]}
    for mail in map(read_mail, found):
        if (mail.key, mail.id) not in known:
            boxes[mail.key].append(mail)
    return boxes


async def message(there: Tables, key: str, id: str) -> Mail | Row | None:
    """A message in the log, or else in the mailbox."""
    # The mailbox first: what is taken out of it meanwhile is in the log by then.
    waiting = await there.messages.find_one({"_id": mail_id(key, id)})
    folded = await there.events.find_one({"key": key, "ids": id})
    if folded is not None:
        return next(row for row in rows_of([folded]) if row.message_id == id)
    return None if waiting is None else read_mail(waiting)


async def listening(there: Tables, tenant: str, topics: Sequence[str], limit: int, after: str) -> dict[str, list[str]]:
    async def listeners(topic: str) -> list[str]:
        query = {"topics": key_of(tenant, topic), "_id": {"$gt": after}}
        return [one["_id"] for one in await collect(there.wakes.find(query, ["_id"]).sort("_id", 1).limit(limit))]

    once = list(dict.fromkeys(topics))
    found = dict(zip(once, await asyncio.gather(*map(listeners, once)), strict=True))
    return {topic: keys for topic, keys in found.items() if keys}


def served(queues: Sequence[str], definitions: Sequence[str]) -> list[Document]:
    """Queries that find what is served, each small enough for an index to answer it in order."""
    if not queues or not definitions:
        return []
    some = max(1, PLACES // len(queues))
    return [
        {"queue": {"$in": list(queues)}, "definition": {"$in": list(definitions[begin : begin + some])}}
        for begin in range(0, len(definitions), some)
    ]


async def next_due(there: Tables, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
    async def earliest(collection: Collection, query: Document) -> list[Document]:
        return await collect(collection.find({**query, "due": {"$gt": 0}}, ["due"]).sort("due", 1).limit(1))

    asked = [
        earliest(collection, query)
        for query in served(queues, definitions)
        for collection in (there.wakes, there.messages)
    ]
    return min((one["due"] for one in chain.from_iterable(await asyncio.gather(*asked))), default=None)


async def backlog(there: Tables, now: int) -> list[Backlog]:
    waiting: dict[str, list[int]] = {}
    for collection in (there.wakes, there.messages):
        query = {"queue": {"$gt": ""}, "due": {"$gt": 0, "$lte": now}}
        for one in await collect(collection.find(query, {"_id": 0, "queue": 1, "due": 1}).limit(COUNTED)):
            waiting.setdefault(one["queue"], []).append(one["due"])
    return [Backlog(queue, len(dues), min(dues)) for queue, dues in sorted(waiting.items())]
