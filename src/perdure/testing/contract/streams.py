"""The contract of the port Stream: hints reach those who serve a queue, a worker by its name, and those who listen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from perdure.core.records import Hint
from perdure.ports import Stream
from perdure.testing.contract.stage import ONE, THREE, TWO, scenario

#: What a test of a stream is given: opens the next stream under a worker's name, for these queues.
Opened: TypeAlias = Callable[..., Awaitable[Stream]]


class StreamContract:
    """Every sentence of the port Stream; a subclass says how to make streams that are connected.

    A stream may lose hints; in the calm of these tests it must not. That something is *not* delivered is seen by what
    comes next, never by waiting.
    """

    #: Whether work arrives elsewhere with its keys; if not, others are only told to look at the queue.
    carries = True

    async def make_streams(self, count: int) -> Sequence[Stream]:
        """So many streams that reach each other, not opened yet."""
        raise NotImplementedError

    def elsewhere(self, *hints: Hint) -> list[Hint]:
        """What work that was published here is to those who serve its queue elsewhere."""
        return list(hints) if self.carries else list(dict.fromkeys(Hint("", hint.queue) for hint in hints))

    async def play(self, body: Callable[[Any, Any], Awaitable[None]]) -> None:
        self.opened: list[Stream] = []
        streams = await self.make_streams(5)
        waiting = iter(streams)

        async def opened(me: str, *queues: str) -> Stream:
            stream = next(waiting)
            await stream.open(me, queues)
            self.opened.append(stream)
            return stream

        try:
            await body(self, opened)
        finally:
            for stream in self.opened:
                await stream.close()

    async def got(self, stream: Stream, limit: int = 100) -> list[Hint]:
        hints = await asyncio.wait_for(stream.receive(limit), 20)
        await stream.ack(hints)
        return list(hints)

    @scenario
    async def test_a_stream_says_whether_it_carries_keys(self, opened: Opened) -> None:
        assert (await opened("w1")).carries is self.carries

    @scenario
    async def test_a_hint_is_received(self, opened: Opened) -> None:
        stream = await opened("w1", "default")
        await stream.publish([Hint(ONE, "default")])
        assert await self.got(stream) == [Hint(ONE, "default")]

    @scenario
    async def test_a_hint_wakes_who_waits(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2")
        waiting = asyncio.create_task(self.got(here))
        await asyncio.sleep(0)
        await there.publish([Hint(ONE, "default")])
        assert await waiting == self.elsewhere(Hint(ONE, "default"))

    @scenario
    async def test_no_more_than_the_limit_is_received(self, opened: Opened) -> None:
        stream = await opened("w1", "default")
        hints = [Hint(f"acme/{number}", "default") for number in range(5)]
        await stream.publish(hints)
        parts = [await self.got(stream, 2) for _ in range(3)]
        assert [len(part) for part in parts] == [2, 2, 1]
        assert [hint for part in parts for hint in part] == hints

    @scenario
    async def test_work_of_other_queues_is_not_received(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2", "other")
        await there.publish([Hint(ONE, "slow"), Hint(TWO, "default")])
        assert await self.got(here) == self.elsewhere(Hint(TWO, "default"))

    @scenario
    async def test_several_queues_are_served(self, opened: Opened) -> None:
        here, there = await opened("w1", "slow", "fast"), await opened("w2")
        await there.publish([Hint(ONE, "slow"), Hint(TWO, "fast")])
        received = await self.got(here)
        while len(received) < 2:
            received += await self.got(here)
        assert sorted(received, key=str) == sorted(self.elsewhere(Hint(ONE, "slow"), Hint(TWO, "fast")), key=str)

    @scenario
    async def test_a_hint_for_a_worker_reaches_that_worker(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2")
        await here.publish([Hint(ONE, "default", to="w2")])
        assert await self.got(there) == [Hint(ONE, "default", to="w2")]

    @scenario
    async def test_a_hint_for_oneself_is_received(self, opened: Opened) -> None:
        here = await opened("w1")
        await here.publish([Hint(ONE, "default", to="w1")])
        assert await self.got(here) == [Hint(ONE, "default", to="w1")]

    @scenario
    async def test_a_hint_for_another_worker_is_not_received(self, opened: Opened) -> None:
        here, _ = await opened("w1", "default"), await opened("w2", "default")
        await here.publish([Hint(ONE, "default", to="w2"), Hint(TWO, "default")])
        assert await self.got(here) == [Hint(TWO, "default")]

    @scenario
    async def test_a_hint_for_a_worker_that_left_is_lost(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2")
        await there.close()
        await here.publish([Hint(ONE, "default", to="w2"), Hint(TWO, "default")])
        assert await self.got(here) == [Hint(TWO, "default")]

    @scenario
    async def test_work_goes_to_somebody_who_serves_the_queue(self, opened: Opened) -> None:
        client, idle = await opened("client"), await opened("w2", "other")
        await idle.listen(TWO)
        here = await opened("w1", "default")
        await client.publish([Hint(ONE, "default")])
        assert await self.got(here) == self.elsewhere(Hint(ONE, "default"))
        await client.publish([Hint(TWO, ended=True)])
        assert await self.got(idle) == [Hint(TWO, ended=True)]

    @scenario
    async def test_work_stays_here_if_we_serve_the_queue(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2", "default")
        hints = [Hint(f"acme/{number}", "default") for number in range(4)]
        await here.listen(ONE)
        await there.publish(hints)
        assert await self.got(there) == hints
        await there.publish([Hint(ONE, ended=True)])
        assert await self.got(here) == [Hint(ONE, ended=True)]

    @scenario
    async def test_news_of_an_end_reaches_everybody_who_listens(self, opened: Opened) -> None:
        streams = [await opened("w1", "default"), await opened("w2", "other"), await opened("client")]
        for stream in streams:
            await stream.listen(ONE)
        await streams[0].publish([Hint(ONE, "default", ended=True)])
        for stream in streams:
            assert await self.got(stream) == [Hint(ONE, "default", ended=True)]

    @scenario
    async def test_other_news_reaches_every_worker_and_nobody_else(self, opened: Opened) -> None:
        here, there, client = await opened("w1", "default"), await opened("w2", "other"), await opened("client")
        await client.listen(ONE)
        await here.publish([Hint("", news="breaker:charge:open:1"), Hint(ONE, ended=True)])
        assert (await self.got(there))[0] == Hint("", news="breaker:charge:open:1")
        assert (await self.got(client))[0] == Hint(ONE, ended=True)

    @scenario
    async def test_publishing_nothing_is_fine(self, opened: Opened) -> None:
        await (await opened("w1")).publish([])

    @scenario
    async def test_publishing_after_close_raises_nothing(self, opened: Opened) -> None:
        stream = await opened("w1", "default")
        await stream.close()
        await stream.publish([Hint(ONE, "default"), Hint(TWO, to="w2"), Hint(THREE, ended=True)])

    @scenario
    async def test_closing_twice_is_fine(self, opened: Opened) -> None:
        stream = await opened("w1", "default")
        await stream.close()
        await stream.close()

    @scenario
    async def test_what_is_published_right_before_a_close_is_received(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("client")
        await here.listen(TWO)
        await there.publish([Hint(ONE, "default"), Hint(TWO, ended=True)])
        await there.close()
        received = await self.got(here)
        while len(received) < 2:
            received += await self.got(here)
        assert set(received) == {*self.elsewhere(Hint(ONE, "default")), Hint(TWO, ended=True)}

    def test_a_stream_is_opened_again_on_another_event_loop(self) -> None:
        """Also if something was left unread when it was closed."""
        here, there = asyncio.run(self.make_streams(2))

        async def meet(me: str, count: int, *hints: Hint) -> None:
            """A worker receives so many of these, and goes."""
            await here.open(me, ["default", "other"])
            await there.open(f"client of {me}", [])
            try:
                await there.publish(hints)
                received: set[Hint] = set()
                async with asyncio.timeout(20):
                    while len(received.intersection(self.elsewhere(*hints))) < count:
                        received.update(await self.got(here, 1))
                assert (here.trouble, there.trouble) == ("", "")
            finally:
                await here.close()
                await there.close()

        asyncio.run(meet("w1", 1, Hint(ONE, "default"), Hint(TWO, "other")))
        asyncio.run(meet("w2", 2, Hint(THREE, "default"), Hint("acme/four", "other")))

    @scenario
    async def test_a_cancelled_receive_loses_nothing(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2")
        waiting = asyncio.create_task(here.receive(10))
        await asyncio.sleep(0)
        await there.publish([Hint(ONE, "default")])
        waiting.cancel()
        received = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(received[0], BaseException):
            assert await self.got(here) == self.elsewhere(Hint(ONE, "default"))

    @scenario
    async def test_many_may_publish_at_once(self, opened: Opened) -> None:
        here = await opened("w1", "default")
        others = [await opened(f"client-{number}") for number in range(4)]
        # To a worker, for that arrives with its key on every stream.
        hints = {number: [Hint(f"acme/{number}-{n}", "default", to="w1") for n in range(50)] for number in range(4)}

        async def publish(number: int) -> None:
            for hint in hints[number]:
                await others[number].publish([hint])
                await asyncio.sleep(0)

        async def receive() -> set[str]:
            received: set[str] = set()
            while len(received) < 200:
                received.update(hint.key for hint in await self.got(here))
            return received

        received, *_ = await asyncio.gather(receive(), *(publish(number) for number in range(4)))
        assert received == {hint.key for each in hints.values() for hint in each}
