"""Commands about the audit: who did what to executions, definitions and access."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer
from typer import Option

from perdure.cli import values
from perdure.cli.command import AppOption, Call, command
from perdure.cli.display import add_row, styled, table

group = typer.Typer(
    name="audit",
    help="The audit: who did what, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Actor = Annotated[str | None, Option("--actor", help="Only what this user did.")]
ActName = Annotated[str | None, Option("--act", help="Only acts of this name, as executions.cancel.")]
Target = Annotated[str | None, Option("--target", help="Only what was done to this.")]
Since = Annotated[str | None, Option("--since", metavar="TIME", help="Not before: 2h, or a time.")]
Until = Annotated[str | None, Option("--until", metavar="TIME", help="Before this time.")]


def _wanted(
    actor: str | None, act: str | None, target: str | None, since: str | None, until: str | None
) -> dict[str, Any]:
    after: datetime | None = None if since is None else values.since(since)
    before: datetime | None = None if until is None else values.since(until)
    return {"actor": actor, "act": act, "target": target, "after": after, "before": before}


@command("list", group=group)
async def list_acts(
    call: Call,
    actor: Actor = None,
    act: ActName = None,
    target: Target = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, Option("--limit", min=1, max=1000, help="How many.")] = 50,
    cursor: Annotated[str | None, Option("--cursor", help="Go on after the page that gave it.")] = None,
    app: AppOption = None,
) -> None:
    """List acts, the newest first.

    Example: perdure audit list --actor ann --since 7d
    """
    wanted = _wanted(actor, act, target, since, until) if cursor is None else _wanted(actor, act, target, None, None)
    async with call.client(app) as client:
        page = await client.audit.find(**wanted, limit=limit, cursor=cursor)
    if call.show.json:
        call.show.data(page)
        return
    if not page.acts:
        call.show.note("nothing was done")
        return
    rows = table("time (UTC)", "actor", "act", "target", "reason", "credential", flexible="reason")
    for one in page.acts:
        add_row(
            rows,
            styled((f"{one.at:%Y-%m-%d %H:%M:%S}", "dim")),
            styled(one.actor),
            styled((one.act, "bold")),
            styled(one.target),
            styled(one.reason),
            styled((one.credential, "dim")),
        )
    call.show.print(rows)
    if page.next:
        call.show.note(f"there are more: --cursor {page.next}")


@command("export", group=group)
async def export(
    call: Call,
    jsonl: Annotated[bool, Option("--jsonl", help="One JSON object a line; the only form so far.")] = True,
    actor: Actor = None,
    act: ActName = None,
    target: Target = None,
    since: Since = None,
    until: Until = None,
    app: AppOption = None,
) -> None:
    """Write all acts to stdout, one JSON object a line, the newest first.

    Example: perdure audit export --jsonl --since 30d > audit.jsonl
    """
    wanted = _wanted(actor, act, target, since, until)
    async with call.client(app) as client:
        async for one in client.audit.all(**wanted):
            call.show.text(msgspec.json.encode(one).decode() + "\n")
