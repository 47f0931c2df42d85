"""What all tests need of their process."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import pytest

from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import shared_server

_numbers = itertools.count(1)

# A shell without job control starts its background jobs with Ctrl-C ignored, and their children inherit that: then no
# test could interrupt a process.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of a run, started by the first that asks for it."""
    with PostgresServer() as server:
        yield server


@contextmanager
def schema(server: PostgresServer) -> Iterator[str]:
    """The address of a schema that nobody else uses."""
    name = f"t{next(_numbers)}_{os.getpid()}"
    yield server.address(schema=name)
    if server.given:

        async def drop() -> None:
            connection = await asyncpg.connect(server.address())
            await connection.execute(f'drop schema if exists "{name}", "{name}_b" cascade')
            await connection.close()

        asyncio.run(drop())


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of a schema that this test has for itself."""
    with schema(postgres_server) as address:
        yield address


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A server that the tests share: each uses a prefix of its own."""
    with shared_server() as url:
        yield url
