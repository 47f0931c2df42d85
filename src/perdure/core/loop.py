"""The deterministic event loop: asyncio driven by the log, one event at a time.

Rules kept here:
- A turn is synchronous: make this loop the running one, run until nothing is ready, restore. Time stands still in it.
- Tasks and async generators are held strongly, in creation order; asyncio holds them weakly, and then the garbage
  collector would decide what happens.
- The garbage collector is off during turns: a collection could run another execution's clean-up inside this one.
- A task hashes by its number, so that sets of tasks iterate the same way on every replay. The number is given after
  `Task.__init__`: in the process-wide WeakSet of Python <= 3.13 all main tasks would otherwise share one bucket.
- A suspended coroutine never dies by itself: it is held until `evict` throws Evicted into it while every command is
  refused, at the latest when the interpreter exits.
- Whatever else a loop can do (threads, sockets, processes) is refused at the call, also in later Pythons.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import math
import sys
import threading
from asyncio import events, tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, TypeAlias

from perdure.core.places import here, short, where
from perdure.errors import Forbidden, NeverWakes

#: What is called, with which arguments, in which context.
Call: TypeAlias = tuple[Callable[..., object], tuple[Any, ...], Context]

get_running = events._get_running_loop
_set_running = events._set_running_loop
_swap_task: Any = getattr(tasks, "_swap_current_task", None) if sys.version_info >= (3, 14) else None
#: Loops that hold code: kept until they are evicted, because code that is only dropped would run its clean-up wherever
#: the garbage collector happens to find it.
_live: set[Loop] = set()
#: Tasks and generators whose clean-up never ends: kept for ever, also beyond the end of the interpreter, because their
#: death would run it outside their loop.
_undead: list[Any] = []


class Evicted(BaseException):
    """Thrown into suspended workflow code to take it out of memory. Not an Exception: nobody should catch it."""


class _Thread:
    """What turns share in one thread: the queue of ready callbacks, and whether a batch of turns is under way."""

    __slots__ = ("depth", "ready", "turning")

    def __init__(self) -> None:
        self.ready: deque[tuple[Soon, Call]] = deque()
        self.depth = 0
        self.turning: Loop | None = None


class _Here(threading.local):
    """Asked once a turn: attributes of such an object are slow."""

    def __init__(self) -> None:
        self.thread = _Thread()


_here = _Here()


def turning() -> Loop | None:
    """The loop whose turn it is in this thread."""
    return _here.thread.turning


class _Collector:
    """The garbage collector, which all threads share: off while any of them is in a batch of turns."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a clean-up that begins once it is on again may want a turn
        self._batches = 0
        self._was_on = False

    def hold(self) -> None:
        with self._lock:
            if not self._batches:
                self._was_on = gc.isenabled()
                gc.disable()
            self._batches += 1

    def release(self) -> None:
        with self._lock:
            self._batches -= 1
            if self._was_on and not self._batches:
                gc.enable()


_collector = _Collector()


def _hold_generator(agen: AsyncGenerator[Any, Any]) -> None:
    loop = get_running()
    if type(loop) is Loop:
        if len(loop.agens) % 64 == 63:  # forget the finished ones now and then
            loop.agens = [other for other in loop.agens if other.ag_frame is not None]  # type: ignore[attr-defined]
        loop.agens.append(agen)


class turns:  # noqa: N801 - reads as a phrase: `with turns():`
    """A batch of turns: garbage collection off, generator hooks on; nested use is free.

    Between two turns of a batch the last loop stays the running one, because setting it is not cheap: what runs there
    must not ask for the running loop.
    """

    __slots__ = ("_hooks", "_outer", "_task")

    def __enter__(self) -> None:
        thread = _here.thread
        thread.depth += 1
        if thread.depth > 1:
            return
        self._outer = get_running()
        self._task = _swap_task(self._outer, None) if _swap_task and self._outer is not None else None
        self._hooks = sys.get_asyncgen_hooks()
        _collector.hold()
        sys.set_asyncgen_hooks(_hold_generator, None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        thread = _here.thread
        thread.depth -= 1
        if thread.depth:
            return
        _set_running(self._outer)
        sys.set_asyncgen_hooks(*self._hooks)
        _collector.release()
        if self._task is not None:
            _swap_task(self._outer, self._task)


class Soon:
    """What call_soon returns. Never shared: callers may cancel it."""

    __slots__ = ("live",)

    def __init__(self) -> None:
        self.live = True

    def cancelled(self) -> bool:
        return not self.live

    def cancel(self) -> None:
        self.live = False


class Handle(Soon):
    """What call_at returns."""

    __slots__ = ("call", "due", "loop", "ref", "since")

    def __init__(self, loop: Loop, ref: int, due: float, call: Call) -> None:
        self.live = True
        self.loop = loop
        self.ref = ref
        self.due = due
        self.since = loop.now
        self.call = call

    def when(self) -> float:
        return self.due

    def cancel(self) -> None:
        if self.live:
            self.live = False
            self.loop.timer_cancelled(self)


class Task(asyncio.Task[Any]):
    __slots__ = ("ctx", "seq")
    seq: int
    ctx: Context

    def __hash__(self) -> int:
        try:
            return self.seq
        except AttributeError:  # inside __init__, for the process-wide WeakSet
            return object.__hash__(self)

    __eq__ = object.__eq__


class Future(asyncio.Future[Any]):
    __slots__ = ("seq",)
    seq: int

    def __hash__(self) -> int:
        return self.seq

    __eq__ = object.__eq__


class Loop(asyncio.AbstractEventLoop):
    """One execution's loop. `execution` is the replay that it belongs to."""

    __perdure_loop__ = True
    __slots__ = (
        "_future_seq",
        "_outside",
        "_ready",
        "_refused",
        "_seq",
        "agens",
        "closed",
        "closing",
        "execution",
        "gathers",
        "main",
        "now",
        "problems",
        "recording",
        "ref",
        "steps",
        "tasks",
        "timers",
        "unset",
    )

    def __init__(self, execution: Any = None, ref: int = 0, steps: int = 1_000_000) -> None:
        self.execution: Any = execution
        self.now = 0.0
        self.ref = ref
        self.steps = steps
        self.timers: dict[int, Handle] = {}
        self.unset: list[int] = []  # timers cancelled since somebody asked
        self.tasks: dict[int, Task] = {}
        self.agens: list[AsyncGenerator[Any, Any]] = []
        self.main: Task | None = None
        self.closed = False
        self.recording = False
        self.gathers = 0  # that were asked for their hash
        self.closing = False  # main is over, and so are its generators
        self.problems: list[dict[str, Any]] = []
        self._ready: deque[tuple[Soon, Call]] | None = None
        self._outside = Context()  # of what is nobody's code; its own, since two threads cannot be in one context
        self._seq = 0
        self._future_seq = 0
        self._refused = 0

    # What asyncio calls.

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.closed

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        handle = Soon()
        self._run_soon(handle, (callback, args, copy_context() if context is None else context))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        call = (callback, args, copy_context() if context is None else context)
        if self.closed or when <= self.now:
            handle = Handle(self, 0, 0.0, call)  # no timer, and 0 is what recorded machines know as its time
            self._run_soon(handle, call)
            return handle
        if not math.isfinite(when):
            raise ValueError(f"a timer needs a finite time, not {when}")
        self.ref = self.ref + 1
        handle = self.timers[self.ref] = Handle(self, self.ref, when, call)
        self.execution.timer_set(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        if self.closed:
            return _Never(loop=self)
        future = Future(loop=self)
        # A counter of its own: Python versions differ in how many internal futures they make.
        self._future_seq = future.seq = self._future_seq + 1
        return future

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: object = None, context: Context | None = None, **options: Any
    ) -> Task:
        if self.closed:
            coro.close()
            return _Never(loop=self)  # type: ignore[return-value]
        if options.pop("eager_start", None):
            coro.close()
            raise Forbidden(
                f"{author()} makes an eager task, which runs before it has a place in the order:"
                " use a plain create_task()"
            )
        self._seq = seq = self._seq + 1
        context = copy_context() if context is None else context
        task = Task(coro, loop=self, name=str(name) if name else f"task-{seq}", context=context, **options)
        task.seq, task.ctx = seq, context
        self.tasks[seq] = task
        task.add_done_callback(self._task_ended, context=self._outside)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)  # telemetry, never a decision

    # What the replay calls.

    def timer_cancelled(self, handle: Handle) -> None:
        if self.timers.pop(handle.ref, None) is not None and not self.closed:
            self.unset.append(handle.ref)

    def refuse_if_closed(self) -> bool:
        """While evicting: raise, or after many tries answer True, so that a caller that catches everything waits."""
        if not self.closed:
            return False
        self._refused += 1
        if self._refused < 100:
            raise Evicted
        return True

    def begin(self, coro: Coroutine[Any, Any, Any]) -> None:
        with turns():
            _live.add(self)
            thread = _here.thread
            outer = self._enter(thread)
            try:
                self.main = self.create_task(coro, name="main", context=Context())
                self._drain(thread.ready)
            finally:
                self._leave(thread, outer)

    def fire(self, ref: int) -> None:
        handle = self.timers.pop(ref)
        handle.live = False
        self.now = max(self.now, handle.due)
        self.turn(self._run_soon, Soon(), handle.call)

    def turn(self, change: Callable[..., object], *args: Any) -> None:
        """Apply one change and run until nothing is ready."""
        thread = _here.thread
        if not thread.depth:
            with turns():
                return self.turn(change, *args)
        outer = self._enter(thread)
        try:
            change(*args)
            self._drain(thread.ready)
        finally:
            self._leave(thread, outer)
        return None

    @property
    def finished(self) -> bool:
        return self.main is not None and self.main.done() and not self.tasks

    def evict(self) -> None:
        """Take all suspended code out of memory without letting it do anything."""
        if self.closed:
            return
        self.closed = True
        with turns():
            thread = _here.thread
            outer = self._enter(thread)
            try:
                for task in list(self.tasks.values()):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    self._throw_into(task)
                for agen in self.agens:
                    if agen.ag_frame is not None and not _kill(_athrow(agen), self._outside):  # type: ignore[attr-defined]
                        _bury(agen)
            finally:
                self._leave(thread, outer)
        self.tasks.clear()
        self.timers.clear()
        self.agens.clear()
        self.main = None
        self.execution = None  # no cycle is left for the garbage collector
        _live.discard(self)

    # Inside.

    def _run_soon(self, handle: Soon, call: Call) -> None:
        if self._ready is not None and not self.closed:  # while evicting, a released lock may try to wake its waiters
            self._ready.append((handle, call))

    def _enter(self, thread: _Thread) -> Loop | None:
        self._ready = thread.ready
        outer, thread.turning = thread.turning, self
        _set_running(self)
        return outer

    def _leave(self, thread: _Thread, outer: Loop | None) -> None:
        if thread.ready:  # only after an error
            thread.ready.clear()
        self._ready = None
        thread.turning = outer
        if outer is not None:
            _set_running(outer)

    def _drain(self, ready: deque[tuple[Soon, Call]]) -> None:
        for _ in range(self.steps):
            if not ready:
                break
            handle, (callback, args, context) = ready.popleft()
            if handle.live:
                try:
                    context.run(callback, *args)
                except Exception as error:
                    self.call_exception_handler({"message": repr(callback), "exception": error})
        else:
            raise NeverWakes(
                f"the workflow does not come to rest: {self.steps:,} steps in one turn, at {places(self)};"
                " time stands still between events, so wait with asyncio.sleep(), not with a loop"
            )
        if self.tasks and not self.timers and not self.execution.waiting():
            raise NeverWakes(
                f"the workflow waits at {places(self)} for something that no action, timer, event or child can bring"
            )

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        """What asyncio.run does at the end, in creation order: cancel what is left, then close the generators."""
        assert isinstance(task, Task)
        del self.tasks[task.seq]
        if task is self.main:
            for other in list(self.tasks.values()):
                other.cancel()
        if not self.tasks and not self.closing:
            self.closing = True
            self.agens = [agen for agen in self.agens if agen.ag_frame is not None]  # type: ignore[attr-defined]
            if self.agens:
                self.create_task(self._close_generators(list(self.agens)))

    async def _close_generators(self, agens: list[AsyncGenerator[Any, Any]]) -> None:
        for agen in agens:
            try:
                await agen.aclose()
            except (Exception, asyncio.CancelledError) as error:
                self.call_exception_handler({"message": f"{agen!r} could not be closed", "exception": error})

    def _throw_into(self, task: Task) -> None:
        tasks._enter_task(self, task)
        try:
            coro: Any = task.get_coro()
            if not _kill(coro.throw, task.ctx):
                _bury(task)
        finally:
            tasks._leave_task(self, task)


def new_loop(execution: Any, ref: int = 0, steps: int = 1_000_000) -> Loop:
    return Loop(execution, ref, steps)  # type: ignore[abstract] # the refusals are added below


class Park:
    """Awaiting it gives control back once, whatever the state of the loop."""

    def __await__(self) -> Any:
        yield


class _Never(asyncio.Future[Any]):
    """What a closed loop gives out in place of futures and tasks: awaiting it gives control back, for ever.

    It does not raise, because code such as `gather(undo(1), undo(2))` or `wait_for(undo(), 5)` would then leave
    coroutines that nobody awaited.
    """

    def get_name(self) -> str:
        return "never"

    def set_name(self, name: object) -> None:
        pass


def _athrow(agen: AsyncGenerator[Any, Any]) -> Callable[[BaseException], object]:
    step: Any = None

    def throw(error: BaseException) -> object:
        nonlocal step
        if step is not None:  # its clean-up waits for something
            return step.throw(error)
        step = agen.athrow(error)
        return step.send(None)

    return throw


def _kill(throw: Callable[[BaseException], object], context: Context) -> bool:
    for _ in range(50):
        try:
            context.run(throw, Evicted())
        except BaseException:  # the coroutine is over, however it put it
            return True
    return False


def _bury(undead: Any) -> None:
    _undead.append(undead)
    with suppress(ImportError):
        from ctypes import py_object, pythonapi

        pythonapi.Py_IncRef(py_object(undead))


def places(loop: Loop) -> str:
    return "; ".join(dict.fromkeys(where(task) for task in loop.tasks.values())) or "its end"


def author() -> str:
    """The line of the workflow that is at work."""
    function, file, line = here(Loop._drain.__code__)
    return f"{function} ({short(file)}:{line})"


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(self: Loop, *args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if asyncio.iscoroutine(arg):
                arg.close()
        raise Forbidden(f"{author()} calls loop.{name}(), which cannot be replayed: put what needs it into an action")

    return refuse


def _evict_all() -> None:
    for loop in list(_live):
        loop.evict()


atexit.register(_evict_all)
for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in Loop.__dict__:
        setattr(Loop, _name, _refusal(_name))
