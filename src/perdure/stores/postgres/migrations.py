"""The schema: numbered files that are only ever added to, applied under a lock, in one transaction.

Also what is asked of a database before anything is entrusted to it, and the rights of the role that workers run under.
"""

from __future__ import annotations

import asyncio
import logging
import re
from importlib.resources import files

import asyncpg

from perdure.errors import SettingsError, StoreError, StoreOutdated
from perdure.stores.postgres.address import Address
from perdure.stores.postgres.connections import Connection

#: How long a migration that waits for a lock holds others up, the pause in which they pass (seconds), and how often.
MOMENT, PAUSE, TRIES = 1.0, 0.5, 40

log = logging.getLogger("perdure.stores")

#: What a role needs that runs workers and clients. Nothing that exists in a log can be changed with it.
_GRANTS = """
grant usage on schema {schema} to {role};
grant select on {schema}.migrations to {role};
grant select, insert on {schema}.events to {role};
grant select, insert, update on {schema}.heads to {role};
grant select, insert, update, delete on {schema}.wakes, {schema}.messages to {role};
grant select, insert, delete on {schema}.topics to {role};
grant select, insert on {schema}.labels to {role};
"""


def known() -> dict[int, str]:
    """The migrations of this release by number."""
    folder = files("perdure.stores.postgres") / "migrations"
    return {int(file.name[:4]): file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".sql")}


async def number(connection: Connection, schema: str) -> int:
    """The number of the schema that is there; 0 for none."""
    if await connection.fetchval("select to_regclass($1)", f'"{schema}".migrations') is None:
        return 0
    found: int | None = await connection.fetchval(f'select max(number) from "{schema}".migrations')
    return found or 0


async def migrate(connection: Connection, address: Address) -> None:
    """Bring the schema up to date, or say why not. Many may do so at once: one does it and the others wait."""
    scripts = known()
    newest = max(scripts)
    there = await number(connection, address.schema)
    _refuse_newer(there, newest, address)
    if there == newest:
        return
    if not address.migrate:
        raise StoreOutdated(
            f"{address.shown}: the schema {address.schema} has number {there}, this release needs {newest};"
            " run `perdure migrate` with an address that does not say migrate=no"
        )
    try:
        await _apply_in_passing(connection, address, scripts)
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreOutdated(
            f"{address.shown}: the schema {address.schema} has number {there}, this release needs {newest}, and this"
            f" role may not migrate it; run `perdure migrate` as its owner ({error})"
        ) from error


async def _apply_in_passing(connection: Connection, address: Address, scripts: dict[int, str]) -> None:
    """Apply the scripts while workers go on. Whoever waits for a lock on a table holds up all who come after it.

    So a migration waits for one only for a moment, then lets the others pass and tries again; also if it had locked one
    table and waited for another, while somebody did so the other way round.
    """
    for left in reversed(range(TRIES)):
        try:
            async with connection.transaction():
                await connection.execute("set local statement_timeout = 0")
                await connection.execute("set local lock_timeout = 0")
                await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", address.channel)
                await connection.execute(f"set local lock_timeout = '{MOMENT:g}s'")
                await _apply(connection, address, scripts)
            return
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if not left:
                raise StoreError(
                    f"{address.shown}: the schema {address.schema} cannot be migrated: somebody keeps a table locked"
                    f" ({error}); nothing was changed: end long transactions (see pg_stat_activity), then try again"
                ) from error
            log.warning("%s: the migration waits for a lock on a table (%s); trying again", address.shown, error)
            await asyncio.sleep(PAUSE)


async def _apply(connection: Connection, address: Address, scripts: dict[int, str]) -> None:
    schema = address.schema
    if not await connection.fetchval("select exists (select 1 from pg_namespace where nspname = $1)", schema):
        await connection.execute(f'create schema "{schema}"')
    # The functions remember this path: they find their tables whatever the path of their caller is.
    await connection.execute(f'set local search_path = "{schema}", pg_temp')
    await connection.execute(
        "create table if not exists migrations (number int primary key, at timestamptz not null default now())"
    )
    # Another process may have migrated while this one waited for the lock.
    there = await number(connection, schema)
    _refuse_newer(there, max(scripts), address)
    for each in range(there + 1, max(scripts) + 1):
        await connection.execute(scripts[each])
        await connection.execute("insert into migrations (number) values ($1)", each)


def _refuse_newer(there: int, newest: int, address: Address) -> None:
    if there > newest:
        raise StoreOutdated(
            f"{address.shown}: the schema {address.schema} has number {there}, this release of Perdure knows {newest}"
            " at most; install the release that migrated it, or a newer one"
        )


async def inspect(connection: Connection, address: Address) -> None:
    """Refuse a database that loses what it has confirmed; warn of a role that may do everything."""
    version = connection.get_server_version()
    if version.major < 14:
        raise StoreError(f"{address.shown}: PostgreSQL {version.major} is too old; 14 is the oldest that will do")
    settings = await connection.fetchrow(
        "select current_setting('fsync') fsync, current_setting('synchronous_commit') synchronous_commit,"
        " current_setting('full_page_writes') full_page_writes, current_setting('is_superuser') superuser,"
        " (select rolbypassrls from pg_roles where rolname = current_user) bypasses"
    )
    off = [name for name in ("fsync", "synchronous_commit", "full_page_writes") if settings[name] == "off"]
    if off:
        text = f"{address.shown}: {' and '.join(off)} off: a crash of the server loses what it has confirmed"
        if not address.unsafe:
            raise SettingsError(f"{text}; switch it on, or say unsafe=yes in the address to run all the same")
        log.warning("%s", text)
    if settings["superuser"] == "on":
        log.warning(
            "%s: this role is a superuser, which no worker needs; make a role for them and run"
            " `perdure migrate --grant ROLE`",
            address.shown,
        )
    elif settings["bypasses"]:
        log.warning(
            "%s: this role has BYPASSRLS, so the database does not keep tenants apart; alter role … nobypassrls",
            address.shown,
        )


async def grant(connection: Connection, schema: str, role: str) -> None:
    """Give a role what workers and clients need, and not more."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$-]{0,62}", role):
        raise SettingsError(f"{role!r} cannot be the name of a role")
    async with connection.transaction():
        await connection.execute(_GRANTS.format(schema=f'"{schema}"', role=f'"{role}"'))
