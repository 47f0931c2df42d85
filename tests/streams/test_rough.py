"""Streams that lose, double and reorder what they carry: whichever it is, every execution ends once and right."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perdure import Perdure, action, event, workflow
from perdure.core.records import Hint
from perdure.ports import Store, Stream
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres import PostgresStore
from perdure.stores.sqlite import SqliteStore
from perdure.streams.local import LocalStream
from perdure.streams.memory import Hub, MemoryStream
from perdure.streams.postgres import PostgresStream
from perdure.streams.rabbitmq import RabbitStream
from perdure.streams.redis import RedisStream
from perdure.testing.invariants import check_log
from perdure.testing.servers.valkey import new_prefix

COUNT = 40
calls: Counter[str] = Counter()


@action
async def rough_step(number: int) -> int:
    calls[action.key] += 1
    return number


@workflow
async def rough_ride(number: int) -> int:
    first = await rough_step(number)
    heard: int = await event("go", int)
    await asyncio.sleep(0.02)
    return first + heard + await rough_step(1)


class Rough:
    """A Stream around another one, on which a third gets lost and a third comes twice, all of it in disorder.

    What nobody knows and what has ended long ago comes besides.
    """

    def __init__(self, stream: Stream, dice: Random) -> None:
        self._stream, self._dice = stream, dice
        self.open, self.close, self.listen = stream.open, stream.close, stream.listen
        self.ack = stream.ack
        self.fates: Counter[int] = Counter()
        self._past: list[Hint] = []

    @property
    def carries(self) -> bool:
        return self._stream.carries

    @property
    def trouble(self) -> str:
        return self._stream.trouble

    def _mix(self, hints: Sequence[Hint]) -> list[Hint]:
        mixed: list[Hint] = []
        for hint in hints:
            copies = self._dice.choice((0, 1, 2))
            self.fates[copies] += 1
            mixed += [hint] * copies
        self._dice.shuffle(mixed)
        return mixed

    async def publish(self, hints: Sequence[Hint]) -> None:
        self._past += hints
        odd = [Hint("default/nobody", "default"), self._dice.choice(self._past)] if self._past else []
        await self._stream.publish(self._mix([*hints, *odd]))

    async def receive(self, limit: int) -> Sequence[Hint]:
        hints = list(await self._stream.receive(limit))
        twice = [hint for hint in hints if self._dice.random() < 0.5]
        self._dice.shuffle(hints)
        return hints + twice


class Backend:
    """Makes stores and streams of one kind that reach each other, as those of several processes would."""

    def __init__(self, kind: str, folder: Path, postgres: str, redis: str, rabbitmq: str) -> None:
        self.kind, self._file, self._postgres, self._redis = kind, f"{folder}/rough.db", postgres, redis
        self._rabbitmq = rabbitmq
        self._hub, self._memory, self._prefix = Hub(), MemoryStore(), new_prefix()

    def make(self) -> tuple[Store, Stream]:
        match self.kind:
            case "memory":
                return self._memory, MemoryStream(self._hub)
            case "local":
                return SqliteStore(self._file), LocalStream(self._file)
            case "postgres":
                store = PostgresStore(self._postgres)
                return store, PostgresStream(store.address.dsn, store.address.channel)
            case "rabbitmq":
                return SqliteStore(self._file), RabbitStream(self._rabbitmq, prefix=self._prefix)
            case _:
                return PostgresStore(self._postgres), RedisStream(self._redis, prefix=self._prefix)


@pytest.mark.parametrize("kind", ["memory", "local", "postgres", "redis", "rabbitmq"])
def test_hints_may_be_lost_doubled_and_out_of_order(
    kind: str, tmp_path: Path, postgres: str, redis_url: str, request: pytest.FixtureRequest
) -> None:
    rabbitmq = request.getfixturevalue("rabbit_url") if kind == "rabbitmq" else ""
    backend, dice = Backend(kind, tmp_path, postgres, redis_url, rabbitmq), Random(11)
    settings: dict[str, Any] = {"grace": 0.3, "probe": 0.3, "lease": 5}

    async def scenario() -> Counter[int]:
        async with AsyncExitStack() as stack:
            rough: list[Rough] = []
            apps: list[Perdure] = []
            for _ in range(3):
                store, stream = backend.make()
                rough.append(Rough(stream, dice))
                apps.append(await stack.enter_async_context(Perdure(store, stream=rough[-1], **settings)))
            for app in apps[1:]:
                await stack.enter_async_context(app.working())
            client = apps[0]
            runs = [await client.start(rough_ride, number, id=f"ride-{number}") for number in range(COUNT)]
            for number, run in enumerate(runs):
                for _ in range(2):
                    await run.send("go", 100, id="go")
                if number % 10 == 0:
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(25):
                for number, run in enumerate(runs):
                    await run.until("completed")
                    assert await run.result() == number + 101
            for run in runs:
                check_log([row async for row in run.rows()], run.key)
            return sum((one.fates for one in rough), Counter[int]())

    calls.clear()
    fates = asyncio.run(scenario())
    assert min(fates[copies] for copies in (0, 1, 2)) > 20, fates
    assert (len(calls), set(calls.values())) == (2 * COUNT, {1}), "nobody died, so no call was made again"
