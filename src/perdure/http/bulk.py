"""Bulk operations: one thing done to many executions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from perdure.flows.bulk import Act
from perdure.http import forms
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.http.verbs import from_idempotency_key, key_is_for
from perdure.runtime.managing.bulk import Operation

routes = Routes("bulk")


class FilterIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Which executions: all of this must fit, and all tags must be there; `fields` are published ones."""

    status: forms.Status | None = None
    workflow: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    fields: dict[str, str | int | float | bool | None] = {}
    correlation: forms.Label | None = None
    tag: forms.Tags = []


class BulkIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What to do. `send` takes an `event` and its `payload`, `migrate` a `version`. Without a filter say `all`.

    The same `id` twice is one operation; without one an Idempotency-Key does the same.
    """

    act: Act
    filter: FilterIn = FilterIn()
    all: bool = False
    event: str = ""
    payload: Any = None
    version: Annotated[int, Meta(ge=1)] | None = None
    reason: str = ""
    dry_run: bool = False
    id: str | None = None


class BulkQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: forms.Limit = 50


class OperationsOut(Struct, frozen=True):
    operations: list[Operation]


@routes("POST", "/v1/bulk", "control", body=BulkIn, answers={202: forms.StartedOut}, keyed=True)
async def start_bulk(call: Call[Nothing, BulkIn]) -> Answer:
    """Do one thing to all executions that fit.

    202 when the operation is durable. It is an execution: it can be paused, resumed and cancelled by its id.
    """
    body = structs.asdict(call.body)
    id = body.pop("id") or from_idempotency_key(call, "bulk")
    which = structs.asdict(body.pop("filter"))
    with key_is_for(call, "operation", call.body.id):
        run = await call.app.bulk.start(
            body.pop("act"),
            **which,
            **body,
            id=id,
            by=call.caller.user,
            roles=call.caller.roles,
            tenant=call.tenant,
        )
    return Answer(forms.StartedOut(run.id), 202, {"Location": f"/v1/bulk/{run.id}"})


@routes("GET", "/v1/bulk", "read", query=BulkQuery, answers={200: OperationsOut})
async def list_bulk(call: Call[BulkQuery, Nothing]) -> Answer:
    """List bulk operations, newest first."""
    return Answer(OperationsOut(await call.app.bulk.list(limit=call.query.limit, tenant=call.tenant)))


@routes("GET", "/v1/bulk/{id}", "read", answers={200: Operation})
async def get_bulk(call: Call[Nothing, Nothing]) -> Answer:
    """Tell how far a bulk operation is."""
    return Answer(await call.app.bulk.get(call.path["id"], tenant=call.tenant))
