"""`World`: a store, a stream, a client and workers in one test, in virtual time.

    async def test_an_order_is_fulfilled(world):
        run = await world.start(fulfil, order)
        await run.send("packed", Packed("T-1"))
        assert await run.result() == "T-1"          # thirty days of sleep take a millisecond

Rules kept here: a worker is a simulated process of its own, so a crash takes nothing with it but its memory; every turn
is replayed at once, so nondeterminism shows in the test and not in production; a test that waits for what will never
come fails with the reason instead of hanging; when the world ends, nothing of it is left in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

from perdure.core import entries, reasons, view
from perdure.core.commands import Asked
from perdure.core.durations import Duration, seconds
from perdure.core.moments import moment
from perdure.core.records import ENDED, Commit, End, Head, Query, Row
from perdure.errors import UsageError
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow
from perdure.ports import Store
from perdure.runtime.app import Perdure
from perdure.runtime.definitions.published import ref_in
from perdure.runtime.managing.locks import LOCK
from perdure.runtime.run import Run
from perdure.runtime.settings import Settings, load
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import Hub
from perdure.testing.checks import check_head, check_replay
from perdure.testing.clock import EPOCH, Deadlock, VirtualLoop, owner, virtual_loop, waits
from perdure.testing.crashes import CrashReport, crash_everywhere
from perdure.testing.faults import CrashPoints, Process
from perdure.testing.invariants import check_log, check_who
from perdure.testing.machine import NEVER, Client, Machine
from perdure.testing.swarm import Faults

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = logging.getLogger("perdure.worker")
#: The worlds that are open now, the newest last; a test may open one inside another.
_open: list[World] = []

#: How a test makes the world's store: it is given the virtual clock.
MakeStore: TypeAlias = Callable[[Callable[[], int]], Store]

#: Jumps of the clock without anything being written, after which a test is called off.
JUMPS = 250_000
#: Only before a jump of so many microseconds does the world ask whether anything can still happen.
LONG = 30_000_000
#: What suits a test: every turn is replayed, and workers without work look up once an hour.
SETTINGS = {"replay_always": True, "probe_idle": "1h"}


class World:
    """Everything that a workflow needs to run, for the length of a test.

    >>> from perdure import action, workflow
    >>> from perdure.testing import World, run
    >>> @action(retries=3)
    ... async def charge(amount: int) -> str:
    ...     return f"charged {amount}"
    >>> @workflow
    ... async def pay_later(amount: int) -> str:
    ...     await asyncio.sleep(30 * 24 * 3600)
    ...     return await charge(amount)
    >>> async def test() -> None:
    ...     async with World() as world:
    ...         paying = await world.start(pay_later, 7)
    ...         await world.advance("29d")
    ...         print(await paying.status())
    ...         await world.crash()
    ...         print(await paying.result(), world.now().date())
    >>> run(test())
    waiting
    charged 7 2030-01-31

    Keyword arguments are settings: `World(workers=2, lease="5s")`. `store` makes the store, given the virtual clock;
    `faults` says what goes wrong for the worker of a name. When the block ends without an error, `check` is called once
    more, unless `check_at_end` is False.
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        store: MakeStore = MemoryStore,
        faults: Callable[[str], Faults | None] = lambda name: None,
        check_at_end: bool = True,
        **settings: Any,
    ) -> None:
        self._options: dict[str, Any] = {"store": store, "check_at_end": check_at_end, **settings}
        self._count = workers
        self._check_at_end = check_at_end
        self._faults = faults
        self.settings = _settings(settings)
        self.store: Store = store(self.micros)
        self.hub = Hub()
        self.machines: list[Machine] = []
        #: How often each action was really run, by its key.
        self.attempts: Counter[str] = Counter()
        self._zero = 0
        self._ids = 0
        self._jumps = 0
        self._ends: dict[str, list[asyncio.Future[End | None]]] = {}
        self._problems: list[BaseException] = []
        self._errors = _Errors(self)
        self._open = False

    # Life.

    async def __aenter__(self) -> World:
        if self._open:
            raise UsageError("this world is open already")
        self._loop = virtual_loop("World")
        self._zero = self._loop.now()
        self._open = True
        _open.append(self)
        self._outer_handler = self._loop.get_exception_handler()
        self._loop.set_exception_handler(self._problem)
        self._loop.watch(self._before_jump)
        _log.addHandler(self._errors)
        self.app: Perdure = self.client()
        await self.app.open()
        for _ in range(self._count):
            self.add_worker()
        await self._loop.settled()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._loop.unwatch(self._before_jump)
        try:
            if error is None:
                await self._end_well()
        finally:
            for machine in self.machines:
                await machine.bury()
            await self.app.close()
            self._open = False
            _open.remove(self)
            self._loop.set_exception_handler(self._outer_handler)
            _log.removeHandler(self._errors)
        if error is None and self._problems:
            raise self._problems[0]

    async def _end_well(self) -> None:
        if self._check_at_end and not self._problems:
            await self.check()
        for machine in self.machines:
            await machine.shut_down()

    # What a test does.

    async def start(
        self,
        workflow: Callable[[*Ts], Coroutine[Any, Any, R]],
        *args: *Ts,
        id: str | None = None,
        lane: str | None = None,
    ) -> Run[R]:
        """Start an execution, as `app.start` does."""
        return await self.app.start(workflow, *args, id=id, lane=lane)

    async def run(self, workflow: Callable[[*Ts], Coroutine[Any, Any, R]], *args: *Ts, id: str | None = None) -> R:
        """Start an execution and wait for its result."""
        return await (await self.start(workflow, *args, id=id)).result()

    async def advance(self, duration: Duration) -> None:
        """Let time pass, and everything happen that happens in it."""
        await asyncio.sleep(seconds(duration))
        await self._loop.settled()

    async def settle(self) -> None:
        """Let everything happen that can happen without time passing."""
        await self._loop.settled()

    def now(self) -> datetime:
        """The time in this world; every world begins on the first of January 2030."""
        return moment(self.micros())

    async def log(self, run: Run[Any] | str) -> list[entries.Entry]:
        """The log of an execution, readable."""
        return await (self.app.get(run) if isinstance(run, str) else run).log()

    # Workers.

    @property
    def workers(self) -> list[Machine]:
        """The workers that live."""
        return [machine for machine in self.machines if machine.lives]

    def add_worker(self, points: CrashPoints | None = None, *, queues: Sequence[str] | None = None) -> Machine:
        """Start one more worker, for these queues or for all."""
        name = f"worker-{len(self.machines) + 1}"
        machine = Machine(self, name, self._faults(name), points, queues)
        self.machines.append(machine)
        return machine

    async def crash(self, worker: Machine | None = None) -> None:
        """Let a worker die as by SIGKILL, and another one start.

        What it held is taken over when its lease is over; `await run.result()` or `advance` gets there at once.
        """
        if worker is None:
            if not self.workers:
                raise UsageError("no worker is left that could crash: add_worker() starts one")
            worker = self.workers[0]
        worker.process.kill()
        self.add_worker()
        await self._loop.settled()

    def client(self, name: str = "client", faults: Faults | None = None) -> Client:
        """One more application without a worker, in a process of its own."""
        return Client(self, Process(name), faults)

    async def crash_everywhere(
        self,
        workflow: Callable[[*Ts], Coroutine[Any, Any, Any]],
        *args: *Ts,
        send: Sequence[tuple[str, Any]] | Callable[[Run[Any]], Awaitable[Any]] = (),
        check: Callable[[Run[Any]], Awaitable[None] | None] | None = None,
        id: str = "crashing",
        same_inputs: bool = True,
    ) -> CrashReport:
        """Run the workflow once undisturbed, then once for every store call of its worker, with a crash at that call.

        Each call is tried twice: the worker dies before the call takes effect, and after it but before the answer. A
        second worker takes over. Every run must end as the first did, with the same inputs in its log (unless
        `same_inputs` is False), and keep all invariants. `send` is what comes from outside: events, or a coroutine
        function that is given the run. `check` is called after each run; it may raise.
        """
        return await crash_everywhere(
            lambda: World(workers=0, **self._options), workflow, args, send, check, id, same_inputs
        )

    # Checks.

    async def check(self) -> None:
        """Assert that every log keeps the invariants, and that every execution goes on, waits or has ended."""
        for head in await self.heads():
            rows = await self.rows(head.key)
            check_log(rows, head.key)
            check_who(rows, head.key)
            check_head(head, rows, self.micros() if self.workers else 0)
            check_replay(head, rows, await self._published(head, rows), self.settings.limits)

    async def _published(self, head: Head, rows: Sequence[Row]) -> Workflow[..., Any] | None:
        ref = ref_in(head.key, rows)
        return await self.app.published.one(ref) if ref is not None and ref.hash else None

    async def heads(self) -> list[Head]:
        """The summary rows of all executions, oldest first; a lock is none, although the store keeps it like one."""
        found = await self.store.find(Query(tenant=None, limit=1_000_000))
        heads = [head for head in found if head.workflow != LOCK]
        return sorted(heads, key=lambda head: (head.started_at, head.key))

    async def rows(self, key: str) -> list[Row]:
        """A whole log as it is stored."""
        return await self.store.read(key, limit=1_000_000)

    # What clients and machines ask.

    def micros(self) -> int:
        """The time in this world, in microseconds since the Unix epoch."""
        return EPOCH + (self._loop.now() - self._zero if self._open else 0)

    def new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids:05}"

    def queues(self) -> list[str]:
        """All that are known: a test should not wait for a queue that it forgot to serve."""
        if "queues" in self._options:
            return self.settings.queue_names
        actions = (one.how.queue for one in registry.actions() if not one.how.external)
        named = (*(workflow.queue for workflow in registry.workflows()), *actions)
        return list(dict.fromkeys(["default", *filter(None, named)]))

    def end(self, key: str) -> asyncio.Future[End | None]:
        """Done when the execution has ended or is stuck."""
        future: asyncio.Future[End | None] = self._loop.create_future()
        head = at_once(self.store.head(key))
        if head is not None and head.status in ENDED:
            future.set_result(None)  # it was quicker than whoever asks, who need not have looked
        else:
            self._ends.setdefault(key, []).append(future)
        return future

    def saw(self, process: Process, verb: str, asked: Any, answer: Any) -> None:
        """A call took effect."""
        if verb == "commit":
            for commit, outcome in zip(asked, answer, strict=True):
                if outcome in ("ok", "mail"):
                    self._jumps = 0
                if outcome == "ok" and _rests(commit):
                    for future in self._ends.pop(commit.key, []):
                        if not future.done():
                            future.set_result(None)
        elif verb in ("start", "send") or (verb == "claim" and answer):
            self._jumps = 0

    def launched(self, key: str, fence: int, asked: Asked) -> None:
        """A worker begins an attempt."""

    def called(self, key: str, asked: Asked) -> None:
        """A worker calls the function of an action."""
        name = asked.spec.call_key or f"{key}/{asked.ref}/{asked.spec.name}"
        self.attempts[name] += 1
        if self.attempts[name] > 1 and asked.spec.how.at_most_once:
            self.fail(f"I20, {name}: an at_most_once action is run a second time")

    # Watching over the test.

    def fail(self, complaint: str) -> None:
        """Call the test off as soon as time passes."""
        self._problems.append(AssertionError(complaint))

    def _problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._problems.append(error if error is not None else AssertionError(context.get("message", str(context))))

    def _before_jump(self, step: int) -> None:
        for machine in self.machines:
            if (error := machine.failure()) is not None:
                self._call_off(AssertionError(f"{machine.name} broke down: {error!r}"), error)
        if self._problems:
            problem = self._problems[0]
            self._call_off(problem if isinstance(problem, AssertionError) else AssertionError(repr(problem)), problem)
        self._jumps += 1
        if self._jumps > JUMPS:
            self._call_off(
                Deadlock(f"for a long time nothing has happened but waiting:\n{_why()}\n{waits(self._loop)}")
            )
        if step >= LONG and self is _open[-1] and not _somebody_waits_for_a_time(self._loop):
            if not any(world._something_can_happen() for world in _open):
                self._call_off(Deadlock(f"nothing can happen any more:\n{_why()}"))

    def _something_can_happen(self) -> bool:
        if any(machine.is_busy() for machine in self.workers):
            return True
        return at_once(self.store.next_due(self.queues(), registry.served())) is not None

    def _call_off(self, error: AssertionError, cause: BaseException | None = None) -> None:
        self._loop.unwatch(self._before_jump)
        if cause is not None and cause is not error:
            error.__cause__ = cause
        raise error


class _Errors(logging.Handler):
    """A worker survives its own mistakes and only logs them; a test should not."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if self._world is _open[-1]:  # the mistakes of a world inside this one are its own
            problem = AssertionError(record.getMessage())
            problem.__cause__ = record.exc_info[1] if record.exc_info else None
            self._world._problems.append(problem)


def _somebody_waits_for_a_time(loop: VirtualLoop) -> bool:
    """Whether the test itself has a timer; those of workers are only for looking up now and then."""
    horizon = loop.time() + NEVER / 2
    timers = [timer for timer in loop._scheduled if not timer._cancelled and timer._when < horizon]
    return any(timer._context.get(owner) is None for timer in timers)


def _why() -> str:
    """What every execution that has not ended waits for, in all open worlds."""
    lines = []
    for world in _open:
        for head in [head for head in at_once(world.heads()) if head.status not in ENDED][:20]:
            state = view.final(at_once(world.rows(head.key)), head.key)
            lines.append(f"  {reasons.why(head, state, world.micros())}")
    return "\n".join(lines) or "  every execution has ended"


def _settings(chosen: dict[str, Any]) -> Settings:
    # The environment of the developer has no say in a test.
    return load({}, **{**SETTINGS, **chosen})


def _rests(commit: Commit) -> bool:
    settle = commit.settle
    return isinstance(settle, End) or (settle is not None and settle.status == "stuck")


def at_once(coro: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits: the verbs of a store in memory do not."""
    try:
        coro.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    coro.close()
    raise UsageError("the store of a World must answer without waiting")
