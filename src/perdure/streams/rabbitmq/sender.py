"""Sends what is to be sent, on a connection of its own, one flight at a time: what comes meanwhile joins the next one.

A broker that is short of memory or disk stops to read from those who publish, so nothing else may depend on this
connection. Rules kept here: nobody waits for RabbitMQ; a queue is made before something is sent to it, so that it is
there before its first worker, and made again if it has gone; what failed is tried again until newer hints take its
place; what is lost is counted and never raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from pamqp import commands

from perdure.errors import SettingsError
from perdure.streams.health import Health
from perdure.streams.inbox import CAPACITY
from perdure.streams.rabbitmq.address import Address
from perdure.streams.rabbitmq.names import Names
from perdure.streams.rabbitmq.shape import base, queue
from perdure.streams.rabbitmq.wire import FAILURES, Letter, Wire, explain

#: Messages in one flight.
FLIGHT = 500
#: What is kept to be tried again while nothing gets through. More would be stale when it does.
KEPT = 1000
#: The longest pause between two tries, in seconds.
PAUSE = 1.0
PART = "sending"

log = logging.getLogger("perdure.streams")


class Sender:
    """Letters go out in order."""

    def __init__(self, address: Address, names: Names, health: Health, heartbeat: int) -> None:
        self._address = address
        self._names = names
        self._health = health
        self._heartbeat = heartbeat
        self._letters: deque[Letter] = deque()
        self._wire: Wire | None = None
        self._made: set[str] = set()  # queues that are there, as far as we know
        self._bell = asyncio.Event()
        self._calm = asyncio.Event()
        self._calm.set()
        self.lost = 0

    def send(self, letters: Iterable[Letter]) -> None:
        self._letters.extend(letters)
        self._keep(KEPT if self._health.trouble else CAPACITY)
        if self._letters:
            self._calm.clear()
            self._bell.set()

    async def calm(self) -> None:
        """Everything has been sent."""
        await self._calm.wait()

    async def run(self) -> None:
        pause = 0.0
        while True:
            await self._bell.wait()
            trouble = await self._fly()
            if not trouble:
                pause = 0.0
                self._health.good(PART)
                continue
            # A connection that breaks under a flight is made anew at once: that is no trouble yet.
            if pause:
                self._health.bad(PART, trouble)
                self._keep(KEPT)
            pause = min(max(0.05, pause * 2), PAUSE)
            await asyncio.sleep(pause)

    async def leave(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    def hang_up(self) -> None:
        wire, self._wire = self._wire, None
        self._made.clear()
        if wire is not None:
            wire.end(ConnectionError("it was hung up"))

    # What the wire tells

    def arrived(self, consumer: str, tag: int, body: bytes) -> None:
        pass  # nothing is consumed here

    def blocked(self, reason: str) -> None:
        if reason:
            at = f"RabbitMQ at {self._address.place} takes nothing at present ({reason})"
            self._health.bad(PART, f"{at}: give it memory and disk, or find out what fills it")
        else:
            self._health.good(PART)

    # A flight

    async def _fly(self) -> str:
        """Send the next letters, keep what failed, and say why it failed."""
        letters = [self._letters.popleft() for _ in range(min(FLIGHT, len(self._letters)))]
        try:
            wire = await self._prepared({letter.queue for letter in letters if letter.queue is not None})
            back = await wire.fly(self._names.exchange, letters)
        except (SettingsError, *FAILURES) as error:
            self._letters.extendleft(reversed(letters))
            self.hang_up()
            return explain(error, self._address.place)
        except Exception:
            log.exception("a flight of hints broke; they are lost")
            self.lost += len(letters)
            self.hang_up()
            return ""
        if back:  # somebody has taken the queue away
            self._letters.extendleft(reversed(back))
            self._made.difference_update(letter.queue for letter in back if letter.queue is not None)
            return f"RabbitMQ at {self._address.place} does not keep what is sent to it"
        if not self._letters:
            self._bell.clear()
            self._calm.set()
        return ""

    async def _prepared(self, queues: set[str]) -> Wire:
        """A connection, and these queues."""
        wire = self._wire
        if wire is None or wire.ended.done():
            self.hang_up()
            wire = self._wire = Wire(self._address, self, self._heartbeat)
            await wire.open()
            await wire.ask(commands.Confirm.Select(), *base(self._names))
        missing = sorted(queues - self._made)
        if missing:
            await wire.ask(*(call for name in missing for call in queue(self._names, name)))
            self._made.update(missing)
        return wire

    def _keep(self, most: int) -> None:
        while len(self._letters) > most:
            self._letters.popleft()
            self.lost += 1
