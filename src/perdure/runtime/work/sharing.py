"""What waits here too long for a place is given back, so that a worker which has one can take it.

Rules kept here: only an action that runs apart is given back, for it is an execution of its own and has nothing to
write; while anything of it is under way it stays. Others are told of a few only: who has no place for these would have
to give them back as well, and who has one looks for the rest (see the relay). One that comes back to us, because nobody
else had a place, may wait twice as long the next time. So where everybody is busy little is moved.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from perdure.core.records import Hint
from perdure.errors import StoreError
from perdure.ports import Store, Stream
from perdure.runtime.attempts.slots import Exit
from perdure.runtime.execution.resident import Resident
from perdure.runtime.settings import Settings
from perdure.runtime.telemetry.metrics import Metrics

#: How long an action that runs apart waits for a place, in seconds, where `spill` does not say, and at least.
PATIENCE, LEAST = 1.0, 0.1
#: How often that is doubled at most, and of how many executions it is known how often they were given back.
DOUBLINGS, KNOWN = 5, 10_000


class Floor(Protocol):
    """What this needs of the worker."""

    draining: bool
    metrics: Metrics
    settings: Settings

    @property
    def spill(self) -> float | None: ...
    def here(self, resident: Resident) -> bool: ...
    def spawn(self, errand: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


class Sharing:
    def __init__(
        self,
        floor: Floor,
        store: Store,
        stream: Stream,
        evict: Callable[[Resident], None],
        look_when_free: Callable[[], None],
    ) -> None:
        self._floor = floor
        self._store = store
        self._stream = stream
        self._evict = evict
        self._look_when_free = look_when_free
        self._told = Exit(max(1, floor.settings.concurrency // 10))
        self._going: list[Resident] = []  # to be released, all in one call
        self._times: OrderedDict[str, int] = OrderedDict()  # that it was given back from here

    def patience(self, key: str) -> float:
        """For how many seconds this execution waits here for a place of its action."""
        spill = self._floor.spill
        times: int = min(self._times.get(key, 0), DOUBLINGS)
        return max(PATIENCE if spill is None else spill, LEAST) * 2.0**times

    def give_back(self, resident: Resident) -> bool:
        """Let go of it, unless something of it is under way; whether that is so."""
        floor = self._floor
        if floor.draining or not floor.here(resident) or not resident.at_rest:
            return False
        self._times[resident.key] = self._times.pop(resident.key, 0) + 1
        if len(self._times) > KNOWN:
            self._times.popitem(last=False)
        floor.metrics.given_back.add()
        self._evict(resident)
        self._going.append(resident)
        if len(self._going) == 1:
            floor.spawn(self._release(), "perdure-give-back")
        return True

    async def _release(self) -> None:
        going, self._going = self._going, []
        with contextlib.suppress(StoreError):  # then their leases end by themselves
            await self._store.release([(resident.key, resident.token) for resident in going])
            self._look_when_free()  # if nobody else takes them, we do: from now on they can be found
            told = [resident for resident in going if self._told.lets(PATIENCE)]
            await self._stream.publish([Hint(resident.key, resident.queue, away=True) for resident in told])
