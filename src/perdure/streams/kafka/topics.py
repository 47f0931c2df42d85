"""Makes the topics that are missing, and finds out whether anybody is there.

Rules kept here: a topic that is there stays as it is; where we may not make topics an administrator does, so that is
no failure; a refusal of our name and password is told from a broker that is away.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

#: Kafka cannot delete what is confirmed, so records go by their age, in milliseconds: after one to two hours.
RETENTION = 3_600_000
#: What no waiting mends.
REFUSALS = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
)
_REASONS = (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._SSL)
_OURS_NOT_TO_MAKE = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)

log = logging.getLogger("perdure.streams")


def make(options: Mapping[str, Any], topics: Mapping[str, int], timeout: float) -> set[str]:
    """Make topics with so many partitions each, and say which were missing. Blocks, for `timeout` seconds at most."""
    errors: list[KafkaError] = []
    settings: dict[str, Any] = {**options, "error_cb": errors.append}
    admin = AdminClient(settings)
    config = {"cleanup.policy": "delete", "retention.ms": str(RETENTION), "segment.ms": str(RETENTION)}
    wanted = [NewTopic(topic, count, -1, config=config) for topic, count in topics.items()]
    futures: dict[str, Future[None]] = admin.create_topics(wanted, request_timeout=timeout)
    deadline = time.monotonic() + timeout + 1
    while not all(future.done() for future in futures.values()):
        admin.poll(0.02)
        _check(errors, admin)
        if time.monotonic() > deadline:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
    return {topic for topic, future in futures.items() if _made(topic, future)}


def _check(errors: list[KafkaError], admin: AdminClient) -> None:
    """Nobody waits for an answer when it is clear that none will come."""
    if not any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in errors):
        return
    admin.poll(0.02)  # a refusal is said after that
    for kinds in (REFUSALS, _REASONS, (KafkaError._ALL_BROKERS_DOWN,)):
        for error in reversed(errors):
            if error.code() in kinds:
                raise KafkaException(error)


def _made(topic: str, future: Future[None]) -> bool:
    try:
        future.result(0)
    except KafkaException as raised:
        error = raised.args[0]
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        if error.code() not in _OURS_NOT_TO_MAKE:
            raise
        log.debug("the topic %s is for an administrator to make: %s", topic, error.str())
        return False
    return True


def explain(error: KafkaError, place: str) -> str:
    """What is wrong, for people."""
    if error.code() in REFUSALS:
        return f"Kafka at {place} does not let us in: mend the name, the password or the mechanism ({error.str()})"
    if error.code() in (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._SSL,
    ):
        return f"Kafka at {place} cannot be reached: {error.str()}"
    return f"Kafka at {place}: {error.str()}"
