"""Redis 7.0 or newer, or Valkey, as the store: the log itself in Redis, as durable as its append-only file is.

A newcomer begins at `store`, which has the verbs. What they do to the keys is in `scripts/*.lua`: one call of a verb is
one script, which nobody comes between. `scripts/shared.lua` says which keys there are.
"""

from __future__ import annotations

from perdure.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
