"""The stream of many machines: hints through Redis.

Rules kept here: a hint is a reference and may get lost, so nothing here raises but a wrong setting at the beginning;
work that this process serves itself stays here as long as it has little in hand and gets on with it; what it is given
beyond that, and what others serve, goes through Redis, where whoever is free takes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from perdure.core.behalf import for_everybody
from perdure.core.records import Hint
from perdure.errors import SettingsError
from perdure.streams.desk import DeskStream
from perdure.streams.health import Health
from perdure.streams.inbox import Inbox
from perdure.streams.redis.agreement import look_round
from perdure.streams.redis.arrivals import Arrivals, poke, to_queue, to_queues, to_worker
from perdure.streams.redis.hand import Hand
from perdure.streams.redis.house import House
from perdure.streams.redis.keys import Keys
from perdure.streams.redis.news import News, spread, tell
from perdure.streams.redis.reader import Pace, Reader
from perdure.streams.redis.sender import Sender
from perdure.streams.redis.server import FAILURES, Server, end, explain, refused

#: How long a command other than a blocked read may take, in seconds.
TIMEOUT = 2.0
#: Work for our own queues stays here while we have less than this in hand.
NEAR = 100

log = logging.getLogger("perdure.streams")


class RedisStream(DeskStream["_Desk"]):
    """A Stream through the Redis at `url`: redis://, rediss://, redis+cluster:// or rediss+cluster://.

    `batch` hints are read at once, twice as many may be in the worker's hands; a read waits for `block` seconds.
    A hint that a worker was given and did not ack is claimed by another one after `idle` seconds, or two leases; never
    where that is infinite.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "perdure",
        group: str = "workers",
        shards: int = 1,
        batch: int = 500,
        block: float = 5.0,
        lease: float = 10.0,
        idle: float | None = None,
    ) -> None:
        self._url = url
        self._keys = Keys(prefix, group, shards)
        if batch < 1 or block <= 0 or lease <= 0:
            raise SettingsError("batch, block and lease of a Redis stream must be above zero")
        self._pace = Pace(batch, block, lease, 2 * lease if idle is None else idle)

    def _new_desk(self, me: str, queues: Sequence[str]) -> _Desk:
        return _Desk(self._url, self._keys, self._pace, me, queues)

    async def lengths(self) -> dict[str, int]:
        """The entries in each queue that is served here, for metrics; nothing while Redis is out of reach."""
        if self._desk is None:
            return {}
        try:
            return await self._desk.lengths()
        except FAILURES:
            return {}


class _Desk:
    """Everything that belongs to one opening of the stream."""

    def __init__(self, url: str, keys: Keys, pace: Pace, me: str, queues: Sequence[str]) -> None:
        self.inbox = Inbox(me, queues)
        self.health = Health(self._recovered)
        self._keys = keys
        self._server = Server(url, TIMEOUT)
        self._reading = Server(url, pace.block + TIMEOUT)
        self._hearing = Server(url, TIMEOUT)
        self._hand = Hand(2 * pace.batch, 2 * pace.lease)
        self.sender = Sender(self._server, self.health, keys.group)
        self._arrivals = Arrivals(self.inbox, self._hand, self.sender, keys)
        self._house = House(self._server, self._arrivals, self._hand, keys, pace, me)
        self.news = News(self._hearing, self.inbox, self.health, keys)
        streams = [self._arrivals.own, *self._arrivals.queues]
        # A command of a cluster cannot wait for streams that live on different nodes.
        apart = [[stream] for stream in streams] if self._server.cluster else [streams]
        shared = (self._reading, self._arrivals, self._hand, self.health, keys, pace, me)
        self._readers = [Reader(*shared, part) for part in apart]
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Only a wrong setting is an error. A server that is down is a trouble, and comes back some day."""
        try:
            await look_round(self._server, self._keys)
            for reader in self._readers:
                await reader.prepare()
        except FAILURES as error:
            trouble = explain(error, self._server.place)
            if refused(error):
                raise SettingsError(trouble) from error
            for reader in self._readers:
                reader.report(trouble)
        if self.inbox.queues:
            await self.news.listen_to_workers()
        loops = [self.sender.run, self._house.run, *(reader.run for reader in self._readers)]
        self._tasks = [asyncio.create_task(loop(), name="perdure-redis", context=for_everybody()) for loop in loops]

    async def leave(self) -> None:
        """Send what is to be sent, if it can be sent, and be forgotten."""
        await end(self._tasks[1:])
        if not self.health.trouble:
            with suppress(TimeoutError, *FAILURES):
                async with asyncio.timeout(TIMEOUT):
                    await self.sender.calm()
                    await self._house.leave()

    async def close(self) -> None:
        self.inbox.close()
        await self.news.close()
        await end(self._tasks)
        for server in (self._server, self._reading, self._hearing):
            await server.hang_up()

    async def listen(self, key: str) -> None:
        await self.news.listen(key)

    async def receive(self, limit: int) -> Sequence[Hint]:
        return await self.inbox.take(limit)

    def publish(self, hints: Sequence[Hint]) -> None:
        free: list[Hint] = []  # for whoever is free
        ended: list[Hint] = []
        words: list[str] = []
        for hint in hints:
            try:
                if hint.news:
                    words.append(hint.news)
                    if self.inbox.wants(hint):
                        self.inbox.put(hint)
                elif hint.ended:
                    ended.append(hint)
                    if self.news.hears(hint.key):
                        self.inbox.put(hint)
                elif not self._route(hint):
                    hint.key.encode()
                    free.append(hint)
            except UnicodeError:  # a name that cannot be encoded cannot have been stored either
                continue
        for command in (*to_queues(self._keys, free), *tell(self._keys, self.inbox.me, ended)):
            self.sender.send(command)
        if words:
            self.sender.send(spread(self._keys, self.inbox.me, words))

    def _route(self, hint: Hint) -> bool:
        """Send a hint on its way, unless it is for whoever is free."""
        if hint.to == self.inbox.me:
            self.inbox.put(hint)
        elif hint.to is not None:
            self.sender.send(to_worker(self._keys, hint, hint.to))
        elif hint.away and hint.queue:
            self.sender.send(to_queue(self._keys, hint, self.inbox.me))
        elif hint.queue in self.inbox.queues and self._hand.count < NEAR and self._hand.moves:
            self._hand.take(hint, None)
            self.inbox.put(hint)
        else:
            return not hint.queue
        return True

    def ack(self, hints: Sequence[Hint]) -> None:
        self.sender.ack(self._hand.give(hints))
        for reader in self._readers:
            if reader.narrow and self._hand.room >= self._hand.window // 2:
                reader.narrow = False
                self.sender.send(poke(self._keys, self.inbox.me))

    async def lengths(self) -> dict[str, int]:
        lengths: dict[str, int] = {}
        for queue in sorted(self.inbox.queues):
            streams = self._keys.queues(queue)
            lengths[queue] = sum([int(await self._server.call("XLEN", stream)) for stream in streams])
        return lengths

    def _recovered(self) -> None:
        self._arrivals.look()
