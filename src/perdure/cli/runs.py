"""Commands that begin executions, find them, and change their course.

What changes an execution is mail: accepted means durable, and whoever holds the execution folds it in. These commands
then look for a moment whether somebody did, and say so if not.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from typer import Argument, Option

from perdure.cli import loading, values
from perdure.cli.command import AppOption, Call, RunId, command, user
from perdure.cli.display import add_row, ago, doing, head_data, plain, status_text, styled, table
from perdure.core.records import Head, ShownStatus, id_of
from perdure.errors import ExecutionCancelled, ExecutionFailed, ExecutionStuck, UsageError
from perdure.runtime.app import Perdure
from perdure.runtime.run import Run

RUNS, COURSE = "Executions", "Change their course"
#: How long to look whether a worker takes up what was accepted.
PATIENCE = 1.0

Reason = Annotated[str, Option("--reason", help="Kept in the log.", show_default=False)]

OfCorrelation = Annotated[
    str | None, Option("--correlation", metavar="ID", help="Only those with this correlation id.")
]
Tagged = Annotated[list[str] | None, Option("--tag", help="Only those with this tag; repeatable: with all of them.")]


@command("start", RUNS, typed=True)
async def start(
    call: Call,
    module: Annotated[
        str, Argument(metavar="[MODULE]", help="Where its code is, as shop.py; not for what was published.")
    ],
    workflow: Annotated[str | None, Argument(metavar="NAME", help="Of the workflow.", show_default=False)] = None,
    args: Annotated[list[str] | None, Argument(metavar="ARGS", help="Its arguments, each in JSON.")] = None,
    input: Annotated[str | None, Option("--input", metavar="JSON", help="All arguments as one JSON list.")] = None,
    id: Annotated[str | None, Option("--id", help="The execution's id; the same id starts it once.")] = None,
    version: Annotated[int | None, Option("--version", help="Of the workflow; the newest unless given.")] = None,
    lane: Annotated[str | None, Option("--lane", help="Executions of one lane run one at a time.")] = None,
    correlation: Annotated[
        str | None, Option("--correlation", metavar="ID", help="What it is about, to find it by; children inherit it.")
    ] = None,
    tag: Annotated[list[str] | None, Option("--tag", help="To find it by; repeatable.")] = None,
    wait: Annotated[bool, Option("--wait", help="Wait for the result; 1 if it does not succeed.")] = False,
) -> int:
    """Start an execution.

    Example: perdure start shop.py fulfil '{"item": "tea"}' --id order-42 --wait

    Example: perdure start order '{"item": "tea"}' --version 2
    """
    if loading.is_code(module):
        if workflow is None:
            raise UsageError(f"which workflow of {module}? `perdure workflows {module}` lists them")
        code, name, words = module, workflow, args or []
    else:  # a name: what was published needs no code here
        code, name, words = None, module, [*([workflow] if workflow is not None else []), *(args or [])]
    given = values.json_list(input) if input is not None else []
    given += [values.json_value(text, "an argument") for text in words]
    async with call.client(code, code=code is not None, create=code is not None) as client:
        labels: dict[str, Any] = {"correlation": correlation, "tags": tag or ()}
        run = await client.start_by_name(name, given, version=version, id=id, lane=lane, by=user(), **labels)
        if wait:
            return await _wait(call, client, run)
        if call.show.json:
            call.show.data(head_data(await run.head()))
        else:
            call.show.print(styled("started ", (run.id, "bold")))
    return 0


async def _wait(call: Call, client: Perdure, run: Run[Any]) -> int:
    watching = asyncio.create_task(_note_if_idle(call, client, run))
    try:
        await run.result()
        code = 0
    except (ExecutionFailed, ExecutionCancelled, ExecutionStuck) as error:
        code = 1
        if not call.show.json:
            call.show.error(str(error))
    except asyncio.CancelledError:  # Ctrl-C
        call.show.note(f"{run.id} goes on; `perdure tail {run.id}` follows it")
        raise
    finally:
        watching.cancel()
    head = await run.head()
    if call.show.json:
        call.show.data(head_data(head))
    elif code == 0:
        call.show.print(styled((head.result or b"null").decode()))
    return code


async def _note_if_idle(call: Call, client: Perdure, run: Run[Any]) -> None:
    await asyncio.sleep(client.settings.grace + PATIENCE)
    head = await run.head()
    if head.version == 1 and head.holder is None:
        call.show.note(f"no worker has begun {run.id} yet; {needs(head)}")


@command("send", RUNS, typed=True)
async def send(
    call: Call,
    id: RunId,
    name: Annotated[str, Argument(metavar="NAME", help="The event's name.", show_default=False)],
    payload: Annotated[str, Argument(metavar="PAYLOAD", help="In JSON.", show_default=False)] = "null",
    event: Annotated[str | None, Option("--id", metavar="EVENT", help="The same id twice is one event.")] = None,
    role: Annotated[list[str] | None, Option("--role", help="In which you send it, for machines; repeatable.")] = None,
    now: Annotated[
        bool, Option("--now", help="Refuse it at once if a machine does not take it where it rests.")
    ] = False,
    app: AppOption = None,
) -> None:
    """Send an event to an execution.

    Accepted means durable: it is applied exactly once. A machine may reject it when its turn comes: its log tells.

    Example: perdure send order-42 packed '{"tracking": "X1"}'
    """
    value = values.json_value(payload, "the payload")
    async with call.client(app) as client:
        event_id = await client.send(
            id, name, value, event_id=event, by=user(), roles=role or (), validate="now" if now else "later"
        )
        if call.show.json:
            call.show.data({"id": id, "event": event_id, "name": name, "accepted": True})
        else:
            call.show.print(styled("accepted ", (name, "bold"), (f"  event {event_id}", "dim")))


@command("list", RUNS)
async def find(
    call: Call,
    status: Annotated[ShownStatus | None, Option("--status", help="Only those that are …")] = None,
    workflow: Annotated[str | None, Option("--workflow", help="Only those of this workflow.")] = None,
    since: Annotated[str | None, Option("--since", metavar="TIME", help="Started since: 2h, or a time.")] = None,
    field: Annotated[list[str] | None, Option("--field", metavar="K=V", help="Published field; repeatable.")] = None,
    correlation: OfCorrelation = None,
    tag: Tagged = None,
    limit: Annotated[int, Option("--limit", min=1, max=1000, help="How many.")] = 50,
    cursor: Annotated[str | None, Option("--cursor", help="Go on after the page that gave it.")] = None,
    app: AppOption = None,
) -> None:
    """List executions, newest first.

    Example: perdure list --status waiting --field customer=ada --since 2h

    Example: perdure list --correlation order-4711 --tag vip
    """
    after = values.since(since) if since is not None and cursor is None else None  # a cursor knows since when
    wanted = values.fields(field or ())
    async with call.client(app) as client:
        page = await client.find(
            status=status,
            workflow=workflow,
            after=after,
            correlation=correlation,
            tag=tag or (),
            limit=limit,
            cursor=cursor,
            published=wanted,
        )
        if call.show.json:
            call.show.data(
                {"executions": [head_data(head, await client.running(head)) for head in page.heads], "next": page.next}
            )
            return
        if not page.heads:
            call.show.note("no execution found")
            return
        now = client.clock.now()
        rows = table("id", "workflow", "status", "started", "what", flexible="what")
        for head in page.heads:
            add_row(
                rows,
                styled((id_of(head.key), "bold")),
                styled(await client.running(head)),
                status_text(head.shown),
                styled((ago(head.started_at, now), "dim")),
                styled(doing(head, now)),
            )
        call.show.print(rows)
        if page.next:
            call.show.note(f"there are more: --cursor {page.next}")


@command("pause", COURSE, act="executions.pause")
async def pause(
    call: Call,
    id: RunId,
    until: Annotated[str | None, Option("--until", metavar="TIME", help="Resume by itself: a time or +2h.")] = None,
    reason: Reason = "",
    app: AppOption = None,
) -> None:
    """Hold an execution: no more actions start.

    Those that run may finish and are recorded. A pause survives restarts.

    Example: perdure pause order-42 --until +2h --reason "the bank is down"
    """
    at = values.moment(until) if until is not None else None
    async with call.client(app) as client:
        run = client.get(id)
        await run.pause(until=at, reason=reason, by=user())
        await _accepted(call, run, "pause")


@command("resume", COURSE, act="executions.resume")
async def resume(
    call: Call,
    id: RunId,
    at: Annotated[str | None, Option("--at", metavar="TIME", help="Not now but then: a time or +30m.")] = None,
    reason: Reason = "",
    app: AppOption = None,
) -> None:
    """Go on after a pause.

    Example: perdure resume order-42 --at +30m
    """
    then = values.moment(at) if at is not None else None
    async with call.client(app) as client:
        run = client.get(id)
        before = await run.head()
        await run.resume(at=then, reason=reason, by=user())
        if before.status != "paused" and not before.mail:
            call.show.note(f"{id} was {before.shown}, not paused: there is nothing to resume")
        await _accepted(call, run, "resume")


@command("cancel", COURSE, act="executions.cancel")
async def cancel(
    call: Call,
    id: RunId,
    reason: Reason = "",
    now: Annotated[bool, Option("--now", help="Without clean-up and undos.")] = False,
    timeout: Annotated[str | None, Option("--timeout", help="How long clean-up and undos may take.")] = None,
    app: AppOption = None,
) -> None:
    """Ask an execution to stop; its clean-up and undos run first.

    Example: perdure cancel order-42 --reason "out of stock" --timeout 1m
    """
    async with call.client(app) as client:
        run = client.get(id)
        await run.cancel(reason, timeout=timeout, now=now, by=user())
        await _accepted(call, run, "cancel")


@command("retry", COURSE, act="executions.retry")
async def retry(call: Call, id: RunId, reason: Reason = "", app: AppOption = None) -> None:
    """Try again from where it failed.

    A stuck execution goes on itself; one that has failed or was cancelled does so as a new execution.

    Example: perdure retry order-42
    """
    async with call.client(app) as client:
        run = client.get(id)
        again = await run.retry(reason=reason, by=user())
        await _accepted(call, again, "retry", origin=id)


@command("fork", COURSE, act="executions.fork", typed=True)
async def fork(
    call: Call,
    id: RunId,
    at: Annotated[int | None, Option("--at", metavar="N", help="The last version to keep; all unless given.")] = None,
    edit: Annotated[
        list[str] | None, Option("--edit", metavar="VERSION=JSON", help="Another result, payload or input; repeatable.")
    ] = None,
    new: Annotated[str | None, Option("--id", metavar="NEW", help="The new execution's id.")] = None,
    app: AppOption = None,
) -> None:
    """Start a new execution from a prefix of the log of another.

    Example: perdure fork order-42 --at 7 --edit 5='{"paid": true}'
    """
    changes = values.edits(edit or ())
    async with call.client(app) as client:
        forked = await client.get(id).fork(at=at, edit=changes, id=new, by=user())
        await _accepted(call, forked, "fork", origin=id)


async def _accepted(call: Call, run: Run[Any], what: str, origin: str = "") -> None:
    """Say what was accepted and, after a moment, what became of it."""
    head, begun = await taken(run)
    if call.show.json:
        answer = {"id": run.id, "accepted": what, "taken": begun, "status": head.shown}
        call.show.data(answer | {"from": origin} if origin and origin != run.id else answer)
        return
    source = f" of {origin}" if origin and origin != run.id else ""
    call.show.print(styled(f"{what}{source} accepted: ", (run.id, "bold"), " is ") + status_text(head.shown))
    if not begun:
        call.show.note(f"no worker has taken it up yet; {needs(head)}")


async def taken(run: Run[Any]) -> tuple[Head, bool]:
    """The head once no mail waits and somebody has begun it, or after a moment of patience."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while True:
        head = await run.head()
        idle = head.mail or (head.status == "open" and head.holder is None and head.waits is None)
        if not idle or loop.time() > deadline:
            return head, not idle
        await asyncio.sleep(0.03)


def needs(head: Head) -> str:
    return plain(f"it needs one that serves queue {head.queue!r} and has {head.definition}")
