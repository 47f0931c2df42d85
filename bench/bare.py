"""The floor: writing the same rows in the same transactions as a measured run did, and nothing else.

The recording store notes what the engine wrote, batch by batch; `write` then repeats those batches with prepared rows
straight through sqlite3, with the same durability. No replay, no decisions, no answers: what is left is what the
database itself costs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.limit import open_database
from perdure.core.records import Commit, End, HoldAnswer, Outcome, Park, Start, Started
from perdure.stores.sqlite import SqliteStore

_EVENT = "insert into events (key, version, fence, type, message_id, data, at) values (?, ?, ?, ?, ?, ?, ?)"
_HEAD = (
    "insert into heads (key, tenant, workflow, definition, queue, status, sha, base, started_at, changed_at)"
    " values (?, ?, ?, ?, ?, 'open', ?, 1, ?, ?)"
)
_WAKE = "insert into wakes (key, queue, definition, due, token) values (?, ?, ?, ?, ?)"
_HOLD = "update wakes set holder = 'bench', token = token + 1, due = ? where key = ?"
_PARK = "update wakes set holder = null, due = ? where key = ?"
_DONE = "update heads set status = ?, result = ?, changed_at = ? where key = ?"
_GONE = "delete from wakes where key = ?"


class RecordingStore(SqliteStore):
    """Notes every write as the statements and rows that it comes down to."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.batches: list[list[tuple[str, list[tuple[Any, ...]]]]] = []

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        at = starts[0].rows[0].at
        heads = [(s.key, "default", s.workflow, s.definition, s.queue, s.sha, at, at) for s in starts]
        rows = [(s.key, r.version, r.fence, r.type, r.message_id, r.data, r.at) for s in starts for r in s.rows]
        wakes = [(s.key, s.queue, s.definition, at + grace, at) for s in starts]
        self.batches.append([(_HEAD, heads), (_EVENT, rows), (_WAKE, wakes)])
        return await super().start(starts, grace)

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        self.batches.append([(_HOLD, [(lease, key) for key in keys])])
        return await super().hold(keys, me, lease, known)

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        rows = [(c.key, r.version, r.fence, r.type, r.message_id, r.data, r.at) for c in group for r in c.rows]
        batch: list[tuple[str, list[tuple[Any, ...]]]] = [(_EVENT, rows)]
        ends = [(c.key, c.settle) for c in group if isinstance(c.settle, End)]
        parks = [(c.key, c.settle) for c in group if isinstance(c.settle, Park)]
        if ends:
            batch.append((_DONE, [(end.status, end.result, 0, key) for key, end in ends]))
            batch.append((_GONE, [(key,) for key, _ in ends]))
        if parks:
            batch.append((_PARK, [(park.due, key) for key, park in parks]))
        self.batches.append(batch)
        return await super().commit(group, grace)


def write(batches: list[list[tuple[str, list[tuple[Any, ...]]]]], path: Path) -> float:
    """Seconds to write the batches into a fresh file."""
    db = open_database(path)
    began = time.perf_counter()
    for batch in batches:
        db.execute("begin immediate")
        for statement, rows in batch:
            db.executemany(statement, rows)
        db.execute("commit")
    took = time.perf_counter() - began
    db.close()
    return took
