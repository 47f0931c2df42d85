"""Workflows: plain `async def` functions on the deterministic loop, and what they may ask of the engine.

A workflow takes no context parameter. Sagas live here: when the function fails or is cancelled, the undos of the
actions that succeeded run in reverse order, as ordinary durable actions, before the outcome is written.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, TypeVarTuple, final, overload
from uuid import UUID

import msgspec
from msgspec import Raw

from perdure.core import guard
from perdure.core.cloudevents import CloudEvent, source_of
from perdure.core.codec import Codec, Schema, codec_for, encode
from perdure.core.commands import RestartWith
from perdure.core.events import Error, Owed
from perdure.core.failures import child_failed
from perdure.core.moments import moment
from perdure.core.records import id_of, key_of, tenant_of
from perdure.core.replay import Replay
from perdure.core.signature import Signature
from perdure.core.tracing import of_execution
from perdure.errors import ExecutionError, UsageError
from perdure.flows import listening
from perdure.flows.action import Action, Call, action, with_result
from perdure.flows.current import Attempt, execution, inside, this_attempt
from perdure.flows.listening import Listen, On
from perdure.flows.registry import registry

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
R = TypeVar("R")
T = TypeVar("T")


class Workflow(Generic[P, R]):
    """A registered definition. Awaited in a workflow it is a child; anywhere else it is just the function."""

    hash: str = ""  # of the content of a definition that is data, if it was published
    label: str = ""  # the version that a document gives itself
    listens: tuple[Listen, ...] = ()
    starts_on: tuple[On, ...] = ()

    def __init__(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        name: str = "",
        version: int = 1,
        queue: str = "default",
        events: Mapping[str, Any] | None = None,
        description: str = "",
        listens: Sequence[Listen] = (),
        starts_on: Sequence[On] = (),
    ) -> None:
        if not inspect.iscoroutinefunction(fn):
            raise UsageError(f"{getattr(fn, '__qualname__', fn)} must be an `async def` to be a workflow")
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = name or fn.__name__
        check_name(self.name, version)
        self.version = version
        self.queue = queue
        self.description = description or inspect.getdoc(fn) or ""
        self.signature = Signature(fn)
        self.events: dict[str, Codec[Any]] = {event: codec_for(kind) for event, kind in (events or {}).items()}
        self.listens, self.starts_on = tuple(listens), tuple(starts_on)
        listening.checked(self.name, self.listens, self.starts_on, self.events)
        self._checked = False
        guard.refuse(fn)

    @property
    def definition(self) -> str:
        return f"{self.name}@{self.version}"

    @functools.cached_property
    def fingerprint(self) -> str:
        return guard.fingerprint(self.fn)

    def check(self) -> None:
        """Look once more for calls that cannot be replayed, now that the whole module is there; then watch for them.

        A name that nothing defines is found here, too, and not only by the execution that comes to it.
        """
        if not self._checked:
            guard.refuse(self.fn)
            guard.refuse_unknown(self.fn)
            guard.watch(guard.reachable(self.fn))
            self._checked = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        running = execution()
        if running is None:
            return self.fn(*args, **kwargs)
        return running.child(self, self.version, Raw(self.signature.encode(args, kwargs)))

    def begin(self, running: Replay, input: Raw) -> Coroutine[Any, Any, Raw]:
        args, kwargs = self.signature.decode(input)
        return self._main(running, args, kwargs)

    def resume(self, running: Replay, input: Raw) -> Coroutine[Any, Any, Raw]:
        return self.begin(running, input)

    def undo_of(self, owed: Owed) -> Action[..., Any]:
        return registry.action(owed.undo)

    def input_schema(self) -> Schema:
        """The JSON Schema of what it is started with: of code, its arguments by name; of data, the one value."""
        return self.signature.schema()

    async def _main(self, running: Replay, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Raw:
        call: Callable[..., Coroutine[Any, Any, R]] = self.fn
        try:
            return Raw(self.signature.returns.encode(await call(*args, **kwargs)))
        except (Exception, asyncio.CancelledError) as error:
            await finish(running, error)
            raise

    def same_args(self, recorded: Raw, asked: Raw, /) -> bool:
        return self.signature.same(recorded, asked)

    def decode_result(self, result: Raw, /) -> Any:
        return self.signature.returns.decode(result)

    def failure(self, error: Error, /) -> BaseException:
        return child_failed(error, self.name)


def check_name(name: str, version: int) -> None:
    if ":" in name:
        raise UsageError(f"{name}: the name of a workflow has no colon; those are the engine's own")
    if version < 1:
        raise UsageError(f"{name}: a workflow's version is a number from 1 on, not {version}")


async def finish(running: Replay, error: BaseException) -> None:
    """The code is over without success: undo what it did, in reverse order."""
    running.failing(error)
    await running.settle_down()
    await running.adopt_orphans()
    while running.undos:
        undo = running.undos.pop()
        running.kept = min(running.kept, undo.version - 1)
        try:
            await running.act(undo.spec, with_result(undo.args, undo.result))
        except Exception as failure:
            error.add_note(f"undo {undo.spec.name} failed too: {failure}")


class _ReplayFilter(logging.Filter):
    """A log line of a workflow appears once: not again when it is replayed."""

    def filter(self, record: logging.LogRecord) -> bool:
        running = execution()
        if running is None:
            return True
        if running.replaying:
            return False
        record.execution, record.version = running.key, running.version
        record.trace = of_execution(running.trace, running.key, running.began).id
        return True


@final
class WorkflowDecorator:
    """`@workflow`, and what the code of a workflow may ask of the engine: `workflow.now()`, `workflow.uuid()`, …"""

    def __init__(self) -> None:
        self.log = logging.getLogger("perdure.workflow")
        self.log.addFilter(_ReplayFilter())

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        name: str = ...,
        version: int = ...,
        queue: str = ...,
        events: Mapping[str, Any] | None = ...,
        description: str = ...,
        listens: Sequence[Listen] = ...,
        starts_on: Sequence[On] = ...,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Workflow[P, R]]: ...
    def __call__(
        self,
        fn: Any = None,
        *,
        name: str = "",
        version: int = 1,
        queue: str = "default",
        events: Mapping[str, Any] | None = None,
        description: str = "",
        listens: Sequence[Listen] = (),
        starts_on: Sequence[On] = (),
    ) -> Any:
        """Make a workflow of an `async def`. `events` declares payload types, which are then checked when sent.

        `listens` and `starts_on` say which CloudEvents wake its executions, and which start one: see `Perdure.route`.
        """

        def decorate(function: Callable[..., Coroutine[Any, Any, Any]]) -> Workflow[..., Any]:
            made: Workflow[..., Any] = Workflow(function, name, version, queue, events, description, listens, starts_on)
            registry.add_workflow(made)
            return made

        return decorate if fn is None else decorate(fn)

    # About this execution.

    @property
    def id(self) -> str:
        return id_of(inside("workflow.id").key)

    @property
    def tenant(self) -> str:
        return tenant_of(inside("workflow.tenant").key)

    @property
    def version(self) -> int:
        """The version of the definition that this execution began with."""
        return inside("workflow.version").definition.version

    @property
    def replaying(self) -> bool:
        """Whether the log shows that this point was passed before. For telemetry only, never for a decision."""
        return inside("workflow.replaying").replaying

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked to cancel this execution; its clean-up may still run actions."""
        return inside("workflow.cancelled").cancel is not None

    # Values from the log.

    def now(self) -> datetime:
        """The time of the event being handled, in UTC."""
        running = inside("workflow.now()")
        return moment(running.began + round(running.loop.now * 1e6))

    def random(self) -> random.Random:
        """A generator that gives the same numbers on replay: `workflow.random().choice(names)`."""
        running = inside("workflow.random()")
        found: random.Random | None = getattr(running.loop, "random", None)
        if found is None:
            found = random.Random(f"{running.seed}\n{running.round}")
            running.loop.random = found  # type: ignore[attr-defined]
        return found

    def uuid(self) -> UUID:
        """A UUID that is the same on replay."""
        return inside("workflow.uuid()").uuid()

    def record(self, fn: Callable[[], T]) -> T:
        """Compute a value once and keep it in the log: `workflow.record(lambda: os.environ["REGION"])`."""
        codec: Codec[T] = _returns(fn)
        return codec.decode(inside("workflow.record()").record(lambda: Raw(codec.encode(fn()))))

    def patched(self, id: str) -> bool:
        """True where this execution may take the new path; False if it passed here before the patch was there."""
        return inside("workflow.patched()").patched(id)

    def publish(self, **state: Any) -> None:
        """Show these fields to `state()`, `find()` and the outside."""
        inside("workflow.publish()").publish(msgspec.json.decode(encode(state)))

    # Acts.

    def restart_with(self, *args: Any, **kwargs: Any) -> NoReturn:
        """End this round and begin the same workflow again with these arguments, in the same execution.

        Events that nobody took stay buffered. Replay begins here from now on, so the log's length does not matter.
        """
        running = inside("workflow.restart_with()")
        definition = running.definition
        assert isinstance(definition, Workflow)
        raise RestartWith(Raw(definition.signature.encode(args, kwargs)))

    async def start(self, child: Callable[[*Ts], Coroutine[Any, Any, Any]], *args: *Ts, id: str | None = None) -> str:
        """Start another execution and do not wait for it; gives its id. It lives on when this one ends."""
        if not isinstance(child, Workflow):
            raise UsageError("workflow.start() takes a workflow and its arguments")
        other: Workflow[..., Any] = child
        return await start_apart(other.name, other.version, Raw(other.signature.encode(args, {})), id)

    async def send(self, id: str, name: str, payload: Any = None) -> None:
        """Send an event to another execution of the same tenant."""
        await _send(id, name, Raw(encode(payload)))

    async def cancel(self, id: str, reason: str = "") -> None:
        """Ask another execution of the same tenant to cancel."""
        await _cancel(id, reason)

    async def emit(self, type: str, data: Any = None, *, subject: str = "") -> CloudEvent:
        """Let an event out, as a CloudEvent: to every sink of the application, at least once, with the same id.

        Its id and its time are those of the call, so they stay the same however often it is delivered.
        """
        return await _emit(type, data, subject)


def _returns(fn: Callable[[], Any]) -> Codec[Any]:
    try:
        hints = inspect.get_annotations(fn, eval_str=True)
    except (NameError, TypeError, ValueError):
        hints = {}
    return codec_for(hints.get("return", Any))


async def start_apart(name: str, version: int | str | None, input: Raw, id: str | None = None) -> str:
    """Start another execution that nobody waits for; gives its id."""
    running = inside("workflow.start()")
    return await _start(name, version, input, id or f"{id_of(running.key)}.{running.loop.ref + 1}")


@action(name="perdure.start", retries=20, fatal=(UsageError, ExecutionError))
async def _start(workflow: str, version: int | str | None, input: Raw, id: str) -> str:
    """Start a detached execution."""
    current = this_attempt("workflow.start()")
    await current.client.start_raw(workflow, version, input, id, current.tenant, _me(current))
    return id


@action(name="perdure.send", retries=20, fatal=(UsageError, ExecutionError))
async def _send(id: str, name: str, payload: Raw) -> None:
    """Send an event to another execution."""
    current = this_attempt("workflow.send()")
    await current.client.send_raw(current.tenant, id, name, payload, current.key, _me(current))


@action(name="perdure.cancel", retries=20, fatal=(UsageError, ExecutionError))
async def _cancel(id: str, reason: str) -> None:
    """Cancel another execution."""
    current = this_attempt("workflow.cancel()")
    await current.client.cancel_raw(current.tenant, id, reason, current.key, _me(current))


def _me(current: Attempt) -> str:
    """Who answers for what a workflow does to others: the execution itself."""
    return key_of(current.tenant, current.execution)


@action(name="perdure.emit", retries=20)
async def _emit(type: str, data: Any, subject: str = "", more: Mapping[str, Any] | None = None) -> CloudEvent:
    """Let an event out. `more` are attributes that are given, and need not be made."""
    current = this_attempt("workflow.emit()")
    key = key_of(current.tenant, current.execution)
    event = emitted(current.key, key, current.asked_at, type, data, subject, more)
    await current.client.deliver(event)
    return event


def emitted(
    id: str, key: str, at: int, type: str, data: Any, subject: str = "", more: Mapping[str, Any] | None = None
) -> CloudEvent:
    """An event of an execution, as it is let out; what it does not have of its own is made."""
    event = CloudEvent(id, source_of(key), type, moment(at), data, subject)
    return msgspec.convert(msgspec.to_builtins(event) | dict(more), CloudEvent) if more else event


async def emit_event(event: Mapping[str, Any]) -> CloudEvent:
    """Let an event out that has its own attributes; those that it lacks are made."""
    more = {name: value for name, value in event.items() if name not in ("type", "data", "subject")}
    return await _emit(event["type"], event.get("data"), event.get("subject", ""), *([more] if more else []))


@action(name="perdure.find_definition", retries=20, fatal=(UsageError,))
async def find_definition(name: str, version: int | str | None = None) -> dict[str, Any]:
    """Which version of a workflow stands behind a name now: its `version`, `hash` (if it was published) and `queue`.

    A `version` that is a text is the one that a document gives itself.
    """
    current = this_attempt("find_definition()")
    return await current.client.find_definition(current.tenant, name, version)


workflow = WorkflowDecorator()
__all__ = ["Action", "Workflow", "WorkflowDecorator", "workflow"]
