"""A cluster for tests: real worker processes (`perdure worker`), their clients, and the ledger of what they did."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from perdure import Perdure, Run
from perdure.core.records import Row
from perdure.errors import OutcomeUnknown, StoreUnavailable
from perdure.testing.invariants import check_log, check_who
from perdure.testing.servers.valkey import new_prefix
from tests.acceptance.cluster_flows import order
from tests.cli.processes import Process

FLOWS = Path(__file__).parent / "cluster_flows.py"
ROOT = Path(__file__).parents[2]
#: Short times, so that what follows a death follows soon.
SETTINGS: dict[str, Any] = {"lease": 1, "grace": 0.3, "probe": 0.5, "drain": 10}
#: Where nobody dies, nobody is to be taken for dead on a busy machine.
CALM: dict[str, Any] = {"lease": 10}
T = TypeVar("T")


class Cluster:
    """Workers on one schema and, with a `stream`, one prefix."""

    def __init__(self, folder: Path, store: str, stream: str = "", *, flows: Path = FLOWS, **settings: Any) -> None:
        self.folder = folder
        self.flows = flows
        self.environ: dict[str, str] = {}  # what workers to come find there besides
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.workers: list[Process] = []
        prefix = {"stream": stream, "stream_prefix": new_prefix()} if stream else {}
        self.settings = {**SETTINGS, "store": store, **prefix, **settings}

    def grow(self, count: int = 1, *options: str, **settings: Any) -> list[Process]:
        """Start workers; they are ready when this returns."""
        fresh = [self.process("worker", str(self.flows), *options, **settings) for _ in range(count)]
        for worker in fresh:
            worker.line("^ready: ")
        return fresh

    def serve(self, count: int = 1, port: int = 0) -> list[tuple[Process, str]]:
        """Start processes that serve the API, open; with their addresses."""
        fresh = [self.process("serve", str(self.flows), "--open", "--port", str(port), "--json") for _ in range(count)]
        return [(one, json.loads(one.line('"ready"'))["address"]) for one in fresh]

    def process(self, *words: str, **settings: Any) -> Process:
        """`perdure` with these words, on what the cluster is on."""
        chosen = {**self.settings, "log_level": "warning", **settings}
        environ = {f"PERDURE_{name.upper()}": str(value) for name, value in chosen.items()}
        environ |= {"LEDGER": str(self.ledger.path), "PYTHONPATH": str(ROOT), **self.environ}
        self.workers.append(Process(*words, cwd=self.folder, **environ))
        return self.workers[-1]

    def app(self, **settings: Any) -> Perdure:
        """A client, or an embedded worker to be."""
        return Perdure(**{**self.settings, **settings})

    def end(self) -> None:
        for worker in self.workers:
            worker.__exit__()


class Ledger:
    """What reached the world outside."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def calls(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def of(self, run: Run[Any]) -> list[dict[str, Any]]:
        return [call for call in self.calls() if call["execution"] == run.id]

    def check(self, executions: Iterable[str] | None = None) -> int:
        """One key for each step, and no key twice under one fence; gives how many calls were made again."""
        wanted = None if executions is None else set(executions)
        calls = [call for call in self.calls() if wanted is None or call["execution"] in wanted]
        keys: dict[tuple[str, str], set[str]] = defaultdict(set)
        for call in calls:
            keys[call["execution"], call["step"]].add(call["key"])
        doubled = {step: found for step, found in keys.items() if len(found) > 1}
        assert not doubled, f"one step, several keys: {doubled}"
        again = Counter((call["key"], call["step"], call["fence"]) for call in calls)
        assert not (twice := [call for call, times in again.items() if times > 1]), f"twice under one fence: {twice}"
        return len(calls) - len(keys)


async def rows_of(run: Run[Any]) -> list[Row]:
    return [row async for row in run.rows()]


async def check(cluster: Cluster, runs: Sequence[Run[Any]]) -> int:
    """Every log keeps its invariants and every effect is there once; gives how many calls were made again."""
    for run in runs:
        rows = await rows_of(run)
        check_log(rows, run.key)
        check_who(rows, run.key)
    return cluster.ledger.check(run.id for run in runs)


async def results(runs: Sequence[Run[Any]], timeout: float = 60) -> list[Any]:
    """Of all of them, within one time."""
    async with asyncio.timeout(timeout):
        return await asyncio.gather(*(run.result() for run in runs))


async def until(look: Callable[[], Awaitable[bool] | bool], what: str, limit: float = 20) -> float:
    """Look until it is true; gives the seconds that this took."""
    began = time.monotonic()
    while True:
        found = look()
        if found if isinstance(found, bool) else await found:
            return time.monotonic() - began
        assert time.monotonic() - began < limit, f"waited {limit} s in vain: {what}"
        await asyncio.sleep(0.02)


async def types(run: Run[Any]) -> list[str]:
    return [entry.type for entry in await run.log()]


def port_of(worker: Process) -> int:
    """Where a worker with `health` on a free port answers; it says so in its log, at the level of info."""
    [place] = [found[1] for line in worker.seen if (found := re.search(r"metrics on http://[^:]*:(\d+)", line))]
    return int(place)


async def get(port: int, path: str) -> tuple[int, str]:
    """Ask a worker's health service; gives the code and the body."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def metrics(port: int) -> dict[str, float]:
    """All that the worker counts, by name and labels."""
    _, body = await get(port, "/metrics")
    lines = [line.rpartition(" ") for line in body.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def again(call: Callable[[], Awaitable[T]], limit: float = 30) -> T:
    """What a client does when the store is away: the same call with the same ids, until it is answered."""
    end = time.monotonic() + limit
    while True:
        try:
            return await call()
        except (StoreUnavailable, OutcomeUnknown):
            assert time.monotonic() < end, "the store did not come back"
            await asyncio.sleep(0.05)


class Load:
    """A client that starts orders one after the other, whatever happens, until it is told to stop."""

    def __init__(self, app: Perdure, name: str = "order", pause: float = 0.005) -> None:
        self.runs: list[Run[str]] = []
        self._app, self._name, self._pause = app, name, pause
        self._task = asyncio.create_task(self._go_on())

    async def _go_on(self) -> None:
        while True:
            self.runs.append(await again(self._start))
            await asyncio.sleep(self._pause)

    async def _start(self) -> Run[str]:
        number = len(self.runs)
        return await self._app.start(order, number, id=f"{self._name}-{number}")

    async def reaches(self, count: int) -> None:
        await until(lambda: len(self.runs) >= count or self._task.done(), f"{count} orders are accepted", 40)
        if self._task.done():
            self._task.result()

    async def end(self) -> list[Run[str]]:
        """All that were accepted, when they are finished."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        done = await asyncio.gather(*(again(run.result) for run in self.runs))
        assert done == [f"ship {number}" for number in range(len(self.runs))]
        return self.runs
