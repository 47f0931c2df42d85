"""Fixtures: the servers of the stores and brokers other than PostgreSQL and Redis, each started by the first test that
asks for it, one for all tests of a process.

Those that no package of Python carries are fetched. Where that is not possible their tests are skipped, and say why;
with `CI` in the environment they fail.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from pymongo import MongoClient

from perdure.testing.servers import dynamodb as dynamodb_servers, nats, rabbitmq
from perdure.testing.servers.dynamodb import DynamoServer
from perdure.testing.servers.kafka import shared_kafka
from perdure.testing.servers.mongodb import MongoServer
from perdure.testing.servers.rabbitmq import RabbitServer
from tests.streams.rabbit_world import certificate_for_loopback

_numbers = itertools.count(1)


@contextmanager
def skipped(*missing: type[RuntimeError]) -> Iterator[None]:
    """Around the start of a server that has to be fetched."""
    try:
        yield
    except missing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


# Streams


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A server that the tests share: each uses a prefix of its own."""
    with nats.shared_server() as url:
        yield url


@pytest.fixture(scope="session")
def kafka_url() -> Iterator[str]:
    """A broker that the tests share: each uses a prefix of its own."""
    with shared_kafka() as url:
        yield url


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """A private broker; whoever stops it starts it again."""
    with ExitStack() as stack:
        with skipped(rabbitmq.NoServer):
            certificate = certificate_for_loopback(tmp_path_factory.mktemp("rabbitmq"))
            server = stack.enter_context(RabbitServer(certificate))
        yield server


@pytest.fixture(scope="session")
def rabbit_url(request: pytest.FixtureRequest) -> str:
    """A broker that the tests share: each uses a prefix of its own."""
    given = os.environ.get(rabbitmq.GIVEN)
    return given or str(request.getfixturevalue("rabbit").url)


# Stores


@pytest.fixture(scope="session")
def dynamodb_server() -> Iterator[DynamoServer]:
    with ExitStack() as stack:
        with skipped(dynamodb_servers.NoServer):
            server = stack.enter_context(DynamoServer())
        yield server


@pytest.fixture
def dynamodb(dynamodb_server: DynamoServer) -> str:
    """The address of a table that this test has for itself."""
    return dynamodb_server.address(f"t{next(_numbers)}-{os.getpid()}")


@pytest.fixture(scope="session")
def mongodb_server() -> Iterator[MongoServer]:
    with MongoServer() as server:
        yield server


@contextmanager
def database(server: MongoServer) -> Iterator[str]:
    """The address of a database that nobody else uses."""
    name = f"t{next(_numbers)}_{os.getpid()}"
    address = server.address(name)
    yield address
    with MongoClient[dict[str, Any]](address) as client:
        client.drop_database(name)


@pytest.fixture
def mongodb(mongodb_server: MongoServer) -> Iterator[str]:
    """The address of a database that this test has for itself."""
    with database(mongodb_server) as address:
        yield address


@pytest.fixture(scope="module")
def module_mongodb(mongodb_server: MongoServer) -> Iterator[str]:
    """The address of a database for a whole module of tests; see `emptied_mongodb`."""
    with database(mongodb_server) as address:
        yield address


@pytest.fixture
def unreachable_mongodb() -> Iterator[None]:
    """For tests in which connections fail: the driver leaves their sockets to be collected, with a warning, some time.

    They are collected here; such a test ignores PytestUnraisableExceptionWarning.
    """
    yield
    gc.collect()


@pytest.fixture
def emptied_mongodb(module_mongodb: str) -> Iterator[str]:
    """A database that the tests of a module share, and each finds it empty: to make one takes long."""
    yield module_mongodb
    with MongoClient[dict[str, Any]](module_mongodb) as client:
        ours = client.get_default_database()
        for name in ours.list_collection_names():
            if name not in ("layout", "hints"):
                ours[name].delete_many({})
