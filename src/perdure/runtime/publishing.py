"""How the log of a definition is written, by whoever publishes.

Rules kept here: to write one holds it like any execution, so two never write at once and one that dies in the middle
only makes the next wait for the end of its lease; what is to be written is decided from the log while it is held; every
write is a commit that shows the new index in the head. A commit whose outcome is unknown is looked for in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct

from perdure.core import events as ev
from perdure.core.records import Busy, Commit, Held, Outcome, Park, Row
from perdure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from perdure.ports import Store
from perdure.runtime.clock import Clock
from perdure.runtime.published import Act, Index, blank, fold, index_of

#: How long one act may take, and how long one waits for those of others, in seconds.
LEASE, WAIT = 10.0, 30.0
_encode = msgspec.json.encode


class Deed(Struct, frozen=True):
    """What is to be written, under its name."""

    name: str
    act: Act


#: Looks at what is there and says what to write, or None if it is there already; it may raise.
Decide = Callable[[Index], Deed | None]


class Desk:
    """Where the log of one definition is written."""

    def __init__(self, store: Store, clock: Clock, me: str, key: str) -> None:
        self._store = store
        self._clock = clock
        self._key = key
        # A name of its own, for what one process holds it can hold again.
        self._me = f"{me}/{uuid.uuid4().hex[:12]}"
        self._id = uuid.uuid4().hex

    async def write(self, decide: Decide, by: str) -> Index:
        """The index afterwards."""
        doubt = False
        while True:
            held, index, version = await self._hold(doubt)
            outcome: Outcome = "stale"
            try:
                deed = None if doubt and self._written(held) else decide(index)
                if deed is None:
                    return index
                event = ev.EventReceived(deed.name, Raw(_encode(deed.act)), self._id, by)
                row = ev.row(event, version + 1, self._clock.now(), held.token)
                after = fold(index, [row])
                settle = Park("open", None, _encode(after))
                [outcome] = await self._store.commit([Commit(self._key, held.token, [row], settle)], 0)
                if outcome in ("ok", "mail"):
                    return after
            except OutcomeUnknown:
                doubt = True
            finally:
                if outcome != "ok":  # then the commit has given the hold back
                    await self._leave(held)

    async def _hold(self, doubt: bool) -> tuple[Held, Index, int]:
        """The hold, the index and the version of the log; with a doubt all of the log is read."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + WAIT
        pause = 0.01
        while True:
            head = await self._store.head(self._key)
            if head is None:
                await self._store.start([blank(self._key)], 0)
                continue
            known = {} if doubt else {self._key: (head.version, head.token)}
            [answer] = await self._store.hold([self._key], self._me, int(LEASE * 1e6), known)
            if isinstance(answer, Held):
                rows = answer.rows
                if rows and rows[0].version == 1:
                    return answer, fold(Index(), rows), rows[-1].version
                return answer, fold(index_of(head), rows), rows[-1].version if rows else head.version
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
