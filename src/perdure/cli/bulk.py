"""Commands that do one thing to many executions.

The operation is an execution itself: a worker does it, also when nobody waits. These commands wait for its end and
count meanwhile; interrupting them does not stop it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer import Argument, Option

from perdure.cli import values
from perdure.cli.command import AppOption, Call, command, user
from perdure.cli.display import add_row, ago, status_text, styled, table
from perdure.cli.runs import PATIENCE, OfCorrelation, Reason, Tagged, needs
from perdure.core.moments import to_micros
from perdure.core.records import ENDED, ShownStatus
from perdure.flows.bulk import Act
from perdure.runtime.app import Perdure
from perdure.runtime.managing.bulk import Operation

group = typer.Typer(
    name="bulk",
    help="Do one thing to many executions: cancel, pause, resume, retry, send, migrate.",
    epilog="Exit codes: 0 done, 1 it could not be done to some of them, 2 asked wrongly.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

OfStatus = Annotated[ShownStatus | None, Option("--status", help="Those that are …")]
OfWorkflow = Annotated[str | None, Option("--workflow", help="Those of this workflow.")]
Since = Annotated[str | None, Option("--since", metavar="TIME", help="Started since: 2h, or a time.")]
Before = Annotated[str | None, Option("--before", metavar="TIME", help="Started before: 2h ago, or a time.")]
Field = Annotated[list[str] | None, Option("--field", metavar="K=V", help="Published field; repeatable.")]
All = Annotated[bool, Option("--all", help="All executions.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only tell how many, and the first of them.")]
Detach = Annotated[bool, Option("--detach", help="Do not wait for the end.")]


def _which(
    status: ShownStatus | None,
    workflow: str | None,
    since: str | None,
    before: str | None,
    field: list[str] | None,
    correlation: str | None,
    tag: list[str] | None,
    all: bool,
) -> dict[str, Any]:
    return {
        "status": status,
        "workflow": workflow,
        "after": None if since is None else values.since(since),
        "before": None if before is None else values.since(before),
        "fields": values.fields(field or ()),
        "correlation": correlation,
        "tag": tag or (),
        "all": all,
    }


def _plain(act: Act, verb: str) -> None:
    """A command that takes nothing but which executions."""

    async def run(
        call: Call,
        status: OfStatus = None,
        workflow: OfWorkflow = None,
        since: Since = None,
        before: Before = None,
        field: Field = None,
        correlation: OfCorrelation = None,
        tag: Tagged = None,
        all: All = False,
        dry_run: DryRun = False,
        detach: Detach = False,
        reason: Reason = "",
        app: AppOption = None,
    ) -> int:
        which = _which(status, workflow, since, before, field, correlation, tag, all)
        return await _do(call, app, act, which, dry_run, detach, reason)

    run.__doc__ = f"{verb}\n\nExample: perdure bulk {act} --workflow order --field stage=paid --dry-run"
    run.__name__ = f"bulk_{act}"
    command(act, group=group, act=f"bulk.{act}")(run)


_plain("cancel", "Ask executions to stop; their clean-up and undos run first.")
_plain("pause", "Hold executions: no more of their actions start.")
_plain("resume", "Let executions go on after a pause.")
_plain("retry", "Try failed, cancelled and stuck executions again from where they stopped.")


@command("send", group=group, act="bulk.send", typed=True)
async def send(
    call: Call,
    name: Annotated[str, Argument(metavar="NAME", help="The event's name.", show_default=False)],
    payload: Annotated[str, Argument(metavar="PAYLOAD", help="In JSON.", show_default=False)] = "null",
    status: OfStatus = None,
    workflow: OfWorkflow = None,
    since: Since = None,
    before: Before = None,
    field: Field = None,
    correlation: OfCorrelation = None,
    tag: Tagged = None,
    all: All = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    reason: Reason = "",
    app: AppOption = None,
) -> int:
    """Send the same event to executions, to each once.

    Example: perdure bulk send approved '{"by": "ada"}' --workflow order --field stage=review
    """
    event = {"event": name, "payload": values.json_value(payload, "the payload")}
    which = _which(status, workflow, since, before, field, correlation, tag, all)
    return await _do(call, app, "send", which | event, dry_run, detach, reason)


@command("migrate", group=group, act="bulk.migrate")
async def migrate(
    call: Call,
    version: Annotated[int, Argument(metavar="VERSION", help="Of the definition.", show_default=False)],
    status: OfStatus = None,
    workflow: OfWorkflow = None,
    since: Since = None,
    before: Before = None,
    field: Field = None,
    correlation: OfCorrelation = None,
    tag: Tagged = None,
    all: All = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    reason: Reason = "",
    app: AppOption = None,
) -> int:
    """Let executions go on with another version of their published definition.

    Example: perdure bulk migrate 3 --workflow order --status waiting
    """
    which = _which(status, workflow, since, before, field, correlation, tag, all)
    return await _do(call, app, "migrate", which | {"version": version}, dry_run, detach, reason)


@command("show", group=group)
async def show(
    call: Call, id: Annotated[str, Argument(metavar="ID", help="The operation's id.")], app: AppOption = None
) -> None:
    """Show how far a bulk operation is.

    Example: perdure bulk show bulk-018f4c2a9b1
    """
    async with call.client(app) as client:
        _tell(call, await client.bulk.get(id))


@command("list", group=group)
async def list_all(
    call: Call,
    limit: Annotated[int, Option("--limit", min=1, max=1000, help="How many.")] = 20,
    app: AppOption = None,
) -> None:
    """List bulk operations, newest first.

    Example: perdure bulk list
    """
    async with call.client(app) as client:
        found = await client.bulk.list(limit=limit)
        if call.show.json:
            call.show.data(found)
            return
        if not found:
            call.show.note("there was no bulk operation yet")
            return
        rows = table("id", "act", "status", "started", "found", "done", "skipped", "failed", "by")
        for one in found:
            began = ago(to_micros(one.started_at), client.clock.now())
            counts = (one.found, one.done, one.skipped, one.failed)
            add_row(
                rows,
                styled((one.id, "bold")),
                styled(one.act + (" (dry run)" if one.dry_run else "")),
                status_text(one.status),
                styled((began, "dim")),
                *(styled(f"{count:,}") for count in counts),
                styled(one.by),
            )
        call.show.print(rows)


async def _do(
    call: Call, app: str | None, act: Act, which: dict[str, Any], dry_run: bool, detach: bool, reason: str
) -> int:
    async with call.client(app) as client:
        run = await client.bulk.start(act, **which, dry_run=dry_run, reason=reason, by=user())
        told = await client.bulk.get(run.id) if detach else await _ended(call, client, run.id)
    _tell(call, told)
    return int(bool(told.failed) or told.status in ("failed", "cancelled"))


async def _ended(call: Call, client: Perdure, id: str) -> Operation:
    """Wait for the end of an operation, and say so if nobody begins it."""
    loop = asyncio.get_running_loop()
    patient_until = loop.time() + client.settings.grace + PATIENCE
    with _counting(call) as progress:
        while (told := await client.bulk.get(id)).status not in ENDED and told.status != "stuck":
            progress(told)
            if loop.time() > patient_until and (head := await client.get(id).head()).version == 1:
                call.show.note(f"no worker has begun {id} yet; {needs(head)}")
                return told
            await asyncio.sleep(0.1)
    return told


@contextmanager
def _counting(call: Call) -> Iterator[Callable[[Operation], None]]:
    """A count on stderr for people; nothing where nobody looks."""
    if call.show.json or not sys.stderr.isatty():
        yield lambda told: None
        return
    from rich.console import Console

    with Console(stderr=True).status("looking for executions") as status:
        yield lambda told: status.update(f"{told.found:,} found, {told.done:,} done, {told.failed:,} failed")


def _tell(call: Call, told: Operation) -> None:
    if call.show.json:
        call.show.data(told)
        return
    what = f"{told.act} (dry run) " if told.dry_run else f"{told.act} "
    call.show.print(styled(what, (told.id, "bold"), " is ") + status_text(told.status))
    for id in told.first if told.dry_run else ():
        call.show.print(styled("would be done  ", (id, "bold")))
    for error in told.errors:
        call.show.print(styled(("failed  ", "red"), (error.id, "bold"), f"  {error.reason}"))
    counts = [f"{told.found:,} found"]
    if not told.dry_run:
        counts += [f"{told.done:,} done", f"{told.skipped:,} skipped", f"{told.failed:,} failed"]
    call.show.print(styled(", ".join(counts)))
