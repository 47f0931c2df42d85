"""One execution in memory: its code on a deterministic loop, fed by its log.

State is a function of code and log. `feed` takes the events of the log one by one, in order, whether they are read back
or happen now; what the code asks for comes out as open actions, children and output events. Rules kept here:

- Commands are numbered by one counter per execution (`ref`). Whatever the log records under a number must be what the
  code asks for under it; otherwise Nondeterminism, naming the first command that differs.
- Inputs that arrive while the execution is paused or stuck are kept back and driven at Resumed or Redriven, in order.
- Outputs that the log already has are not given out again, so a replay of the whole log gives out nothing.
- Time is the time of the event being applied. Nothing here reads a clock.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Raw

from perdure.core import events as ev
from perdure.core.commands import Asked, Halt, Limits, RestartWith, Spec, Undo, Waiter, command_of, short
from perdure.core.failures import action_failed, describe
from perdure.core.loop import Handle, Park, new_loop, turns, where
from perdure.core.records import Row, id_of
from perdure.errors import (
    ChildFailed,
    InvalidValue,
    LimitReached,
    NeverWakes,
    Nondeterminism,
    PerdureError,
    Undecodable,
)

_INPUTS = (ev.ActionSettled, ev.TimerFired, ev.EventReceived, ev.ChildSettled, ev.CancelRequested)
_decode_json = msgspec.json.decode
_encode_json = msgspec.json.encode

Outcome: TypeAlias = ev.Completed | ev.Failed | ev.Cancelled | ev.Restarted


class Definition(Protocol):
    """What a replay needs to know of a workflow: how to begin it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    def begin(self, running: Replay, input: Raw) -> Coroutine[Any, Any, Raw]: ...


class Replay:
    """One execution in memory. See the module's rules."""

    def __init__(self, key: str, definition: Definition, limits: Limits | None = None) -> None:
        self.key = key
        self.definition = definition
        self.limits = limits or Limits()
        self.loop = new_loop(self, steps=self.limits.steps_per_turn)
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
        self.outputs: list[ev.Event] = []
        self.paused: ev.Paused | None = None
        self.stuck: ev.Stuck | None = None
        self.cancel: ev.CancelRequested | None = None
        self.outcome: Outcome | None = None
        self.undos: list[Undo] = []
        self.orphans: dict[int, tuple[Asked, Spec]] = {}  # no longer awaited, but they may have to be undone
        self.kept = 0  # the last version that a retry would keep
        self.published: dict[str, Any] = {}
        self.changed = False
        self.draws = 0
        self.base = 1
        self.seed = key
        self.round = 0  # number of the last command before this round began
        self._backlog: list[tuple[ev.Event, int]] = []
        self._input = 0  # version of the input being driven
        self._cancelled_at = 0
        self._logged_timers: set[int] = set()
        self._expected: dict[int, tuple[int, ev.Event]] = {}
        self._marks: dict[int, ev.Marked] = {}
        self._patches: dict[str, bool] = {}  # decided in this round
        self._patched: set[tuple[int, str]] = set()  # that the log records, by the round that took them
        self._round = 1  # the beginning of the round that was indexed last
        self._highest = 0  # ref that the log records
        self._last_input = 0  # version of the last input that was driven when it was written
        self._skip = {ev.Published: 0, ev.EventRejected: 0}  # how many of them the log has that were not met yet
        self._outputs: set[tuple[type[ev.Event], int]] = set()  # numbered outputs that the log has
        self._fault: PerdureError | None = None
        self._commands = 0

    # Feeding.

    def load(self, rows: Iterable[Row]) -> None:
        """Feed what the log has, from its beginning or from the newest Restarted on."""
        log = [(row, ev.read(row)) for row in rows]
        if len(log) > self.limits.events_per_replay:
            raise LimitReached(
                f"{self.key} has {len(log):,} events to replay, more than {self.limits.events_per_replay:,}:"
                " let the workflow call workflow.restart_with(...) now and then, or raise events_per_replay"
            )
        self._index(log)
        with turns():
            for row, event in log:
                self.feed(event, row.version, row.at)
        self._skip = dict.fromkeys(self._skip, 0)  # what the code no longer gives out must not hide what comes now

    def feed(self, event: ev.Event, version: int, at: int) -> None:
        """Take one event of the log. Raises when the code no longer fits it; then the replay is of no more use."""
        self.version = version
        if type(event) is ev.ActionSettled and self.paused is None and self.stuck is None:  # nearly all of them
            self._drive(event, version, at)
            return
        match event:
            case ev.Started():
                self.began = self.at = at
                self.seed = event.seed or self.key
                self._begin(event.input)
            case ev.ActionSettled() | ev.TimerFired() | ev.EventReceived() | ev.ChildSettled() | ev.CancelRequested():
                if isinstance(event, ev.CancelRequested) and event.now and self.outcome is None:
                    self._end(ev.Cancelled(event.reason, forced=True, since=version - 1))
                elif self.paused is not None or self.stuck is not None:
                    self._backlog.append((event, version))
                else:
                    self._drive(event, version, at)
            case ev.ActionAttempted() | ev.ActionStarted() | ev.ActionProgressed() | ev.ActionScheduled():
                self._note_attempt(event)
            case ev.TimerStarted() | ev.TimerCancelled() | ev.ActionCancelled() | ev.ChildStarted() | ev.Marked():
                self._check_output(event)
            case ev.Paused():
                self.paused = event
            case ev.Resumed():
                self.paused = None
                self._drive_backlog(at)
            case ev.Stuck():
                self.stuck = event
            case ev.Redriven():
                self.stuck = None
                self._drive_backlog(at)
            case ev.Restarted():
                self._restore(event, version, at)
            case ev.Completed() | ev.Failed() | ev.Cancelled():
                self._check_end(event)
                self._end(event)
            case ev.TakenOver() | ev.Published() | ev.EventRejected() | ev.StateChanged():
                pass

    def evict(self) -> None:
        self.loop.evict()

    def _index(self, log: Sequence[tuple[Row, ev.Event]]) -> None:
        window = self.paused is not None or self.stuck is not None
        for row, event in log:
            ref = getattr(event, "ref", 0)
            if ref and not isinstance(event, ev.Restarted):
                if ref not in self._expected:
                    self._expected[ref] = (row.version, event)
                self._highest = max(self._highest, ref)
            if type(event) is ev.ActionSettled:  # nearly all of them
                if not window:
                    self._last_input = row.version
                continue
            if isinstance(event, ev.TimerCancelled | ev.ActionCancelled | ev.ChildStarted):
                self._outputs.add((type(event), event.ref))
            if isinstance(event, ev.Marked):
                if event.kind == "patch":
                    self._patched.add((self._round, event.name))
                else:
                    self._marks[event.ref] = event
            elif isinstance(event, ev.Restarted):
                self._round = row.version
            elif isinstance(event, ev.Published | ev.EventRejected):
                self._skip[type(event)] += 1
            elif isinstance(event, ev.Paused | ev.Stuck):
                window = True
            elif isinstance(event, ev.Resumed | ev.Redriven):
                window = False
            elif not window and isinstance(event, _INPUTS):
                self._last_input = row.version

    def _begin(self, input: Raw) -> None:
        self._input = self.version
        try:
            main = self.definition.begin(self, input)
        except InvalidValue as error:
            raise Undecodable(f"{self.key}: the input does not fit the workflow's parameters: {error}") from error
        self._run(self.loop.begin, main)

    def _drive_backlog(self, at: int) -> None:
        while self._backlog and self.paused is None and self.stuck is None:
            self._drive(*self._backlog.pop(0), at)

    def _drive(self, event: ev.Event, version: int, at: int) -> None:
        if self.outcome is not None:
            if getattr(event, "ref", 0) > self.loop.ref:
                raise self._differs(event, f"the code ends with {type(self.outcome).__name__} before it")
            return
        self._input = version
        self.at = max(self.at, at)
        self.loop.now = max(self.loop.now, (self.at - self.began) / 1e6)
        match event:
            case ev.ActionSettled():
                self._settle(self.actions, event)
            case ev.ChildSettled():
                self._settle(self.children, event)
            case ev.TimerFired():
                if event.ref not in self.loop.timers:
                    raise self._differs(event, "the code has no such timer at this point")
                self._logged_timers.discard(event.ref)
                self._run(self.loop.fire, event.ref)
            case ev.EventReceived():
                received = ev.Received(event.id, event.name, event.payload, event.by)
                self._turn(self._deliver, received)
            case ev.CancelRequested() if self.cancel is None:  # a second one would only hit the clean-up
                self.cancel, self._cancelled_at, main = event, version, self.loop.main
                assert main is not None
                self._turn(main.cancel, event.reason or None)
            case _:
                pass

    def _turn(self, change: Callable[..., object], *args: Any) -> None:
        self._run(self.loop.turn, change, *args)

    def _run(self, turn: Callable[..., None], *args: Any) -> None:
        self._commands = 0
        try:
            turn(*args)
        except NeverWakes:
            if self._fault is None:
                raise
        except SystemExit as error:
            raise NeverWakes(f"{self.key} called sys.exit(): raise an error or return instead") from error
        if self._fault is not None:
            raise self._fault
        self._rest()

    def _halt(self, fault: PerdureError) -> NoReturn:
        """Called from inside a turn: the replay has failed, whatever the workflow's own handlers say."""
        self._fault = self._fault or fault
        raise Halt

    def _rest(self) -> None:
        """After a turn: cancelled timers, what was published, and whether it is over."""
        for ref in self.loop.unset:
            if ref in self._logged_timers:
                self._logged_timers.discard(ref)
                self._emit_once(ev.TimerCancelled(ref))
        self.loop.unset.clear()
        if self.changed:
            self.changed = False
            state = _encode_json(self.published)
            self._limit(state, "what it publishes")
            self._emit_counted(ev.Published(Raw(state)))
        if self.loop.finished and self.outcome is None:
            self._end(self._outcome())

    def _settle(self, open: dict[int, Asked], event: ev.ActionSettled | ev.ChildSettled) -> None:
        asked = open.pop(event.ref, None)
        if asked is None:
            if event.ref > self.loop.ref:
                raise self._differs(event, "the code does not ask for it")
            return  # cancelled or settled before: its late result changes nothing
        asked.settled, asked.result = self._input, event.result
        if event.error is not None:
            failure = asked.spec.failure(event.error)
            if isinstance(failure, ChildFailed) and isinstance(event, ev.ChildSettled):
                failure.child = event.id
            failure.__dict__["perdure_version"] = self._input
            self._turn(asked.future.set_exception, failure)
            asked.future.exception()  # seen: it may be one that nobody awaits any more
            return
        try:
            value = asked.spec.decode_result(event.result)
        except InvalidValue as error:
            raise Undecodable(
                f"{self.key}: the result of {asked.spec.name} (version {self.version} of the log) does not fit its"
                f" declared type: {error}"
            ) from error
        self._turn(asked.future.set_result, value)

    def _note_attempt(
        self, event: ev.ActionAttempted | ev.ActionStarted | ev.ActionProgressed | ev.ActionScheduled
    ) -> None:
        asked = self.actions.get(event.ref)
        if asked is None:
            if event.ref > self.loop.ref:
                raise self._differs(event, "the code does not ask for it")
            return
        match event:
            case ev.ActionAttempted():
                asked.attempts, asked.due, asked.started = event.attempt, event.due, False
                self.fresh.append(event.ref)
            case ev.ActionStarted():
                asked.started = True
            case ev.ActionProgressed():
                asked.progress = event.details
            case ev.ActionScheduled():
                pass

    def _check_output(
        self, event: ev.TimerStarted | ev.TimerCancelled | ev.ActionCancelled | ev.ChildStarted | ev.Marked
    ) -> None:
        if event.ref > self.loop.ref:
            raise self._differs(event, "the code does not ask for it")
        if isinstance(event, ev.TimerStarted):
            handle = self.loop.timers.get(event.ref)
            if handle is None:
                raise self._differs(event, "the code has no such timer at this point")
            if self.due_of(handle) != event.due:
                raise self._differs(event, f"the code sets it to {self.due_of(handle)}")
            self._logged_timers.add(event.ref)
        elif isinstance(event, ev.TimerCancelled) and event.ref in self.loop.timers:
            raise self._differs(event, "the code keeps the timer")
        elif isinstance(event, ev.ActionCancelled) and event.ref in self.actions:
            raise self._differs(event, "the code does not cancel it")

    def _check_end(self, event: ev.Completed | ev.Failed | ev.Cancelled) -> None:
        if isinstance(event, ev.Cancelled) and event.forced:
            return  # the engine's decision, not the code's
        if self.outcome is None:
            raise self._differs(event, f"the code goes on at {', '.join(self.places())}")
        if type(self.outcome) is not type(event):
            raise self._differs(event, f"the code ends with {type(self.outcome).__name__}")

    def _restore(self, event: ev.Restarted, version: int, at: int) -> None:
        """Begin again from a checkpoint; the loop of before, if any, is over."""
        self.loop.evict()
        self.loop = new_loop(self, ref=event.ref, steps=self.limits.steps_per_turn)
        self.base, self.round, self.seed = version, event.ref, event.seed or self.key
        self.began, self.at = event.began, max(self.at, at)
        self.loop.now = (self.at - self.began) / 1e6
        self.draws = event.draws
        self.buffer = list(event.buffered)
        self._patches = dict.fromkeys(event.patches, True)
        self.published = _decode_json(event.published) or {}
        self.cancel, self.outcome = event.cancel, None
        self.actions, self.children, self.waiters, self.undos, self.orphans = {}, {}, [], [], {}
        self._logged_timers = set()
        self._begin(event.input)

    # The end.

    def _outcome(self) -> Outcome:
        main = self.loop.main
        assert main is not None
        if main.cancelled():
            return ev.Cancelled(self.cancel.reason if self.cancel else "", since=self.kept)
        error = main.exception()
        if error is None:
            note = "a cancel request was ignored" if self.cancel else ""
            self._limit(main.result(), "its result")
            return ev.Completed(main.result(), note)
        if isinstance(error, RestartWith):
            # What was kept back is not in the log that a replay from the checkpoint sees.
            kept_back = [event for event, _ in self._backlog if isinstance(event, ev.EventReceived)]
            self._backlog.clear()
            self.buffer += [ev.Received(event.id, event.name, event.payload, event.by) for event in kept_back]
            return ev.Restarted(
                error.input,
                self.loop.ref,
                self.draws,
                self.began,
                self.definition.name,
                self.definition.version,
                list(self.buffer),
                [name for name, taken in self._patches.items() if taken],
                Raw(_encode_json(self.published)),
                self.cancel,
                "" if self.seed == self.key else self.seed,
            )
        return ev.Failed(describe(error), self.kept)

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.loop.evict()

    # What the code of a workflow asks for. All of it runs inside a turn.

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
            asked.future = asyncio.Future(loop=self.loop)
            self.orphans[asked.ref] = asked, undo
            return
        del self.actions[asked.ref]
        self.stops.append(asked.ref)
        self._emit_once(ev.ActionCancelled(asked.ref, asked.spec.name, asked.args))

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
        self._emit_once(ev.ChildStarted(asked.ref, f"{id_of(self.key)}.{asked.ref}", workflow.name, version, args))
        try:
            return await asked.future
        except asyncio.CancelledError:
            if self.children.pop(asked.ref, None) is not None and not self.loop.closed:
                self.child_stops.append(asked.ref)
            raise

    async def receive(self, wanted: Mapping[str, Callable[[Raw], Any]], match: Mapping[str, Any]) -> Any:
        """The next event of one of these names whose payload matches: (event, value)."""
        if self.loop.closed or self._fault is not None:
            await self._refuse()
        waiter = Waiter(wanted, match, asyncio.Future(loop=self.loop), self.at)
        for event in [event for event in self.buffer if waiter.takes(event)]:
            self.buffer.remove(event)
            if (taken := self._accept(waiter, event)) is not None:
                return taken
        self.waiters.append(waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
            elif waiter.future.done() and not waiter.future.cancelled():
                self.buffer.insert(0, waiter.future.result()[0])  # it came, but nobody took it
            raise

    def record(self, compute: Callable[[], Any]) -> Raw:
        """A value computed once: JSON from the log, or computed now and put there. A failure is kept as well."""
        self.loop.refuse_if_closed()
        self.loop.ref = ref = self.loop.ref + 1
        self._expect(ref, "record", "", None)
        mark = self._marks.get(ref)
        if mark is None:
            mark = self._marks[ref] = self._compute(ref, compute)
            self.outputs.append(mark)
        if mark.kind == "failure":
            raise action_failed(_decode_json(mark.value, type=ev.Error), "workflow.record()")
        return mark.value

    def _compute(self, ref: int, compute: Callable[[], Any]) -> ev.Marked:
        if self.replaying:
            self._halt(
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
            recorded = (self.base, name) in self._patched
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

    def failing(self, error: BaseException) -> None:
        """The workflow's own code is over, without success: a retry goes back to before what made it so."""
        if isinstance(error, asyncio.CancelledError) and self.cancel is not None:
            self.kept = self._cancelled_at - 1
        else:
            self.kept = min([self._input, *(version - 1 for version in _causes(error))])

    def timer_set(self, handle: Handle) -> None:
        if self._fault is not None:
            return  # the code may as well wait
        self._expect(handle.ref, "timer", "", None)
        self._count()

    # Looking.

    @property
    def replaying(self) -> bool:
        """The log shows that this point was passed before."""
        return self.version < self._last_input or self.loop.ref < self._highest

    def waiting(self) -> bool:
        return bool(self.actions or self.children or self.waiters)

    def due_of(self, handle: Handle) -> int:
        """When a timer is due, in microseconds since the epoch; rounded up, so never early."""
        return self.began + math.ceil(handle.due * 1e6)

    def due_timers(self, now: int) -> tuple[int, int] | None:
        """The next timer that is due, as (due, ref); equal times in the order of their numbers."""
        if not self.loop.timers:
            return None
        first = min(((self.due_of(handle), ref) for ref, handle in self.loop.timers.items()), default=None)
        return first if first is not None and first[0] <= now else None

    def next_due(self, now: int = 0) -> int | None:
        """The earliest time at which something happens by itself; an action that was due by now is under way."""
        dues = [self.due_of(handle) for handle in self.loop.timers.values()]
        dues += [asked.due for asked in self.actions.values() if asked.due > now]
        if self.cancel is not None and self.cancel.deadline:
            dues.append(self.cancel.deadline)
        return min(dues, default=None)

    def unlogged_timers(self) -> list[ev.Event]:
        """Timers that the log does not show yet. Replay does not need them; people do, once the execution rests."""
        started: list[ev.Event] = []
        for ref, handle in self.loop.timers.items():
            if ref not in self._logged_timers:
                self._logged_timers.add(ref)
                started.append(ev.TimerStarted(ref, self.due_of(handle)))
        return started

    def take(self) -> list[ev.Event]:
        """The output events since the last call."""
        outputs, self.outputs = self.outputs, []
        return outputs

    def places(self) -> list[str]:
        return list(dict.fromkeys(where(task) for task in self.loop.tasks.values()))

    # Inside.

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
            self._halt(
                LimitReached(
                    f"{self.key}: more than {self.limits.commands_per_turn:,} commands in one turn; do the work in"
                    " portions, or raise commands_per_turn"
                )
            )

    def _expect(self, ref: int, kind: str, name: str, args: Raw | None, spec: Spec | None = None) -> None:
        recorded = self._expected.pop(ref, None)
        if recorded is None:
            return
        version, event = recorded
        if type(event) is ev.ActionSettled and kind == "action" and event.name == name and event.args == args:
            return
        there, there_name, there_args = command_of(event)
        if there != kind or (there_name and there_name != name):
            asked = f"{kind} {name}".strip()
            self._halt(
                Nondeterminism(
                    f"{self.key}: the code asks for {asked} as command {ref}, but version {version} of the log records"
                    f" {there} {there_name}".rstrip()
                    + ": run the code that this execution began with, or guard the change with workflow.patched()"
                )
            )
        if (
            args is not None
            and there_args is not None
            and bytes(there_args) != bytes(args)
            and not (spec is not None and spec.same_args(there_args, args))
        ):
            self._halt(
                Nondeterminism(
                    f"{self.key}: the code calls {name} (command {ref}) with {short(args)}, but version {version} of"
                    f" the log records {short(there_args)}"
                )
            )

    def _emit_once(self, event: ev.TimerCancelled | ev.ActionCancelled | ev.ChildStarted) -> None:
        """An output with a number: given out unless the log already has it."""
        if (type(event), event.ref) not in self._outputs:
            self.outputs.append(event)

    def _emit_counted(self, event: ev.Published | ev.EventRejected) -> None:
        if self._skip[type(event)]:
            self._skip[type(event)] -= 1
        else:
            self.outputs.append(event)

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

    def _differs(self, event: ev.Event, but: str) -> Nondeterminism:
        kind, name, _ = command_of(event)
        ref = getattr(event, "ref", 0)
        return Nondeterminism(
            f"{self.key}: version {self.version} of the log records {kind} {name}".rstrip()
            + f" as command {ref}, but {but}: run the code that this execution began with, or guard the change with"
            " workflow.patched()"
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
