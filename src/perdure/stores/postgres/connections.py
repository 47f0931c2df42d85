"""Connections of our own, one call at a time each.

No pool on the hot path: a pool sends a reset with every release, one more round trip per commit. Rules kept here: a
connection that breaks is made again by the next call that needs one, with growing pauses while the server is away; a
deadlock, a serialization failure or a lock that was not given is repeated from the top, with a random pause; whatever
else goes wrong leaves as an error that says whether something was written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import asyncpg

from perdure.errors import PerdureError, SettingsError, StoreError
from perdure.stores.postgres import trouble
from perdure.stores.postgres.address import Address

T = TypeVar("T")

#: The driver has no types of its own.
Connection: TypeAlias = Any
Prepare: TypeAlias = Callable[[Connection], Awaitable[None]]

TRIES = 5
#: Beyond the server's own timeout this many seconds pass before silence counts as a lost connection.
SILENCE = 5.0


#: The tenant of a session of the engine's own: all of them.
EVERYBODY = "*"

#: For statements of ours outside of the functions, which say so themselves: each has an index to go by, in its order,
#: and a plan that was made while a table was short, and reads all of it, would be kept while it grows.
BY_INDEX: Mapping[str, str] = {"enable_seqscan": "off", "enable_bitmapscan": "off"}


async def connect(
    address: Address, name: str, tenant: str = EVERYBODY, settings: Mapping[str, str] = BY_INDEX
) -> Connection:
    """A connection with the settings that every session of ours has."""
    milliseconds = {
        "statement_timeout": address.statement_timeout,
        "lock_timeout": address.lock_timeout,
        "idle_in_transaction_session_timeout": address.idle_timeout,
    }
    async with asyncio.timeout(address.connect_timeout):
        return await asyncpg.connect(
            address.dsn,
            server_settings={
                "application_name": name,
                "jit": "off",
                "perdure.tenant": tenant,
                **{name: str(round(seconds * 1000)) for name, seconds in milliseconds.items()},
                **settings,
            },
        )


@asynccontextmanager
async def whole(connection: Connection) -> AsyncIterator[None]:
    """A transaction. If whoever runs it is cancelled its connection ends, for it may have begun and not be over: what
    came after it would be part of it, and never be committed."""
    try:
        async with connection.transaction():
            yield
    except asyncio.CancelledError:
        connection.terminate()
        raise


class Line:
    """One connection; who comes while it is in use waits."""

    tenant = EVERYBODY  # whose rows a new connection sees
    settings: Mapping[str, str] = BY_INDEX

    def __init__(self, address: Address, name: str, prepare: Prepare | None = None) -> None:
        self._address = address
        self._name = name
        self._prepare = prepare
        self._turn = asyncio.Lock()
        self._connection: Connection = None
        self._open = True

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, writes: bool) -> T:
        attempt = 1
        while True:
            async with self._turn:
                try:
                    return await self._once(work, writes)
                except asyncpg.PostgresError as error:
                    if trouble.state_of(error) not in trouble.REPEAT or attempt == TRIES:
                        raise trouble.meaning(error, self._address.shown, writes) from error
            await asyncio.sleep(random.uniform(0, 0.01 * 2**attempt))
            attempt += 1

    @property
    def patience(self) -> float:
        """Seconds of silence after which the connection counts as lost."""
        return self._address.statement_timeout + SILENCE

    async def _once(self, work: Callable[[Connection], Awaitable[T]], writes: bool) -> T:
        connection = await self.connected()
        try:
            async with asyncio.timeout(self.patience):
                if self._prepare is not None:
                    await self._prepare(connection)
                return await work(connection)
        except PerdureError:
            raise
        except Exception as error:
            if trouble.lost(error):
                self.drop()
            elif isinstance(error, asyncpg.PostgresError):
                raise  # the caller looks whether it can be repeated
            elif not isinstance(error, (UnicodeError, OverflowError)):
                raise
            raise trouble.meaning(error, self._address.shown, writes) from error

    async def connected(self) -> Connection:
        """The connection, made again if it is gone."""
        if not self._open:
            raise StoreError("the store is not open: await store.open() first, and do not use it after close()")
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._reconnect()
        return self._connection

    async def _reconnect(self) -> Connection:
        """Try for a while: a server that restarts is back soon."""
        pause, end = 0.05, asyncio.get_running_loop().time() + self._address.connect_timeout
        while True:
            try:
                return await connect(self._address, self._name, self.tenant, self.settings)
            except (*trouble.FAILURES, ValueError) as error:
                wrapped = trouble.unreachable(error, self._address.shown)
                if isinstance(wrapped, SettingsError):
                    raise wrapped from None
                hopeless = type(wrapped) is StoreError
                if hopeless or asyncio.get_running_loop().time() + pause > end:
                    raise wrapped from error
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, 1.0)

    def drop(self) -> None:
        """Forget the connection at once: nobody knows what state it is in."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        self._open = False
        async with self._turn:
            connection, self._connection = self._connection, None
            if connection is not None and not connection.is_closed():
                with suppress(*trouble.FAILURES):
                    await connection.close(timeout=5)


class PlainLine(Line):
    """For statements of others, and for migrations: what is best for them is left to the planner."""

    settings: Mapping[str, str] = {}


class Lines:
    """A few connections; the one used last is used first, so that quiet times need few."""

    def __init__(
        self, address: Address, name: str, count: int, prepare: Prepare | None = None, line: type[Line] = Line
    ) -> None:
        self._lines = [line(address, name, prepare) for _ in range(count)]
        self._idle = list(self._lines)
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Line]:
        async with self._free:
            line = self._idle.pop()
            try:
                yield line
            finally:
                self._idle.append(line)

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, writes: bool) -> T:
        async with self.borrow() as line:
            return await line.run(work, writes=writes)

    async def close(self) -> None:
        for line in self._lines:
            await line.close()


class Share:
    """Lines of which so many are used at once, at most: the others are for somebody else."""

    def __init__(self, lines: Lines, count: int) -> None:
        self._lines = lines
        self._free = asyncio.Semaphore(count)

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, writes: bool) -> T:
        async with self._free:
            return await self._lines.run(work, writes=writes)
