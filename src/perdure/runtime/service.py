"""A worker as a process: it serves until it is told to stop, and stops in order.

The first SIGTERM or SIGINT: no new work, running actions may finish for up to `settings.drain`, everything that is held
is given back, exit code 0. A second one: at once; actions are cut off, holds are given back if that takes no longer
than a second (otherwise their lease has to run out), exit code 128 + its number. An action that was cut off runs again,
with the same key, on another worker.

Below a supervisor signals come over a pipe instead, one byte each, and its end means that the supervisor is dead. What
the process is sent directly then only makes it drain: a service manager that signals all processes, and the supervisor
that passes its own signal on, must not together amount to a second one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias

from perdure.errors import SettingsError
from perdure.runtime.app import Perdure
from perdure.runtime.work.worker import Worker

log = logging.getLogger("perdure.service")
#: How long the second signal waits for holds to be given back, and an ending process for what does not want to end.
AT_ONCE = 1.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LoopName: TypeAlias = Literal["auto", "uvloop", "asyncio"]


async def serve(
    app: Perdure,
    queues: Sequence[str] | None = None,
    *,
    ready: Callable[[Worker], object] | None = None,
    until: Callable[[], Coroutine[Any, Any, object]] | None = None,
    orders: int | None = None,
) -> int:
    """Run a worker until a signal comes, or until what `until` begins is done; gives the exit code.

    `ready` is called once the worker receives. `orders` is the pipe of a supervisor. Cancelling drains, too.
    """
    signals = _Signals(orders)
    workers: list[Worker] = []

    async def work() -> None:
        async with app.working(queues) as worker:
            workers.append(worker)
            if ready is not None:
                ready(worker)
            await _first(signals.first.wait, until)
            signals.first.set()  # whatever ended it: the next signal means at once
            running = worker.attempts.running
            finishing = f": {running} action(s) may take up to {app.settings.drain:g} s to finish" if running else ""
            log.info("stopping%s", finishing, extra={"worker": worker.me})

    with signals.caught():
        working = asyncio.create_task(work(), name="perdure-serve")
        hurry = asyncio.create_task(signals.second.wait(), name="perdure-hurry")
        try:
            await asyncio.wait([working, hurry], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await _give_up(working, workers)
                return 128 + signals.number
            await working
            return 0
        finally:
            hurry.cancel()
            if not working.done() and not signals.second.is_set():
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)


async def _first(*many: Callable[[], Coroutine[Any, Any, object]] | None) -> None:
    """Wait until one of them is done; its error, if it has one, is raised."""
    tasks = [asyncio.create_task(begin()) for begin in many if begin is not None]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _give_up(working: asyncio.Task[None], workers: list[Worker]) -> None:
    log.warning("stopping at once", extra={"worker": workers[0].me if workers else None})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(AT_ONCE):
            for worker in workers:
                await worker.stop(0)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


class _Signals:
    """The first and the second signal, as events."""

    def __init__(self, orders: int | None = None) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.number = 0
        self._orders = orders
        self._ordered = False

    def _came(self, number: int) -> None:
        self.number = number
        if not self.first.is_set():
            self.first.set()
        elif self._orders is None:
            self.second.set()

    def _order(self, number: int) -> None:
        """A supervisor says so: once to drain, whatever came directly, and once more to end."""
        if self._ordered:
            self.number = number
            self.second.set()
        self._ordered = True
        self.first.set()

    def _obey(self, orders: int, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own, for a pipe cannot be awaited everywhere."""
        with contextlib.suppress(OSError, RuntimeError):  # the pipe or the loop is closed: this process ends anyhow
            while order := os.read(orders, 1):
                loop.call_soon_threadsafe(self._order, order[0])
            loop.call_soon_threadsafe(self.first.set)

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Listen, and restore the handlers afterwards. Outside of the main thread no signal can be heard."""
        loop = asyncio.get_running_loop()
        if self._orders is not None:
            threading.Thread(target=self._obey, args=(self._orders, loop), name="perdure-orders", daemon=True).start()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            try:
                loop.add_signal_handler(number, self._came, number)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda got, _: loop.call_soon_threadsafe(self._came, got))
        try:
            yield
        finally:
            self._restore(loop, before)

    def _restore(self, loop: asyncio.AbstractEventLoop, before: Mapping[signal.Signals, Any]) -> None:
        """Under a supervisor a late signal means nothing any more: what ends well is not to look killed."""
        blocked = hasattr(signal, "pthread_sigmask")
        if blocked:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for number, handler in before.items():
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            after = signal.SIG_DFL if handler is None else handler
            signal.signal(number, after if self._orders is None else signal.SIG_IGN)
        if blocked:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def run(
    app: Perdure,
    queues: Sequence[str] | None = None,
    *,
    ready: Callable[[Worker], object] | None = None,
    until: Callable[[], Coroutine[Any, Any, object]] | None = None,
    leave: Callable[[int], object] | None = None,
    orders: int | None = None,
) -> int:
    """The process of a worker: serve, close, and give the exit code.

    A thread cannot be stopped, and code may refuse to be cancelled. What is still running after the drain is given back
    and will run elsewhere, so this process then ends without waiting for it (and without clean-up at exit): `leave` is
    what ends it.
    """
    leave = leave or exit_now

    async def main() -> int:
        try:
            code = await serve(app, queues, ready=ready, until=until, orders=orders)
        except Exception:  # it could not begin
            await app.close()
            raise
        if code == 0:
            await app.close()
        if code or await _left_over():
            leave(code)
        return code

    with collecting_seldom():
        return run_in_loop(main, app.settings.loop, leave)


def run_in_loop(main: Callable[[], Coroutine[Any, Any, int]], loop: LoopName, leave: Callable[[int], object]) -> int:
    """Run what gives an exit code in a loop of its own. If that loop does not close in time, `leave` is called.

    uvloop looks up names in threads that nobody else sees, and waits for every look-up that was given up: for minutes,
    where no name server answers.
    """
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        code = runner.run(main())
        late = threading.Timer(AT_ONCE, leave, [code])
        late.daemon = True
        late.start()
    late.cancel()
    return code


@contextlib.contextmanager
def collecting_seldom() -> Iterator[None]:
    """What a process that serves makes and drops has few cycles: the collector need not look for them all the time.

    The code that was loaded stays for ever; it is left out of every search.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def loop_factory(loop: LoopName) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop of a worker: uvloop's is faster, where it is installed."""
    if loop == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if loop == "uvloop":
            raise SettingsError("uvloop is not installed: pip install 'perdure[fast]', or set loop to auto") from None
        return None
    return uvloop.new_event_loop


async def _left_over() -> bool:
    """Whether asyncio.run, or the interpreter, would wait for something that may never end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks and (await asyncio.wait(tasks, timeout=AT_ONCE))[1]:
        return True
    return any(_busy(thread) for thread in threading.enumerate())


def _busy(thread: threading.Thread) -> bool:
    """A thread of an executor that is not just waiting for work."""
    if thread.daemon or not thread.name.startswith(("perdure-action", "asyncio_", "uvloop_")):
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name != "_worker"


def exit_now(code: int) -> NoReturn:
    """End this process whatever is still running in it."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
