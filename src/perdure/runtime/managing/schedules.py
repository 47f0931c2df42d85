"""`app.schedules`: executions that start by the clock.

    await app.schedules.create("nightly", report, ["sales"], cron="0 3 * * *", timezone="Europe/Berlin")

Rules kept here: a schedule is an execution of `schedule:` with the key `tenant/schedule/NAME`; all that is wished of it
is mail, durable when the call returns and applied by a worker; the same schedule created again is the same, another one
under its name is an error. One that was deleted has ended, and its log stays; the next of that name gets a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType, structs

from perdure.core import events as ev, letters as mail, summary
from perdure.core.codec import encode
from perdure.core.durations import Duration, micros
from perdure.core.records import ENDED, Head, Query, id_of, key_of
from perdure.core.tracing import tracing
from perdure.errors import (
    ExecutionEnded,
    ExecutionError,
    ExecutionExists,
    ExecutionNotFound,
    InvalidValue,
    NotRegistered,
    UsageError,
)
from perdure.flows.described import Described
from perdure.flows.schedule import (
    SCHEDULE,
    CatchUp,
    Fate,
    Overlap,
    Place,
    Shown,
    Spec,
    Target,
    changed,
    next_of,
    published,
    schedule,
)
from perdure.runtime.callers import showing
from perdure.runtime.checks import checked_id, checked_standing
from perdure.runtime.managing import timetables
from perdure.runtime.managing.noting import noted
from perdure.runtime.managing.scheduled import Schedule, told
from perdure.runtime.settings import Settings

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_PAGE = 500
_DAY = 86_400_000_000


class Schedules:
    """The schedules of an application. Methods take the `tenant` whose schedules are meant; else the application's."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    @noted("schedules.create")
    async def create(
        self,
        name: str,
        workflow: Any,
        args: Sequence[Any] = (),
        *,
        cron: str | None = None,
        every: Duration | None = None,
        at: Sequence[datetime] | None = None,
        timezone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        overlap: Overlap = "skip",
        catch_up: CatchUp = "last",
        jitter: Duration = 0,
        paused: bool = False,
        version: int | None = None,
        note: str = "",
        reason: str = "",
        by: str = "",
        tenant: str | None = None,
    ) -> Schedule:
        """Make a schedule; the same one again is no error, so a program can do this whenever it begins.

        `workflow` is a workflow or a name. `every` is counted from `start`, or else from now. What is missed while no
        worker is there is caught up with as `catch_up` says.
        """
        home = self._app._tenant(tenant)
        await self._app.open()
        target = await self._target(workflow, args, version, home)
        now = self._app.clock.now()
        times = timetables.made(cron, every, at, timezone, start, end, now)
        spec = _checked(Spec(name, target, times, overlap, catch_up, micros(jitter), note), now, self._app.settings)
        newest = await self._newest(name, home)
        if newest is None or newest.status in ENDED:
            key = _key(home, name, 1 if newest is None else _generation(newest) + 1)
            with suppress(ExecutionExists):  # somebody else was quicker: theirs is compared
                await self._begin(key, spec, Place(now, paused), by)
            newest = await self._app.store.head(key)
        assert newest is not None
        if not _same((await self._shown(newest)).spec, spec, anchored=start is not None):
            raise ExecutionExists(
                f"there is another schedule {name!r} already: update it, or choose another name", newest.key
            )
        return await self._told(newest)

    @noted("schedules.update")
    async def update(
        self,
        name: str,
        *,
        workflow: Any = None,
        args: Sequence[Any] | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        at: Sequence[datetime] | None = None,
        timezone: str | None = None,
        start: datetime | None = None,
        end: datetime | UnsetType | None = UNSET,
        overlap: Overlap | None = None,
        catch_up: CatchUp | None = None,
        jitter: Duration | None = None,
        version: int | None = None,
        note: str | None = None,
        reason: str = "",
        by: str = "",
        tenant: str | None = None,
    ) -> None:
        """Change what is given and nothing else. Other times count from now on; what was started stays."""
        home = self._app._tenant(tenant)
        head = await self._head(name, home)
        spec, now = (await self._shown(head)).spec, self._app.clock.now()
        change: dict[str, Any] = {"overlap": overlap, "catch_up": catch_up, "note": note}
        change["jitter"] = None if jitter is None else micros(jitter)
        if workflow is not None or args is not None or version is not None:
            old = spec.target
            given = old.args if args is None else args
            change["target"] = await self._target(workflow or old.workflow, given, version or old.version, home)
        if any(one is not None for one in (cron, every, at, timezone, start)) or end is not UNSET:
            change["times"] = timetables.changed(spec.times, cron, every, at, timezone, start, end, now)
        change = {field: msgspec.to_builtins(value) for field, value in change.items() if value is not None}
        if not change:
            raise UsageError(f"nothing is given that could change in the schedule {name!r}")
        _checked(changed(spec, change), now, self._app.settings)
        await self._wish(head, "change", change, by)

    @noted("schedules.pause")
    async def pause(self, name: str, *, reason: str = "", by: str = "", tenant: str | None = None) -> None:
        """Start nothing from now on. What passes meanwhile is not caught up with."""
        await self._wish(await self._head(name, self._app._tenant(tenant)), "pause", None, by)

    @noted("schedules.resume")
    async def resume(self, name: str, *, reason: str = "", by: str = "", tenant: str | None = None) -> None:
        """Go on with the next time."""
        await self._wish(await self._head(name, self._app._tenant(tenant)), "resume", None, by)

    @noted("schedules.trigger")
    async def trigger(
        self,
        name: str,
        *,
        overlap: Overlap | None = None,
        id: str | None = None,
        reason: str = "",
        by: str = "",
        tenant: str | None = None,
    ) -> str:
        """Start one now, also of a schedule that is paused; gives the id of the execution.

        The same `id` twice is one trigger. It is skipped, queued and so on as any other, unless `overlap` says
        otherwise for this one.
        """
        head = await self._head(name, self._app._tenant(tenant))
        chosen = id or self._app.new_id()
        execution = checked_id(f"{name}~{chosen}")
        await self._wish(head, "trigger", {} if overlap is None else {"overlap": overlap}, by, chosen)
        return execution

    @noted("schedules.delete")
    async def delete(self, name: str, *, reason: str = "", by: str = "", tenant: str | None = None) -> None:
        """End a schedule. Its log stays, and what it has started goes on."""
        await self._wish(await self._head(name, self._app._tenant(tenant)), "delete", None, by)

    async def get(self, name: str, *, tenant: str | None = None) -> Schedule:
        """A schedule as it stands; ExecutionNotFound if there is none, or none any more."""
        return await self._told(await self._head(name, self._app._tenant(tenant)))

    async def next(self, name: str, count: int = 5, *, tenant: str | None = None) -> list[datetime]:
        """The next times, in the schedule's zone; whether it is paused does not matter."""
        shown = await self._shown(await self._head(name, self._app._tenant(tenant)))
        spec, now = shown.spec, self._app.clock.now()
        first = next_of(spec, shown.place.after, now)
        return timetables.foreseen(spec.times, now if first is None or first > now else first - 1, count)

    # What the workflow of schedules needs.

    async def fire(
        self, tenant: str, name: str, target: Target, id: str, last: str, overlap: Overlap
    ) -> tuple[Fate, str]:
        """Start one execution. Done again after a crash it is the same one."""
        app = self._app
        if last and overlap in ("skip", "cancel_old"):
            before = await app.store.head(key_of(tenant, last))
            running = before is not None and before.status not in ENDED
            if running and overlap == "skip":
                return "skipped", f"{last} is still running"
            if running:
                with suppress(ExecutionEnded):
                    letter = mail.CancelLetter(f"{id} takes its place", f"schedule {name}")
                    await app.post(key_of(tenant, last), f"/schedule:{id}", letter)
        try:
            await self._start(tenant, name, target, id, None if overlap in ("all", "skip") else f"schedule/{name}")
        except (UsageError, ExecutionError) as error:
            return "failed", str(error)
        return "started", ""

    async def _start(self, tenant: str, name: str, target: Target, id: str, lane: str | None) -> None:
        app, key, by = self._app, key_of(tenant, checked_id(id)), f"schedule {name}"
        input, now = Raw(encode(target.args)), self._app.clock.now()
        try:
            definition = await app._workflows.wanted(target.workflow, target.version, tenant)
        except NotRegistered:
            version, content, queue = target.known
            first = ev.Started(target.workflow, version, input, by, hash=content)
            await app._starts.begin(structs.replace(summary.begin(key, first, queue, now), lane=lane))
        else:
            with tracing(None):  # each time is a story of its own
                await app._starts.start(definition, input, key, now, by, lane)

    # Inside.

    async def _target(self, workflow: Any, args: Sequence[Any], version: int | None, home: str) -> Target:
        """What is to be started, checked as a start would be."""
        found = await self._app._workflows.wanted(workflow, version, home)
        by_name = isinstance(workflow, str)
        input = Raw(encode(list(args)) if by_name else found.signature.encode(tuple(args), {}))
        positional, named = found.signature.decode(input)
        if isinstance(found, Described):
            found.check_input(next(iter((*positional, *named.values())), None))
        given: list[Any] = msgspec.json.decode(input)
        return Target(found.name, given, version, (found.version, found.hash, found.queue))

    async def _begin(self, key: str, spec: Spec, place: Place, by: str) -> None:
        due = None if place.paused else spec.times.after(place.after)
        # Shown from the beginning, so that it is found by its name before a worker has seen it.
        shown, queue = published(spec, place, due), spec.target.known[2]
        await self._app._starts.own(schedule, (spec, place), key, place.after, by, queue, shown)

    async def _wish(self, head: Head, name: str, payload: Any, by: str, id: str | None = None) -> None:
        await self._app.send(id_of(head.key), name, payload, event_id=id, by=by, tenant=head.key.partition("/")[0])

    async def _shown(self, head: Head) -> Shown:
        return msgspec.json.decode(await showing.shown(self._app.store, head), type=Shown)

    async def _told(self, head: Head) -> Schedule:
        return told(head, await self._shown(head))

    async def _newest(self, name: str, home: str) -> Head | None:
        """The latest schedule of this name; those before it have ended."""
        await self._app.open()
        first = await self._app.store.head(_key(home, _named(name), 1))
        if first is None or first.status not in ENDED:
            return first
        # They are numbered without gaps, so the latest is found in few steps, and also where fields cannot be searched.
        newest, there, missing = first, 1, 2
        while (head := await self._app.store.head(_key(home, name, missing))) is not None:
            newest, there, missing = head, missing, missing * 2
        while missing - there > 1:
            middle = (there + missing) // 2
            if (head := await self._app.store.head(_key(home, name, middle))) is None:
                missing = middle
            else:
                newest, there = head, middle
        return newest

    async def _head(self, name: str, home: str) -> Head:
        newest = await self._newest(name, home)
        if newest is None or newest.status in ENDED:
            raise ExecutionNotFound(
                f"there is no schedule {name!r}; `perdure schedules list` shows those that are", _key(home, name, 1)
            )
        return newest

    # All of them; last, for below this line `list` is no longer the type.

    async def list(self, *, ended: bool = False, tenant: str | None = None) -> list[Schedule]:
        """All schedules of a tenant by name; with `ended` also those that have ended."""
        home = self._app._tenant(tenant)
        await self._app.open()
        found: list[Schedule] = []
        cursor: tuple[int, str] | None = None
        while heads := await self._app.store.find(Query(home, workflow=SCHEDULE, limit=_PAGE, cursor=cursor)):
            found += [await self._told(head) for head in heads if ended or head.status not in ENDED]
            cursor = heads[-1].started_at, heads[-1].key
        return sorted(found, key=lambda one: (one.name, one.created_at))


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} cannot be the name of a schedule: it takes letters, digits, _, . and -, at most 100"
        )
    return name


def _key(home: str, name: str, generation: int) -> str:
    return key_of(home, f"schedule/{name}" + (f"~{generation}" if generation > 1 else ""))


def _generation(head: Head) -> int:
    return int(head.key.rpartition("~")[2]) if "~" in head.key else 1


def _checked(spec: Spec, now: int, settings: Settings) -> Spec:
    _named(spec.name)
    try:
        msgspec.convert(msgspec.to_builtins(spec), Spec)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"the schedule {spec.name!r} cannot be: {error}") from error
    timetables.check(spec.times)
    if spec.jitter > _DAY:
        raise InvalidValue(f"the jitter of the schedule {spec.name!r} is longer than a day: choose other times instead")
    checked_standing(encode(spec), settings.standing_bytes, settings.payload_bytes, f"the schedule {spec.name!r}")
    if spec.times.after(now) is None:
        raise InvalidValue(f"the schedule {spec.name!r} would never start anything: all its times are over")
    return spec


def _same(there: Spec, asked: Spec, anchored: bool) -> bool:
    """Whether it is the schedule that is asked for; where no start was asked for, any will do."""
    times = asked.times if anchored else structs.replace(asked.times, start=there.times.start)
    known = structs.replace(asked.target, known=there.target.known)
    return there == structs.replace(asked, times=times, target=known)
