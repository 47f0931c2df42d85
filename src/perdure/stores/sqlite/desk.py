"""A thread with a connection: SQLite blocks, and a connection belongs to the thread that made it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from perdure.errors import StoreError

T = TypeVar("T")


class Desk:
    """A thread with a connection of its own; what it is given runs one after the other.

    A caller that is cancelled leaves its work on the desk: it is done completely, or, if its turn has not come, not at
    all.
    """

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._name = name
        self._connect = connect
        self._pool: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None

    async def open(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
            await asyncio.get_running_loop().run_in_executor(self._pool, self._begin)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.get_running_loop().run_in_executor(pool, self._finish)
            pool.shutdown()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._pool is None:
            raise StoreError("the store is not open: await store.open() first, and do not use it after close()")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._work, work)

    def _begin(self) -> None:
        self._db = self._connect()

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        assert self._db is not None
        return work(self._db)

    def _finish(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
