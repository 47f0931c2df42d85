"""What follows the answer to a commit: hints and news go out, attempts start, executions rest or leave.

Rules kept here: nothing is told to others and nothing with an effect starts before the answer; each execution of a
group is served by its own answer. When nobody knows whether a group was written, its memory is dropped and each is held
again: the hold writes a barrier, so what may still be on its way cannot come after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from perdure.core.loop import turns
from perdure.core.records import ACTION, Commit, End, Hint, Outcome, Start, is_external
from perdure.ports import Stream
from perdure.runtime.callers.ends import news_of
from perdure.runtime.clock import Clock
from perdure.runtime.execution.resident import Resident
from perdure.runtime.external.watch import news_of_task
from perdure.runtime.settings import Settings
from perdure.runtime.telemetry.metrics import Metrics
from perdure.runtime.work.committer import Group
from perdure.runtime.work.mailman import Mailman
from perdure.runtime.work.quotas import Quotas
from perdure.runtime.work.relay import Relay
from perdure.runtime.work.rooms import Rooms

log = logging.getLogger("perdure.worker")


class Floor(Protocol):
    """What this needs of the worker."""

    me: str
    settings: Settings
    metrics: Metrics

    def ring(self, resident: Resident) -> None: ...
    def ring_at(self, resident: Resident, due: int) -> None: ...


class Landing:
    """Also the floor on which the committer stands."""

    def __init__(
        self,
        floor: Floor,
        rooms: Rooms,
        quotas: Quotas,
        stream: Stream,
        clock: Clock,
        relay: Relay,
        mailman: Mailman,
        ended: Callable[[str, End | None], None],
    ) -> None:
        self._floor = floor
        self._rooms = rooms
        self._quotas = quotas
        self.here = rooms.here
        self._stream = stream
        self._clock = clock
        self._relay = relay
        self._mailman = mailman
        self._ended = ended
        self._settings = floor.settings
        self.metrics = floor.metrics
        self._grace = int(floor.settings.grace * 1e6)
        self._time = asyncio.get_running_loop().time

    # What the committer calls.

    @property
    def grace(self) -> int:
        """How long children and mail may wait for their hint to arrive."""
        return self._grace if self._stream.carries else 0

    def evict(self, resident: Resident) -> None:
        self._leave(resident)
        resident.drop()

    def grounded(self) -> None:
        """A write is over, however it went: if it hung, there is room again."""
        self._rooms.vacated.set()

    async def landed(self, group: Group, outcomes: Sequence[Outcome]) -> None:
        """A group was written, or refused, one by one."""
        now = self._clock.now()
        hints: list[Hint] = []
        with turns():
            for resident, commit, outcome in zip(group.batch, group.commits, outcomes, strict=True):
                if outcome == "ok" or (outcome == "mail" and not isinstance(commit.settle, End)):
                    self._count(commit, now)
                    if commit.children:
                        hints += [_hint(start) for start in commit.children]
                    if commit.mail:
                        hints += resident.kin.hints(commit.mail, resident.replay)
                if outcome == "ok":
                    if isinstance(commit.settle, End):
                        hints.append(news_of(resident.key, commit.settle))
                        self._ended(resident.key, commit.settle)
                    elif commit.settle is not None and commit.settle.status == "stuck":
                        hints.append(Hint(resident.key, ended=True))  # whoever waits for the end should look
                if self.here(resident):  # it may have been lost while this was under way
                    self._settle(resident, commit, outcome, now)
                    missed = resident.mailbox.letters or resident.overdue
                    if missed and not self.here(resident) and resident.ended is None:
                        # Mail that came when it had just been let go of, or its time: nobody else was told.
                        hints.append(Hint(resident.key, resident.queue, to=self._floor.me))
        self.metrics.batch.observe(len(group.commits))
        self.metrics.duration.observe(self._time() - group.since)
        if hints:
            await self._stream.publish(self._addressed(hints))
        if not self._stream.carries and any(hint.away for hint in hints):
            self._relay.look_when_free()  # others are told that they may look; if none of them has a place, we may

    async def unknown(self, batch: Sequence[Resident]) -> None:
        """Nobody knows whether the group was written: forget all of it and hold each again, behind a barrier."""
        for resident in batch:
            self.evict(resident)
        await self._stream.publish([Hint(resident.key, resident.queue, to=self._floor.me) for resident in batch])

    # One execution after its commit.

    def _count(self, commit: Commit, now: int) -> None:
        self.metrics.wrote(commit.rows)
        if commit.fired is not None:
            self.metrics.lateness.observe(max(0, now - commit.fired) / 1e6)
        if isinstance(commit.settle, End):
            self.metrics.ended.add(commit.settle.status)

    def _settle(self, resident: Resident, commit: Commit, outcome: Outcome, now: int) -> None:
        match outcome:
            case "ok":
                self._written(resident, now)
            case "mail" if resident.refusals:
                self.evict(resident)  # its memory is of no use for mail, which is due by itself
            case "mail":
                if resident.ended is None:
                    resident.committed()
                self._mailman.call(resident.key)
            case "early":
                self._relay.look_at(
                    now
                )  # our clock runs ahead: ask for the time, and do not ask for this at once again
                self._floor.ring_at(resident, max(commit.fired or 0, now) + 10_000)
            case "stale":
                self.metrics.errors.add("stale")
                log.info("%s: another worker has gone on with it", resident.key, extra=resident.about)
                self.evict(resident)
            case "refused":
                raise AssertionError(f"{resident.key}: the committer has asked why, and does not let this land")

    def _written(self, resident: Resident, now: int) -> None:
        resident.committed()
        if resident.ended is not None:
            self.evict(resident)
            followed = resident.counts and self._quotas.ended(resident.key)
            if resident.lane or followed:
                self._relay.look_at(now)  # the next of its lane is due, or of its tenant
        elif (park := resident.parked) is not None:
            self._leave(resident)
            self._rooms.keep(resident)
            if park.status == "stuck":
                reason = resident.stuck.reason if resident.stuck is not None else ""
                log.warning("%s is stuck: %s", resident.key, reason, extra=resident.about)
                self._ended(resident.key, None)
            if park.due is not None:
                self._relay.look_at(park.due)
        else:
            if self._settings.replay_always:
                resident.relive(now)
                if resident.stuck is not None:
                    self._floor.ring(resident)
                    return
            resident.launch(now)
            if not resident.running or resident.ending:
                self._floor.ring(resident)

    def _leave(self, resident: Resident) -> None:
        if self._rooms.free() <= 0:
            self._relay.look_at(self._clock.now())  # there is room again
        self._rooms.leave(resident)

    def _addressed(self, hints: list[Hint]) -> list[Hint]:
        """Mail for an execution that we hold ourselves needs no stream; for others the queue finds the holder."""
        rest = []
        for hint in hints:
            if not hint.ended and hint.key in self._rooms.residents:
                self._mailman.call(hint.key)
            else:
                rest.append(hint)
        return rest


def _hint(start: Start) -> Hint:
    """An action that runs apart does so because there is no room for it here, or because its code is not Python's."""
    if is_external(start.queue):
        return news_of_task(start)
    return Hint(start.key, start.queue, away=start.workflow.startswith(ACTION))
