"""Two streams as one: the second carries while the first has trouble, and both are always heard."""

from __future__ import annotations

import asyncio

from perdure.core.records import Hint
from perdure.runtime.pair import Pair
from perdure.streams.memory import Hub, MemoryStream


class Troubled(MemoryStream):
    """A stream that a test can break."""

    why = ""

    @property
    def trouble(self) -> str:
        return self.why


async def pair() -> tuple[Pair, MemoryStream, MemoryStream]:
    """A client's pair, and the worker's ends of both streams."""
    first, second = Hub(), Hub()
    client = Pair(Troubled(first), MemoryStream(second))
    ends = MemoryStream(first), MemoryStream(second)
    await client.open("client", ["own"])
    for end in ends:
        await end.open("worker", ["default"])
    return client, *ends


def test_hints_go_through_the_first_until_it_has_trouble() -> None:
    async def body() -> None:
        client, first, second = await pair()
        await client.publish([Hint("acme/one", "default")])
        assert await first.receive(10) == [Hint("acme/one", "default")]
        assert client.carries
        assert isinstance(client.first, Troubled)
        client.first.why = "it is gone"
        assert (client.carries, client.trouble) == (False, "it is gone")
        await client.publish([Hint("acme/two", "default")])
        assert await second.receive(10) == [Hint("acme/two", "default")]
        await client.close()

    asyncio.run(body())


def test_both_are_heard_and_a_cancelled_receive_loses_nothing() -> None:
    async def body() -> None:
        client, first, second = await pair()
        waiting = asyncio.create_task(client.receive(10))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        heard: set[str] = set()
        for end, key in ((first, "acme/one"), (second, "acme/two")):
            await end.publish([Hint(key, "own")])
        async with asyncio.timeout(20):
            while len(heard) < 2:
                heard |= {hint.key for hint in await client.receive(10)}
        await client.close()

    asyncio.run(body())
