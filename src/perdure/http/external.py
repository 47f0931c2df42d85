"""External tasks: workers in any language ask for actions, keep them by heartbeats, say what became of them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from perdure.core.durations import seconds
from perdure.http import forms
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.http.verbs import seconds_of
from perdure.runtime.external.external import LONGEST_WORKER, MOST, Beat
from perdure.runtime.external.handing import ExternalTask

routes = Routes("external tasks")
Token = Annotated[str, Meta(min_length=1, description="As it was given with the task.")]
Span = Annotated[str, Meta(description="A duration, as `30s` or `PT30S`.")]


class PollIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What to ask for: tasks of a queue, of all its actions or of some."""

    queue: Annotated[str, Meta(min_length=1)]
    actions: Annotated[list[str], Meta(min_length=1, max_length=MOST)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST)] = 1
    wait: forms.Wait = "30s"
    lease: Span = "30s"
    worker: Annotated[str, Meta(max_length=LONGEST_WORKER)] = ""


class TasksOut(Struct, frozen=True):
    tasks: list[ExternalTask]


class HeartbeatIn(Struct, frozen=True, forbid_unknown_fields=True):
    token: Token
    details: Any = None


class CompleteIn(Struct, frozen=True, forbid_unknown_fields=True):
    token: Token
    result: Any = None


class FailIn(Struct, frozen=True, forbid_unknown_fields=True):
    """A failure. Without `retry` it is for good; `after` is how long at least to wait with another attempt."""

    token: Token
    type: Annotated[str, Meta(min_length=1, max_length=200)]
    message: str = ""
    retry: bool = True
    after: Span | None = None
    details: Any = None


@routes("POST", "/v1/external/poll", "work", body=PollIn, answers={200: TasksOut})
async def poll(call: Call[Nothing, PollIn]) -> Answer:
    """Ask for tasks of a queue; the answer is kept until there are some, or for the time of `wait`.

    A task is its worker's for the time of the lease, and then another's; a heartbeat begins the lease anew.
    """
    body = call.body
    tasks = await call.app.external.poll(
        body.queue,
        actions=body.actions,
        limit=body.limit,
        wait=seconds_of(body.wait),
        worker=body.worker or call.caller.user,
        lease=seconds(body.lease),
        tenant=call.tenant,
        listens=call.listens,
    )
    return Answer(TasksOut(tasks), headers={"Cache-Control": "no-store"})


@routes("POST", "/v1/external/heartbeat", "work", body=HeartbeatIn, answers={200: Beat})
async def heartbeat(call: Call[Nothing, HeartbeatIn]) -> Answer:
    """Say that a task is being done; the answer tells whether it is still wanted.

    409 when it is another worker's by now.
    """
    return Answer(await call.app.external.heartbeat(call.body.token, call.body.details, tenant=call.tenant))


@routes("POST", "/v1/external/complete", "work", body=CompleteIn, answers={204: None})
async def complete(call: Call[Nothing, CompleteIn]) -> Answer:
    """Give the result of a task.

    422 when it does not fit what the action declares: the task stays with its worker. 409 when it comes too late, or a
    second time: then it is dropped.
    """
    await call.app.external.complete(call.body.token, call.body.result, tenant=call.tenant)
    return Answer(status=204)


@routes("POST", "/v1/external/fail", "work", body=FailIn, answers={204: None})
async def fail(call: Call[Nothing, FailIn]) -> Answer:
    """Say that a task failed; the retry policy of the action decides about another attempt.

    409 when it comes too late, or a second time: then it is dropped.
    """
    body = call.body
    await call.app.external.fail(
        body.token,
        body.type,
        body.message,
        retry=body.retry,
        after=body.after,
        details=body.details,
        tenant=call.tenant,
    )
    return Answer(status=204)
