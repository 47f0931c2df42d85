"""Locks in Redis: a name, who has it, since when and until when, and a fence.

Rules kept here: every step is one script, so nobody comes between a look and a write; only the holder extends or drops
its lock; whoever repeats a call as the same holder gets the same answer. A lock of Redis is advice: a holder that was
paused for longer than its time does not know that it lost it. What must not be written twice compares the fence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from redis import exceptions

from perdure.core.records import Lease
from perdure.errors import StoreUnavailable
from perdure.streams.redis.keys import check_prefix
from perdure.streams.redis.server import FAILURES, Server, explain
from perdure.streams.redis.wires import Command

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
  local now = time[1] * 1000000 + time[2]
  fence = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, now)
  fence = string.format('%.0f', fence)
  redis.call('SET', KEYS[2], fence, 'PX', math.max(86400000, 2 * ARGV[2]))
  redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'fence', fence, 'since', string.format('%.0f', now))
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return fence
"""
_EXTEND = """
local held = redis.call('HMGET', KEYS[1], 'holder', 'fence')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[3] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_DROP = """
local held = redis.call('HMGET', KEYS[1], 'holder', 'fence')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[3] then return 0 end
return redis.call('DEL', KEYS[1])
"""
_LOOK = """
local held = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'since')
local time = redis.call('TIME')
local left = math.max(redis.call('PTTL', KEYS[1]), 0)
local now = time[1] * 1000000 + time[2]
return {held[1], held[2], string.format('%.0f', now + left * 1000), string.format('%.0f', now), held[3]}
"""


class RedisLocks:
    """The Locks of one prefix and tenant. Every call raises StoreUnavailable while Redis is out of reach.

    A second `take` by the same token gives the same fence: whoever repeats a call whose answer got lost does no harm.
    """

    def __init__(self, url: str, *, prefix: str = "perdure", tenant: str = "default", timeout: float = TIMEOUT) -> None:
        check_prefix(prefix)
        self._place = f"{prefix}:lock:{tenant}"
        self._server = Server(url, timeout)

    async def take(self, name: str, token: str, lease: int) -> int | None:
        fence = await self._run(_TAKE, name, token, _ms(lease))
        return None if fence is None else int(fence)

    async def extend(self, holds: Sequence[tuple[str, str, int]], lease: int) -> list[bool]:
        """In one round trip, so with the text of the script: a server that has restarted does not know its digest."""
        commands: list[Command] = [
            ("EVAL", _EXTEND, *self._words(name), token, _ms(lease), fence) for name, token, fence in holds
        ]
        try:
            answers = await self._server.many(commands)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        except FAILURES as error:
            raise await self._unavailable(", ".join(repr(name) for name, _, _ in holds[:3]), error) from error
        return [bool(answer) for answer in answers]

    async def drop(self, name: str, token: str, fence: int) -> bool:
        return bool(await self._run(_DROP, name, token, 0, fence))

    async def look(self, name: str) -> Lease | None:
        token, fence, until, now, since = await self._run(_LOOK, name)
        if token is None:
            return None
        return Lease(token.decode(), int(fence), int(until), int(now), None if since is None else int(since))

    async def close(self) -> None:
        await self._server.hang_up()

    async def _run(self, script: str, name: str, *arguments: str | int) -> Any:
        words = (*self._words(name), *arguments)
        digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            try:
                return await self._server.call("EVALSHA", digest, *words)
            except exceptions.NoScriptError:  # a server that has restarted, or that sees it for the first time
                return await self._server.call("EVAL", script, *words)
        except FAILURES as error:
            raise await self._unavailable(repr(name), error) from error

    def _words(self, name: str) -> tuple[int, str, str]:
        key = f"{{{self._place}:{name}}}"
        return 2, key, key + ":fence"  # one hash tag, so both keys are on one node

    async def _unavailable(self, names: str, error: Exception) -> StoreUnavailable:
        await self._server.hang_up()
        return StoreUnavailable(f"lock {names}: {explain(error, self._server.place)}; try again")


def _ms(lease: int) -> int:
    return max(1, lease // 1000)
