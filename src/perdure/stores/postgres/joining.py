"""On a connection of the caller's: what of its session is changed for a verb of ours, and given back after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg

from perdure.stores.postgres.connections import EVERYBODY, Connection

_BECOME = """
select b.tenant, set_config('perdure.tenant', $1, $2)
from (select current_setting('perdure.tenant', true) as tenant offset 0) b
"""


@asynccontextmanager
async def as_tenants(connection: Connection, tenants: set[str]) -> AsyncIterator[None]:
    """See the rows of these tenants, and then again what the caller saw."""
    tenant = next(iter(tenants)) if len(tenants) == 1 else EVERYBODY
    brief = connection.is_in_transaction()  # else it would be over with the statement that sets it
    before = await connection.fetchval(_BECOME, tenant, brief)
    try:
        yield
    finally:
        # After an error the transaction takes no more statements, and its end takes the tenant back.
        with suppress(
            asyncpg.InFailedSQLTransactionError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError
        ):
            await connection.execute(_BECOME, before or "", brief)
