"""What is made in RabbitMQ, as calls that make it; to make it again does no harm.

One direct exchange, a durable classic queue for each queue of ours, and a queue of its own for each process, which goes
with its connection. Rules kept here: everything is bounded, the oldest messages go first; what is made once stays as it
is, because RabbitMQ refuses to make it anew with other arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from pamqp import commands
from pamqp.base import Frame
from pamqp.common import Arguments

from perdure.streams.rabbitmq import names as words
from perdure.streams.rabbitmq.names import Names

#: Messages that wait in a queue. An execution whose hint is dropped is still due in the store.
WAITING = 100_000
#: Messages that wait for one process which does not read.
OWN = 10_000


def base(names: Names) -> list[Frame]:
    """The exchange, and the word on who shares the queues: RabbitMQ compares the arguments with those it knows."""
    agreed: Arguments = {"x-dead-letter-exchange": names.exchange, "x-dead-letter-routing-key": names.group}
    return [
        commands.Exchange.Declare(exchange=names.exchange, exchange_type="direct", durable=True),
        commands.Queue.Declare(queue=names.agreement, durable=True, arguments=agreed),
    ]


def queue(names: Names, queue: str) -> list[Frame]:
    """A queue that all workers of the group share."""
    name = names.queue(queue)
    return [
        commands.Queue.Declare(queue=name, durable=True, arguments={"x-max-length": WAITING}),
        commands.Queue.Bind(queue=name, exchange=names.exchange, routing_key=words.work(queue)),
    ]


def own(names: Names, name: str, heard: Iterable[str]) -> list[Frame]:
    """The queue of one process, and what it hears."""
    made = commands.Queue.Declare(queue=name, exclusive=True, auto_delete=True, arguments={"x-max-length": OWN})
    return [made, *(bound(names, name, word) for word in heard)]


def bound(names: Names, name: str, word: str) -> Frame:
    return commands.Queue.Bind(queue=name, exchange=names.exchange, routing_key=word)
