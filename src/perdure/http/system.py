"""Dead letters, and how this process is."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta, Struct

from perdure.errors import StoreError
from perdure.http import forms, glance
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.runtime.managing.dead import DeadPage, Handled

routes = Routes("system")
#: Seconds that it may take to connect to the store.
PATIENCE = 2.0
#: Dead letters that a request may name.
MOST = 1000


class DeadQuery(Struct, frozen=True, forbid_unknown_fields=True):
    cause: str | None = None
    workflow: str | None = None
    oldest: bool = False
    limit: forms.Limit = 50
    cursor: str | None = None


class WhichIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters: these, those of a cause or workflow, or all."""

    ids: Annotated[list[str], Meta(max_length=MOST)] = []
    cause: str | None = None
    workflow: str | None = None
    all: bool = False
    dry_run: bool = False
    reason: str = ""


class HealthOut(Struct, frozen=True):
    status: str


@routes("GET", "/v1/dead", "read", query=DeadQuery, answers={200: DeadPage}, glance=glance.dead)
async def dead(call: Call[DeadQuery, Nothing]) -> Answer:
    """List executions that are stuck, those that got stuck last first."""
    query = call.query
    return Answer(
        await call.app.dead(
            cause=query.cause,
            workflow=query.workflow,
            oldest=query.oldest,
            limit=query.limit,
            cursor=query.cursor,
            tenant=call.tenant,
        )
    )


def _which(call: Call[Nothing, WhichIn]) -> dict[str, Any]:
    body = call.body
    return {
        "cause": body.cause,
        "workflow": body.workflow,
        "all": body.all,
        "dry_run": body.dry_run,
        "reason": body.reason,
        "by": call.caller.user,
        "tenant": call.tenant,
    }


@routes("POST", "/v1/dead/redrive", "control", body=WhichIn, answers={200: Handled})
async def redrive(call: Call[Nothing, WhichIn]) -> Answer:
    """Try stuck executions again, each once for each time that it got stuck."""
    return Answer(await call.app.redrive(*call.body.ids, **_which(call)))


@routes("POST", "/v1/dead/purge", "admin", body=WhichIn, answers={200: Handled})
async def purge(call: Call[Nothing, WhichIn]) -> Answer:
    """Give stuck executions up: they end as cancelled, their logs stay."""
    return Answer(await call.app.purge(*call.body.ids, **_which(call)))


@routes("GET", "/health/live", None, answers={200: HealthOut})
async def live(call: Call[Nothing, Nothing]) -> Answer:
    """Tell whether this process answers."""
    return Answer(HealthOut("live"))


@routes("GET", "/health", None, answers={200: HealthOut, 503: HealthOut})
async def health(call: Call[Nothing, Nothing]) -> Answer:
    """Tell how this process is: the same as `/health/ready`."""
    return await ready(call)


@routes("GET", "/health/ready", None, answers={200: HealthOut, 503: HealthOut})
async def ready(call: Call[Nothing, Nothing]) -> Answer:
    """Tell whether requests can be served: whether the store answers.

    `degraded` is 200 as well: hints do not get through, so work is found a little later.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            await call.app.open()
        away = bool(await call.site.probe.trouble())
    except (StoreError, TimeoutError):
        away = True
    if away:
        return Answer(HealthOut("the store does not answer"), 503)
    return Answer(HealthOut("degraded" if call.app.stream.trouble else "ready"))
