"""Real workers whose hints go through NATS, which fails under load: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.testing.servers.nats import NatsServer
from tests.acceptance.cluster import Cluster, Load, check, get, port_of, until
from tests.acceptance.conftest import Make


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """To be stopped and emptied."""
    with NatsServer() as server:
        yield server


def test_a_nats_that_is_restarted_under_load_loses_nothing(make: Make, own_nats: NatsServer, tmp_path: Path) -> None:
    cluster = make(own_nats.url, store=f"sqlite:///{tmp_path}/load.db")
    cluster.grow(2)

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(40):
            load = Load(app)
            for count, forget in ((40, False), (80, True), (120, True)):
                await load.reaches(count)
                await asyncio.to_thread(own_nats.restart, forget=forget)
            await load.reaches(160)
            assert await check(cluster, await load.end()) == 0
            await until(lambda: app.stream.carries, "hints get through again")

    asyncio.run(main())


def test_a_worker_that_is_killed_is_made_up_for_by_the_other(make: Make, own_nats: NatsServer) -> None:
    cluster = make(own_nats.url)
    first, _ = cluster.grow(2)

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(40):
            load = Load(app)
            await load.reaches(50)
            first.signal(signal.SIGKILL)
            await load.reaches(100)
            await check(cluster, await load.end())

    asyncio.run(main())


def test_workers_without_nats_are_degraded_and_say_why(make: Make, own_nats: NatsServer) -> None:
    cluster = make(own_nats.url, grace=1)
    ports = [port_of(worker) for worker in cluster.grow(2, health="127.0.0.1:0", log_level="info")]

    async def all_are(status: str) -> bool:
        return all([json.loads((await get(port, "/health"))[1])["status"] == status for port in ports])

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(40):
            load = Load(app, pause=0.02)
            await load.reaches(20)
            assert await all_are("ready")
            own_nats.kill()
            await until(lambda: all_are("degraded"), "both workers are degraded", 15)
            for port in ports:
                code, body = await get(port, "/health")
                assert (code, f"NATS at 127.0.0.1:{own_nats.port} cannot be reached" in body) == (200, True), body
            await load.reaches(len(load.runs) + 20)
            own_nats.forget()
            own_nats.start()
            await until(lambda: all_are("ready"), "both workers have recovered", 15)
            assert await check(cluster, await load.end()) == 0

    asyncio.run(main())


def test_a_worker_that_nats_refuses_does_not_start(make: Make) -> None:
    with NatsServer("--user", "ada", "--pass", "s3cret") as server:
        cluster: Cluster = make(f"nats://ada:wr0ng@127.0.0.1:{server.port}")
        worker = cluster.process("worker", str(cluster.flows))
        assert worker.end() != 0
        said = " ".join(worker.seen)
        assert f"NATS at 127.0.0.1:{server.port} refuses us (Authorization Violation): mend the user" in said
        assert "wr0ng" not in said
