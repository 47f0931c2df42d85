"""The names of everything that Perdure keeps in RabbitMQ.

Rules kept here: all of them begin with the prefix and a colon, and a prefix has no colon, so two prefixes never meet
and a user can be given the rights to one of them; AMQP takes names of up to 255 bytes, so the end of a longer one
becomes its hash.
"""

from __future__ import annotations

import re
from hashlib import sha256
from zlib import crc32

from msgspec import Struct

from perdure.errors import SettingsError

#: Kinds of news. A process that waits for one execution hears the news of one in so many.
CHANNELS = 16
BYTES = 255
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Names(Struct, frozen=True):
    """The names of one prefix, and the group that shares its queues.

    >>> Names("shop").queue("slow")
    'shop:q:workers:slow'
    """

    prefix: str = "perdure"
    group: str = "workers"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise SettingsError(
                f"{self.prefix!r} cannot be the prefix of names in RabbitMQ: use letters, digits, dots, hyphens and"
                " underscores"
            )
        if not 0 < len(self.group.encode()) <= 100:
            raise SettingsError("the group of a RabbitMQ stream needs a name of up to 100 bytes")

    @property
    def exchange(self) -> str:
        """Where everything is published; what follows are the words that it goes by from there."""
        return f"{self.prefix}:hints"

    @property
    def agreement(self) -> str:
        """An empty queue that remembers what all processes must have in common."""
        return f"{self.prefix}:group"

    def queue(self, queue: str) -> str:
        """The queue that all workers of one of ours share."""
        return fit(f"{self.prefix}:q:{self.group}:{queue}")

    def own(self, me: str, token: str) -> str:
        """The queue of one process. The token is new each time: an old connection may still have the last one."""
        return fit(f"{self.prefix}:w:{token}:{me}")


WORDS = "words"  # news for every worker


def work(queue: str) -> str:
    return fit(f"q:{queue}")


def worker(me: str) -> str:
    return fit(f"w:{me}")


def ends(key: str) -> str:
    return f"e:{crc32(key.encode()) % CHANNELS}"


def fit(name: str) -> str:
    """A name that is short enough, and nobody else's.

    >>> fit("q:slow"), len(fit("q:" + "x" * 300))
    ('q:slow', 255)
    """
    if len(name.encode()) <= BYTES:
        return name
    mark = sha256(name.encode()).hexdigest()[:32]
    return name.encode()[: BYTES - 33].decode(errors="ignore") + "#" + mark
