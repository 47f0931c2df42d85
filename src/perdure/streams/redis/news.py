"""News: every process hears the channels on which it waits for somebody's end, and every worker what others tell.

Rules kept here: who listens waits until the server has confirmed it, so nothing that ends later is missed; a channel
that was asked for once is heard until the end; news that got lost is made up for by those who wait, who look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.behalf import for_everybody
from perdure.core.records import Hint
from perdure.streams.health import Health
from perdure.streams.inbox import Inbox
from perdure.streams.redis.keys import Keys
from perdure.streams.redis.server import FAILURES, Server, end, explain
from perdure.streams.redis.wires import Command

#: How long a listener waits for the confirmation, in seconds.
CONFIRMED = 2.0
#: A silence of so many seconds is broken by a question whether anybody is there.
SILENCE = 15.0
PAUSE = 1.0
PART = "hearing news"

log = logging.getLogger("perdure.streams")


class _Bulletin(Struct, frozen=True, array_like=True):
    sender: str
    ended: list[tuple[str, str, str, str]]  # key, queue, status and result
    words: list[str] = []  # other news, for workers


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Bulletin).decode


def tell(keys: Keys, me: str, ended: Sequence[Hint]) -> list[Command]:
    """One message per channel."""
    channels: dict[str, list[tuple[str, str, str, str]]] = {}
    for hint in ended:
        channels.setdefault(keys.news(hint.key), []).append((hint.key, hint.queue, hint.status, hint.result))
    return [("PUBLISH", channel, _encode(_Bulletin(me, those))) for channel, those in channels.items()]


def spread(keys: Keys, me: str, words: list[str]) -> Command:
    """News for every worker."""
    return "PUBLISH", keys.words, _encode(_Bulletin(me, [], words))


class News:
    """What this process hears. Nothing is connected before somebody listens."""

    def __init__(self, server: Server, inbox: Inbox, health: Health, keys: Keys) -> None:
        self._server = server
        self._inbox = inbox
        self._health = health
        self._keys = keys
        self._channels: dict[str, asyncio.Event] = {}  # set once it is confirmed
        self._line: Any = None  # a connection of the driver
        self._asked: set[str] = set()  # channels that were asked for on it
        self._subscribing = asyncio.Lock()
        self._pause = 0.05
        self._task: asyncio.Task[None] | None = None

    def hears(self, key: str) -> bool:
        return self._keys.news(key) in self._channels

    async def listen(self, key: str) -> None:
        await self._join(self._keys.news(key))

    async def listen_to_workers(self) -> None:
        await self._join(self._keys.words)

    async def _join(self, channel: str) -> None:
        confirmed = self._channels.setdefault(channel, asyncio.Event())
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="perdure-news", context=for_everybody())
        elif channel not in self._asked:
            with suppress(*FAILURES):
                await self._subscribe()
        if not confirmed.is_set() and not self._health.trouble:
            with suppress(TimeoutError):
                async with asyncio.timeout(CONFIRMED):
                    await confirmed.wait()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await end([task])

    async def _subscribe(self) -> None:
        """Ask for what was not asked for yet, also by those who were cancelled before they could."""
        async with self._subscribing:  # one at a time: the first one connects
            line, asked, missing = self._line, self._asked, self._channels.keys() - self._asked
            if line is not None and missing:
                await line.send_command("SUBSCRIBE", *missing, check_health=False)
                asked |= missing

    async def _run(self) -> None:
        while True:
            try:
                line = await self._server.listener()
                try:
                    await self._hear(line)
                finally:
                    self._line = None
                    for confirmed in self._channels.values():
                        confirmed.clear()
                    await line.disconnect(nowait=True)
            except FAILURES as error:
                self._health.bad(PART, explain(error, self._server.place))
                await self._server.hang_up()
            except Exception:
                log.exception("hearing news broke; going on")
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, PAUSE)

    async def _hear(self, line: Any) -> None:
        self._line, self._asked = line, set()
        await self._subscribe()
        asked = False
        while True:
            message = await line.read_response(timeout=SILENCE / 5 if asked else SILENCE)
            if message is not None:
                asked = False
                self._take(message)
            elif asked:
                raise TimeoutError("it does not answer")
            else:
                asked = True
                await line.send_command("PING", check_health=False)

    def _take(self, message: list[Any]) -> None:
        match message:
            case [b"subscribe", channel, _]:
                self._channels[channel.decode()].set()
                self._health.good(PART)
                self._pause = 0.05
            case [b"message", _, data]:
                self._publish(data)
            case _:
                pass

    def _publish(self, data: bytes) -> None:
        try:
            bulletin = _decode(data)
        except (msgspec.MsgspecError, ValueError):
            return
        if bulletin.sender == self._inbox.me:
            return  # it was told at once
        for key, queue, status, result in bulletin.ended:
            self._inbox.put(Hint(key, queue, ended=True, status=status, result=result))
        for word in bulletin.words:
            self._inbox.put(Hint("", news=word))
