"""The way to the server: a client, transactions that are repeated or resolved, and the time.

Rules kept here: a transaction that met others is repeated after a short pause of random length; a commit whose answer
got lost is asked for again until the server says what became of it, and only if it does not is the outcome unknown;
every error leaves as one of ours. Holders write in one session, whose id is in what they hold: when a worker dies in
the middle of a transaction, the server keeps its documents closed to others for a minute, unless somebody ends that
session.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, TypeVar

from bson.binary import Binary
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from perdure.errors import StoreError
from perdure.stores.mongodb import trouble
from perdure.stores.mongodb.address import Address
from perdure.stores.mongodb.layout import DURABLE, SNAPSHOT, Database, Document, Tables, tables
from perdure.stores.ticker import Ticker

T = TypeVar("T")

#: How often a transaction of holders is tried that meets others, and for how many seconds one of clients.
TRIES, PATIENCE = 8, 10.0
#: The longest pause between two of them, in seconds.
PAUSE = 0.1
#: How often the server is asked what became of a commit.
QUESTIONS = 4
#: For so many seconds the answer of the server's clock is good; what passes meanwhile is measured here.
CLOCK = 5.0
#: What the driver is told unless the address says otherwise, in milliseconds.
_OPTIONS = {"serverSelectionTimeoutMS": 10_000, "connectTimeoutMS": 10_000}
#: Seconds after which a call that has no answer counts as lost.
SILENCE = 30.0
#: Seconds for taking leave of a server that may not be there any more.
LEAVE = 2.0

log = logging.getLogger("perdure.stores")


class InTheWay(Exception):
    """Others were in the way; nothing was written."""


class Contended(InTheWay):
    """They wrote the same documents, every time."""


class Occupied(InTheWay):
    """They have created what a unique index allows once; whoever looks again sees it."""


class Doubt:
    """Whether a transaction may have been committed: from the moment at which that is sent until it is answered."""

    def __init__(self) -> None:
        self.there = False

    def __bool__(self) -> bool:
        return self.there


class Link:
    """A client and what is ours on it. It belongs to the event loop that opens it."""

    def __init__(self, address: Address, clock: Callable[[], int] | None) -> None:
        self._address = address
        self._ticker = Ticker(clock) if clock is not None else None
        self._seen = Ticker(lambda: 0)
        self._told = 0
        self._asked = float("-inf")
        self._client: AsyncMongoClient[Document] | None = None
        self._tables: Tables | None = None
        self._session: AsyncClientSession | None = None
        self._idle: list[AsyncClientSession] = []
        self._working = asyncio.Lock()

    async def open(self) -> None:
        given = self._address.dsn.partition("?")[2].lower()
        patience: dict[str, Any] = {name: value for name, value in _OPTIONS.items() if f"{name.lower()}=" not in given}
        try:
            self._client = AsyncMongoClient(self._address.dsn, appname="perdure", tz_aware=True, **patience)
        except trouble.FAILURES as error:
            raise trouble.meaning(error, self._address.shown, writes=False) from error
        self._tables = tables(self.database)
        self._session = self._client.start_session(causal_consistency=False)
        self._working = asyncio.Lock()
        self._asked = float("-inf")

    async def close(self) -> None:
        sessions = [*([self._session] if self._session is not None else []), *self._idle]
        self._session, self._idle, self._tables = None, [], None
        client, self._client = self._client, None
        if client is not None:
            with suppress(PyMongoError, TimeoutError):
                async with asyncio.timeout(LEAVE):
                    for session in sessions:
                        await session.end_session()
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE):
                    await client.close()

    @property
    def database(self) -> Database:
        return self.client.get_database(self._address.database)

    @property
    def client(self) -> AsyncMongoClient[Document]:
        if self._client is None:
            raise StoreError(f"{self._address.shown}: the store is not open: await store.open() first")
        return self._client

    @property
    def tables(self) -> Tables:
        if self._tables is None:
            raise StoreError(f"{self._address.shown}: the store is not open: await store.open() first")
        return self._tables

    @property
    def session_id(self) -> Binary:
        """The session in which holders write."""
        assert self._session is not None
        found: Binary = self._session.session_id["id"]
        return found

    @asynccontextmanager
    async def asking(self, *, writes: bool | Doubt = False) -> AsyncIterator[None]:
        """Whatever goes wrong inside leaves as an error of ours, and silence is a lost connection.

        The driver makes connections with asyncio.wait_for, which before Python 3.12 could lose a cancellation: one that
        came and was not noticed is raised at the end.
        """
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(SILENCE):
                yield
        except trouble.FAILURES as error:
            raise trouble.meaning(error, self._address.shown, bool(writes)) from error
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError

    # The time

    async def now(self, *, exactly: bool = False) -> int:
        """The server's time, never ahead of it: it is counted from the moment at which the answer was here."""
        if self._ticker is not None:
            return self._ticker.now()
        if exactly or time.monotonic() - self._asked > CLOCK:
            hello = await self.client.admin.command("hello")
            self._told, self._asked = round(hello["localTime"].timestamp() * 1000) * 1000, time.monotonic()
        return self._seen.seen(self._told + int((time.monotonic() - self._asked) * 1e6))

    # Transactions

    async def transact(self, work: Callable[[AsyncClientSession], Awaitable[T]]) -> T:
        """A transaction of a client's, side by side with others.

        Sessions are used again, the last one first: a transaction that was lost on the way ends when its session begins
        another, and whoever repeats a call is not in his own way.
        """
        doubt = Doubt()
        async with self.asking(writes=doubt):
            session = self._idle.pop() if self._idle else self.client.start_session(causal_consistency=False)
            try:
                return await self._repeated(session, work, doubt, PATIENCE)
            finally:
                self._idle.append(session)

    async def transact_holding(self, work: Callable[[AsyncClientSession], Awaitable[T]]) -> T:
        """A transaction in the session of holders, one after the other."""
        async with self._working:
            if self._session is None:
                raise StoreError(f"{self._address.shown}: the store is not open")
            doubt = Doubt()
            async with self.asking(writes=doubt):
                return await self._repeated(self._session, work, doubt)

    async def _repeated(
        self,
        session: AsyncClientSession,
        work: Callable[[AsyncClientSession], Awaitable[T]],
        doubt: Doubt,
        patience: float = 0,
    ) -> T:
        cause: BaseException | None = None
        end = time.monotonic() + patience
        for number in count():
            if number >= TRIES and time.monotonic() > end:
                break
            if number:
                await asyncio.sleep(random.uniform(0, min(PAUSE, 0.002 * 2 ** min(number, 10))))
            await session.start_transaction(
                read_concern=SNAPSHOT, write_concern=DURABLE, read_preference=ReadPreference.PRIMARY
            )
            try:
                answer = await work(session)
                await self._settle(session, doubt)
            except PyMongoError as error:
                await _abort(session)
                if trouble.occupied(error):
                    raise Occupied from error
                if not trouble.transient(error) or trouble.unreachable(error):
                    raise
                cause = error
            except BaseException:
                await _abort(session)
                raise
            else:
                return answer
        if cause is not None and trouble.lost(cause):
            raise cause
        raise Contended from cause

    async def _settle(self, session: AsyncClientSession, doubt: Doubt) -> None:
        """Commit, and ask again as long as nobody knows whether it was done."""
        doubt.there = True
        for left in reversed(range(QUESTIONS)):
            try:
                await session.commit_transaction()
            except PyMongoError as error:
                doubt.there = trouble.uncertain(error)
                if not left or not doubt or trouble.unreachable(error):
                    raise
                await asyncio.sleep(random.uniform(0, 0.1))
            else:
                return

    async def end_sessions(self, ids: Iterable[Binary]) -> None:
        """End what dead holders have left open. One who lives after all is refused, and begins anew."""
        if sessions := [{"id": id} for id in dict.fromkeys(ids) if id != self.session_id]:
            try:
                await self.client.admin.command({"killSessions": sessions})
            except PyMongoError as error:
                log.warning(
                    "%s: the sessions of workers that are gone cannot be ended, so what they were writing is closed to"
                    " others until the server gives it up (%s)",
                    self._address.shown,
                    error,
                )


async def _abort(session: AsyncClientSession) -> None:
    if session.in_transaction:
        with suppress(PyMongoError, TimeoutError):
            async with asyncio.timeout(LEAVE):
                await session.abort_transaction()


async def collect(cursor: Any) -> list[Document]:
    found: list[Document] = await cursor.to_list(None)
    return found
