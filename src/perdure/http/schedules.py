"""Schedules: executions that start by the clock."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from perdure.flows.schedule import CatchUp, Overlap
from perdure.http import glance
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.http.verbs import from_idempotency_key, key_is_for
from perdure.runtime.managing.scheduled import Schedule
from perdure.runtime.managing.timetables import FORESEEN

routes = Routes("schedules")


class ScheduleIn(Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule: one of `cron`, `every` and `at`. `args` are those of code, `input` that of a published definition."""

    name: str
    workflow: str
    input: Any = None
    args: list[Any] | None = None
    version: int | None = None
    cron: str | None = None
    every: str | None = None
    at: list[datetime] | None = None
    timezone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    overlap: Overlap = "skip"
    catch_up: CatchUp = "last"
    jitter: str = "0s"
    paused: bool = False
    note: str = ""


class ScheduleChange(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What changes; the rest stays. `end` may be null: then it goes on for ever."""

    workflow: str | None = None
    args: list[Any] | None = None
    version: int | None = None
    cron: str | None = None
    every: str | None = None
    at: list[datetime] | None = None
    timezone: str | None = None
    start: datetime | None = None
    end: datetime | UnsetType | None = UNSET
    overlap: Overlap | None = None
    catch_up: CatchUp | None = None
    jitter: str | None = None
    note: str | None = None


class SchedulesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    ended: bool = False


class SchedulesOut(Struct, frozen=True):
    schedules: list[Schedule]


class TriggerIn(Struct, frozen=True, forbid_unknown_fields=True):
    """The same `id` twice is one trigger; without one an Idempotency-Key does the same."""

    overlap: Overlap | None = None
    id: str | None = None


class WishedOut(Struct, frozen=True):
    """The schedule; the wish is durable, and comes true when a worker has seen it."""

    name: str


class TriggeredOut(Struct, frozen=True):
    """The id of the execution; it starts when a worker has seen the wish, unless it has to be skipped."""

    execution: str


class NextQuery(Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=FORESEEN)] = 5


class NextOut(Struct, frozen=True):
    times: list[datetime]


def _glance(found: SchedulesOut) -> SchedulesOut:
    return SchedulesOut([glance.schedule(one) for one in found.schedules])


def _how(call: Call[Any, Any]) -> dict[str, Any]:
    return {"by": call.caller.user, "tenant": call.tenant}


@routes("GET", "/v1/schedules", "read", query=SchedulesQuery, answers={200: SchedulesOut}, glance=_glance)
async def list_schedules(call: Call[SchedulesQuery, Nothing]) -> Answer:
    """List the schedules by name."""
    return Answer(SchedulesOut(await call.app.schedules.list(ended=call.query.ended, tenant=call.tenant)))


@routes("POST", "/v1/schedules", "control", body=ScheduleIn, answers={201: Schedule})
async def create_schedule(call: Call[Nothing, ScheduleIn]) -> Answer:
    """Make a schedule; the same one again is the same, another one under its name is refused."""
    given = structs.asdict(call.body)
    input, args = given.pop("input"), given.pop("args")
    made = await call.app.schedules.create(
        given.pop("name"), given.pop("workflow"), [input] if args is None else args, **given, **_how(call)
    )
    return Answer(made, 201, {"Location": f"/v1/schedules/{made.name}"})


@routes("GET", "/v1/schedules/{name}", "read", answers={200: Schedule})
async def get_schedule(call: Call[Nothing, Nothing]) -> Answer:
    """Get a schedule as it stands, with its latest starts."""
    return Answer(await call.app.schedules.get(call.path["name"], tenant=call.tenant))


@routes("PATCH", "/v1/schedules/{name}", "control", body=ScheduleChange, answers={202: WishedOut})
async def update_schedule(call: Call[Nothing, ScheduleChange]) -> Answer:
    """Change what is given and nothing else; other times count from now on."""
    await call.app.schedules.update(call.path["name"], **structs.asdict(call.body), **_how(call))
    return Answer(WishedOut(call.path["name"]), 202)


@routes("DELETE", "/v1/schedules/{name}", "control", answers={202: WishedOut})
async def delete_schedule(call: Call[Nothing, Nothing]) -> Answer:
    """End a schedule; its log stays, and what it has started goes on."""
    await call.app.schedules.delete(call.path["name"], **_how(call))
    return Answer(WishedOut(call.path["name"]), 202)


@routes("GET", "/v1/schedules/{name}/next", "read", query=NextQuery, answers={200: NextOut})
async def next_times(call: Call[NextQuery, Nothing]) -> Answer:
    """Tell the next times of a schedule."""
    return Answer(NextOut(await call.app.schedules.next(call.path["name"], call.query.count, tenant=call.tenant)))


@routes("POST", "/v1/schedules/{name}/pause", "control", answers={202: WishedOut})
async def pause_schedule(call: Call[Nothing, Nothing]) -> Answer:
    """Start nothing until it is resumed; what passes meanwhile is not caught up with."""
    await call.app.schedules.pause(call.path["name"], **_how(call))
    return Answer(WishedOut(call.path["name"]), 202)


@routes("POST", "/v1/schedules/{name}/resume", "control", answers={202: WishedOut})
async def resume_schedule(call: Call[Nothing, Nothing]) -> Answer:
    """Go on with the next time."""
    await call.app.schedules.resume(call.path["name"], **_how(call))
    return Answer(WishedOut(call.path["name"]), 202)


@routes("POST", "/v1/schedules/{name}/trigger", "control", body=TriggerIn, answers={202: TriggeredOut}, keyed=True)
async def trigger_schedule(call: Call[Nothing, TriggerIn]) -> Answer:
    """Start one now, also of a schedule that is paused."""
    name = call.path["name"]
    id = call.body.id or from_idempotency_key(call, f"trigger {name}")
    with key_is_for(call, "trigger", call.body.id):
        execution = await call.app.schedules.trigger(name, overlap=call.body.overlap, id=id, **_how(call))
    return Answer(TriggeredOut(execution), 202, {"Location": f"/v1/executions/{execution}"})
