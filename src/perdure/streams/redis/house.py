"""Keeps house: the own stream alive, forgotten entries claimed, dead consumers removed.

Rules kept here: only entries that lay idle for two leases are claimed, so a slow worker is not robbed; the cursor is
kept, so the tail of a long list of pending entries has its turn; a consumer is removed only when nothing is pending
for it, because its pending entries would go with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from contextlib import suppress

from redis.exceptions import ResponseError

from perdure.streams.redis.arrivals import SHARED, Arrivals
from perdure.streams.redis.hand import Hand
from perdure.streams.redis.keys import Keys
from perdure.streams.redis.reader import Pace
from perdure.streams.redis.server import FAILURES, Server

#: A consumer that was idle for so many seconds is dead, or has nothing to lose.
DEAD = 3600.0
#: Dead consumers are looked for once in so many rounds.
ROUNDS = 30

log = logging.getLogger("perdure.streams")


class House:
    """One round per lease."""

    def __init__(self, server: Server, arrivals: Arrivals, hand: Hand, keys: Keys, pace: Pace, me: str) -> None:
        self._server = server
        self._arrivals = arrivals
        self._hand = hand
        self._group = keys.group
        self._pace = pace
        self._me = me
        self._cursors: dict[str, bytes] = {}

    async def run(self) -> None:
        rounds = random.randrange(ROUNDS)
        while True:
            await asyncio.sleep(self._pace.lease * random.uniform(0.8, 1))
            rounds += 1
            try:
                await self.claim()
                if rounds % ROUNDS == 0:
                    await self.bury()
            except FAILURES as error:
                log.debug("keeping house waits for Redis: %s", error)  # the reader says so aloud
            except Exception:
                log.exception("keeping house broke; going on")

    async def claim(self) -> None:
        """Renew the own stream and take up what others were given and forgot, as far as there is room."""
        await self._server.call("PEXPIRE", self._arrivals.own, int(3000 * self._pace.lease))
        if math.isinf(self._pace.idle):
            return
        idle = int(1000 * self._pace.idle)
        for stream in self._arrivals.queues:
            room = self._hand.room
            if room <= 0:
                return
            cursor = self._cursors.get(stream, b"0-0")
            count = ("COUNT", max(1, min(self._pace.batch, room) // SHARED))
            with suppress(ResponseError):  # one misused key does not stop the others
                reply = await self._server.call("XAUTOCLAIM", stream, self._group, self._me, idle, cursor, *count)
                self._cursors[stream] = reply[0]
                self._arrivals.come(stream, reply[1])

    async def bury(self) -> None:
        """Remove consumers that will not come back."""
        for stream in self._arrivals.queues:
            for facts in await self._server.call("XINFO", "CONSUMERS", stream, self._group, key=stream):
                about = dict(zip(facts[::2], facts[1::2], strict=True))
                name, dead = about[b"name"], about[b"idle"] > DEAD * 1000
                if dead and about[b"pending"] == 0 and name != self._me.encode():
                    await self._server.call("XGROUP", "DELCONSUMER", stream, self._group, name, key=stream)

    async def leave(self) -> None:
        """Nobody needs to remember us."""
        await self._server.call("DEL", self._arrivals.own)
        for stream in self._arrivals.queues:
            ours = ("XPENDING", stream, self._group, "-", "+", 1, self._me)
            if not await self._server.call(*ours, parse_detail=True):
                await self._server.call("XGROUP", "DELCONSUMER", stream, self._group, self._me, key=stream)
