"""The `perdure` command.

Commands live in one module per group and register themselves; `perdure.cli.command` has what they share.
"""

from __future__ import annotations

from typing import Annotated

import typer

from perdure import __version__
from perdure.cli import (
    audit,
    bulk,
    dead,
    definitions,
    hooks,
    keyring,
    keys,
    logs,
    look,
    runs,
    schedules,
    simulating,  # noqa: F401 - its command registers itself
    store,
    tasks,
    tenants,
    work,
)
from perdure.cli.command import app

__all__ = ["app", "main"]
_ORDER = (work.WORK, runs.RUNS, look.PANEL, runs.COURSE, definitions.PANEL, logs.PANEL, work.CODE, store.PANEL)

app.add_typer(schedules.group, rich_help_panel=schedules.PANEL)
app.add_typer(bulk.group, rich_help_panel=runs.COURSE)
app.add_typer(dead.group, rich_help_panel=runs.COURSE)
app.add_typer(tasks.group, rich_help_panel=runs.RUNS)
app.add_typer(definitions.group, rich_help_panel=definitions.PANEL)
app.add_typer(keys.group, rich_help_panel=keys.PANEL)
app.add_typer(hooks.group, rich_help_panel=hooks.PANEL)
app.add_typer(tenants.group, rich_help_panel=tenants.PANEL)
app.add_typer(audit.group, rich_help_panel=keys.PANEL)
app.add_typer(keyring.group, rich_help_panel=keys.PANEL)
# Imports are sorted; the help is in the order in which people need it.
app.registered_commands.sort(key=lambda one: _ORDER.index(str(one.rich_help_panel)))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perdure {__version__}")
        raise typer.Exit


@app.callback()
def perdure(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Durable workflows in plain asyncio.

    Begin with: perdure dev shop.py
    """


def main() -> None:
    app()


if __name__ == "__main__":
    main()
