"""The store's clock as a worker sees it between two looks: the last answer plus the time since, monotonic.

The store decides what is due; this estimate only says when to ask. If it runs ahead, the store refuses and the worker
waits; if it lags, a timer is late by that much. A wrong wall clock of the host does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.ports import Store


class Clock:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._base = 0
        self._since = 0.0
        self._time: Callable[[], float] = lambda: 0.0

    async def sync(self) -> int:
        now = await self._store.now()
        self._time = asyncio.get_running_loop().time
        self._base, self._since = now, self._time()
        return now

    def now(self) -> int:
        """Microseconds since the epoch."""
        return self._base + int((self._time() - self._since) * 1e6)
