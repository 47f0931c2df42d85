"""Processes that die by SIGKILL at a given step of the protocol, before or after the step takes effect.

usage: dying_process.py STORE STREAM PREFIX LEDGER POINT…

A point is VERB-before-N or VERB-after-N: the N-th call. Every point has a process of its own, forked from this one,
with an execution and a queue of the same name. How each process ended is printed as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from perdure import Perdure, event, workflow
from perdure.core.records import Commit, Due, End, Hint, HoldAnswer, Mail, Outcome, Sent, Start, Started
from perdure.ports import Stream
from perdure.runtime import backends
from perdure.runtime.pair import Pair
from perdure.runtime.settings import load
from perdure.stores.postgres import PostgresStore
from perdure.stores.redis import RedisStore
from tests.acceptance import cluster_flows
from tests.acceptance.cluster_flows import work

T = TypeVar("T")
#: How many die at the same time.
AT_ONCE = 6
SETTINGS: dict[str, Any] = {"lease": 0.9, "grace": 0.2, "probe": 0.3, "linger": 0, "lapses": 10}


async def errand(item: str) -> str:
    """Actions side by side, events, a timer, a child, and an action that is longer than a third of the lease."""
    async with asyncio.TaskGroup() as group:
        group.create_task(work("charge"))
        group.create_task(work("reserve"))
    to = await event("address", str)
    await asyncio.sleep(0.05)
    await work("pack", 0.5)
    wrapped = await children["dying_parcel"](item)
    name = await event("name", str)
    return f"{await work('ship')} {wrapped} {name} {to}"


async def parcel(item: str) -> str:
    return f"{await work('wrap')} {item}"


#: By name: every process has them on a queue of its own.
children: dict[str, Any] = {}


def declared(**how: Any) -> Any:
    """The errand and its child as workflows."""
    children["dying_parcel"] = workflow(parcel, name="dying_parcel", **how)
    return workflow(errand, name="dying_errand", **how)


class Fuse:
    """Counts the calls of one verb, and ends the process at the n-th."""

    def __init__(self, point: str) -> None:
        self.verb, self._when, number = point.split("-")
        self._left = int(number)

    async def around(self, verb: str, call: Awaitable[T]) -> T:
        mine = verb == self.verb
        if mine:
            self._left -= 1
        self._burn("before", mine)
        answer = await call
        self._burn("after", mine)
        return answer

    def _burn(self, when: str, mine: bool) -> None:
        if mine and self._left == 0 and when == self._when:
            os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """Goes before a store: each verb may be the last."""

    def __init__(self, url: str, fuse: Fuse) -> None:
        super().__init__(url)
        self._fuse = fuse

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        return await self._fuse.around("start", super().start(starts, grace))

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        return await self._fuse.around("send", super().send(mail, grace))

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        return await self._fuse.around("hold", super().hold(keys, me, lease, known))

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        return await self._fuse.around("renew", super().renew(holds, lease))

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        await self._fuse.around("release", super().release(holds))

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        return await self._fuse.around("claim", super().claim(queues, definitions, limit, grace))

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        """The one that ends the execution, one that parks it, or one in between."""
        settles = [commit.settle for commit in group if commit.settle is not None]
        verb = ("end" if isinstance(settles[0], End) else "park") if settles else "step"
        return await self._fuse.around(verb, super().commit(group, grace))


class DyingPostgres(Dying, PostgresStore):
    pass


class DyingRedis(Dying, RedisStore):
    pass


class DyingStream:
    """A Stream around another one: what is published or acked may be the last."""

    def __init__(self, stream: Stream, fuse: Fuse) -> None:
        self._stream = stream
        self._fuse = fuse
        self.open, self.close = stream.open, stream.close
        self.listen, self.receive = stream.listen, stream.receive

    @property
    def carries(self) -> bool:
        return self._stream.carries

    @property
    def trouble(self) -> str:
        return self._stream.trouble

    async def publish(self, hints: Sequence[Hint]) -> None:
        await self._fuse.around("publish", self._stream.publish(hints))

    async def ack(self, hints: Sequence[Hint]) -> None:
        await self._fuse.around("ack", self._stream.ack(hints))


def dying_app(store: str, stream: str, prefix: str, point: str) -> Perdure:
    fuse = Fuse(point)
    settings = load({}, store=store, stream=stream, stream_prefix=prefix, queues=point, **SETTINGS)
    _, own = backends.connect(store)
    both = Pair(backends.stream(settings), own) if stream else own
    dying = DyingRedis if store.startswith("redis") else DyingPostgres
    return Perdure(dying(store, fuse), stream=DyingStream(both, fuse), settings=settings)


async def live(store: str, stream: str, prefix: str, point: str) -> None:
    """Client and worker in one; the worker whose turn is to release leaves in the middle."""
    mine = declared(queue=point)
    app = dying_app(store, stream, prefix, point)
    async with app, app.working(drain=0):
        run = await app.start(mine, "book", id=point)
        await run.send("address", "Berlin", id="address")
        await run.send("name", "Ada", id="name")
        if point.startswith("release"):
            while not packing(point):
                await asyncio.sleep(0.02)
        else:
            await run.result(timeout=20)


def packing(point: str) -> bool:
    calls = [json.loads(line) for line in Path(cluster_flows.LEDGER).read_text().splitlines()]
    return (point, "pack") in [(call["execution"], call["step"]) for call in calls]


def spawn(store: str, stream: str, prefix: str, point: str) -> int:
    if child := os.fork():
        return child
    try:
        asyncio.run(live(store, stream, prefix, point))
    except BaseException as error:
        print(f"{point}: {error!r}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def main(store: str, stream: str, prefix: str, ledger: str, *points: str) -> None:
    cluster_flows.LEDGER = ledger
    waiting, running, ended = list(points), dict[int, str](), dict[str, int]()
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            point = waiting.pop(0)
            running[spawn(store, stream, prefix, point)] = point
        child, status = os.wait()
        ended[running.pop(child)] = os.waitstatus_to_exitcode(status)
    print(json.dumps(ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
