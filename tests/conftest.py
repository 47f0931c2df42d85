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

from perdure.stores.postgres.address import read_address
from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import shared_server
from tests.backends import (  # noqa: F401 - fixtures
    dynamodb,
    dynamodb_server,
    emptied_mongodb,
    kafka_url,
    module_mongodb,
    mongodb,
    mongodb_server,
    nats_url,
    rabbit,
    rabbit_url,
    unreachable_mongodb,
)

_numbers = itertools.count(1)

# A shell without job control starts its background jobs with Ctrl-C ignored, and their children inherit that: then no
# test could interrupt a process.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: What takes longest. Of files that run side by side, these begin first, so that nobody waits for them at the end.
LONG = (
    "tests/corpus/test_laws.py",
    "tests/testing/test_simulate.py",
    "tests/flows/test_scenes.py",
    "tests/acceptance/test_cluster_load.py",
    "tests/acceptance/test_chaos.py",
    "tests/runtime/test_supervisor.py",
    "tests/bench/test_bench.py",
    "tests/testing/test_crashes.py",
    "tests/docs/test_docs.py",
    "tests/docs/test_examples.py",
    "tests/http/test_fuzz.py",
)


#: The driver of MongoDB leaves the socket of a call that is cancelled while it connects to whoever clears away memory.
FORGOTTEN = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {file: place for place, file in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(LONG)))
    for item in items:
        if "mongo" in item.nodeid.lower():
            item.add_marker(pytest.mark.filterwarnings(FORGOTTEN))


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


@pytest.fixture(scope="class")
def class_postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of a schema for a whole class of tests; see `emptied_postgres`."""
    with schema(postgres_server) as address:
        yield address


@pytest.fixture
def emptied_postgres(class_postgres: str) -> Iterator[str]:
    """A schema that the tests of a class use one after the other, and each finds it empty.

    To make one takes longer than most tests. It is not for tests that change the schema itself.
    """
    yield class_postgres
    asyncio.run(_empty(class_postgres))


async def _empty(url: str) -> None:
    # Rows are deleted: to truncate makes every file of the schema anew, which takes ten times as long.
    address = read_address(url)
    settings = {"search_path": address.schema, "synchronous_commit": "off"}
    connection = await asyncpg.connect(address.dsn, server_settings=settings)
    try:
        named = await connection.fetch(
            "select tablename from pg_tables where schemaname = $1 and tablename <> 'migrations'", address.schema
        )
        if named:
            deletes = "; ".join(f'delete from "{name}"' for (name,) in named)
            await connection.execute(
                f"alter table events disable trigger events_only_grow; {deletes};"
                " alter table events enable trigger events_only_grow"
            )
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A server that the tests share: each uses a prefix of its own."""
    with shared_server() as url:
        yield url
