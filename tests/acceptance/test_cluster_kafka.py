"""Worker processes on PostgreSQL and Kafka: a broker fails under load, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from perdure.testing.servers.kafka import KafkaServer
from tests.acceptance.cluster import Load, check, get, port_of, results, until
from tests.acceptance.cluster_flows import order
from tests.acceptance.conftest import Make


@pytest.fixture
def own_kafka() -> Iterator[KafkaServer]:
    """To be stopped and started."""
    with KafkaServer() as server:
        yield server


async def health(port: int) -> dict[str, str]:
    code, body = await get(port, "/health")
    return {"code": str(code), **json.loads(body)}


def test_a_broker_that_comes_back_without_its_data_under_load_loses_and_doubles_nothing(
    make: Make, own_kafka: KafkaServer
) -> None:
    cluster = make(own_kafka.url, grace=1, stream_shards=4, stream_block=0.1)
    ports = [port_of(worker) for worker in cluster.grow(2, health="127.0.0.1:0", log_level="info")]

    async def all_are(status: str) -> bool:
        return all([(await health(port))["status"] == status for port in ports])

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(60):
            load = Load(app, pause=0.02)
            await load.reaches(30)
            assert await all_are("ready")
            own_kafka.kill()
            await until(lambda: all_are("degraded"), "both workers are degraded", 15)
            for port in ports:
                found = await health(port)
                assert (found["code"], "Kafka at 127.0.0.1" in str(found["reasons"])) == ("200", True)
            await until(lambda: bool(app.stream.trouble), "the client knows of the trouble", 15)
            # Without a broker PostgreSQL tells workers to look
            alone = [await app.start(order, number, id=f"alone-{number}") for number in range(10)]
            await results(alone, 15)
            own_kafka.start()
            await until(lambda: all_are("ready"), "both workers have recovered", 15)
            await until(lambda: not app.stream.trouble, "the client has recovered", 15)
            await load.reaches(len(load.runs) + 50)
            assert await check(cluster, [*await load.end(), *alone]) == 0

    asyncio.run(main())
