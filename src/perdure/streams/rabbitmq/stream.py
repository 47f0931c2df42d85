"""The stream of a fleet that has a RabbitMQ: hints over AMQP 0-9-1.

Rules kept here: a hint is a reference and may get lost, so nothing here raises but a wrong setting at the beginning;
work that this process serves itself stays here as long as it has little in hand and gets on with it; what it is given
beyond that, and what others serve, goes to the broker, where whoever is free takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from perdure.core.behalf import for_everybody
from perdure.core.records import Hint
from perdure.errors import SettingsError
from perdure.streams.desk import DeskStream
from perdure.streams.health import Health
from perdure.streams.inbox import Inbox
from perdure.streams.rabbitmq.address import Address, read_address
from perdure.streams.rabbitmq.hand import Hand
from perdure.streams.rabbitmq.letters import to_listeners, to_queues, to_worker, to_workers
from perdure.streams.rabbitmq.names import Names
from perdure.streams.rabbitmq.receiver import Pace, Receiver
from perdure.streams.rabbitmq.sender import Sender
from perdure.streams.rabbitmq.wire import FAILURES, Letter, explain, refused

#: Work for our own queues stays here while we have less than this in hand.
NEAR = 100
#: How long we try to send what is left when we leave, in seconds.
FAREWELL = 2.0


class RabbitStream(DeskStream["_Desk"]):
    """A Stream through the RabbitMQ at `url`: amqp://USER:PASSWORD@HOST/VHOST, or amqps:// for TLS.

    Up to `batch` messages of each queue are in the worker's hands. What a worker was given and did not ack goes to
    another one when its connection ends, and otherwise after `idle` seconds, or two leases; only with its connection
    where that is infinite.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "perdure",
        group: str = "workers",
        batch: int = 200,
        lease: float = 10.0,
        idle: float | None = None,
    ) -> None:
        self._address = read_address(url)
        self._names = Names(prefix, group)
        if batch < 1 or lease <= 0 or (idle is not None and idle <= 0):
            raise SettingsError("batch, lease and idle of a RabbitMQ stream must be above zero")
        self._pace = Pace(batch, lease, 2 * lease if idle is None else idle)

    def _new_desk(self, me: str, queues: Sequence[str]) -> _Desk:
        return _Desk(self._address, self._names, self._pace, me, queues)


class _Desk:
    """Everything that belongs to one opening of the stream."""

    def __init__(self, address: Address, names: Names, pace: Pace, me: str, queues: Sequence[str]) -> None:
        self.inbox = Inbox(me, queues)
        self.health = Health(self._recovered)
        self.hand = Hand(2 * pace.lease, pace.idle)
        self.sender = Sender(address, names, self.health, pace.heartbeat)
        self.receiver = Receiver(address, names, self.health, pace, self.inbox, self.hand, self.sender.send)
        self._place = address.place
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Only a wrong setting is an error. A broker that is down is a trouble, and comes back some day."""
        try:
            await self.receiver.connect()
        except FAILURES as error:
            if refused(error):
                raise SettingsError(explain(error, self._place)) from error
            self.receiver.report(error)
        loops = (self.sender.run, self.receiver.run)
        self._tasks = [asyncio.create_task(loop(), name="perdure-rabbitmq", context=for_everybody()) for loop in loops]

    async def leave(self) -> None:
        """Send what is to be sent, if it can be sent, and say goodbye."""
        if not self.health.trouble:
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    await self.sender.calm()
        await self._end_tasks()
        await asyncio.gather(self.sender.leave(), self.receiver.leave())

    async def close(self) -> None:
        self.inbox.close()
        await self._end_tasks()
        self.sender.hang_up()
        self.receiver.hang_up()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self, key: str) -> None:
        await self.receiver.listen(key)

    async def receive(self, limit: int) -> Sequence[Hint]:
        return await self.receiver.take(limit)

    def ack(self, hints: Sequence[Hint]) -> None:
        self.receiver.ack(self.hand.give(hints))

    def publish(self, hints: Sequence[Hint]) -> None:
        me = self.inbox.me
        letters: list[Letter] = []
        free: list[Hint] = []  # for whoever is free
        ended: list[Hint] = []
        words: list[str] = []
        for hint in hints:
            if not _can_be_sent(hint):
                continue
            if hint.news:
                words.append(hint.news)
                if self.inbox.wants(hint):
                    self.inbox.put(hint)
            elif hint.ended:
                ended.append(hint)
                if self.receiver.hears(hint.key):
                    self.inbox.put(hint)
            elif hint.to == me:
                self.inbox.put(hint)
            elif hint.to is not None:
                letters += to_worker(me, hint, hint.to)
            elif hint.queue in self.inbox.queues and not hint.away and self.hand.count < NEAR and self.hand.moves:
                self.receiver.keep([hint])
            elif hint.queue:
                free.append(hint)
        self.sender.send([*letters, *to_queues(me, free), *to_listeners(me, ended), *to_workers(me, words)])

    def _recovered(self) -> None:
        self.receiver.look()


def _can_be_sent(hint: Hint) -> bool:
    """A name that cannot be encoded cannot have been stored either."""
    try:
        f"{hint.key}{hint.queue}{hint.to}{hint.result}{hint.news}".encode()
    except UnicodeError:
        return False
    return True
