"""What an error of SQLite means to the caller, and how a transaction is left after one."""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from perdure.errors import StoreError, StoreFull, StoreReadOnly, StoreRefused, StoreUnavailable


def roll_back(db: sqlite3.Connection) -> None:
    # Some errors (a full disk among them) have rolled back already.
    if db.in_transaction:
        with suppress(sqlite3.Error):
            db.execute("rollback")


def name_of(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or type(error).__name__


_WRITING = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMOPEN,
    }
)


def meaning(error: sqlite3.Error) -> tuple[type[StoreError], str]:
    """What an error of SQLite is to the caller, and what to do about it."""
    code: int = getattr(error, "sqlite_errorcode", None) or 0
    if code in _WRITING:
        return StoreFull, "the disk did not take the write; nothing was written; make room, then try again"
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable, (
                "another process kept the write lock for longer than busy_timeout; nothing was written; try again"
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull, "no space is left; nothing was written; make room, then try again"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreReadOnly, (
                "the file cannot be written; give this process write access to the file and to its directory"
            )
        case sqlite3.SQLITE_TOOBIG | sqlite3.SQLITE_MISMATCH:
            return StoreRefused, "SQLite does not take this; nothing was written"
        case sqlite3.SQLITE_NOTADB:
            return StoreError, "this file is not a SQLite database; name another file, or move this one away"
        case sqlite3.SQLITE_CORRUPT:
            return StoreError, "the database is damaged; stop all workers and restore it from a backup"
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError, "the file cannot be opened; check that its directory exists and may be written"
        case _:
            return StoreError, "SQLite refused; nothing was written"
