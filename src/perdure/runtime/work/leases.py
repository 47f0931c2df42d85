"""A thread beside the worker's event loop: it keeps leases alive when the loop cannot, and says that it cannot.

The loop renews its leases itself. Code that blocks it (a long computation in an async action) would lose them, and with
them all that this worker holds; so a thread with an event loop and a store connection of its own looks on. Rules kept
here:

- While the loop answers, nothing is renewed from here: nobody competes with the commits for the store, and a worker
  whose own connection is dead gives up what it cannot write. When the loop does not answer, what was not renewed for
  half a lease is renewed.
- A loop that does not answer for `stall` seconds is reported once, with the stack of what blocks it. After
  `stall_limit` nothing is renewed any more, so that other workers take over.
- A process that was stopped as a whole was not stalled. Whoever took over meanwhile is protected by the fence, not by
  any clock here.
- In virtual time there is no such thread: there, and where a store has no twin, renewal is the loop's alone.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from types import FrameType
from typing import Any, Protocol

from perdure.errors import PerdureError, StoreError
from perdure.ports import Store, Stream, Twinned
from perdure.runtime.settings import Settings
from perdure.runtime.telemetry.health import Checks, Responder
from perdure.runtime.telemetry.metrics import Metrics

log = logging.getLogger("perdure.leases")
#: How long an ending worker waits for this thread.
AT_ONCE = 2.0


class Hold(Protocol):
    """What is known here of an execution that the worker holds."""

    key: str
    token: int
    lease_until: float


class Floor(Protocol):
    """What this needs of its worker."""

    me: str
    settings: Settings
    metrics: Metrics
    draining: bool

    @property
    def residents(self) -> Mapping[str, Hold]: ...
    def renewed(self, holds: Sequence[tuple[str, int]], kept: set[str], sent: float) -> None: ...


class Leases:
    """The thread. Its attributes are written by it and read by anybody."""

    def __init__(self, floor: Floor, store: Store, stream: Stream) -> None:
        self._floor = floor
        self._store = store
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="perdure-leases", daemon=True)
        self.port: int | None = None  # of health and metrics
        self._twin: Store | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._inner: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._asked = self._answered = time.monotonic()
        self._looked = self._asked
        self._renewed_at = 0.0
        self._reported = False
        self._trouble = ""

    @classmethod
    async def beside(cls, floor: Floor, store: Store, stream: Stream) -> Leases | None:
        """Begin, where there is something to do: a twin to renew with, or a port to answer on."""
        virtual = abs(asyncio.get_running_loop().time() - time.monotonic()) > 1
        if virtual or not (isinstance(store, Twinned) or floor.settings.health):
            return None
        made = cls(floor, store, stream)
        made._thread.start()
        try:
            await made._ready
        except BaseException:
            await made.stop()
            raise
        return made

    async def stop(self) -> None:
        if not self._over.done():
            if self._inner is None:
                self._stop.set()  # it has not begun, and looks at this first
            else:
                with suppress(RuntimeError):  # it has just ended by itself
                    self._inner.call_soon_threadsafe(self._stop.set)
            with suppress(TimeoutError):
                async with asyncio.timeout(AT_ONCE):
                    await asyncio.shield(self._over)
        if self._over.done():
            self._thread.join()  # to say so was the last thing that it did

    @property
    def stalled(self) -> float:
        """For how many seconds the loop has not run; 0 when that is nothing to speak of."""
        waited = time.monotonic() - self._asked if self._answered < self._asked else 0.0
        return waited if waited > self._floor.settings.stall else 0.0

    # The thread.

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._tell(_fail, self._ready, error)
            if not isinstance(error, PerdureError):
                log.exception("the lease thread broke", extra={"worker": self._floor.me})
        finally:
            self._tell(_done, self._over)

    async def _main(self) -> None:
        self._inner = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            if isinstance(self._store, Twinned):
                self._twin = self._store.twin()
                await self._twin.open()
                stack.push_async_callback(self._twin.close)
            if self._floor.settings.health:
                checks = Checks(self._floor, self._stream, self._twin or Remote(self._store, self._loop), self)
                responder = Responder(checks, self._floor.me)
                self.port = await responder.open(self._floor.settings.health)
                stack.push_async_callback(responder.close)
            self._tell(_done, self._ready)
            while not self._stop.is_set():
                await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._stop.wait()

    def _pause(self) -> float:
        settings = self._floor.settings
        return max(min(1.0, settings.lease / 6, settings.stall / 4), 0.01)

    async def _look(self) -> None:
        now = time.monotonic()
        self._listen()
        stopped = now - self._looked > self._pause() + self._floor.settings.stall / 2
        self._looked = now
        if stopped or self._answered >= self._asked:
            self._ask(now)
            return
        if (age := self.stalled) and not self._reported:
            self._report(age)
        if self._twin is not None and age < self._floor.settings.stall_limit:
            try:
                await self._renew(self._twin, now)
            except StoreError as error:
                log.warning("cannot renew leases: %s; trying again", error, extra={"worker": self._floor.me})

    def _listen(self) -> None:
        """A stream that mends itself raises nothing, so its troubles are counted here, each when it begins."""
        trouble = self._stream.trouble
        if trouble and not self._trouble:
            self._tell(self._floor.metrics.subscription_errors.add)
        self._trouble = trouble

    def _ask(self, now: float) -> None:
        self._reported = False
        self._asked = now
        self._tell(self._answer, now)

    def _answer(self, asked: float) -> None:
        self._answered = max(self._answered, asked)

    def _tell(self, callback: Any, *args: Any) -> None:
        with suppress(RuntimeError):  # its loop is closed: there is nobody left to tell
            self._loop.call_soon_threadsafe(callback, *args)

    # What it is for.

    async def _renew(self, twin: Store, now: float) -> None:
        lease = self._floor.settings.lease
        if now - self._renewed_at < lease / 3:
            return
        # A hold is written down as good for nine tenths of its lease.
        late = [one for one in list(self._floor.residents.values()) if one.lease_until < now + 0.4 * lease]
        if not late:
            return
        self._renewed_at = sent = time.monotonic()
        holds = [(one.key, one.token) for one in late]
        kept = await twin.renew(holds, int(lease * 1e6))
        for one, (key, token) in zip(late, holds, strict=True):
            if key in kept and one.token == token:
                # Not by the loop: when that runs again, the first thing that it does may be to look at this.
                one.lease_until = max(one.lease_until, sent + 0.9 * lease)
        self._tell(self._floor.renewed, holds, kept, sent)

    def _report(self, age: float) -> None:
        self._reported = True
        self._floor.metrics.stalls.add()
        frame = sys._current_frames().get(self._watched)
        text = f"the event loop has not run for {age:.1f} s; {_place(frame)} blocks it: do that in a plain function"
        stack = "".join(traceback.format_stack(frame)).rstrip() if frame is not None else None
        extra = {"worker": self._floor.me}
        if log.isEnabledFor(logging.WARNING):  # the stack is another thread's, which `stack_info=True` cannot give
            log.handle(log.makeRecord(log.name, logging.WARNING, __file__, 0, text, (), None, "_report", extra, stack))


class Remote:
    """A store that belongs to another loop, asked from this one; without a twin there is no other way."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._loop = store, loop

    async def head(self, key: str) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._store.head(key), self._loop))

    async def now(self) -> int:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._store.now(), self._loop))

    async def backlog(self) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._store.backlog(), self._loop))


def _place(frame: FrameType | None) -> str:
    """The innermost line."""
    if frame is None:
        return "something"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
