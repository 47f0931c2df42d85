"""What waits costs nothing, however much it is: rows of a file, of which a worker reads none before they are due."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Perdure
from tests.runtime import patient

MANY = 100_000
MEGABYTE = 1_000_000


def begun(path: Path, many: int) -> Path:
    """A store with so many executions, each of which waits for an event, but a month at most."""

    async def main() -> None:
        async with Perdure(f"sqlite:///{path}", linger=0) as app, app.working():
            await (await app.start(patient.waits, id="first")).until("waiting")

    asyncio.run(main())
    # The others are copies of what the store itself wrote, under other keys.
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma synchronous = off")
        for table in ("heads", "events", "wakes"):
            columns = [name for _, name, *_ in db.execute(f"pragma table_info({table})") if name != "key"]
            others = ", ".join(columns)
            db.execute(
                f"insert into {table} (key, {others}) with recursive n (i) as (select 2 where :many > 1 union all"
                f" select i + 1 from n where i < :many) select 'default/copy-' || i, {others} from {table}, n"
                " where key = 'default/first'",
                {"many": many},
            )
        db.commit()
        assert db.execute("select count(*) from wakes where due is not null").fetchone() == (many,)
    return path


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_hundred_thousand_that_wait_cost_no_time_and_no_memory(tmp_path: Path) -> None:
    # Given a store in which one waits, and one in which very many do
    stores = [begun(tmp_path / "one.db", 1), begun(tmp_path / "many.db", MANY)]
    # When a worker has nothing to do on each of them, and looks often
    workers = [
        subprocess.Popen([sys.executable, patient.__file__, str(path)], stdout=subprocess.PIPE, text=True)
        for path in stores
    ]
    one, many = [json.loads(worker.communicate(timeout=90)[0]) for worker in workers]
    # Then it has looked, holds none, and takes no more memory and time than with one.
    assert many["looks"] > 5
    assert (many["held"], many["loops"]) == (0, 0)
    assert many["memory"] - one["memory"] < 4 * MEGABYTE
    assert many["cpu"] < one["cpu"] + 0.1
    # And each of them is alive.
    assert many["answer"] == one["answer"] == "hello"
