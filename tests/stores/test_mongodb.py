from __future__ import annotations

import pytest

from perdure.ports import Store
from perdure.stores.mongodb import MongoStore
from perdure.testing.contract import StoreContract


class TestMongoStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, emptied_mongodb: str) -> None:
        self.url = emptied_mongodb

    async def make_store(self) -> Store:
        return MongoStore(self.url, clock=self.clock)
