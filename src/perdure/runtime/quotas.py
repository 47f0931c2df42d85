"""Quotas on a worker: new executions of a tenant that has enough of them running wait until others end.

Rules kept here:
- Only what is fresh waits. An execution that has begun is never kept from going on, or two could wait for each other;
  for the same reason children are not counted and do not wait.
- The store counts, at most once a second for a tenant. In between this worker adds what it takes up itself and
  subtracts what ends here, so alone it is exact, and others are noticed within the second.
- What waits is not held and not changed: its row stays due. Some are remembered here, to be taken up at once when there
  is room; the others come when they are due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

from perdure.core.records import tenant_of
from perdure.ports import Store

#: Seconds for which a count is good.
EVERY = 1.0


class Known(Protocol):
    """What is known of tenants."""

    @property
    def limits(self) -> Mapping[str, int]: ...
    def rests(self, key: str) -> bool: ...


class _Count:
    """How many executions of a tenant run, as far as this worker knows."""

    __slots__ = ("at", "running")

    def __init__(self, running: int, at: float) -> None:
        self.running = running
        self.at = at


class Quotas:
    def __init__(self, store: Store, known: Known, most: int = 10_000) -> None:
        self._store = store
        self._known = known
        self._most = most
        self._counts: dict[str, _Count] = {}
        self._waiting: dict[str, dict[str, None]] = {}  # by tenant, in the order in which they came
        self._flying: set[str] = set()  # let through, and not yet held
        self._lock = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """How many are remembered here."""
        return sum(map(len, self._waiting.values()))

    async def admitted(self, keys: list[str]) -> list[str]:
        """Those of the keys that may be taken up; say `settled` when they are held. The others are remembered."""
        limits = self._known.limits
        limited = [key for key in keys if tenant_of(key) in limits]
        if not limited:
            return keys
        async with self._lock:
            fresh = await self._store.fresh(limited)
            over = {key for key in limited if key in fresh and not await self._begins(key)}
        for key in limited:
            if key in over:
                self._remember(key)
            else:
                self._forget(key)
        return [key for key in keys if key not in over]

    def settled(self, keys: Sequence[str]) -> None:
        """Their holds are answered, one way or another."""
        self._flying.difference_update(keys)

    def ended(self, key: str) -> bool:
        """An execution that counts has ended here. Gives whether another waits for its place."""
        tenant = tenant_of(key)
        if (count := self._counts.get(tenant)) is not None:
            count.running -= 1
        return tenant in self._waiting

    async def again(self, places: int) -> list[str]:
        """Some of those that wait, as many as there may be room for by now."""
        found: list[str] = []
        async with self._lock:
            for tenant, keys in list(self._waiting.items()):
                if self._known.rests(f"{tenant}/"):
                    continue
                room, left = await self._room(tenant), places - len(found)
                some = list(islice(keys, max(0, left if room is None else min(room, left))))
                found += some
                if room is None:  # nobody will ask again
                    for key in some:
                        self._forget(key)
        return found

    async def _begins(self, key: str) -> bool:
        tenant = tenant_of(key)
        room = await self._room(tenant)
        if room is None:
            return True
        if room <= 0:
            return False
        self._counts[tenant].running += 1
        self._flying.add(key)
        return True

    async def _room(self, tenant: str) -> int | None:
        """How many more may begin; None for any number."""
        limit = self._known.limits.get(tenant)
        if limit is None:
            self._counts.pop(tenant, None)
            return None
        time = asyncio.get_running_loop().time()
        count = self._counts.get(tenant)
        if count is None or time - count.at >= EVERY:
            # Those on their way may be counted twice now, never not at all.
            flying = sum(tenant_of(key) == tenant for key in self._flying)
            running = await self._store.begun(tenant, 2 * limit + 1000)
            count = self._counts[tenant] = _Count(running + flying, time)
        return limit - count.running

    def _remember(self, key: str) -> None:
        keys = self._waiting.setdefault(tenant_of(key), {})
        if key in keys or self.waiting < self._most:
            keys[key] = None
        elif not keys:
            del self._waiting[tenant_of(key)]

    def _forget(self, key: str) -> None:
        tenant = tenant_of(key)
        if (keys := self._waiting.get(tenant)) is not None:
            keys.pop(key, None)
            if not keys:
                del self._waiting[tenant]
