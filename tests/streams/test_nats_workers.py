"""Workers of several processes, in one process: they share a store in memory and meet only through NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from perdure import Perdure, action, workflow
from perdure.core.records import HoldAnswer
from perdure.errors import StoreUnavailable
from perdure.stores.memory import MemoryStore
from perdure.streams.nats import NatsStream
from perdure.testing.servers.nats import NatsServer, new_prefix
from tests.streams.nats_world import World, play, until


@action
async def nats_double(who: str) -> str:
    await asyncio.sleep(0.01)
    return who + who


@workflow
async def nats_errand(who: str) -> str:
    return await nats_double(who)


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


@asynccontextmanager
async def fleet(url: str, store: MemoryStore, grace: str) -> AsyncIterator[tuple[Perdure, list[Perdure]]]:
    """A client and two workers that look at their store only when they are hinted, for a minute."""
    prefix = new_prefix()
    async with AsyncExitStack() as stack:
        apps: list[Perdure] = []
        for _ in range(3):
            app = Perdure(store, stream=NatsStream(url, prefix=prefix), resident=10, probe="60s", grace=grace)
            apps.append(await stack.enter_async_context(app))
        for app in apps[1:]:
            await stack.enter_async_context(app.working())
        yield apps[0], apps[1:]


async def finish(client: Perdure, count: int) -> None:
    """Every execution has its result; looked up, because the wait for news is another matter."""
    for number in range(count):
        while (head := await client.store.head(f"default/run-{number}")) is None or head.status != "completed":
            await asyncio.sleep(0.01)
        assert head.result == f'"{f"who-{number}" * 2}"'.encode()


def test_hints_alone_bring_the_work_of_a_client_to_all_workers(nats_url: str) -> None:
    async def scenario() -> None:
        store = Witness()
        async with fleet(nats_url, store, grace="60s") as (client, workers):
            for number in range(60):
                await client.start(nats_errand, f"who-{number}", id=f"run-{number}")
            await finish(client, 60)
            assert store.holders == {worker.me for worker in workers}
            run = await client.start(nats_errand, "Ada")
            assert await run.result(timeout=10) == "AdaAda", "the news of its end came"

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_work_goes_on_while_nats_is_away() -> None:
    async def scenario(server: NatsServer) -> None:
        async with fleet(server.url, MemoryStore(), grace="1s") as (client, workers):
            for number in range(60):
                if number == 20:
                    server.kill()
                    while any(app.stream.carries for app in (client, *workers)):
                        await asyncio.sleep(0.01)
                if number == 40:
                    await finish(client, 40)
                    server.forget()
                    server.start()
                await client.start(nats_errand, f"who-{number}", id=f"run-{number}")
            await finish(client, 60)

    with NatsServer() as server:
        asyncio.run(asyncio.wait_for(scenario(server), 30))


class Gated(MemoryStore):
    """Fails the first hold, and answers the second when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []
        self.gate = asyncio.Event()

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        self.asked.append(asyncio.get_running_loop().time())
        if len(self.asked) == 1:
            raise StoreUnavailable("not now; nothing was written")
        answers = await super().hold(keys, me, lease, known)
        await self.gate.wait()
        return answers


def test_a_hint_is_acked_when_its_hold_is_written_and_comes_again_if_it_is_not(nats_url: str) -> None:
    idle = 1.0

    async def body(world: World) -> None:
        store = Gated()

        def app() -> Perdure:
            stream = NatsStream(nats_url, prefix=world.prefix, lease=0.5, idle=idle)
            return Perdure(store, stream=stream, probe="60s", grace="60s", lease="60s")

        async with app() as client, app() as worker, worker.working():
            await client.start(nats_errand, "who-0", id="run-0")
            # Only the hint brings it here: what is due comes in a minute.
            await until(lambda: len(store.asked) == 1)
            assert await world.pending() == 1, "it was acked before anything was written"
            await until(lambda: len(store.asked) == 2)
            assert store.asked[1] - store.asked[0] >= idle * 0.8, "it came again before its time"
            await asyncio.sleep(0.1)
            assert await world.pending() == 1, "it was acked before the answer to its hold"
            store.gate.set()
            await finish(client, 1)
            await until(lambda: acked(world))

    async def acked(world: World) -> bool:
        return await world.kept() == 0

    play(nats_url, body)
