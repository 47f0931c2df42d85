from __future__ import annotations

import pytest

from perdure.ports import Store
from perdure.stores.postgres import PostgresStore
from perdure.testing.contract import StoreContract


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _schema(self, postgres: str) -> None:
        self.url = postgres

    async def make_store(self) -> Store:
        return PostgresStore(self.url, clock=self.clock)
