"""Runs an order of the example in this process, which dies by SIGKILL at the write that it is told.

usage: order_process.py DATABASE SINK packed|forgotten [before|after|never] [N]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

from perdure import ExecutionFailed, Perdure, action
from perdure.core.records import Commit, Mail, Outcome, Sent, Start, Started
from perdure.stores.sqlite import SqliteStore
from perdure.streams.local import LocalStream

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples import order

SINK = sys.argv[2] if len(sys.argv) > 2 else ""


async def outside(what: str, key: str) -> None:
    """What the world sees: an insert with the action's key, as a payment provider would keep it."""
    with sqlite3.connect(SINK, timeout=30) as db:
        db.execute("create table if not exists effects (key text, fence integer, what text)")
        db.execute("insert into effects values (?, ?, ?)", (key, action.fence, what))


class DyingStore(SqliteStore):
    """Kills its own process at the n-th write, before or after it takes effect."""

    def __init__(self, path: str, when: str, n: int) -> None:
        super().__init__(path)
        self.when, self.left = when, n

    def _die(self, when: str) -> None:
        if when == "before":
            self.left -= 1
        if self.left == 0 and self.when == when:
            os.kill(os.getpid(), signal.SIGKILL)

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        self._die("before")
        answer = await super().start(starts, grace)
        self._die("after")
        return answer

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        self._die("before")
        answer = await super().send(mail, grace)
        self._die("after")
        return answer

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        self._die("before")
        answer = await super().commit(group, grace)
        self._die("after")
        return answer


async def main(database: str, course: str, when: str, n: int) -> None:
    app = Perdure(DyingStore(database, when, n), stream=LocalStream(database), lease=0.6, grace=0.1, linger=0)
    async with app, app.working():
        if course == "packed":
            run = await app.start(order.fulfil, order.Order("1", "teapot", 2500), id="order")
            await run.send("packed", order.Packed("parcel-1"), id="warehouse-1")
        else:
            run = await app.start(order.fulfil, order.Order("1", "teapot", 2500, patience=0.3), id="order")
        try:
            print(await run.result(timeout=30))
        except ExecutionFailed as error:
            print(f"failed with {error.type}")


if __name__ == "__main__":
    order.outside = outside
    database, _, course, *rest = sys.argv[1:]
    asyncio.run(main(database, course, rest[0] if rest else "never", int(rest[1]) if rest[1:] else 0))
