"""The servers of a measured fleet, private and on this machine, and what they and the processes cost in CPU time.

PostgreSQL keeps its defaults in everything that makes a commit durable, fsync above all; Valkey keeps nothing on disk,
for the hints that it carries may be lost. CPU times are read from /proc; where there is none they are not known.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import asyncpg

from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import ValkeyServer

_PROC = Path("/proc")
#: Checkpoints and vacuums come between rounds, not in the middle of one: they would be counted against whoever runs
#: just then, though they clean up after all.
_SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "autovacuum": "off",
}
#: Who owns the tables: no worker should be a superuser.
_ROLE = "bench"


class Servers:
    """A PostgreSQL and a Valkey for as long as the block lasts."""

    def __init__(self) -> None:
        self._postgres = PostgresServer(private=True, settings=_SETTINGS)
        self._valkey = ValkeyServer()
        self._open = ExitStack()
        self.facts: dict[str, str] = {}

    def __enter__(self) -> Servers:
        with ExitStack() as opening:
            opening.enter_context(self._postgres)
            opening.enter_context(self._valkey)
            self.facts, self.postgres_pid = asyncio.run(self._prepare())
            info = self._valkey.do("INFO", "server").decode()
            self.facts["valkey"] = _said(info, "valkey_version") or _said(info, "redis_version")
            self.valkey_pid = int(_said(info, "process_id"))
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def store(self, schema: str) -> str:
        return self._postgres.address(user=_ROLE, schema=schema)

    @property
    def stream(self) -> str:
        return self._valkey.url

    def tidy_up(self) -> None:
        """What the server would do by itself sooner or later: vacuum, new statistics, a checkpoint."""
        asyncio.run(self._tidy_up())

    async def _tidy_up(self) -> None:
        connection = await self.connect()
        try:
            await connection.execute("vacuum (analyze)")
            await connection.execute("checkpoint")
        finally:
            await connection.close()

    async def connect(self) -> Any:
        """A connection of the superuser, without timeouts."""
        return await asyncpg.connect(self._postgres.address())

    async def _prepare(self) -> tuple[dict[str, str], int | None]:
        """Make the role; what the server says of itself, and its process: the parent of the one that serves us."""
        connection = await self.connect()
        try:
            await connection.execute(f"create role {_ROLE} login; grant create on database postgres to {_ROLE}")
            names = "server_version", "fsync", "synchronous_commit", "shared_buffers"
            facts = {name: str(await connection.fetchval(f"show {name}")) for name in names}
            return facts, parent_of(await connection.fetchval("select pg_backend_pid()"))
        finally:
            await connection.close()


def cpu_of(pid: int | None) -> float | None:
    """CPU seconds of a process, of its children, and of those of its children that have ended."""
    if pid is None or not (_PROC / str(pid)).exists():
        return None
    ticks = sum(_fields(pid)[11:15])
    for child in _children(pid):
        ticks += sum(_fields(child)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def parent_of(pid: int) -> int | None:
    return _fields(pid)[1] if (_PROC / str(pid)).exists() else None


def _children(pid: int) -> list[int]:
    found = [int(folder.name) for folder in _PROC.iterdir() if folder.name.isdecimal()]
    return [one for one in found if parent_of(one) == pid]


def _fields(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat that follow the name and the state, shifted by one; zeros if it has just ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return [0] * 50
    state, *numbers = text.rpartition(")")[2].split()
    return [ord(state[0]), *map(int, numbers)]


def _said(info: str, name: str) -> str:
    found = re.search(rf"^{name}:(.*?)\r?$", info, re.MULTILINE)
    return found[1] if found else ""
