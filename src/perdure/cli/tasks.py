"""Commands about tasks for people: what workflows ask of somebody.

What is asked of a task is an event, durable before anything else; the task judges it when a worker runs it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

import msgspec
import typer
from typer import Argument, Option

from perdure.cli import values
from perdure.cli.command import AppOption, Call, RunId, command, user
from perdure.cli.display import add_row, ago, brief, compact, pairs, styled, table
from perdure.core.moments import to_micros
from perdure.errors import UsageError
from perdure.flows.person import Role
from perdure.runtime.app import Perdure
from perdure.runtime.managing.tasks import PATIENCE, Task, TaskStatus

group = typer.Typer(
    name="tasks",
    help="Tasks for people: list, show, claim, release, assign or complete what workflows ask.",
    epilog="Exit codes: 0 done, 1 refused or not found, 2 asked wrongly.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

By = Annotated[str | None, Option("--by", metavar="USER", help="Who does it, if not you.")]
Roles = Annotated[list[str] | None, Option("--role", help="In which it is done; repeatable.")]
Waits = Annotated[str, Option("--wait", metavar="TIME", help="How long to wait for the verdict.")]
_COLOURS = {"open": "yellow", "claimed": "cyan", "completed": "green", "expired": "red", "cancelled": "dim"}


@command("list", group=group)
async def tasks_list(
    call: Call,
    mine: Annotated[bool, Option("--mine", help="Only what you can do now, or --by can.")] = False,
    by: By = None,
    role: Roles = None,
    name: Annotated[str | None, Option("--name", help="Only those of this name.")] = None,
    status: Annotated[TaskStatus | None, Option("--status", help="Only those that are …")] = None,
    assignee: Annotated[str | None, Option("--assignee", help="Only those that this user may do.")] = None,
    limit: Annotated[int, Option("--limit", min=1, max=1000, help="How many.")] = 50,
    cursor: Annotated[str | None, Option("--cursor", help="Go on after the page that gave it.")] = None,
    app: AppOption = None,
) -> None:
    """List tasks, newest first.

    Example: perdure tasks list --status open

    Example: perdure tasks list --mine --role heads
    """
    roles = role or []
    if mine and (assignee or status):
        raise UsageError("--mine is what can be done now: it goes with --by, --role and --name only")
    if len(roles) > 1 and not mine:
        raise UsageError("tasks are listed by one role; several are for --mine")
    async with call.client(app) as client:
        if mine:
            page = await client.tasks.mine(by or user(), roles, name=name, limit=limit, cursor=cursor)
        else:
            first = next(iter(roles), None)
            page = await client.tasks.list(
                name=name, status=status, assignee=assignee, role=first, limit=limit, cursor=cursor
            )
        if call.show.json:
            call.show.data({"tasks": [_data(one) for one in page.tasks], "next": page.next})
            return
        if not page.tasks:
            call.show.note("there are no such tasks")
            return
        call.show.print(_table(page.tasks, client.clock.now()))
        if page.next:
            call.show.note(f"there are more: --cursor {page.next}")


def _table(tasks: list[Task], now: int) -> Any:
    rows = table("id", "task", "status", "for", "claimed by", "since", "due", "title", flexible="title")
    for one in tasks:
        add_row(
            rows,
            styled((one.id, "bold")),
            styled(one.name),
            styled((one.status, _COLOURS[one.status])),
            styled(_people(one)),
            styled(one.claimed_by),
            styled((ago(to_micros(one.created_at), now), "dim")),
            styled(_due(one, now)),
            styled(one.title),
        )
    return rows


def _people(task: Task) -> str:
    return ", ".join([*task.users, *(f"role {role}" for role in task.roles)]) or "anyone"


def _due(task: Task, now: int) -> str:
    if task.due is None or task.status not in ("open", "claimed"):
        return ""
    left = to_micros(task.due) - now
    return f"in {brief(left)}" if left > 0 else "now"


def _data(task: Task) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(task)
    return data


@command("show", group=group)
async def tasks_show(call: Call, id: RunId, app: AppOption = None) -> None:
    """Show one task: whom it is for, its data, its form and what was filled in. Its history is in its log.

    Example: perdure tasks show order-42.3

    Example: perdure show order-42.3
    """
    async with call.client(app) as client:
        _tell(call, await client.tasks.get(id), client.clock.now())


def _tell(call: Call, task: Task, now: int) -> None:
    if call.show.json:
        call.show.data(_data(task))
        return
    facts: list[tuple[str, Any]] = [
        ("id", styled((task.id, "bold"), f"  of {task.execution}" if task.execution else "")),
        ("task", styled(f"{task.name}  {task.title}".strip())),
        ("status", styled((task.status, _COLOURS[task.status]))),
        ("for", styled(_people(task))),
        ("claimed by", styled(task.claimed_by)),
        ("completed by", styled(task.completed_by)),
        ("due", styled(_due(task, now))),
        ("data", styled("" if task.data is None else compact(task.data))),
        ("form", styled("" if task.form is None else compact(task.form))),
        ("value", styled(compact(task.value) if task.status == "completed" else "")),
    ]
    call.show.print(pairs([(name, value) for name, value in facts if value.plain]))


async def _verdict(call: Call, client: Perdure, asked: Coroutine[Any, Any, Task]) -> int:
    """Show the task as it is then; 1 if nobody has judged it yet."""
    try:
        task = await asked
    except TimeoutError as error:
        call.show.error(str(error), "start a worker; it is not needed to ask again")
        return 1
    _tell(call, task, client.clock.now())
    return 0


@command("claim", group=group)
async def tasks_claim(
    call: Call, id: RunId, by: By = None, role: Roles = None, wait: Waits = PATIENCE, app: AppOption = None
) -> int:
    """Take a task for yourself: nobody else can then complete it.

    Example: perdure tasks claim order-42.3 --role heads
    """
    async with call.client(app) as client:
        asked = client.tasks.claim(id, by=by or user(), roles=role or (), wait=wait)
        return await _verdict(call, client, asked)


@command("release", group=group)
async def tasks_release(call: Call, id: RunId, by: By = None, wait: Waits = PATIENCE, app: AppOption = None) -> int:
    """Give a task back that you have claimed.

    Example: perdure tasks release order-42.3
    """
    async with call.client(app) as client:
        return await _verdict(call, client, client.tasks.release(id, by=by or user(), wait=wait))


@command("assign", group=group)
async def tasks_assign(
    call: Call,
    id: RunId,
    users: Annotated[list[str] | None, Argument(metavar="USER", help="Who may do it; nobody means anybody.")] = None,
    role: Annotated[list[str] | None, Option("--role", help="Whoever has this role, too; repeatable.")] = None,
    by: By = None,
    wait: Waits = PATIENCE,
    app: AppOption = None,
) -> int:
    """Let others do a task, instead of those who could before; a claim is over with that.

    Example: perdure tasks assign order-42.3 ann --role heads
    """
    to: list[str | Role] = [*(users or ()), *map(Role, role or ())]
    async with call.client(app) as client:
        return await _verdict(call, client, client.tasks.assign(id, to, by=by or user(), wait=wait))


@command("complete", group=group)
async def tasks_complete(
    call: Call,
    id: RunId,
    value: Annotated[str, Argument(metavar="VALUE", help="What the form asks for, in JSON.", show_default=False)] = (
        "null"
    ),
    by: By = None,
    role: Roles = None,
    wait: Waits = PATIENCE,
    app: AppOption = None,
) -> int:
    """Complete a task.

    Example: perdure tasks complete order-42.3 '{"yes": true}'
    """
    said = values.json_value(value, "the value")
    async with call.client(app) as client:
        asked = client.tasks.complete(id, said, by=by or user(), roles=role or (), wait=wait)
        return await _verdict(call, client, asked)
