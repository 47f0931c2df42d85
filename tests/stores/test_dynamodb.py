from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from perdure.ports import Store
from perdure.stores.dynamodb import DynamoStore
from perdure.testing.contract import StoreContract
from perdure.testing.servers.dynamodb import DynamoServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def dynamodb_server() -> Iterator[DynamoServer]:
    with DynamoServer() as server:
        yield server


@pytest.fixture
def dynamodb(dynamodb_server: DynamoServer) -> str:
    return dynamodb_server.address(f"t{next(_numbers)}-{os.getpid()}")


class TestDynamoStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _table(self, dynamodb: str) -> None:
        self.url = dynamodb

    async def make_store(self) -> Store:
        return DynamoStore(self.url, clock=self.clock)
