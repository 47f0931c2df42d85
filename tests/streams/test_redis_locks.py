from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure.errors import SettingsError, StoreUnavailable
from perdure.streams.redis.locks import Lock, RedisLocks
from perdure.testing.servers.valkey import ValkeyServer, new_prefix


def play(url: str, body: Callable[[RedisLocks], Awaitable[None]]) -> None:
    async def scenario() -> None:
        locks = RedisLocks(url, prefix=new_prefix(), timeout=0.5)
        try:
            await asyncio.wait_for(body(locks), 10)
        finally:
            await locks.close()

    asyncio.run(scenario())


def test_a_lock_has_one_holder(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        assert await locks.take("stock", "me", 10) is not None
        assert await locks.take("stock", "you", 10) is None
        assert await locks.take("other", "you", 10) is not None

    play(redis_url, body)


def test_of_many_who_want_it_at_once_one_gets_it(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        fences = await asyncio.gather(*(locks.take("stock", f"holder-{number}", 10) for number in range(50)))
        assert len([fence for fence in fences if fence is not None]) == 1

    play(redis_url, body)


def test_the_same_holder_gets_the_same_fence_again(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        first = await locks.take("stock", "me", 1)
        assert await locks.take("stock", "me", 100) == first
        found = await locks.look("stock")
        assert found is not None and 90 < found.ttl <= 100

    play(redis_url, body)


def test_a_lock_that_was_dropped_is_free(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        await locks.take("stock", "me", 10)
        assert await locks.drop("stock", "me") is True
        assert await locks.drop("stock", "me") is False
        assert await locks.look("stock") is None
        assert await locks.take("stock", "you", 10) is not None

    play(redis_url, body)


def test_only_the_holder_drops_or_extends(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        fence = await locks.take("stock", "me", 10)
        assert await locks.drop("stock", "you") is False
        assert await locks.extend("stock", "you", 100) is False
        found = await locks.look("stock")
        assert isinstance(found, Lock)
        assert (found.holder, found.fence) == ("me", fence)
        assert 0 < found.ttl <= 10

    play(redis_url, body)


def test_a_lock_ends_with_its_time_unless_it_is_extended(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        await locks.take("kept", "me", 0.05)
        await locks.take("left", "me", 0.05)
        assert await locks.extend("kept", "me", 10) is True
        await asyncio.sleep(0.1)
        assert await locks.take("kept", "you", 10) is None
        assert await locks.extend("left", "me", 10) is False
        assert await locks.take("left", "you", 10) is not None

    play(redis_url, body)


def test_the_fence_rises_with_every_holder(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        fences = []
        for number in range(20):
            fences.append(await locks.take("stock", f"holder-{number}", 10))
            await locks.drop("stock", f"holder-{number}")
        assert fences == sorted(set(fences))

    play(redis_url, body)


def test_the_fence_rises_when_the_clock_of_the_server_goes_back() -> None:
    async def body(locks: RedisLocks) -> None:
        first = await locks.take("stock", "me", 10)
        assert first is not None
        await locks.drop("stock", "me")
        ahead = first + 3600 * 1_000_000  # as the clock was before it was set back
        server.do("SET", f"{{{locks._prefix}:lock:stock}}:fence", ahead)
        assert await locks.take("stock", "you", 10) == ahead + 1

    with ValkeyServer() as server:
        play(server.url, body)


def test_the_fence_rises_when_the_server_forgets() -> None:
    async def body(locks: RedisLocks) -> None:
        first = await locks.take("stock", "me", 10)
        assert first is not None
        server.restart()
        second = await again(locks)
        assert second is not None and second > first

    async def again(locks: RedisLocks) -> int | None:
        try:
            return await locks.take("stock", "you", 10)
        except StoreUnavailable:  # the old connection is noticed by the first call
            return await locks.take("stock", "you", 10)

    with ValkeyServer() as server:
        play(server.url, body)


def test_scripts_that_the_server_forgot_are_sent_again() -> None:
    async def body(locks: RedisLocks) -> None:
        first = await locks.take("stock", "me", 10)
        server.do("SCRIPT", "FLUSH")
        assert await locks.take("stock", "me", 10) == first
        assert await locks.drop("stock", "me")

    with ValkeyServer() as server:
        play(server.url, body)


def test_a_server_that_is_away_is_an_error() -> None:
    async def body(locks: RedisLocks) -> None:
        assert await locks.take("stock", "me", 10) is not None
        server.pause()
        with pytest.raises(StoreUnavailable, match="lock 'stock': Redis at"):
            await locks.take("stock", "me", 10)
        server.go_on()
        assert await locks.drop("stock", "me")
        server.kill()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await locks.look("stock")

    with ValkeyServer() as server:
        play(server.url, body)


def test_two_prefixes_have_locks_of_their_own(redis_url: str) -> None:
    async def body(locks: RedisLocks) -> None:
        others = RedisLocks(redis_url, prefix=new_prefix())
        assert await locks.take("stock", "me", 10) is not None
        assert await others.take("stock", "you", 10) is not None
        await others.close()

    play(redis_url, body)
    with pytest.raises(SettingsError):
        RedisLocks(redis_url, prefix="a:b")
