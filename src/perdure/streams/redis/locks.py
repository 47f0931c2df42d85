"""Locks in Redis: a name, who has it, until when, and a fence.

Rules kept here: every step is one script, so nobody comes between a look and a write; only the holder extends or drops
its lock; whoever repeats a call as the same holder gets the same answer. A lock of Redis is advice: a holder that was
paused for longer than its time does not know that it lost it. What must not be written twice compares the fence.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import Struct
from redis import exceptions

from perdure.errors import StoreUnavailable
from perdure.streams.redis.keys import check_prefix
from perdure.streams.redis.server import FAILURES, Server, explain

#: How long one call may take, in seconds.
TIMEOUT = 2.0

# The fence rises for ever as far as Redis can promise: it is one more than the last, which is remembered for a day, and
# never less than the server's microseconds, which are ahead of what was forgotten.
_TAKE = """
local holder = redis.call('HGET', KEYS[1], 'holder')
if holder and holder ~= ARGV[1] then return false end
local fence = holder and redis.call('HGET', KEYS[1], 'fence')
if not fence then
  local time = redis.call('TIME')
  fence = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, time[1] * 1000000 + time[2])
  fence = string.format('%.0f', fence)
  redis.call('SET', KEYS[2], fence, 'PX', math.max(86400000, 2 * ARGV[2]))
  redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'fence', fence)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return fence
"""
_EXTEND = """
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_DROP = """
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
_LOOK = """
local held = redis.call('HMGET', KEYS[1], 'holder', 'fence')
return {held[1], held[2], redis.call('PTTL', KEYS[1])}
"""


class Lock(Struct, frozen=True):
    """A lock that somebody has, for `ttl` more seconds."""

    holder: str
    fence: int
    ttl: float


class RedisLocks:
    """The locks of one prefix. Every call raises StoreUnavailable while Redis is out of reach."""

    def __init__(self, url: str, *, prefix: str = "perdure", timeout: float = TIMEOUT) -> None:
        check_prefix(prefix)
        self._prefix = prefix
        self._server = Server(url, timeout)

    async def take(self, name: str, holder: str, ttl: float) -> int | None:
        """The fence, if the lock was free or is the holder's own; then it is held for `ttl` seconds from now."""
        fence = await self._run(_TAKE, name, holder, _ms(ttl))
        return None if fence is None else int(fence)

    async def extend(self, name: str, holder: str, ttl: float) -> bool:
        """Hold it for `ttl` seconds from now; false if it is not the holder's any more."""
        return bool(await self._run(_EXTEND, name, holder, _ms(ttl)))

    async def drop(self, name: str, holder: str) -> bool:
        """Let it go; false if it was not the holder's any more."""
        return bool(await self._run(_DROP, name, holder))

    async def look(self, name: str) -> Lock | None:
        """Who has it at present."""
        holder, fence, left = await self._run(_LOOK, name)
        return None if holder is None else Lock(holder.decode(), int(fence), max(left, 0) / 1000)

    async def close(self) -> None:
        await self._server.hang_up()

    async def _run(self, script: str, name: str, *arguments: str | int) -> Any:
        key = f"{{{self._prefix}:lock:{name}}}"
        words = (2, key, key + ":fence", *arguments)  # one hash tag, so both keys are on one node
        digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            try:
                return await self._server.call("EVALSHA", digest, *words)
            except exceptions.NoScriptError:  # a server that has restarted, or that sees it for the first time
                return await self._server.call("EVAL", script, *words)
        except FAILURES as error:
            await self._server.hang_up()
            raise StoreUnavailable(f"lock {name!r}: {explain(error, self._server.place)}; try again") from error


def _ms(ttl: float) -> int:
    return max(1, round(ttl * 1000))
