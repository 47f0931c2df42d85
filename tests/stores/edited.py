"""PostgreSQL without one of its safeguards."""

from __future__ import annotations

from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres.connections import Connection

_DEFINITION = """
select pg_get_functiondef(p.oid) from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = $1 and p.proname = $2
"""
_done: set[tuple[str, str, str]] = set()


class Edited(PostgresStore):
    """A store whose functions were changed after the migration, by the first that opens it."""

    edits: tuple[tuple[str, str, str], ...] = ()

    async def _prepare(self, connection: Connection) -> None:
        await super()._prepare(connection)
        for function, old, new in self.edits:
            if (self.address.schema, function, old) in _done:
                continue
            text: str = await connection.fetchval(_DEFINITION, self.address.schema, function)
            if old not in text:
                raise LookupError(f"{function} has no {old!r} any more")
            await connection.execute(text.replace(old, new))
            _done.add((self.address.schema, function, old))
