"""The benchmark itself: it runs, and its figures are about what they say. Nothing here looks at how fast we are."""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import bench
from bench import embedded, fleet, fleet_parts, machines
from bench.__main__ import main, measure_embedded, measure_fleet, measure_machines
from bench.cores import slowed
from bench.fleet import Job, engine, warm_up
from bench.load import closed, paced, percentile
from bench.servers import Servers, cpu_of
from bench.stored import fill
from perdure.core import events as ev
from perdure.core.records import Query
from perdure.stores.postgres import PostgresStore
from perdure.testing.invariants import check_log

TINY = fleet.Scale(count=20, at_once=10, rounds=1, slow=3, timers=4, stored=50, grown=5)
TINY_EMBEDDED = embedded.Scale(count=20, at_once=10, rounds=1, alone=3, events=50, waiting=20, idle=0.05)


@pytest.fixture(scope="module")
def servers() -> Any:
    with Servers() as ours:
        yield ours


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return measure_fleet(["postgres"], TINY)


def test_every_module_of_the_benchmark_can_be_imported() -> None:
    for found in pkgutil.iter_modules(bench.__path__, "bench."):
        importlib.import_module(found.name)


def test_a_fleet_and_the_bare_program_give_rates_times_and_shares(figures: dict[str, Any]) -> None:
    for program in fleet.WORKFLOWS:
        found = figures["throughput"][program]
        assert set(found) == {"postgres, 1", "postgres, 2", "by hand"}
        for one in found.values():
            assert one["rate"] > 0
            assert 0 < one["p50"] <= one["p99"] <= TINY.count / one["rate"]
            assert one["share"] == one["rate"] / found["by hand"]["rate"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU times come from /proc")
def test_the_cost_of_every_process_is_known(figures: dict[str, Any]) -> None:
    cost = figures["throughput"]["F10"]["postgres, 1"]["cpu"]
    assert set(cost) == {"client", "worker", "postgres", "redis"}
    assert all(one is not None and 0 <= one < 1e6 for one in cost.values())
    assert cost["client"] > 0


def test_the_database_keeps_what_it_commits(figures: dict[str, Any]) -> None:
    assert (figures["servers"]["fsync"], figures["servers"]["synchronous_commit"]) == ("on", "on")


def test_timers_are_measured_from_when_they_were_due(figures: dict[str, Any]) -> None:
    timers = figures["latency"]["postgres"]["timers"]
    assert timers["count"] == TINY.timers
    assert 0 <= timers["p50"] <= timers["p99"] < 30, "the clock of another machine was measured"


def test_stores_with_few_and_with_many_executions_are_compared(figures: dict[str, Any]) -> None:
    few, many = figures["stored"]["figures"].values()
    assert figures["stored"]["ratio"] == many["rate"] / few["rate"]


def test_stored_executions_are_what_the_engine_would_have_written(servers: Servers) -> None:
    with engine(servers, "postgres", "copies") as one:
        one.run(Job("W1", 1))
        asyncio.run(fill(servers, "copies", 30))

    async def look() -> None:
        store = PostgresStore(servers.store("copies"))
        await store.open()
        try:
            heads = await store.find(Query(tenant="default", limit=100))
            assert [head.status for head in heads] == ["completed"] * 31
            logs = [await store.read(head.key) for head in heads]
            assert {tuple(row.type for row in rows) for rows in logs} == {tuple(row.type for row in logs[0])}
            for head, rows in zip(heads, logs):
                check_log(rows, head.key)
            assert heads[0].key == max(head.key for head in heads), "what is stored must be older than what is new"
        finally:
            await store.close()

    asyncio.run(look())


def test_a_fleet_on_both_servers_with_two_workers_shares_the_load(servers: Servers) -> None:
    with engine(servers, "cluster", "pair", workers=2) as two:
        warm_up(two, TINY)
        assert two.do(Job("W5", 20, 10)).rate > 0


def test_a_slowed_process_has_its_part_of_a_core() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with slowed([busy.pid], 0.1) as done:
            if not done:
                pytest.skip("control groups cannot be made here")
            began, used = time.monotonic(), cpu_of(busy.pid) or 0.0
            while time.monotonic() - began < 1:
                time.sleep(0.1)
            share = ((cpu_of(busy.pid) or 0.0) - used) / (time.monotonic() - began)
    finally:
        busy.kill()
        busy.wait()
    assert 0 < share < 0.3


def test_a_fleet_that_grows_is_measured(servers: Servers) -> None:
    found = fleet_parts.growth(servers, TINY, print)
    assert found is None or all(one["rate"] > 0 for sizes in found.values() for one in sizes.values())


def test_a_fleet_whose_worker_cannot_start_says_so(servers: Servers) -> None:
    broken = fleet.Fleet(servers, {}, ["-c", "raise SystemExit('no')"], ["-c", ""])
    with pytest.raises(RuntimeError, match="ended"):
        broken.__enter__()


def test_the_embedded_part_runs() -> None:
    found = measure_embedded(TINY_EMBEDDED)
    for one in found["throughput"].values():
        assert min(one["rate"], one["bare"], one["rows"]) > 0
        assert 0 < one["p50"] <= one["p99"]
    assert found["replay"]["events"] == 51
    assert found["waiting"]["count"] == 20


def test_the_part_about_machines_runs() -> None:
    found = measure_machines(machines.Scale(count=10, at_once=5, rounds=1, short=3, long=40, asked=2))
    assert found["code"]["ratio"] == found["code"]["machine"] / found["code"]["code"] > 0
    assert found["log"]["ratio"] == found["log"]["long"] / found["log"]["short"] > 0


def test_the_log_of_a_long_lived_machine_is_one_that_the_engine_would_write() -> None:
    rows = machines.log(5)
    check_log(rows)
    assert [ev.read(row).to_state for row in rows if row.type == ev.NUMBERS[ev.StateChanged]][-1] == "off"  # type: ignore[union-attr]


def test_the_figures_are_written_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "figures.json"
    monkeypatch.setattr(embedded, "QUICK", TINY_EMBEDDED)
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--only", "embedded", "--json", str(file)])
    main()
    written = json.loads(file.read_text())
    assert set(written) == {"machine", "embedded"}
    assert set(written["embedded"]["throughput"]) == {"W1", "W5", "F10"}


def test_a_paced_load_does_not_wait_for_what_came_before() -> None:
    async def load() -> list[float]:
        began, first = time.perf_counter(), asyncio.Event()

        async def one(number: int) -> float:
            if number == 0:
                await first.wait()  # until the last one has been started
            elif number == 4:
                first.set()
            return time.perf_counter() - began

        async with asyncio.timeout(10):
            return await paced(one, 5, 100)

    times = asyncio.run(load())
    assert times[-1] >= 0.04


def test_a_closed_load_has_no_more_in_flight_than_it_may() -> None:
    async def load() -> int:
        flying = most = 0

        async def one(number: int) -> float:
            nonlocal flying, most
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(0)
            flying -= 1
            return 0.0

        await closed(one, 20, 3)
        return most

    assert asyncio.run(load()) == 3


def test_a_percentile_is_one_of_the_times() -> None:
    times = [float(n) for n in range(1, 101)]
    assert (percentile(times, 0.5), percentile(times, 0.99), percentile([7.0], 0.99)) == (50, 99, 7)


def test_the_cpu_time_of_a_process_that_is_not_known_is_not_known() -> None:
    assert cpu_of(None) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU times come from /proc")
def test_the_cpu_time_of_a_process_is_what_it_has_used() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        took = cpu_of(process.pid)
        process.communicate(b"\n")
    assert took == pytest.approx(0.3, abs=0.1)
