"""Several processes on one SQLite file: they share the work, wake each other, and survive one another's death."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure, Run
from perdure.testing.invariants import check_log
from tests.acceptance.fleet_process import climb, echo
from tests.cli.processes import stop_between_writes

PROGRAM = Path(__file__).parent / "fleet_process.py"


class Fleet:
    def __init__(self, database: Path) -> None:
        self.database = database
        self.members: list[subprocess.Popen[str]] = []

    def grow(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), str(self.database)]
        root = str(Path(__file__).parents[2])
        member = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root})
        self.members.append(member)
        assert member.stdout is not None
        assert member.stdout.readline() == "ready\n"
        return member

    def app(self) -> Perdure:
        return Perdure(f"sqlite:///{self.database}", grace=0.2)

    def end(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()
            if member.stdout is not None:
                member.stdout.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path / "fleet.db")
    yield made
    made.end()


async def valid(run: Run[int]) -> set[int]:
    """The log keeps its invariants; gives the fences that wrote it."""
    rows = [row async for row in run.rows()]
    check_log(rows, run.key)
    return {row.fence for row in rows if row.fence}


def test_a_client_without_a_worker_is_served_by_another_process_at_once(fleet: Fleet) -> None:
    fleet.grow()

    async def client() -> float:
        async with fleet.app() as app:
            warm = await app.start(echo)
            await warm.send("say", "warm")
            await warm.result()
            began = time.perf_counter()
            run = await app.start(echo)
            await run.send("say", "hello")
            assert await run.result() == "hello"
            return time.perf_counter() - began

    assert asyncio.run(client()) < 0.2, "the processes did not wake each other"


def test_work_goes_on_when_a_worker_is_killed(fleet: Fleet) -> None:
    fleet.grow()
    victim = fleet.grow()

    async def client() -> None:
        async with fleet.app() as app:
            runs = [await app.start(climb, 30, id=f"c{n}") for n in range(40)]
            async with asyncio.timeout(30):
                while len((await app.find(status="running")).heads) < 20:
                    await asyncio.sleep(0.01)
            victim.kill()
            assert [await run.result(timeout=60) for run in runs] == [30] * 40
            for run in runs:
                await valid(run)

    asyncio.run(client())


def test_a_worker_that_was_stopped_past_its_lease_leaves_a_right_log(fleet: Fleet) -> None:
    sleeper = fleet.grow()

    async def client() -> None:
        async with fleet.app() as app:
            run = await app.start(climb, 60)
            async with asyncio.timeout(30):
                while len(await run.log()) < 5:
                    await asyncio.sleep(0.01)
            stop_between_writes(sleeper.pid, fleet.database)
            await asyncio.to_thread(fleet.grow)
            async with asyncio.timeout(30):
                while "TakenOver" not in [entry.type for entry in await run.log()]:
                    await asyncio.sleep(0.02)
            os.kill(sleeper.pid, signal.SIGCONT)
            assert await run.result(timeout=60) == 60
            assert len(await valid(run)) >= 2

    asyncio.run(client())


def test_a_thousand_waiting_runs_cost_the_workers_nothing(fleet: Fleet) -> None:
    member = fleet.grow()

    def cpu() -> float:
        fields = Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def client() -> None:
        async with fleet.app() as app:
            await asyncio.gather(*(app.start(echo, id=f"e{n}") for n in range(1000)))
            async with asyncio.timeout(60):
                while (await app.find(status="waiting", limit=1000)).next is None:
                    heads = (await app.find(status="waiting", limit=1000)).heads
                    if len(heads) == 1000 and all(head.waits for head in heads):
                        break
                    await asyncio.sleep(0.05)

    asyncio.run(client())
    before = cpu()
    time.sleep(2)  # what is measured is idleness itself
    assert cpu() - before <= 0.05
