"""Commands about tenants: suspend them, let them go on, give them quotas, list those that have any of it."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from perdure.cli.command import AppOption, Call, command, user
from perdure.cli.display import add_row, styled, table
from perdure.cli.keys import PANEL
from perdure.errors import UsageError

group = typer.Typer(
    name="tenants",
    help="Tenants: suspend them, let them go on, give them quotas.",
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


@command("limit", group=group)
async def limit(
    call: Call,
    name: Name,
    running: Annotated[int | None, Option("--running", min=0, help="How many executions may run.")] = None,
    none: Annotated[bool, Option("--none", help="No quota any more.")] = False,
    reason: Reason = "",
    app: AppOption = None,
) -> None:
    """Let no more than so many executions of a tenant run. New ones wait until others end; nothing fails.

    Example: perdure tenants limit acme --running 100
    """
    if (running is None) != none:
        raise UsageError("give --running with a number, or --none for no quota")
    async with call.client(app, create=True) as client:
        await client.tenants.limit(name, running=running, reason=reason, by=user())
    if call.show.json:
        call.show.data({"tenant": name, "running": running})
        return
    said = " has no quota" if running is None else f" may have {running:,} executions running"
    call.show.print(styled((name, "bold"), said))
    call.show.note("what has begun goes on; those that are new wait until others end")


@command("quota", group=group)
async def quota(call: Call, name: Name, app: AppOption = None) -> None:
    """Show what a tenant may have running, and has.

    Example: perdure tenants quota acme
    """
    async with call.client(app) as client:
        found = await client.tenants.quota(name)
    if call.show.json:
        call.show.data(found)
        return
    most = "any number" if found.most is None else f"{found.most:,}"
    rest = "; it is suspended" if found.suspended else ""
    call.show.print(styled((name, "bold"), f" has {found.running:,} executions running of {most}{rest}"))


@command("list", group=group)
async def list_all(call: Call, app: AppOption = None) -> None:
    """List the tenants that are suspended or have a quota.

    Example: perdure tenants list
    """
    async with call.client(app) as client:
        found = await client.tenants.standings()
    if call.show.json:
        call.show.data(found)
        return
    if not found:
        call.show.note("no tenant is suspended or has a quota")
        return
    rows = table("tenant", "suspended", "running", "since (UTC)", "by", "reason", flexible="reason")
    for one in found:
        when = f"{one.since:%Y-%m-%d %H:%M:%S}"
        states = "yes" if one.suspended else "", "" if one.running is None else f"≤ {one.running:,}"
        said = when, one.by, one.reason
        add_row(rows, styled((one.tenant, "bold")), *map(styled, states), *map(styled, said))
    call.show.print(rows)


__all__ = ["PANEL", "group"]
