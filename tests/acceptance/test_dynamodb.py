"""Real workers on DynamoDB: one is killed in the middle of a load, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.core.records import ENDED, Query
from perdure.testing.checks import check_head
from tests.acceptance import cluster_flows
from tests.acceptance.cluster import Cluster, Load, check, results
from tests.acceptance.cluster_flows import told, visits


@pytest.fixture
def fleet(tmp_path: Path, dynamodb: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, dynamodb)
    cluster_flows.LEDGER = str(cluster.ledger.path)
    yield cluster
    cluster.end()


def test_a_worker_on_dynamodb_is_killed_under_load_and_nothing_is_lost_or_doubled(fleet: Cluster) -> None:
    victim, _ = fleet.grow(2)

    async def main() -> None:
        async with fleet.app() as app, asyncio.timeout(100):
            load = Load(app, pause=0.02)
            heard = [await app.start(told, 2, id=f"told-{number}") for number in range(5)]
            apart = [await app.start(visits, 0.02, id=f"visit-{number}") for number in range(5)]
            for number in range(2):
                for run in heard:
                    await run.send("go", number)
            await load.reaches(30)
            victim.signal(signal.SIGKILL)
            await load.reaches(45)
            runs = await load.end()
            assert await results(heard) == [[0, 1]] * 5
            assert len(await results(apart)) == 5
            await check(fleet, [*runs, *heard, *apart])
            heads = await app.store.find(Query("default", limit=1000))
            assert {head.status for head in heads} <= ENDED
            now = await app.store.now()
            for head in heads:
                check_head(head, await app.store.read(head.key), now)

    asyncio.run(main())
