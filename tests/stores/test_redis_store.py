"""The store in Redis: the whole contract, its address, what it asks of a server, and what is its own."""

from __future__ import annotations

import pytest

from perdure.ports import Store
from perdure.stores.redis import RedisStore
from perdure.testing.contract import StoreContract
from perdure.testing.servers.valkey import new_prefix


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = f"{redis_url}?durability=none&prefix={new_prefix()}"

    async def make_store(self) -> Store:
        return RedisStore(self.url, clock=self.clock)
