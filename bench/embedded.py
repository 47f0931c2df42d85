"""`make bench`: the embedded engine on SQLite with synchronous=FULL, in one process, beside a program that does the
same by hand (bench/limit.py) and beside writing the same rows in the same batches (bench/bare.py).

usage: python -m bench [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import limit
from bench.bare import RecordingStore, write
from bench.programs import f10, long, w1, w5, waits
from perdure import Perdure
from perdure.core.replay import Replay
from perdure.streams.local import LocalStream

console = Console(width=130)
ROUNDS = 3


async def closed(app: Perdure, workflow: Any, count: int, at_once: int) -> tuple[float, list[float]]:
    """Run `count` executions with `at_once` in flight: seconds, and each one's time from start to result."""
    slots, times = asyncio.Semaphore(at_once), []

    async def one() -> None:
        async with slots:
            began = time.perf_counter()
            run = await app.start(workflow, 1)
            await run.result()
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.perf_counter() - began, sorted(times)


def throughput(name: str, workflow: Any, count: int, at_once: int) -> dict[str, Any]:
    """Executions a second of the engine, of the bare program and of its rows alone, interleaved, the best of each."""
    best: dict[str, Any] = {}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "engine.db")

            async def engine(path: Path = path) -> tuple[float, list[float], RecordingStore]:
                store = RecordingStore(str(path))
                app = Perdure(store, stream=LocalStream(str(path)))
                async with app, app.working():
                    await closed(app, workflow, 200, 200)
                    store.batches.clear()
                    return *(await closed(app, workflow, count, at_once)), store

            took, times, store = asyncio.run(engine())
            rows = count / write(store.batches, Path(directory, "rows.db"))
            bare = limit.rate(name, count, at_once, Path(directory, "bare.db"))
        rate = count / took
        if rate > best.get("rate", 0):
            p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
            best.update(rate=rate, p50=p50, p99=p99, batches=len(store.batches))
        best["bare"] = max(best.get("bare", 0), bare)
        best["rows"] = max(best.get("rows", 0), rows)
    best["share"] = best["rate"] / best["bare"]
    best["share_of_rows"] = best["rate"] / best["rows"]
    return best


def latency(workflow: Any, count: int) -> tuple[float, float]:
    """p50 and p99 of one execution at a time."""
    with tempfile.TemporaryDirectory() as directory:

        async def engine() -> list[float]:
            app = Perdure(f"sqlite:///{directory}/low.db")
            async with app, app.working():
                await closed(app, workflow, 50, 1)
                return (await closed(app, workflow, count, 1))[1]

        times = asyncio.run(engine())
    return times[len(times) // 2], times[int(len(times) * 0.99)]


def replay(steps: int) -> dict[str, Any]:
    """Milliseconds to replay a log of about `steps` events."""

    async def rows() -> Any:
        app = Perdure("memory://", events_per_replay=1_000_000)
        async with app, app.working():
            run = await app.start(long, steps)
            await run.result()
            return [row async for row in run.rows()]

    log = asyncio.run(rows())[:-1]
    times = []
    for _ in range(5):
        began = time.perf_counter()
        replayed = Replay("default/bench", long)
        replayed.load(log)
        times.append(time.perf_counter() - began)
        replayed.evict()
    return {"events": len(log), "ms": min(times) * 1000}


def waiting(count: int) -> dict[str, Any]:
    """What `count` parked executions cost a worker that has nothing else to do: memory and CPU."""
    with tempfile.TemporaryDirectory() as directory:

        async def engine() -> dict[str, Any]:
            app = Perdure(f"sqlite:///{directory}/waiting.db")
            async with app, app.working() as worker:
                await asyncio.gather(*(app.start(waits, n) for n in range(2_000)))
                while worker.residents:
                    await asyncio.sleep(0.05)
                before = _rss()
                began = time.perf_counter()
                for _ in range(count // 2_000):
                    await asyncio.gather(*(app.start(waits, n) for n in range(2_000)))
                while worker.residents:
                    await asyncio.sleep(0.05)
                took = time.perf_counter() - began
                grown = _rss() - before
                cpu = time.process_time()
                await asyncio.sleep(5)
                idle = (time.process_time() - cpu) / 5
                return {"count": count, "seconds": took, "megabytes": grown / 1e6, "idle_cpu": idle}

        return asyncio.run(engine())


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--quick", action="store_true", help="fewer executions, one round")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    chosen = parser.parse_args()
    global ROUNDS
    ROUNDS = 1 if chosen.quick else ROUNDS
    count = 1_000 if chosen.quick else 5_000
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cores": os.cpu_count(),
    }
    console.print(f"Python {figures['python']}, SQLite {figures['sqlite']}, {figures['cores']} cores, synchronous=FULL")
    table = Table(title="executions a second, 1,000 in flight, one process", title_justify="left", box=None)
    for column in ("", "engine", "by hand", "share", "rows alone", "share", "p50", "p99", "one at a time: p50", "p99"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, program in (("W1", w1), ("W5", w5), ("F10", f10)):
        with console.status(f"{name} …"):
            found = throughput(name, program, count, 1000)
            found["alone_p50"], found["alone_p99"] = latency(program, 100 if chosen.quick else 400)
        figures[name] = found
        table.add_row(
            name,
            f"{found['rate']:,.0f}",
            f"{found['bare']:,.0f}",
            f"{found['share']:.2f}",
            f"{found['rows']:,.0f}",
            f"{found['share_of_rows']:.2f}",
            *(f"{found[p] * 1000:,.1f} ms" for p in ("p50", "p99", "alone_p50", "alone_p99")),
        )
    console.print(table)
    with console.status("replay …"):
        figures["replay"] = replay(10_000)
    console.print(f"replay of {figures['replay']['events']:,} events: {figures['replay']['ms']:.0f} ms")
    with console.status("waiting …"):
        figures["waiting"] = waiting(10_000 if chosen.quick else 100_000)
    found = figures["waiting"]
    console.print(
        f"{found['count']:,} waiting executions: {found['megabytes']:.0f} MB more in memory (SQLite's page cache takes"
        f" up to 64 of them, once), {found['idle_cpu'] * 100:.2f} % of a core while idle"
    )
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
