"""What the tests of the Redis adapter share: streams that are closed again, and a look at the server from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

from perdure.core.records import Hint
from perdure.streams.redis import RedisStream
from perdure.testing.servers.valkey import new_prefix


class World:
    """Streams of one prefix on one server, and a client beside them."""

    def __init__(self, url: str, client: Redis) -> None:
        self.url = url
        self.client = client
        self.prefix = new_prefix()
        self._opened: list[RedisStream] = []

    async def open(self, me: str, *queues: str, **options: Any) -> RedisStream:
        stream = RedisStream(self.url, **{"prefix": self.prefix, "block": 0.5, **options})
        await stream.open(me, queues)
        self._opened.append(stream)
        return stream

    async def die(self, stream: RedisStream) -> None:
        """As if the process had been killed: it says goodbye to nobody."""
        desk = stream._desk
        assert desk is not None
        stream._desk = None
        await desk.close()

    async def close(self) -> None:
        for stream in self._opened:
            await stream.close()

    def queue(self, queue: str = "default", shard: int = 0) -> str:
        return f"{{{self.prefix}:q:{queue}:{shard}}}"

    def own(self, me: str) -> str:
        return f"{{{self.prefix}:w:{me}}}"

    async def pending(self, queue: str = "default") -> int:
        summary = await self.client.xpending(self.queue(queue), "workers")
        return int(summary["pending"])

    async def fill(self, count: int, queue: str = "default") -> None:
        """So many hints, written by the server itself."""
        script = "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'e', 'acme/' .. n) end"
        await self.client.eval(script, 1, self.queue(queue), str(count))


def play(url: str, body: Callable[[World], Awaitable[None]], limit: float = 60) -> None:
    async def scenario() -> None:
        client: Redis = Redis.from_url(url, protocol=2)
        world = World(url, client)
        try:
            await asyncio.wait_for(body(world), limit)
        finally:
            await world.close()
            await client.aclose()

    asyncio.run(scenario())


async def got(stream: RedisStream, count: int = 1, limit: float = 20) -> list[Hint]:
    """Receive and ack so many hints that are not just a call to look."""
    hints: list[Hint] = []
    async with asyncio.timeout(limit):
        while len(hints) < count:
            received = await stream.receive(count)
            await stream.ack(received)
            hints += [hint for hint in received if hint.key]
    return hints


async def told_to_look(stream: RedisStream, queue: str = "default", limit: float = 20) -> list[Hint]:
    """Wait for the call to look, and return what came until then."""
    came: list[Hint] = []
    async with asyncio.timeout(limit):
        while Hint("", queue) not in came:
            came += await stream.receive(100)
    return came


async def until(true: Callable[[], Any], limit: float = 20) -> None:
    """Wait for something that the adapter does by itself."""
    deadline = time.monotonic() + limit
    while True:
        answer = true()
        if await answer if asyncio.iscoroutine(answer) else answer:
            return
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)
