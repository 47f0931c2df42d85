"""The names of everything that Perdure keeps in Redis.

Rules kept here: every stream is its own hash tag, so a command touches one slot of a cluster; two prefixes never meet,
because a prefix has no colon.
"""

from __future__ import annotations

import re
from zlib import crc32

from msgspec import Struct

from perdure.core.records import tenant_of
from perdure.errors import SettingsError

#: Channels of news. A process that waits for one execution hears the news of one in so many.
CHANNELS = 16
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Keys(Struct, frozen=True):
    """The keys of one prefix, and the group that reads its streams.

    >>> Keys().queue("slow", 0)
    '{perdure:q:slow:0}'
    """

    prefix: str = "perdure"
    group: str = "workers"
    shards: int = 1

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        if not self.group:
            raise SettingsError("the group of a Redis stream needs a name")
        if self.shards < 1:
            raise SettingsError(f"a queue cannot have {self.shards} shards: give 1 or more")

    @property
    def agreement(self) -> str:
        """Remembers what all processes must have in common."""
        return f"{self.prefix}:group"

    def queue(self, queue: str, shard: int) -> str:
        return f"{{{self.prefix}:q:{queue}:{shard}}}"

    def queues(self, queue: str) -> list[str]:
        return [self.queue(queue, shard) for shard in range(self.shards)]

    def queue_for(self, queue: str, key: str) -> str:
        return self.queue(queue, self.shard(key))

    def worker(self, worker: str) -> str:
        return f"{{{self.prefix}:w:{worker}}}"

    @property
    def words(self) -> str:
        """Where workers tell each other what they have found out."""
        return f"{self.prefix}:words"

    def news(self, key: str) -> str:
        return f"{self.prefix}:news:{crc32(key.encode()) % CHANNELS}"

    def shard(self, key: str) -> int:
        """One of its tenant's two: a tenant that floods its shards leaves the others to the rest."""
        if self.shards == 1:
            return 0
        tenant = crc32(tenant_of(key).encode())
        first = tenant % self.shards
        if crc32(key.encode()) % 2 == 0:
            return first
        return (first + 1 + tenant // self.shards % (self.shards - 1)) % self.shards


def check_prefix(prefix: str) -> None:
    if not _PREFIX.fullmatch(prefix):
        raise SettingsError(
            f"{prefix!r} cannot be the prefix of keys in Redis: use letters, digits, dots, hyphens and underscores"
        )
