"""A cache in Redis for what can always be had elsewhere, only slower.

Rules kept here: it never raises and never keeps anybody waiting for long; after a failure it is switched off for a
second, so that a slow Redis is not asked again and again. A miss is always a right answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from perdure.streams.redis.keys import check_prefix
from perdure.streams.redis.server import FAILURES, Server
from perdure.streams.redis.wires import Command

#: How long it is left alone after a failure, in seconds.
OFF = 1.0
#: What connecting, asking and answering may take together, in seconds: the store has the answer, too.
PATIENCE = 0.2


class WarmCache:
    """Bytes by key, with a time to live."""

    def __init__(self, url: str, *, prefix: str = "perdure", timeout: float | None = None) -> None:
        check_prefix(prefix)
        self._prefix = prefix
        self._timeout = PATIENCE if timeout is None else timeout
        self._server = Server(url, self._timeout)
        self._off_until = float("-inf")

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """What is known, in the order of the keys; None for a miss."""
        answers = await self._ask([("GET", self._key(key)) for key in keys])
        if answers is None:
            return [None] * len(keys)
        return [answer if isinstance(answer, bytes) else None for answer in answers]

    async def put(self, items: Mapping[str, bytes], ttl: float) -> None:
        """Remember for `ttl` seconds, perhaps."""
        px = max(1, round(ttl * 1000))
        await self._ask([("SET", self._key(key), value, "PX", px) for key, value in items.items()])

    async def close(self) -> None:
        await self._server.hang_up()

    async def _ask(self, commands: list[Command]) -> list[object] | None:
        if not commands or time.monotonic() < self._off_until:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                return await self._server.many(commands)
        except (*FAILURES, UnicodeError):
            self._off_until = time.monotonic() + OFF
            await self._server.hang_up()
            return None

    def _key(self, key: str) -> str:
        return f"{{{self._prefix}:warm:{key}}}"
