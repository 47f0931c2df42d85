"""The embedded store: one SQLite file, shared by any number of processes on one host.

A newcomer begins at `store`, which is the port, and goes on to `transaction`, which has the verbs that write. What was
answered is on the disk: `opening` sees to that (WAL, synchronous=FULL).
"""

from __future__ import annotations

from perdure.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
