"""Commands about the store and the settings."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli.command import Call, command
from perdure.cli.display import styled, table
from perdure.runtime.app import Perdure
from perdure.runtime.settings import Explained, explain, look
from perdure.runtime.urls import redacted

if TYPE_CHECKING:
    from rich.console import RenderableType

PANEL = "Store and settings"


@command("migrate", PANEL)
async def migrate(call: Call) -> None:
    """Bring the store's schema up to date.

    Example: perdure migrate --store sqlite:///orders.db
    """
    app = call.application()
    store = redacted(app.settings.store)
    before = _schema(app)
    async with app:
        pass
    after = _schema(app)
    if call.show.json:
        call.show.data({"store": store, "before": before, "schema": after})
    elif before == after:
        call.show.print(styled((store, "bold"), f" is up to date: schema {after or 'none'}"))
    else:
        came = "created" if not before else f"migrated from schema {before}"
        call.show.print(styled((store, "bold"), f" {came}: schema {after}"))


def _schema(app: Perdure) -> int | None:
    """The number of the schema, where the store is a file that has one."""
    path = getattr(app.store, "path", None)
    if path is None or not Path(path).is_file():
        return None
    with closing(sqlite3.connect(f"file:{Path(path).resolve()}?mode=ro", uri=True)) as db:
        number: int = db.execute("pragma user_version").fetchone()[0]
    return number


@command("config", PANEL)
def config(call: Call) -> int:
    """List every setting, its value, where it comes from and what it means.

    What is wrong is told below the list, and makes it end with 2. Passwords are not shown.

    Example: PERDURE_LEASE=30s perdure config --config orders.toml
    """
    found = look(store=call.store, tenant=call.tenant)
    rows = explain(found)
    if call.show.json:
        call.show.data(rows)
    else:
        call.show.print(_table(rows))
    # Everything else refuses to begin with a mistake; here it must not stand in the way of the list.
    for problem in found.problems:
        call.show.error(problem)
    return 2 if found.problems else 0


def _table(rows: Sequence[Explained]) -> RenderableType:
    lines = table("variable", "value", "source", "meaning", flexible="meaning")
    for row in rows:
        colour = "" if row.source == "default" else "cyan"
        place = "" if row.place in (row.variable, row.name) else f" {row.place}"
        lines.add_row(
            styled((row.variable, "bold")),
            styled((str(row.value), colour)),
            styled((row.source + place, colour or "dim")),
            styled(row.meaning),
        )
    return lines
