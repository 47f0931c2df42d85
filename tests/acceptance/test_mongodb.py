"""Workers on MongoDB: real processes, one of which is killed, and a server that is killed under them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.core.records import Query
from perdure.testing.servers.mongodb import MongoServer
from tests.acceptance import cluster_flows
from tests.acceptance.cluster import Cluster, Load, check


@pytest.fixture
def fleet(tmp_path: Path, mongodb: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, mongodb)
    cluster_flows.LEDGER = str(cluster.ledger.path)
    yield cluster
    cluster.end()


def test_of_two_workers_on_mongodb_one_is_killed_under_load_and_nothing_is_lost_or_doubled(fleet: Cluster) -> None:
    doomed, _ = fleet.grow(2)

    async def main() -> None:
        async with fleet.app() as app, asyncio.timeout(60):
            load = Load(app)
            await load.reaches(60)
            doomed.signal(signal.SIGKILL)
            await load.reaches(120)
            runs = await load.end()
            await check(fleet, runs)
            heads = {head.key: head for head in await app.store.find(Query(tenant=None, limit=1000))}
            assert {heads[run.key].status for run in runs} == {"completed"}
            assert len(heads) - len(runs) in (0, 1), "one start may have been under way when the client was stopped"

    asyncio.run(main())
    calls = fleet.ledger.calls()
    assert len({call["pid"] for call in calls}) == 2, "both have worked"


@pytest.mark.usefixtures("unreachable_mongodb")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_is_killed_under_load_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    with MongoServer(private=True) as server:
        cluster = Cluster(tmp_path, server.address("shop"))
        cluster_flows.LEDGER = str(cluster.ledger.path)
        cluster.grow(1)

        async def main() -> None:
            async with cluster.app() as app, asyncio.timeout(90):
                load = Load(app)
                await load.reaches(30)
                await asyncio.to_thread(server.restart)
                await load.reaches(60)
                await check(cluster, await load.end())

        try:
            asyncio.run(main())
        finally:
            cluster.end()
