"""Reads records, each reader in a thread of its own, because the driver blocks.

Rules kept here: everything that a consumer is asked is asked by its own thread; what it finds goes to the event loop,
in order; a reader goes on whatever happens, says what is wrong, and makes the topics again that are gone. An idle one
costs the broker one fetch per `block`, and the sign of life that a group wants.
"""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from msgspec import Struct

from perdure.streams.kafka.hand import Part, Place
from perdure.streams.kafka.topics import REFUSALS, explain, make
from perdure.streams.kafka.voice import Voice

#: How soon a reader notices what it is told from here, in seconds; nobody else is asked for that.
TICK = 0.1
#: The longest pause between two tries to reach a broker, in seconds.
PAUSE = 1.0
#: Brokers do not take a shorter time after which a member of a group is dead, in seconds, unless they are told to.
SHORTEST = 6.0
LONGEST = 300.0
#: What the driver mends by itself, before anybody has to know: one broker of several has gone, say.
_PASSING = (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT, KafkaError._MAX_POLL_EXCEEDED)
#: The way to the brokers, and not what we want there.
_WAY = (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL)

log = logging.getLogger("perdure.streams")


class Pace(Struct, frozen=True):
    """How much is read at once, and how long is waited: for a record, for a sign of life, for an answer; in seconds."""

    batch: int
    block: float
    idle: float
    timeout: float


class Record(NamedTuple):
    """What was read, without the driver."""

    place: Place
    key: bytes | None
    value: bytes | None


class Reader(Thread, ABC):
    """Reads `topics`, which are given with their partitions."""

    def __init__(
        self,
        options: Mapping[str, Any],
        place: str,
        topics: Mapping[str, int],
        pace: Pace,
        came: Callable[[Sequence[Record]], None],
        voice: Voice,
    ) -> None:
        super().__init__(name="perdure-kafka", daemon=True)
        self._options = options
        self._place = place
        self._topics = topics
        self._pace = pace
        self._came = came
        self._voice = voice
        self._over = Event()
        self._trouble: KafkaError | None = None
        self._began = False
        self._mended = float("-inf")
        self._pause = 0.0

    def end(self) -> None:
        """Read no more; the thread ends soon."""
        self._over.set()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                consumer = self._consumer()
                try:
                    self._read(consumer)
                finally:
                    consumer.close()
            except KafkaException as raised:
                error = raised.args[0]
                self._voice.bad(explain(error, self._place), error.code() == KafkaError._INVALID_ARG)
                self._over.wait(PAUSE)
            except Exception as error:
                log.exception("reading hints broke; going on")
                self._voice.bad(f"reading hints from Kafka at {self._place} broke: {error!r}")
                self._over.wait(PAUSE)
            self._began = False
        self._voice.ended()

    # What kinds of readers differ in

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """What its consumer is told."""

    @abstractmethod
    def _begin(self, consumer: Consumer) -> None:
        """Read from where we should."""

    @abstractmethod
    def _resume(self, consumer: Consumer, anew: bool) -> bool:
        """A broker is there; the topics may have been made `anew`. Whether all is well by now."""

    def _tend(self, consumer: Consumer) -> None:
        """What is to be done between two polls."""

    def _count(self, records: int) -> None:
        """So many were read."""

    @property
    def _tick(self) -> float:
        return TICK

    # What they have in common

    def _consumer(self) -> Consumer:
        block = max(1, int(1000 * self._pace.block))
        return Consumer(
            {
                **self._options,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": min(block, 300_000),
                "socket.timeout.ms": min(block + max(1000, int(1000 * self._pace.timeout)), 300_000),
                "queued.min.messages": self._pace.batch,
                "error_cb": self._failed,
                **self._settings(),
            }
        )

    def _failed(self, error: KafkaError) -> None:
        if error.code() not in _PASSING:
            self._trouble = error

    def _read(self, consumer: Consumer) -> None:
        while not self._over.is_set():
            if not self._began or self._trouble is not None:
                self._settle(consumer)
                continue
            self._tend(consumer)
            first = consumer.poll(self._tick)
            if first is not None:
                more = consumer.consume(self._pace.batch - 1, 0) if self._pace.batch > 1 else []
                self._arrived([first, *more])

    def _arrived(self, messages: Sequence[Message]) -> None:
        records: list[Record] = []
        for message in messages:
            error = message.error()
            if error is not None:
                self._failed(error)
                continue
            part = Part(message.topic() or "", _number(message.partition()))
            records.append(Record(Place(part, _number(message.offset())), _bytes(message.key()), message.value()))
        if records:
            self._count(len(records))
            self._came(records)

    def _settle(self, consumer: Consumer) -> None:
        """Wait until somebody is there, make what is missing, and begin or go on. Say what is wrong."""
        pause, anew, well = 0.05, False, False
        while not self._over.is_set():
            trouble, self._trouble = self._trouble, None
            if trouble is not None and trouble.code() not in _WAY:
                anew = True
                self._voice.bad(explain(trouble, self._place))
                self._rest()
            try:
                anew = bool(make(self._options, self._topics, self._pace.timeout)) or anew
                if self._began:
                    well = self._resume(consumer, anew)
                else:
                    self._begin(consumer)
                    self._began = well = True
            except KafkaException as raised:
                error = raised.args[0]
                self._voice.bad(explain(error, self._place), error.code() in REFUSALS)
                if (message := consumer.poll(0)) is not None:  # it may have something left
                    self._arrived([message])
                self._over.wait(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, PAUSE)
                continue
            if well:
                self._voice.good()
            return

    def _rest(self) -> None:
        """What is wrong again as soon as it was mended is mended with longer pauses."""
        again = time.monotonic() - self._mended < 10 * PAUSE
        self._pause = min(max(0.05, 2 * self._pause), PAUSE) if again else 0.0
        self._over.wait(self._pause)
        self._mended = time.monotonic()


class News(Reader):
    """Reads the one partition of the topic of news from its end, without a group: everybody gets everything."""

    _from = 0

    def _settings(self) -> dict[str, Any]:
        return {"group.id": self._topic, "enable.auto.commit": False}  # the driver wants a name, and joins no group

    def _begin(self, consumer: Consumer) -> None:
        # Asked for here, and not left to the driver, so that nothing is missed that is published from now on.
        self._go(consumer, self._end(consumer))

    def _resume(self, consumer: Consumer, anew: bool) -> bool:
        [here] = consumer.position([TopicPartition(self._topic, 0)])
        if self._end(consumer) < max(here.offset, self._from) or anew:  # it is another topic of the same name
            self._go(consumer, 0)
        return True

    def _go(self, consumer: Consumer, offset: int) -> None:
        self._from = offset
        consumer.assign([TopicPartition(self._topic, 0, offset)])

    def _end(self, consumer: Consumer) -> int:
        found = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=self._pace.timeout)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
        return found[1]

    @property
    def _topic(self) -> str:
        return next(iter(self._topics))


class Work(Reader):
    """Reads the topics of queues as a member of a group: each partition is read by one of its members."""

    def __init__(
        self,
        *arguments: Any,
        group: str,
        me: str,
        given: Callable[[Sequence[Part]], None],
        taken: Callable[[Sequence[Part]], None],
    ) -> None:
        super().__init__(*arguments)
        self._group = group
        self._me = me
        self._given = given
        self._taken = taken
        self._done: dict[Part, int] = {}  # written by the loop, taken out by the thread
        self._parts: set[Part] = set()
        self._paused: set[Part] = set()
        self._came_by = 0  # records that were read, of which `_heard` have reached the event loop
        self._heard = 0
        self._held = 0

    def commit(self, done: Mapping[Part, int]) -> None:
        """Up to here everything was acked."""
        self._done.update(done)

    def hold(self, count: int, records: int = 0) -> None:
        """So many hints are in hand now, with those of so many records that have arrived."""
        self._held = count
        self._heard += records  # last: what is on its way counts until it is in hand

    def _settings(self) -> dict[str, Any]:
        session = int(1000 * min(max(self._pace.idle, SHORTEST), LONGEST))
        return {
            "group.id": self._group,
            "client.id": self._me,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session,
            "heartbeat.interval.ms": max(1, min(session // 6, 3000)),
            "max.poll.interval.ms": session,
            "enable.auto.offset.store": False,
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 500,
        }

    def _begin(self, consumer: Consumer) -> None:
        self._subscribe(consumer)

    def _resume(self, consumer: Consumer, anew: bool) -> bool:
        if anew:  # the driver would look for topics in minutes
            consumer.unsubscribe()
            self._subscribe(consumer)
        return not anew  # else it is when the group has taken us in

    def _subscribe(self, consumer: Consumer) -> None:
        consumer.subscribe(list(self._topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def _assigned(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        parts = [Part(one.topic, one.partition) for one in found]
        self._parts.update(parts)
        self._given(parts)
        self._voice.good()

    def _revoked(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        # The driver confirms it to the broker before it lets go; that is so when we leave the group as well.
        self._store(consumer)
        parts = [Part(one.topic, one.partition) for one in found]
        self._parts.difference_update(parts)
        self._paused.difference_update(parts)
        self._taken(parts)

    def _tend(self, consumer: Consumer) -> None:
        self._store(consumer)
        count = self._came_by - self._heard + self._held
        if count >= 2 * self._pace.batch and (more := self._parts - self._paused):
            consumer.pause([TopicPartition(*part) for part in more])
            self._paused |= more
        elif count <= self._pace.batch and self._paused:
            consumer.resume([TopicPartition(*part) for part in self._paused])
            self._paused.clear()

    def _count(self, records: int) -> None:
        self._came_by += records

    @property
    def _tick(self) -> float:
        return TICK / 10 if self._paused else TICK  # there is more, as soon as there is room for it

    def _store(self, consumer: Consumer) -> None:
        while self._done:
            part, offset = self._done.popitem()
            try:
                consumer.store_offsets(offsets=[TopicPartition(*part, offset)])
            except KafkaException as raised:
                if part in self._parts:
                    log.debug("%s cannot be confirmed: %s", part.topic, raised)


def _number(found: int | None) -> int:
    return -1 if found is None else found


def _bytes(found: str | bytes | None) -> bytes | None:
    return found.encode() if isinstance(found, str) else found
