"""Stores and streams that the pages name are those that pass the contract, and each says what a crash loses."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from perdure.errors import SettingsError
from perdure.runtime import backends
from perdure.runtime.settings import Settings
from perdure.testing.contract import StoreContract, StreamContract

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
#: Where the contract is played for what an address leads to.
STORES = {
    "memory": "test_memory",
    "SQLite": "test_sqlite",
    "PostgreSQL": "test_postgres",
    "MongoDB": "test_mongodb",
    "Redis": "test_redis_store",
    "DynamoDB": "test_dynamodb",
}
STREAMS = {
    "memory": "test_memory",
    "SQLite": "test_local",
    "PostgreSQL": "test_postgres",
    "MongoDB": "test_mongodb",
    "Redis": "test_redis",
    "NATS": "test_nats",
    "RabbitMQ": "test_rabbitmq",
    "Kafka": "test_kafka",
}


def table() -> dict[str, list[str]]:
    """The table of stores: by name, what carries their hints and what a crash loses."""
    page = (ROOT / "docs/concepts.md").read_text()
    table = page.partition("| store | hints between processes | what a crash loses |\n|---|---|---|\n")[2]
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    return {name: rest for name, *rest in rows}


def test_every_store_and_stream_that_is_named_passes_the_contract() -> None:
    named = {word for name in table() for word in name.split(" with ")}
    assert named == {*STORES, *STREAMS}
    for folder, modules, contract in (("stores", STORES, StoreContract), ("streams", STREAMS, StreamContract)):
        for name, module in modules.items():
            tests = vars(importlib.import_module(f"tests.{folder}.{module}")).values()
            played = [test for test in tests if isinstance(test, type) and issubclass(test, contract)]
            assert [test for test in played if test is not contract], f"nobody plays the contract for {name}"


def test_every_store_says_what_a_crash_loses() -> None:
    assert all(len(rest) == 2 and len(rest[1]) > 10 for rest in table().values())


@pytest.mark.parametrize("scheme", ["cassandra", "kafka", "mysql"])
def test_there_is_no_other_store(scheme: str) -> None:
    with pytest.raises(SettingsError, match="no store for"):
        backends.connect(f"{scheme}://host/x")


@pytest.mark.parametrize("scheme", ["pulsar", "sqs", "mqtt"])
def test_there_is_no_other_stream(scheme: str) -> None:
    with pytest.raises(SettingsError, match="no stream for"):
        backends.stream(Settings(stream=f"{scheme}://host/x"))


def test_no_other_is_named() -> None:
    others = re.compile(r"\b(pulsar|sqs|cassandra|cockroachdb)\b", re.IGNORECASE)
    assert [page.name for page in PAGES if others.search(page.read_text())] == []
