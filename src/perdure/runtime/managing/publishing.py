"""How the log of something without code is written: a definition, an API key.

Rules kept here: to write one holds it like any execution, so two never write at once and one that dies in the middle
only makes the next wait for the end of its lease; what is to be written is decided from the log while it is held; every
write is a commit that shows the new state in the head. A commit whose outcome is unknown is looked for in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from perdure.core import events as ev
from perdure.core.records import Busy, Commit, Head, Held, Outcome, Park, Row, Start
from perdure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from perdure.ports import Store
from perdure.runtime.clock import Clock

#: How long one act may take, and how long one waits for those of others, in seconds.
LEASE, WAIT = 10.0, 30.0
_encode = msgspec.json.encode
T = TypeVar("T")


class Deed(Struct, frozen=True):
    """What is to be written, under its name."""

    name: str
    act: Any


class Ledger(Struct, Generic[T], frozen=True):
    """How logs of one kind begin, and what they say: the state is a function of the log, and shown by the head."""

    blank: Callable[[str], Start]
    empty: T
    fold: Callable[[T, Iterable[Row]], T]
    shown: Callable[[Head | None], T]


#: Looks at what is there and says what to write, or None if it is there already; it may raise.
Decide: TypeAlias = Callable[[T], Deed | None]


class Desk(Generic[T]):
    """Where one such log is written."""

    def __init__(self, store: Store, clock: Clock, me: str, key: str, ledger: Ledger[T]) -> None:
        self._store = store
        self._clock = clock
        self._key = key
        self._ledger = ledger
        # A name of its own, for what one process holds it can hold again.
        self._me = f"{me}/{uuid.uuid4().hex[:12]}"
        self._id = uuid.uuid4().hex

    async def write(self, decide: Decide[T], by: str) -> T:
        """The state afterwards."""
        doubt = False
        while True:
            held, state, version = await self._hold(doubt)
            outcome: Outcome = "stale"
            try:
                deed = None if doubt and self._written(held) else decide(state)
                if deed is None:
                    return state
                event = ev.EventReceived(deed.name, Raw(_encode(deed.act)), self._id, by)
                row = ev.row(event, version + 1, self._clock.now(), held.token)
                after = self._ledger.fold(state, [row])
                settle = Park("open", None, _encode(after))
                [outcome] = await self._store.commit([Commit(self._key, held.token, [row], settle)], 0)
                if outcome in ("ok", "mail"):
                    return after
            except OutcomeUnknown:
                doubt = True
            finally:
                if outcome != "ok":  # then the commit has given the hold back
                    await self._leave(held)

    async def _hold(self, doubt: bool) -> tuple[Held, T, int]:
        """The hold, the state and the version of the log; with a doubt all of the log is read."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + WAIT
        ledger, pause = self._ledger, 0.01
        while True:
            head = await self._store.head(self._key)
            if head is None:
                await self._store.start([ledger.blank(self._key)], 0)
                continue
            known = {} if doubt else {self._key: (head.version, head.token)}
            [answer] = await self._store.hold([self._key], self._me, int(LEASE * 1e6), known)
            if isinstance(answer, Held):
                rows = answer.rows
                if rows and rows[0].version == 1:
                    return answer, ledger.fold(ledger.empty, rows), rows[-1].version
                return answer, ledger.fold(ledger.shown(head), rows), rows[-1].version if rows else head.version
            if loop.time() >= limit:
                holder = answer.holder if isinstance(answer, Busy) else "somebody"
                raise StoreUnavailable(f"{self._key} is being written by {holder}; waited {WAIT:g} s: try again")
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 1.5, 0.25)

    def _written(self, held: Held) -> bool:
        return any(self._mine(row) for row in held.rows)

    def _mine(self, row: Row) -> bool:
        event = ev.read(row)
        return isinstance(event, ev.EventReceived) and event.id == self._id

    async def _leave(self, held: Held) -> None:
        with contextlib.suppress(StoreError):  # then the lease ends by itself
            await self._store.release([(self._key, held.token)])
