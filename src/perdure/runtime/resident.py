"""An execution that this worker holds: what came in, the rows to write, the attempts under way.

Rules kept here:
- Inputs are folded one at a time, each followed by its turn; their rows share one commit, and one commit is in flight.
- `prepare` only adds to what is not yet written, so a commit that failed cleanly is simply prepared again.
- Nothing with an effect starts before the commit that caused it: `launch` runs after the answer.
- An outcome row is made at the last moment, so mail that arrives while it is being refused still comes before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from perdure.core import events as ev, letters as mail, summary
from perdure.core.commands import Asked
from perdure.core.loop import turns
from perdure.core.records import ACTION, Commit, End, Held, Mail, Park, Row, Start, Status, id_of, key_of, tenant_of
from perdure.core.replay import Replay
from perdure.errors import (
    DefinitionConflict,
    DefinitionNotFound,
    LimitReached,
    NeverWakes,
    Nondeterminism,
    PerdureError,
    Undecodable,
)
from perdure.flows.apart import Apart, args_of, order
from perdure.flows.described import Described
from perdure.flows.workflow import Workflow
from perdure.runtime.attempt import Attempts, Running, key_of_call
from perdure.runtime.metrics import Metrics
from perdure.runtime.migration import checkpoint
from perdure.runtime.published import Ref
from perdure.runtime.settings import Settings

_encode = msgspec.json.encode
_CAUSES: dict[type[PerdureError], str] = {
    Nondeterminism: "nondeterminism",
    NeverWakes: "never-wakes",
    Undecodable: "undecodable",
    LimitReached: "limit",
    DefinitionNotFound: "definition",
    DefinitionConflict: "definition",
}
FAULTS = tuple(_CAUSES)


class House(Protocol):
    """What a resident needs of its worker."""

    me: str
    settings: Settings
    attempts: Attempts
    metrics: Metrics
    draining: bool

    def now(self) -> int: ...
    def use(self, workflow: Workflow[..., Any]) -> None: ...
    def ring(self, resident: Resident) -> None: ...
    def ring_at(self, resident: Resident, due: int) -> None: ...


class Resident:
    def __init__(self, house: House, held: Held, workflow: Workflow[..., Any]) -> None:
        self.house = house
        self.key = held.key
        self.token = held.token
        self.workflow = workflow
        self.queue = held.queue
        self.parent, self.parent_ref = held.parent, held.parent_ref
        self.lane = held.lane
        self.replay: Replay | None = None
        self.history: list[Row] = list(held.rows)
        self.version = held.rows[-1].version
        self.at = held.rows[-1].at
        self.inputs: deque[ev.Event] = deque()
        self.rows: list[Row] = []
        self.running: dict[int, Running] = {}
        self.later: dict[int, int] = {}  # actions whose next attempt is due later
        self.stuck: ev.Stuck | None = None
        self._stuck_row: Row | None = None  # the newest that says so
        self._tries = sum(row.type == _STUCK for row in held.rows)
        self._lapses = held.lapses
        self.lease_until = 0.0
        self.gone = False
        self.flying = False  # a commit of it is under way
        self.landing: asyncio.Future[None] | None = None  # for who waits until it is not
        self.rung = False  # the committer will look at it
        self.recalled = False  # the committer will look at it when its commit has landed
        self.rung_at = 0.0  # by the loop's clock
        self._done: list[str] = []
        self._letters: list[Mail] = []
        self._seen: set[str] = set()
        self._fired: int | None = None
        self._children: list[Start] = []
        self._mail: list[Mail] = []
        self._sent: dict[str, str] = {}  # the queues of those to whom mail goes
        self._settle: Park | End | None = None
        self._progress: dict[int, Raw] = {}
        self._progress_at: dict[int, int] = {}
        self._announced: set[int] = set()
        self._crowded: list[int] = []  # actions for which there is no room here
        self._settling: set[int] = set()  # attempts that are over but not yet fed
        self._shown: Status | None = None  # a change of status that the head does not show yet
        self._alarm = 0  # when the worker will ring anyway
        self._loaded = False
        self._published: bytes | None = None  # the state that the log shows
        self._offspring: set[int] = set()  # children that the log shows as open
        self._apart: dict[int, str] = {}  # actions that run apart, open according to the log, with their queues
        self._parent_queue = ""
        self._offered: dict[tuple[int, str], Described] = {}  # versions that letters ask for
        self._migrated = False  # since the last commit
        for row in held.rows:
            if row.type in _NOTED or row.message_id is not None:
                with suppress(Undecodable):  # loading will say so
                    self._note(ev.read(row))
        if self.parent is not None and held.rows[0].type == _STARTED:
            with suppress(Undecodable):
                self._note(ev.read(held.rows[0]))
        if held.mail:
            self.deliver(held.mail)

    @property
    def about(self) -> dict[str, object]:
        """What a line of the log of this process says about it."""
        return {"execution": self.key, "version": self.version, "worker": self.house.me}

    @property
    def runs(self) -> Ref:
        """The definition that it runs, as it would be found in the store."""
        return Ref(tenant_of(self.key), self.workflow.name, self.workflow.version, self.workflow.hash)

    # From outside.

    def deliver(self, letters: Iterable[Mail]) -> None:
        """Take mail that was not seen before."""
        for letter in letters:
            if letter.id not in self._seen:
                self._seen.add(letter.id)
                self._letters.append(letter)

    def offer(self, versions: Sequence[Described]) -> None:
        """Other versions of its definition, for letters that ask for them."""
        for one in versions:
            self._offered[one.version, one.hash] = one

    def again(self, held: Held, now: int) -> None:
        """Held once more, by the same worker, with the replay still in memory."""
        self.token = held.token
        self.gone = False
        self._lapses = held.lapses
        self._alarm = 0  # an alarm that went off while it was parked rang for nobody
        self._seen.clear()
        assert self.replay is not None
        if held.rows:
            self.version, self.at = held.rows[-1].version, held.rows[-1].at
            self.replay.load(held.rows)
        if self.house.settings.replay_always:
            self.history.extend(held.rows)
        self.deliver(held.mail)

    def settled(self, ref: int, event: ev.Event | None) -> None:
        """An attempt is over."""
        self.running.pop(ref, None)
        self._progress.pop(ref, None)
        if self.gone:
            return
        if isinstance(event, ev.ActionScheduled):
            self._crowded.append(ref)
        elif event is not None:
            self._settling.add(ref)
            self.inputs.append(event)
        elif self.replay is not None and ref in self.replay.actions:
            self.replay.fresh.append(ref)  # nobody asked to cancel it: begin again
        self.house.ring(self)

    def progressed(self, ref: int, details: Raw) -> None:
        """A heartbeat with details: the first goes at once, the rest at most once a second."""
        if self.gone:
            return
        waiting = ref in self._progress
        self._progress[ref] = details
        if not waiting:
            self.house.ring_at(self, max(self.house.now(), self._progress_at.get(ref, 0) + 1_000_000))

    def queue_of(self, key: str) -> str:
        """Where a letter of ours is expected; a wrong guess costs a detour."""
        if key == self.parent:
            return self._parent_queue or self.queue
        ref = key.removeprefix(f"{self.key}.")
        child = self.replay.children.get(int(ref)) if self.replay is not None and ref.isdecimal() else None
        return child.spec.queue if child is not None else self._sent.get(key, self.queue)

    def wants(self, ref: int) -> bool:
        return self.replay is not None and ref in self.replay.actions and not self._ending()

    def settle_within(self, ref: int, event: ev.Event, now: int) -> Commit:
        """The commit of an outcome that is written in a transaction of its own, with the turn that it causes."""
        with turns():
            self._append(event, now)
        self._settle = None
        return Commit(
            key=self.key,
            token=self.token,
            rows=self.rows,
            status=self._shown,
            fired=self._fired,
            done=self._done,
            children=self._children,
            mail=self._mail,
        )

    # Towards a commit.

    def prepare(self, now: int) -> Commit | None:
        """Fold what came in, and say what is to be written; None when there is nothing to write."""
        if not self._loaded:
            self._loaded = True
            self._begin(now)
        if self.inputs:
            self._feed(now)
        while self._letters:
            self._fold(self._letters.pop(0), now)
            self._feed(now)
        replay = self.replay
        if replay is not None and (replay.loop.timers or replay.paused is not None or replay.cancel is not None):
            self._by_itself(now)
        if (replay := self.replay) is not None and (replay.fresh or self._crowded):
            self._announce(now)
        if self._progress:
            self._note_progress(now)
        self._settle = self._decide(now)
        rows = self.rows
        if isinstance(self._settle, End) and self.replay is not None and self.replay.outcome is not None:
            rows = [*rows, ev.row(self.replay.outcome, self.version + 1, max(self.at, now), self.token)]
        if not rows and self._settle is None and not self._done:
            return None
        return Commit(
            key=self.key,
            token=self.token,
            rows=rows,
            settle=self._settle,
            status=self._shown if self._settle is None else None,
            fired=self._fired,
            done=self._done,
            children=self._children,
            mail=self._mail,
        )

    def committed(self) -> None:
        """All of the last `prepare` is durable."""
        if self.house.settings.replay_always:
            self.history.extend(self.rows)
            if self._migrated:  # what was before is of another version
                self.history = _since_restart(self.history)
        self.rows, self._fired, self._shown, self._migrated = [], None, None, False
        if self._done:
            self._done = []
        if self._children:
            self._children = []
        if self._mail:
            self._mail = []
            self._sent.clear()

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
                self._stick(
                    Nondeterminism(
                        f"{self.key} stands elsewhere after a replay: at {', '.join(after.places())} instead of"
                        f" {', '.join(places)}; something in the workflow does not come from the log"
                    ),
                    now,
                )

    @property
    def parked(self) -> Park | None:
        return self._settle if isinstance(self._settle, Park) else None

    @property
    def ended(self) -> End | None:
        return self._settle if isinstance(self._settle, End) else None

    def launch(self, now: int) -> None:
        """Start and stop attempts: what asked for them is durable."""
        replay = self.replay
        if replay is None:
            return
        for ref in replay.stops:
            if (running := self.running.get(ref)) is not None:
                running.cancel()
        replay.stops.clear()
        if self.house.draining or replay.paused is not None:
            return
        fresh, replay.fresh = replay.fresh, []
        if self.later:
            fresh += [ref for ref, due in self.later.items() if due <= now]
        for ref in fresh:
            self.later.pop(ref, None)
            asked = replay.actions.get(ref)
            if asked is None or asked.apart or ref in self.running or ref in self._settling:
                continue
            if asked.due > now:
                self.later[ref] = asked.due
                self.house.ring_at(self, asked.due)
            else:
                self.running[ref] = self.house.attempts.start(self, asked)

    def drop(self) -> None:
        """Forget everything: somebody else goes on with it, or it is over."""
        self.gone = True
        for running in list(self.running.values()):
            running.cancel()
        self.running.clear()
        if self.replay is not None:
            self.replay.evict()

    # Folding.

    def _feed(self, now: int) -> None:
        while self.inputs:
            self._append(self.inputs.popleft(), now)
        self._settling.clear()

    def poison(self, lapses: int, now: int) -> None:
        """It took its workers down too often to be tried again."""
        self._loaded = True
        reason = f"{lapses} workers in a row died or lost it while they held it; look for a crash, then retry it"
        self.become_stuck("lapses", reason, now)

    def _begin(self, now: int) -> None:
        """The first look after a hold: load the log, unless it says that this needs a person first."""
        row = next((row for row in reversed(self.history) if row.type in (_STUCK, _REDRIVEN)), None)
        if row is not None and isinstance(last := ev.read(row), ev.Stuck):
            self.stuck, self._stuck_row = last, row
        else:
            self._load(now)

    def _load(self, now: int) -> None:
        self.replay = Replay(self.key, self.workflow, self.house.settings.limits)
        self.stuck = None
        began = perf_counter()
        try:
            self.replay.load(self.history)
            self._take(now)
        except FAULTS as fault:
            self._stick(fault, now)
        self.house.metrics.replay.observe(perf_counter() - began)
        if not self.house.settings.replay_always:
            self.history = []

    def _append(self, event: ev.Event, now: int, message_id: str | None = None) -> None:
        """One row, and the turn that it causes."""
        replay = self.replay
        if replay is not None and replay.outcome is not None and not isinstance(event, _LATE):
            return  # nobody waits for it any more
        self._write(event, now, message_id)
        if replay is None:
            return
        try:
            replay.feed(event, self.version, self.at)
            self._take(now)
        except FAULTS as fault:
            self._stick(fault, now)

    def _write(self, event: ev.Event, now: int, message_id: str | None = None) -> None:
        if type(event) in _NOTED_TYPES:
            self._note(event)
        elif type(event) in _SHOWN_TYPES:
            self._show(event)
        self.version += 1
        self.at = max(self.at, now)
        self.rows.append(ev.row(event, self.version, self.at, self.token, message_id))

    def _show(self, event: ev.Event) -> None:
        """A change of status, which the head and what runs apart must learn of."""
        match event:
            case ev.Paused():
                self._shown = "paused"
                self._tell_apart("pause", mail.PauseLetter(reason=event.reason, by=event.by))
            case ev.Resumed():
                self._shown = "open"
                self._tell_apart("resume", mail.ResumeLetter(reason=event.reason, by=event.by))
            case _:
                self._shown = "open"

    def _note(self, event: ev.Event) -> None:
        """What must be known of the log also when its code cannot be run."""
        match event:
            case ev.Published():
                self._published = bytes(event.state)
            case ev.StateChanged():
                shown = msgspec.json.decode(self._published or b"{}")
                self._published = _encode({**shown, "state": event.to_state})
            case ev.Restarted():
                self._published = bytes(event.published) if bytes(event.published) != b"{}" else None
            case ev.ChildStarted():
                self._offspring.add(event.ref)
            case ev.ChildSettled():
                self._offspring.discard(event.ref)
            case ev.ActionScheduled():
                self._apart[event.ref] = event.queue
            case ev.ActionSettled() | ev.ActionCancelled():
                self._apart.pop(event.ref, None)
            case ev.Started():
                self._parent_queue = event.parent_queue
            case _:
                pass

    def _take(self, now: int) -> None:
        """Write what the turn gave out."""
        replay = self.replay
        assert replay is not None
        for output in replay.take() if replay.outputs else ():
            if isinstance(output, ev.ActionCancelled) and output.ref in self._apart:
                self._recall([output.ref])
            self._write(output, now)
            if isinstance(output, ev.ChildStarted):
                self._children.append(self._child(output))
        if replay.child_stops:
            self._cancel_children(replay.child_stops)
            replay.child_stops.clear()
        if isinstance(replay.outcome, ev.Restarted):
            self._recall(sorted(self._apart))
            self._write(replay.outcome, now)
            replay.feed(replay.outcome, self.version, self.at)
            self._take(now)

    def _cancel_children(self, refs: Iterable[int]) -> None:
        for ref in refs:
            key = key_of(tenant_of(self.key), f"{id_of(self.key)}.{ref}")
            letter = mail.CancelLetter("its parent no longer waits for it", self.key)
            self._mail.append(Mail(key, "/cancel:parent", mail.seal(letter)))

    # Actions that run apart: executions of their own, children in all but name.

    def _send_apart(self, asked: Asked, queue: str, now: int) -> None:
        """Order the action: whoever serves the queue runs it, and its outcome comes back as mail."""
        action = asked.spec
        self._append(ev.ActionScheduled(asked.ref, action.name, asked.args, queue), now)
        input = order(action, asked.args, key_of_call(self.key, asked.ref, action.name), self.key)
        first = ev.Started(ACTION + action.name, action.version, input, parent=self.key, parent_queue=self.queue)
        self._children.append(summary.begin(self._apart_key(asked.ref), first, queue, self.at, asked.ref))

    def _apart_key(self, ref: int) -> str:
        return f"{self.key}.{ref}"

    def _recall(self, refs: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        for ref in refs:
            letter = mail.CancelLetter("its workflow no longer wants it", self.key, now=True)
            self._mail.append(Mail(self._apart_key(ref), "/cancel:parent", mail.seal(letter)))
            self._sent[self._apart_key(ref)] = self._apart[ref]
            self._apart.pop(ref, None)

    def _tell_apart(self, what: str, letter: mail.Letter) -> None:
        """Pause and resume reach also what runs apart."""
        for ref in sorted(self._apart):
            self._mail.append(Mail(self._apart_key(ref), f"/{what}:{self.version}", mail.seal(letter)))
            self._sent[self._apart_key(ref)] = self._apart[ref]

    def _outcome_letter(self, replay: Replay) -> Mail:
        """What the execution that waits for this one is told of its end."""
        assert self.parent is not None
        ref = self.parent_ref or 0
        status, _, error = summary.ended(replay.outcome)
        result = summary.result_of(replay.outcome)
        if not isinstance(self.workflow, Apart):
            letter = mail.ChildLetter(ref, id_of(self.key), status, result, error)
            return Mail(self.parent, f"/child:{ref}", mail.seal(letter))
        name, args = self.workflow.action.name, args_of(replay.input)
        done = mail.ActionLetter(ref, name, args, result, error, max(replay.tries, 1), replay.began)
        return Mail(self.parent, f"{_OUTCOME}{ref}", mail.seal(done))

    def _fold(self, letter: Mail, now: int) -> None:
        """Turn one letter into the events it stands for. Letters that no longer mean anything are only taken out."""
        self._done.append(letter.id)
        try:
            wish = mail.unseal(letter)
        except Undecodable as error:
            self._write(ev.EventRejected(letter.id, "", str(error)), now, letter.id)
            return
        replay = self.replay
        paused = replay is not None and replay.paused is not None
        match wish:
            case mail.EventLetter():
                event = ev.EventReceived(wish.name, wish.payload, letter.id, wish.by, wish.source, wish.roles)
                self._append(event, now, letter.id)
            case mail.ChildLetter():
                self._append(ev.ChildSettled(wish.ref, wish.id, wish.result, wish.error, wish.status), now, letter.id)
            case mail.ActionLetter():
                self._apart.pop(wish.ref, None)
                if replay is None or wish.ref in replay.actions:
                    settled = ev.ActionSettled(
                        wish.ref, wish.name, wish.args, wish.result, wish.error, wish.attempts, wish.began
                    )
                    self._append(settled, now, letter.id)
            case mail.PauseLetter():
                if not paused and self.stuck is None and not self._ending():
                    self._append(ev.Paused(wish.until, wish.reason, wish.by), now, letter.id)
            case mail.ResumeLetter():
                if paused and wish.at > now:
                    self._append(ev.Paused(wish.at, wish.reason, wish.by), now, letter.id)
                elif paused:
                    self._append(ev.Resumed(wish.reason, wish.by), now, letter.id)
            case mail.CancelLetter():
                if wish.stuck in (0, self._stuck_since):
                    self._cancel(wish, now, letter.id)
            case mail.MigrateLetter():
                self._migrate(wish, now, letter.id)
            case mail.RedriveLetter():
                if self.stuck is not None and not self._ending():
                    self._redrive(wish, now, letter.id)

    def _cancel(self, wish: mail.CancelLetter, now: int, message_id: str) -> None:
        if self._ending():
            return
        replay = self.replay
        if replay is not None and replay.paused is not None:
            self._append(ev.Resumed("cancelled", wish.by), now)
        timeout = wish.timeout or int(self.house.settings.cancel_timeout * 1e6)
        at_once = wish.now or self.stuck is not None  # stuck code cannot clean up
        self._append(ev.CancelRequested(wish.reason, wish.by, now + timeout, at_once), now, message_id)
        if self.replay is None:
            self._cancel_children(sorted(self._offspring))
            self._recall(sorted(self._apart))
            self.replay = Replay(self.key, self.workflow, self.house.settings.limits)
            self.replay.outcome = ev.Cancelled(wish.reason, forced=True, since=self.version - 1)

    def _migrate(self, wish: mail.MigrateLetter, now: int, message_id: str) -> None:
        """Go on with another version from here, or leave everything as it is and say why."""
        replay, new = self.replay, self._offered.get((wish.version, wish.hash))
        if replay is None or new is None:
            why = "it is stuck" if replay is None else f"version {wish.version} is not at hand"
            self._write(ev.EventRejected(message_id, "migrate", why), now, message_id)
            return
        row, problems = checkpoint(replay, new, wish.by, max(self.at, now), self.house.settings.limits)
        if row is None:
            why = "; ".join(map(str, problems))
            self._write(ev.EventRejected(message_id, "migrate", why), now, message_id)
            return
        self._write(row, now, message_id)
        self.workflow = replay.definition = new
        self._migrated = True
        try:
            replay.feed(row, self.version, self.at)
            self._take(now)
        except FAULTS as fault:
            self._stick(fault, now)

    def _redrive(self, wish: mail.RedriveLetter, now: int, message_id: str) -> None:
        """Not in this memory, which does not fit the log: it is parked, due at once, and loaded afresh."""
        self._write(ev.Redriven(wish.reason, wish.by), now, message_id)
        self.stuck = None

    def _stick(self, fault: PerdureError, now: int) -> None:
        """The code does not fit the log: keep everything, run nothing, say why."""
        cause = _CAUSES.get(type(fault), "undecodable")
        self.become_stuck(cause, str(fault), now)

    def become_stuck(self, cause: str, reason: str, now: int) -> None:
        if self.replay is not None:
            self.replay.evict()
            self.replay = None
        self._tries += 1
        self.stuck = ev.Stuck(cause, reason, self.workflow.fingerprint, self._lapses, self._tries)
        self._write(self.stuck, now)
        self._stuck_row = self.rows[-1]

    @property
    def _stuck_since(self) -> int:
        """The version that says so; 0 when it is not stuck."""
        return self._stuck_row.version if self.stuck is not None and self._stuck_row is not None else 0

    def _by_itself(self, now: int) -> None:
        """What happens because it is time: the end of a pause, timers, the end of a clean-up."""
        replay = self.replay
        if replay is None:
            return
        if replay.paused is not None:
            if not replay.paused.until or replay.paused.until > now:
                return
            self._fired = max(self._fired or 0, replay.paused.until)  # the store's clock has the last word
            self._append(ev.Resumed("it is time"), now)
        while self.replay is replay and not self._ending() and (timer := replay.due_timers(now)) is not None:
            due, ref = timer
            self._fired = max(self._fired or 0, due)
            self._append(ev.TimerFired(ref, due), now)
        cancel = replay.cancel
        if cancel is not None and cancel.deadline and cancel.deadline <= now and not self._ending():
            replay.outcome = ev.Cancelled(cancel.reason, forced=True, since=replay.kept)
            replay.evict()

    def _announce(self, now: int) -> None:
        """At-most-once actions: their start is written before they run; one that was started before is unknown."""
        replay = self.replay
        if replay is None or replay.paused is not None or self._ending() or self.house.draining:
            return
        replay.fresh += self._crowded
        for ref in replay.fresh:  # not a copy: to settle one as unknown may ask for the next
            asked = replay.actions.get(ref)
            if asked is None or asked.apart or ref in self.running or self.replay is not replay:
                continue
            how = asked.spec.how
            if ref in self._crowded:
                self._send_apart(asked, how.queue or self.queue, now)
                continue
            elsewhere = how.queue and how.queue not in self.house.settings.queue_names
            if elsewhere or asked.spec.absent:
                self._send_apart(asked, how.queue or self.queue, now)
                continue
            if not how.at_most_once:
                continue
            if not asked.started:
                self._announced.add(ref)
                self._append(ev.ActionStarted(ref, asked.spec.name, asked.args), now)
            elif ref not in self._announced:
                self._append(_unknown(asked), now)
        self._crowded.clear()

    def _note_progress(self, now: int) -> None:
        for ref, details in list(self._progress.items()):
            if now - self._progress_at.get(ref, 0) < 1_000_000:
                continue
            del self._progress[ref]
            if (running := self.running.get(ref)) is not None:
                self._progress_at[ref] = now
                self._write(ev.ActionProgressed(ref, running.asked.attempts + 1, details), now)
                running.asked.progress = details

    # Deciding what to do with the hold.

    def _ending(self) -> bool:
        return self.replay is not None and self.replay.outcome is not None

    def _decide(self, now: int) -> Park | End | None:
        replay = self.replay
        if replay is None:
            if self.running:
                return None  # their results belong into the log all the same
            if self.stuck is None:
                return Park("open", now)
            assert self._stuck_row is not None
            waits = {"stuck": self.stuck, "version": self._stuck_row.version, "since": self._stuck_row.at}
            return Park("stuck", None, self._published, _encode(waits))
        if replay.outcome is not None:
            return self._end(replay)
        status: Status = "open" if replay.paused is None else "paused"
        due = replay.next_due(now) if replay.paused is None else replay.paused.until or None
        busy = bool(self.running) or self._has_ready(replay, now)
        soon = due is not None and due - now <= self.house.settings.linger * 1e6 and not self.house.draining
        if busy or (soon and status == "open"):
            if due is not None:
                self._alarm_at(due, now)
            return None
        if (
            status == "open"
            and self.house.draining
            and any(asked.due <= now and not asked.apart for asked in replay.actions.values())
        ):
            due = now  # for the next worker
        for timer in replay.unlogged_timers():
            self._write(timer, now)
        return Park(status, due, self._published, _encode(summary.waits(replay)), replay.base)

    def _alarm_at(self, due: int, now: int) -> None:
        if not now < self._alarm <= due:
            self._alarm = due
            self.house.ring_at(self, due)

    def _has_ready(self, replay: Replay, now: int) -> bool:
        """Actions that will start as soon as this commit is done."""
        if replay.paused is not None or self.house.draining:
            return False
        for ref in replay.fresh:
            if (asked := replay.actions.get(ref)) is not None and asked.due <= now and not asked.apart:
                return True
        return any(due <= now for due in self.later.values())

    def _end(self, replay: Replay) -> End:
        status, result, _ = summary.ended(replay.outcome)
        if self._apart:
            self._recall(sorted(self._apart))
        if self.parent is not None and not any(letter.key == self.parent for letter in self._mail):
            self._mail.append(self._outcome_letter(replay))
        return End(status, result, self._published, replay.base)

    def _child(self, started: ev.ChildStarted) -> Start:
        assert self.replay is not None
        asked = self.replay.children.get(started.ref)
        queue = started.queue or self.queue
        if asked is not None and not started.hash:
            queue = started.queue or asked.spec.queue
            self.house.use(asked.spec)
        first = ev.Started(
            started.workflow,
            started.version,
            started.input,
            parent=self.key,
            parent_queue=self.queue,
            hash=started.hash,
        )
        return summary.begin(key_of(tenant_of(self.key), started.id), first, queue, self.at, started.ref)


#: What is recorded also when the code has come to its end.
_LATE = (ev.EventReceived, ev.CancelRequested, ev.ChildSettled)
_OUTCOME = "/action:"  # how the id of the outcome of an action that ran apart begins
_NOTED_TYPES = frozenset(
    {
        ev.Published,
        ev.StateChanged,
        ev.Restarted,
        ev.ChildStarted,
        ev.ChildSettled,
        ev.ActionScheduled,
        ev.ActionCancelled,
    }
)
_SHOWN_TYPES = frozenset({ev.Paused, ev.Resumed, ev.Redriven})
_NOTED = frozenset(ev.NUMBERS[kind] for kind in _NOTED_TYPES)
_STUCK, _REDRIVEN = ev.NUMBERS[ev.Stuck], ev.NUMBERS[ev.Redriven]
_STARTED, _RESTARTED = ev.NUMBERS[ev.Started], ev.NUMBERS[ev.Restarted]


def _since_restart(rows: list[Row]) -> list[Row]:
    places = [place for place, row in enumerate(rows) if row.type % 1000 == _RESTARTED]
    return rows[places[-1] :] if places else rows


def _unknown(asked: Asked) -> ev.Event:
    error = ev.Error(
        "Unknown",
        f"{asked.spec.name} was started and may have taken effect, but its worker died before it could say so;"
        " at_most_once forbids a second try",
    )
    return ev.ActionSettled(asked.ref, asked.spec.name, asked.args, ev.NULL, error, 1)
