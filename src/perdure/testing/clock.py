"""Virtual time: an event loop whose clock jumps by itself when everybody sleeps.

Rules kept here:
- Time passes only when nothing can happen any more at this instant; then it jumps to the next timer.
- While a thread works for the loop, time stands still; a thread that takes longer than `PATIENCE` real seconds makes
  time flow as it does outside, so that timeouts around it still come.
- If everybody waits and no timer is set, `Deadlock` says who waits for what. A virtual loop never hangs in silence.
- Every loop begins at the same moment, `EPOCH`, so a run can be repeated exactly; with a `seed` the order of what is
  ready at one instant is drawn from it.
- Code can belong to an owner (a simulated process); the callbacks of a frozen owner are kept back, not run.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from datetime import datetime
from typing import Any, TypeVar, TypeVarTuple

from perdure.core.moments import moment
from perdure.core.places import where

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: When every virtual clock begins: 2030-01-01T00:00:00Z, in microseconds.
EPOCH = 1_893_456_000_000_000
#: Real seconds for which time stands still while a thread works, or while somebody unknown might wake the loop.
PATIENCE = 1.0
#: Rounds of the loop at one instant, after which it is called a busy loop.
ROUNDS = 1_000_000
#: Real seconds given to open sockets and pipes before time jumps past them.
SOCKETS = 0.05


class Deadlock(AssertionError):
    """Nothing can happen any more, and somebody still waits."""


class Owner:
    """Whom code belongs to. Tasks and callbacks inherit their owner through the context."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.held: list[asyncio.Handle] = []
        self.tasks: set[asyncio.Task[Any]] = set()


owner: ContextVar[Owner] = ContextVar("perdure_owner")


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module.

    >>> async def nap() -> float:
    ...     await asyncio.sleep(30 * 24 * 3600)
    ...     return asyncio.get_running_loop().time()
    >>> run(nap())
    2592000.0
    """

    # The parts of asyncio's own loop that are used here; they are the same from 3.11 on.
    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]
    _stopping: bool
    _selector: Any
    _internal_fds: int
    _clock_resolution: float
    _timer_cancelled_count: int

    def __init__(self, seed: int | str | None = None) -> None:
        self._micros = 0
        self._random = None if seed is None else random.Random(f"{seed}:schedule")
        self._jobs = 0
        self._patience = PATIENCE
        self._frozen = 0
        self._rounds = 0
        self._resting: list[asyncio.Future[None]] = []
        self._watchers: list[Callable[[int], None]] = []
        super().__init__()

    # The clock.

    def time(self) -> float:
        return self._micros / 1e6

    def now(self) -> int:
        """Microseconds since the Unix epoch."""
        return EPOCH + self._micros

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        # What is due within a microsecond would ring at this very instant, and whoever then sleeps for the rest, which
        # may be no more than the noise of floats, would do so for ever.
        now = self.time()
        when = max(when, now + 1e-6) if when > now else when
        return super().call_at(when, callback, *args, context=context)

    async def settled(self) -> None:
        """Return when everything has happened that can happen at this instant."""
        future: asyncio.Future[None] = self.create_future()
        self._resting.append(future)
        await future

    def watch(self, watcher: Callable[[int], None]) -> None:
        """Call it before every jump, with the length in microseconds; it may raise a Deadlock."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[int], None]) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    # Owners.

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        context = options.get("context")
        whose = owner.get(None) if context is None else context.get(owner)
        if whose is not None:
            whose.tasks.add(task)
            task.add_done_callback(whose.tasks.discard, context=Context())
        return task

    def freeze(self, whose: Owner) -> None:
        if not whose.frozen:
            whose.frozen = True
            self._frozen += 1

    def thaw(self, whose: Owner) -> None:
        if whose.frozen:
            whose.frozen = False
            self._frozen -= 1
            self._ready.extend(whose.held)
            whose.held.clear()

    # Threads.

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        # In a context of nobody's: of a thread that is done already the result would be delivered in the present one,
        # and kept back with all else of an owner that is frozen meanwhile, as if the thread still worked.
        future: asyncio.Future[T] = Context().run(super().run_in_executor, executor, func, *args)
        self._jobs += 1
        future.add_done_callback(self._job_done, context=Context())
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self._jobs += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._job_done()

    def _job_done(self, future: asyncio.Future[Any] | None = None) -> None:
        self._jobs -= 1
        self._patience = PATIENCE

    # One round of the loop.

    def _run_once(self) -> None:
        while True:
            self._promote()
            if self._frozen:
                self._withhold()
            if self._ready or self._stopping:
                break
            self._wait()
        if self._random is not None and len(self._ready) > 1:
            ready = list(self._ready)
            self._random.shuffle(ready)
            self._ready.clear()
            self._ready.extend(ready)
        self._rounds += 1
        if self._rounds > ROUNDS:
            self._rounds = 0
            raise Deadlock(f"time stands still, because something is always ready to run:\n{waits(self)}")
        super()._run_once()  # type: ignore[misc]

    def _promote(self) -> None:
        """Timers that are due become ready here and not in asyncio's round, so that they are shuffled as well."""
        end = self.time() + self._clock_resolution
        while self._scheduled and (self._scheduled[0]._cancelled or self._scheduled[0]._when <= end):
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(handle)

    def _withhold(self) -> None:
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            whose = handle._context.get(owner)  # type: ignore[attr-defined]
            if whose is not None and whose.frozen:
                whose.held.append(handle)
            else:
                self._ready.append(handle)

    def _wait(self) -> None:
        """Nothing is ready: look for I/O, wait for threads, or let time jump."""
        if self._poll(0):
            return
        timeout = self._scheduled[0]._when - self.time() if self._scheduled else None
        if self._jobs:
            self._wait_for_threads(timeout)
        elif self._resting:
            resting, self._resting = self._resting, []
            for future in resting:
                if not future.done():
                    future.set_result(None)
        elif timeout is None:
            self._wait_for_somebody()
        elif len(self._selector.get_map()) <= self._internal_fds or not self._poll(SOCKETS):
            self._jump(timeout)

    def _poll(self, timeout: float | None) -> bool:
        found = self._selector.select(timeout)
        self._process_events(found)  # type: ignore[attr-defined]
        return bool(found)

    def _jump(self, timeout: float) -> None:
        # Rounded up to a whole microsecond (but for the noise of floats): a timer is never early, time always moves.
        step = max(1, math.ceil(timeout * 1e6 - 1e-3))
        for watcher in list(self._watchers):
            watcher(step)
        self._micros += step
        self._rounds = 0

    def _wait_for_threads(self, timeout: float | None) -> None:
        began = time.monotonic()
        if self._patience > 0:
            if not self._poll(self._patience):
                self._patience = 0.0
            return
        self._poll(0.05 if timeout is None else min(timeout, 0.05))
        self._micros += int((time.monotonic() - began) * 1e6)

    def _wait_for_somebody(self) -> None:
        if len(self._selector.get_map()) > self._internal_fds:
            self._poll(None)  # a socket or a pipe: the world outside will answer, or not
            return
        if threading.active_count() > 1 and self._poll(PATIENCE):
            return
        raise Deadlock(f"everybody waits and nothing can happen any more:\n{waits(self)}")


def waits(loop: asyncio.AbstractEventLoop) -> str:
    """Every task of the loop and the line at which it waits."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    return "\n".join(f"  {task.get_name()} waits at {where(task)}" for task in tasks) or "  (no task is left)"


def virtual_loop(what: str) -> VirtualLoop:
    """The running loop, which must be a virtual one."""
    from perdure.errors import UsageError

    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise UsageError(
            f"{what} needs virtual time: take the `world` fixture in a pytest test, mark the test with"
            " @pytest.mark.virtual_time, or run your coroutine with perdure.testing.run(...)"
        )
    return loop


def now() -> datetime:
    """The virtual time, in UTC."""
    return moment(virtual_loop("now()").now())


def run(main: Coroutine[Any, Any, T], *, seed: int | str | None = None, debug: bool | None = None) -> T:
    """Like `asyncio.run`, in virtual time: sleeping costs nothing.

    >>> async def main() -> str:
    ...     await asyncio.sleep(3600)
    ...     return f"{now():%Y-%m-%d %H:%M}"
    >>> run(main())
    '2030-01-01 01:00'
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed), debug=debug) as runner:
        return runner.run(main)
