"""Actions: functions with side effects that a workflow awaits.

Inside a workflow, calling an action asks the engine to run it durably; anywhere else it is just the function. An action
runs at least once with the same key (or, `at_most_once`, never twice), and its result is recorded once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, TypeVarTuple, final, overload

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core.breaker import Breaker
from perdure.core.durations import Duration, micros
from perdure.core.events import Error
from perdure.core.failures import Classes, action_failed, checked
from perdure.core.retry import Retry, policy
from perdure.core.signature import Signature
from perdure.errors import ActionError, UsageError
from perdure.flows.current import execution, this_attempt
from perdure.flows.registry import registry

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
R = TypeVar("R")
#: What calling an action gives. Not Coroutine[Any, Any, R]: with an explicit Any mypy gives up on `gather`.
Call: TypeAlias = Coroutine[object, None, R]


#: Stands for the policy of an action whose code is not here: the one that it has where it runs.
DECLARED = Retry()


class Options(Struct, frozen=True):
    """How an action is run; times in microseconds."""

    retry: Retry = Retry()
    timeout: int | None = None  # of one attempt
    deadline: int | None = None  # of all attempts together
    heartbeat: int | None = None  # longest silence
    at_most_once: bool = False
    raises: tuple[type[BaseException], ...] = ()
    errors: Classes = {}  # which kind of failure an error of a class is
    breaker: Breaker | None = None
    concurrency: int | None = None  # attempts at once in one worker
    queue: str = ""  # other than that of the workflow
    transactional: bool = False
    process: bool = False  # in a process of the pool
    external: bool = False  # by a worker in another language, which asks for it over HTTP
    everywhere: int | None = None  # attempts at once in all workers together

    @property
    def most(self) -> int | None:
        """Attempts at once in one worker: more than there may be in all of them need not even look for a place."""
        if self.concurrency is None:
            return self.everywhere
        return self.concurrency if self.everywhere is None else min(self.concurrency, self.everywhere)


class Action(Generic[P, R]):
    """A registered function. `await charge(order)` works in workflows and, as the plain function, everywhere else."""

    __perdure_action__ = True
    absent = False  # whether its code is in another process only

    def __init__(
        self,
        fn: Callable[P, Any],
        options: Options,
        name: str = "",
        version: int = 1,
        description: str = "",
    ) -> None:
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise UsageError(f"{fn.__qualname__} is a generator: an action returns one value")
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = name or fn.__name__
        self.version = version
        self.description = description or inspect.getdoc(fn) or ""
        self.is_async = inspect.iscoroutinefunction(fn)
        if options.process:
            _check_for_process(fn, self.is_async)
        if options.external:
            _check_for_external(fn, options)
        self.signature = Signature(fn)
        self.how = options
        self.compensation: Action[..., Any] | None = None
        # The key of one call, the execution that made it and how far its log was, where it runs apart from that.
        self.call_key = self.caller = ""
        self.caller_version = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        running = execution()
        if running is not None:
            if self.signature.references:
                self.signature.check_references(args, kwargs)
            # Encoded at the call: the workflow may change the objects before the task first runs.
            return running.act(self, Raw(self.signature.encode(args, kwargs)), self.compensation)
        if self.how.external:
            raise UsageError(f"{self.name} is run by external workers only: call it in a workflow")
        if self.is_async:
            plain: Call[R] = self.fn(*args, **kwargs)
            return plain
        return asyncio.to_thread(self.fn, *args, **kwargs)

    @overload
    def undo(
        self: Callable[[*Ts], Coroutine[Any, Any, R]], fn: Callable[[*Ts, R], Any], /
    ) -> Callable[[*Ts, R], Coroutine[Any, Any, None]]: ...
    @overload
    def undo(
        self, *, retries: int | Retry = ..., timeout: Duration | None = ...
    ) -> Callable[[Callable[..., Any]], Action[..., None]]: ...
    def undo(self, fn: Any = None, *, retries: int | Retry = 9, timeout: Duration | None = None) -> Any:
        """Declare what compensates this action: it gets the same arguments and then the result.

        When an execution fails or is cancelled, the undo of every action that succeeded runs, in reverse order. Undos
        are actions themselves, with their own retries.
        """

        def declare(compensation: Callable[..., Any]) -> Action[..., Any]:
            options = Options(retry=policy(retries), timeout=_micros(timeout))
            self.compensation = Action(compensation, options)
            registry.add_action(self.compensation)
            return self.compensation

        return declare if fn is None else declare(fn)

    def options(
        self,
        *,
        retries: int | Retry | None = None,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
    ) -> Action[P, R]:
        """The same action with other options, for one call: `charge.options(timeout="5s")(order)`."""
        changes: dict[str, Any] = {}
        if retries is not None:
            changes["retry"] = policy(retries, self.how.retry.fatal, self.how.retry.spent)
        if timeout is not None:
            changes["timeout"] = micros(timeout)
        if deadline is not None:
            changes["deadline"] = micros(deadline)
        other: Action[P, R] = Action(
            self.fn, structs.replace(self.how, **changes), self.name, self.version, self.description
        )
        other.compensation = self.compensation
        return other

    def schema(self) -> dict[str, Any]:
        """Name, version, description, and the JSON schemas of parameters and result."""
        return {
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "parameters": self.signature.schema(),
            "result": self.signature.returns.schema(),
        }

    # What the engine asks.

    def same_args(self, recorded: Raw, asked: Raw, /) -> bool:
        return self.signature.same(recorded, asked)

    def decode_result(self, result: Raw, /) -> Any:
        return self.signature.returns.decode(result)

    def failure(self, error: Error, /) -> BaseException:
        return action_failed(error, self.name, (*self.how.raises, *self.how.retry.fatal, *self.how.errors))


def with_result(args: Raw, result: Raw) -> Raw:
    """The arguments of an undo: those of the action, then its result."""
    if bytes(args[:1] if isinstance(args, bytes) else memoryview(args)[:1]) == b"[":
        return Raw(msgspec.json.encode([*msgspec.json.decode(args, type=list[Raw]), result]))
    both = msgspec.json.decode(args, type=dict[str, Raw])
    positional = [*msgspec.json.decode(both["args"], type=list[Raw]), result]
    return Raw(msgspec.json.encode({"args": positional, "kwargs": both["kwargs"]}))


def _check_for_process(fn: Callable[..., Any], is_async: bool) -> None:
    if is_async:
        raise UsageError(f"{fn.__qualname__} is async: with process=True an action is a plain function that computes")
    if "<" in fn.__qualname__:  # <locals> or <lambda>
        raise UsageError(
            f"{fn.__qualname__} cannot run in another process, which has to import it: define it at module level"
        )


def _check_for_external(fn: Callable[..., Any], how: Options) -> None:
    if not how.queue:
        raise UsageError(f"{fn.__qualname__} is external: give it a queue=, at which its workers ask for it")
    ours = [name for name in ("transactional", "process", "breaker", "concurrency", "everywhere") if getattr(how, name)]
    if ours:
        raise UsageError(
            f"{fn.__qualname__} is external: {' and '.join(ours)} are for functions that run here, leave them out"
        )


def _micros(duration: Duration | None) -> int | None:
    return None if duration is None else micros(duration)


class _Decorate(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Action[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Action[P, R]: ...


@final
class ActionDecorator:
    """`@action`, and what a running action may ask about itself: `action.key`, `action.attempt`, …"""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Action[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Action[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        name: str = ...,
        version: int = ...,
        description: str = ...,
        retries: int | Retry = ...,
        fatal: tuple[type[BaseException], ...] = ...,
        raises: tuple[type[BaseException], ...] = ...,
        timeout: Duration | None = ...,
        deadline: Duration | None = ...,
        heartbeat: Duration | None = ...,
        at_most_once: bool = ...,
        errors: Mapping[type[BaseException], type[ActionError]] | None = ...,
        breaker: Breaker | None = ...,
        concurrency: int | None = ...,
        queue: str = ...,
        transactional: bool = ...,
        process: bool = ...,
        external: bool = ...,
        everywhere: int | None = ...,
    ) -> _Decorate: ...
    def __call__(
        self,
        fn: Any = None,
        *,
        name: str = "",
        version: int = 1,
        description: str = "",
        retries: int | Retry = 0,
        fatal: tuple[type[BaseException], ...] = (),
        raises: tuple[type[BaseException], ...] = (),
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        heartbeat: Duration | None = None,
        at_most_once: bool = False,
        errors: Mapping[type[BaseException], type[ActionError]] | None = None,
        breaker: Breaker | None = None,
        concurrency: int | None = None,
        queue: str = "",
        transactional: bool = False,
        process: bool = False,
        external: bool = False,
        everywhere: int | None = None,
    ) -> Any:
        """Make an action of a function.

        `retries` counts the tries after the first, or is a `Retry`; `fatal` errors are never retried; errors of the
        classes in `raises` reach the workflow as themselves. `errors` says which kind of failure an error of a class
        is. `timeout` limits one attempt, `deadline` all of them, `heartbeat` the time between two calls of
        `action.heartbeat()`, `concurrency` the attempts at once in one worker, `everywhere` those in all workers
        together. The `breaker` leaves a service alone that fails again and again. With a `queue` it runs on the
        workers of that queue, as an execution of its own; without one it runs where its workflow does, while there is
        room. `transactional`: what it writes over `action.connection` and its result are one commit, exactly once
        (PostgreSQL).
        With `process` a plain function runs in a process of its own, where a long computation disturbs nobody.
        An `external` one is a declaration whose body never runs: workers in any language ask for it over HTTP.
        """
        retry = policy(retries, fatal)
        if at_most_once and retry.attempts != 1:
            raise UsageError("an at_most_once action has no retries: whether the first try took effect is not known")
        if at_most_once and retry.spent == "stuck":
            raise UsageError("an at_most_once action is never tried again, so spent='stuck' has no use for it")
        for name_of, limit in (("concurrency", concurrency), ("everywhere", everywhere)):
            if limit is not None and limit < 1:
                raise UsageError(f"{name_of} must be at least 1, not {limit}: no attempt could ever run")
        how = Options(
            retry,
            _micros(timeout),
            _micros(deadline),
            _micros(heartbeat),
            at_most_once,
            raises,
            checked(errors or {}),
            breaker,
            concurrency,
            queue,
            transactional,
            process,
            external,
            everywhere,
        )

        if transactional and at_most_once:
            raise UsageError("a transactional action happens exactly once: at_most_once adds nothing to that")

        def decorate(function: Callable[..., Any]) -> Action[..., Any]:
            if transactional and not inspect.iscoroutinefunction(function):
                raise UsageError(f"{function.__qualname__} must be an `async def` to be transactional")
            made: Action[..., Any] = Action(function, how, name, version, description)
            registry.add_action(made)
            return made

        return decorate if fn is None else decorate(fn)

    @property
    def key(self) -> str:
        """The idempotency key of this call: the same on every attempt, unique among all calls."""
        return this_attempt("action.key").key

    @property
    def fence(self) -> int:
        """Rises with every take-over of this call; give it to resources that can refuse an older one."""
        return this_attempt("action.fence").fence

    @property
    def attempt(self) -> int:
        """1 at the first try."""
        return this_attempt("action.attempt").number

    @property
    def execution(self) -> str:
        """The id of the execution that called."""
        return this_attempt("action.execution").execution

    @property
    def traceparent(self) -> str:
        """For the header of that name of what this action calls: the trace of its execution, and this call in it."""
        return str(this_attempt("action.traceparent").trace)

    @property
    def app(self) -> Any:
        """The application (`Perdure`) whose worker runs this action: to start, to send, to find."""
        return this_attempt("action.app").client

    @property
    def connection(self) -> Any:
        """Of a transactional action: the asyncpg connection whose transaction also commits the result."""
        connection = this_attempt("action.connection").connection
        if connection is None:
            raise UsageError("action.connection works only in an action declared with transactional=True")
        return connection

    @property
    def progress(self) -> Any:
        """The details of the last heartbeat, also of an earlier attempt; None at first."""
        return this_attempt("action.progress").progress

    @property
    def cancelled(self) -> bool:
        """Whether the workflow no longer wants this action; functions in threads should look now and then."""
        return this_attempt("action.cancelled").unwanted()

    def heartbeat(self, details: Any = None) -> None:
        """Say that the action is alive, with details that survive a crash. Raises when it was cancelled."""
        current = this_attempt("action.heartbeat()")
        if current.unwanted():
            raise asyncio.CancelledError("the workflow no longer wants this action")
        current.beat(details)


action = ActionDecorator()
