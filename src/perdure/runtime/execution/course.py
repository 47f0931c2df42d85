"""The course of an execution: its log as far as it is known here, its replay, and the rows to write.

Rules kept here:
- Inputs are folded one at a time, each followed by its turn: `append` writes a row and runs the code until it rests.
- What a turn gives out is written behind what caused it, in the same draft.
- When the code does not fit the log nothing is lost and nothing runs: it is stuck, with the reason in the log. So it is
  when an action whose attempts are spent wants a person to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

import msgspec

from perdure.core import events as ev, letters as mail, summary
from perdure.core.records import End, Held, Park, Row, Status
from perdure.core.replay import Replay
from perdure.core.tracing import Trace
from perdure.errors import (
    DefinitionConflict,
    DefinitionNotFound,
    LimitReached,
    NeverWakes,
    Nondeterminism,
    PerdureError,
    Undecodable,
)
from perdure.flows.listening import Listen
from perdure.flows.workflow import Workflow
from perdure.runtime.attempts import verdict
from perdure.runtime.execution.draft import Draft
from perdure.runtime.execution.kin import Kin
from perdure.runtime.execution.notes import NOTED_TYPES, Notes
from perdure.runtime.settings import Settings
from perdure.runtime.telemetry.metrics import Metrics

_encode = msgspec.json.encode
CAUSES: dict[type[PerdureError], str] = {
    Nondeterminism: "nondeterminism",
    NeverWakes: "never-wakes",
    Undecodable: "undecodable",
    LimitReached: "limit",
    DefinitionNotFound: "definition",
    DefinitionConflict: "definition",
}
FAULTS = tuple(CAUSES)
#: Why an execution is stuck whose code does fit: an action of it has no attempts left.
ATTEMPTS = "attempts"
#: Why an execution is stuck of which the store does not take what it would write.
REFUSED = "refused"
#: What is recorded also when the code has come to its end.
_LATE = (ev.EventReceived, ev.CancelRequested, ev.ChildSettled)
_SHOWN_TYPES = frozenset({ev.Paused, ev.Resumed, ev.Redriven})
_LOST = "restore the store from a backup, or purge the execution"
_FIRST = frozenset({ev.NUMBERS[ev.Started], ev.NUMBERS[ev.Restarted]})
_STUCK, _REDRIVEN, _RESTARTED = ev.NUMBERS[ev.Stuck], ev.NUMBERS[ev.Redriven], ev.NUMBERS[ev.Restarted]


class Ground(Protocol):
    """What a course needs of its worker."""

    @property
    def me(self) -> str: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def metrics(self) -> Metrics: ...
    def use(self, workflow: Workflow[..., Any]) -> None: ...


class Course:
    # Thousands of these are in memory, and with so many attributes a dictionary for each is large and slow.
    __slots__ = (
        "_ground",
        "_tries",
        "at",
        "draft",
        "history",
        "key",
        "kin",
        "lapses",
        "migrated",
        "notes",
        "queue",
        "replay",
        "stuck",
        "stuck_row",
        "token",
        "version",
        "workflow",
    )

    def __init__(self, ground: Ground, held: Held, workflow: Workflow[..., Any]) -> None:
        self._ground = ground
        self.key = held.key
        self.token = held.token
        self.workflow = workflow
        self.queue = held.queue
        self.replay: Replay | None = None
        self.history: list[Row] = list(held.rows)
        # A log that was lost leaves its head behind; loading will say so.
        self.version = held.rows[-1].version if held.rows else 0
        self.at = max((row.at for row in held.rows), default=0)  # whoever wrote the last may have had a slower clock
        self.draft = Draft()
        self.notes = Notes(held)
        self.kin = Kin(held, self.notes, self.draft)
        self.stuck: ev.Stuck | None = None
        self.stuck_row: Row | None = None  # the newest that says so
        self.lapses = held.lapses
        self.migrated = False  # since the last commit
        self._tries = sum(row.type == _STUCK for row in held.rows)

    # From the log into memory.

    def begin(self, now: int) -> None:
        """The first look after a hold: load the log, unless it says that this needs a person first."""
        row = next((row for row in reversed(self.history) if row.type in (_STUCK, _REDRIVEN)), None)
        if row is not None and isinstance(last := ev.read(row), ev.Stuck):
            self.stuck, self.stuck_row = last, row
        else:
            self._load(now)

    def _load(self, now: int) -> None:
        self.replay = Replay(self.key, self.workflow, self._ground.settings.limits)
        self.stuck = None
        began = perf_counter()
        try:
            _check_whole(self.key, self.history)
            self.replay.load(self.history)
            self.take(now)
        except FAULTS as fault:
            self.stick(fault, now)
        self._ground.metrics.replay.observe(perf_counter() - began)
        if not self._ground.settings.replay_always:
            self.history = []

    def relive(self, now: int) -> None:
        """Throw the replay away and make it again from the log: what differs then would differ after a crash."""
        before = self.replay
        if before is None or before.outcome is not None:
            return
        here = (sorted(before.actions), sorted(before.children), sorted(before.loop.timers), before.loop.ref)
        places = before.places()
        self._load(now)
        after = self.replay
        before.evict()
        if after is not None:
            there = (sorted(after.actions), sorted(after.children), sorted(after.loop.timers), after.loop.ref)
            if here != there:
                self.stick(
                    Nondeterminism(
                        f"{self.key} stands elsewhere after a replay: at {', '.join(after.places())} instead of"
                        f" {', '.join(places)}; something in the workflow does not come from the log"
                    ),
                    now,
                )

    def committed(self) -> None:
        """All of the draft is durable."""
        if self._ground.settings.replay_always:
            self.history.extend(self.draft.rows)
            if self.migrated:  # what was before is of another version
                self.history = _since_restart(self.history)
        self.migrated = False
        self.draft.written()

    @property
    def trace(self) -> Trace:
        return self.kin.trace

    # From what came in to rows.

    @property
    def ending(self) -> bool:
        """Whether the code has come to its end."""
        return self.replay is not None and self.replay.outcome is not None

    def append(self, event: ev.Event, now: int, message_id: str | None = None) -> None:
        """One row, and the turn that it causes."""
        replay = self.replay
        if replay is not None and replay.outcome is not None and not isinstance(event, _LATE):
            return  # nobody waits for it any more
        self.write(event, now, message_id)
        if replay is None:
            return
        try:
            replay.feed(event, self.version, self.at)
            self.take(now)
        except FAULTS as fault:
            self.stick(fault, now)
            return
        if isinstance(event, ev.ActionAttempted) and event.spent and event.ref in replay.actions:
            self.become_stuck(ATTEMPTS, verdict.spent(event), now, f"/actions/{event.ref}/{event.name}")

    def write(self, event: ev.Event, now: int, message_id: str | None = None) -> None:
        """One row, and no turn."""
        if type(event) in NOTED_TYPES:
            self.notes.note(event)
        elif type(event) in _SHOWN_TYPES:
            self._show(event)
        self.version += 1
        self.at = max(self.at, now)
        self.draft.rows.append(ev.row(event, self.version, self.at, self.token, message_id, self._ground.me))

    def _show(self, event: ev.Event) -> None:
        """A change of status, which the head and what runs apart must learn of."""
        match event:
            case ev.Paused():
                self.draft.shown = "paused"
                letter = mail.PauseLetter(reason=event.reason, by=event.by or self.key, acting_as=event.acting_as)
                self.kin.tell_apart("pause", self.version, letter)
            case ev.Resumed():
                self.draft.shown = "open"
                # When it was time to resume nobody asked for it but the execution itself.
                told = mail.ResumeLetter(reason=event.reason, by=event.by or self.key, acting_as=event.acting_as)
                self.kin.tell_apart("resume", self.version, told)
            case _:
                self.draft.shown = "open"

    def take(self, now: int) -> None:
        """Write what the turn gave out."""
        replay = self.replay
        assert replay is not None
        for output in replay.take() if replay.outputs else ():
            if isinstance(output, ev.ActionCancelled) and output.ref in self.notes.apart:
                self.kin.recall([output.ref])
            self.write(output, now)
            if isinstance(output, ev.ChildStarted):
                self._begin_child(replay, output)
        if replay.child_stops:
            self.kin.cancel_children(replay.child_stops)
            replay.child_stops.clear()
        if isinstance(replay.outcome, ev.Restarted):
            self.kin.recall_all()
            self.write(replay.outcome, now)
            replay.feed(replay.outcome, self.version, self.at)
            self.take(now)

    def _begin_child(self, replay: Replay, started: ev.ChildStarted) -> None:
        asked = replay.children.get(started.ref)
        queue = started.queue or self.queue
        if asked is not None and not started.hash and isinstance(asked.spec, Workflow):
            queue = started.queue or asked.spec.queue
            self._ground.use(asked.spec)
        listens: Sequence[Listen] = getattr(asked.spec, "listens", ()) if asked is not None else ()
        self.kin.begin_child(started, queue, self.at, listens)

    def by_itself(self, now: int) -> None:
        """What happens because it is time: the end of a pause, timers, the end of a clean-up."""
        replay, draft = self.replay, self.draft
        if replay is None:
            return
        if replay.paused is not None:
            if not replay.paused.until or replay.paused.until > now:
                return
            draft.fired = max(draft.fired or 0, replay.paused.until)  # the store's clock has the last word
            self.append(ev.Resumed("it is time"), now)
        while self.replay is replay and not self.ending and (timer := replay.due_timers(now)) is not None:
            due, ref = timer
            draft.fired = max(draft.fired or 0, due)
            self.append(ev.TimerFired(ref, due), now)
        cancel = replay.cancel
        if cancel is not None and cancel.deadline and cancel.deadline <= now and not self.ending:
            replay.outcome = ev.Cancelled(cancel.reason, forced=True, since=replay.kept)
            replay.evict()

    # What becomes of the hold.

    def park(self, replay: Replay, status: Status, due: int | None) -> Park:
        return Park(status, due, self.notes.published, _encode(summary.rests(replay, self.version)), replay.base)

    def park_stuck(self, now: int) -> Park:
        """Without a replay: it waits for a person, or is to be loaded afresh."""
        if self.stuck is None:
            return Park("open", now)
        assert self.stuck_row is not None
        waits = {"stuck": self.stuck, "version": self.stuck_row.version, "since": self.stuck_row.at}
        return Park("stuck", None, self._published, _encode(waits))

    def end(self, replay: Replay) -> End:
        status, result, _ = summary.ended(replay.outcome)
        if isinstance(replay.outcome, ev.Cancelled) and replay.outcome.forced:
            # Its code could not let go of its children.
            self.kin.cancel_children(sorted(self.notes.offspring))
            self.notes.offspring.clear()
        self.kin.recall_all()
        self.kin.tell_parent(replay, self.workflow)
        return End(status, result, self._published, replay.base)

    @property
    def _published(self) -> bytes | None:
        """What to show; when the store has refused something, it may be this, and what it shows stays."""
        return None if self.stuck is not None and self.stuck.cause == REFUSED else self.notes.published

    def rows_with(self, settle: Park | End | None, now: int) -> list[Row]:
        """What to write; the outcome is made at the last moment, for mail may still come before it."""
        rows = self.draft.rows
        if isinstance(settle, End) and self.replay is not None and self.replay.outcome is not None:
            at = max(self.at, now)
            rows = [*rows, ev.row(self.replay.outcome, self.version + 1, at, self.token, worker=self._ground.me)]
        return rows

    # When it cannot go on.

    def stick(self, fault: PerdureError, now: int) -> None:
        """The code does not fit the log: keep everything, run nothing, say why."""
        cause = CAUSES.get(type(fault), "undecodable")
        self.become_stuck(cause, str(fault), now)

    def become_stuck(self, cause: str, reason: str, now: int, place: str = "") -> None:
        if self.replay is not None:
            self.replay.evict()
            self.replay = None
        self._tries += 1
        # Other code of the workflow is no reason to try an action again whose attempts are spent.
        code = "" if cause == ATTEMPTS else self.workflow.fingerprint
        self.stuck = ev.Stuck(cause, reason, code, self.lapses, self._tries, place)
        self.write(self.stuck, now)
        self.stuck_row = self.draft.rows[-1]

    def take_back(self, reason: str, now: int) -> None:
        """Nothing of the draft will ever be written: it is stuck where its log ends, whatever was in the draft.

        What else is in memory is of no use any more, for it follows from what was not written.
        """
        if self.draft.rows:
            self.version = self.draft.rows[0].version - 1
        self.draft.written()
        self.become_stuck(REFUSED, reason, now)
        self.draft.settle = self.park_stuck(now)

    @property
    def stuck_since(self) -> int:
        """The version that says so; 0 when it is not stuck."""
        return self.stuck_row.version if self.stuck is not None and self.stuck_row is not None else 0


def _check_whole(key: str, rows: Sequence[Row]) -> None:
    """What was lost must not be done again, as if the execution were a new one."""
    if not rows or rows[0].type % 1000 not in _FIRST:
        begins = f"begins with version {rows[0].version}, which is no beginning" if rows else "is gone"
        raise Undecodable(f"the log of {key} {begins}: {_LOST}")
    if rows[-1].version - rows[0].version + 1 != len(rows):
        raise Undecodable(
            f"the log of {key} has only {len(rows)} of the rows from {rows[0].version} to {rows[-1].version}: {_LOST}"
        )


def _since_restart(rows: list[Row]) -> list[Row]:
    places = [place for place, row in enumerate(rows) if row.type % 1000 == _RESTARTED]
    return rows[places[-1] :] if places else rows
