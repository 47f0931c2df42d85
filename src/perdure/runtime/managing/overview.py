"""The whole at a glance: how many executions there are and how long they take, and which workers hold some.

Rules kept here: everything is counted from the heads, of one tenant; what is too much to be counted is counted in part,
and the answer says so; a worker is known by what it holds, so one without work is not seen.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from perdure.core.moments import to_micros
from perdure.core.records import ENDED, Head, Query, ShownStatus
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: Heads that are read at once.
_PAGE = 500


class Durations(Struct, frozen=True):
    """How long executions took that have ended, in seconds."""

    count: int
    p50: float
    p95: float
    longest: float


class WorkflowStats(Struct, frozen=True):
    """The executions of one workflow."""

    workflow: str
    total: int
    by_status: dict[str, int]
    durations: Durations | None = None


class Stats(Struct, frozen=True):
    """Counts of executions. Where `complete` is false there are more, older ones."""

    total: int
    complete: bool
    by_status: dict[str, int]
    workflows: list[WorkflowStats]


class WorkerSeen(Struct, frozen=True):
    """A worker by what it holds of this tenant now."""

    name: str
    holds: int
    queues: list[str]
    workflows: list[str]


async def stats(
    app: Perdure,
    tenant: str,
    workflow: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
) -> Stats:
    """Count the executions that were started in a time, newest first, without the engine's own."""
    query = Query(tenant, workflow=workflow, inner=False, after=_micros(after), before=_micros(before))
    # Of each only what counts is kept: a head may have a result of a megabyte.
    by_status: dict[str, Counter[str]] = defaultdict(Counter)
    took: dict[str, list[float]] = defaultdict(list)
    total, complete = 0, True
    async for head in _all(app, query):
        if total == app.settings.counted:
            complete = False
            break
        total += 1
        by_status[head.workflow][head.shown] += 1
        if head.status in ENDED:
            took[head.workflow].append((head.changed_at - head.started_at) / 1e6)
    flows = [_workflow(name, by_status[name], sorted(took[name])) for name in sorted(by_status)]
    return Stats(total, complete, dict(sum(by_status.values(), Counter[str]())), flows)


async def workers(app: Perdure, tenant: str) -> list[WorkerSeen]:
    """Those that hold executions of a tenant. What is on no queue, such as a lock, is not held by workers."""
    held: dict[str, list[tuple[str, str]]] = defaultdict(list)
    status: ShownStatus = "running"
    async for head in _all(app, Query(tenant, status=status)):
        if head.holder is not None and head.queue:
            held[head.holder].append((head.queue, head.workflow))
    return [
        WorkerSeen(name, len(some), sorted({queue for queue, _ in some}), sorted({flow for _, flow in some}))
        for name, some in sorted(held.items())
    ]


async def _all(app: Perdure, query: Query) -> AsyncIterator[Head]:
    await app.open()
    cursor: tuple[int, str] | None = None
    while True:
        page = Query(
            query.tenant,
            query.status,
            query.workflow,
            inner=query.inner,
            after=query.after,
            before=query.before,
            limit=_PAGE,
            cursor=cursor,
        )
        heads = await app.store.find(page)
        for head in heads:
            yield head
        if len(heads) < _PAGE:
            return
        cursor = heads[-1].started_at, heads[-1].key


def _workflow(name: str, by_status: Counter[str], took: list[float]) -> WorkflowStats:
    durations = Durations(len(took), _quantile(took, 0.5), _quantile(took, 0.95), took[-1]) if took else None
    return WorkflowStats(name, by_status.total(), dict(by_status), durations)


def _quantile(ordered: list[float], share: float) -> float:
    """The smallest value that at least this share of all is not above."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _micros(given: datetime | None) -> int | None:
    if given is not None and given.tzinfo is None:
        raise UsageError("a time needs a time zone, as 2030-01-01T12:00:00Z")
    return None if given is None else to_micros(given)
