"""A worker process for the tests that kill it: runs one order, and dies by SIGKILL at the commit that it is told.

usage: order_process.py DATABASE SINK [before|after|never] [N]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence

from perdure import Perdure, action, event, workflow
from perdure.core.records import Commit, Outcome, Start, Started
from perdure.stores.sqlite import SqliteStore
from perdure.streams.local import LocalStream

SINK = sys.argv[2] if len(sys.argv) > 2 else ""


def effect(name: str) -> None:
    """What the world sees: an insert with the action's key, as a payment provider would keep it."""
    with sqlite3.connect(SINK, timeout=30) as db:
        db.execute("create table if not exists effects (key text, fence integer, name text)")
        db.execute("insert into effects values (?, ?, ?)", (action.key, action.fence, name))


@action
async def charge_order(total: int) -> str:
    effect("charge")
    return f"receipt-{total}"


@action
def reserve_order(item: str) -> str:
    effect("reserve")
    return f"shelf-{item}"


@action
async def ship_order(receipt: str, shelf: str, to: str) -> str:
    effect("ship")
    return f"{receipt} {shelf} {to}"


@workflow
async def fulfil_order(total: int, item: str) -> str:
    async with asyncio.TaskGroup() as group:
        receipt = group.create_task(charge_order(total))
        shelf = group.create_task(reserve_order(item))
    async with asyncio.timeout(3600):
        to = await event("address", str)
    await asyncio.sleep(0.05)
    return await ship_order(receipt.result(), shelf.result(), to)


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

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        self._die("before")
        answer = await super().commit(group, grace)
        self._die("after")
        return answer


async def main(database: str, when: str, n: int) -> None:
    app = Perdure(DyingStore(database, when, n), stream=LocalStream(database), lease=0.6, grace=0.1, linger=0)
    async with app, app.working():
        run = await app.start(fulfil_order, 42, "book", id="order")
        await run.send("address", "Berlin", id="address")
        print(await run.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else "never", int(sys.argv[4]) if len(sys.argv) > 4 else 0)
    )
