"""`app.lock(name)`: a lock for actions, held by a lease that is renewed while it is used.

    async with app.lock("printer-3", wait="10s") as lock:
        await printer.print(page, fence=lock.fence)

Rules kept here: a lock is a lease, so a holder that was stopped for longer than its lease may believe that it still has
it; what keeps such a holder from doing harm is the fence, a number that rises with every acquisition, compared by the
resource itself. Each acquisition has a token of its own: nobody releases or extends what another one holds.

In the store a lock is an execution without code: to hold it is the acquisition, its token the fence. So every store has
locks, with the same guarantees as everything else, and no table of their own. The row of a name stays. Since when it is
held is written behind the holder's token, in the place where a hold says whose it is.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any

from msgspec import Raw, Struct, structs

from perdure.core import events as ev
from perdure.core.durations import Duration, seconds
from perdure.core.moments import moment
from perdure.core.records import Busy, Held, Hint, Lease, Start, key_of
from perdure.errors import LockLost, LockTaken, StoreError, UsageError
from perdure.ports import Locks, Store, Stream
from perdure.runtime.managing.keeping import Holding, Keeper

#: The workflow of the executions that locks are.
LOCK = "lock:"
#: The longest time between two looks of somebody who waits: the news of a release may get lost.
_LOOK = 1.0


class LockState(Struct, frozen=True):
    """Who holds a lock, under which fence, until when if nothing renews it, since when, and for how many seconds.

    The last two are not known of a lock that was taken by a version which did not keep them.
    """

    name: str
    holder: str
    fence: int
    until: datetime
    since: datetime | None = None
    age: float | None = None


class Lock:
    """One acquisition, to be used with `async with`; see the module."""

    def __init__(
        self,
        locks: Locks,
        keeper: Keeper,
        name: str,
        me: str,
        lease: float,
        wait: float,
        most: float | None = None,
        news: News | None = None,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.token = _token(me)
        self._me = me
        self._locks = locks
        self._keeper = keeper
        self._lease = lease
        self._wait = wait
        self._most = most
        self._news = news
        self._ready = ready
        self._holding: Holding | None = None
        self._owner: asyncio.Task[object] | None = None
        self._lost = ""

    @property
    def fence(self) -> int:
        """Rises with every acquisition; give it to a resource that refuses an older one."""
        if self._holding is None:
            raise UsageError(f"lock {self.name!r} is not held")
        return self._holding.fence

    @property
    def held(self) -> bool:
        """Whether the lease still runs, as far as this process knows."""
        holding = self._holding
        return holding is not None and not self._lost and asyncio.get_running_loop().time() < holding.until

    async def acquire(self, wait: Duration | None = None) -> int:
        """Take it, waiting at most so long; gives the fence. Raises LockTaken when others keep it."""
        if self._holding is not None:
            raise UsageError(f"lock {self.name!r} is held already: a lock is not reentrant")
        if self._ready is not None:
            await self._ready()
        loop = asyncio.get_running_loop()
        longest = self._wait if wait is None else seconds(wait)
        limit = loop.time() + longest
        while True:
            changed = await self._news.of(self.name) if self._news is not None else None
            try:
                if await self.seize():
                    return self.fence
                if (left := limit - loop.time()) <= 0:
                    raise LockTaken(f"lock {self.name!r} is held by {await self._by()}; waited {longest:g} s")
                await _pause(changed, min(left, _LOOK, self._lease / 2))
            finally:
                if changed is not None and self._news is not None:
                    self._news.leave(self.name, changed)

    async def seize(self) -> bool:
        """Take it if it is free. Whoever is cancelled meanwhile does not have it."""
        sent = asyncio.get_running_loop().time()
        taking = asyncio.create_task(self._locks.take(self.name, self.token, int(self._lease * 1e6)))
        try:
            fence = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._keeper.spawn(self._put_back(taking, self.token), "perdure-lock-back")
            self.token = _token(self._me)
            raise
        if fence is None:
            return False
        self._lost = ""
        self._holding = Holding(
            self._locks, self.name, self.token, fence, self._lease, self._most, sent, sent + self._lease, self._lose
        )
        self._keeper.keep(self._holding)
        return True

    async def extend(self, lease: Duration | None = None) -> bool:
        """Begin the lease anew; False when it is no longer ours."""
        if (holding := self._holding) is None:
            return False
        sent = asyncio.get_running_loop().time()
        length = self._lease if lease is None else seconds(lease)
        [kept] = await self._locks.extend([(self.name, holding.token, holding.fence)], int(length * 1e6))
        if kept:
            holding.until = sent + length
        return kept

    async def release(self) -> bool:
        """Give it back; False when it was no longer ours."""
        if (holding := self._holding) is None:
            return False
        self._holding = None
        self._keeper.leave(holding)
        # The next acquisition has another token; one whose answer got lost, when repeated, keeps its own.
        self.token = _token(self._me)
        return await self._drop(holding.token, holding.fence)

    async def _drop(self, token: str, fence: int) -> bool:
        given = await self._locks.drop(self.name, token, fence)
        if given and self._news is not None:
            await self._news.tell(self.name)
        return given

    async def _put_back(self, taking: asyncio.Task[int | None], token: str) -> None:
        """Nobody is there any more to use what is being taken, or to release it."""
        with suppress(StoreError):  # then its lease, if there is one, ends by itself
            if (fence := await taking) is not None:
                await self._drop(token, fence)

    async def look(self) -> LockState | None:
        """Who holds it now."""
        if self._ready is not None:
            await self._ready()
        found = await self._locks.look(self.name)
        if found is None:
            return None
        state = LockState(self.name, found.token, found.fence, moment(found.until))
        if found.since is None:
            return state
        return structs.replace(state, since=moment(found.since), age=max(0, found.now - found.since) / 1e6)

    async def __aenter__(self) -> Lock:
        self._owner = asyncio.current_task()
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        owner = self._owner
        self._owner = None
        with suppress(StoreError):  # then the lease ends by itself
            await self.release()
        if self._lost and (error is None or isinstance(error, asyncio.CancelledError)):
            if error is not None and owner is not None and owner.uncancel() > 0:
                return  # somebody else wants it cancelled, too
            raise LockLost(self._lost) from error

    def _lose(self, why: str) -> None:
        self._lost = why
        if self._owner is not None:
            self._owner.cancel()

    async def _by(self) -> str:
        found = await self._locks.look(self.name)
        return "nobody any more" if found is None else f"{found.token} (fence {found.fence})"


class News:
    """Releases, as those who wait hear of them; what is lost is found by looking."""

    def __init__(
        self,
        tenant: str,
        stream: Stream,
        hear: Callable[[str], asyncio.Future[Any]],
        leave: Callable[[str, asyncio.Future[Any]], None],
    ) -> None:
        self._tenant = tenant
        self._stream = stream
        self._hear = hear
        self._leave = leave

    async def of(self, name: str) -> asyncio.Future[Any]:
        key = key_of_lock(self._tenant, name)
        await self._stream.listen(key)
        return self._hear(key)

    def leave(self, name: str, future: asyncio.Future[Any]) -> None:
        self._leave(key_of_lock(self._tenant, name), future)

    async def tell(self, name: str) -> None:
        await self._stream.publish([Hint(key_of_lock(self._tenant, name), ended=True)])


class StoreLocks:
    """Locks in any store."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    async def take(self, name: str, token: str, lease: int) -> int | None:
        key = key_of_lock(self._tenant, name)
        me = f"{token}@{await self._store.now()}"
        [answer] = await self._store.hold([key], me, lease)
        if not isinstance(answer, Held | Busy):
            await self._store.start([_lock(key)], 0)
            [answer] = await self._store.hold([key], me, lease)
        if isinstance(answer, Busy) and _told(answer.holder)[0] == token:
            # It is this token's own: whoever repeats a call whose answer got lost has had it since then.
            [answer] = await self._store.hold([key], answer.holder, lease)
        return answer.token if isinstance(answer, Held) else None

    async def extend(self, holds: Sequence[tuple[str, str, int]], lease: int) -> list[bool]:
        keys = [(key_of_lock(self._tenant, name), fence) for name, _, fence in holds]
        kept = await self._store.renew(keys, lease)
        return [key in kept for key, _ in keys]

    async def drop(self, name: str, token: str, fence: int) -> bool:
        key = key_of_lock(self._tenant, name)
        if key not in await self._store.renew([(key, fence)], 1_000_000):
            return False
        await self._store.release([(key, fence)])
        return True

    async def close(self) -> None:
        pass  # the store is not ours

    async def look(self, name: str) -> Lease | None:
        head = await self._store.head(key_of_lock(self._tenant, name))
        if head is None or head.holder is None or head.due is None:
            return None
        token, since = _told(head.holder)
        return Lease(token, head.token, head.due, await self._store.now(), since)


def key_of_lock(tenant: str, name: str) -> str:
    return key_of(tenant, f"lock/{name}")  # no execution's id has a slash


def _token(me: str) -> str:
    return f"{me}/{uuid.uuid4().hex[:12]}"


def _told(holder: str) -> tuple[str, int | None]:
    """The token of a holder, and since when it holds; a hold of before that was kept has the token alone."""
    token, mark, since = holder.rpartition("@")
    return (token, int(since)) if mark and since.isdecimal() else (holder, None)


def _lock(key: str) -> Start:
    """An execution that no worker ever claims: it is on no queue, and nobody has its definition."""
    first = ev.Started(LOCK, 1, Raw(b"[]"))
    return Start(key, LOCK, f"{LOCK}@1", "", "lock", (ev.row(first, 1, 0),))


async def _pause(changed: asyncio.Future[Any] | None, longest: float) -> None:
    if changed is None:
        await asyncio.sleep(longest)
    else:
        await asyncio.wait([changed], timeout=longest)
