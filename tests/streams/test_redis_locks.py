from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from perdure.errors import SettingsError, StoreUnavailable
from perdure.ports import Locks
from perdure.streams.redis.locks import RedisLocks
from perdure.testing.contract import LEASE, SECOND, LocksContract
from perdure.testing.servers.valkey import ValkeyServer, new_prefix


def play(url: str, body: Callable[[RedisLocks], Awaitable[None]]) -> None:
    async def scenario() -> None:
        locks = RedisLocks(url, prefix=new_prefix(), timeout=0.5)
        try:
            await asyncio.wait_for(body(locks), 10)
        finally:
            await locks.close()

    asyncio.run(scenario())


class TestRedisLocks(LocksContract):
    @pytest.fixture(autouse=True)
    def _given(self, redis_url: str) -> None:
        self.url = redis_url

    async def make_locks(self) -> Locks:
        self.locks = RedisLocks(self.url, prefix=new_prefix())
        return self.locks

    async def play(self, body: Callable[[object, object], Awaitable[None]]) -> None:
        try:
            await super().play(body)
        finally:
            await self.locks.close()


def test_the_same_holder_gets_the_same_fence_again(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        first = await locks.take("stock", "me", SECOND)
        assert await locks.take("stock", "me", 100 * SECOND) == first
        found = await locks.look("stock")
        assert found is not None and (found.token, found.fence) == ("me", first)

    play(redis_url, body)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_they_go_on_in_another_event_loop(redis_url: str) -> None:
    locks = RedisLocks(redis_url, prefix=new_prefix())
    fence = asyncio.run(locks.take("stock", "me", 100 * SECOND))
    assert fence is not None

    async def drop() -> None:
        assert await locks.drop("stock", "me", fence)
        assert await locks.look("stock") is None

    asyncio.run(drop())
    asyncio.run(locks.close())
    gc.collect()  # what nobody could close any more is found here, not by another test


def test_a_lock_of_before_its_begin_was_kept_is_read() -> None:
    async def body(locks: RedisLocks) -> None:
        server.do("HSET", f"{{{locks._place}:stock}}", "holder", "me", "fence", 7)
        server.do("PEXPIRE", f"{{{locks._place}:stock}}", 60_000)
        found = await locks.look("stock")
        assert found is not None and (found.token, found.fence, found.since) == ("me", 7, None)
        assert await locks.take("stock", "you", LEASE) is None
        assert await locks.drop("stock", "me", 7)

    with ValkeyServer() as server:
        play(server.url, body)


def test_the_fence_rises_when_the_clock_of_the_server_goes_back() -> None:
    async def body(locks: RedisLocks) -> None:
        first = await locks.take("stock", "me", LEASE)
        assert first is not None
        await locks.drop("stock", "me", first)
        ahead = first + 3600 * 1_000_000  # as the clock was before it was set back
        server.do("SET", f"{{{locks._place}:stock}}:fence", ahead)
        assert await locks.take("stock", "you", LEASE) == ahead + 1

    with ValkeyServer() as server:
        play(server.url, body)


def test_the_fence_rises_when_the_server_forgets() -> None:
    async def body(locks: RedisLocks) -> None:
        first = await locks.take("stock", "me", LEASE)
        assert first is not None
        server.restart()
        second = await again(locks)
        assert second is not None and second > first

    async def again(locks: RedisLocks) -> int | None:
        try:
            return await locks.take("stock", "you", LEASE)
        except StoreUnavailable:  # the old connection is noticed by the first call
            return await locks.take("stock", "you", LEASE)

    with ValkeyServer() as server:
        play(server.url, body)


def test_scripts_that_the_server_forgot_are_sent_again() -> None:
    async def body(locks: RedisLocks) -> None:
        first = await locks.take("stock", "me", LEASE)
        assert first is not None
        server.do("SCRIPT", "FLUSH")
        assert await locks.take("stock", "me", LEASE) == first
        assert await locks.drop("stock", "me", first)

    with ValkeyServer() as server:
        play(server.url, body)


def test_a_server_that_is_away_is_an_error() -> None:
    async def body(locks: RedisLocks) -> None:
        first = await locks.take("stock", "me", LEASE)
        assert first is not None
        server.pause()
        with pytest.raises(StoreUnavailable, match="lock 'stock': Redis at"):
            await locks.take("stock", "me", LEASE)
        server.go_on()
        assert await locks.drop("stock", "me", first)
        server.kill()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await locks.look("stock")

    with ValkeyServer() as server:
        play(server.url, body)


def test_two_prefixes_have_locks_of_their_own(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        others = RedisLocks(redis_url, prefix=new_prefix())
        assert await locks.take("stock", "me", LEASE) is not None
        assert await others.take("stock", "you", LEASE) is not None
        await others.close()

    play(redis_url, body)
    with pytest.raises(SettingsError):
        RedisLocks(redis_url, prefix="a:b")
