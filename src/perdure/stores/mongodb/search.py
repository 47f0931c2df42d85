"""Heads, one or many. A head is joined with its wake, with its newest rows and with the number of its mail.

Rule kept here: the head of one execution is of one moment. Else its parts are read one after the other, each as it is
then, and who writes what depends on the state would take a state for newer than it is. Who lists heads compares no
part of one with another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core.records import ENDED, Head, Query, labels_wanted
from perdure.stores.fitting import publishes
from perdure.stores.mongodb.documents import read_head
from perdure.stores.mongodb.layout import SNAPSHOT, Document, Tables
from perdure.stores.mongodb.link import collect

_NEWEST_FIRST: Document = {"$sort": {"started_at": -1, "_id": -1}}
_WAKE: Document = {"$lookup": {"from": "wakes", "localField": "_id", "foreignField": "_id", "as": "wake"}}
_NEWEST: Document = {
    "$lookup": {
        "from": "events",
        "localField": "_id",
        "foreignField": "key",
        "pipeline": [{"$sort": {"versions": -1}}, {"$limit": 1}, {"$project": {"_id": 0, "versions": 1}}],
        "as": "newest",
    }
}
_MAIL: Document = {
    "$lookup": {
        "from": "messages",
        "localField": "_id",
        "foreignField": "key",
        "pipeline": [{"$count": "count"}],
        "as": "mail",
    }
}
_JOINED = [_WAKE, _NEWEST, _MAIL]
#: Open, nobody's child and not of the engine's own.
_COUNTS = {"status": "open", "parent": None, "inner": False}
#: So many executions are looked up at once.
PAGE = 1000


async def head(there: Tables, key: str, now: int) -> Head | None:
    heads = there.heads.with_options(read_concern=SNAPSHOT)
    found = await collect(await heads.aggregate([{"$match": {"_id": key}}, *_JOINED]))
    return read_head(found[0], now) if found else None


async def find(there: Tables, query: Query, now: int) -> list[Head]:
    wanted = _condition(query)
    if query.status == "running":
        wanted.append({"_id": {"$in": await _held(there, query.tenant, now)}})
    pipeline: list[Document] = [{"$match": {"$and": wanted}}, _NEWEST_FIRST]
    if query.status == "waiting":
        pipeline += [_WAKE, {"$match": {"wake": {"$not": {"$elemMatch": {"held": True, "due": {"$gt": now}}}}}}]
    if not query.fields:
        pipeline.append({"$limit": query.limit})
    found: list[Head] = []
    # What is published is text to the server, so it is looked at here, page by page, until there are enough.
    async with await there.heads.aggregate([*pipeline, *_JOINED]) as cursor:
        async for one in cursor:
            if len(found) == query.limit:
                break
            if publishes(one["state"], query.fields):
                found.append(read_head(one, now))
    return found


def _condition(query: Query) -> list[Document]:
    wanted: list[Document] = []
    if query.tenant is not None:
        wanted.append({"tenant": query.tenant})
    wanted += [{"labels": label} for label in labels_wanted(query)]
    if query.status is not None:
        kept = query.status in ENDED or query.status in ("paused", "stuck")
        wanted.append({"status": query.status if kept else "open"})
    elif query.tenant is None:
        wanted.append({"status": {"$exists": True}})
    if query.workflow is not None:
        wanted.append({"workflow": query.workflow})
    if query.parent is not None:
        wanted.append({"parent": query.parent})
    if not query.inner:
        wanted.append({"inner": False})
    if query.after is not None:
        wanted.append({"started_at": {"$gte": query.after}})
    if query.before is not None:
        wanted.append({"started_at": {"$lt": query.before}})
    if query.cursor is not None:
        at, key = query.cursor
        wanted.append({"started_at": {"$lte": at}})
        wanted.append({"$or": [{"started_at": {"$lt": at}}, {"_id": {"$lt": key}}]})
    return wanted


async def _held(there: Tables, tenant: str | None, now: int) -> list[str]:
    """What runs is held, which few are among all that are open."""
    query: Document = {"held": True, "due": {"$gt": now}, "tenant": {"$gt": ""} if tenant is None else tenant}
    return [one["_id"] for one in await collect(there.wakes.find(query, ["_id"]))]


async def extent(there: Tables, tenant: str, workflow: str) -> tuple[int, int]:
    ours = {"$match": {"tenant": tenant, "workflow": workflow}}
    longest = {"$sum": {"$max": {"$first": "$newest.versions"}}}
    summed = {"$group": {"_id": None, "executions": {"$sum": 1}, "rows": longest}}
    found = await collect(await there.heads.aggregate([ours, {"$project": {"_id": 1}}, _NEWEST, summed]))
    return (found[0]["executions"], found[0]["rows"]) if found else (0, 0)


async def begun(there: Tables, tenant: str, most: int) -> int:
    """Of what has never waited, many are looked up at once: a tenant whose quota is full has a long queue of those."""
    count = 0
    waited = {"waited": {"$ne": ["$waits", None]}}
    async with there.heads.find({"tenant": tenant, **_COUNTS}, waited) as cursor:
        while count < most and (page := await cursor.to_list(PAGE)):
            rest = [one["_id"] for one in page if not one["waited"]]
            count += len(page) - len(rest) + len(await _under_way(there, rest))
    return min(most, count)


async def fresh(there: Tables, keys: Iterable[str]) -> set[str]:
    ours = {"_id": {"$in": list(keys)}, **_COUNTS, "waits": None}
    found = {one["_id"] for one in await collect(there.heads.find(ours, ["_id"]))}
    return found - await _under_way(there, list(found))


async def _under_way(there: Tables, keys: Sequence[str]) -> set[str]:
    """Those that somebody holds, and those whose log has a second row."""
    these = {"$in": list(keys)}
    held = await collect(there.wakes.find({"_id": these, "held": True}, ["_id"]))
    longer = await collect(there.events.find({"key": these, "versions": 2}, ["key"]))
    return {one["_id"] for one in held} | {one["key"] for one in longer}
