"""Executions: start, find, look, change their course."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

import msgspec

from perdure.core.reasons import Why
from perdure.errors import ExecutionCancelled, ExecutionFailed, ExecutionStuck, UsageError
from perdure.http import forms, glance
from perdure.http.pictures import drawn
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.http.verbs import from_idempotency_key, is_version, key_is_for, run_of, seconds_of, settled, where
from perdure.runtime.callers.failing import trouble_of

routes = Routes("executions")


@routes(
    "POST",
    "/v1/executions",
    "start",
    body=forms.StartIn,
    query=forms.HowToStart,
    answers={202: forms.StartedOut, 200: forms.ExecutionOut},
    keyed=True,
)
async def start(call: Call[forms.HowToStart, forms.StartIn]) -> Answer:
    """Start an execution.

    202 when it is durable, before anything of it runs. With `wait` 200 and where it stands if it comes to rest in time.
    The same id with the same input gives the same execution. With a `callback` its end is posted there, signed.
    """
    body = call.body
    args = [body.input] if body.args is None else body.args
    id = body.id or from_idempotency_key(call, "start")
    with key_is_for(call, "start", body.id):
        run = await call.app.start_by_name(
            body.workflow,
            args,
            version=body.version,
            id=id,
            lane=body.lane,
            tenant=call.tenant,
            by=call.caller.user,
            callback=body.callback,
            correlation=body.correlation,
            tags=body.tags,
        )
    if (head := await settled(call, run, call.query.wait)) is not None:
        return Answer(await forms.shown(call.app, head), 200, {"Location": where(run.id)})
    return Answer(forms.StartedOut(run.id), 202, {"Location": where(run.id)})


@routes(
    "GET",
    "/v1/executions",
    "read",
    query=forms.ListQuery,
    answers={200: forms.ExecutionsOut},
    glance=glance.executions,
)
async def find(call: Call[forms.ListQuery, Nothing]) -> Answer:
    """Find executions, newest first, page by page.

    Correlation id and tags go by an index; published fields are compared one execution after the other.
    """
    query = call.query
    if query.field or query.correlation or query.tag:
        call.caller.require("read")  # who finds by a value knows it
    found = await call.app.find(
        status=query.status,
        workflow=query.workflow,
        after=query.after,
        before=query.before,
        parent=query.parent,
        correlation=query.correlation,
        tag=query.tag,
        published=forms.fields(query.field),
        limit=query.limit,
        cursor=query.cursor,
        tenant=call.tenant,
    )
    return Answer(await forms.page(call.app, found))


@routes("GET", "/v1/executions/{id}", "read", answers={200: forms.ExecutionOut}, glance=glance.execution)
async def get(call: Call[Nothing, Nothing]) -> Answer:
    """Get an execution in short."""
    return Answer(await forms.shown(call.app, await run_of(call).head()))


@routes("GET", "/v1/executions/{id}/state", "read", query=forms.StateQuery, answers={200: forms.StateOut})
async def state(call: Call[forms.StateQuery, Nothing]) -> Answer:
    """Tell what the log says: now, at a version, or at a time."""
    return Answer(await run_of(call).state(_point(call.query.at)))


def _point(at: str | None) -> int | datetime | None:
    if at is None or is_version(at):
        return None if at is None else int(at)
    try:
        return datetime.fromisoformat(at)
    except ValueError as error:
        raise UsageError(f"{at!r} is neither a version nor a time, as 2030-01-01T12:00:00Z") from error


@routes("GET", "/v1/executions/{id}/why", "read", answers={200: Why}, glance=glance.why)
async def why(call: Call[Nothing, Nothing]) -> Answer:
    """Tell what an execution waits for, since when, and who holds it."""
    return Answer(await run_of(call).why())


@routes("GET", "/v1/executions/{id}/result", "read", query=forms.ResultQuery, answers={200: forms.ResultOut})
async def result(call: Call[forms.ResultQuery, Nothing]) -> Answer:
    """Get the result; with `wait` it is waited for.

    An execution that has not ended answers 200 with its status and no result.
    """
    run = run_of(call)
    if call.query.wait is not None:
        with suppress(TimeoutError, ExecutionFailed, ExecutionCancelled, ExecutionStuck):  # the head says which
            await call.leaving.bounds(run.result(seconds_of(call.query.wait)))
    head = await run.head()
    value = None if head.result is None else msgspec.json.decode(head.result)
    if head.status == "completed":
        return Answer(forms.ResultOut(head.shown, value))
    return Answer(forms.ResultOut(head.shown, error=value, problem=await trouble_of(run, head)))


@routes("GET", "/v1/executions/{id}/diagram", "read", query=forms.DiagramQuery, answers={200: bytes})
async def diagram(call: Call[forms.DiagramQuery, Nothing]) -> Answer:
    """Draw a machine, a graph or a document, as SVG or in the language of Mermaid, with where it is marked."""
    return await drawn(await run_of(call).diagram(), call.query.form)


@routes("POST", "/v1/executions/{id}/pause", "control", body=forms.PauseIn, answers={202: forms.StartedOut})
async def pause(call: Call[Nothing, forms.PauseIn]) -> Answer:
    """Hold an execution: no more actions start."""
    run = run_of(call)
    await run.pause(until=call.body.until, reason=call.body.reason, by=call.caller.user)
    return Answer(forms.StartedOut(run.id), 202)


@routes("POST", "/v1/executions/{id}/resume", "control", body=forms.ResumeIn, answers={202: forms.StartedOut})
async def resume(call: Call[Nothing, forms.ResumeIn]) -> Answer:
    """Go on after a pause, now or at a time."""
    run = run_of(call)
    await run.resume(at=call.body.at, reason=call.body.reason, by=call.caller.user)
    return Answer(forms.StartedOut(run.id), 202)


@routes("POST", "/v1/executions/{id}/cancel", "control", body=forms.CancelIn, answers={202: forms.StartedOut})
async def cancel(call: Call[Nothing, forms.CancelIn]) -> Answer:
    """Ask an execution to stop; its clean-up and undos run first."""
    run, body = run_of(call), call.body
    await run.cancel(body.reason, timeout=body.timeout, now=body.now, by=call.caller.user)
    return Answer(forms.StartedOut(run.id), 202)


@routes("POST", "/v1/executions/{id}/retry", "control", body=forms.RetryIn, answers={202: forms.StartedOut}, keyed=True)
async def retry(call: Call[Nothing, forms.RetryIn]) -> Answer:
    """Try again from where it failed or got stuck; gives the execution that does.

    An `Idempotency-Key`, or an `id`, makes asking again harmless: one that has failed gets one copy.
    """
    origin = run_of(call)
    id = call.body.id or from_idempotency_key(call, f"retry {origin.id}")
    with key_is_for(call, "retry", call.body.id):
        run = await origin.retry(reason=call.body.reason, id=id, by=call.caller.user)
    return Answer(forms.StartedOut(run.id), 202, {"Location": where(run.id)})


@routes("POST", "/v1/executions/{id}/fork", "control", body=forms.ForkIn, answers={202: forms.StartedOut}, keyed=True)
async def fork(call: Call[Nothing, forms.ForkIn]) -> Answer:
    """Start a new execution from a prefix of the log, with results or payloads edited by version.

    An `Idempotency-Key`, or an `id`, makes asking again harmless.
    """
    body, origin = call.body, run_of(call)
    if not all(is_version(version) for version in body.edit):
        raise UsageError('edits are by version: {"4": …}')
    edit = {int(version): value for version, value in body.edit.items()}
    id = body.id or from_idempotency_key(call, f"fork {origin.id}")
    with key_is_for(call, "fork", body.id):
        run = await origin.fork(at=body.at, edit=edit, id=id, by=call.caller.user)
    return Answer(forms.StartedOut(run.id), 202, {"Location": where(run.id)})


@routes(
    "POST",
    "/v1/executions/{id}/migrate",
    "control",
    body=forms.MigrateIn,
    query=forms.ResultQuery,
    answers={200: forms.ExecutionOut, 202: forms.StartedOut},
)
async def migrate(call: Call[forms.ResultQuery, forms.MigrateIn]) -> Answer:
    """Go on with another version of its published definition.

    200 when that has happened, 409 with the reasons when it cannot be, 202 when no worker has judged it within `wait`
    (10 seconds unless given).
    """
    run = run_of(call)
    try:
        await run.migrate(call.body.version, by=call.caller.user, timeout=seconds_of(call.query.wait or "10s"))
    except TimeoutError:
        return Answer(forms.StartedOut(run.id), 202)
    return Answer(await forms.shown(call.app, await run.head()))
