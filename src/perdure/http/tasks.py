"""Tasks for people: found, claimed, given back, passed on, completed.

Who does it is whom the credential stands for, with the roles in it; nothing of that is in a request. A task judges by
itself what is asked of it, so without a worker there is no verdict yet: then the answer is 202, and the task will tell.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from perdure.flows.person import Role
from perdure.http.forms import Limit, Wait
from perdure.http.problems import Refused
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.http.verbs import from_idempotency_key, key_is_for, seconds_of
from perdure.runtime.managing.tasks import PATIENCE, Task, TaskPage, TaskStatus

routes = Routes("tasks")
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class TasksQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to look for; `mine` means: what the caller can do now, or has completed."""

    mine: bool = False
    name: str | None = None
    status: TaskStatus | None = None
    assignee: str | None = None
    role: str | None = None
    claimed_by: str | None = None
    execution: str | None = None
    limit: Limit = 50
    cursor: str | None = None


class HowToJudge(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the answer may wait for the verdict of the task.

    The same `event_id` twice is one request; without one an Idempotency-Key does the same.
    """

    wait: Wait = PATIENCE
    event_id: str | None = None


class PeopleIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may do it from now on; nobody named means anybody."""

    users: list[Name] = []
    roles: list[Name] = []


class FilledIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What the form asks for."""

    value: Any = None


class Undecided(Struct, frozen=True):
    """What was asked of a task is durable, and no worker has judged it yet: look at the task later."""

    task: str


@routes("GET", "/v1/tasks", "read", query=TasksQuery, answers={200: TaskPage})
async def list_tasks(call: Call[TasksQuery, Nothing]) -> Answer:
    """Find tasks for people, newest first, page by page.

    With `mine` those that the caller can do now: for them, by name or role, and claimed by nobody else.
    """
    query, tasks = call.query, call.app.tasks
    if not query.mine:
        found = await tasks.list(
            name=query.name,
            status=query.status,
            assignee=query.assignee,
            role=query.role,
            claimed_by=query.claimed_by,
            execution=query.execution,
            limit=query.limit,
            cursor=query.cursor,
            tenant=call.tenant,
        )
        return Answer(found)
    if any(one is not None for one in (query.assignee, query.role, query.claimed_by, query.execution)):
        raise Refused(400, "Bad Combination", "`mine` goes with `name` and `status` only")
    match query.status:
        case "expired" | "cancelled" as status:
            raise Refused(400, "Bad Combination", f"what is {status} is nobody's: `mine` goes with another status")
        case status:
            return Answer(await _mine(call, status))


async def _mine(call: Call[TasksQuery, Nothing], status: Literal["open", "claimed", "completed"] | None) -> TaskPage:
    query, caller = call.query, call.caller
    return await call.app.tasks.mine(
        caller.user,
        caller.roles,
        name=query.name,
        status=status,
        limit=query.limit,
        cursor=query.cursor,
        tenant=call.tenant,
    )


@routes("GET", "/v1/tasks/{id}", "read", answers={200: Task})
async def get_task(call: Call[Nothing, Nothing]) -> Answer:
    """Get a task with its form (a JSON Schema), its data and what was filled in."""
    return Answer(await call.app.tasks.get(call.path["id"], tenant=call.tenant))


@routes("POST", "/v1/tasks/{id}/claim", "send", query=HowToJudge, answers={200: Task, 202: Undecided}, keyed=True)
async def claim_task(call: Call[HowToJudge, Nothing]) -> Answer:
    """Take a task for oneself; 409 if it is somebody else's."""
    return await _judged(call, "claim", call.app.tasks.claim(**_common(call, "claim")))


@routes("POST", "/v1/tasks/{id}/release", "send", query=HowToJudge, answers={200: Task, 202: Undecided}, keyed=True)
async def release_task(call: Call[HowToJudge, Nothing]) -> Answer:
    """Give a task back that one has claimed."""
    return await _judged(call, "release", call.app.tasks.release(**_common(call, "release")))


@routes(
    "POST",
    "/v1/tasks/{id}/assign",
    "control",
    body=PeopleIn,
    query=HowToJudge,
    answers={200: Task, 202: Undecided},
    keyed=True,
)
async def assign_task(call: Call[HowToJudge, PeopleIn]) -> Answer:
    """Let others do a task, instead of those who could before; a claim is over with that."""
    to: list[str | Role] = [*call.body.users, *map(Role, call.body.roles)]
    return await _judged(call, "assign", call.app.tasks.assign(**_common(call, "assign"), to=to))


@routes(
    "POST",
    "/v1/tasks/{id}/complete",
    "send",
    body=FilledIn,
    query=HowToJudge,
    answers={200: Task, 202: Undecided},
    keyed=True,
)
async def complete_task(call: Call[HowToJudge, FilledIn]) -> Answer:
    """Hand in what the form of a task asks for.

    422 with all that does not fit, and then nothing has happened. The same value once more is answered like the first.
    """
    done = call.app.tasks.complete(**_common(call, "complete"), value=call.body.value)
    return await _judged(call, "complete", done)


def _common(call: Call[HowToJudge, Any], what: str) -> dict[str, Any]:
    """What all verbs are told."""
    id = call.path["id"]
    return {
        "id": id,
        "by": call.caller.user,
        "roles": call.caller.roles,
        "event_id": call.query.event_id or from_idempotency_key(call, f"{what} {id}"),
        "wait": seconds_of(call.query.wait),
        "tenant": call.tenant,
    }


async def _judged(call: Call[HowToJudge, Any], what: str, verdict: Coroutine[Any, Any, Task]) -> Answer:
    id = call.path["id"]
    place = {"Location": f"/v1/tasks/{id}"}
    try:
        with key_is_for(call, what, call.query.event_id):
            return Answer(await call.leaving.bounds(verdict), 200, place)
    except TimeoutError:
        return Answer(Undecided(id), 202, place)
