"""The names of everything that Perdure has in NATS.

Rules kept here: whatever a queue or a worker is called, it is one word of a subject; two prefixes never meet, because
a prefix is one word as well; no two names become the same word.
"""

from __future__ import annotations

import re
from hashlib import sha256
from zlib import crc32

from msgspec import Struct

from perdure.errors import SettingsError

#: Subjects for news of ends. A process that waits for one execution hears the news of one in so many.
CHANNELS = 16
#: A longer word is cut; names in NATS end at 255 characters, and one of a consumer has two words.
LONGEST = 100
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ODD = re.compile(r"[^A-Za-z0-9_-]")


class Names(Struct, frozen=True):
    """The names of one prefix, and the group that shares its work.

    >>> Names("shop").queue("mail.eu")
    'shop.queue.mail=2Eeu'
    """

    prefix: str = "perdure"
    group: str = "workers"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise SettingsError(
                f"{self.prefix!r} cannot be the prefix of subjects in NATS: use letters, digits, dots, hyphens and"
                " underscores"
            )
        if not self.group:
            raise SettingsError("the group of a NATS stream needs a name")

    @property
    def stream(self) -> str:
        """The stream of JetStream that keeps the work of all queues until it is acked."""
        return f"{word(self.prefix)}_hints"

    @property
    def queues(self) -> str:
        """The subjects that this stream keeps."""
        return self._subject("queue", "*")

    def queue(self, queue: str) -> str:
        return self._subject("queue", word(queue))

    def consumer(self, queue: str) -> str:
        """All workers of the group share it. NATS allows one for each queue, so there can be no second group."""
        return f"{word(self.group)}+{word(queue)}"

    def worker(self, worker: str) -> str:
        return self._subject("worker", word(worker))

    def ends(self, key: str) -> str:
        return self._subject("ends", str(crc32(key.encode()) % CHANNELS))

    @property
    def words(self) -> str:
        """Where workers tell each other what they have found out."""
        return self._subject("words")

    @property
    def nobody(self) -> str:
        """Nobody hears it, which the server says at once: that is how it is asked whether it is there."""
        return self._subject("nobody")

    def _subject(self, *words: str) -> str:
        return ".".join((word(self.prefix), *words))


def word(name: str) -> str:
    """A name as one word of a subject; one that is very long is told from others by its hash.

    >>> word("external:acme/mail"), len(word("x" * 500))
    ('external=3Aacme=2Fmail', 100)
    """
    plain = _ODD.sub(lambda odd: "".join(f"={byte:02X}" for byte in odd[0].encode()), name)
    if len(plain) <= LONGEST:
        return plain
    mark = f"=x{sha256(name.encode()).hexdigest()[:32]}"
    return plain[: LONGEST - len(mark)] + mark
