"""Redis 7.0 or newer, Valkey, and clusters of either: hints between machines, locks and a cache.

Nothing here is the truth: every byte in Redis may vanish at any moment, and the store's due times make up for it.
"""

from perdure.streams.redis.stream import RedisStream

__all__ = ["RedisStream"]
