from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from perdure.streams.redis import warm
from perdure.streams.redis.server import Command
from perdure.streams.redis.warm import WarmCache
from perdure.testing.servers.valkey import ValkeyServer, new_prefix
from tests.streams.redis_world import until


def play(url: str, body: Callable[[WarmCache], Awaitable[None]], timeout: float = 20) -> None:
    async def scenario() -> None:
        cache = WarmCache(url, prefix=new_prefix(), timeout=timeout)
        try:
            await asyncio.wait_for(body(cache), 60)
        finally:
            await cache.close()

    asyncio.run(scenario())


def test_what_was_put_is_got_in_the_order_of_the_keys(redis_url: str) -> None:
    async def body(cache: WarmCache) -> None:
        await cache.put({"a": b"1", "b": b"\x00\xff", "c": b""}, 10)
        assert await cache.get(["c", "x", "b", "a"]) == [b"", None, b"\x00\xff", b"1"]
        assert await cache.get([]) == []

    play(redis_url, body)


def test_what_is_too_old_is_a_miss(redis_url: str) -> None:
    async def body(cache: WarmCache) -> None:
        await cache.put({"a": b"1"}, 0.05)
        await asyncio.sleep(0.1)
        assert await cache.get(["a"]) == [None]

    play(redis_url, body)


def test_two_prefixes_have_caches_of_their_own(redis_url: str) -> None:
    async def body(cache: WarmCache) -> None:
        other = WarmCache(redis_url, prefix=new_prefix())
        await cache.put({"a": b"1"}, 10)
        assert await other.get(["a"]) == [None]
        await other.close()

    play(redis_url, body)


def test_a_key_that_holds_something_else_is_a_miss() -> None:
    async def body(cache: WarmCache) -> None:
        await cache.put({"b": b"1"}, 10)
        server.do("LPUSH", f"{{{cache._prefix}:warm:a}}", "x")
        assert await cache.get(["a", "b", "\ud800"]) == [None, None, None]
        await asyncio.sleep(warm.OFF)
        assert await cache.get(["a", "b"]) == [None, b"1"]

    with ValkeyServer() as server:
        play(server.url, body)


def test_a_server_that_is_away_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "OFF", 0.5)

    async def body(cache: WarmCache) -> None:
        await cache.put({"a": b"1"}, 10)
        asked = count(cache, monkeypatch)
        cache._timeout = 0.2
        server.pause()
        started = time.monotonic()
        for _ in range(100):
            assert await cache.get(["a"]) == [None]
            await cache.put({"b": b"2"}, 10)
        assert len(asked) <= 1 + (time.monotonic() - started) / warm.OFF
        server.go_on()
        cache._timeout = 20
        await until(lambda: known(cache))

    async def known(cache: WarmCache) -> bool:
        return await cache.get(["a"]) == [b"1"]

    with ValkeyServer() as server:
        play(server.url, body)


def count(cache: WarmCache, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every time that the server is asked, from now on."""
    asked: list[object] = []
    many = cache._server.many

    async def counted(commands: Sequence[Command]) -> list[Any]:
        asked.append(commands)
        return await many(commands)

    monkeypatch.setattr(cache._server, "many", counted)
    return asked


def test_a_server_that_never_was_is_a_miss() -> None:
    async def body(cache: WarmCache) -> None:
        await cache.put({"a": b"1"}, 10)
        assert await cache.get(["a"]) == [None]

    with ValkeyServer() as server:
        server.kill()
        play(server.url, body)


@pytest.mark.parametrize("steps", range(0, 40, 2))
def test_one_that_gives_up_does_not_cut_others_short(redis_url: str, steps: int) -> None:
    """All connect at the same time, and the line is hung up meanwhile; no connection is left open either."""

    async def body(cache: WarmCache) -> None:
        await cache.put({"a": b"1"}, 10)
        await cache._server.hang_up()
        asked = [asyncio.create_task(cache.get(["a"])) for _ in range(10)]
        for _ in range(steps):
            await asyncio.sleep(0)
        await cache._server.hang_up()
        assert await asyncio.gather(*asked) == [[b"1"]] * 10

    play(redis_url, body, timeout=5)
    gc.collect()
