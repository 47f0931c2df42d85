"""`make demo-cluster`: a client and three workers on PostgreSQL and Redis; one is killed, Redis forgets everything.

Private servers are started in temporary directories and end with the demo. The client and the workers are processes of
their own; the workers are started with `perdure worker`. Every order charges a card, which is written into a ledger in
the same database, so that one can count. The exit code is 0 only if no order was lost and none was charged twice.

To run it with another number of orders: python examples/demo_cluster.py 500
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import asyncpg
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from perdure import Perdure, action, workflow
from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import ValkeyServer

SCHEMA = "shop"
#: A worker that gives no sign of life for 2 s loses its executions; 10 is the default.
LEASE = 2
#: No demo takes so many seconds, unless something is wrong.
LIMIT = 120
console = Console(highlight=False)


# --- the code of the shop: what the workers load ---------------------------------------------------------------------


async def outside() -> None:
    """Stands for the time that the warehouse, the bank and the carrier take."""
    await asyncio.sleep(0.02)


@action(retries=5)
async def reserve(number: int) -> str:
    await outside()
    return f"shelf-{number % 100}"


@action(retries=5)
async def charge(number: int, cents: int) -> str:
    """Charge a card, at a bank that knows what a key is.

    After a crash nobody knows whether the call arrived, so it is made again, with the same key and a higher fence. The
    bank books a key once, and refuses a call whose fence is older than one that it has seen.
    """
    await outside()
    ledger = await the_ledger()
    await ledger.execute(
        "insert into ledger (key, fence, number, cents, calls) values ($1, $2, $3, $4, 1)"
        " on conflict (key) do update set fence = excluded.fence, calls = ledger.calls + 1"
        " where ledger.fence < excluded.fence",
        action.key,
        action.fence,
        number,
        cents,
    )
    return f"receipt-{number}"


@action(retries=5)
async def pack(shelf: str) -> str:
    await outside()
    return f"parcel from {shelf}"


@action(retries=5)
async def label(number: int) -> str:
    await outside()
    return f"label {number}"


@action(retries=5)
async def ship(parcel: str, text: str) -> str:
    await outside()
    return f"{parcel}, {text}"


@workflow
async def purchase(number: int) -> str:
    shelf = await reserve(number)
    await charge(number, 100 + number)
    await asyncio.sleep(0.2)  # a durable timer: the card may be called back
    async with asyncio.TaskGroup() as group:
        parcel = group.create_task(pack(shelf))
        text = group.create_task(label(number))
    return await ship(parcel.result(), text.result())


_ledger: Any = None


async def the_ledger() -> Any:
    """Connections to the ledger, made by the first who needs one."""
    global _ledger
    if _ledger is None:
        _ledger = asyncpg.create_pool(os.environ["LEDGER"], min_size=1, max_size=4)
    return await _ledger


# --- the client: a process that only starts orders -------------------------------------------------------------------


async def take_orders(count: int) -> None:
    """Start so many orders, in small groups; every line of output is an order that was accepted."""
    async with Perdure() as app:
        for first in range(0, count, 20):
            numbers = range(first, min(first + 20, count))
            await asyncio.gather(*(app.start(purchase, number, id=f"order-{number}") for number in numbers))
            print("\n".join(f"order-{number}" for number in numbers), flush=True)
            await asyncio.sleep(0.02)


# --- the demo's side -------------------------------------------------------------------------------------------------


class Shop:
    """The processes, and what the database knows of their work."""

    def __init__(self, folder: Path, postgres: PostgresServer, redis: ValkeyServer, count: int) -> None:
        self.count, self.began = count, time.monotonic()
        self.notes: list[str] = []
        self.accepted = self.completed = 0
        self._dsn = postgres.address()
        self._folder, self._redis = folder, redis
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")},
            "PERDURE_STORE": postgres.address(schema=SCHEMA),
            "PERDURE_STREAM": redis.url,
            "PERDURE_LEASE": str(LEASE),
            "PERDURE_LOG_LEVEL": "error",
            "LEDGER": self._dsn,
        }
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._files: list[IO[bytes]] = []
        self._client: subprocess.Popen[bytes] | None = None
        self._database: Any = None

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        output, errors = ((self._folder / f"{name}.{kind}").open("wb") for kind in ("out", "err"))
        self._files += [output, errors]
        return subprocess.Popen([sys.executable, *words], env=self._environ, stdout=output, stderr=errors)

    async def open(self) -> None:
        """Make the ledger, then start the workers, then the client."""
        self._database = await asyncpg.connect(self._dsn)
        await self._database.execute(
            "create table ledger (key text primary key, fence bigint, number int, cents int, calls int)"
        )
        for name in ("anna", "bert", "cora"):
            self.workers[name] = self._start(name, "-m", "perdure.cli.main", "worker", __file__)
        deadline = time.monotonic() + 60
        while not all(b"ready" in (self._folder / f"{name}.out").read_bytes() for name in self.workers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the workers did not start: {self.errors()}")
            await asyncio.sleep(0.05)
        self.began = time.monotonic()
        self._client = self._start("client", __file__, "client", str(self.count))
        self.say(f"{len(self.workers)} workers serve; a client starts {self.count:,} orders")

    async def look(self) -> bool:
        """Count; gives whether all is done."""
        assert self._client is not None
        self.accepted = (self._folder / "client.out").read_bytes().count(b"\n")
        query = f"select count(*) from {SCHEMA}.heads where status = 'completed' and workflow = 'purchase'"
        self.completed = await self._database.fetchval(query)
        return self._client.poll() is not None and self.completed >= self.accepted

    async def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        held = await self._database.fetchval(
            f"select count(*) from {SCHEMA}.wakes where holder like '%-' || $1::text || '-%'", str(worker.pid)
        )
        self.say(f"[bold red]kill -9 {worker.pid}[/]: {name} is gone, and with it the memory of {held} orders")

    async def flush(self) -> None:
        self._redis.do("FLUSHALL")
        self.say("[bold red]FLUSHALL[/]: Redis has forgotten every hint")

    def say(self, text: str) -> None:
        self.notes.append(f"[dim]{time.monotonic() - self.began:5.1f} s[/]  {text}")

    async def report(self) -> tuple[Table, bool]:
        """What came of it, and whether that is as promised."""
        assert self._client is not None
        seconds = time.monotonic() - self.began
        charged, orders, calls = await self._database.fetchrow(
            "select count(*), count(distinct number), coalesce(sum(calls), 0) from ledger"
        )
        taken_over = await self._database.fetchval(
            f"select count(*) from {SCHEMA}.events where type = $1", event_number("TakenOver")
        )
        lost, doubled = self.accepted - min(self.completed, orders), charged - orders
        right = lost == doubled == 0 and self.accepted == self.count and self._client.returncode == 0
        table = Table(box=None, show_header=False)
        table.add_column(justify="right", style="bold")
        table.add_column()
        verdict = {"style": "bold green" if right else "bold red"}
        table.add_row(f"{self.accepted:,}", "accepted")
        table.add_row(f"{self.completed:,}", "completed")
        table.add_row(str(lost), "lost", **verdict)
        table.add_row(str(doubled), "doubled: orders that the ledger has under two keys", **verdict)
        table.add_row(str(calls - charged), "charges that were asked for again with the same key, and booked once")
        table.add_row(str(taken_over), f"take-overs, {LEASE} s after the last sign of life")
        table.add_row(f"{seconds:.1f}", f"seconds, {self.completed / seconds:,.0f} orders of 5 actions each second")
        return table, right

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.err")) if path.stat().st_size)

    async def close(self) -> None:
        for process in (*self.workers.values(), *([self._client] if self._client else [])):
            process.terminate()
        for process in self.workers.values():
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                process.kill()
        for file in self._files:
            file.close()
        if self._database is not None:
            await self._database.close()


def event_number(name: str) -> int:
    from perdure.core.events import TYPES

    return next(number for number, kind in TYPES.items() if kind.__name__ == name)


def picture(shop: Shop) -> Table:
    """What is going on."""
    bars = Table.grid(padding=(0, 1))
    for name, value in (("accepted", shop.accepted), ("completed", shop.completed)):
        bars.add_row(name, ProgressBar(shop.count, value, width=50), f"{value:,}")
    whole = Table.grid()
    for part in (*shop.notes, "", bars):
        whole.add_row(part)
    return whole


async def show(shop: Shop) -> bool:
    """Run the shop: with a third of the orders a worker is killed, with two thirds Redis is flushed."""
    blows = [(shop.count // 3, lambda: shop.kill("bert")), (2 * shop.count // 3, shop.flush)]
    with Live(picture(shop), console=console, refresh_per_second=10) as live:
        while not await shop.look():
            if blows and shop.accepted >= blows[0][0]:
                await blows.pop(0)[1]()
            if time.monotonic() - shop.began > LIMIT:
                shop.say(f"[bold red]not done after {LIMIT} s[/]")
                break
            live.update(picture(shop))
            await asyncio.sleep(0.05)
        shop.say("[bold]all that was accepted is done[/]" if shop.completed >= shop.accepted else "orders are missing")
        live.update(picture(shop))
    table, right = await shop.report()
    console.print(
        "",
        table,
        "",
        "After a crash nobody can know whether a call had arrived, so the action runs",
        "again: with the same key, and a higher fence. The ledger books a key once.",
        sep="\n",
    )
    if not right and (errors := shop.errors()):
        console.print(errors)
    return right


async def main(count: int) -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="perdure-demo-")))
        with console.status("starting PostgreSQL and Valkey"):
            postgres = stack.enter_context(PostgresServer(private=True))
            redis = stack.enter_context(ValkeyServer())
        shop = Shop(folder, postgres, redis, count)
        try:
            with console.status("starting the workers"):
                await shop.open()
            return 0 if await show(shop) else 1
        finally:
            await shop.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        asyncio.run(take_orders(int(sys.argv[2])))
    else:
        sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)))
