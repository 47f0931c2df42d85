"""Sends records, one flight at a time, in a thread of its own: what comes meanwhile is joined in the next flight.

Rules kept here: nobody waits for a broker; what failed is tried again until newer records take its place; what is lost
is counted and never raised; a topic that is missing is made before anything is sent to it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import choice
from threading import Event, Thread
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from perdure.streams.kafka.topics import explain, make
from perdure.streams.kafka.voice import Voice

#: Records in one flight.
FLIGHT = 1000
#: What waits while nothing gets through; beyond it the oldest are dropped.
WAITING = 10_000
#: The longest pause between two tries, in seconds.
PAUSE = 1.0
#: The partition that the key chooses, or chance.
ANY = -1
#: What would fail again.
_HOPELESS = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD)

log = logging.getLogger("perdure.streams")


class Parcel(NamedTuple):
    """What is to be sent. The key chooses the partition; one that is `away` rather goes where we do not read."""

    topic: str
    key: bytes | None
    value: bytes
    away: bool = False


class Sender(Thread):
    """`partitions` says how many a topic gets; `ours` which of its partitions are read here."""

    def __init__(
        self,
        options: Mapping[str, Any],
        place: str,
        timeout: float,
        partitions: Callable[[str], int],
        ours: Callable[[str], set[int]],
        voice: Voice,
    ) -> None:
        super().__init__(name="perdure-kafka-send", daemon=True)
        self._options = options
        self._place = place
        self._timeout = timeout
        self._partitions = partitions
        self._ours = ours
        self._voice = voice
        self._waiting: deque[Parcel] = deque()
        self._again: list[Parcel] = []  # of the flight that is under way
        self._error: KafkaError | None = None
        self._known: dict[str, list[int]] = {}  # topics that are there, with their partitions once these matter
        self._bell = Event()
        self._over = Event()
        self.lost = 0

    def send(self, parcels: Iterable[Parcel]) -> None:
        self._waiting.extend(parcels)
        while len(self._waiting) > WAITING:
            self._waiting.popleft()
            self.lost += 1
        self._bell.set()

    def end(self) -> None:
        """Send what waits, if that can be done at once."""
        self._over.set()
        self._bell.set()

    def run(self) -> None:
        try:
            timeout = max(1, int(1000 * self._timeout))
            producer = Producer({**self._options, "acks": "1", "message.timeout.ms": timeout})
            pause = 0.0
            while not (self._over.is_set() and (pause or not self._waiting)):
                self._bell.wait()
                self._bell.clear()
                while self._waiting and not (self._over.is_set() and pause):
                    if self._fly(producer):
                        if pause:
                            self._voice.good()
                        pause = 0.0
                    else:
                        pause = min(max(0.05, 2 * pause), PAUSE)
                        self._over.wait(pause)
            producer.purge()
            producer.flush(0)
        except Exception as error:
            if not isinstance(error, KafkaException):  # that one says all that there is to say
                log.exception("sending hints ended; work is found when it is due")
            self._voice.bad(f"sending hints to Kafka at {self._place} ended: {error}")
        finally:
            self._voice.ended()

    def _fly(self, producer: Producer) -> bool:
        flight = [self._waiting.popleft() for _ in range(min(FLIGHT, len(self._waiting)))]
        self._again, self._error = [], None
        try:
            self._prepare(producer, flight)
            for parcel in flight:
                self._produce(producer, parcel)
            producer.flush(self._timeout + 1)
        except KafkaException as raised:
            producer.purge()
            producer.flush(0)
            self._error, self._again = raised.args[0], flight
        except Exception:
            log.exception("a flight of hints broke; they are lost")
            self.lost += len(flight)
            return True
        if self._error is None:
            return True
        self._known.clear()  # topics may be gone
        self._voice.bad(explain(self._error, self._place))
        self._keep(self._again)
        return False

    def _produce(self, producer: Producer, parcel: Parcel) -> None:
        delivered, where = partial(self._delivered, parcel), self._where(parcel)
        try:
            producer.produce(parcel.topic, parcel.value, parcel.key, where, on_delivery=delivered)
        except KafkaException as raised:
            if raised.args[0].code() not in _HOPELESS:
                raise
            self.lost += 1  # the driver itself does not take it

    def _delivered(self, parcel: Parcel, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        if error.code() in _HOPELESS:
            self.lost += 1
            return
        self._error = error
        self._again.append(parcel)

    def _keep(self, failed: list[Parcel]) -> None:
        """Put them back, the newest of them if there is no room for all."""
        room = max(0, WAITING - len(self._waiting))
        self.lost += max(0, len(failed) - room)
        self._waiting.extendleft(reversed(failed[max(0, len(failed) - room) :]))

    def _prepare(self, producer: Producer, flight: Iterable[Parcel]) -> None:
        missing = {parcel.topic for parcel in flight} - self._known.keys()
        if missing:
            make(self._options, {topic: self._partitions(topic) for topic in missing}, self._timeout)
            self._known.update((topic, []) for topic in missing)
        for topic in {parcel.topic for parcel in flight if parcel.away}:
            if not self._known[topic]:
                found = producer.list_topics(topic, timeout=self._timeout).topics[topic]
                self._known[topic] = sorted(found.partitions)

    def _where(self, parcel: Parcel) -> int:
        if not parcel.away:
            return ANY
        elsewhere = set(self._known[parcel.topic]) - self._ours(parcel.topic)
        return choice(sorted(elsewhere)) if elsewhere else ANY
