"""The stream of fleets that have Kafka: hints through topics.

A topic for each queue is shared by a group of workers, partition by partition; one more topic, read by everybody, has
hints for one worker, ends of executions and other news. Rules kept here: a hint is a reference and may get lost, so
nothing here raises but a wrong setting at the beginning; work that this process serves itself stays here as long as it
has little in hand; the event loop never waits for a broker, whose driver lives in threads of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from perdure.core.records import Hint
from perdure.errors import SettingsError
from perdure.streams.desk import DeskStream
from perdure.streams.health import Health
from perdure.streams.inbox import Inbox
from perdure.streams.kafka.hand import Hand, Part
from perdure.streams.kafka.names import Address, Names, read_address
from perdure.streams.kafka.reader import News, Pace, Reader, Record, Work
from perdure.streams.kafka.sender import Parcel, Sender
from perdure.streams.kafka.voice import Voice

#: How long an answer of a broker may take, in seconds.
TIMEOUT = 5.0
#: How long closing waits for a broker, in seconds.
FAREWELL = 2.0
#: Work for our own queues stays here while we have less than this in hand.
NEAR = 100
#: News of ends is told apart by so many numbers: what nobody here waits for is dropped.
CHANNELS = 4096
#: Hints that share a record of news, at most.
SHARED = 200

log = logging.getLogger("perdure.streams")


class _Note(Struct, frozen=True, array_like=True):
    """A record of news: who says it, and what."""

    sender: str
    hints: list[Hint]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Note).decode


class KafkaStream(DeskStream["_Desk"]):
    """A Stream through the brokers at `url`: kafka://HOST:9092,HOST2:9092, or kafkas:// for TLS.

    A queue's topic is made with `shards` partitions. `batch` hints are read at once, twice as many may be in the
    worker's hands; a fetch waits for `block` seconds. What a worker was given and did not ack comes to another one when
    the group misses it for `idle` seconds, or two leases; without `reclaim` it does not come again.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "perdure",
        group: str = "workers",
        shards: int = 1,
        batch: int = 200,
        block: float = 5.0,
        lease: float = 10.0,
        idle: float | None = None,
        reclaim: bool = True,
    ) -> None:
        self._address = read_address(url)
        self._names = Names(prefix, group)
        idle = 2 * lease if idle is None else idle
        if shards < 1 or batch < 1 or block <= 0 or idle < 0:
            raise SettingsError("shards, batch and block of a stream in Kafka must be above zero")
        self._shards = shards
        self._pace = Pace(batch, block, idle, TIMEOUT)
        self._reclaim = reclaim

    def _new_desk(self, me: str, queues: Sequence[str]) -> _Desk:
        return _Desk(self._address, self._names, self._shards, self._pace, self._reclaim, me, queues)


class _Desk:
    """Everything that belongs to one opening of the stream, on the event loop's side."""

    def __init__(
        self, address: Address, names: Names, shards: int, pace: Pace, reclaim: bool, me: str, queues: Sequence[str]
    ) -> None:
        self.inbox = Inbox(me, queues)
        self.health = Health(self._gap, self._gap)
        self._names = names
        self._shards = shards
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._hand = Hand(pace.idle, confirms=reclaim)
        self._tending: asyncio.TimerHandle | None = None
        self._ours: frozenset[Part] = frozenset()
        self._heard: set[int] = set()  # numbers of ends that somebody here waits for
        self._nudged: set[str] = set()  # queues whose nudge waits in the inbox
        self._queues = {names.queue(queue): queue for queue in sorted(self.inbox.queues)}
        self._opened = asyncio.Event()
        self._refused = ""
        self._ended = asyncio.Event()
        options, place = _driver(address, pace), address.place
        self.sender = Sender(options, place, pace.timeout, self._partitions, self._read_here, self._voice("sending"))
        self._news = News(
            options, place, {names.news: 1}, pace, partial(self._tell, self._heard_news), self._voice("news")
        )
        self._work = Work(
            options,
            place,
            dict.fromkeys(self._queues, shards),
            pace,
            partial(self._tell, self._arrived),
            self._voice("work"),
            group=names.consumers,
            me=me,
            given=partial(self._tell, self._given),
            taken=partial(self._tell, self._taken),
        )
        # Who serves no queue is no member of the group.
        self._threads: list[Sender | Reader] = [self.sender, self._news, *([self._work] if self._queues else [])]
        self._running = 0

    async def open(self) -> None:
        """Only a wrong setting is an error. Brokers that are away are a trouble, and come back some day."""
        for thread in self._threads:
            thread.start()
            self._running += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self._pace.timeout + 2):
                await self._opened.wait()
        if self._refused:
            raise SettingsError(self._refused)
        if not self._opened.is_set():
            self.health.bad("news", "Kafka does not answer")

    async def leave(self) -> None:
        pass  # the threads say goodbye when they end

    async def close(self) -> None:
        """Send what waits, say goodbye to the group, and wait for neither for long."""
        self.inbox.close()
        if self._tending is not None:
            self._tending.cancel()
        for thread in self._threads:
            thread.end()
        if self._running:
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    await self._ended.wait()

    # What the worker and the client ask for

    async def listen(self, key: str) -> None:
        self._heard.add(_channel(key))

    def publish(self, hints: Sequence[Hint]) -> None:
        parcels: list[Parcel] = []
        news: list[Raw] = []
        for hint in hints:
            with suppress(UnicodeError):  # a name that cannot be encoded cannot have been stored either
                if hint.news or hint.ended:
                    news.append(Raw(_encode(hint)))
                    if self._wants(hint):
                        self.inbox.put(hint)
                elif (parcel := self._route(hint)) is not None:
                    parcels.append(parcel)
        for first in range(0, len(news), SHARED):
            parcels.append(self._note(news[first : first + SHARED]))
        if parcels:
            self.sender.send(parcels)

    async def receive(self, limit: int) -> Sequence[Hint]:
        hints = await self.inbox.take(limit)
        for hint in hints:
            if not hint.key and not hint.news:
                self._nudged.discard(hint.queue)
        return hints

    def ack(self, hints: Iterable[Hint]) -> None:
        self._hand.give(hints)
        self._tend()

    # Where hints go

    def _route(self, hint: Hint) -> Parcel | None:
        """The way of a hint that leaves this process; what need not leave is in the inbox already."""
        if hint.to is not None and hint.to != self.inbox.me:
            return self._note([Raw(_encode(hint))], hint.to.encode())
        if hint.to is None and hint.away and hint.queue:
            return Parcel(self._names.queue(hint.queue), None, hint.key.encode(), away=True)
        if hint.to is not None or (hint.queue in self.inbox.queues and self._hand.count < NEAR):
            self._hand.take(hint)
            self.inbox.put(hint)
        elif hint.queue:
            return Parcel(self._names.queue(hint.queue), hint.key.encode(), hint.key.encode())
        return None

    def _note(self, hints: list[Raw], to: bytes | None = None) -> Parcel:
        return Parcel(self._names.news, to, _encode((self.inbox.me, hints)))

    def _wants(self, hint: Hint) -> bool:
        return self.inbox.wants(hint) and not (hint.ended and _channel(hint.key) not in self._heard)

    def _partitions(self, topic: str) -> int:
        return 1 if topic == self._names.news else self._shards

    def _read_here(self, topic: str) -> set[int]:
        return {part.number for part in self._ours if part.topic == topic}

    # What the threads tell, on the event loop

    def _tell(self, call: Callable[..., None], *words: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended before us
            self._loop.call_soon_threadsafe(call, *words)

    def _voice(self, part: str) -> Voice:
        return Voice(*(partial(self._tell, call, part) for call in (self._bad, self._good, self._one_ended)))

    def _bad(self, part: str, trouble: str, hopeless: bool = False) -> None:
        if hopeless and not self._opened.is_set():
            self._refused = trouble
        self.health.bad(part, trouble)
        if part == "news":
            self._opened.set()

    def _good(self, part: str) -> None:
        self.health.good(part)
        if part == "news":
            self._opened.set()

    def _one_ended(self, part: str) -> None:
        self._running -= 1
        if not self._running:
            self._ended.set()

    def _arrived(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                hint = Hint((record.value or b"").decode(), self._queues[record.place.part.topic])
            except (KeyError, UnicodeError):
                hint = Hint("")
            if hint.key:
                self._hand.take(hint, record.place)
                self.inbox.put(hint)
            else:
                log.warning("a record of %s cannot be read; it is left out", record.place.part.topic)
                self._hand.read(record.place)
        self._tend(len(records))

    def _heard_news(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.key is not None and record.key != self.inbox.me.encode():
                continue
            try:
                note = _decode(record.value or b"")
            except (msgspec.MsgspecError, UnicodeError) as error:
                log.warning("a record of %s cannot be read; it is left out: %s", record.place.part.topic, error)
                continue
            for hint in note.hints:
                if note.sender != self.inbox.me and self._wants(hint):  # what we say we have heard already
                    self.inbox.put(hint)

    def _given(self, parts: Sequence[Part]) -> None:
        self._ours |= set(parts)

    def _taken(self, parts: Sequence[Part]) -> None:
        self._ours -= set(parts)
        self._hand.lose(parts)

    # What follows from what is in hand

    def _tend(self, records: int = 0) -> None:
        """Confirm what may be confirmed, and say how much is in hand, with what has come just now."""
        self._hand.age()
        self._work.commit(self._hand.done())
        self._work.hold(self._hand.count, records)
        if self._tending is None and self._hand.count:
            self._tending = self._loop.call_later(self._pace.idle / 4, self._tend_later)

    def _tend_later(self) -> None:
        self._tending = None
        self._tend()

    def _gap(self) -> None:
        """Hints may have got lost: our own worker should look at its queues, unless it is told already."""
        for queue in self.inbox.queues - self._nudged:
            self._nudged.add(queue)
            self.inbox.put(Hint("", queue))


def _driver(address: Address, pace: Pace) -> dict[str, Any]:
    """What all parts of the driver are told. It says nothing by itself: what is worth a word is said here."""
    return {
        **address.options,
        "log_level": 0,
        "allow.auto.create.topics": False,  # they would have the broker's own partitions and retention
        "reconnect.backoff.max.ms": 1000,
        "socket.connection.setup.timeout.ms": max(1000, int(1000 * pace.timeout)),
        "api.version.request.timeout.ms": max(10, int(1000 * pace.timeout)),
    }


def _channel(key: str) -> int:
    return crc32(key.encode()) % CHANNELS
