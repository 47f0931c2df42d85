"""What a schedule does: wait for the next time, start an execution, and so on, for years.

A schedule is an execution of this workflow. Rules kept here: each time has one execution, `NAME@TIME`, so it happens
once however often a worker dies on the way; the next time is computed once and kept in the log, for another release of
the time zones may know another one; everything that is wished of a schedule is an event, so its log is its history. It
begins a new round now and then, so its log may grow for ever and its replay does not.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

from perdure.core.moments import moment, to_micros
from perdure.core.retry import drawn
from perdure.errors import ActionFailed
from perdure.flows.action import action
from perdure.flows.cron import Times
from perdure.flows.current import this_attempt
from perdure.flows.event import event
from perdure.flows.inner import inner
from perdure.flows.workflow import workflow

#: skip: not while the one before runs. queue: after the one before. cancel_old: after the one before, which is asked
#: to stop. all: at once.
Overlap: TypeAlias = Literal["skip", "queue", "cancel_old", "all"]
#: What to do about times that passed while no worker was there: start all of them, the last one, or none.
CatchUp: TypeAlias = Literal["all", "last", "none"]
Fate: TypeAlias = Literal["started", "skipped", "failed"]

SCHEDULE = "schedule:"
#: Steps of one round: replay reads at most a round.
ROUND = 100
#: A time is missed if nobody came to it for so many microseconds.
LATE = 60_000_000
#: Fires that a schedule shows.
RECENT = 10


class Target(Struct, frozen=True, omit_defaults=True):
    """What is started: the newest version of a workflow, or a given one.

    `known` is what stood behind the name when the schedule was made, for workers that do not have the workflow.
    """

    workflow: str
    args: list[Any] = []
    version: int | None = None
    known: tuple[int, str, str] = (1, "", "default")  # version, hash, queue


class Spec(Struct, frozen=True, omit_defaults=True):
    """A schedule as it was asked for."""

    name: str
    target: Target
    times: Times
    overlap: Overlap = "skip"
    catch_up: CatchUp = "last"
    jitter: int = 0  # microseconds
    note: str = ""


class Fire(Struct, frozen=True, omit_defaults=True):
    """What became of one time."""

    id: str  # of the execution
    at: int
    fate: Fate
    reason: str = ""


class Place(Struct, frozen=True, omit_defaults=True):
    """Where a schedule stands: the times up to `after` are done with."""

    after: int
    paused: bool = False
    last: str = ""  # the execution that was started last
    started: int = 0
    skipped: int = 0
    failed: int = 0
    recent: tuple[Fire, ...] = ()


class Shown(Struct, frozen=True, omit_defaults=True):
    """What is published of a schedule. Its name and whether it is paused can be searched for."""

    name: str
    spec: Spec
    place: Place
    paused: bool = False
    next: int | None = None


class Trigger(Struct, frozen=True, omit_defaults=True):
    """A wish to start one now."""

    overlap: Overlap | None = None


#: A change is a spec with only what changes.
EVENTS = {"pause": Any, "resume": Any, "trigger": Trigger, "change": dict[str, Any], "delete": Any}


def changed(spec: Spec, change: dict[str, Any]) -> Spec:
    return msgspec.convert({**msgspec.to_builtins(spec), **change}, Spec)


def published(spec: Spec, place: Place, due: int | None) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(Shown(spec.name, spec, place, place.paused, due))
    return {"paused": False, "next": None, **shown}


def delay_of(spec: Spec, at: int) -> int:
    """How much later than its time an execution starts: a share of the jitter, the same whoever asks."""
    return int(spec.jitter * drawn(spec.name, at))


def id_of_time(name: str, at: int) -> str:
    """The one execution of a time.

    >>> id_of_time("nightly", 1_893_488_400_000_000)
    'nightly@2030-01-01T09:00:00Z'
    """
    return f"{name}@{moment(at).isoformat().removesuffix('+00:00')}Z"


def next_of(spec: Spec, after: int, now: int) -> int | None:
    """The next time to be done with; times that were missed are left out as the schedule says."""
    first = spec.times.after(after)
    if first is None or first + spec.jitter + LATE >= now or spec.catch_up == "all":
        return first
    if spec.catch_up == "last":
        return spec.times.latest(after, now)
    return spec.times.after(max(after, now - spec.jitter - LATE - 1))


class Wish(Struct, frozen=True):
    """What somebody wants of a schedule."""

    name: str
    payload: Any
    id: str


@inner(SCHEDULE, events=EVENTS)
async def schedule(spec: Spec, place: Place) -> None:
    """Start executions at their times until there are no more."""
    for _ in range(ROUND):
        due = None if place.paused else _recorded_next(spec, place.after)
        workflow.publish(**published(spec, place, due))
        if due is None and not place.paused:
            return
        wish = await _wish(spec, due)
        if wish is not None:
            if wish.name == "delete":
                return
            spec, place = await _granted(wish, spec, place)
        elif (due := _still_due(spec, place.after, due)) is not None:
            fire = await _fired(spec, id_of_time(spec.name, due), due, place.last, spec.overlap)
            place = structs.replace(_after(place, fire), after=due)
    workflow.restart_with(spec, place)


async def _granted(wish: Wish, spec: Spec, place: Place) -> tuple[Spec, Place]:
    """The schedule after a wish has come true."""
    now = to_micros(workflow.now())
    match wish.name:
        case "pause":
            return spec, structs.replace(place, paused=True)
        case "resume":
            # What passed during the pause was not wanted.
            return spec, structs.replace(place, paused=False, after=now) if place.paused else place
        case "trigger":
            overlap = wish.payload.overlap or spec.overlap
            return spec, _after(place, await _fired(spec, f"{spec.name}~{wish.id}", now, place.last, overlap))
        case _:
            fresh = "times" in wish.payload
            return changed(spec, wish.payload), structs.replace(place, after=now if fresh else place.after)


async def _wish(spec: Spec, due: int | None) -> Wish | None:
    """The next thing that is wished of the schedule; None when the time has come before that."""
    left = None if due is None else (due + delay_of(spec, due) - to_micros(workflow.now())) / 1e6
    try:
        async with asyncio.timeout(left):
            got = await event.received(*EVENTS)
    except TimeoutError:
        return None
    return Wish(got.name, msgspec.convert(got.payload or {}, EVENTS[got.name]), got.id)


def _still_due(spec: Spec, after: int, due: int | None) -> int | None:
    """What to start now that somebody is there: if that is late, perhaps another time, or none yet."""
    now = to_micros(workflow.now())
    if due is not None and due + spec.jitter + LATE < now:
        due = _recorded_next(spec, after)
    return None if due is None or due > now else due


def _recorded_next(spec: Spec, after: int) -> int | None:
    now = to_micros(workflow.now())
    return workflow.record(lambda: next_of(spec, after, now))


def _after(place: Place, fire: Fire) -> Place:
    begun = fire.fate == "started"
    return structs.replace(
        place,
        last=fire.id if begun else place.last,
        started=place.started + begun,
        skipped=place.skipped + (fire.fate == "skipped"),
        failed=place.failed + (fire.fate == "failed"),
        recent=(*place.recent, fire)[-RECENT:],
    )


async def _fired(spec: Spec, id: str, at: int, last: str, overlap: Overlap) -> Fire:
    try:
        fate, reason = await _fire(spec.name, spec.target, id, last, overlap)
    except ActionFailed as error:
        fate, reason = "failed", str(error)
    if fate == "failed":
        workflow.log.warning("schedule %s could not start %s: %s", spec.name, id, reason)
    return Fire(id, at, fate, reason)


@action(name="perdure.schedule", retries=20)
async def _fire(name: str, target: Target, id: str, last: str, overlap: Overlap) -> tuple[Fate, str]:
    """Start the execution of one time, unless the one before forbids it."""
    tenant = this_attempt("a schedule").tenant
    fate: tuple[Fate, str] = await action.app.schedules.fire(tenant, name, target, id, last, overlap)
    return fate
