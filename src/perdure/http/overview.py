"""The whole at a glance: counts, workers, locks, metrics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from perdure.http.route import Answer, Call, Nothing, Plain, Routes
from perdure.runtime.managing import overview
from perdure.runtime.telemetry.metrics import CONTENT_TYPE, text_of

routes = Routes("overview")
T = TypeVar("T")


class StatsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Executions that were started in this time."""

    workflow: str | None = None
    after: datetime | None = None
    before: datetime | None = None


class WorkersOut(Struct, frozen=True):
    workers: list[overview.WorkerSeen]


class LockQuery(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(description="It may have slashes, so it is no part of the path.")]


class LockOut(Struct, frozen=True, omit_defaults=True):
    """A lock. `until` is when its lease ends, if nothing renews it; `age` is how long it has been held, in seconds.

    `since` and `age` are not known of a lock that was taken by a version which did not keep them.
    """

    name: str
    held: bool
    holder: str = ""
    fence: int | None = None
    until: datetime | None = None
    since: datetime | None = None
    age: float | None = None


def _whole(counted: T) -> T:
    """These are numbers and names, and no data."""
    return counted


@routes("GET", "/v1/stats", "read", query=StatsQuery, answers={200: overview.Stats}, glance=_whole)
async def get_stats(call: Call[StatsQuery, Nothing]) -> Answer:
    """Count executions by status and workflow, and tell how long they took."""
    query = call.query
    return Answer(await overview.stats(call.app, call.tenant, query.workflow, query.after, query.before))


@routes("GET", "/v1/workers", "read", answers={200: WorkersOut}, glance=_whole)
async def list_workers(call: Call[Nothing, Nothing]) -> Answer:
    """List the workers that hold executions of yours now; one without work is not seen.

    A worker is known by its leases, so nothing is written for this list, and it tells nothing of other tenants. It is
    no list of the processes that run: each worker tells of itself at its own address for health and metrics.
    """
    return Answer(WorkersOut(await overview.workers(call.app, call.tenant)))


@routes("GET", "/v1/locks", "read", query=LockQuery, answers={200: LockOut})
async def get_lock(call: Call[LockQuery, Nothing]) -> Answer:
    """Tell who holds a lock, and for how long."""
    found = await call.app.lock(call.query.name, tenant=call.tenant).look()
    if found is None:
        return Answer(LockOut(call.query.name, False))
    return Answer(LockOut(found.name, True, found.holder, found.fence, found.until, found.since, found.age))


@routes("GET", "/v1/metrics", "admin", answers={200: Plain})
async def get_metrics(call: Call[Nothing, Nothing]) -> Answer:
    """Get what this process counts, as Prometheus reads it: the API, and the worker if there is one.

    The numbers are those of the process and its queues, whoever they are for; they name no tenant and no execution.
    """
    app = call.app
    found = [*call.site.counts.all(), app.writes.accepted]
    if app.worker is None:
        found.append(app.external.metrics.late)
    else:
        app.worker.metrics.waiting(await app.store.backlog(), await app.store.now())
        found += app.worker.metrics.all()
    return Answer(text_of(found).encode(), media=CONTENT_TYPE)
