"""Commands about tenants: suspend them, let them go on, list those that are suspended."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from perdure.cli.command import AppOption, Call, command, user
from perdure.cli.display import add_row, styled, table
from perdure.cli.keys import PANEL

group = typer.Typer(
    name="tenants",
    help="Tenants: suspend them, or let them go on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, Argument(metavar="TENANT", help="The tenant.", show_default=False)]
Reason = Annotated[str, Option("--reason", help="Why; it is kept.")]


@command("suspend", group=group)
async def suspend(call: Call, name: Name, reason: Reason = "", app: AppOption = None) -> None:
    """Let the executions of a tenant rest. What is started and sent meanwhile is kept, and waits.

    Example: perdure tenants suspend acme --reason "the invoice of May"
    """
    async with call.client(app, create=True) as client:
        await client.tenants.suspend(name, reason, by=user())
    if call.show.json:
        call.show.data({"tenant": name, "suspended": True})
        return
    call.show.print(styled((name, "bold"), " is suspended"))
    call.show.note("what runs at this moment goes on until it waits; keys and tokens of the tenant stay good")


@command("resume", group=group)
async def resume(call: Call, name: Name, reason: Reason = "", app: AppOption = None) -> None:
    """Let the executions of a tenant go on, with all that came meanwhile.

    Example: perdure tenants resume acme
    """
    async with call.client(app) as client:
        await client.tenants.resume(name, reason, by=user())
    if call.show.json:
        call.show.data({"tenant": name, "suspended": False})
        return
    call.show.print(styled((name, "bold"), " goes on"))


@command("list", group=group)
async def list_all(call: Call, app: AppOption = None) -> None:
    """List the tenants that are suspended.

    Example: perdure tenants list
    """
    async with call.client(app) as client:
        found = await client.tenants.suspended()
    if call.show.json:
        call.show.data(found)
        return
    if not found:
        call.show.note("no tenant is suspended")
        return
    rows = table("tenant", "since (UTC)", "by", "reason", flexible="reason")
    for one in found:
        when = f"{one.since:%Y-%m-%d %H:%M:%S}"
        add_row(rows, styled((one.tenant, "bold")), styled((when, "dim")), styled(one.by), styled(one.reason))
    call.show.print(rows)


__all__ = ["PANEL", "group"]
