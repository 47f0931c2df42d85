"""Hints between processes that share a MongoDB database: a capped collection that everybody follows.

The collection has a fixed size, so nothing in it has to be removed, and following it costs the server nothing while it
is quiet. Work for a queue is only a nudge, the same for everybody who serves it, and what is published while one insert
is under way goes into the next. Rules kept here: what this process serves itself never leaves it; publishing never
waits and never raises; after a lost connection, or when what was read last has been overwritten, everybody here is told
to look, because nobody knows what was missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
from bson import ObjectId
from msgspec import Struct
from pymongo import AsyncMongoClient, CursorType, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure, PyMongoError

from perdure.core.behalf import for_everybody
from perdure.core.records import Hint
from perdure.errors import UsageError
from perdure.streams.inbox import Inbox

#: Bytes of the collection: hours of hints, or seconds of a storm of them.
SIZE = 16 * 1024 * 1024
#: So many queues and hints go into one document: a small part of the collection, so that nobody is overtaken by it.
TOGETHER = 200
#: A hint that is longer is dropped: its execution is due in the store.
LONGEST = 20_000
#: What waits to be sent while the server is away; beyond it the oldest are dropped.
WAITING = 10_000
#: Milliseconds for which the server keeps a question for more open.
QUIET = 1_000
#: Seconds without an answer after which the connection counts as lost.
SILENCE = 10.0

log = logging.getLogger("perdure.streams")

Document: TypeAlias = dict[str, Any]


class _Note(Struct, frozen=True, array_like=True):
    """What a document says: queues to look at, then hints for workers, ends of executions and other news."""

    queues: list[str]
    hints: list[Hint]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Note).decode


class MongoStream:
    """A Stream over the collection `hints` of a database."""

    def __init__(self, dsn: str, database: str) -> None:
        self._dsn = dsn
        self._database = database
        self._inbox: Inbox | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._client: AsyncMongoClient[Document] | None = None
        self._me = ""  # who has written a document
        self._queues: dict[str, None] = {}  # to be nudged elsewhere
        self._hints: dict[Hint, None] = {}  # to be sent
        self._nudged: set[str] = set()  # queues whose nudge waits in the inbox
        self._bell = asyncio.Event()
        self._troubles: dict[str, str] = {}

    async def open(self, me: str, queues: Sequence[str]) -> None:
        self._inbox = Inbox(me, queues)
        self._me = uuid.uuid4().hex
        self._bell, self._troubles = asyncio.Event(), {}
        self._client = AsyncMongoClient(self._dsn, appname="perdure hints", serverSelectionTimeoutMS=SILENCE * 500)
        quick = WriteConcern(w=1)  # what gets lost here is made up for
        hints = self._client.get_database(self._database).get_collection("hints", write_concern=quick)
        following = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._follow(hints, self._inbox, following), name="follow", context=for_everybody()),
            asyncio.create_task(self._send(hints), name="send", context=for_everybody()),
        ]
        await following.wait()

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        while tasks:
            for task in tasks:
                task.cancel()
            # The driver makes connections with asyncio.wait_for, which before Python 3.12 could lose a cancellation.
            _, left = await asyncio.wait(tasks, timeout=0.5)
            tasks = list(left)
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.close()

    @property
    def carries(self) -> bool:
        return False

    @property
    def trouble(self) -> str:
        return next(iter(self._troubles.values()), "")

    async def listen(self, key: str) -> None:
        pass  # every end is told to everybody

    async def publish(self, hints: Sequence[Hint]) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        for hint in hints:
            here = inbox.wants(hint) and not hint.away
            if here:
                inbox.put(hint)
            if hint.ended or hint.news or (hint.to is not None and not here):
                self._hints[hint] = None
            elif hint.to is None and not here:
                self._queues[hint.queue] = None
        while len(self._hints) > WAITING:
            del self._hints[next(iter(self._hints))]
        if self._hints or self._queues:
            self._bell.set()

    async def receive(self, limit: int) -> Sequence[Hint]:
        if self._inbox is None:
            raise UsageError("the stream is not open: nothing can be received")
        hints = await self._inbox.take(limit)
        for hint in hints:
            if not hint.key and not hint.news:
                self._nudged.discard(hint.queue)
        return hints

    async def ack(self, hints: Sequence[Hint]) -> None:
        pass

    # Sending

    async def _send(self, hints: AsyncCollection[Document]) -> None:
        """All that waits goes into one insert, again and again. What cannot be sent is dropped: it is due."""
        pause = 0.1
        while True:
            await self._bell.wait()
            self._bell.clear()
            queues, self._queues = list(self._queues), {}
            waiting, self._hints = list(self._hints), {}
            try:
                notes = [{"by": self._me, "note": note} for note in notes_of(queues, waiting)]
                if notes:
                    async with asyncio.timeout(SILENCE):
                        await hints.insert_many(notes)
                self._went_well("send")
                pause = 0.1
                continue
            except (PyMongoError, OSError) as error:
                self._failed("send", error)
            except Exception as error:
                log.exception("sending hints broke; going on")
                self._failed("send", error)
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, 5.0)

    # Following

    async def _follow(self, hints: AsyncCollection[Document], inbox: Inbox, following: asyncio.Event) -> None:
        """Follow, for as long as the stream is open, with one cursor after the other."""
        pause = 0.1
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    began = await _begin(hints, self._me)
                if following.is_set():
                    self._look(inbox.queues)
                self._went_well("follow")
                pause = 0.1
                await self._read(hints, inbox, began, following)
                raise ConnectionError("the cursor has ended")  # what it had read last was overwritten
            except (PyMongoError, OSError) as error:
                self._failed("follow", error)
            except Exception as error:
                log.exception("following hints broke; going on")
                self._failed("follow", error)
            following.set()
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, 5.0)

    async def _read(
        self, hints: AsyncCollection[Document], inbox: Inbox, began: ObjectId, following: asyncio.Event
    ) -> None:
        """From the document with which this one began to follow; what lies before it is of no concern."""
        cursor = hints.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(QUIET)
        seen = False
        try:
            while cursor.alive:
                async with asyncio.timeout(SILENCE):
                    found = await anext(cursor, None)
                if found is None and not seen:
                    return
                if found is not None and seen and found["by"] != self._me:
                    self._arrived(inbox, found.get("note", b""))
                if found is not None and found["_id"] == began:
                    seen = True
                    following.set()
        finally:
            with suppress(PyMongoError, OSError):
                async with asyncio.timeout(SILENCE):
                    await cursor.close()

    def _arrived(self, inbox: Inbox, text: bytes) -> None:
        if not text:
            return
        try:
            note = _decode(text)
        except msgspec.MsgspecError as error:
            log.warning("a hint in the collection cannot be read: %s", error)
            return
        self._look(inbox.queues.intersection(note.queues))
        for hint in note.hints:
            if inbox.wants(hint):
                inbox.put(hint)

    def _look(self, queues: Iterable[str]) -> None:
        """Tell our own worker to look at these queues, unless it is told already."""
        assert self._inbox is not None
        for queue in queues:
            if queue not in self._nudged:
                self._nudged.add(queue)
                self._inbox.put(Hint("", queue))

    # Trouble

    def _failed(self, what: str, error: BaseException) -> None:
        told = f"{type(error).__name__}: {str(error).partition(', full error')[0] or 'no answer'}"
        if not self._troubles:
            log.warning("hints do not get through, which makes things slower: %s", told)
        self._troubles[what] = told

    def _went_well(self, what: str) -> None:
        if self._troubles.pop(what, None) is not None and not self._troubles:
            log.info("hints get through again")


async def _begin(hints: AsyncCollection[Document], me: str) -> ObjectId:
    """Make the collection if it is not there, and put a mark into it: whoever follows begins there."""
    try:
        await hints.database.create_collection(hints.name, check_exists=False, capped=True, size=SIZE)
    except OperationFailure as error:
        if error.code != 48:  # NamespaceExists
            raise
    mark = ObjectId()
    await hints.insert_one({"_id": mark, "by": me})
    return mark


def notes_of(queues: Sequence[str], hints: Sequence[Hint]) -> Iterable[bytes]:
    """Notes for all of it, none of them large. A hint that is too long by itself is dropped."""
    short = [hint for hint in hints if len(hint.key) + len(hint.result) + len(hint.news) < LONGEST]
    for begin in range(0, max(len(queues), len(short)), TOGETHER):
        yield _encode(_Note(list(queues[begin : begin + TOGETHER]), short[begin : begin + TOGETHER]))
