"""Commands about the store and the settings."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.command import Call, command
from perdure.cli.display import masked, styled, table
from perdure.runtime.app import Perdure
from perdure.runtime.settings import explain

if TYPE_CHECKING:
    from rich.console import RenderableType

PANEL = "Store and settings"


@command("migrate", PANEL)
async def migrate(call: Call) -> None:
    """Bring the store's schema up to date.

    Example: perdure migrate --store sqlite:///orders.db
    """
    app = call.application()
    store = masked(app.settings.store)
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
