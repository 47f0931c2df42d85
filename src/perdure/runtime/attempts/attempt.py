"""One try of an action: decode, run with its limits, encode, and say what goes into the log.

A result that cannot be stored is a failure of the action. An error is either worth another attempt (its kind and the
policy say when), or leaves that to a person, or it settles the action. While the circuit of the action is open its
function is not called: the attempt is put off, or fails at once. Whatever happens, the answer is one event or, when the
attempt was cancelled, none.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from perdure.core import events as ev
from perdure.core.breaker import Breaker
from perdure.core.codec import encode
from perdure.core.commands import Asked
from perdure.core.durations import show
from perdure.core.failures import describe
from perdure.core.records import id_of, tenant_of
from perdure.core.tracing import Trace
from perdure.errors import CircuitOpen, InvalidValue, LimitReached, SecretExposed, SecretNotFound
from perdure.flows.action import Action
from perdure.flows.current import Client, attempt
from perdure.flows.secret import Secret
from perdure.runtime.attempts import verdict
from perdure.runtime.attempts.circuits import Circuits
from perdure.runtime.attempts.fleet import Fleet
from perdure.runtime.attempts.processes import Processes
from perdure.runtime.attempts.slots import ActionSlots, Crowded
from perdure.runtime.managing.locks import Lock
from perdure.runtime.secrets.watching import Revealed, watch
from perdure.runtime.settings import Settings

#: Failures that say nothing about the service behind an action.
_OURS = (InvalidValue, LimitReached, SecretExposed, SecretNotFound)


def key_of_call(whose: str, ref: int, action: str) -> str:
    """What makes two attempts the same call, to whoever can tell."""
    return f"{whose}/{ref}/{action}"


class House(Protocol):
    """What attempts need of their worker."""

    settings: Settings
    me: str

    @property
    def spill(self) -> float | None: ...
    def patience(self, key: str) -> float: ...
    def now(self) -> int: ...
    def findable(self, action: Action[..., Any]) -> bool: ...
    async def perform(self, whose: Any, ref: int, work: Callable[[Any], Awaitable[ev.Event]]) -> bool: ...


class Whose(Protocol):
    """The execution that an attempt is for."""

    key: str
    token: int
    version: int

    @property
    def trace(self) -> Trace: ...
    def settled(self, ref: int, event: ev.Event | None) -> None: ...
    def progressed(self, ref: int, details: Raw) -> None: ...


class Attempts:
    """Starts the attempts of one worker, and what they share: slots, circuits, threads, the clock."""

    def __init__(
        self, house: House, client: Client, executor: Executor, circuits: Circuits, fleet: Fleet | None = None
    ) -> None:
        settings = house.settings
        self.house = house
        self.me = house.me
        self.now = house.now
        self.client = client
        self.executor = executor
        self.circuits = circuits
        self.slots = ActionSlots(settings.concurrency, fleet)
        self.payload_bytes = settings.payload_bytes
        self.spill = house.spill
        self.loop = asyncio.get_running_loop()
        self.processes = Processes(settings.pool)
        self.counted: Callable[[ev.Event | None], object] = lambda event: None

    def start(self, whose: Whose, asked: Asked) -> Running:
        """Begin one attempt at once; `whose.settled` gets the event of its end, or None when it was cancelled."""
        return Running(self, whose, asked)

    def calling(self, whose: str, asked: Asked) -> None:
        """The function of an action is about to be called: a place for tests to watch."""

    @property
    def running(self) -> int:
        """How many have a place."""
        return self.slots.taken

    def close(self) -> None:
        """No more attempts begin: those that wait for a slot are called off."""
        self.slots.close()


class Running:
    """An attempt under way; also what the action itself sees of it."""

    __slots__ = (
        "_joint",
        "_loop",
        "_once",
        "_revealed",
        "_scope",
        "_shared",
        "_who",
        "action",
        "asked",
        "cancelled",
        "connection",
        "details",
        "fence",
        "task",
        "whose",
    )

    def __init__(self, shared: Attempts, who: Whose, asked: Asked) -> None:
        self.whose = who.key
        self.fence = who.token
        self.connection: Any = None
        self.asked = asked
        self.action: Action[..., Any] = asked.spec
        self.cancelled = False  # read by threads: a plain attribute is enough
        self.details: Raw | None = None  # of its last heartbeat; written by threads
        self._shared = shared
        self._who = who
        self._scope: asyncio.Timeout | None = None
        self._revealed: Revealed | None = None
        self._joint: ev.Event | None = None  # what was committed together with the action's own writes
        self._once = threading.Lock()  # taken by whoever comes first: the function, or who calls it off
        self._loop = shared.loop
        context = contextvars.copy_context()
        context.run(attempt.set, self)
        self.task: asyncio.Task[None] | None = self._loop.create_task(
            self._go(), name=self.action.name, context=context
        )

    def cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def call_off(self) -> None:
        """Cancel it if its function was not called yet, be it for want of a place, a thread or a process."""
        if self._once.acquire(blocking=False):
            self.cancel()

    def begins(self) -> bool:
        """The function is about to be called, perhaps in a thread; False if that was called off."""
        return self._once.acquire(blocking=False)

    # What the action sees.

    @property
    def execution(self) -> str:
        return id_of(self.action.caller or self.whose)

    @property
    def tenant(self) -> str:
        return tenant_of(self.whose)

    @property
    def key(self) -> str:
        return self.action.call_key or key_of_call(self.whose, self.asked.ref, self.action.name)

    @property
    def version(self) -> int | None:
        """How far the log of the execution is; that of one that has it run apart, when it asked for this."""
        return (self.action.caller_version or None) if self.action.caller else self._who.version

    @property
    def trace(self) -> Trace:
        return self._who.trace.within(self.key)

    @property
    def number(self) -> int:
        return self.asked.attempts + 1

    @property
    def asked_at(self) -> int:
        """When the workflow asked for it: the same for every attempt."""
        return self.asked.at

    @property
    def args(self) -> Raw:
        return self.asked.args

    @property
    def progress(self) -> Any:
        newest = self.asked.progress if self.details is None else self.details
        return None if newest is None else msgspec.json.decode(newest)

    @property
    def client(self) -> Client:
        return self._shared.client

    def unwanted(self) -> bool:
        return self.cancelled

    def beat(self, details: Any) -> None:
        """Called by the action, perhaps from a thread."""
        data = None if details is None else watch.hide_in(Raw(encode(details)), self.tenant)
        self.details = data or self.details
        self._loop.call_soon_threadsafe(self._beat, data)

    def reveal(self, name: str) -> str:
        """Called by the action, perhaps from a thread."""
        if self._revealed is None:
            self._revealed = Revealed(self._shared.client.find_secret, self.tenant)
        return self._revealed.reveal(name)

    @property
    def secrets(self) -> dict[str, str]:
        """The values of those that were passed as arguments, for a process that cannot ask for them itself."""
        return {} if self._revealed is None else self._revealed.values

    def _beat(self, details: Raw | None) -> None:
        if self.task is None:
            return
        silence = self.action.how.heartbeat
        if self._scope is not None and silence is not None and not self._scope.expired():
            self._scope.reschedule(self._loop.time() + silence / 1e6)
        if details is not None:
            self._who.progressed(self.asked.ref, details)

    # The attempt itself.

    async def _go(self) -> None:
        event: ev.Event | None = None
        name, limit, everywhere = self.action.name, self.action.how.most, self.action.how.everywhere
        place: Lock | None = None
        try:
            slots = self._shared.slots
            if limit is not None or not slots.enter_at_once():
                apart = bool(self.action.call_key)
                place = await slots.enter(self.tenant, name, limit, self._patience(), everywhere, apart)
            try:
                event = (await self._outcome())[0] if self.action.how.breaker is None else await self._guarded()
            finally:
                slots.leave(name, limit, place)
        except Crowded:
            event = ev.ActionScheduled(self.asked.ref, name, self.asked.args)  # others may have room for it
        finally:
            self.task = None  # no cycle is left for the garbage collector
            self._shared.counted(event or self._joint)
            self._who.settled(self.asked.ref, event)

    def _patience(self) -> float | None:
        """How long to wait for a place; one that was announced, or that only this process can find, stays here."""
        house = self._shared.house
        if self.asked.started or not house.findable(self.action):
            return None
        return house.patience(self.whose) if self.action.call_key else self._shared.spill

    async def _guarded(self) -> ev.Event | None:
        """The outcome, as far as the circuit of the action lets this attempt through."""
        breaker, circuit = self.action.how.breaker, self._shared.circuits.of(self.action)
        if breaker is None or circuit is None:
            return (await self._outcome())[0]
        now = self._shared.now()
        if circuit.refuses(now):
            circuit.refused += 1
            return self._refused(breaker, circuit.until, now)
        ticket = circuit.admit(now)
        event: ev.Event | None = None
        failure: BaseException | None = None
        try:
            event, failure = await self._outcome()
        finally:
            now = self._shared.now()
            if (event or self._joint) is None or isinstance(failure, _OURS):
                circuit.abandoned(ticket, now)
            else:
                kind = None if failure is None else verdict.kind_here(self.asked, failure)
                self._shared.circuits.ended(self.action, ticket, kind, now)
        return event

    async def _outcome(self) -> tuple[ev.Event | None, BaseException | None]:
        """The event of this attempt, and the error if it failed."""
        began = self._shared.now()
        try:
            if self.action.how.transactional:
                whose, ref = self._who, self.asked.ref
                if not await self._shared.house.perform(whose, ref, lambda conn: self._within(conn, began)):
                    self._joint = None
                return None, None
            return self._recorded(await self._result(began), began), None
        except asyncio.CancelledError as error:
            if self.cancelled or (self.task is not None and self.task.cancelling()):
                return None, None
            return self._failed(error, began), error  # raised by the action itself
        except (Exception, SystemExit) as error:
            return self._failed(error, began), error

    def _result(self, began: int) -> Awaitable[Any]:
        """What the function gives, within its limits. Nearly all have none, and every layer of coroutines costs."""
        how = self.action.how
        limited = how.timeout is not None or how.deadline is not None or how.heartbeat is not None
        return self._limited(began) if limited else self._call()

    def _recorded(self, result: Any, began: int) -> ev.Event:
        data = verdict.storable(self.action, result, self._shared.payload_bytes)
        if self._revealed is not None:
            self._revealed.check(bytes(data), f"the result of {self.action.name}")
        return verdict.succeeded(self.asked, data, began, self._shared.me)

    async def _within(self, connection: Any, began: int) -> ev.Event:
        """The action uses the connection for as long as it runs; its result is written over the same one."""
        self.connection = connection
        try:
            self._joint = self._recorded(await self._result(began), began)
            return self._joint
        finally:
            self.connection = None

    async def _limited(self, began: int) -> Any:
        limit = verdict.limit(self.asked, began)
        if limit is None:
            return await self._beating()
        scope = asyncio.timeout(limit / 1e6)
        try:
            async with scope:
                return await self._beating()
        except TimeoutError:
            if not scope.expired():
                raise
            raise TimeoutError(f"{self.action.name} took longer than {show(limit)}") from None

    async def _beating(self) -> Any:
        silence = self.action.how.heartbeat
        if silence is None:
            return await self._call()
        self._scope = scope = asyncio.timeout(silence / 1e6)
        try:
            async with scope:
                return await self._call()
        except TimeoutError:
            if not scope.expired():
                raise
            raise TimeoutError(f"{self.action.name} gave no heartbeat for {show(silence)}") from None

    def _call(self) -> Awaitable[Any]:
        args, kwargs = self.action.signature.decode(self.asked.args)
        if self.action.signature.references:
            return self._call_with_secrets(args, kwargs)
        return self._begun(args, kwargs)

    async def _call_with_secrets(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        await self._find_secrets((*args, *kwargs.values()))
        return await self._begun(args, kwargs)

    def _begun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        """The function begins, here or in a thread or a process."""
        self._shared.calling(self.whose, self.asked)
        if self.action.how.process:
            return self._shared.processes.call(self)
        if self.action.is_async:
            if not self.begins():
                raise asyncio.CancelledError
            called: Awaitable[Any] = self.action.fn(*args, **kwargs)
            return called
        call = functools.partial(contextvars.copy_context().run, self._in_thread, *args, **kwargs)
        return self._loop.run_in_executor(self._shared.executor, call)

    def _in_thread(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.action.fn(*args, **kwargs) if self.begins() else None  # None goes nowhere: the task is cancelled

    async def _find_secrets(self, args: tuple[Any, ...]) -> None:
        """What is missing is missed before the function is called."""
        names = [one.name for one in args if isinstance(one, Secret)]
        await self._loop.run_in_executor(self._shared.executor, lambda: [self.reveal(name) for name in names])

    def _failed(self, error: BaseException, began: int) -> ev.Event:
        return verdict.failed(self.asked, error, self.key, began, self._shared.now(), self._shared.me)

    def _refused(self, breaker: Breaker, until: int, now: int) -> ev.Event:
        """The circuit is open. Attempts are not used up, but limits of time stand."""
        asked, name = self.asked, self.action.name
        error = CircuitOpen(f"the circuit of {name} is open: it has failed too often, and is left alone for a while")
        failure = describe(error, asked.attempts, "external")
        delay = breaker.delay(until, now, asked.put_off, self.key)
        # The start of an at_most_once action is in the log already, so it cannot wait for another.
        at_once = breaker.fail_fast or self.action.how.at_most_once
        late = self.action.how.retry.too_late(now + delay - asked.timed) or verdict.past_deadline(asked, now + delay)
        spent = late and verdict.waits_for_a_person(asked)
        if at_once or (late and not spent):
            return ev.ActionSettled(asked.ref, name, asked.args, ev.NULL, failure, asked.attempts, now)
        due, times = now if spent else now + delay, asked.put_off + 1
        return ev.ActionAttempted(
            asked.ref, name, asked.args, asked.attempts, failure, due, now, asked.free, times, spent=spent
        )
