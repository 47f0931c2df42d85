"""Connections that see the rows of one tenant.

What is read to answer somebody is read here, so that the database itself keeps the tenants apart: a search that lacks
its condition, or a key that is another tenant's, finds nothing. Rules kept here: the tenant of a session is set before
anything is read, unless this very connection is known to have it already; who asks gets the connection that served the
same tenant last, if it is idle, and no round trip is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.stores.postgres.address import Address
from perdure.stores.postgres.connections import EVERYBODY, Connection, Line, Prepare

T = TypeVar("T")
_SET = "select set_config('perdure.tenant', $1, false)"


class Reader(Line):
    """One connection, which sees nothing until a tenant is set."""

    tenant = ""

    def __init__(self, address: Address, name: str, prepare: Prepare | None = None) -> None:
        super().__init__(address, name, prepare)
        self._set: tuple[Connection, str] | None = None  # which connection has which tenant

    def sees(self, tenant: str) -> bool:
        return self._set is not None and self._set[1] == tenant

    async def read(self, tenant: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        async def bound(connection: Connection) -> T:
            if self._set is None or self._set[0] is not connection or self._set[1] != tenant:
                self._set = None  # as long as nobody knows
                await connection.execute(_SET, tenant)
                self._set = connection, tenant
            return await work(connection)

        return await self.run(bound, writes=False)


class Readers:
    """A few of them."""

    def __init__(self, address: Address, name: str, count: int, prepare: Prepare | None = None) -> None:
        self._lines = [Reader(address, name, prepare) for _ in range(count)]
        self._idle = list(self._lines)
        self._free = asyncio.Semaphore(count)

    async def read(self, tenant: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        if tenant == EVERYBODY:
            tenant = ""  # no tenant is called so, and nobody becomes the engine by a key that says so
        async with self._free:
            line = next((one for one in reversed(self._idle) if one.sees(tenant)), self._idle[-1])
            self._idle.remove(line)
            try:
                return await line.read(tenant, work)
            finally:
                self._idle.append(line)

    async def close(self) -> None:
        for line in self._lines:
            await line.close()
