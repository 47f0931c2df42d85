"""What the tests of the Kafka adapter share: streams that are closed again, and a look at the broker from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from perdure.core.records import Hint, HoldAnswer
from perdure.ports import Stream
from perdure.stores.memory import MemoryStore
from perdure.streams.kafka import KafkaStream
from perdure.streams.kafka.names import Names
from perdure.testing.servers.kafka import new_prefix
from tests.streams.redis_world import until

__all__ = ["Witness", "World", "got", "play", "told_to_look", "until"]


class World:
    """Streams of one prefix on one broker."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = new_prefix()
        self.names = Names(self.prefix)
        self._opened: list[KafkaStream] = []

    async def open(self, me: str, *queues: str, **options: Any) -> KafkaStream:
        stream = KafkaStream(self.url, **{"prefix": self.prefix, "block": 0.1, "idle": 1.0, **options})
        await stream.open(me, queues)
        self._opened.append(stream)
        return stream

    async def serving(self, me: str, *queues: str, parts: int = 1, **options: Any) -> KafkaStream:
        """A worker that the group has given this many partitions."""
        stream = await self.open(me, *queues, **options)
        await until(lambda: owns(stream) == parts)
        return stream

    async def close(self) -> None:
        await asyncio.gather(*(stream.close() for stream in self._opened))

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.url.removeprefix("kafka://"), "log_level": 0})

    def write(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        """A record from a stranger."""
        producer = Producer({"bootstrap.servers": self.url.removeprefix("kafka://"), "log_level": 0})
        producer.produce(topic, value, key)
        assert producer.flush(10) == 0


class Witness(MemoryStore):
    """Remembers who held something."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: set[str] = set()

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        self.holders.add(me)
        return await super().hold(keys, me, lease, known)


def owns(stream: Stream) -> int:
    """How many partitions of queues it reads."""
    assert isinstance(stream, KafkaStream) and stream._desk is not None
    return len(stream._desk._ours)


def play(url: str, body: Callable[[World], Awaitable[None]], limit: float = 40) -> None:
    async def scenario() -> None:
        world = World(url)
        try:
            await asyncio.wait_for(body(world), limit)
        finally:
            await world.close()

    asyncio.run(scenario())


async def got(stream: KafkaStream, count: int = 1, limit: float = 20) -> list[Hint]:
    """Receive and ack so many hints that are not just a call to look."""
    hints: list[Hint] = []
    async with asyncio.timeout(limit):
        while len(hints) < count:
            received = await stream.receive(count)
            await stream.ack(received)
            hints += [hint for hint in received if hint.key]
    return hints


async def told_to_look(stream: KafkaStream, queue: str = "default", limit: float = 20) -> list[Hint]:
    """Wait for the call to look, and return what came until then."""
    came: list[Hint] = []
    async with asyncio.timeout(limit):
        while Hint("", queue) not in came:
            came += await stream.receive(100)
    return came
