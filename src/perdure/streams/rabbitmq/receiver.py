"""Receives hints, on a connection of its own: the broker pushes them, so an idle process costs nothing but heartbeats.

Rules kept here: what came from a queue is acked when the worker has given it back, and only over the connection that
it came over; what the worker does not confirm in time goes back to the queue, for others; what cannot be read is acked
and dropped, or it would come back for ever; after every gap everything is made anew that is missing, and the worker is
told to look, because nobody knows what was missed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct
from pamqp import commands

from perdure.core.records import Hint
from perdure.errors import SettingsError
from perdure.streams.health import Health
from perdure.streams.inbox import Inbox
from perdure.streams.rabbitmq import names as words
from perdure.streams.rabbitmq.address import Address
from perdure.streams.rabbitmq.hand import Hand
from perdure.streams.rabbitmq.letters import Note, read, to_queues
from perdure.streams.rabbitmq.names import Names
from perdure.streams.rabbitmq.shape import base, bound, own, queue
from perdure.streams.rabbitmq.wire import FAILURES, Letter, Wire, explain

#: The longest pause between two tries to connect, in seconds.
PAUSE = 1.0
PART = "receiving"
OWN = "own"

log = logging.getLogger("perdure.streams")


class Pace(Struct, frozen=True):
    """How many messages may be in hand, and for how long, in seconds."""

    batch: int
    lease: float
    idle: float

    @property
    def heartbeat(self) -> int:
        """What a process that stands still had in hand comes to others when one and a half of these are over."""
        return 60 if math.isinf(self.idle) else max(1, min(60, round(self.idle)))


class Receiver:
    """Fills the inbox."""

    def __init__(
        self,
        address: Address,
        names: Names,
        health: Health,
        pace: Pace,
        inbox: Inbox,
        hand: Hand,
        send: Callable[[Iterable[Letter]], None],
    ) -> None:
        self._address = address
        self._names = names
        self._health = health
        self._pace = pace
        self._inbox = inbox
        self._hand = hand
        self._send = send
        self._queues = sorted(inbox.queues)
        self._heard = {words.worker(inbox.me): None, **({words.WORDS: None} if self._queues else {})}
        self._bound: set[str] = set()  # what the broker has confirmed of it
        self._own = ""
        self._wire: Wire | None = None  # set as long as everything is made
        self._tidying: asyncio.TimerHandle | None = None
        self._nudged: set[str] = set()  # queues whose call to look waits in the inbox

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        pause = 0.05
        while True:
            since = math.inf
            try:
                if self._wire is None:
                    await self.connect()
                since = loop.time()
                assert self._wire is not None
                error = await asyncio.shield(self._wire.ended)
                self.report(error)
            except (SettingsError, *FAILURES) as error:
                self.report(error)
            except Exception as error:
                log.exception("receiving hints broke; going on")
                self.report(error)
            self._drop()
            self.look()  # as long as nothing comes in, the store is asked
            if loop.time() - since > PAUSE:  # it has held
                pause = 0.05
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, PAUSE)

    async def connect(self) -> None:
        """Make everything that is needed, and begin to receive."""
        wire = Wire(self._address, self, self._pace.heartbeat)
        try:
            await wire.open()
            self._own, self._bound = self._names.own(self._inbox.me, uuid.uuid4().hex[:8]), set(self._heard)
            await wire.ask(
                *base(self._names),
                *own(self._names, self._own, self._bound),
                *(call for name in self._queues for call in queue(self._names, name)),
            )
            while late := self._heard.keys() - self._bound:  # asked for meanwhile
                await wire.ask(*(bound(self._names, self._own, word) for word in late))
                self._bound |= late
            self._wire = wire
            await wire.ask(
                commands.Basic.Qos(prefetch_count=min(self._pace.batch, 65_535)),
                # Hints for us alone go with our connection anyway, so they need no ack.
                commands.Basic.Consume(queue=self._own, consumer_tag=OWN, no_ack=True),
                *(
                    commands.Basic.Consume(queue=self._names.queue(name), consumer_tag=f"q{number}")
                    for number, name in enumerate(self._queues)
                ),
            )
        except BaseException:
            self._wire = wire
            self._drop()
            raise
        self._health.good(PART)

    async def leave(self) -> None:
        """What is in hand goes to others as soon as the connection has ended."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    def hang_up(self) -> None:
        self._drop()
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None

    def _drop(self) -> None:
        """What came over this connection cannot be acked any more."""
        wire, self._wire = self._wire, None
        self._hand.loosen()
        if wire is not None:
            wire.end(ConnectionError("it was hung up"))

    def report(self, error: BaseException) -> None:
        self._health.bad(PART, explain(error, self._address.place))

    # What is heard

    def hears(self, key: str) -> bool:
        return words.ends(key) in self._heard

    async def listen(self, key: str) -> None:
        """Whoever listens waits until the broker has confirmed it, so nothing that ends later is missed."""
        word = words.ends(key)
        self._heard[word] = None
        wire = self._wire
        if wire is not None and word not in self._bound:
            try:
                await wire.ask(bound(self._names, self._own, word))
                self._bound.add(word)
            except FAILURES as error:
                wire.end(error)  # the next connection binds all that is heard

    def look(self) -> None:
        """Hints may have got lost: the worker should look at what is due in its queues, unless it is told already."""
        for name in self._queues:
            if name not in self._nudged:
                self._nudged.add(name)
                self._inbox.put(Hint("", name))

    async def take(self, limit: int) -> list[Hint]:
        """What is there, but not what has been given back meanwhile."""
        while True:
            taken = await self._inbox.take(limit)
            self._nudged.difference_update(hint.queue for hint in taken if not hint.key)
            times: Counter[Hint] = Counter()
            wanted: list[Hint] = []
            for hint in taken:
                times[hint] += 1
                if not _is_work(hint) or times[hint] <= self._hand.copies(hint):
                    wanted.append(hint)
            if wanted:
                return wanted

    # What comes and goes

    def keep(self, hints: Iterable[Hint], tag: int | None = None) -> None:
        """These are for our worker."""
        those = list(hints)
        self._hand.take(those, tag)
        for hint in those:
            self._inbox.put(hint)
        if self._tidying is None:
            self._tidy_later()

    def ack(self, tags: Iterable[int]) -> None:
        if self._wire is not None:
            self._wire.tell(*(commands.Basic.Ack(tag) for tag in tags))

    def arrived(self, consumer: str, tag: int, body: bytes) -> None:
        note = read(body)
        if consumer == OWN:
            if note is not None:
                self._hear(note)
        elif note is None or not note.keys:
            log.warning("a message in a queue of Perdure cannot be read and is dropped")
            self.ack([tag])
        else:
            name = self._queues[int(consumer[1:])]
            hints = [Hint(key, name) for key in note.keys]
            if note.away and note.sender == self._inbox.me:
                # Back once, for whoever comes next in turn; if that is nobody, it is for us.
                self._send(to_queues(self._inbox.me, hints))
                self.ack([tag])
            else:
                self.keep(hints, tag)

    def blocked(self, reason: str) -> None:
        pass  # only those who publish are stopped

    def _hear(self, note: Note) -> None:
        for key in note.keys:
            self._inbox.put(Hint(key, note.queue, self._inbox.me))
        if note.sender == self._inbox.me:
            return  # it was told at once
        for hint in note.ended():
            self._inbox.put(hint)
        for word in note.words:
            self._inbox.put(Hint("", news=word))

    def _tidy_later(self) -> None:
        pause = min(self._pace.idle, 2 * self._pace.lease) / 4
        self._tidying = asyncio.get_running_loop().call_later(pause, self._tidy)

    def _tidy(self) -> None:
        """As long as there is something in hand, let go of what lies there for too long."""
        self._tidying = None
        tags = self._hand.let_go()
        if self._wire is not None:
            self._wire.tell(*(commands.Basic.Nack(tag, requeue=True) for tag in tags))
        if self._hand.count:
            self._tidy_later()


def _is_work(hint: Hint) -> bool:
    return bool(hint.key) and hint.to is None and not hint.ended and not hint.news
