from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure.core.events import Completed
from perdure.core.records import End
from perdure.ports import Joining, Locks, Store, Twinned
from perdure.runtime.managing.locks import StoreLocks
from perdure.stores.mongodb import MongoStore
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    ONE,
    QUEUES,
    TWO,
    LocksContract,
    StoreContract,
    accepted,
    begun,
    letter,
    log,
    settled,
    take,
)


class TestMongoStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, emptied_mongodb: str) -> None:
        self.url = emptied_mongodb

    async def make_store(self) -> Store:
        return MongoStore(self.url, clock=self.clock)


class TestLocksOnMongo(LocksContract):
    @pytest.fixture(autouse=True)
    def _database(self, emptied_mongodb: str) -> None:
        self.store = MongoStore(emptied_mongodb)

    async def make_locks(self) -> Locks:
        await self.store.open()
        return StoreLocks(self.store, "default")

    async def play(self, body: Callable[[Any, Any], Awaitable[None]]) -> None:
        try:
            await super().play(body)
        finally:
            await self.store.close()


def test_numbers_come_back_as_plain_numbers(emptied_mongodb: str) -> None:
    """The driver has a class of its own for large ones, which is equal to them and which no encoder knows."""

    async def scenario() -> None:
        store = MongoStore(emptied_mongodb)
        await store.open()
        try:
            hand = await begun(store)
            await accepted(store, letter())
            await hand.park(settled(), letter(), due=await store.now())
            held = (await take(store)).held
            everything = [held, await store.head(ONE), await log(store), await store.now()]
            everything += [await store.next_due(QUEUES, DEFINITIONS), await store.send([letter()], GRACE)]
            assert msgspec.json.decode(msgspec.json.encode(everything))
        finally:
            await store.close()

    asyncio.run(scenario())


def test_of_a_group_with_ends_whoever_was_overtaken_is_stale_and_its_neighbours_are_written(
    emptied_mongodb: str,
) -> None:
    """The index of the log ends the transaction; what it has refused is found by a look."""

    async def scenario() -> None:
        store = MongoStore(emptied_mongodb)
        await store.open()
        try:
            hands = [await begun(store, key) for key in (ONE, TWO)]
            group = [await hand.prepare(Completed(Raw(b"7")), settle=End("completed", b"7")) for hand in hands]
            assert await hands[0].commit(settled()) == "ok"
            assert await store.commit(group, GRACE) == ["stale", "ok"]
            assert [len(await log(store, key)) for key in (ONE, TWO)] == [2, 2]
        finally:
            await store.close()

    asyncio.run(scenario())


def test_leases_are_renewed_by_a_twin_and_nothing_joins_a_transaction_of_the_callers() -> None:
    store = MongoStore("mongodb://db/shop")
    assert isinstance(store, Twinned)
    assert not isinstance(store, Joining)


def test_without_the_driver_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['pymongo'] = None; from perdure.runtime import backends;"
        " backends.connect('mongodb://db/shop')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "SettingsError: a store on MongoDB needs its driver: pip install 'perdure[mongodb]'" in done.stderr
