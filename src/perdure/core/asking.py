"""What the code of a workflow asks of its execution: actions, children, events, values. All of it runs inside a turn.

Commands are numbered by one counter per execution. A mistake that makes a replay useless is kept as the fault of the
turn and unwinds the code, whatever the code catches.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn, Protocol
from uuid import UUID

import msgspec
from msgspec import Raw

from perdure.core import events as ev
from perdure.core.commands import Asked, Halt, Limits, Spec, Undo, Waiter
from perdure.core.failures import action_failed, describe
from perdure.core.loop import Handle, Park, new_loop
from perdure.core.recorded import Counted, Recorded, compare
from perdure.core.records import id_of
from perdure.errors import InvalidValue, LimitReached, Nondeterminism, PerdureError

_decode_json = msgspec.json.decode
_encode_json = msgspec.json.encode


class Definition(Protocol):
    """What an execution needs to know of its workflow: how to begin it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    def begin(self, running: Any, input: Raw) -> Coroutine[Any, Any, Raw]: ...
    def resume(self, running: Any, input: Raw) -> Coroutine[Any, Any, Raw]:
        """Begin again from a checkpoint."""
        ...

    def undo_of(self, owed: ev.Owed) -> Spec:
        """What compensates an action that succeeded before a checkpoint."""
        ...


class Asking:
    """The half of an execution that its own code talks to."""

    # Thousands of these are in memory; with so many attributes a dictionary for each is large and slow.
    __slots__ = (
        "_cancelled_at",
        "_commands",
        "_fault",
        "_input",
        "_patches",
        "actions",
        "at",
        "base",
        "began",
        "buffer",
        "cancel",
        "changed",
        "child_stops",
        "children",
        "definition",
        "draws",
        "fresh",
        "kept",
        "key",
        "lasting",
        "limits",
        "loop",
        "orphans",
        "outputs",
        "position",
        "published",
        "recorded",
        "round",
        "seed",
        "stops",
        "taking",
        "undoing",
        "undos",
        "version",
        "waiters",
    )

    def __init__(self, key: str, definition: Definition, limits: Limits | None = None) -> None:
        self.key = key
        self.definition = definition
        self.limits = limits or Limits()
        self.loop = new_loop(self, steps=self.limits.steps_per_turn)
        self.recorded = Recorded()
        self.version = 0  # of the row being fed
        self.at = 0  # its time
        self.began = 0
        self.actions: dict[int, Asked] = {}
        self.children: dict[int, Asked] = {}
        self.waiters: list[Waiter] = []
        self.buffer: list[ev.Received] = []
        self.fresh: list[int] = []  # actions asked for and not yet taken
        self.stops: list[int] = []  # actions no longer wanted
        self.child_stops: list[int] = []
        self.lasting: set[int] = set()  # children that outlive a checkpoint
        self.outputs: list[ev.Event] = []
        self.cancel: ev.CancelRequested | None = None
        self.undos: list[Undo] = []
        self.position: Callable[[], Any] | None = None  # of a workflow that is data, while it is at rest
        self.taking = ""  # the id of the event whose step a machine is at
        self.undoing = False  # the workflow's own code is over: a cancel request comes too late for it
        self.orphans: dict[int, tuple[Asked, Spec]] = {}  # no longer awaited, but they may have to be undone
        self.kept = 0  # the last version that a retry would keep
        self.published: dict[str, Any] = {}
        self.changed = False
        self.draws = 0
        self.base = 1
        self.seed = key
        self.round = 0  # number of the last command before this round began
        self._input = 0  # version of the input being driven
        self._cancelled_at = 0
        self._patches: dict[str, bool] = {}  # decided in this round
        self._fault: PerdureError | None = None
        self._commands = 0

    async def act(self, action: Spec, args: Raw, undo: Spec | None = None) -> Any:
        if self.loop.closed or self._fault is not None:
            await self._refuse()
        asked = self._ask("action", action, args)
        self.actions[asked.ref] = asked
        self.fresh.append(asked.ref)
        try:
            value = await asked.future
        except asyncio.CancelledError:
            if asked.ref in self.actions and not self.loop.closed:
                self._abandon(asked, undo)
            raise
        if undo is not None:
            self.undos.append(Undo(undo, args, asked.result, asked.settled))
        return value

    def _abandon(self, asked: Asked, undo: Spec | None) -> None:
        """Nobody awaits the action any more. One that can be undone runs on: its effect may have happened already."""
        if undo is not None:
            asked.future, asked.unwanted = asyncio.Future(loop=self.loop), True
            self.orphans[asked.ref] = asked, undo
            return
        del self.actions[asked.ref]
        self.stops.append(asked.ref)
        self._emit_once(ev.ActionCancelled(asked.ref, asked.spec.name, asked.args))

    async def settle_down(self) -> None:
        """Before anything is undone: let the workflow's other tasks end, or what they did could not be undone."""
        main = asyncio.current_task()
        others = [task for task in self.loop.tasks.values() if task is not main]
        can_be_undone = any(getattr(asked.spec, "compensation", None) for asked in self.actions.values())
        if others and (self.undos or self.orphans or can_be_undone):
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    async def adopt_orphans(self) -> None:
        """Wait for the outcome of what was abandoned, so that it can be undone."""
        while self.orphans:
            ref, (asked, undo) = next(iter(self.orphans.items()))
            try:
                await asked.future
            except asyncio.CancelledError:
                if self.loop.closed:
                    raise
                asked.future = asyncio.Future(loop=self.loop)
            except Exception:
                del self.orphans[ref]  # it failed: there is nothing to undo
            else:
                del self.orphans[ref]
                self.undos.append(Undo(undo, asked.args, asked.result, asked.settled))

    async def child(self, workflow: Spec, version: int, args: Raw) -> Any:
        if self.loop.closed or self._fault is not None:
            await self._refuse()
        asked = self._ask("child", workflow, args)
        self.children[asked.ref] = asked
        # The definition of a published child is found by its hash, and its queue by nobody's code.
        published: str = getattr(workflow, "hash", "")
        queue: str = getattr(workflow, "queue", "") if published else ""
        id = f"{id_of(self.key)}.{asked.ref}"
        self._emit_once(ev.ChildStarted(asked.ref, id, workflow.name, version, args, queue, published))
        try:
            return await asked.future
        except asyncio.CancelledError:
            if self.children.pop(asked.ref, None) is not None and not self.loop.closed:
                self.child_stops.append(asked.ref)
            raise

    def begin_lasting(self, workflow: Spec, version: int, args: Raw) -> int:
        """Start a child that outlives checkpoints; gives its number.

        Its outcome comes as an event with the id and the name `/child:NUMBER`: events outlive checkpoints as well.
        """
        self.loop.refuse_if_closed()
        ref = self._ask("child", workflow, args).ref
        self.lasting.add(ref)
        self._emit_once(ev.ChildStarted(ref, f"{id_of(self.key)}.{ref}", workflow.name, version, args))
        return ref

    def withdraw(self, ref: int) -> None:
        """Nobody waits for this child any more."""
        if ref in self.lasting:
            self.lasting.discard(ref)
            self.child_stops.append(ref)

    async def receive(
        self,
        wanted: Mapping[str, Callable[[Raw], Any]],
        match: Mapping[str, Any],
        test: Callable[[ev.Received], bool] | None = None,
    ) -> Any:
        """The next event of one of these names whose payload matches, and that passes a test: (event, value)."""
        if self.loop.closed or self._fault is not None:
            await self._refuse()
        waiter = self.listen(wanted, match, test)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self.unlisten(waiter)
            raise

    def listen(
        self,
        wanted: Mapping[str, Callable[[Raw], Any]],
        match: Mapping[str, Any],
        test: Callable[[ev.Received], bool] | None = None,
    ) -> Waiter:
        """Ask for the next event; it is, or will be, what the future of the waiter gives."""
        waiter = Waiter(wanted, match, asyncio.Future(loop=self.loop), self.at, test)
        place = 0
        while place < len(self.buffer):
            if not waiter.takes(self.buffer[place]):
                place += 1
            elif (taken := self._accept(waiter, self.buffer.pop(place))) is not None:
                waiter.future.set_result(taken)
                return waiter
        self.waiters.append(waiter)
        return waiter

    def unlisten(self, waiter: Waiter) -> None:
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        elif waiter.future.done() and not waiter.future.cancelled():
            self.buffer.insert(0, waiter.future.result()[0])  # it came, but nobody took it

    def record(self, compute: Callable[[], Any]) -> Raw:
        """A value computed once: JSON from the log, or computed now and put there. A failure is kept as well."""
        self.loop.refuse_if_closed()
        self.loop.ref = ref = self.loop.ref + 1
        self._expect(ref, "record", "", None)
        mark = self.recorded.marks.get(ref)
        if mark is None:
            mark = self.recorded.marks[ref] = self._compute(ref, compute)
            self.outputs.append(mark)
        if mark.kind == "failure":
            raise action_failed(_decode_json(mark.value, type=ev.Error), "workflow.record()")
        return mark.value

    def _compute(self, ref: int, compute: Callable[[], Any]) -> ev.Marked:
        if self.replaying:
            self.halt(
                Nondeterminism(
                    f"{self.key}: the code records a value as command {ref}, but the log went on without one"
                    f" (version {self.version})"
                )
            )
        self.loop.recording = True
        try:
            return ev.Marked(ref, "record", "", compute())
        except Exception as error:
            return ev.Marked(ref, "failure", "", Raw(_encode_json(describe(error))))
        finally:
            self.loop.recording = False

    def patched(self, name: str) -> bool:
        """Whether this execution takes the new path: decided at the first call, for ever."""
        self.loop.refuse_if_closed()
        taken = self._patches.get(name)
        if taken is None:
            recorded = (self.base, name) in self.recorded.patched
            taken = self._patches[name] = recorded or not self.replaying
            if taken and not recorded:
                self.outputs.append(ev.Marked(0, "patch", name))
        return taken

    def publish(self, fields: Mapping[str, Any]) -> None:
        self.loop.refuse_if_closed()
        before = dict(self.published)
        self.published.update(fields)
        self.changed = self.changed or self.published != before

    def uuid(self) -> UUID:
        self.loop.refuse_if_closed()
        self.draws += 1
        draw = hashlib.blake2b(f"{self.seed}\n{self.draws}".encode(), digest_size=16)
        return UUID(bytes=draw.digest(), version=4)

    # For workflows that are data: machines, graphs and documents.

    def reject(self, event: ev.Received, reason: str) -> None:
        """An event that came and changes nothing."""
        self._emit_counted(ev.EventRejected(event.id, event.name, reason))

    def note(self, event: ev.StateChanged | ev.NodeStarted | ev.NodeSettled) -> None:
        """Where it stands now, for the log."""
        self.loop.refuse_if_closed()
        if isinstance(event, ev.StateChanged):
            self.published["state"] = event.to_state  # the event itself shows it: nothing more is written
        self._emit_counted(event)

    def failing(self, error: BaseException) -> None:
        """The workflow's own code is over, without success: a retry goes back to before what made it so."""
        self.undoing = True
        if isinstance(error, asyncio.CancelledError) and self.cancel is not None:
            self.kept = self._cancelled_at - 1
        else:
            self.kept = min([self._input, *(version - 1 for version in _causes(error))])

    def timer_set(self, handle: Handle) -> None:
        if self._fault is not None:
            return  # the code may as well wait
        self._expect(handle.ref, "timer", "", None)
        self._count()

    @property
    def replaying(self) -> bool:
        """The log shows that this point was passed before."""
        return self.recorded.passed(self.version, self.loop.ref)

    def waiting(self) -> bool:
        return bool(self.actions or self.children or self.waiters)

    def due_of(self, handle: Handle) -> int:
        """When a timer is due, in microseconds since the epoch; rounded up, so never early."""
        return self.began + math.ceil(handle.due * 1e6)

    def set_at(self, handle: Handle) -> int:
        """When a timer was set, by the time of the execution."""
        return self.began + round(handle.since * 1e6)

    # Inside.

    def halt(self, fault: PerdureError) -> NoReturn:
        """Called from inside a turn: the replay has failed, whatever the workflow's own handlers say."""
        self._fault = self._fault or fault
        raise Halt

    async def _refuse(self) -> None:
        """While evicting: leave. After a fault: wait for ever, however often the code catches what it is told."""
        if self.loop.refuse_if_closed():
            await Park()
        await asyncio.Future(loop=self.loop)

    def _ask(self, kind: str, spec: Spec, args: Raw) -> Asked:
        self._count()
        self.loop.ref = ref = self.loop.ref + 1
        self._expect(ref, kind, spec.name, args, spec)
        return Asked(ref, spec, args, self.at, asyncio.Future(loop=self.loop))

    def _limit(self, data: bytes | Raw, what: str) -> None:
        size = len(bytes(data))
        if size > self.limits.payload_bytes:
            raise LimitReached(
                f"{self.key}: {what} has {size:,} bytes, more than {self.limits.payload_bytes:,}: keep the data"
                " elsewhere and a reference here, or raise payload_bytes"
            )

    def _count(self) -> None:
        self._commands += 1
        if self._commands > self.limits.commands_per_turn:
            self.halt(
                LimitReached(
                    f"{self.key}: more than {self.limits.commands_per_turn:,} commands in one turn; do the work in"
                    " portions, or raise commands_per_turn"
                )
            )

    def _accept(self, waiter: Waiter, event: ev.Received) -> tuple[ev.Received, Any] | None:
        try:
            return event, waiter.wanted[event.name](event.payload)
        except InvalidValue as error:
            self._emit_counted(ev.EventRejected(event.id, event.name, str(error)))
            return None

    def _deliver(self, event: ev.Received) -> None:
        for waiter in self.waiters:
            if not waiter.future.done() and waiter.takes(event):
                value = self._accept(waiter, event)
                if value is not None:
                    self.waiters.remove(waiter)
                    waiter.future.set_result(value)
                return
        self.buffer.append(event)

    def _expect(self, ref: int, kind: str, name: str, args: Raw | None, spec: Spec | None = None) -> None:
        recorded = self.recorded.commands.pop(ref, None)
        if recorded is not None and (fault := compare(self.key, ref, recorded, kind, name, args, spec)) is not None:
            self.halt(fault)

    def _emit_once(self, event: ev.TimerCancelled | ev.ActionCancelled | ev.ChildStarted) -> None:
        """An output with a number: given out unless the log already has it."""
        if not self.recorded.has(event):
            self.outputs.append(event)

    def _emit_counted(self, event: Counted) -> None:
        recorded = self.recorded.spend(event)
        if recorded is None:
            self.outputs.append(event)
        elif isinstance(event, ev.StateChanged | ev.NodeStarted) and (fault := _differs(self.key, event, *recorded)):
            self.halt(fault)


def _differs(
    key: str, asked: ev.StateChanged | ev.NodeStarted, version: int, recorded: ev.Event
) -> Nondeterminism | None:
    if asked == recorded:
        return None
    there = msgspec.json.encode(recorded).decode()
    return Nondeterminism(
        f"{key}: the definition goes to {msgspec.json.encode(asked).decode()}, but version {version} of the log records"
        f" {there}: it was changed; give a changed definition another version"
    )


def _causes(error: BaseException | None) -> set[int]:
    """The versions of the bad news that an error goes back to, through its causes and groups."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if (version := getattr(one, "perdure_version", None)) is not None:
            found.add(version)
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return found
