"""Commands about the store and the settings."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from perdure.cli.command import Call, command
from perdure.cli.display import styled, table
from perdure.errors import UsageError
from perdure.runtime.app import Perdure
from perdure.runtime.settings import Explained, explain, look
from perdure.runtime.urls import redacted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

PANEL = "Store and settings"
#: Columns that a meaning needs to be read beside its setting.
_ROOM = 40

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
    store = redacted(app.settings.store)
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
    """List every setting, its value, where it comes from and what it means.

    What is wrong is told below the list, and makes it end with 2. Passwords are not shown.

    Example: PERDURE_LEASE=30s perdure config --config orders.toml
    """
    found = look(store=call.store, stream=call.stream, tenant=call.tenant)
    rows = explain(found)
    if call.show.json:
        call.show.data(rows)
    else:
        call.show.print(_table(rows, call.show.out.width))
    # Everything else refuses to begin with a mistake; here it must not stand in the way of the list.
    for problem in found.problems:
        call.show.error(problem)
    return 2 if found.problems else 0


def _table(rows: Sequence[Explained], width: int) -> RenderableType:
    """A line for each; where that leaves no room for the meaning, it stands below, and nothing is cut."""
    from rich.console import Group
    from rich.padding import Padding

    cells = [_cells(row) for row in rows]
    if sum(max(map(len, column)) + 2 for column in list(zip(*cells, strict=True))[:3]) + _ROOM <= width:
        lines = table("variable", "value", "source", "meaning", flexible="meaning")
        for row in cells:
            lines.add_row(*row)
        return lines
    gap = styled("  ")
    return Group(
        *(
            Group(gap.join((name, value, source)), Padding(meaning, (0, 0, 0, 4)))
            for name, value, source, meaning in cells
        )
    )


def _cells(row: Explained) -> tuple[Text, Text, Text, Text]:
    colour = "" if row.source == "default" else "cyan"
    place = "" if row.place in (row.variable, row.name) else f" {row.place}"
    return (
        styled((row.variable, "bold")),
        styled((str(row.value), colour)),
        styled((row.source + place, colour or "dim")),
        styled(row.meaning),
    )
