"""The bare program of a fleet: a worker and a client that do by hand what the measured executions must do.

A deterministic loop drives the code of an execution; every result is committed before the next step begins; commits of
many executions share one transaction; a Redis stream carries the hints, and the news of the end tells the client its
result. The rows are of the same kind, in the tables of the store. There are no retries, no leases that anybody looks
at, no replay: a program of this kind cannot continue anything after a crash. It marks what Python, PostgreSQL and Redis
leave.

usage: python -m bench.fleet_limit worker|client, with PERDURE_STORE, PERDURE_STREAM and PERDURE_STREAM_PREFIX
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any

import asyncpg
import msgspec
import redis.asyncio
import uvloop
from msgspec import Raw

from bench.limit import increment
from bench.load import One, obey, say
from perdure.core.events import ActionSettled, Completed, Started, row
from perdure.core.records import Row
from perdure.runtime.callers.batch import Batch
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres.address import read_address

_EVENTS = (
    "insert into events (key, version, type, data, at, fence)"
    " select *, 0 from unnest($1::text[], $2::bigint[], $3::smallint[], $4::bytea[], $5::bigint[])"
)
_STARTS = (
    "with made as (insert into heads (key, tenant, workflow, definition, queue, status, sha, base, started_at,"
    " changed_at) select k, 'default', 'bare', 'bare@1', 'default', 'open', '', 1, $3, $3 from unnest($1::text[]) k),"
    " awake as (insert into wakes (key, queue, definition, due, token, born)"
    " select k, 'default', 'bare@1', $3 + 2000000, $3, $3 from unnest($1::text[]) k)"
    " insert into events (key, version, type, data, at, fence) select k, 1, $4, d, $3, 0"
    " from unnest($1::text[], $2::bytea[]) u(k, d)"
)
_HOLDS = "update wakes set holder = $2, token = token + 1, due = $3 where key = any ($1::text[])"
_ENDS = (
    f"with gone as (delete from wakes where key = any ($6::text[])), put as ({_EVENTS})"
    " update heads h set status = 'completed', result = u.r, changed_at = $8"
    " from unnest($6::text[], $7::bytea[]) u(k, r) where h.key = u.k"
)

_encode = msgspec.json.encode


def now() -> int:
    return time.time_ns() // 1000


class Turns(asyncio.AbstractEventLoop):
    """The loop of one execution: it runs what is ready, in order, and collects the steps that the code wishes."""

    def __init__(self) -> None:
        self._ready: deque[events.Handle] = deque()
        self.wishes: list[tuple[int, asyncio.Future[int]]] = []

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise RuntimeError(context)

    def turn(self) -> None:
        """Run until nothing is ready."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while self._ready:
                self._ready.popleft()._run()
        finally:
            events._set_running_loop(outer)

    def take(self) -> list[tuple[int, asyncio.Future[int]]]:
        wishes, self.wishes = self.wishes, []
        return wishes


async def step(n: int) -> int:
    """What the code of an execution awaits: the result of an action that somebody else runs."""
    loop: Any = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    loop.wishes.append((n, future))
    return await future


async def sequence(steps: int) -> int:
    n = 1
    for _ in range(steps):
        n = await step(n)
    return n


async def parallel(width: int) -> int:
    return sum(await asyncio.gather(*(step(1) for _ in range(width))))


PROGRAMS: dict[str, Callable[[], Coroutine[Any, Any, int]]] = {
    "W1": lambda: sequence(1),
    "W5": lambda: sequence(5),
    "F10": lambda: parallel(10),
}


class Write(msgspec.Struct, frozen=True):
    """What one execution commits; the last one has the result and the hint that began it."""

    key: str
    rows: list[Row]
    result: bytes | None = None
    hint: bytes = b""


class Place:
    """Where the tables and the streams are."""

    def __init__(self) -> None:
        self.address = read_address(os.environ["PERDURE_STORE"])
        self.prefix = os.environ["PERDURE_STREAM_PREFIX"]
        self.hints = f"{self.prefix}:hints"

    async def connect(self) -> Any:
        settings = {"search_path": self.address.schema, "jit": "off", "perdure.tenant": "*"}
        return await asyncpg.connect(self.address.dsn, server_settings=settings)

    def redis(self) -> Any:
        return redis.asyncio.from_url(os.environ["PERDURE_STREAM"])

    def news_for(self, client: str) -> str:
        return f"{self.prefix}:news:{client}"


class Worker:
    """Reads hints, runs executions, commits what they did."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._batch: Batch[Write, None] = Batch(self._commit, 400)
        self._running: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._holds, self._commits = await self._place.connect(), await self._place.connect()
        self._reader, self._sender = self._place.redis(), self._place.redis()
        await self._reader.xgroup_create(self._place.hints, "workers", "0", mkstream=True)

    async def serve(self) -> None:
        stream = {self._place.hints: ">"}
        while True:
            found = await self._reader.xreadgroup("workers", "bare", stream, count=200, block=1000)
            if not found:
                continue
            hints = [(hint, fields[b"k"].decode(), fields[b"p"].decode()) for hint, fields in found[0][1]]
            await self._holds.execute(_HOLDS, [key for _, key, _ in hints], "bare", now() + 10_000_000)
            for hint, key, program in hints:
                self._begin(self._run(key, program, hint))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, key: str, program: str, hint: bytes) -> None:
        loop, version, ref = Turns(), 1, 0  # type: ignore[abstract] # what it lacks nobody calls
        main = loop.create_task(PROGRAMS[program]())
        loop.turn()
        while wishes := loop.take():
            if len(wishes) == 1:
                results = [await increment(wishes[0][0])]
            else:
                results = await asyncio.gather(*(increment(n) for n, _ in wishes))
            rows = []
            for (n, future), result in zip(wishes, results, strict=True):
                version, ref = version + 1, ref + 1
                settled = ActionSettled(ref, "increment", Raw(_encode([n])), Raw(_encode(result)))
                rows.append(row(settled, version, now()))
                future.set_result(result)
            # The code may run ahead: what it wishes next waits for the commit.
            loop.turn()
            if main.done():
                result_data = _encode(main.result())
                rows.append(row(Completed(Raw(result_data)), version + 1, now()))
                await self._batch.put(Write(key, rows, result_data, hint))
            else:
                await self._batch.put(Write(key, rows))

    async def _commit(self, group: Sequence[Write]) -> list[None]:
        rows = [(write.key, one) for write in group for one in write.rows]
        columns = (
            [key for key, _ in rows],
            [one.version for _, one in rows],
            [one.type for _, one in rows],
            [one.data for _, one in rows],
            [one.at for _, one in rows],
        )
        ends = [write for write in group if write.result is not None]
        if ends:
            keys, results = [write.key for write in ends], [write.result for write in ends]
            await self._commits.execute(_ENDS, *columns, keys, results, now())
            self._begin(self._tell(ends))  # the next group need not wait for it
        else:
            await self._commits.execute(_EVENTS, *columns)
        return [None] * len(group)

    async def _tell(self, ends: list[Write]) -> None:
        pipeline = self._sender.pipeline(transaction=False)
        pipeline.xack(self._place.hints, "workers", *(write.hint for write in ends))
        for write in ends:
            client = write.key.partition("-")[0].removeprefix("default/")
            pipeline.publish(self._place.news_for(client), _encode([write.key, Raw(write.result or b"")]))
        await pipeline.execute()


class Client:
    """Starts executions and waits for the news of their results."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._me = f"{time.time_ns() // 1_000_000:011x}"
        self._count = 0
        self._batch: Batch[tuple[str, str], None] = Batch(self._start, 400)
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._hinting: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        self._starts, self._sender = await self._place.connect(), self._place.redis()
        news = self._place.redis().pubsub()
        await news.subscribe(self._place.news_for(self._me))
        self._listening = asyncio.create_task(self._listen(news))

    async def _listen(self, news: Any) -> None:
        async for message in news.listen():
            if message["type"] == "message":
                key, result = msgspec.json.decode(message["data"])
                self._waiting.pop(key).set_result(result)

    async def _start(self, group: Sequence[tuple[str, str]]) -> list[None]:
        keys, at = [key for key, _ in group], now()
        first = [row(Started(program, 1, Raw(b"[1]")), 1, at) for _, program in group]
        await self._starts.execute(_STARTS, keys, [one.data for one in first], at, first[0].type)
        pipeline = self._sender.pipeline(transaction=False)
        for key, program in group:
            pipeline.xadd(self._place.hints, {"k": key, "p": program})
        # The next group need not wait until these hints are on their way.
        self._hinting.add(task := asyncio.create_task(pipeline.execute()))
        task.add_done_callback(self._hinting.discard)
        return [None] * len(group)

    def one_of(self, program: str) -> One:
        async def one(number: int) -> float:
            began = time.perf_counter()
            self._count += 1
            key = f"default/{self._me}-{self._count:08x}"
            self._waiting[key] = result = asyncio.get_running_loop().create_future()
            await self._batch.put((key, program))
            await result
            return time.perf_counter() - began

        return one


async def worker() -> None:
    place = Place()
    store = PostgresStore(os.environ["PERDURE_STORE"])
    await store.open()  # makes the tables
    await store.close()
    serving = Worker(place)
    await serving.open()
    say({"event": "ready"})
    await serving.serve()


async def client() -> None:
    asking = Client(Place())
    await asking.open()
    await obey(asking.one_of)
    asking._listening.cancel()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run({"worker": worker, "client": client}[sys.argv[1]]())
