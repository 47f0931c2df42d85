"""The schema: numbered files that are only ever added to, applied under the write lock, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib.resources import files

from perdure.errors import StoreOutdated
from perdure.stores.sqlite.trouble import roll_back


def migrate(db: sqlite3.Connection, path: str) -> None:
    migrations = _migrations()
    newest = max(migrations)
    if _schema(db, path, newest) == newest:
        return
    db.execute("begin immediate")
    try:
        # Another process may have migrated while this one waited for the lock.
        for number in range(_schema(db, path, newest) + 1, newest + 1):
            for statement in _statements(migrations[number]):
                db.execute(statement)
        db.execute(f"pragma user_version = {newest}")
        db.execute("commit")
    except BaseException:
        roll_back(db)
        raise


def _schema(db: sqlite3.Connection, path: str, newest: int) -> int:
    there: int = db.execute("pragma user_version").fetchone()[0]
    if there > newest:
        raise StoreOutdated(
            f"{path}: its schema has number {there}, this release of Perdure knows {newest} at most;"
            " install the release that wrote it, or a newer one"
        )
    return there


def _migrations() -> dict[int, str]:
    folder = files("perdure.stores.sqlite") / "migrations"
    return {int(file.name[:4]): file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".sql")}


def _statements(script: str) -> Iterator[str]:
    """One by one: executescript would commit the transaction that all of them share."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
