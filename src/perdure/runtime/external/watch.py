"""What those who ask for external tasks of one queue share: the tasks they heard of, and when to look next.

Rules kept here: nobody looks into the store before something is due, or for longer than `cap`, because news may get
lost; looks are made one at a time, so that a hundred who wait cost no more than one. News names a task, which is tried
at once, by key: its own due time is only there for news that got lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

from perdure.core.records import EXTERNAL, End, Hint, Start, id_of, key_of, tenant_of
from perdure.ports import Store
from perdure.runtime.clock import Clock

#: Tasks that were heard of and not tried yet, at most.
_HEARD = 1000
#: Microseconds until a row that was looked at, and that nobody held, is due again.
_AGAIN = 2_000_000
#: A look never follows another one sooner than after so many microseconds.
_PAUSE = 1000
#: What is asked for: the definitions of the actions.
Wanted: TypeAlias = tuple[str, ...]


def news_key(tenant: str, queue: str) -> str:
    """The name under which there is news of a queue; no execution's id has a slash."""
    return key_of(tenant, f"external/{queue}")


def news_of_task(start: Start) -> Hint:
    """There is a new task."""
    return _news(start.queue, f"{start.definition} {start.key}")


def news_of_change(queue: str) -> Hint:
    """Something will be due in this queue at another time than was known."""
    return _news(queue, "")


def _news(queue: str, what: str) -> Hint:
    place = queue.removeprefix(EXTERNAL)
    return Hint(news_key(tenant_of(place), id_of(place)), ended=True, status="completed", result=what)


class Watch:
    """One queue of one tenant, as this process sees it; `queue` is its name in the store."""

    def __init__(self, store: Store, clock: Clock, queue: str, cap: float) -> None:
        self.queue = queue
        self.closed = False
        self.waiting = 0  # how many ask for tasks now
        self.used = 0.0  # when somebody asked last, by the loop's clock
        self._store = store
        self._clock = clock
        self._cap = int(cap * 1e6)
        self._heard: OrderedDict[str, str] = OrderedDict()  # keys of tasks, with their definitions
        self._looks: dict[Wanted, int] = {}  # when to look next
        self._looking = asyncio.Lock()
        self._bell = asyncio.Event()

    @property
    def bell(self) -> asyncio.Event:
        """Rings at the next news; whoever takes it before a look misses none."""
        return self._bell

    def came(self, news: End | None) -> None:
        """News of this queue."""
        definition, _, key = (news.result or b"" if news is not None else b"").decode().partition(" ")
        if key:
            self._heard[key] = definition
            while len(self._heard) > _HEARD:
                self._heard.popitem(last=False)
        else:
            self._looks.clear()
        self.ring()

    def close(self) -> None:
        """Nobody will hear of anything any more."""
        self.closed = True
        self.ring()

    def ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    async def keys(self, wanted: Wanted, limit: int) -> list[str]:
        """Executions that may have to be done, at most so many; each is given to one of those who ask here."""
        found = [key for key, definition in self._heard.items() if definition in wanted][:limit]
        for key in found:
            del self._heard[key]
        if len(found) < limit:
            async with self._looking:
                found += [key for key in await self._look(wanted, limit - len(found)) if key not in found]
        return found

    async def rest(self, bell: asyncio.Event, wanted: Wanted, longest: float) -> None:
        """Until there is news, or something is due."""
        due = (self._looks.get(wanted, 0) - self._clock.now()) / 1e6
        with suppress(TimeoutError):
            async with asyncio.timeout(max(min(due, longest), 0)):
                await bell.wait()

    async def _look(self, wanted: Wanted, limit: int) -> Sequence[str]:
        if self._looks.get(wanted, 0) > self._clock.now():
            return []
        now = await self._clock.sync()
        dues = await self._store.claim([self.queue], wanted, limit, _AGAIN)
        if len(dues) < limit:
            due = await self._store.next_due([self.queue], wanted)
            cap = now + self._cap
            self._looks[wanted] = cap if due is None else max(min(due, cap), now + _PAUSE)
        # Mail for a task that somebody does waits until that one gives a sign of life.
        return [due.key for due in dues if due.holder is None]
