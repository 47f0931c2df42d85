"""Commands about API keys: make, list, rotate, revoke.

A secret is printed once, when it is made, and alone on stdout, so that it can be piped to where it is kept. Whoever can
use these commands has the store itself: no credential is asked for.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from typer import Argument, Option

from perdure.cli.command import AppOption, Call, command, user
from perdure.cli.display import add_row, ago, changes, pairs, styled, table
from perdure.core.moments import to_micros
from perdure.http.caller import ROLES
from perdure.http.keys import ApiKey, Keys, NewKey
from perdure.runtime.managing.registers import FRESH

PANEL = "Access"
group = typer.Typer(
    name="keys",
    help="API keys: make, list, rotate or revoke them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

KeyId = Annotated[str, Argument(metavar="ID", help="The key's id, as `keys list` shows it.", show_default=False)]
Expires = Annotated[
    str | None, Option("--expires", metavar="DURATION", help="How long it is good, as 90d; for ever unless given.")
]
_COLOURS = {"active": "green", "expired": "yellow", "revoked": "red"}


@command("create", group=group, act="keys.create")
async def create(
    call: Call,
    name: Annotated[str, Argument(metavar="NAME", help="Who will use it; events carry it.", show_default=False)],
    roles: Annotated[
        list[str], Option("--role", help=f"One of {', '.join(ROLES)}, or a role of your own; repeatable.")
    ],
    expires: Expires = None,
    app: AppOption = None,
) -> None:
    """Make an API key and print it: this is the only time that it can be seen.

    Example: perdure keys create ci --role sender --expires 90d
    """
    async with call.client(app, create=True) as client:
        _show(call, await Keys(client).create(name, roles, expires=expires, by=user()))


@command("list", group=group)
async def list_all(call: Call, app: AppOption = None) -> None:
    """List API keys, the oldest first. Their secrets are nowhere.

    Example: perdure keys list
    """
    async with call.client(app) as client:
        found = await Keys(client).list()
        if call.show.json:
            call.show.data(found)
            return
        if not found:
            call.show.note("there are no API keys; `perdure keys create NAME --role viewer` makes one")
            return
        rows = table("id", "name", "roles", "status", "created", "by", "expires", "used", flexible="roles")
        for one in found:
            add_row(rows, *_cells(one, client.clock.now()))
        call.show.print(rows)


@command("show", group=group)
async def show(call: Call, id: KeyId, app: AppOption = None) -> None:
    """Show an API key, and who did what to it.

    Example: perdure keys show 3f7k2mzq5xw4
    """
    async with call.client(app) as client:
        keys = Keys(client)
        key, history = await keys.get(id), await keys.history(id)
        if call.show.json:
            call.show.data({"key": key, "history": history})
            return
        call.show.print(_facts(key))
        call.show.print("")
        call.show.print(changes(history))


@command("rotate", group=group, act="keys.rotate")
async def rotate(
    call: Call,
    id: KeyId,
    overlap: Annotated[
        str, Option("--overlap", metavar="DURATION", help="How long the secret before is good as well.")
    ] = "24h",
    expires: Annotated[
        str | None,
        Option("--expires", metavar="DURATION", help="How long the key is good from now on, if not as before."),
    ] = None,
    app: AppOption = None,
) -> None:
    """Give an API key a new secret and print it. The one before stays good for a while.

    Example: perdure keys rotate 3f7k2mzq5xw4 --overlap 1h
    """
    async with call.client(app) as client:
        _show(call, await Keys(client).rotate(id, overlap=overlap, expires=expires, by=user()))


@command("revoke", group=group, act="keys.revoke")
async def revoke(call: Call, id: KeyId, app: AppOption = None) -> None:
    """Let an API key be good no longer, for ever.

    Example: perdure keys revoke 3f7k2mzq5xw4
    """
    async with call.client(app) as client:
        key = await Keys(client).revoke(id, by=user())
    if call.show.json:
        call.show.data(key)
        return
    call.show.print(styled((key.id, "bold"), f" {key.name} is revoked"))
    call.show.note(f"servers that have just seen it may take it for another {FRESH:g} s")


# How it looks.


def _show(call: Call, made: NewKey) -> None:
    if call.show.json:
        call.show.data({**msgspec.to_builtins(made.key), "secret": made.secret})
        return
    call.show.text(f"{made.secret}\n")
    key = made.key
    until = f", until {key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at is not None else ""
    call.show.note(f"{key.name} of {key.tenant} with {', '.join(key.roles)}{until}. Keep it now: it is not shown again")
    if own := [role for role in key.roles if role not in ROLES]:
        call.show.note(f"{', '.join(own)}: no role of the API; it gives no rights, and goes along with events")
    if key.overlap_until is not None:
        call.show.note(f"the secret before is good until {key.overlap_until:%Y-%m-%d %H:%M} UTC")


def _cells(one: ApiKey, now: int) -> list[Any]:
    return [
        styled((one.id, "bold")),
        styled(one.name),
        styled(", ".join(one.roles)),
        styled((one.status, _COLOURS[one.status])),
        styled((ago(to_micros(one.created_at), now), "dim")),
        styled(one.by),
        styled("never" if one.expires_at is None else f"{one.expires_at:%Y-%m-%d}"),
        styled("never" if one.used_at is None else f"{one.used_at:%Y-%m-%d}"),
    ]


def _facts(key: ApiKey) -> Any:
    times = {
        "created": key.created_at,
        "expires": key.expires_at,
        "rotated": key.rotated_at,
        "both secrets are good until": key.overlap_until,
        "revoked": key.revoked_at,
        "used": key.used_at,
    }
    facts: list[tuple[str, Any]] = [
        ("id", styled((key.id, "bold"))),
        ("name", styled(key.name)),
        ("tenant", key.tenant),
        ("roles", styled(", ".join(key.roles))),
        ("status", styled((key.status, _COLOURS[key.status]))),
    ]
    return pairs(facts + [(name, f"{at:%Y-%m-%d %H:%M:%S} UTC") for name, at in times.items() if at is not None])
