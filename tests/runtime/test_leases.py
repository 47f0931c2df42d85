"""Leases when the event loop is blocked, and when the whole process is stopped."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, action, workflow
from perdure.errors import StoreUnavailable
from perdure.ports import Twinned
from perdure.runtime.managing.tenants import Resting
from perdure.runtime.work.worker import Worker
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.streams.local import LocalStream
from perdure.testing import World
from perdure.testing.invariants import check_log
from tests.cli.processes import Process, stop_between_writes

effects: list[tuple[str, float]] = []


@action
async def blocks(seconds: float) -> str:
    name = threading.current_thread().name
    effects.append((name, seconds))
    if name == "blocked":
        time.sleep(seconds)  # not awaited: nothing else runs on this loop
    return name


@workflow
async def blocked_flow(seconds: float) -> str:
    return await blocks(seconds)


class Single(SqliteStore):
    """As a store would be without a second connection."""

    twin = None  # type: ignore[assignment]


@contextmanager
def working(path: Path, store: type[SqliteStore] = SqliteStore, **settings: Any) -> Iterator[Worker]:
    """A worker on an event loop of its own, in a thread of its own."""
    workers: list[Worker] = []
    begun, over = threading.Event(), threading.Event()

    async def main() -> None:
        app = Perdure(store(str(path)), stream=LocalStream(str(path)), lease=0.6, grace=0.1, probe=0.1, **settings)
        async with app, app.working(drain=0) as worker:
            workers.append(worker)
            begun.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="blocked")
    thread.start()
    try:
        assert begun.wait(10)
        yield workers[0]
    finally:
        over.set()
        thread.join()


def run(path: Path, seconds: float) -> tuple[str, list[str]]:
    """An execution that blocks the worker there is, and another worker; gives the result and the types of events."""
    effects.clear()

    async def main() -> tuple[str, list[str]]:
        app = Perdure(f"sqlite:///{path}", lease=0.6, grace=0.1, probe=0.1)
        async with asyncio.timeout(20), app:
            started = await app.start(blocked_flow, seconds, id="run")
            while not effects:
                await asyncio.sleep(0.01)
            async with app.working():
                result = await started.result()
                check_log([row async for row in started.rows()], started.key)
                return result, [entry.type for entry in await started.log()]

    return asyncio.run(main())


def test_a_blocked_loop_keeps_its_leases(tmp_path: Path) -> None:
    with working(tmp_path / "l.db"):
        assert run(tmp_path / "l.db", 2.5) == ("blocked", ["Started", "ActionSettled", "Completed"])
    assert len(effects) == 1


def test_without_a_second_connection_it_loses_them(tmp_path: Path) -> None:
    with working(tmp_path / "l.db", Single):
        result, types = run(tmp_path / "l.db", 2.5)
    assert result == "MainThread"
    assert types == ["Started", "TakenOver", "ActionSettled", "Completed"]


def test_a_loop_that_is_blocked_for_too_long_is_given_up(tmp_path: Path) -> None:
    with working(tmp_path / "l.db", stall=0.2, stall_limit=0.5) as worker:
        result, types = run(tmp_path / "l.db", 4)
        assert result == "MainThread"
        assert types == ["Started", "TakenOver", "ActionSettled", "Completed"]
        until(lambda: not worker.residents)  # the zombie has noticed
        errors = worker.metrics.errors.counts
        assert errors["lost"] + errors["stale"] == 1


def test_a_stall_is_reported_once_with_the_code_that_blocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with working(tmp_path / "l.db", stall=1.0) as worker, caplog.at_level(logging.WARNING, "perdure.leases"):
        run(tmp_path / "l.db", 2.5)
        assert worker.metrics.stalls.counts[""] == 1
    [record] = [one for one in caplog.records if one.name == "perdure.leases"]
    assert re.search(r"has not run for 1(\.\d)? s; .*test_leases\.py:\d+ in blocks blocks it", record.getMessage())
    assert "time.sleep(seconds)" in (record.stack_info or "")
    assert record.__dict__["worker"] == worker.me


def test_a_loop_that_runs_renews_by_itself(tmp_path: Path) -> None:
    """Whoever cannot write must not keep its leases through another connection."""

    async def main() -> None:
        # Less than half of such a lease is left after 1.5 s, and not even a crowded machine keeps the loop from running
        # for a third of a second, which is when it would count as blocked.
        app = Perdure(f"sqlite:///{tmp_path / 'l.db'}", lease=2, linger=5)
        async with app, app.working() as worker:
            assert worker._leases is not None
            await app.start(waits, 4.0, id="run")
            while not worker.residents:
                await asyncio.sleep(0.01)
            worker._tasks[-1].cancel()
            [resident] = worker.residents.values()
            until_ = resident.lease_until
            await asyncio.sleep(1.5)
            assert worker.here(resident)
            assert resident.lease_until == until_

    asyncio.run(main())


@workflow(name="leases-waits")
async def waits(seconds: float = 0.9) -> None:
    await asyncio.sleep(seconds)


async def test_in_virtual_time_renewal_is_the_loops(world: World) -> None:
    worker = world.workers[0].app.worker
    assert worker is not None
    assert worker._leases is None


@pytest.mark.virtual_time
async def test_in_virtual_time_a_store_with_a_twin_makes_no_difference(tmp_path: Path) -> None:
    async with Perdure(f"sqlite:///{tmp_path / 'l.db'}") as app, app.working() as worker:
        assert worker._leases is None


def test_a_worker_that_cannot_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*args: Any) -> None:
        monkeypatch.undo()
        raise StoreUnavailable("the store is away")

    async def main() -> str:
        async with Perdure(f"sqlite:///{tmp_path / 'app.db'}", health="127.0.0.1:0") as app:
            before = set(threading.enumerate())
            monkeypatch.setattr(Resting, "look", fail)
            with pytest.raises(StoreUnavailable, match="is away"):
                async with app.working():
                    raise AssertionError("it works")
            left = [thread.name for thread in set(threading.enumerate()) - before if thread.name == "perdure-leases"]
            assert left == [], "the thread that renews leases and answers for the worker has ended"
            run = await app.start(blocked_flow, 0)
            async with app.working():
                return await run.result(timeout=10)

    assert asyncio.run(main()) == "MainThread"


def test_a_worker_that_is_called_off_while_it_starts_leaves_no_thread_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with Perdure(f"sqlite:///{tmp_path / 'app.db'}") as app:
            working = asyncio.create_task(app.working().__aenter__())
            while not (threads := [one for one in threading.enumerate() if one.name == "perdure-leases"]):
                await asyncio.sleep(0)
            assert app.worker is None, "it is still starting"
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert not any(thread.is_alive() for thread in threads)

    asyncio.run(main())


def test_who_has_a_twin() -> None:
    assert isinstance(SqliteStore("x.db"), Twinned)
    assert not isinstance(MemoryStore(), Twinned)
    assert not isinstance(Single("x.db"), Twinned)


@action(name="leases.long")
async def long(days: float) -> str:
    effects.append(("long", days))
    await asyncio.sleep(days * 86_400)
    return "done"


@workflow(name="leases-long")
async def long_flow(days: float) -> str:
    return await long(days)


async def test_one_loop_renews_all_that_a_worker_holds_when_a_third_of_the_lease_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, set[str]]] = []

    async def renew(store: MemoryStore, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        asked.append((world.now().timestamp(), {key for key, _ in holds}))
        return await plain(store, holds, lease)

    plain = MemoryStore.renew
    runs = [await world.start(long_flow, 1.0) for _ in range(20)]
    await world.settle()
    monkeypatch.setattr(MemoryStore, "renew", renew)
    await world.advance("1m")
    assert {frozenset(keys) for _, keys in asked} == {frozenset(run.key for run in runs)}
    pauses = {round(late - soon, 3) for (soon, _), (late, _) in pairwise(asked)}
    assert pauses == {round(world.app.settings.lease / 3, 3)}


@pytest.mark.world(workers=2, lease="20m")
async def test_what_runs_for_a_week_is_never_touched(world: World) -> None:
    effects.clear()
    busy, resting = await world.start(long_flow, 7.0), await world.start(rests, 7.0)
    assert [await busy.result(), await resting.result()] == ["done", "rested"]
    assert effects == [("long", 7.0)]
    for run in (busy, resting):
        assert not {"TakenOver", "Stuck"} & {entry.type for entry in await run.log()}


@workflow(name="leases-rests")
async def rests(days: float) -> str:
    await asyncio.sleep(days * 86_400)
    return "rested"


# --- a process that is stopped ---------------------------------------------------------------------------------------

STOPPED = """
import asyncio
import os
from pathlib import Path

from perdure import action, workflow


@action
async def slow(folder: str) -> int:
    print("begins", os.getpid(), flush=True)
    with (Path(folder) / "effects").open("a") as out:
        out.write(f"{action.key} {action.fence}\\n")
    while not (Path(folder) / "gate").exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@workflow
async def flow(folder: str) -> int:
    return await slow(folder)
"""


def test_a_process_stopped_for_longer_than_its_lease_is_refused_when_it_wakes(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(STOPPED)
    store = f"sqlite:///{tmp_path / 'l.db'}"
    words = ("worker", "flow.py", "--store", store, "--json", "--health", "127.0.0.1:0")
    quick = {"PERDURE_LEASE": "1s", "PERDURE_GRACE": "0.1s", "PERDURE_PROBE": "0.2s", "PERDURE_STALL": "0.5s"}
    with Process(*words, cwd=tmp_path, **quick) as zombie:
        port = re.search(r"127.0.0.1:(\d+)", zombie.line("health and metrics on"))
        assert port is not None
        with Process("start", "flow.py", "flow", str(tmp_path), "--id", "r", "--store", store, cwd=tmp_path) as start:
            assert start.end() == 0
        zombie.line("begins")
        stop_between_writes(zombie.pid, tmp_path / "l.db")
        with Process(*words, cwd=tmp_path, **quick) as other:
            other.line("begins")
            (tmp_path / "gate").touch()
            with Process("tail", "r", "-f", "--json", "--store", store, cwd=tmp_path) as tail:
                tail.line('"Completed"')
            zombie.signal(signal.SIGCONT)
            until(lambda: refused(int(port[1])) == 1)
            assert scraped(int(port[1]))["perdure_loop_stalls_total"] == 0  # it was stopped, not stalled
            assert zombie.stop() == other.stop() == 0
    check(store, tmp_path)


def check(store: str, folder: Path) -> None:
    async def main() -> None:
        async with Perdure(store) as app:
            rows = [row async for row in app.get("r").rows()]
            check_log(rows, "default/r")
            types = [entry.type for entry in await app.get("r").log()]
            assert types == ["Started", "TakenOver", "ActionSettled", "Completed"]

    asyncio.run(main())
    ran = [line.split() for line in (folder / "effects").read_text().splitlines()]
    assert len({key for key, _ in ran}) == 1
    assert [int(fence) for _, fence in ran] == sorted({int(fence) for _, fence in ran})  # rising with each run


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def refused(port: int) -> float:
    kinds = {
        kind: scraped(port)[f'workflow_event_processing_errors_total{{kind="{kind}"}}'] for kind in ("stale", "lost")
    }
    return sum(kinds.values())


def until(condition: Any, timeout: float = 15) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
