"""An external task: the execution of an action that runs apart, held for a worker that is no process of ours.

Rules kept here:
- When a task is given out, that is written first: whoever takes it over knows that it may have been begun.
- A task whose lease ended was not done in time if it had a limit of time, and else its worker was lost. The former is
  a failure like any other; the latter is noted as an attempt that the retry policy does not count.
- Everything else follows from the log as it does for an action that runs here.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, structs

from perdure.core import events as ev
from perdure.core.commands import Asked
from perdure.core.durations import show
from perdure.core.failures import Kind, Recorded, kind_of_class
from perdure.core.records import Commit, Held, Park, Status
from perdure.errors import Contention, External, InvalidValue, Permanent, Transient
from perdure.flows.action import Action
from perdure.flows.apart import Apart
from perdure.runtime.attempts import verdict
from perdure.runtime.execution.course import Course, Ground
from perdure.runtime.execution.folding import Mailbox

_STARTED, _PROGRESSED = ev.NUMBERS[ev.ActionStarted], ev.NUMBERS[ev.ActionProgressed]
_KINDS = (Transient, Permanent, Contention, External)
#: Processes know the store's time to within so many microseconds: who was lost so near to the limit is too late.
_NEARLY = 1_000_000
#: Details of heartbeats are written no more often than this.
_SECOND = 1_000_000


class Told(Recorded):
    """A failure as an external worker tells it: by the name of a class, which the action may know."""

    retry_after = 0.0

    @classmethod
    def of(cls, asked: Asked, error: ev.Error, retry: bool, after: float) -> Told:
        how = asked.spec.how
        kinds: dict[str, Kind] = {kind.__name__: kind_of_class(kind) for kind in _KINDS}
        kinds |= {kind.__name__: kind_of_class(meant) for kind, meant in how.errors.items()}
        kinds |= {kind.__name__: "permanent" for kind in how.retry.fatal}
        kind = kinds.get(error.type, "external" if after else "transient") if retry else "permanent"
        told = cls(structs.replace(error, attempts=asked.attempts + 1, kind=kind))
        told.retry_after = after
        return told


class Task(Course):
    __slots__ = ("_lapses", "_progress_at", "began", "mailbox")

    def __init__(self, ground: Ground, held: Held, action: Action[..., Any]) -> None:
        super().__init__(ground, held, Apart(action))
        self.mailbox = Mailbox(ground.settings)
        self.mailbox.deliver(held.mail)
        self.began = max((row.at for row in held.rows if row.type % 1000 == _STARTED), default=0)
        self._progress_at = max((row.at for row in held.rows if row.type % 1000 == _PROGRESSED), default=0)
        self._lapses = held.lapses if held.status != "stuck" else 0

    @property
    def open(self) -> Asked | None:
        """The call, unless it is over."""
        replay = self.replay
        return None if replay is None or replay.outcome is not None else next(iter(replay.actions.values()), None)

    def wake(self, now: int) -> None:
        """Load the log and fold the mail."""
        self.begin(now)
        self.fold(now)

    def fold(self, now: int) -> None:
        while self.mailbox.letters:
            self.mailbox.fold_next(self, now)
        self.by_itself(now)

    def give_out(self, worker: str, now: int) -> Asked | None:
        """The call, if it is to be done now; that this worker does it is then part of what is to be written."""
        if self._lapses > self._ground.settings.lapses:
            reason = f"{self._lapses} workers in a row were lost while they did it; look for a crash, then retry it"
            self.become_stuck("lapses", reason, now)
        asked = self._ready()
        if asked is not None and asked.started:
            self._lapsed(asked, now)
            asked = self._ready()
        if asked is None or asked.due > now:
            return None
        if verdict.limit(asked, now) == 0:
            self.failed(asked, TimeoutError(f"{asked.spec.name} was not begun before its deadline"), now)
            return None
        try:
            asked.spec.signature.decode(asked.args)
        except InvalidValue as error:  # as where the function runs here: it is not called with what does not fit
            self.failed(asked, error, now)
            return None
        self.append(ev.ActionStarted(asked.ref, asked.spec.name, asked.args, worker), now)
        self.began = self.at
        return asked

    def _ready(self) -> Asked | None:
        paused = self.replay is not None and self.replay.paused is not None
        return None if paused else self.open

    def _lapsed(self, asked: Asked, now: int) -> None:
        """It was given out before, and whoever had it was not heard of again."""
        if self.overdue(asked, now):
            return
        name, number = asked.spec.name, asked.attempts + 1
        error = ev.Error("WorkerLost", f"the external worker of {name} gave no sign of life", attempts=number)
        lost = ev.ActionAttempted(
            asked.ref, name, asked.args, number, error, now, self.began, asked.free + 1, worker=asked.worker
        )
        self.append(lost, now)

    def overdue(self, asked: Asked, now: int) -> bool:
        """Settle an attempt whose lease is over as what it declares itself to be then, if it does."""
        name, how = asked.spec.name, asked.spec.how
        limit = verdict.limit(asked, self.began)
        if how.at_most_once:
            self.append(verdict.unknown(asked), now)
        elif limit is not None and self.began + limit <= now + _NEARLY:
            self.failed(asked, TimeoutError(f"{name} took longer than {show(limit)}"), now)
        elif how.heartbeat is not None:
            self.failed(asked, TimeoutError(f"{name} gave no heartbeat for {show(how.heartbeat)}"), now)
        else:
            return False
        return True

    # What its worker says.

    def succeeded(self, asked: Asked, result: Any, now: int) -> ev.Event:
        """Raises if the result cannot be one; then nothing has happened."""
        data = verdict.storable(asked.spec, result, self._ground.settings.payload_bytes)
        event = verdict.succeeded(asked, data, self.began, asked.worker)
        self.append(event, now)
        return event

    def failed(self, asked: Asked, error: BaseException, now: int) -> ev.Event:
        event = verdict.failed(asked, error, asked.spec.call_key, self.began, now, asked.worker)
        self.append(event, now)
        return event

    def progressed(self, asked: Asked, details: Raw, now: int) -> None:
        if now - self._progress_at >= _SECOND:
            self._progress_at = now
            self.write(ev.ActionProgressed(asked.ref, asked.attempts + 1, details), now)

    def limit(self, asked: Asked) -> int | None:
        """How long the attempt that was given out may take."""
        return verdict.limit(asked, self.began)

    def limited(self, asked: Asked) -> bool:
        """Whether silence means something else than that the worker was lost."""
        how = asked.spec.how
        return how.at_most_once or how.heartbeat is not None or self.limit(asked) is not None

    def lease(self, asked: Asked, wanted: int, now: int) -> int:
        """How long the hold may last: no longer than the attempt, and than a silence."""
        limit = self.limit(asked)
        left = wanted if limit is None else min(wanted, self.began + limit - now)
        silence: int | None = asked.spec.how.heartbeat
        return max(left if silence is None else min(left, silence), 1)

    # Towards a commit.

    def keep(self) -> Commit | None:
        """What is to be written while the hold stands, if anything is."""
        self.draft.settle = None
        return self.draft.commit(self.key, self.token, self.draft.rows) if self.draft.rows or self.draft.done else None

    def part(self, now: int) -> Commit:
        """What is to be written when the hold is given back."""
        replay = self.replay
        if replay is None:
            self.draft.settle = self.park_stuck(now)
        elif replay.outcome is not None:
            self.draft.settle = self.end(replay)
        else:
            self.draft.settle = self._rest(now)
        return self.draft.commit(self.key, self.token, self.rows_with(self.draft.settle, now))

    def _rest(self, now: int) -> Park:
        assert self.replay is not None
        paused, asked = self.replay.paused, self.open
        status: Status = "open" if paused is None else "paused"
        due = self.replay.next_due(now) if paused is None else paused.until or None
        if paused is None and asked is not None and asked.due <= now:
            due = now  # for whoever asks next
        return self.park(self.replay, status, due)

    def drop(self) -> None:
        if self.replay is not None:
            self.replay.evict()
