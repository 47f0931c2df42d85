"""Quotas on a worker: new executions of a tenant that has enough of them running wait until others end.

Rules kept here:
- Only what is fresh waits. An execution that has begun is never kept from going on, or two could wait for each other;
  for the same reason children are not counted and do not wait.
- Before anything is held the store's last count decides, which is at most a second old, or older where counting takes
  long. To it this worker adds what it takes up itself, and subtracts what ends here.
- When it is held, and before it begins, the store counts once more: others may have taken up as many meanwhile, and
  whoever counts after its own hold sees theirs. So never more begin than may, however many workers there are.
- Nobody waits for a count but what is new of that tenant: other executions are taken up meanwhile.
- What waits is not held and not changed: its row stays due. Some are remembered here, to be taken up at once when there
  is room; the others come when they are due.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from perdure.core.records import Held, tenant_of
from perdure.errors import StoreError
from perdure.ports import Store

#: Seconds for which a count is good at least, and how many times as long as it took: a tenant with very many executions
#: must not keep the store busy with counting them.
EVERY, TIMES = 1.0, 20
#: Seconds after which, at most, who has held too many counts again before it gives them back: of several who see each
#: other's, all but the last give way.
PAUSE = 0.02


class Known(Protocol):
    """What is known of tenants."""

    @property
    def limits(self) -> Mapping[str, int]: ...
    def rests(self, key: str) -> bool: ...


class Floor(Protocol):
    """What this needs of the worker."""

    def now(self) -> int: ...
    def look_at(self, due: int) -> None: ...
    def spawn(self, errand: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


class _Count:
    """How many executions of a tenant run, as far as this worker knows."""

    __slots__ = ("asked", "good_until", "running", "since")

    def __init__(self) -> None:
        self.running = 0
        self.good_until = 0.0
        self.asked = False  # a new count is under way
        self.since = 0  # begun here since it was asked for, less those that ended

    def add(self, number: int) -> None:
        self.running += number
        self.since += number


class Quotas:
    def __init__(self, floor: Floor, store: Store, known: Known, most: int = 10_000) -> None:
        self._floor = floor
        self._store = store
        self._known = known
        self._most = most
        self._clock = asyncio.get_running_loop().time
        self._counts: dict[str, _Count] = {}
        self._waiting: dict[str, dict[str, None]] = {}  # by tenant, in the order in which they came
        self._flying: set[str] = set()  # let through, and not yet held

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
        fresh = await self._store.fresh(limited)
        over = {key for key in limited if key in fresh and not self._begins(key)}
        for key in limited:
            if key in over:
                self._remember(key)
            else:
                self._forget(key)
        return [key for key in keys if key not in over]

    def counts(self, key: str) -> bool:
        """Whether it was let through because there seemed to be room for it."""
        return key in self._flying

    async def surplus(self, helds: Sequence[Held]) -> set[str]:
        """The keys of those, of what was let through and is held by now, that have to be given back. They wait."""
        tenants: dict[str, list[str]] = {}
        for held in helds:
            tenants.setdefault(tenant_of(held.key), []).append(held.key)
        back: set[str] = set()
        for tenant, keys in tenants.items():
            back.update(await self._beyond(tenant, keys))
        for key in back:
            self._remember(key)
        return back

    async def _beyond(self, tenant: str, keys: list[str]) -> list[str]:
        limit = self._known.limits.get(tenant)
        if limit is None:
            return []
        try:
            running = await self._store.begun(tenant, limit + len(keys))
            if running > limit:
                await asyncio.sleep(random.uniform(0, PAUSE))
                running = await self._store.begun(tenant, limit + len(keys))
        except StoreError:  # nobody knows, so none begins
            running = limit + len(keys)
        back = keys[min(len(keys), limit + len(keys) - running) :]
        if (count := self._counts.get(tenant)) is not None:
            count.add(-len(back))
            count.running = max(count.running, running - len(back))
        return back

    def settled(self, keys: Sequence[str]) -> None:
        """Their holds are answered, one way or another."""
        self._flying.difference_update(keys)

    def ended(self, key: str) -> bool:
        """An execution that counts has ended here. Gives whether another waits for its place."""
        tenant = tenant_of(key)
        if (count := self._counts.get(tenant)) is not None:
            count.add(-1)
        return tenant in self._waiting

    def again(self, places: int) -> list[str]:
        """Some of those that wait, as many as there may be room for by now."""
        found: list[str] = []
        for tenant, keys in list(self._waiting.items()):
            if self._known.rests(f"{tenant}/"):
                continue
            room, left = self._room(tenant), places - len(found)
            some = list(islice(keys, max(0, left if room is None else min(room, left))))
            found += some
            if room is None:  # nobody will ask again
                for key in some:
                    self._forget(key)
        return found

    def _begins(self, key: str) -> bool:
        tenant = tenant_of(key)
        room = self._room(tenant)
        if room is None:
            return True
        if room <= 0:
            return False
        self._counts[tenant].add(1)
        self._flying.add(key)
        return True

    def _room(self, tenant: str) -> int | None:
        """How many more may begin, none as long as nobody knows; None for any number."""
        limit = self._known.limits.get(tenant)
        if limit is None:
            self._counts.pop(tenant, None)
            return None
        count = self._counts.setdefault(tenant, _Count())
        if self._clock() < count.good_until:
            return limit - count.running
        if not count.asked:
            count.asked, count.since = True, 0
            self._floor.spawn(self._recount(tenant, count, 2 * limit + 1000), "perdure-count")
        return 0

    async def _recount(self, tenant: str, count: _Count, most: int) -> None:
        # Those on their way to a hold may be counted twice, never not at all.
        flying = sum(tenant_of(key) == tenant for key in self._flying)
        time = self._clock()
        try:
            with contextlib.suppress(StoreError):  # then somebody asks again
                running = await self._store.begun(tenant, most)
                count.running = running + flying + count.since
                count.good_until = self._clock() + max(EVERY, TIMES * (self._clock() - time))
                if tenant in self._waiting:
                    self._floor.look_at(self._floor.now())
        finally:
            count.asked = False

    def _remember(self, key: str) -> None:
        if not self._waiting:  # whoever looks seldom has to look more often now: nobody tells of an end elsewhere
            self._floor.look_at(self._floor.now() + int(EVERY * 1e6))
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
