"""Worker processes that meet over RabbitMQ: it may be killed with all its data, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from perdure.testing.servers.rabbitmq import RabbitServer
from tests.acceptance.cluster import Load, check, get, port_of, results, until
from tests.acceptance.cluster_flows import order
from tests.acceptance.conftest import Make


@pytest.fixture
def own(rabbit: RabbitServer) -> Iterator[RabbitServer]:
    """The broker of this run; it is there again afterwards."""
    yield rabbit
    if not rabbit._answers():
        rabbit.kill()
        rabbit.start()


async def health(port: int) -> dict[str, object]:
    _, body = await get(port, "/health")
    found: dict[str, object] = json.loads(body)
    return found


def test_rabbitmq_is_killed_and_comes_back_empty_under_load(make: Make, own: RabbitServer) -> None:
    cluster = make(own.url, grace=1)
    ports = [port_of(worker) for worker in cluster.grow(2, health="127.0.0.1:0", log_level="info")]

    async def all_are(status: str) -> bool:
        return all([(await health(port))["status"] == status for port in ports])

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(60):
            load = Load(app, pause=0.01)
            await load.reaches(30)
            assert await all_are("ready")
            # When the broker dies, the workers say so and go on
            own.kill()
            own.forget()
            await until(lambda: all_are("degraded"), "both workers are degraded")
            assert f"RabbitMQ at 127.0.0.1:{own.port} cannot be reached" in str((await health(ports[0]))["reasons"])
            alone = [await app.start(order, number, id=f"alone-{number}") for number in range(10)]
            await results(alone, 20)
            # Then it comes back and knows nothing, and they use it again
            await asyncio.to_thread(own.start)
            await until(lambda: all_are("ready"), "both workers have recovered")
            await until(lambda: not app.stream.trouble, "the client has recovered")
            await load.reaches(len(load.runs) + 50)
            assert await check(cluster, [*await load.end(), *alone]) == 0

    asyncio.run(main())
