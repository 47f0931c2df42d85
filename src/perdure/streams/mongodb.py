"""Hints between processes that share a MongoDB database: a capped collection that everybody follows.

The collection has a fixed size, so nothing in it has to be removed, and following it costs the server nothing while it
is quiet. What is published while one insert is under way goes into the next. Rule kept here: after a lost connection,
or when what was read last has been overwritten, everybody here is told to look, because nobody knows what was missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from bson import ObjectId
from pymongo import AsyncMongoClient, CursorType, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure, PyMongoError

from perdure.core.behalf import for_everybody
from perdure.streams.board import Board, BoardStream, Note, encode

#: Bytes of the collection: hours of hints, or seconds of a storm of them.
SIZE = 16 * 1024 * 1024
#: So many queues and hints go into one document: a small part of the collection, so that nobody is overtaken by it.
TOGETHER = 200
#: A hint that is longer is dropped: its execution is due in the store.
LONGEST = 20_000
#: Milliseconds for which the server keeps a question for more open.
QUIET = 1_000
#: Seconds without an answer after which the connection counts as lost.
SILENCE = 10.0

log = logging.getLogger("perdure.streams")

Document: TypeAlias = dict[str, Any]


class MongoStream(BoardStream):
    """A Stream over the collection `hints` of a database."""

    def __init__(self, dsn: str, database: str) -> None:
        self._dsn = dsn
        self._database = database
        self._tasks: list[asyncio.Task[None]] = []
        self._client: AsyncMongoClient[Document] | None = None
        self._me = ""  # who has written a document
        self._troubles: dict[str, str] = {}

    async def open(self, me: str, queues: Sequence[str]) -> None:
        self._board = Board(me, queues)
        self._me = uuid.uuid4().hex
        self._troubles = {}
        self._client = AsyncMongoClient(self._dsn, appname="perdure hints", serverSelectionTimeoutMS=SILENCE * 500)
        quick = WriteConcern(w=1)  # what gets lost here is made up for
        hints = self._client.get_database(self._database).get_collection("hints", write_concern=quick)
        following = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._follow(hints, self._board, following), name="follow", context=for_everybody()),
            asyncio.create_task(self._send(hints, self._board), name="send", context=for_everybody()),
        ]
        await following.wait()

    async def close(self) -> None:
        if self._board is not None and not self.trouble:
            await self._board.farewell()
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
        board, self._board = self._board, None
        if board is not None:
            board.close()

    @property
    def trouble(self) -> str:
        return next(iter(self._troubles.values()), "")

    # Sending

    async def _send(self, hints: AsyncCollection[Document], board: Board) -> None:
        """All that waits goes into one insert, again and again. What cannot be sent is dropped: it is due."""
        pause = 0.1
        while True:
            await board.bell.wait()
            try:
                notes = [{"by": self._me, "note": note} for note in notes_of(board.take())]
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
            finally:
                board.sent()
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, 5.0)

    # Following

    async def _follow(self, hints: AsyncCollection[Document], board: Board, following: asyncio.Event) -> None:
        """Follow, for as long as the stream is open, with one cursor after the other."""
        pause = 0.1
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    began = await _begin(hints, self._me)
                if following.is_set():
                    board.look()
                self._went_well("follow")
                pause = 0.1
                await self._read(hints, board, began, following)
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
        self, hints: AsyncCollection[Document], board: Board, began: ObjectId, following: asyncio.Event
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
                if found is not None and seen and found["by"] != self._me and (text := found.get("note")):
                    board.arrived(text)
                if found is not None and found["_id"] == began:
                    seen = True
                    following.set()
        finally:
            with suppress(PyMongoError, OSError):
                async with asyncio.timeout(SILENCE):
                    await cursor.close()

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


def notes_of(note: Note) -> Iterable[bytes]:
    """Notes for all of it, none of them large. A hint that is too long by itself is dropped."""
    queues = note.queues
    short = [hint for hint in note.hints if len(hint.key) + len(hint.result) + len(hint.news) < LONGEST]
    for begin in range(0, max(len(queues), len(short)), TOGETHER):
        yield encode(Note(queues[begin : begin + TOGETHER], short[begin : begin + TOGETHER]))
