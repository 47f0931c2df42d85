"""Registers: things without code that people make and change, each kept as a log; API keys and webhooks are such.

Rules kept here: what is shown of a thing is the record in its head, which is a function of its log; every act has its
name and who did it; `Recent` remembers for a short time what was read, so that a request does not cost a look into the
store each time, and a change takes that long to reach every process.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

from perdure.core import events as ev
from perdure.core.moments import moment
from perdure.core.records import Query
from perdure.runtime.callers.showing import whole
from perdure.runtime.managing.publishing import Decide, Desk, Ledger

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

T = TypeVar("T")
#: For how many seconds a process goes by what it has read of a thing.
FRESH = 10.0
#: Things that a process has in mind.
KEPT = 10_000
_PAGE = 500


class Change(Struct, frozen=True):
    """An act in the history of a thing: what was done, and by whom."""

    at: datetime
    what: str
    by: str = ""


class Register(Generic[T]):
    """All things of one kind in a store."""

    def __init__(self, app: Perdure, ledger: Ledger[T]) -> None:
        self._app = app
        self._ledger = ledger

    async def read(self, key: str) -> T:
        await self._app.open()
        return self._ledger.shown(await self._app.store.head(key))

    async def write(self, key: str, decide: Decide[T], by: str) -> T:
        """The record afterwards."""
        app = self._app
        await app.open()
        return await Desk(app.store, app.clock, app.me, key, self._ledger).write(decide, by or app.settings.actor)

    async def history(self, key: str) -> list[Change]:
        """Who did what, the oldest first."""
        changes: list[Change] = []
        after = 0
        while rows := await self._app.store.read(key, after, None, _PAGE):
            after = rows[-1].version
            found = ((row, ev.read(row)) for row in rows)
            changes += [Change(moment(row.at), it.name, it.by) for row, it in found if isinstance(it, ev.EventReceived)]
        return changes

    async def all(
        self, home: str, workflow: str, fields: dict[str, str | int | float | bool | None]
    ) -> AsyncIterator[tuple[str, T]]:
        """Keys and records of those in a tenant that have these fields, the newest first."""
        await self._app.open()
        cursor: tuple[int, str] | None = None
        while heads := await self._app.store.find(
            Query(home, workflow=workflow, fields=fields, limit=_PAGE, cursor=cursor)
        ):
            for head in heads:
                yield head.key, self._ledger.shown(await whole(self._app.store, head))
            cursor = heads[-1].started_at, heads[-1].key


class Recent(Generic[T]):
    """What a process has in mind; those that were asked for last, and only while it is fresh."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def get(self, key: str) -> T | None:
        found = self._kept.get(key)
        if found is None or self.clock() - found[0] >= FRESH:
            return None
        self._kept.move_to_end(key)
        return found[1]

    def keep(self, key: str, read_at: float, thing: T) -> None:
        """`read_at` is when it was asked for: the answer may be older than it looks."""
        self._kept[key] = read_at, thing
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def drop(self, key: str) -> None:
        self._kept.pop(key, None)
