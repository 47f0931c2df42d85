from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from perdure.core.records import Hint
from perdure.errors import UsageError
from perdure.ports import Stream
from perdure.streams import inbox
from perdure.streams.memory import Hub, MemoryStream
from perdure.testing.contract import StreamContract


class TestMemoryStream(StreamContract):
    async def make_streams(self, count: int) -> Sequence[Stream]:
        hub = Hub()
        return [MemoryStream(hub) for _ in range(count)]


def test_streams_without_a_common_hub_do_not_meet() -> None:
    async def scenario() -> None:
        one, two = MemoryStream(), MemoryStream()
        await one.open("w1", ["default"])
        await two.open("w2", ["default"])
        await one.publish([Hint("acme/one", to="w2"), Hint("acme/two", ended=True)])
        await two.publish([Hint("acme/three", "default")])
        assert await two.receive(10) == [Hint("acme/three", "default")]

    asyncio.run(scenario())


def test_work_goes_to_the_workers_in_turn() -> None:
    async def scenario() -> None:
        hub = Hub()
        client, *workers = (MemoryStream(hub) for _ in range(4))
        for number, worker in enumerate(workers):
            await worker.open(f"w{number}", ["default"])
        await client.publish([Hint(f"acme/{number}", "default") for number in range(9)])
        assert [len(await worker.receive(10)) for worker in workers] == [3, 3, 3]

    asyncio.run(scenario())


def test_beyond_the_capacity_the_oldest_hints_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(inbox, "CAPACITY", 3)
        stream = MemoryStream()
        await stream.open("w1", ["default"])
        await stream.publish([Hint(f"acme/{number}", "default") for number in range(5)])
        assert [hint.key for hint in await stream.receive(10)] == ["acme/2", "acme/3", "acme/4"]

    asyncio.run(scenario())


def test_who_waits_at_a_closing_stream_is_told() -> None:
    async def scenario() -> None:
        stream = MemoryStream()
        await stream.open("w1", ["default"])
        waiting = asyncio.create_task(stream.receive(1))
        await asyncio.sleep(0)
        await stream.close()
        with pytest.raises(UsageError, match="closed"):
            await waiting
        with pytest.raises(UsageError, match="not open"):
            await stream.receive(1)

    asyncio.run(scenario())


def test_work_that_is_sent_away_goes_to_another() -> None:
    async def scenario() -> None:
        hub = Hub()
        here, there = MemoryStream(hub), MemoryStream(hub)
        await here.open("w1", ["default"])
        await there.open("w2", ["default"])
        hint = Hint("acme/one", "default", away=True)
        await here.publish([hint])
        assert await there.receive(10) == [hint]
        await there.close()
        await here.publish([hint])  # nobody else is there
        assert await here.receive(10) == [hint]

    asyncio.run(scenario())
