"""External tasks that have a limit of time, after they were given out.

Whoever asks for the next task finds those that are overdue. But perhaps nobody asks: the only worker hangs. So the
process that gave a task out looks at it when its lease ends. It need not survive that: then the next who asks does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.core.loop import turns
from perdure.core.records import ENDED, Head, Held
from perdure.errors import KeyMissing, KeyringError, NotRegistered, StoreError
from perdure.flows.registry import registry
from perdure.runtime.execution.course import Ground
from perdure.runtime.external.task import Task
from perdure.runtime.external.ticket import holder_of, new_secret

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: Seconds after the end of a lease at which to look: whoever waits for tasks comes first.
_AFTER = 1.0
#: Microseconds for which an overdue task is held while that is written.
_LEASE = 10_000_000


class Overdue:
    """`part` gives a hold back with what there is to write."""

    def __init__(self, app: Perdure, ground: Ground, part: Callable[[Task], Awaitable[bool]]) -> None:
        self._app = app
        self._ground = ground
        self._part = part
        self._errands: set[asyncio.Task[None]] = set()

    def follow(self, key: str, holder: str, lease: int) -> None:
        errand = asyncio.create_task(self._follow(key, holder, lease / 1e6), name="perdure-overdue")
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    def close(self) -> None:
        for errand in self._errands:
            errand.cancel()

    async def _follow(self, key: str, holder: str, delay: float) -> None:
        with suppress(KeyringError):  # nobody will ever read it, and whoever holds it next makes it stuck
            await self._look_after(key, holder, delay)

    async def _look_after(self, key: str, holder: str, delay: float) -> None:
        while True:
            await asyncio.sleep(delay + _AFTER)
            with suppress(StoreError, KeyMissing):
                head = await self._app.store.head(key)
                if head is None or head.status in ENDED or head.due is None or head.holder not in (None, holder):
                    return  # it was done, or is somebody else's
                delay = max(head.due - self._app.clock.now(), 0) / 1e6
                if head.holder is None:
                    if not delay:
                        await self._take_back(head)
                    return

    async def _take_back(self, head: Head) -> None:
        me = holder_of(new_secret(), "overdue")
        [held] = await self._app.store.hold([head.key], me, _LEASE)
        if not isinstance(held, Held):
            return
        try:
            task = Task(self._ground, held, registry.external_of(held.definition))
        except NotRegistered:
            await self._app.store.release([(held.key, held.token)])
            return
        now = self._app.clock.now()
        with turns():
            task.wake(now)
            lost = task.open is not None and task.open.started and not task.overdue(task.open, now)
        try:
            if lost:  # without a limit: it is for the next who asks, who must see that it lapsed
                await self._app.store.release([(held.key, held.token)])
            else:
                await self._part(task)
        finally:
            task.drop()
