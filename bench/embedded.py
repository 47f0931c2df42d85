"""The embedded engine on SQLite with synchronous=FULL, in one process, beside a program that does the same by hand
(bench/limit.py) and beside writing the same rows in the same batches (bench/bare.py).
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench import limit
from bench.bare import RecordingStore, write
from bench.client import timed
from bench.load import closed, percentile
from bench.programs import MEASURED, long, waits
from perdure import Perdure
from perdure.core.replay import Replay
from perdure.streams.local import LocalStream


class Scale(Struct, frozen=True):
    """How much is measured."""

    count: int = 5_000  # executions of a round
    at_once: int = 1_000
    rounds: int = 3
    alone: int = 400  # executions, one at a time
    events: int = 10_000  # of a log that is replayed
    waiting: int = 100_000
    idle: float = 5  # seconds of doing nothing


FULL = Scale()
QUICK = Scale(count=1_000, rounds=1, alone=100, waiting=10_000)


def throughput(name: str, scale: Scale) -> dict[str, Any]:
    """Executions a second of the engine, of the bare program and of its rows alone, interleaved, the best of each."""
    best: dict[str, Any] = {"rate": 0, "bare": 0, "rows": 0}
    for _ in range(scale.rounds):
        with tempfile.TemporaryDirectory() as directory:
            rate, times, batches = asyncio.run(_full_load(name, scale, Path(directory, "engine.db")))
            rows = scale.count / write(batches, Path(directory, "rows.db"))
            bare = limit.rate(name, scale.count, scale.at_once, Path(directory, "bare.db"))
        if rate > best["rate"]:
            best |= {"rate": rate, "p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}
            best["batches"] = len(batches)
        best["bare"] = max(best["bare"], bare)
        best["rows"] = max(best["rows"], rows)
    best["share"] = best["rate"] / best["bare"]
    best["share_of_rows"] = best["rate"] / best["rows"]
    return best


async def _full_load(name: str, scale: Scale, path: Path) -> tuple[float, list[float], Any]:
    store = RecordingStore(str(path))
    app = Perdure(store, stream=LocalStream(str(path)))
    async with app, app.working():
        one = timed(app, MEASURED[name])
        await closed(one, 200, 200)
        store.batches.clear()
        began = time.perf_counter()
        times = await closed(one, scale.count, scale.at_once)
        return scale.count / (time.perf_counter() - began), times, store.batches


def latency(name: str, scale: Scale) -> dict[str, float]:
    """p50 and p99 of one execution at a time."""

    async def engine(path: str) -> list[float]:
        app = Perdure(f"sqlite:///{path}")
        async with app, app.working():
            one = timed(app, MEASURED[name])
            await closed(one, 50, 1)
            return await closed(one, scale.alone, 1)

    with tempfile.TemporaryDirectory() as directory:
        times = asyncio.run(engine(f"{directory}/low.db"))
    return {"alone_p50": percentile(times, 0.5), "alone_p99": percentile(times, 0.99)}


def replay(scale: Scale) -> dict[str, Any]:
    """Milliseconds to replay a long log."""

    async def rows() -> Any:
        app = Perdure("memory://", events_per_replay=1_000_000)
        async with app, app.working():
            run = await app.start(long, scale.events)
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


def waiting(scale: Scale) -> dict[str, Any]:
    """What parked executions cost a worker that has nothing else to do: memory and CPU."""
    batch = min(2_000, scale.waiting)

    async def engine(path: str) -> dict[str, Any]:
        app = Perdure(f"sqlite:///{path}")
        async with app, app.working() as worker:

            async def add() -> None:
                await asyncio.gather(*(app.start(waits, n) for n in range(batch)))

            async def rest() -> None:
                while worker.residents:
                    await asyncio.sleep(0.05)

            await add()
            await rest()
            before, began = _rss(), time.perf_counter()
            for _ in range(scale.waiting // batch):
                await add()
            await rest()
            took, grown = time.perf_counter() - began, _rss() - before
            cpu = time.process_time()
            await asyncio.sleep(scale.idle)
            idle = (time.process_time() - cpu) / scale.idle
            return {"count": scale.waiting, "seconds": took, "megabytes": grown / 1e6, "idle_cpu": idle}

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(engine(f"{directory}/waiting.db"))


def _rss() -> int:
    """Memory of this process in bytes; 0 where there is no /proc."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0
