"""A new connection: the file in WAL mode, and what was answered on the disk before the answer."""

from __future__ import annotations

import sqlite3
import time

from perdure.errors import StoreError

#: Pages of the write-ahead log between checkpoints: 16 MB. A group of 200 steps dirties about 100 pages.
CHECKPOINT_PAGES = 4000


def prepare(db: sqlite3.Connection, path: str, patience: float, synchronous: str) -> None:
    mode = _write_ahead(db, patience)
    if mode != "wal":
        raise StoreError(
            f"{path}: the journal mode is {mode!r} and cannot be set to 'wal'; put the file on a local disk"
            " (network file systems have no shared memory) and close every other program that uses it"
        )
    db.execute(f"pragma synchronous = {synchronous}")
    db.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
    db.execute("pragma journal_size_limit = 67108864")
    db.execute("pragma cache_size = -65536")


def _write_ahead(db: sqlite3.Connection, patience: float) -> str:
    """Switch to WAL; when many open a new file at once SQLite answers busy without waiting, so wait here."""
    deadline = time.monotonic() + patience
    while True:
        mode: str = db.execute("pragma journal_mode").fetchone()[0]
        if mode == "wal":
            return mode
        try:
            return str(db.execute("pragma journal_mode = wal").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
