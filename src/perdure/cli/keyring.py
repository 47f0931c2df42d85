"""Commands about the key ring: make it, rotate its keys, destroy those of a tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from perdure.cli.command import Call, command
from perdure.cli.display import pairs, styled
from perdure.errors import SettingsError, UsageError
from perdure.runtime.checks import checked_tenant
from perdure.runtime.settings import Settings, load

if TYPE_CHECKING:
    from perdure.runtime.sealing.keyring import DirectoryRing

group = typer.Typer(
    name="keyring",
    help="The key ring, with which everything stored is encrypted: create, rotate or shred keys.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _named() -> Settings:
    settings = load()
    if not settings.keyring:
        raise SettingsError(
            "no key ring is named: set `keyring` to a directory, as PERDURE_KEYRING=/etc/perdure/keyring"
        )
    return settings


def _kind() -> type[DirectoryRing]:
    try:
        from perdure.runtime.sealing.keyring import DirectoryRing
    except ImportError as error:
        raise SettingsError("a key ring needs the extra: pip install 'perdure[encryption]'") from error
    return DirectoryRing


def _ring() -> DirectoryRing:
    settings = _named()
    return _kind()(settings.keyring, settings.keyring_masters)


@command("create", group=group)
def create(call: Call) -> None:
    """Make a key ring where the setting `keyring` says. Whoever loses it loses everything that is encrypted.

    Example: PERDURE_KEYRING=/etc/perdure/keyring perdure keyring create
    """
    settings = _named()
    master = _kind().create(settings.keyring, settings.keyring_masters)
    if call.show.json:
        call.show.data({"keyring": settings.keyring, "master": master})
        return
    call.show.print(styled((settings.keyring, "bold"), f" is a key ring with the master key {master}"))
    call.show.note("back it up, apart from the store: without it nothing that is encrypted can be read again")


@command("show", group=group)
def show(call: Call) -> None:
    """Tell what the key ring has: the ids of keys, never keys.

    Example: perdure keyring show
    """
    ring = _ring()
    tenants, shredded = list(ring.tenants()), list(ring.shredded())
    if call.show.json:
        masters = {"current": ring.masters.current, "masters": list(ring.masters.masters)}
        call.show.data({**masters, "tenants": tenants, "shredded": shredded})
        return
    call.show.print(
        pairs(
            [
                ("current master key", styled((ring.masters.current, "bold"))),
                ("master keys", styled(", ".join(ring.masters.masters))),
                ("tenants", styled(", ".join(tenants))),
                ("shredded", styled(", ".join(shredded))),
            ]
        )
    )


@command("rotate", group=group, act="keyring.rotate")
async def rotate(call: Call) -> None:
    """Encrypt with new keys from now on. What was encrypted with the old ones stays readable.

    Example: perdure keyring rotate
    """
    ring = _ring()
    async with call.client(create=True):  # notes it
        master, count = ring.rotate()
    if call.show.json:
        call.show.data({"master": master, "tenants": count})
        return
    call.show.print(styled("the master key is ", (master, "bold"), f"; {count} tenants have new keys"))
    call.show.note("processes that run use them within 10 s; back the key ring up")


@command("shred", group=group, act="keyring.shred")
async def shred(
    call: Call,
    name: Annotated[str, Argument(metavar="TENANT", help="Whose keys.", show_default=False)],
    yes: Annotated[bool, Option("--yes", help="Really: it cannot be undone.")] = False,
    reason: Annotated[str, Option("--reason", help="Why; it is kept in the audit.")] = "",
) -> int:
    """Destroy the keys of a tenant: nothing that it ever stored can be read again, by anybody.

    Backups of the key ring have the keys as well: destroy those, too.

    Example: perdure keyring shred acme --yes --reason "the contract has ended"
    """
    ring = _ring()
    tenant = checked_tenant(name)
    if not yes:
        raise UsageError(f"nothing of {tenant!r} could ever be read again: say so with --yes")
    async with call.client(create=True):  # notes it
        had = ring.shred(tenant)
    if call.show.json:
        call.show.data({"tenant": tenant, "had_keys": had})
    elif had:
        call.show.print(styled("the keys of ", (tenant, "bold"), " are destroyed"))
        call.show.note("processes that run forget them within 10 s; destroy the copies in backups of the key ring")
    else:
        call.show.note(f"{tenant} had no keys; nothing of it will be written from now on")
    return 0
