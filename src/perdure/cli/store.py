"""Commands about the store and the settings."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from perdure.cli.command import Call, command
from perdure.cli.display import masked, styled, table
from perdure.errors import UsageError
from perdure.runtime.app import Perdure
from perdure.runtime.settings import explain

if TYPE_CHECKING:
    from rich.console import RenderableType

PANEL = "Store and settings"


GrantOption = Annotated[
    str | None,
    Option("--grant", metavar="ROLE", help="Give a database role what workers and clients need, and not more."),
]


@command("migrate", PANEL)
async def migrate(call: Call, grant: GrantOption = None) -> None:
    """Bring the store's schema up to date.

    Example: perdure migrate --store sqlite:///orders.db
    """
    app = call.application()
    store = masked(app.settings.store)
    before = await _schema(app)
    async with app:
        if grant is not None:
            await _grant(app, grant)
    after = await _schema(app)
    if call.show.json:
        call.show.data({"store": store, "before": before, "schema": after, "granted": grant})
    elif before == after:
        call.show.print(styled((store, "bold"), f" is up to date: schema {after or 'none'}"))
    else:
        came = "created" if not before else f"migrated from schema {before}"
        call.show.print(styled((store, "bold"), f" {came}: schema {after}"))
    if grant is not None and not call.show.json:
        call.show.print(styled((grant, "bold"), " may run workers and clients on it"))


async def _grant(app: Perdure, role: str) -> None:
    give = getattr(app.store, "grant_application", None)
    if give is None:
        raise UsageError("--grant is for stores with roles, and this one has none")
    await give(role)


async def _schema(app: Perdure) -> int | None:
    """The number of the schema, where the store has one."""
    ask = getattr(app.store, "schema_number", None)
    if ask is not None:
        there: int = await ask()
        return there or None
    path = getattr(app.store, "path", None)
    return None if path is None else _number_of_file(Path(path))


def _number_of_file(path: Path) -> int | None:
    if not path.is_file():
        return None
    with closing(sqlite3.connect(f"file:{path.resolve()}?mode=ro", uri=True)) as db:
        number: int = db.execute("pragma user_version").fetchone()[0]
    return number


@command("config", PANEL)
def config(call: Call) -> int:
    """List every setting, its value and its meaning.

    Example: PERDURE_LEASE=30s perdure config
    """
    ours = {name for name in os.environ if name.startswith("PERDURE_") and not name.startswith("PERDURE_TEST_")}
    unknown = ours - {row[1] for row in explain({})}
    environ = {name: value for name, value in os.environ.items() if name not in unknown}
    rows = [
        (name, variable, masked(value) if name == "store" else value, source, meaning)
        for name, variable, value, source, meaning in explain(environ, store=call.store, tenant=call.tenant)
    ]
    if call.show.json:
        names = ("name", "variable", "value", "source", "meaning")
        call.show.data([dict(zip(names, row, strict=True)) for row in rows])
    else:
        call.show.print(_table(rows))
    # Everything else refuses to begin with such a variable; here it must not stand in the way of the list.
    for name in sorted(unknown):
        call.show.error(f"{name} is set, but it is not a setting")
    return 2 if unknown else 0


def _table(rows: Sequence[tuple[str, str, Any, str, str]]) -> RenderableType:
    lines = table("variable", "value", "source", "meaning", flexible="meaning")
    for _, variable, value, source, meaning in rows:
        colour = "" if source == "default" else "cyan"
        lines.add_row(
            styled((variable, "bold")), styled((str(value), colour)), styled((source, colour or "dim")), styled(meaning)
        )
    return lines
