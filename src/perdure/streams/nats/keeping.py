"""What JetStream has to have for us: a stream that keeps work until it is acked, and a consumer for each queue.

Rules kept here: to make what is there already does no harm; whoever runs NATS may change the stream, but what would not
work any more is refused; NATS itself bounds what nobody takes, and gives what nobody acked to another worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nats.js import api
from nats.js.errors import APIError

from perdure.errors import SettingsError
from perdure.streams.nats.line import TIMEOUT, Line
from perdure.streams.nats.names import Names

#: A hint that is older than so many seconds says nothing that its due time in the store does not: a day.
OLD = 86_400.0
#: So many hints of a queue are kept at most; beyond it the oldest are dropped.
MOST = 1_000_000
#: How many workers may ask for the work of one queue at a time; NATS has a limit that is much lower by itself.
WAITING = 100_000
#: What NATS takes for never, in seconds: a hundred years.
NEVER = 3.2e9
#: What NATS answers where there is a stream of this name with other settings.
DIFFERENT = 10058


async def make(line: Line, names: Names, queues: Iterable[str], idle: float, place: str) -> Any:
    """Make what is missing; gives something that is another one for another stream of the same name."""
    manager = line.client.jsm(timeout=TIMEOUT)
    config = api.StreamConfig(
        name=names.stream,
        subjects=[names.queues],
        retention=api.RetentionPolicy.WORK_QUEUE,
        discard=api.DiscardPolicy.OLD,
        max_age=OLD,
        max_msgs_per_subject=MOST,
    )
    try:
        facts = await manager.add_stream(config)
    except APIError as error:
        if error.err_code != DIFFERENT:
            raise
        # Whoever runs NATS may have given it replicas or other limits.
        facts = await manager.stream_info(names.stream)
        if facts.config.retention != api.RetentionPolicy.WORK_QUEUE or names.queues not in facts.config.subjects:
            raise SettingsError(
                f"the stream {names.stream!r} in NATS at {place} is not ours: it must be a work queue of"
                f" {names.queues}. Delete it, or use another stream_prefix"
            ) from error
    for queue in queues:
        await manager.add_consumer(
            names.stream,
            name=names.consumer(queue),
            durable_name=names.consumer(queue),
            filter_subject=names.queue(queue),
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=min(idle, NEVER),
            max_ack_pending=-1,
            max_waiting=WAITING,
        )
    return facts.created
