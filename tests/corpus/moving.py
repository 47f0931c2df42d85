"""Executions of definitions that are data, moved at every rest: they go on from their position alone."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from perdure.core import events as ev
from perdure.flows.bound import owed
from tests.corpus.drive import Drive


class Moving(Drive):
    """At every rest it goes on from its position alone, as when it gets another version."""

    moves = 0

    def drive(self, event: ev.Event) -> None:
        super().drive(event)
        replay = self.replay
        if replay.position is None or replay.outcome is not None:
            return
        if replay.due_timers(self.at):  # here overdue timers take their time, while a new one would fire at once
            return
        self.moves += 1
        position = msgspec.json.encode(replay.position())
        assert self.member.workflow.fits(Raw(position)) == []  # type: ignore[attr-defined]
        moved = ev.Restarted(
            Raw(position),
            replay.loop.ref,
            replay.draws,
            replay.began,
            buffered=list(replay.buffer),
            published=Raw(msgspec.json.encode(replay.published)),
            undos=owed(replay),
        )
        super().drive(moved)


def end_of(live: Drive) -> Any:
    outcome = live.replay.outcome
    match outcome:
        case ev.Completed():
            return bytes(outcome.result)
        case ev.Failed():
            return outcome.error.type
        case _:
            return type(outcome).__name__
