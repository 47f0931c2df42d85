from __future__ import annotations

import asyncio

from perdure.ports import Store
from perdure.stores.memory import MemoryStore
from perdure.testing.contract import ManualClock, StoreContract


class TestMemoryStore(StoreContract):
    async def make_store(self) -> Store:
        return MemoryStore(self.clock)


def test_the_clock_never_runs_backwards() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = MemoryStore(clock)
        before = await store.now()
        clock.advance(-10)
        assert await store.now() == before

    asyncio.run(scenario())


def test_the_default_clock_is_the_hosts() -> None:
    assert asyncio.run(MemoryStore().now()) > 1_700_000_000_000_000
