"""Commands about webhooks: make, list, rotate, revoke.

Whoever can use these commands has the store itself: no credential is asked for. Secrets are named, never given.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer
from typer import Argument, Option

from perdure.cli.command import AppOption, Call, command, user
from perdure.cli.display import add_row, ago, changes, pairs, styled, table
from perdure.core.moments import to_micros
from perdure.core.signing import KINDS, Kind
from perdure.errors import UsageError
from perdure.runtime.managing.registers import FRESH
from perdure.runtime.web.hook_log import Does, HookRoute, HookSend, HookStart
from perdure.runtime.web.hooks import Hook

PANEL = "Access"
group = typer.Typer(
    name="hooks",
    help="Webhooks: make, list, rotate or revoke them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Name = Annotated[str, Argument(metavar="NAME", help="The webhook's name.", show_default=False)]
Secret = Annotated[str, Option("--secret", metavar="REFERENCE", help="The secret by reference: secret://NAME.")]


@command("create", group=group, act="hooks.create")
async def create(
    call: Call,
    name: Name,
    secret: Secret,
    kind: Annotated[str, Option("--kind", help=f"How calls are signed: {', '.join(KINDS)}.")] = "standard",
    start: Annotated[str | None, Option("--start", metavar="WORKFLOW", help="Start this workflow.")] = None,
    input: Annotated[str, Option("--input", metavar="JQ", help="Its input, from the body of the call.")] = ".",
    id: Annotated[str, Option("--id", metavar="JQ", help="Its id; else it follows from that of the call.")] = "",
    send: Annotated[str | None, Option("--send", metavar="EVENT", help="Send an event of this name.")] = None,
    to: Annotated[str, Option("--to", metavar="JQ", help="The id of the execution that it is sent to.")] = "",
    payload: Annotated[str, Option("--payload", metavar="JQ", help="Its payload, from the body of the call.")] = ".",
    route: Annotated[
        str | None, Option("--route", metavar="TYPE", help="Make a CloudEvent of this type, for whoever listens.")
    ] = None,
    source: Annotated[str, Option("--source", metavar="URI", help="Its source; else the webhook itself.")] = "",
    data: Annotated[str, Option("--data", metavar="JQ", help="Its data, from the body of the call.")] = ".",
    app: AppOption = None,
) -> None:
    """Make a webhook that starts a workflow, sends an event or routes one, and print its path.

    The type and the source of an event that is routed may be expressions on the body: '${ "order." + .status }'.

    Example: perdure hooks create github --kind github --secret secret://github --start build --input .repository
    """
    starting = None if start is None else HookStart(start, input, id)
    sending = None if send is None else HookSend(send, to, payload)
    does = _only(starting, sending, None if route is None else HookRoute(route, source, data))
    async with call.client(app, create=True) as client:
        hook = await client.hooks.create(name, does, secret=secret, kind=cast(Kind, kind), by=user())
    if call.show.json:
        call.show.data(hook)
        return
    call.show.text(f"{hook.path}\n")
    call.show.note(f"POST to it, signed with {hook.secret}; `perdure serve` answers there")


@command("list", group=group)
async def list_all(call: Call, app: AppOption = None) -> None:
    """List webhooks, by name.

    Example: perdure hooks list
    """
    async with call.client(app) as client:
        found = await client.hooks.list()
        if call.show.json:
            call.show.data(found)
            return
        if not found:
            call.show.note("there are no webhooks; `perdure hooks create NAME` makes one")
            return
        rows = table("name", "kind", "secret", "does", "status", "created", "by", flexible="does")
        for one in found:
            add_row(rows, *_cells(one, client.clock.now()))
        call.show.print(rows)


@command("show", group=group)
async def show(call: Call, name: Name, app: AppOption = None) -> None:
    """Show a webhook, and who did what to it.

    Example: perdure hooks show github
    """
    async with call.client(app) as client:
        hook, history = await client.hooks.get(name), await client.hooks.history(name)
    if call.show.json:
        call.show.data({"hook": hook, "history": history})
        return
    call.show.print(_facts(hook))
    call.show.print("")
    call.show.print(changes(history))


@command("rotate", group=group, act="hooks.rotate")
async def rotate(
    call: Call,
    name: Name,
    secret: Secret,
    overlap: Annotated[
        str, Option("--overlap", metavar="DURATION", help="How long the secret before is good as well.")
    ] = "24h",
    app: AppOption = None,
) -> None:
    """Let calls be signed with another secret. The one before stays good for a while.

    Example: perdure hooks rotate github --secret secret://github-2 --overlap 1h
    """
    async with call.client(app) as client:
        hook = await client.hooks.rotate(name, secret, overlap=overlap, by=user())
    if call.show.json:
        call.show.data(hook)
        return
    call.show.print(styled((hook.name, "bold"), f" is signed with {hook.secret}"))
    if hook.overlap_until is not None:
        call.show.note(f"{hook.former} is good until {hook.overlap_until:%Y-%m-%d %H:%M} UTC")


@command("revoke", group=group, act="hooks.revoke")
async def revoke(call: Call, name: Name, app: AppOption = None) -> None:
    """Let a webhook take no more calls.

    Example: perdure hooks revoke github
    """
    async with call.client(app) as client:
        hook = await client.hooks.revoke(name, by=user())
    if call.show.json:
        call.show.data(hook)
        return
    call.show.print(styled((hook.name, "bold"), " is revoked"))
    call.show.note(f"servers that have just seen it may take calls for another {FRESH:g} s")


def _only(*several: Does | None) -> Does:
    given = [one for one in several if one is not None]
    if len(given) != 1 or (isinstance(given[0], HookSend) and not given[0].execution):
        raise UsageError(
            "a webhook does one thing: give --start WORKFLOW, or --send EVENT and --to JQ, or --route TYPE"
        )
    return given[0]


# How it looks.


def _told(does: Does) -> str:
    match does:
        case HookStart():
            return f"start {does.workflow}"
        case HookSend():
            return f"send {does.event}"
        case HookRoute():
            return f"route {does.type}"


def _status(hook: Hook) -> tuple[str, str]:
    return ("active", "green") if hook.active else ("revoked", "red")


def _cells(hook: Hook, now: int) -> list[Any]:
    return [
        styled((hook.name, "bold")),
        styled(hook.kind),
        styled(hook.secret),
        styled(_told(hook.does)),
        styled(_status(hook)),
        styled((ago(to_micros(hook.created_at), now), "dim")),
        styled(hook.by),
    ]


def _facts(hook: Hook) -> Any:
    times = {
        "created": hook.created_at,
        "rotated": hook.rotated_at,
        "both secrets are good until": hook.overlap_until,
        "revoked": hook.revoked_at,
    }
    facts: list[tuple[str, Any]] = [
        ("name", styled((hook.name, "bold"))),
        ("path", hook.path),
        ("kind", hook.kind),
        ("secret", hook.secret),
        ("does", styled(_told(hook.does))),
        ("status", styled(_status(hook))),
    ]
    match hook.does:
        case HookStart() as does:
            facts += [("input", styled(does.input)), ("id", styled(does.id or "from the id of the call"))]
        case HookSend() as does:
            facts += [("to", styled(does.execution)), ("payload", styled(does.payload))]
        case HookRoute() as does:
            facts += [("source", styled(does.source or "the webhook")), ("data", styled(does.data))]
    return pairs(facts + [(name, f"{at:%Y-%m-%d %H:%M:%S} UTC") for name, at in times.items() if at is not None])
