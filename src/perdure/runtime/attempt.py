"""One try of an action: decode, run with its limits, encode, and say what goes into the log.

A result that cannot be stored is a failure of the action. An error is either worth another attempt (the policy says
when) or it settles the action. Whatever happens, the answer is one event or, when the attempt was cancelled, none.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
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
from perdure.flows.current import Attempt, attempt
from perdure.runtime.clock import Clock


class Attempts:
    """Runs attempts for one worker: its slots, its threads, its clock."""

    def __init__(self, clock: Clock, client: Any, executor: Executor, concurrency: int, payload_bytes: int) -> None:
        self._clock = clock
        self._client = client
        self._executor = executor
        self._slots = asyncio.Semaphore(concurrency)
        self._payload_bytes = payload_bytes

    def start(
        self,
        key: str,
        fence: int,
        asked: Asked,
        settled: Callable[[int, ev.Event | None], None],
        progressed: Callable[[int, Raw], None],
    ) -> Running:
        """Begin one attempt; `settled` gets its event, or None when it was cancelled."""
        return Running(self, key, fence, asked, settled, progressed)

    async def run(self, running: Running) -> ev.Event | None:
        asked, action = running.asked, running.action
        number, began = asked.attempts + 1, 0
        try:
            async with self._slots:
                began = self._clock.now()
                result = await self._call(running, action, self._limit(action, asked, began))
                return ev.ActionSettled(
                    asked.ref, action.name, asked.args, self._storable(action, result), None, number, began
                )
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if running.cancelled or (task is not None and task.cancelling()):
                return None
            return self._failed(asked, action, number, began, error)  # raised by the action itself
        except Exception as error:
            return self._failed(asked, action, number, began, error)

    async def _call(self, running: Running, action: Action[..., Any], limit: int | None) -> Any:
        if limit is None and action.how.heartbeat is None:
            return await self._invoke(running, action)
        scope = asyncio.timeout(None if limit is None else limit / 1e6)
        try:
            async with scope:
                return await self._invoke_beating(running, action)
        except TimeoutError:
            if limit is None or not scope.expired():
                raise
            raise TimeoutError(f"{action.name} took longer than {show(limit)}") from None

    async def _invoke_beating(self, running: Running, action: Action[..., Any]) -> Any:
        silence = action.how.heartbeat
        if silence is None:
            return await self._invoke(running, action)
        scope = asyncio.timeout(silence / 1e6)
        try:
            async with scope:
                running.watch(scope, silence / 1e6)
                return await self._invoke(running, action)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise TimeoutError(f"{action.name} gave no heartbeat for {show(silence)}") from error

    async def _invoke(self, running: Running, action: Action[..., Any]) -> Any:
        args, kwargs = action.signature.decode(running.asked.args)
        if action.is_async:
            return await action.fn(*args, **kwargs)
        call = functools.partial(contextvars.copy_context().run, action.fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _limit(self, action: Action[..., Any], asked: Asked, now: int) -> int | None:
        """What is left for this attempt, by its own timeout and by the deadline of all."""
        limits = [] if action.how.timeout is None else [action.how.timeout]
        if action.how.deadline is not None:
            limits.append(max(asked.at + action.how.deadline - now, 0))
        return min(limits, default=None)

    def _storable(self, action: Action[..., Any], result: Any) -> Raw:
        data = action.signature.returns.encode(result)
        if len(data) > self._payload_bytes:
            raise LimitReached(
                f"{action.name} returned {len(data):,} bytes, more than {self._payload_bytes:,}: return a reference to"
                " the data, or raise payload_bytes"
            )
        try:
            action.signature.returns.decode(Raw(data))
        except InvalidValue as error:
            raise InvalidValue(f"{action.name} returned something else than it declares: {error}") from error
        return Raw(data)

    def _failed(
        self, asked: Asked, action: Action[..., Any], number: int, began: int, error: BaseException
    ) -> ev.Event:
        now = self._clock.now()
        delay = None
        if not isinstance(error, InvalidValue | LimitReached):
            delay = action.how.retry.again(number, error, now - asked.at, f"{asked.ref}/{action.name}")
        if delay is not None and action.how.deadline is not None and now + delay >= asked.at + action.how.deadline:
            delay = None
        failure = describe(error, number)
        if delay is None:
            return ev.ActionSettled(asked.ref, action.name, asked.args, ev.NULL, failure, number, began)
        return ev.ActionAttempted(asked.ref, action.name, asked.args, number, failure, now + delay, began)

    def context(self, running: Running) -> contextvars.Context:
        context = contextvars.copy_context()
        asked = running.asked
        context.run(
            attempt.set,
            Attempt(
                execution=id_of(running.key),
                tenant=tenant_of(running.key),
                key=f"{running.key}/{asked.ref}/{running.action.name}",
                fence=running.fence,
                number=asked.attempts + 1,
                progress=None if asked.progress is None else msgspec.json.decode(asked.progress),
                beat=running.beat,
                unwanted=running.is_cancelled,
                client=self._client,
            ),
        )
        return context


class Running:
    """An attempt under way."""

    __slots__ = ("_loop", "_progressed", "_scope", "_settled", "_silence", "action", "asked", "cancelled", "fence",
                 "key", "task")  # fmt: skip

    def __init__(
        self,
        attempts: Attempts,
        key: str,
        fence: int,
        asked: Asked,
        settled: Callable[[int, ev.Event | None], None],
        progressed: Callable[[int, Raw], None],
    ) -> None:
        self.key = key
        self.fence = fence
        self.asked = asked
        self.action: Action[..., Any] = asked.spec
        self.cancelled = False  # read by threads: a plain attribute is enough
        self._settled = settled
        self._progressed = progressed
        self._scope: asyncio.Timeout | None = None
        self._silence = 0.0
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(
            attempts.run(self), name=f"perdure-action {key} {asked.ref}", context=attempts.context(self)
        )
        self.task.add_done_callback(self._done)

    def cancel(self) -> None:
        self.cancelled = True
        self.task.cancel()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def watch(self, scope: asyncio.Timeout, silence: float) -> None:
        self._scope, self._silence = scope, silence

    def beat(self, details: Any) -> None:
        """Called by the action, perhaps from a thread."""
        data = None if details is None else Raw(encode(details))
        self._loop.call_soon_threadsafe(self._beat, data)

    def _beat(self, details: Raw | None) -> None:
        if self.task.done():
            return
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(self._loop.time() + self._silence)
        if details is not None:
            self._progressed(self.asked.ref, details)

    def _done(self, task: asyncio.Task[ev.Event | None]) -> None:
        if task.cancelled():
            self._settled(self.asked.ref, None)
        elif (error := task.exception()) is not None:  # KeyboardInterrupt, MemoryError: the worker's problem
            self._settled(self.asked.ref, None)
            self._loop.call_exception_handler(
                {"message": f"an action of {self.key} broke its worker", "exception": error}
            )
        else:
            self._settled(self.asked.ref, task.result())
