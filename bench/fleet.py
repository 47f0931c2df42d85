"""A fleet under load: worker processes and a client process beside private servers, on this machine.

Each fleet has a schema and a prefix of its own and stays up between its rounds, so fleets that are compared take turns
while the others idle. A round is never measured while another runs. Of several rounds the best one counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer

import msgspec
from msgspec import Struct

from bench.load import Done, Job, percentile
from bench.servers import Servers, cpu_of

ROOT = Path(__file__).parents[1]
PROFILES = ("postgres", "cluster")
WORKFLOWS = ("W1", "W5", "F10")
#: No start, stop or round takes as long as this, in seconds, unless something is broken.
PATIENCE = 120

#: Says what is being measured, for those who watch.
Tell = Callable[[str], object]


class Scale(Struct, frozen=True):
    """How much is measured."""

    count: int = 4_000  # executions of a round
    at_once: int = 1_000
    rounds: int = 3
    slow: int = 120  # executions at 10 a second
    timers: int = 120
    stored: int = 1_000_000
    grown: int = 2_000  # executions for each worker of a fleet that grows


FULL = Scale()
QUICK = Scale(count=1_000, rounds=1, slow=25, timers=40, stored=20_000, grown=300)


class Figures(Struct, frozen=True):
    """What one round says; times in seconds, CPU in microseconds per execution, unknown without /proc."""

    rate: float
    p50: float
    p99: float
    cpu: dict[str, float | None]


class Fleet:
    """Workers and a client, each a process, for as long as the block lasts."""

    def __init__(
        self, servers: Servers, environ: Mapping[str, str], worker: list[str], client: list[str], workers: int = 1
    ) -> None:
        self._servers = servers
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        self._environ = {**ours, **environ}
        self._commands = [worker] * workers, client
        self._workers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Fleet:
        with ExitStack() as opening:
            workers, client = self._commands
            # The first makes the tables and the streams, so the others find them.
            self._workers = [opening.enter_context(self._process(command)) for command in workers]
            self._client = opening.enter_context(self._process(client))
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def worker_pids(self) -> list[int]:
        return [process.pid for process in self._workers]

    @contextmanager
    def _process(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert "ready" in _line(process)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def do(self, job: Job) -> Figures:
        done, cpu = self.run(job)
        return Figures(job.count / done.seconds, percentile(done.times, 0.5), percentile(done.times, 0.99), cpu)

    def run(self, job: Job) -> tuple[Done, dict[str, float | None]]:
        before = self._cpu()
        assert self._client.stdin is not None
        self._client.stdin.write(msgspec.json.encode(job).decode() + "\n")
        self._client.stdin.flush()
        done = msgspec.json.decode(_line(self._client), type=Done)
        cpu: dict[str, float | None] = {"client": done.cpu / job.count * 1e6}
        for name, after in self._cpu().items():
            then = before[name]
            cpu[name] = None if after is None or then is None else (after - then) / job.count * 1e6
        return done, cpu

    def _cpu(self) -> dict[str, float | None]:
        workers = [cpu_of(process.pid) for process in self._workers]
        known = [seconds for seconds in workers if seconds is not None]
        return {
            "worker": sum(known) if len(known) == len(workers) else None,
            "postgres": cpu_of(self._servers.postgres_pid),
            "redis": cpu_of(self._servers.valkey_pid),
        }


def engine(servers: Servers, profile: str, schema: str, workers: int = 1) -> Fleet:
    """`perdure worker` processes and a client of the engine."""
    environ = {
        "PERDURE_STORE": servers.store(schema),
        "PERDURE_STREAM": servers.stream if profile == "cluster" else "",
        "PERDURE_STREAM_PREFIX": schema,
        "PERDURE_LOOP": "uvloop",
        "PERDURE_LOG_LEVEL": "warning",
    }
    worker = ["-m", "perdure.cli.main", "worker", str(ROOT / "bench" / "programs.py"), "--json"]
    return Fleet(servers, environ, worker, ["-m", "bench.client"], workers)


def bare(servers: Servers, schema: str) -> Fleet:
    """The program that marks the limit; it has Redis for its hints on every profile."""
    environ = {
        "PERDURE_STORE": servers.store(schema),
        "PERDURE_STREAM": servers.stream,
        "PERDURE_STREAM_PREFIX": schema,
    }
    return Fleet(servers, environ, ["-m", "bench.fleet_limit", "worker"], ["-m", "bench.fleet_limit", "client"])


def warm_up(fleet: Fleet, scale: Scale) -> None:
    """Connections, plans and code are there before the first round; the slow rounds have no use for it."""
    for program in WORKFLOWS:
        fleet.run(Job(program, min(300, scale.count), 100))


def compare(
    servers: Servers, fleets: Mapping[str, Fleet], program: str, scale: Scale, tell: Tell
) -> dict[str, Figures]:
    """Let fleets take turns with one program; the best round of each."""
    best: dict[str, Figures] = {}
    tell(f"{program}: the servers tidy up")
    servers.tidy_up()
    for number in range(scale.rounds):
        for name, fleet in fleets.items():
            tell(f"{program}, {name}, round {number + 1} of {scale.rounds}")
            found = fleet.do(Job(program, scale.count, scale.at_once))
            if name not in best or found.rate > best[name].rate:
                best[name] = found
    return best


def _line(process: subprocess.Popen[str]) -> str:
    """One line of a process that may take its time, but not for ever."""
    assert process.stdout is not None
    patience = Timer(PATIENCE, process.kill)
    patience.start()
    try:
        line = process.stdout.readline()
    finally:
        patience.cancel()
    if not line:
        raise RuntimeError(f"{process.args!r} ended, or was ended after {PATIENCE} s; see what it wrote above")
    return line
