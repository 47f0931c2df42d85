"""A real process is killed with SIGKILL at every write of the order that is an example; another one finishes it."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from perdure.stores.sqlite import SqliteStore
from perdure.testing.invariants import check_log

PROGRAM = Path(__file__).parent / "order_process.py"
#: What an order comes to, and what the world is asked to do for it: each under a key of its own.
COURSES = {
    "packed": (
        "tracking-parcel-1",
        "completed",
        ["reserve", "charge", "ship", "tell customer", "tell warehouse"],
    ),
    "forgotten": ("failed with TimeoutError", "failed", ["reserve", "charge", "refund", "put_back"]),
}
#: How many processes are killed side by side.
AT_ONCE = 4


def run(directory: Path, course: str, when: str, n: int) -> subprocess.CompletedProcess[str]:
    places = [str(directory / "orders.db"), str(directory / "sink.db")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.run(
        [sys.executable, str(PROGRAM), *places, course, when, str(n)],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment,
        check=False,
    )


def check(directory: Path, course: str) -> None:
    _, status, wanted = COURSES[course]

    async def rows() -> None:
        store = SqliteStore(str(directory / "orders.db"))
        await store.open()
        try:
            check_log(await store.read("default/order"), "default/order")
            head = await store.head("default/order")
            assert head is not None
            assert head.status == status
        finally:
            await store.close()

    asyncio.run(rows())
    with closing(sqlite3.connect(directory / "sink.db")) as db:
        effects = db.execute(
            "select key, min(what), count(*), count(distinct fence) from effects group by key"
        ).fetchall()
    assert sorted(named(key, what) for key, what, *_ in effects) == sorted(wanted)
    for key, what, count, fences in effects:
        assert count == fences, f"{what} was done twice under one fence ({key})"


def named(key: str, what: str) -> str:
    """The action of an effect; there are two of one name."""
    action = key.rpartition("/")[2]
    return f"tell {what.split()[2].rstrip(':')}" if action == "tell" else action


def killed_once(directory: Path, course: str, when: str, n: int) -> bool:
    """Whether there was an n-th write to die at; if so, another process has finished what was begun."""
    directory.mkdir()
    first = run(directory, course, when, n)
    if first.returncode == 0:
        assert first.stdout.strip() == COURSES[course][0]
        return False
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = run(directory, course, "never", 0)
    assert second.stdout.strip() == COURSES[course][0], second.stderr
    check(directory, course)
    return True


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("course", COURSES)
def test_killed_at_every_write_the_order_is_still_right(tmp_path: Path, course: str, when: str) -> None:
    killed: list[bool] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while all(killed):
            numbers = range(len(killed) + 1, len(killed) + 1 + AT_ONCE)
            killed += pool.map(lambda n: killed_once(tmp_path / str(n), course, when, n), numbers)
            assert len(killed) <= 40, "the order does not end"
    assert sum(killed) >= 6, "the order has more writes than this"
