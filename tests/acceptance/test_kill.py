"""A real process is killed with SIGKILL at every commit boundary of an order; another one finishes it."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.stores.sqlite import SqliteStore
from perdure.testing.invariants import check_log

PROGRAM = Path(__file__).parent / "order_process.py"
RESULT = "receipt-42 shelf-book Berlin"


def run(directory: Path, when: str, n: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(directory / "orders.db"), str(directory / "sink.db"), when, str(n)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def check(directory: Path) -> None:
    async def rows() -> None:
        store = SqliteStore(str(directory / "orders.db"))
        await store.open()
        try:
            log = await store.read("default/order")
            check_log(log, "default/order")
            head = await store.head("default/order")
            assert head is not None
            assert head.status == "completed"
        finally:
            await store.close()

    asyncio.run(rows())
    with sqlite3.connect(directory / "sink.db") as db:
        effects = db.execute(
            "select name, key, count(*), count(distinct fence) from effects group by name, key"
        ).fetchall()
    db.close()
    assert sorted(name for name, *_ in effects) == ["charge", "reserve", "ship"]
    for name, key, count, fences in effects:
        assert count == fences, f"{name} ran twice under one fence ({key})"


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_commit_the_order_is_still_right(tmp_path: Path, when: str) -> None:
    killed = 0
    for n in range(1, 30):
        directory = tmp_path / str(n)
        directory.mkdir()
        first = run(directory, when, n)
        if first.returncode == 0:
            assert first.stdout.strip() == RESULT
            break
        assert first.returncode == -signal.SIGKILL, first.stderr
        killed += 1
        second = run(directory, "never", 0)
        assert second.stdout.strip() == RESULT, second.stderr
        check(directory)
    assert killed >= 4, "the order has more commits than this"
