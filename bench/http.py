"""Events accepted over HTTP: one API process, PostgreSQL behind it, callers with an API key.

Nothing works on the events meanwhile: accepting is what is measured, and each 202 stands for a commit with fsync. The
load is made in this process, over connections that stay open, by a client that does no more than it must: on a machine
of few cores a comfortable one would be measured in place of the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvloop
from msgspec import Struct

from bench import programs
from bench.load import closed, paced, percentile
from bench.servers import Servers, cpu_of
from perdure import Perdure
from perdure.http.keys import Keys
from perdure.runtime.service import collecting_seldom

_NOTE = "x" * 400  # with it an event has about 500 bytes


class Scale(Struct, frozen=True):
    """How much is measured."""

    executions: int = 500
    singles: int = 30_000
    connections: int = 128
    batches: int = 2_000
    batch: int = 100
    paced_seconds: float = 8.0


FULL = Scale()
QUICK = Scale(singles=5_000, batches=200, paced_seconds=3.0)


class Connection:
    """One connection that sends requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, request: bytes) -> bytes:
        """The body of the answer, which has to be 202."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = await self._reader.readexactly(int(length))
        if not head.startswith(b"HTTP/1.1 202"):
            raise RuntimeError(f"the API answered {head[:30]!r}: {body[:300]!r}")
        return body

    @property
    def gone(self) -> bool:
        """Whether the server has closed it, as it does with one that is idle for long."""
        return self._reader.at_eof()

    def close(self) -> None:
        self._writer.close()


class Caller:
    """Requests over a pool of connections."""

    def __init__(self, address: str, key: str) -> None:
        self._parts = urlsplit(address)
        self._head = f"Host: {self._parts.netloc}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()

    async def connect(self, count: int) -> None:
        for _ in range(count):
            self._idle.put_nowait(await self._open())

    async def _open(self) -> Connection:
        return Connection(*await asyncio.open_connection(self._parts.hostname, self._parts.port))

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get_nowait().close()

    def request(self, path: str, body: Any) -> bytes:
        data = msgspec.json.encode(body)
        return f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    async def send(self, request: bytes) -> float:
        began = time.perf_counter()
        connection = await self._idle.get()
        if connection.gone:
            connection.close()
            connection = await self._open()
        try:
            await connection.post(request)
        finally:
            self._idle.put_nowait(connection)
        return time.perf_counter() - began


@contextmanager
def served(store: str, environment: dict[str, str] | None = None) -> Iterator[tuple[int, str]]:
    """`perdure serve` as a process: its number and its address."""
    command = [sys.executable, "-m", "perdure.cli.main", "serve", "--port", "0", "--json", "--store", store]
    environ = {**os.environ, "PERDURE_API_RATE": "0", **(environment or {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            yield process.pid, json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            process.wait(20)


def measure(servers: Servers, scale: Scale) -> dict[str, Any]:
    store = servers.store("http")
    with collecting_seldom(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        key = runner.run(_prepared(store, scale))
        with served(store) as (pid, address):
            return runner.run(_measured(pid, address, key, scale, servers))


async def _prepared(store: str, scale: Scale) -> str:
    """Executions that wait, and an API key."""
    async with Perdure(store) as app:
        for number in range(scale.executions):
            await app.start(programs.sleeps, 1e6, id=f"e-{number}")
        return (await Keys(app).create("bench", roles=["sender"])).secret


async def _measured(pid: int, address: str, key: str, scale: Scale, servers: Servers) -> dict[str, Any]:
    caller = Caller(address, key)

    def single(number: int) -> bytes:
        body = {"name": "noted", "payload": {"number": number, "note": _NOTE}}
        return caller.request(f"/v1/executions/e-{number % scale.executions}/events", body)

    def batch(number: int) -> bytes:
        body = [{"name": "noted", "payload": {"number": one, "note": _NOTE[:100]}} for one in range(scale.batch)]
        return caller.request(f"/v1/executions/e-{number % scale.executions}/events/batch", body)

    async def rate(requests: list[bytes], at_once: int) -> tuple[float, list[float], float, float]:
        await caller.connect(at_once)
        before, database = cpu_of(pid) or 0.0, cpu_of(servers.postgres_pid) or 0.0
        began = time.perf_counter()
        times = await closed(lambda number: caller.send(requests[number]), len(requests), at_once)
        took = time.perf_counter() - began
        caller.close()  # the server would do so with those that the next part does not use
        costs = (cpu_of(pid) or 0.0) - before, (cpu_of(servers.postgres_pid) or 0.0) - database
        return len(requests) / took, times, *costs

    await rate([single(number) for number in range(500)], scale.connections)  # warm
    singles = [single(number) for number in range(scale.singles)]
    per_second, times, ours, theirs = await rate(singles, scale.connections)
    batches, _, batch_ours, _ = await rate([batch(number) for number in range(scale.batches)], 16)
    half = per_second / 2
    count = min(int(half * scale.paced_seconds), len(singles))
    await asyncio.to_thread(servers.tidy_up)  # after the flood, as before every part of the fleets
    await caller.connect(scale.connections)
    quiet = await paced(lambda number: caller.send(singles[number]), count, half)
    caller.close()
    return {
        "single": per_second,
        "p50": percentile(times, 0.5),
        "p99": percentile(times, 0.99),
        "api_us": ours / len(singles) * 1e6,
        "postgres_us": theirs / len(singles) * 1e6,
        "batched": batches * scale.batch,
        "batch": scale.batch,
        "batched_us": batch_ours / (scale.batches * scale.batch) * 1e6,
        "half": half,
        "half_p50": percentile(quiet, 0.5),
        "half_p99": percentile(quiet, 0.99),
    }
