"""What the tests of the NATS adapter share: streams that are closed again, and a look at the server from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.js.errors import NotFoundError

from perdure.core.records import Hint
from perdure.streams.nats import NatsStream
from perdure.streams.nats.line import end
from perdure.streams.nats.names import Names
from perdure.testing.servers.nats import new_prefix


class World:
    """Streams of one prefix on one server, and a client beside them that connects when it is used."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = new_prefix()
        self.names = Names(self.prefix)
        self._opened: list[NatsStream] = []
        self._client: Any = None

    async def open(self, me: str, *queues: str, **options: Any) -> NatsStream:
        stream = NatsStream(options.pop("url", self.url), **{"prefix": self.prefix, **options})
        await stream.open(me, queues)
        self._opened.append(stream)
        return stream

    async def die(self, stream: NatsStream) -> None:
        """As if the process had been killed: it says goodbye to nobody."""
        task, stream._task = stream._task, None
        assert task is not None
        await end([task])
        await stream.close()

    async def client(self) -> Any:
        if self._client is None:
            self._client = await nats.connect(self.url)
        return self._client

    async def manager(self) -> Any:
        return (await self.client()).jsm()

    async def kept(self) -> int:
        """The messages that JetStream keeps."""
        try:
            return int((await (await self.manager()).stream_info(self.names.stream)).state.messages)
        except NotFoundError:
            return 0

    async def pending(self, queue: str = "default") -> int:
        """The messages that somebody was given and has not acked."""
        return int((await self._consumer(queue)).num_ack_pending)

    async def asking(self, queue: str = "default") -> int:
        """How many workers wait for work."""
        return int((await self._consumer(queue)).num_waiting)

    async def _consumer(self, queue: str) -> Any:
        return await (await self.manager()).consumer_info(self.names.stream, self.names.consumer(queue))

    async def close(self) -> None:
        for stream in self._opened:
            await stream.close()
        if self._client is not None:
            await self._client.close()


def play(url: str, body: Callable[[World], Awaitable[None]], limit: float = 30) -> None:
    async def scenario() -> None:
        world = World(url)
        try:
            await asyncio.wait_for(body(world), limit)
        finally:
            await world.close()

    asyncio.run(scenario())


async def got(stream: NatsStream, count: int = 1, limit: float = 15) -> list[Hint]:
    """Receive and ack so many hints that are not just a call to look."""
    hints: list[Hint] = []
    async with asyncio.timeout(limit):
        while len(hints) < count:
            received = await stream.receive(count)
            await stream.ack(received)
            hints += [hint for hint in received if hint.key or hint.news]
    return hints


async def told_to_look(stream: NatsStream, queue: str = "default", limit: float = 15) -> list[Hint]:
    """Wait for the call to look, and return what came until then."""
    came: list[Hint] = []
    async with asyncio.timeout(limit):
        while Hint("", queue) not in came:
            came += await stream.receive(100)
    return came


async def until(true: Callable[[], Any], limit: float = 15) -> None:
    """Wait for something that the adapter does by itself."""
    deadline = time.monotonic() + limit
    while True:
        answer = true()
        if await answer if asyncio.iscoroutine(answer) else answer:
            return
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)
