"""What is told of a schedule, to those who ask for it over HTTP, on the command line or in Python.

`at` and `next` are in the zone of the schedule, all other times in UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from perdure.core.durations import show
from perdure.core.moments import moment
from perdure.core.records import ENDED, Head
from perdure.flows.cron import zone
from perdure.flows.schedule import CatchUp, Fate, Overlap, Shown


class Fired(Struct, frozen=True, omit_defaults=True):
    """What became of one time: the `id` of its execution; `fate` is started, skipped or failed."""

    id: str
    at: datetime
    fate: Fate
    reason: str = ""


class Schedule(Struct, frozen=True):
    """A schedule as it stands. `pending` counts what is wished of it and no worker has seen yet."""

    name: str
    workflow: str
    args: list[Any]
    version: int | None
    cron: str
    every: str
    at: list[datetime]
    timezone: str
    start: datetime
    end: datetime | None
    overlap: Overlap
    catch_up: CatchUp
    jitter: str
    note: str
    paused: bool
    ended: bool
    next: datetime | None
    started: int
    skipped: int
    failed: int
    recent: list[Fired]
    pending: int
    created_at: datetime


def told(head: Head, shown: Shown) -> Schedule:
    """From the head of the execution and what that shows."""
    spec, place, times = shown.spec, shown.place, shown.spec.times
    where, ended = zone(times.timezone), head.status in ENDED
    return Schedule(
        name=spec.name,
        workflow=spec.target.workflow,
        args=spec.target.args,
        version=spec.target.version,
        cron=times.cron,
        every=show(times.every) if times.every else "",
        at=[moment(one).astimezone(where) for one in times.at],
        timezone=times.timezone,
        start=moment(times.start),
        end=None if times.end is None else moment(times.end),
        overlap=spec.overlap,
        catch_up=spec.catch_up,
        jitter=show(spec.jitter) if spec.jitter else "",
        note=spec.note,
        paused=place.paused,
        ended=ended,
        next=None if ended or shown.next is None else moment(shown.next).astimezone(where),
        started=place.started,
        skipped=place.skipped,
        failed=place.failed,
        recent=[Fired(one.id, moment(one.at), one.fate, one.reason) for one in place.recent],
        pending=head.mail,
        created_at=moment(head.started_at),
    )
