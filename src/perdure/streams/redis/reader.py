"""Reads hints, on a connection of its own: an idle process costs one blocked command.

Rules kept here: a read is never interrupted; after every failure the groups are made again where they are missing, and
what was delivered into the void is read from the own pending entries; a worker that has its hands full leaves the
queues to others and reads only what is addressed to it; one misused key does not stop the others.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Sequence

from msgspec import Struct

from perdure.errors import SettingsError
from perdure.streams.health import Health
from perdure.streams.redis.agreement import agree
from perdure.streams.redis.arrivals import SHARED, Arrivals, streams_of
from perdure.streams.redis.hand import Hand
from perdure.streams.redis.keys import Keys
from perdure.streams.redis.server import FAILURES, Server, explain, misused
from perdure.streams.redis.wires import Command

#: The longest pause between two tries to connect, in seconds.
PAUSE = 1.0
#: How often a key that was misused is looked at again, in seconds.
MENDED = 5.0

log = logging.getLogger("perdure.streams")


class Pace(Struct, frozen=True):
    """How much is read at once, and how long is waited for it, in seconds."""

    batch: int
    block: float
    lease: float
    idle: float


class Reader:
    """Reads `own` always and `queues` while there is room in the hand."""

    def __init__(
        self,
        server: Server,
        arrivals: Arrivals,
        hand: Hand,
        health: Health,
        keys: Keys,
        pace: Pace,
        me: str,
        streams: Sequence[str],
    ) -> None:
        self._server = server
        self._arrivals = arrivals
        self._hand = hand
        self._health = health
        self._keys = keys
        self._pace = pace
        self._me = me
        self._streams = streams
        self._misused: set[str] = set()
        self._look_again = 0.0
        self._part = f"reading {streams[0]}"
        self._prepared = False
        self.narrow = False  # the queues are left out of the read that is under way

    async def run(self) -> None:
        pause = 0.0
        while True:
            try:
                if not self._prepared:
                    await self.prepare()
                await self._read()
                pause = 0.0
                continue
            except FAILURES as error:
                self.report(explain(error, self._server.place))
                await self._server.hang_up()
            except SettingsError as error:
                self._health.bad(self._part, str(error))
            except Exception:
                log.exception("reading hints broke; going on")
                self.report("reading hints broke; the log has the error")
                await self._server.hang_up()
            self._prepared = False
            if pause:
                self._arrivals.look()  # as long as nothing comes in, the store is asked
                await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(max(0.05, pause * 2), PAUSE)

    def report(self, trouble: str) -> None:
        self._health.bad(self._part, trouble)

    async def prepare(self) -> None:
        """Make the groups that are missing and take up what is pending."""
        await agree(self._server, self._keys)
        commands: list[Command] = [
            ("XGROUP", "CREATE", stream, self._keys.group, "0", "MKSTREAM") for stream in self._streams
        ]
        if self._arrivals.own in self._streams:
            commands.append(("PEXPIRE", self._arrivals.own, int(3000 * self._pace.lease)))
        self._misused.clear()
        for command, answer in zip(commands, await self._server.many(commands), strict=True):
            if not isinstance(answer, BaseException) or str(answer).startswith("BUSYGROUP"):
                continue
            if not misused(answer):
                raise answer
            self._misused.add(str(command[2]))
        await self._take_up_pending()
        self._prepared = True
        self._look_again = time.monotonic() + MENDED
        if self._misused:
            names = ", ".join(sorted(self._misused))
            self._health.bad(self._part, f"{names} in Redis at {self._server.place} is not a stream: delete it")
        else:
            self._health.good(self._part)

    async def _take_up_pending(self) -> None:
        after: dict[str, bytes] = dict.fromkeys(self._readable(self._streams), b"0")
        while after:
            reply = await self._ask("COUNT", self._pace.batch, streams=after)
            after = {}
            for stream, entries in streams_of(reply):
                if entries:
                    self._arrivals.come(stream, entries, again=True)
                    after[stream] = entries[-1][0]

    async def _read(self) -> None:
        if self._misused and time.monotonic() > self._look_again:
            return await self.prepare()
        own = self._readable(stream for stream in self._streams if stream == self._arrivals.own)
        queues = self._readable(stream for stream in self._streams if stream != self._arrivals.own)
        room = self._hand.room
        streams = own + queues if room > 0 else own
        if not streams:
            await asyncio.sleep(min(self._pace.block, 0.1))
            return None
        self.narrow = len(streams) < len(own) + len(queues)
        count = max(1, min(self._pace.batch, room // max(1, len(queues))) // SHARED)
        block = max(1, int(1000 * (min(self._pace.block, MENDED) if self._misused else self._pace.block)))
        try:
            reply = await self._ask("COUNT", count, "BLOCK", block, streams=dict.fromkeys(streams, b">"))
        finally:
            self.narrow = False
        for stream, entries in streams_of(reply):
            self._arrivals.come(stream, entries)
        return None

    async def _ask(self, *how: str | int, streams: dict[str, bytes]) -> object:
        group = ("GROUP", self._keys.group, self._me)
        first = next(iter(streams))
        return await self._server.call("XREADGROUP", *group, *how, "STREAMS", *streams, *streams.values(), key=first)

    def _readable(self, streams: Iterable[str]) -> list[str]:
        return [stream for stream in streams if stream not in self._misused]
