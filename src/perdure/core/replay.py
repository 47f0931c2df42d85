"""One execution in memory: its code on a deterministic loop, fed by its log.

State is a function of code and log. `feed` takes the events of the log one by one, in order, whether they are read back
or happen now; what the code asks for comes out as open actions, children and output events. Rules kept here:

- Commands are numbered by one counter per execution (`ref`). Whatever the log records under a number must be what the
  code asks for under it; otherwise Nondeterminism, naming the first command that differs.
- Inputs that arrive while the execution is paused or stuck are kept back and driven at Resumed or Redriven, in order.
- An action whose attempts were spent has all of them anew, and all of its time, from Redriven on; a clean-up that was
  stuck for it has the time that it had left.
- Outputs that the log already has are not given out again, so a replay of the whole log gives out nothing.
- Time is the time of the event being applied. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias, TypeGuard

import msgspec
from msgspec import Raw, structs

from perdure.core import events as ev
from perdure.core.asking import Asking, Definition
from perdure.core.callbacks import Callback
from perdure.core.commands import Asked, Limits, RestartWith, Undo, command_of
from perdure.core.failures import describe
from perdure.core.loop import new_loop, turns
from perdure.core.places import where
from perdure.core.records import Row
from perdure.errors import (
    ChildFailed,
    InvalidValue,
    LimitReached,
    NeverWakes,
    Nondeterminism,
    Undecodable,
    UsageError,
)

_decode_json = msgspec.json.decode
_encode_json = msgspec.json.encode

Outcome: TypeAlias = ev.Completed | ev.Failed | ev.Cancelled | ev.Restarted


class Replay(Asking):
    """One execution in memory. See the module's rules."""

    __slots__ = (
        "_backlog",
        "_logged_timers",
        "_spent",
        "_stuck_at",
        "callback",
        "correlation",
        "hash",
        "input",
        "outcome",
        "paused",
        "paused_at",
        "stuck",
        "trace",
        "tries",
        "worker",
    )

    def __init__(self, key: str, definition: Definition, limits: Limits | None = None) -> None:
        super().__init__(key, definition, limits)
        self.paused: ev.Paused | None = None
        self.paused_at = 0
        self.stuck: ev.Stuck | None = None
        self.outcome: Outcome | None = None
        self.input = ev.NULL
        self.hash = ""  # of the definition, if it was published
        self.callback: Callback | None = None
        self.correlation = ""
        self.trace = ""  # that it was started with
        self.tries = 0  # of the action that settled last
        self.worker = ""  # that made the last of them
        self._backlog: list[tuple[ev.Event, int]] = []  # inputs that are kept back, with their versions
        self._logged_timers: set[int] = set()
        self._stuck_at = 0
        self._spent: set[int] = set()  # actions without an attempt left

    # Feeding.

    def load(self, rows: Iterable[Row]) -> None:
        """Feed what the log has, from its beginning or from the newest Restarted on."""
        log = [(row, ev.read(row)) for row in rows]
        if len(log) > self.limits.events_per_replay:
            raise LimitReached(
                f"{self.key} has {len(log):,} events to replay, more than {self.limits.events_per_replay:,}:"
                " let the workflow call workflow.restart_with(...) now and then, or raise events_per_replay"
            )
        self.recorded.index(log, self.paused is not None or self.stuck is not None)
        with turns():
            for row, event in log:
                self.feed(event, row.version, row.at)
        self.recorded.fed()

    def feed(self, event: ev.Event, version: int, at: int) -> None:
        """Take one event of the log. Raises when the code no longer fits it; then the replay is of no more use."""
        self.version = version
        if type(event) is ev.ActionSettled and self.paused is None and self.stuck is None and self.outcome is None:
            self._advance(version, at)  # nearly all of them
            self._settle(self.actions, event)
            return
        match event:
            case ev.Started():
                self.began = self.at = at
                self.seed = event.seed or self.key
                self.hash, self.callback, self.correlation = event.hash, event.callback, event.correlation
                self.trace = event.trace
                self._begin(self.definition.begin, event.input)
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
                self.paused, self.paused_at = event, at
            case ev.Resumed():
                self.paused = None
                self._drive_backlog(at)
            case ev.Stuck():
                self._stuck_at = at if self.stuck is None else self._stuck_at
                self.stuck = event
            case ev.Redriven():
                self._renew(at)
                self.stuck = None
                self._drive_backlog(at)
            case ev.Restarted():
                self._restore(event, version, at)
            case ev.Completed() | ev.Failed() | ev.Cancelled():
                self._check_end(event)
                self._end(event)
            case (
                ev.TakenOver()
                | ev.Published()
                | ev.EventRejected()
                | ev.StateChanged()
                | ev.NodeStarted()
                | ev.NodeSettled()
            ):
                pass

    def evict(self) -> None:
        self.loop.evict()

    def _begin(self, begin: Callable[[Any, Raw], Coroutine[Any, Any, Raw]], input: Raw) -> None:
        self._input, self.input = self.version, input
        try:
            main = begin(self, input)
        except InvalidValue as error:
            raise Undecodable(f"{self.key}: the input does not fit the workflow's parameters: {error}") from error
        self._run(self.loop.begin, main)

    def _drive_backlog(self, at: int) -> None:
        while self._backlog and self.paused is None and self.stuck is None:
            self._drive(*self._backlog.pop(0), at)

    def _renew(self, at: int) -> None:
        """It waited for a person until now: neither the actions that it waited for nor a clean-up lose that time."""
        spent = self._spent & self.actions.keys()
        self._spent.clear()
        for ref in spent:
            self.actions[ref].since = at
        if spent and self.cancel is not None and self.cancel.deadline:
            self.cancel = structs.replace(self.cancel, deadline=self.cancel.deadline + at - self._stuck_at)

    def _drive(self, event: ev.Event, version: int, at: int) -> None:
        if self.outcome is not None:
            if getattr(event, "ref", 0) > self.loop.ref:
                raise self._differs(event, f"the code ends with {type(self.outcome).__name__} before it")
            return
        self._advance(version, at)
        match event:
            case ev.ActionSettled():
                self._settle(self.actions, event)
            case ev.ChildSettled() if event.ref in self.lasting:
                self.lasting.discard(event.ref)
                self._turn(self._deliver, _received(event, version))
            case ev.ChildSettled():
                self._settle(self.children, event)
            case ev.TimerFired():
                if event.ref not in self.loop.timers:
                    raise self._differs(event, "the code has no such timer at this point")
                self._logged_timers.discard(event.ref)
                self._run(self.loop.fire, event.ref)
            case ev.EventReceived():
                self._turn(self._deliver, _received(event, version))
            case ev.CancelRequested() if self.cancel is None:  # a second one would only hit the clean-up
                self.cancel, self._cancelled_at, main = event, version, self.loop.main
                assert main is not None
                if not self.undoing:  # what is being undone already is undone to the end
                    self._turn(main.cancel, event.reason or None)
            case _:
                pass

    def _advance(self, version: int, at: int) -> None:
        """This row is the input that is driven now; time does not go back."""
        self._input = version
        self.at = max(self.at, at)
        self.loop.now = max(self.loop.now, (self.at - self.began) / 1e6)

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

    def _rest(self) -> None:
        """After a turn: cancelled timers, what was published, and whether it is over."""
        loop = self.loop
        for ref in loop.unset:
            if ref in self._logged_timers:
                self._logged_timers.discard(ref)
                self._emit_once(ev.TimerCancelled(ref))
        loop.unset.clear()
        if self.changed:
            self.changed = False
            state = _encode_json(self.published)
            self._limit(state, "what it publishes")
            self._emit_counted(ev.Published(Raw(state)))
        if not loop.tasks and loop.finished and self.outcome is None:
            self._end(self._outcome())

    def _settle(self, open: dict[int, Asked], event: ev.ActionSettled | ev.ChildSettled) -> None:
        asked = open.pop(event.ref, None)
        if asked is None:
            if event.ref > self.loop.ref:
                raise self._differs(event, "the code does not ask for it")
            return  # cancelled or settled before: its late result changes nothing
        asked.settled, asked.result = self._input, event.result
        if type(event) is ev.ActionSettled:
            self.tries, self.worker = event.attempts, event.worker
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
        self._run(self.loop.turn, asked.future.set_result, value)

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
                asked.free, asked.put_off = event.free, event.put_off
                if event.spent:
                    asked.spent, asked.free, asked.put_off = event.attempt, 0, 0
                    self._spent.add(event.ref)
                self.fresh.append(event.ref)
            case ev.ActionStarted():
                asked.started, asked.worker = True, event.worker
            case ev.ActionProgressed():
                asked.progress = event.details
            case ev.ActionScheduled():
                asked.apart = True

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
        # Not what it was before: whoever begins here does not know that, and clocks of two workers are not one.
        self.began, self.at = event.began, at
        self.loop.now = (self.at - self.began) / 1e6
        self.draws = event.draws
        self.buffer = list(event.buffered)
        self._patches = dict.fromkeys(event.patches, True)
        self.published = _decode_json(event.published) or {}
        self.cancel, self.outcome = event.cancel, None
        self.actions, self.children, self.waiters, self.orphans = {}, {}, [], {}
        self.lasting = set(event.lasting)
        self.undos = [self._owed(owed) for owed in event.undos]
        self._logged_timers = set()
        self.hash, self.callback, self.correlation = event.hash, event.callback, event.correlation
        self.trace = event.trace
        self.position, self.taking = None, ""
        self._begin(self.definition.resume, event.input)

    def _owed(self, owed: ev.Owed) -> Undo:
        try:
            return Undo(self.definition.undo_of(owed), owed.args, owed.result, owed.version)
        except UsageError as error:
            raise Undecodable(f"{self.key}: what was done cannot be undone: {error}") from error

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
            self.buffer += self.kept_back()
            self._backlog.clear()
            return self.restarted(error.input, error.undos, self.definition.version, self.hash)
        return ev.Failed(describe(error), self.kept)

    def _lasts(self, event: ev.Event) -> TypeGuard[ev.EventReceived | ev.ChildSettled]:
        """Whether an input means something also after a checkpoint."""
        match event:
            case ev.EventReceived():
                return True
            case ev.ChildSettled():
                return event.ref in self.lasting
            case _:
                return False

    def restarted(
        self,
        input: Raw,
        undos: list[ev.Owed],
        version: int,
        hash: str,
        by: str = "",
        acting_as: tuple[str, ...] = (),
    ) -> ev.Restarted:
        """A checkpoint of what is here, for this version of the definition."""
        return ev.Restarted(
            input,
            self.loop.ref,
            self.draws,
            self.began,
            self.definition.name,
            version,
            list(self.buffer),
            [name for name, taken in self._patches.items() if taken],
            Raw(_encode_json(self.published)),
            self.cancel,
            "" if self.seed == self.key else self.seed,
            hash,
            undos,
            by,
            self.callback,
            sorted(self.lasting),
            self.correlation,
            self.trace,
            acting_as,
        )

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.loop.evict()

    # Looking.

    def due_timers(self, now: int) -> tuple[int, int] | None:
        """The next timer that is due, as (due, ref); equal times in the order of their numbers."""
        if not self.loop.timers:
            return None
        first = min(((self.due_of(handle), ref) for ref, handle in self.loop.timers.items()), default=None)
        return first if first is not None and first[0] <= now else None

    def next_due(self, now: int = 0) -> int | None:
        """The earliest time at which something happens by itself; an action that was due by now is under way."""
        dues = [asked.due for asked in self.actions.values() if asked.due > now]
        if self.loop.timers:
            dues += [self.due_of(handle) for handle in self.loop.timers.values()]
        if self.cancel is not None and self.cancel.deadline:
            dues.append(self.cancel.deadline)
        return min(dues) if dues else None

    def kept_back(self) -> list[ev.Received]:
        """What came while it was paused or stuck, and will be given to the code when it goes on."""
        return [_received(event, version) for event, version in self._backlog if self._lasts(event)]

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

    def _differs(self, event: ev.Event, but: str) -> Nondeterminism:
        kind, name, _ = command_of(event)
        ref = getattr(event, "ref", 0)
        return Nondeterminism(
            f"{self.key}: version {self.version} of the log records {kind} {name}".rstrip()
            + f" as command {ref}, but {but}: run the code that this execution began with, or guard the change with"
            " workflow.patched()"
        )


def _received(event: ev.EventReceived | ev.ChildSettled, version: int) -> ev.Received:
    if isinstance(event, ev.ChildSettled):
        name = f"/child:{event.ref}"
        return ev.Received(name, name, Raw(_encode_json(event)), version=version)
    return ev.Received(event.id, event.name, event.payload, event.by, event.roles, version, event.attributes)
