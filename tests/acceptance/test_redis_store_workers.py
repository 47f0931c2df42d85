"""Real workers on a store in Redis: one is killed in the middle of a load, or the server is, and all is done once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.core.records import Query
from perdure.testing.checks import check_head, check_replay
from perdure.testing.servers.valkey import ValkeyServer
from tests.acceptance import cluster_flows
from tests.acceptance.cluster import Cluster, Load, check, rows_of
from tests.acceptance.dying_process import SETTINGS
from tests.acceptance.test_cluster_kill import run_right


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer(durable=True) as server:
        yield server


@pytest.fixture
def cluster(server: ValkeyServer, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, f"{server.url}?prefix=fleet")
    yield cluster
    cluster.end()


async def looked_at(cluster: Cluster, load: Load, count: int) -> int:
    """All that was accepted is finished; nothing else is there; gives how many calls were made again."""
    runs = await load.end()
    assert len(runs) >= count
    store = load._app.store
    heads = {head.key: head for head in await store.find(Query("default", inner=False, limit=10_000))}
    # The client may have been stopped in the middle of one more start.
    assert heads.keys() - {run.key for run in runs} <= {f"default/order-{len(runs)}"}
    now = await store.now()
    for run in runs:
        rows = await rows_of(run)
        check_head(heads[run.key], rows, now)
        check_replay(heads[run.key], rows)
    return await check(cluster, runs)


def test_a_worker_that_is_killed_in_the_middle_of_a_load_costs_nothing(cluster: Cluster) -> None:
    first, _ = cluster.grow(2)

    async def scenario() -> None:
        async with cluster.app() as app:
            load = Load(app)
            await load.reaches(60)
            first.signal(signal.SIGKILL)
            await load.reaches(140)
            await looked_at(cluster, load, 140)

    asyncio.run(scenario())


def test_a_server_that_is_killed_in_the_middle_of_a_load_costs_nothing(server: ValkeyServer, cluster: Cluster) -> None:
    cluster.grow(2)

    async def scenario() -> None:
        async with cluster.app() as app:
            load = Load(app)
            await load.reaches(40)
            server.restart()
            await load.reaches(100)
            await looked_at(cluster, load, 100)

    asyncio.run(scenario())


def test_killed_at_every_step_the_errand_is_still_run_right(
    server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, f"{server.url}?prefix=errands", **SETTINGS)
    monkeypatch.setattr(cluster_flows, "LEDGER", str(cluster.ledger.path))
    run_right(cluster)
