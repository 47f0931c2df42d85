"""An execution that this worker holds: what came in, the attempts under way, and what becomes of the hold.

What its log says and what its code does with that is the `course`; letters are folded by the `mailbox`. Rules kept
here:
- All that came in is folded into one draft, hence one commit, and one commit is in flight.
- `prepare` only adds to what is not yet written, so a commit that failed cleanly is simply prepared again.
- Nothing with an effect starts before the commit that caused it: `launch` runs after the answer.
- An outcome row is made at the last moment, so mail that arrives while it is being refused still comes before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from msgspec import Raw

from perdure.core import events as ev
from perdure.core.commands import Asked
from perdure.core.loop import turns
from perdure.core.records import Commit, End, Held, Park, Status, external_queue, tenant_of
from perdure.core.replay import Replay
from perdure.flows.apart import Apart
from perdure.flows.workflow import Workflow
from perdure.runtime.attempts import verdict
from perdure.runtime.attempts.attempt import Attempts, Running
from perdure.runtime.definitions.published import Ref
from perdure.runtime.execution.course import Course, Ground
from perdure.runtime.execution.folding import Mailbox


class House(Ground, Protocol):
    """What a resident needs of its worker."""

    attempts: Attempts
    draining: bool

    def now(self) -> int: ...
    def ring(self, resident: Resident) -> None: ...
    def ring_at(self, resident: Resident, due: int) -> None: ...
    def give_back(self, resident: Resident) -> bool: ...


class Resident(Course):
    __slots__ = (
        "_announced",
        "_crowded",
        "_loaded",
        "_progress",
        "_progress_at",
        "_settling",
        "alarm",
        "flying",
        "gone",
        "house",
        "inputs",
        "landing",
        "lane",
        "later",
        "lease_until",
        "mailbox",
        "overdue",
        "overfull",
        "recalled",
        "refusals",
        "rung",
        "rung_at",
        "running",
    )

    def __init__(self, house: House, held: Held, workflow: Workflow[..., Any]) -> None:
        super().__init__(house, held, workflow)
        self.house = house
        self.lane = held.lane
        self.mailbox = Mailbox(house.settings)
        self.overdue = False  # it is due, and in the store held by nobody: the answer to its park is on its way
        self.overfull = False  # more mail waits than one commit takes
        self.inputs: deque[ev.Event] = deque()
        self.running: dict[int, Running] = {}
        self.later: dict[int, int] = {}  # actions whose next attempt is due later
        self.lease_until = 0.0
        self.gone = False
        self.flying = False  # a commit of it is under way
        self.landing: asyncio.Future[None] | None = None  # for who waits until it is not
        self.rung = False  # the committer will look at it
        self.recalled = False  # the committer will look at it when its commit has landed
        self.refusals = 0  # how often the store did not take what it would write; from the first on it only gets stuck
        self.rung_at = 0.0  # by the loop's clock
        self.alarm = 0  # when the worker will ring anyway
        self._loaded = False
        self._progress: dict[int, Raw] = {}
        self._progress_at: dict[int, int] = {}
        self._announced: set[int] = set()
        self._crowded: list[int] = []  # actions for which there is no room here
        self._settling: set[int] = set()  # attempts that are over but not yet fed
        if held.mail:
            self.mailbox.deliver(held.mail)

    @property
    def about(self) -> dict[str, object]:
        """What a line of the log of this process says about it."""
        return {"execution": self.key, "version": self.version, "worker": self.house.me, "trace": self.trace.id}

    @property
    def runs(self) -> Ref:
        """The definition that it runs, as it would be found in the store."""
        return Ref(tenant_of(self.key), self.workflow.name, self.workflow.version, self.workflow.hash)

    @property
    def at_rest(self) -> bool:
        """Whether it runs nothing, has nothing to write, and nothing that came in waits to be folded."""
        under_way = self.running or self.inputs or self.mailbox.letters or self._progress
        return not (self.flying or under_way or self.draft.holds_something)

    @property
    def counts(self) -> bool:
        """Whether it counts for the quota of its tenant: nobody's child, and not of the engine's own."""
        return not self.kin.is_child and ":" not in self.workflow.name

    # From outside.

    def again(self, held: Held, now: int) -> None:
        """Held once more, by the same worker, with the replay still in memory."""
        self.token = held.token
        self.gone = False
        self.lapses = held.lapses
        self.overdue = False
        self.alarm = 0  # an alarm that went off while it was parked rang for nobody
        self.mailbox.held_again()
        assert self.replay is not None
        if held.rows:
            self.version, self.at = held.rows[-1].version, max(self.at, *(row.at for row in held.rows))
            self.replay.load(held.rows)
        if self.house.settings.replay_always:
            self.history.extend(held.rows)
        self.mailbox.deliver(held.mail)

    def poison(self, lapses: int, now: int) -> None:
        """It took its workers down too often to be tried again."""
        self._loaded = True
        reason = f"{lapses} workers in a row died or lost it while they held it; look for a crash, then retry it"
        self.become_stuck("lapses", reason, now)

    def give_up(self, reason: str, now: int) -> None:
        """The store will never take what this would write: it is stuck, and its next commit says nothing else."""
        self.refusals = 1
        self.take_back(reason, now)

    def settled(self, ref: int, event: ev.Event | None) -> None:
        """An attempt is over."""
        running = self.running.pop(ref, None)
        self._progress.pop(ref, None)
        if self.gone:
            return
        if isinstance(event, ev.ActionScheduled):
            if not isinstance(self.workflow, Apart):
                self._crowded.append(ref)
            elif self.house.give_back(self):
                return
            elif self.replay is not None and ref in self.replay.actions:
                self.replay.fresh.append(ref)  # into the line again
        elif event is not None:
            self._settling.add(ref)
            if isinstance(event, ev.ActionAttempted) and running is not None and (details := running.details):
                if details != running.asked.progress:  # the next attempt goes on from the last heartbeat of this one
                    self.inputs.append(ev.ActionProgressed(ref, event.attempt, details))
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

    def wants(self, ref: int) -> bool:
        return self.replay is not None and ref in self.replay.actions and not self.ending

    def settle_within(self, ref: int, event: ev.Event, now: int) -> Commit:
        """The commit of an outcome that is written in a transaction of its own, with the turn that it causes."""
        with turns():
            self.append(event, now)
        self.draft.settle = None
        return self.draft.commit(self.key, self.token, self.draft.rows)

    # Towards a commit.

    def prepare(self, now: int) -> Commit | None:
        """Fold what came in, and say what is to be written; None when there is nothing to write."""
        if self.refusals:
            return self.draft.commit(self.key, self.token, self.draft.rows)
        if not self._loaded:
            self._loaded = True
            self.begin(now)
        if self.inputs:
            self._feed(now)
        while self.mailbox.letters:
            self.mailbox.fold_next(self, now)
            self._feed(now)
        replay = self.replay
        if replay is not None and (replay.loop.timers or replay.paused is not None or replay.cancel is not None):
            self.by_itself(now)
        if (replay := self.replay) is not None and (replay.fresh or self._crowded):
            self._announce(now)
        if self._progress:
            self._note_progress(now)
        draft = self.draft
        overfull, self.overfull = self.overfull, False
        if overfull and draft.done:
            return self._without_end()
        draft.settle = settle = self._decide(now)
        rows = self.rows_with(settle, now)
        if not rows and settle is None and not draft.done:
            return None
        commit = draft.commit(self.key, self.token, rows)
        if self.notes.callback is not None and isinstance(settle, End):
            told = self.kin.callback(
                self.workflow.name, settle, rows[-1].version if rows else self.version, max(self.at, now)
            )
            commit.children = [*commit.children, *told]
        return commit

    def _without_end(self) -> Commit:
        """What is folded is written first, and its end comes after the rest of its mail: nobody is told of it yet."""
        self.draft.settle = None
        commit = self.draft.commit(self.key, self.token, self.draft.rows)
        commit.mail = self.kin.without_outcome(commit.mail)
        return commit

    @property
    def parked(self) -> Park | None:
        return settle if isinstance(settle := self.draft.settle, Park) else None

    @property
    def ended(self) -> End | None:
        return settle if isinstance(settle := self.draft.settle, End) else None

    def launch(self, now: int) -> None:
        """Start and stop attempts: what asked for them is durable."""
        replay = self.replay
        if replay is None:
            self._wind_down()
            return
        for ref in replay.stops:
            if (running := self.running.get(ref)) is not None:
                running.cancel()
        replay.stops.clear()
        if replay.paused is not None:
            self._call_off()
        if self.house.draining or replay.paused is not None or self.ending:
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

    def _wind_down(self) -> None:
        """It is stuck: what runs may end. If it is to clean up, that waits only for what may have to be undone."""
        self._call_off()
        if self.stuck is None:
            for running in list(self.running.values()):
                if running.action.compensation is None:
                    running.cancel()

    def _call_off(self) -> None:
        """Paused or stuck: what has not begun does not begin. Of one that was announced the log says that it has."""
        for running in list(self.running.values()):
            if not running.asked.started:
                running.call_off()

    def drop(self) -> None:
        """Forget everything: somebody else goes on with it, or it is over."""
        self.gone = True
        for running in list(self.running.values()):
            running.cancel()
        self.running.clear()
        if self.replay is not None:
            self.replay.evict()

    def _feed(self, now: int) -> None:
        while self.inputs:
            self.append(self.inputs.popleft(), now)
        self._settling.clear()

    # Attempts.

    def _announce(self, now: int) -> None:
        """At-most-once actions: their start is written before they run; one that was started before is unknown."""
        replay = self.replay
        if replay is None or replay.paused is not None or self.ending or self.house.draining:
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
            if how.external:
                self._send_apart(asked, external_queue(tenant_of(self.key), how.queue), now)
                continue
            elsewhere = how.queue and how.queue not in self.house.settings.queue_names
            if elsewhere or asked.spec.absent:
                self._send_apart(asked, how.queue or self.queue, now)
                continue
            if not how.at_most_once:
                continue
            if not asked.started:
                self._announced.add(ref)
                self.append(ev.ActionStarted(ref, asked.spec.name, asked.args, self.house.me), now)
            elif ref not in self._announced:
                self.append(verdict.unknown(asked), now)
        self._crowded.clear()

    def _send_apart(self, asked: Asked, queue: str, now: int) -> None:
        self.append(ev.ActionScheduled(asked.ref, asked.spec.name, asked.args, queue), now)
        self.kin.send_apart(asked, queue, self.version, self.at)

    def _note_progress(self, now: int) -> None:
        for ref, details in list(self._progress.items()):
            if now - self._progress_at.get(ref, 0) < 1_000_000:
                continue
            del self._progress[ref]
            if (running := self.running.get(ref)) is not None:
                self._progress_at[ref] = now
                self.write(ev.ActionProgressed(ref, running.asked.attempts + 1, details), now)
                running.asked.progress = details

    # Deciding what to do with the hold.

    def _decide(self, now: int) -> Park | End | None:
        replay = self.replay
        if replay is None:
            if self.running:
                return None  # their results belong into the log all the same
            return self.park_stuck(now)
        if replay.outcome is not None:
            return self.end(replay)
        status: Status = "open" if replay.paused is None else "paused"
        due = replay.next_due(now) if replay.paused is None else replay.paused.until or None
        busy = bool(self.running) or self._has_ready(replay, now)
        soon = due is not None and due - now <= self.house.settings.linger * 1e6 and not self.house.draining
        if busy or (soon and status == "open"):
            if due is not None:
                self.alarm_at(due, now)
            return None
        if (
            status == "open"
            and self.house.draining
            and any(asked.due <= now and not asked.apart for asked in replay.actions.values())
        ):
            due = now  # for the next worker
        for timer in replay.unlogged_timers():
            self.write(timer, now)
        return self.park(replay, status, due)

    def alarm_at(self, due: int, now: int) -> None:
        """Let the worker ring then, unless it does so before."""
        if not now < self.alarm <= due:
            self.alarm = due
            self.house.ring_at(self, due)

    def _has_ready(self, replay: Replay, now: int) -> bool:
        """Actions that will start as soon as this commit is done."""
        if replay.paused is not None or self.house.draining:
            return False
        for ref in replay.fresh:
            if (asked := replay.actions.get(ref)) is not None and asked.due <= now and not asked.apart:
                return True
        return any(due <= now for due in self.later.values())
