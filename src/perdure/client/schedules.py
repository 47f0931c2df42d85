"""Executions that start by the clock, over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType

from perdure.client.door import Door, path_of, span
from perdure.client.starting import named
from perdure.core.durations import Duration
from perdure.flows.schedule import CatchUp, Overlap
from perdure.http.schedules import (
    NextOut,
    ScheduleChange,
    ScheduleIn,
    SchedulesOut,
    TriggeredOut,
    TriggerIn,
    WishedOut,
)
from perdure.runtime.managing.scheduled import Schedule


class RemoteSchedules:
    """`client.schedules`. What is wished of a schedule is durable when the call returns; a worker applies it."""

    def __init__(self, door: Door) -> None:
        self._door = door

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
    ) -> Schedule:
        """Make a schedule of a workflow or a name; the same one again is the same, another one is ExecutionExists."""
        wanted = named(workflow, args)
        body = ScheduleIn(
            name,
            wanted.name,
            args=wanted.args,
            version=version,
            cron=cron,
            every=span(every),
            at=None if at is None else list(at),
            timezone=timezone,
            start=start,
            end=end,
            overlap=overlap,
            catch_up=catch_up,
            jitter=span(jitter),
            paused=paused,
            note=note,
        )
        return await self._door.post(path_of("schedules"), body, Schedule, reason=reason)

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
    ) -> None:
        """Change what is given and nothing else; `end=None` takes the end away."""
        wanted = None if workflow is None else named(workflow, () if args is None else args)
        given = None if args is None else list(args)
        change = ScheduleChange(
            None if wanted is None else wanted.name,
            given if wanted is None or given is None else wanted.args,
            version,
            cron,
            span(every),
            None if at is None else list(at),
            timezone,
            start,
            end,
            overlap,
            catch_up,
            span(jitter),
            note,
        )
        await self._door.patch(path_of("schedules", name), change, WishedOut, reason=reason)

    async def pause(self, name: str, *, reason: str = "") -> None:
        """Start nothing from now on. What passes meanwhile is not caught up with."""
        await self._door.do(path_of("schedules", name, "pause"), reason=reason)

    async def resume(self, name: str, *, reason: str = "") -> None:
        """Go on with the next time."""
        await self._door.do(path_of("schedules", name, "resume"), reason=reason)

    async def trigger(
        self, name: str, *, overlap: Overlap | None = None, id: str | None = None, reason: str = ""
    ) -> str:
        """Start one now; gives the id of the execution. The same `id` twice is one trigger."""
        body = TriggerIn(overlap, id or self._door.new_id())
        path = path_of("schedules", name, "trigger")
        return (await self._door.post(path, body, TriggeredOut, reason=reason)).execution

    async def delete(self, name: str, *, reason: str = "") -> None:
        """End a schedule. Its log stays, and what it has started goes on."""
        await self._door.delete(path_of("schedules", name), WishedOut, reason=reason)

    async def get(self, name: str) -> Schedule:
        """A schedule as it stands; ExecutionNotFound if there is none, or none any more."""
        return await self._door.get(path_of("schedules", name), Schedule)

    async def next(self, name: str, count: int = 5) -> list[datetime]:
        """The next times; whether it is paused does not matter."""
        return (await self._door.get(path_of("schedules", name, "next"), NextOut, count=count)).times

    # All of them; last, for below this line `list` is no longer the type.

    async def list(self, *, ended: bool = False) -> list[Schedule]:
        """All schedules by name; with `ended` also those that have ended."""
        return (await self._door.get(path_of("schedules"), SchedulesOut, ended=ended)).schedules
