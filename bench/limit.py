"""The bare program: the same executions written by hand, with nothing but what they must do.

Each execution is a coroutine; every result is durable before its next step begins; commits of all executions share
transactions, exactly as the engine's do. There is no replay, no hold, no retry, no recovery, no registry: a program of
this kind cannot continue anything after a crash. It marks what Python, asyncio and SQLite leave.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.events import ActionSettled, Completed, Started, row
from perdure.runtime.callers.batch import Batch

_HEAD = (
    "insert into heads (key, tenant, workflow, definition, queue, status, sha, base, started_at, changed_at)"
    " values (?, 'default', 'bare', 'bare@1', 'default', 'open', '', 1, 0, 0)"
)
_EVENT = "insert into events (key, version, fence, type, message_id, data, at) values (?, ?, 0, ?, null, ?, ?)"
_WAKE = "insert into wakes (key, queue, definition, due, token) values (?, 'default', 'bare@1', 0, 0)"
_DONE = "update heads set status = 'completed', result = ? where key = ?"
_GONE = "delete from wakes where key = ?"

Write = tuple[str, tuple[Any, ...]]


def open_database(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    for file in sorted(resources.files("perdure.stores.sqlite").joinpath("migrations").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".sql"):
            db.executescript(file.read_text())
    return db


class Bare:
    """Group commit and nothing else."""

    def __init__(self, path: Path) -> None:
        self._db = open_database(path)
        self._thread = ThreadPoolExecutor(1)
        self._batch: Batch[list[Write], None] = Batch(self._write, 400)

    async def put(self, writes: list[Write]) -> None:
        await self._batch.put(writes)

    async def _write(self, group: Any) -> list[None]:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, group)
        return [None] * len(group)

    def _transact(self, group: list[list[Write]]) -> None:
        statements: dict[str, list[tuple[Any, ...]]] = {}
        for writes in group:
            for statement, values in writes:
                statements.setdefault(statement, []).append(values)
        self._db.execute("begin immediate")
        for statement, rows in statements.items():
            self._db.executemany(statement, rows)
        self._db.execute("commit")

    def close(self) -> None:
        self._thread.shutdown()
        self._db.close()


async def increment(n: int) -> int:
    return n + 1


async def sequence(bare: Bare, key: str, steps: int) -> None:
    encode = msgspec.json.encode
    first = row(Started("bare", 1, msgspec.Raw(b"[1]")), 1, time.time_ns() // 1000)
    await bare.put([(_HEAD, (key,)), (_EVENT, (key, 1, first.type, first.data, first.at)), (_WAKE, (key,))])
    n = 1
    for step in range(1, steps + 1):
        args = msgspec.Raw(encode([n]))
        n = await increment(n)
        event = row(ActionSettled(step, "increment", args, msgspec.Raw(encode(n))), step + 1, time.time_ns() // 1000)
        writes: list[Write] = [(_EVENT, (key, step + 1, event.type, event.data, event.at))]
        if step == steps:
            writes += _end(key, step + 2, n)
        await bare.put(writes)


async def parallel(bare: Bare, key: str, width: int) -> None:
    encode = msgspec.json.encode
    first = row(Started("bare", 1, msgspec.Raw(b"[1]")), 1, time.time_ns() // 1000)
    await bare.put([(_HEAD, (key,)), (_EVENT, (key, 1, first.type, first.data, first.at)), (_WAKE, (key,))])
    results = await asyncio.gather(*(asyncio.create_task(increment(1)) for _ in range(width)))
    writes: list[Write] = []
    for step, n in enumerate(results, 1):
        args = msgspec.Raw(encode([1]))
        event = row(ActionSettled(step, "increment", args, msgspec.Raw(encode(n))), step + 1, time.time_ns() // 1000)
        writes.append((_EVENT, (key, step + 1, event.type, event.data, event.at)))
    await bare.put(writes + _end(key, width + 2, sum(results)))


def _end(key: str, version: int, n: int) -> list[Write]:
    result = msgspec.json.encode(n)
    event = row(Completed(msgspec.Raw(result)), version, time.time_ns() // 1000)
    return [(_EVENT, (key, version, event.type, event.data, event.at)), (_DONE, (result, key)), (_GONE, (key,))]


PROGRAMS: dict[str, Callable[[Bare, str], Coroutine[Any, Any, None]]] = {
    "W1": lambda bare, key: sequence(bare, key, 1),
    "W5": lambda bare, key: sequence(bare, key, 5),
    "F10": lambda bare, key: parallel(bare, key, 10),
}


def rate(name: str, count: int, at_once: int, path: Path) -> float:
    """Executions a second of the bare program."""

    async def main() -> float:
        bare, slots = Bare(path), asyncio.Semaphore(at_once)
        stamp = f"{time.time_ns() // 1_000_000:011x}"

        async def one(n: int) -> None:
            async with slots:
                await PROGRAMS[name](bare, f"default/{stamp}{n:06x}")

        began = time.perf_counter()
        await asyncio.gather(*(one(n) for n in range(count)))
        took = time.perf_counter() - began
        bare.close()
        return count / took

    return asyncio.run(main())
