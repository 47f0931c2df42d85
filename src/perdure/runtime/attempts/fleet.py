"""Places for attempts that all workers of a deployment share: so many of an action at once, wherever they run.

A place is a lock in the store, of no tenant: the attempt that has it renews it, and a worker that dies gives it back
when its lease is over. Rules kept here: of one worker one attempt at a time looks for a place of an action, the others
wait behind it; it looks again when one is given back here, and otherwise now and then, for what others give back is not
told. A store that is away is asked again; no attempt fails for want of a place.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from perdure.errors import StoreError
from perdure.ports import Store
from perdure.runtime.managing.keeping import Keeper
from perdure.runtime.managing.locks import Lock, StoreLocks

log = logging.getLogger("perdure.worker")
HOME = "actions:"
#: The time between two looks, in seconds, after the first few.
SOON, LATER = 0.05, 1.0


class Fleet:
    def __init__(self, store: Store, me: str, lease: float) -> None:
        self._locks = StoreLocks(store, HOME)
        self._keeper = Keeper()
        self._me = me
        self._lease = lease
        self._turns: dict[str, asyncio.Lock] = {}
        self._freed: dict[str, asyncio.Event] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._begins = 0  # with which place the next search begins: not everybody with the same
        self._closed = False

    async def enter(self, action: str, count: int) -> Lock:
        """Wait for one of so many places, and take it."""
        async with self._turns.setdefault(action, asyncio.Lock()):
            freed, pause = self._freed.setdefault(action, asyncio.Event()), SOON
            while not self._closed:
                freed.clear()
                try:
                    if (found := await self._look(action, count)) is not None:
                        return found
                except StoreError as error:
                    log.warning("no place of %s can be had: %s; trying again", action, error, extra={"action": action})
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await freed.wait()
                pause = min(2 * pause, LATER)
        raise asyncio.CancelledError("no more attempts begin here")

    async def _look(self, action: str, count: int) -> Lock | None:
        self._begins += 1
        for number in range(count):
            name = f"{action}:{(self._begins + number) % count}"
            place = Lock(self._locks, self._keeper, name, self._me, self._lease, 0)
            if await place.seize():
                return place
        return None

    def leave(self, action: str, place: Lock) -> None:
        """Give it back, without waiting for that."""
        task = asyncio.get_running_loop().create_task(self._leave(action, place), name=f"perdure-leave-{action}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, action: str, place: Lock) -> None:
        with suppress(StoreError):  # then its lease ends by itself
            await place.release()
        self._freed[action].set()

    def close(self) -> None:
        """Call off those who wait, and whoever comes."""
        self._closed = True
        for freed in self._freed.values():
            freed.set()

    async def calm(self) -> None:
        """Wait until all that was given back is."""
        while self._leaving:
            await asyncio.wait(self._leaving)
        await self._keeper.calm()
