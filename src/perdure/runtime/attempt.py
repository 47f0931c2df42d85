"""One try of an action: decode, run with its limits, encode, and say what goes into the log.

A result that cannot be stored is a failure of the action. An error is either worth another attempt (the policy says
when) or it settles the action. Whatever happens, the answer is one event or, when the attempt was cancelled, none.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import msgspec
from msgspec import Raw

from perdure.core import events as ev
from perdure.core.codec import encode
from perdure.core.commands import Asked
from perdure.core.durations import show
from perdure.core.failures import describe
from perdure.core.records import id_of, tenant_of
from perdure.errors import InvalidValue, LimitReached
from perdure.flows.action import Action
from perdure.flows.current import Client, attempt
from perdure.runtime.clock import Clock


def key_of_call(whose: str, ref: int, action: str) -> str:
    """What makes two attempts the same call, to whoever can tell."""
    return f"{whose}/{ref}/{action}"


class Attempts:
    """Starts the attempts of one worker, and what they share: slots, threads, the clock."""

    def __init__(self, clock: Clock, client: Client, executor: Executor, concurrency: int, payload_bytes: int) -> None:
        self.clock = clock
        self.client = client
        self.executor = executor
        self.payload_bytes = payload_bytes
        self.loop = asyncio.get_running_loop()
        self._free = concurrency
        self._queue: deque[asyncio.Future[None]] = deque()

    def start(
        self,
        whose: str,
        fence: int,
        asked: Asked,
        settled: Callable[[int, ev.Event | None], None],
        progressed: Callable[[int, Raw], None],
    ) -> Running:
        """Begin one attempt at once; `settled` gets the event of its end, or None when it was cancelled."""
        return Running(self, whose, fence, asked, settled, progressed)

    async def enter(self) -> None:
        """Take a slot; first come, first served."""
        if self._free > 0:
            self._free -= 1
            return
        turn = self.loop.create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # it was ours already
            raise

    def close(self) -> None:
        """No more attempts begin: those that wait for a slot are called off."""
        while self._queue:
            self._queue.popleft().cancel()

    def leave(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Running:
    """An attempt under way; also what the action itself sees of it."""

    __slots__ = (
        "_loop",
        "_progressed",
        "_scope",
        "_settled",
        "_shared",
        "action",
        "asked",
        "cancelled",
        "fence",
        "task",
        "whose",
    )

    def __init__(
        self,
        shared: Attempts,
        whose: str,
        fence: int,
        asked: Asked,
        settled: Callable[[int, ev.Event | None], None],
        progressed: Callable[[int, Raw], None],
    ) -> None:
        self.whose = whose
        self.fence = fence
        self.asked = asked
        self.action: Action[..., Any] = asked.spec
        self.cancelled = False  # read by threads: a plain attribute is enough
        self._shared = shared
        self._settled = settled
        self._progressed = progressed
        self._scope: asyncio.Timeout | None = None
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
    def number(self) -> int:
        return self.asked.attempts + 1

    @property
    def progress(self) -> Any:
        return None if self.asked.progress is None else msgspec.json.decode(self.asked.progress)

    @property
    def client(self) -> Client:
        return self._shared.client

    def unwanted(self) -> bool:
        return self.cancelled

    def beat(self, details: Any) -> None:
        """Called by the action, perhaps from a thread."""
        data = None if details is None else Raw(encode(details))
        self._loop.call_soon_threadsafe(self._beat, data)

    def _beat(self, details: Raw | None) -> None:
        if self.task is None:
            return
        silence = self.action.how.heartbeat
        if self._scope is not None and silence is not None and not self._scope.expired():
            self._scope.reschedule(self._loop.time() + silence / 1e6)
        if details is not None:
            self._progressed(self.asked.ref, details)

    # The attempt itself.

    async def _go(self) -> None:
        event: ev.Event | None = None
        try:
            await self._shared.enter()
            try:
                event = await self._outcome()
            finally:
                self._shared.leave()
        finally:
            self.task = None  # no cycle is left for the garbage collector
            self._settled(self.asked.ref, event)

    async def _outcome(self) -> ev.Event | None:
        asked, began = self.asked, self._shared.clock.now()
        try:
            result = await self._limited(began)
            return ev.ActionSettled(
                asked.ref, self.action.name, asked.args, self._storable(result), None, asked.attempts + 1, began
            )
        except asyncio.CancelledError as error:
            if self.cancelled or (self.task is not None and self.task.cancelling()):
                return None
            return self._failed(error, began)  # raised by the action itself
        except (Exception, SystemExit) as error:
            return self._failed(error, began)

    async def _limited(self, began: int) -> Any:
        limit = self._limit(began)
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

    async def _call(self) -> Any:
        args, kwargs = self.action.signature.decode(self.asked.args)
        if self.action.is_async:
            return await self.action.fn(*args, **kwargs)
        call = functools.partial(contextvars.copy_context().run, self.action.fn, *args, **kwargs)
        return await self._loop.run_in_executor(self._shared.executor, call)

    def _limit(self, now: int) -> int | None:
        """What is left for this attempt, by its own timeout and by the deadline of all."""
        how = self.action.how
        if how.deadline is None:
            return how.timeout
        left = max(self.asked.at + how.deadline - now, 0)
        return left if how.timeout is None else min(how.timeout, left)

    def _storable(self, result: Any) -> Raw:
        returns = self.action.signature.returns
        data = returns.encode(result)
        if len(data) > self._shared.payload_bytes:
            raise LimitReached(
                f"{self.action.name} returned {len(data):,} bytes, more than {self._shared.payload_bytes:,}: return a"
                " reference to the data, or raise payload_bytes"
            )
        try:
            returns.decode(data)
        except InvalidValue as error:
            raise InvalidValue(f"{self.action.name} returned something else than it declares: {error}") from error
        return Raw(data)

    def _failed(self, error: BaseException, began: int) -> ev.Event:
        asked, how, now = self.asked, self.action.how, self._shared.clock.now()
        number = asked.attempts + 1
        failure = describe(error, number)
        delay = None
        if not isinstance(error, InvalidValue | LimitReached):
            delay = how.retry.again(number, error, now - asked.at, self.key)
        if delay is None or (how.deadline is not None and now + delay >= asked.at + how.deadline):
            return ev.ActionSettled(asked.ref, self.action.name, asked.args, ev.NULL, failure, number, began)
        return ev.ActionAttempted(asked.ref, self.action.name, asked.args, number, failure, now + delay, began)
