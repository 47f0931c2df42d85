"""The collections and their indexes, and what is asked of a server before anything is entrusted to it.

    heads     one document per execution, written at start, park and end: what people look at
    events    the logs: one document per commit with its rows, never changed. The unique index on (key, versions) is
              the check of a step, the one on (key, message ids) keeps a message from entering a log twice
    wakes     one document per execution that has not ended: when to look at it next, and who holds it
    boxes     one document per execution that has not ended: the number of its newest mail. Senders write it, and so do
              parks and the end, so that one of them always meets the other; steps and renewals leave it alone
    messages  the mail in the mailboxes, due by itself
    lanes     one document per lane with open executions: the place of its newest
    layout    the number of this layout

Rules kept here: all of it may be done by many processes at once; a layout that is newer than this code is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.int64 import Int64
from pymongo import IndexModel, ReadPreference, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from perdure.errors import SettingsError, StoreError, StoreOutdated
from perdure.stores.mongodb.address import Address

#: The layout that this release writes.
NUMBER = 1
#: Milliseconds that the server waits for a majority of the replica set before it says that it cannot tell.
PATIENCE = 10_000
#: What is answered is on the disks of a majority.
DURABLE = WriteConcern("majority", j=True, wtimeout=PATIENCE)
#: What is read cannot be taken back.
SETTLED = ReadConcern("majority")
#: The same, and all of it is of one moment.
SNAPSHOT = ReadConcern("snapshot")

log = logging.getLogger("perdure.stores")

Document: TypeAlias = dict[str, Any]
Collection: TypeAlias = AsyncCollection[Document]
Database: TypeAlias = AsyncDatabase[Document]

_DUE = ("queue", "definition", "due")
_NEWEST = [("started_at", -1), ("_id", -1)]


class _PlainIntegers(TypeDecoder):
    """Integers of 64 bits come back as integers, and not as a class of the driver's, which no encoder of ours knows."""

    @property
    def bson_type(self) -> Any:
        return Int64

    def transform_bson(self, value: Any) -> int:
        return int(value)


_CODEC: CodecOptions[Document] = CodecOptions(type_registry=TypeRegistry([_PlainIntegers()]))


def _index(name: str, keys: Sequence[Any], **options: Any) -> IndexModel:
    return IndexModel([key if isinstance(key, tuple) else (key, 1) for key in keys], name=name, **options)


INDEXES: Mapping[str, Sequence[IndexModel]] = {
    "heads": [
        _index("time", ["tenant", *_NEWEST]),
        _index("find", ["tenant", "workflow", *_NEWEST]),
        _index("status", ["tenant", "status", *_NEWEST]),
        _index("everybody", ["status", *_NEWEST]),
        _index("parent", ["parent", *_NEWEST], partialFilterExpression={"parent": {"$gt": ""}}),
        _index("labels", ["labels", *_NEWEST], partialFilterExpression={"labels": {"$exists": True}}),
    ],
    "events": [
        _index("version", ["key", "versions"], unique=True),
        _index("message", ["key", "ids"], unique=True, partialFilterExpression={"ids": {"$exists": True}}),
    ],
    "wakes": [
        _index("due", _DUE, partialFilterExpression={"due": {"$gt": 0}}),
        # With all that is asked for in it, the server goes from tenant to tenant, and not through all that is due.
        _index(
            "turns",
            ("queue", "definition", "held", "tenant", "due"),
            partialFilterExpression={"held": False, "due": {"$gt": 0}},
        ),
        _index("held", ["tenant", "_id"], partialFilterExpression={"held": True}),
        _index("lane", ["lane", "born"], partialFilterExpression={"lane": {"$gt": ""}}),
        _index("topics", ["topics", "_id"], partialFilterExpression={"topics": {"$exists": True}}),
    ],
    "boxes": [],
    "messages": [
        _index("mailbox", ["key", "place"]),
        _index("due", _DUE),
        _index("turns", ("queue", "definition", "tenant", "due")),
    ],
    "lanes": [],
}


class Tables(NamedTuple):
    """The collections, as they are always written and read."""

    heads: Collection
    events: Collection
    wakes: Collection
    boxes: Collection
    messages: Collection
    lanes: Collection
    layout: Collection


def tables(database: Database) -> Tables:
    def collection(name: str) -> Collection:
        return database.get_collection(
            name, _CODEC, ReadPreference.PRIMARY, write_concern=DURABLE, read_concern=SETTLED
        )

    return Tables(*(collection(name) for name in Tables._fields))


async def number(there: Tables) -> int:
    """The number of the layout that is there; 0 for none."""
    found = await there.layout.find_one({"_id": "perdure"})
    return 0 if found is None else int(found["number"])


async def prepare(database: Database, there: Tables, address: Address) -> None:
    """Make what is missing. Many may do so at once: what another has made is there, and that is all that is wanted."""
    if _known(await number(there), address) == NUMBER:
        return
    for name in INDEXES:
        try:
            await database.create_collection(name, check_exists=False)
        except OperationFailure as error:
            if error.code != 48:  # NamespaceExists
                raise
    for name, indexes in INDEXES.items():
        if indexes:
            await database.get_collection(name, write_concern=DURABLE).create_indexes(list(indexes))
    await there.layout.update_one({"_id": "perdure"}, {"$max": {"number": NUMBER}}, upsert=True)
    _known(await number(there), address)


def _known(found: int, address: Address) -> int:
    if found > NUMBER:
        raise StoreOutdated(
            f"{address.shown}: its layout has number {found}, this release of Perdure knows {NUMBER} at most; install"
            " the release that made it, or a newer one"
        )
    return found


async def inspect(database: Database, address: Address) -> None:
    """Refuse a server without transactions, and one that loses what it has confirmed."""
    admin = database.client.admin
    hello = await admin.command("hello")
    version = (await admin.command("buildInfo"))["versionArray"]
    if version[0] < 5:
        raise StoreError(
            f"{address.shown}: MongoDB {version[0]}.{version[1]} is too old; 5.0 is the oldest that will do"
        )
    if hello.get("msg") == "isdbgrid":
        raise SettingsError(
            f"{address.shown}: this is a sharded cluster, and the store is for one replica set; name one"
        )
    if "setName" not in hello:
        raise SettingsError(
            f"{address.shown}: this server is no member of a replica set, and others have no transactions; start it"
            " with --replSet and run rs.initiate(), one member will do"
        )
    told: list[Document] = []
    for command in ({"replSetGetConfig": 1}, _STORAGE):
        try:
            told.append(await admin.command(command))
        except OperationFailure as error:
            if error.code != 13:  # Unauthorized
                raise
            told.append({})
            log.warning(
                "%s: this user may not ask for %s (the role clusterMonitor may), so nobody has checked whether the"
                " server keeps what it confirms",
                address.shown,
                next(iter(command)),
            )
    if found := weaknesses(*told):
        text = f"{address.shown}: {' and '.join(found)}: a crash of servers loses what they have confirmed"
        if not address.unsafe:
            raise SettingsError(f"{text}; change that, or say unsafe=yes in the address to run all the same")
        log.warning("%s", text)


_STORAGE = {
    "serverStatus": 1,
    **dict.fromkeys(("metrics", "wiredTiger", "locks", "network", "opcounters", "repl", "tcmalloc", "transactions"), 0),
}


def weaknesses(replica_set: Document, status: Document) -> list[str]:
    """Settings with which something that was answered can get lost.

    >>> weaknesses({"config": {"writeConcernMajorityJournalDefault": False}}, {"storageEngine": {"persistent": False}})
    ['writeConcernMajorityJournalDefault is false', 'the storage engine keeps nothing on disk']
    >>> weaknesses({"config": {}}, {"storageEngine": {"persistent": True}})
    []
    """
    found = []
    if replica_set.get("config", {}).get("writeConcernMajorityJournalDefault") is False:
        found.append("writeConcernMajorityJournalDefault is false")
    if status.get("storageEngine", {}).get("persistent") is False:
        found.append("the storage engine keeps nothing on disk")
    return found
