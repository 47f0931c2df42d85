"""One loop that renews all locks which a process holds, each after a third of its lease.

Rules kept here: no lock has a task of its own; those of one kind and one lease that come up soon are renewed by
one call; a lock is renewed while it is used, but not for ever: who hangs does not keep it. What is given back meanwhile
is not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from perdure.errors import StoreError
from perdure.ports import Locks

log = logging.getLogger("perdure.locks")


class Holding(Struct, eq=False):
    """One acquisition of a lock that somebody uses."""

    locks: Locks
    name: str
    token: str
    fence: int
    lease: float
    most: float | None  # it is renewed for no longer than this
    since: float
    until: float  # the end of the lease
    lose: Callable[[str], None]  # told why


class Keeper:
    def __init__(self) -> None:
        self._next: dict[Holding, float] = {}  # when to renew each
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._errands: set[asyncio.Task[None]] = set()

    def spawn(self, errand: Coroutine[Any, Any, None], name: str) -> None:
        """Let it be done, though nobody waits for that."""
        task = asyncio.get_running_loop().create_task(errand, name=name)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def calm(self) -> None:
        """Wait until all of it is."""
        while self._errands:
            await asyncio.wait(self._errands)

    def keep(self, holding: Holding) -> None:
        """Renew it from now on."""
        self._next[holding] = holding.since + holding.lease / 3
        if self._task is None or self._task.done():
            self._changed = asyncio.Event()  # of this event loop
            self._task = asyncio.create_task(self._keep(), name="perdure-locks")
        self._changed.set()

    def leave(self, holding: Holding) -> None:
        """Renew it no more."""
        self._next.pop(holding, None)
        if not self._next and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _keep(self) -> None:
        while self._next:
            self._changed.clear()
            first = min(self._next.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(first):
                    await self._changed.wait()
                    continue
            now = max(asyncio.get_running_loop().time(), first)  # a loop may wake up a little too early
            calls: dict[tuple[Locks, float], list[Holding]] = {
                (one.locks, one.lease): [] for one, due in self._next.items() if due <= now
            }
            for one, due in self._next.items():
                call = calls.get((one.locks, one.lease))
                if call is not None and due <= now + one.lease / 6:  # whoever comes up soon comes along from now on
                    call.append(one)
            await asyncio.gather(*(self._renew(those, now) for those in calls.values()))

    async def _renew(self, holdings: Sequence[Holding], now: float) -> None:
        """All of one kind, with one length of lease."""
        for one in holdings:
            if one not in self._next:
                continue  # given back before this began
            self._next[one] = now + one.lease / 3
            if one.most is not None and now - one.since > one.most:
                self._lose(one, f"lock {one.name!r} was held for longer than {one.most:g} s, its limit")
        if not (asked := [one for one in holdings if one in self._next]):
            return
        locks, lease, trouble = asked[0].locks, asked[0].lease, ""
        try:
            kept = await locks.extend([(one.name, one.token, one.fence) for one in asked], int(lease * 1e6))
        except StoreError as error:
            kept, trouble = [False] * len(asked), str(error)
            log.warning("%s could not be renewed: %s", _named(asked), error)
        for one, still in zip(asked, kept, strict=True):
            if one not in self._next:
                continue  # given back meanwhile
            if still:
                one.until = now + lease
            elif not trouble:
                self._lose(one, f"lock {one.name!r} was lost: its lease ran out and another took it")
            elif asyncio.get_running_loop().time() > one.until:
                self._lose(one, f"lock {one.name!r} was lost: it could not be renewed in time ({trouble})")

    def _lose(self, holding: Holding, why: str) -> None:
        del self._next[holding]
        log.warning("%s", why)
        holding.lose(why)


def _named(holdings: Sequence[Holding]) -> str:
    return f"lock {holdings[0].name!r}" if len(holdings) == 1 else f"{len(holdings)} locks"
