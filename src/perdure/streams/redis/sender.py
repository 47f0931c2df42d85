"""Sends what is to be sent, one flight at a time: what comes meanwhile is joined in the next one.

Rules kept here: nobody waits for Redis; what failed is tried again until newer hints take its place; what is lost is
counted and never raised. Nobody waits for an ack either, so it flies with the next command, if one comes soon.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from perdure.streams.health import Health
from perdure.streams.inbox import CAPACITY
from perdure.streams.redis.hand import Entry
from perdure.streams.redis.server import FAILURES, Server, explain
from perdure.streams.redis.wires import Command

#: Commands in one flight, and in one command as many entries to ack.
FLIGHT = 1000
#: What is kept to be tried again while nothing gets through. More would be stale when it does.
KEPT = 1000
#: The longest pause between two tries, in seconds.
PAUSE = 1.0
#: How long an ack waits for company, in seconds.
COMPANY = 0.01
PART = "sending"

log = logging.getLogger("perdure.streams")


class Sender:
    """Commands go out in order, acks after them."""

    def __init__(self, server: Server, health: Health, group: str) -> None:
        self._server = server
        self._health = health
        self._group = group
        self._commands: deque[Command] = deque()
        self._acks: deque[Entry] = deque()
        self._waiting: asyncio.TimerHandle | None = None  # for company of the acks
        self._bell = asyncio.Event()
        self._calm = asyncio.Event()
        self._calm.set()
        self.lost = 0

    def send(self, command: Command) -> None:
        self._commands.append(command)
        if len(self._commands) > CAPACITY:
            self.lost += hints_in(self._commands.popleft())
        self._ring()

    def ack(self, entries: Iterable[Entry]) -> None:
        self._acks.extend(entries)
        if self._acks and self._waiting is None:
            self._calm.clear()
            self._waiting = asyncio.get_running_loop().call_later(COMPANY, self._ring)

    async def calm(self) -> None:
        """Everything has been sent, and at once."""
        if not self._calm.is_set():
            self._ring()
        await self._calm.wait()

    async def run(self) -> None:
        pause = 0.0
        while True:
            await self._bell.wait()
            flight = self._next_flight()
            trouble = await self._fly(flight)
            if not trouble:
                pause = 0.0
                self._health.good(PART)
                if not self._commands and not self._acks:
                    self._bell.clear()
                    self._calm.set()
                continue
            # A connection that the server has closed is noticed by the first flight after it: that is no trouble yet.
            if pause:
                self._health.bad(PART, trouble)
                self._keep_newest()
            pause = min(max(0.05, pause * 2), PAUSE)
            await asyncio.sleep(pause)

    def _ring(self) -> None:
        self._calm.clear()
        self._bell.set()

    def _next_flight(self) -> list[Command]:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        flight = [self._commands.popleft() for _ in range(min(FLIGHT, len(self._commands)))]
        ids: dict[str, list[bytes]] = {}
        for _ in range(min(FLIGHT, len(self._acks))):
            entry = self._acks.popleft()
            ids.setdefault(entry.stream, []).append(entry.id)
        for stream, those in ids.items():
            flight += [("XACK", stream, self._group, *those), ("XDEL", stream, *those)]
        return flight

    async def _fly(self, flight: list[Command]) -> str:
        """Send it, keep what failed, and say why it failed."""
        try:
            answers = await self._server.many(flight)
        except FAILURES as error:
            self._commands.extendleft(reversed(flight))
            await self._server.hang_up()
            return explain(error, self._server.place)
        except Exception:
            log.exception("a flight of hints broke; they are lost")
            self.lost += sum(map(hints_in, flight))
            await self._server.hang_up()
            return ""
        failed = [
            (command, answer)
            for command, answer in zip(flight, answers, strict=True)
            if isinstance(answer, BaseException)
        ]
        if not failed:
            return ""
        self._commands.extendleft(command for command, _ in reversed(failed))
        # The server may be another one after a failover: look up where it is.
        await self._server.hang_up()
        return explain(failed[0][1], self._server.place)

    def _keep_newest(self) -> None:
        while len(self._commands) > KEPT:
            self.lost += hints_in(self._commands.popleft())
        while len(self._acks) > KEPT:  # they are claimed by somebody and acked then
            self._acks.popleft()


def hints_in(command: Command) -> int:
    """How many hints a command carries; what carries none counts as one.

    >>> hints_in(("XADD", "queue", "*", b"e", b"acme/1\\nacme/2"))
    2
    """
    return sum(word.count(b"\n") for word in command if isinstance(word, bytes)) + 1
