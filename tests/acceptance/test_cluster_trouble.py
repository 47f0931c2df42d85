"""Servers fail under load, PostgreSQL and Redis alike: nothing is lost, nothing is done twice, and workers say so."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from random import Random

import asyncpg
import httpx
import pytest

from perdure import Run
from perdure.testing.proxy import Proxy
from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import ValkeyServer
from tests.acceptance.cluster import CALM, Cluster, Load, check, get, metrics, port_of, results, until
from tests.acceptance.cluster_flows import chain, order, stubborn, told
from tests.acceptance.conftest import Make


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """To be stopped and started."""
    with PostgresServer(private=True) as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[ValkeyServer]:
    """To be stopped and flushed."""
    with ValkeyServer() as server:
        yield server


def test_a_flush_of_redis_at_any_moment_under_load_loses_nothing(make: Make, own_redis: ValkeyServer) -> None:
    cluster = make(own_redis.url, **CALM)
    cluster.grow(2)
    dice, flushed = Random(7), 0

    async def flush() -> None:
        nonlocal flushed
        while True:
            await asyncio.to_thread(own_redis.do, "FLUSHALL")
            flushed += 1
            await asyncio.sleep(dice.uniform(0, 0.1))

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(40):
            load = Load(app)
            await load.reaches(20)
            flushing = asyncio.create_task(flush())
            await load.reaches(200)
            flushing.cancel()
            await asyncio.wait([flushing])
            assert await check(cluster, await load.end()) == 0
            assert flushed > 10

    asyncio.run(main())


def test_a_pause_outlives_all_workers_and_redis(make: Make, own_redis: ValkeyServer) -> None:
    cluster = make(own_redis.url)
    crew = cluster.grow(2)

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(60):
            runs = [await app.start(chain, 8, 0.3, id=f"chain-{n}") for n in range(4)]
            await until(lambda: all(cluster.ledger.of(run) for run in runs), "all have begun")
            await asyncio.gather(*(run.pause(reason="stocktaking") for run in runs))
            await asyncio.gather(*(run.until("paused", timeout=20) for run in runs))
            # When all that runs is killed, and comes back with nothing in its memory
            for worker in crew:
                worker.signal(signal.SIGKILL)
                await asyncio.to_thread(worker.end)
            done = len(cluster.ledger.calls())
            own_redis.kill()
            own_redis.start()
            await asyncio.to_thread(cluster.grow, 2)
            # Then whatever happens, they stay as they are until they are resumed
            fresh = await app.start(chain, 3, 0.0)
            for run in runs:
                await run.send("noise")
            assert await fresh.result(timeout=20) == 3
            assert [await run.status() for run in runs] == ["paused"] * 4
            assert len(cluster.ledger.calls()) == done + 3
            for run in runs:
                await run.resume()
            assert await results(runs) == [8] * 4
            await check(cluster, runs)

    asyncio.run(main())


async def health(port: int) -> dict[str, str]:
    code, body = await get(port, "/health")
    return {"code": str(code), **json.loads(body)}


async def asked(address: str) -> tuple[int, str]:
    """How an API says that it is."""
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.get(f"{address}/health/ready")
    return answer.status_code, answer.json()["status"]


async def is_degraded(address: str) -> bool:
    return await asked(address) == (200, "degraded")


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_worker_and_an_api_end_soon_without_redis(make: Make, own_redis: ValkeyServer, how: str) -> None:
    cluster = make(own_redis.url, drain=30)
    both = [*cluster.grow(1), *(one for one, _ in cluster.serve())]
    own_redis.pause() if how == "stopped" else own_redis.kill()
    for one in both:
        one.signal(signal.SIGTERM)
    assert [one.end(15) for one in both] == [0, 0]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_work_goes_on_without_redis_and_workers_are_degraded_but_ready(
    make: Make, own_redis: ValkeyServer, how: str
) -> None:
    cluster = make(own_redis.url, grace=1)
    first, second = (port_of(worker) for worker in cluster.grow(2, health="127.0.0.1:0", log_level="info"))
    [(_, address)] = cluster.serve()

    async def all_are(status: str) -> bool:
        return all([(await health(port))["status"] == status for port in (first, second)])

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(60):
            load = Load(app, pause=0.02)
            await load.reaches(30)
            assert await all_are("ready") and await asked(address) == (200, "ready")
            own_redis.pause() if how == "stopped" else own_redis.kill()
            await until(lambda: all_are("degraded"), "both workers are degraded", 15)
            await until(lambda: is_degraded(address), "so is the API", 15)
            for port in (first, second):
                found = await health(port)
                assert found["code"] == "200"
                assert "stream" in str(found["reasons"])
            await until(lambda: bool(app.stream.trouble), "the client knows of the trouble", 15)
            began = time.monotonic()
            alone = [await app.start(order, number, id=f"alone-{number}") for number in range(20)]
            await results(alone, 20)
            took = time.monotonic() - began
            assert took < 15, f"without Redis 20 orders took {took:.1f} s"
            own_redis.go_on() if how == "stopped" else own_redis.start()
            await until(lambda: all_are("ready"), "both workers have recovered", 15)
            await until(lambda: not app.stream.trouble, "the client has recovered", 15)
            await check(cluster, [*await load.end(), *alone])

    asyncio.run(main())


def test_a_crash_of_postgres_under_load_is_survived_once_for_each(
    make: Make, own_postgres: PostgresServer, redis_url: str
) -> None:
    cluster = make(redis_url, store=own_postgres.address(schema="crash"), lease=2)
    cluster.grow(2)

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(60):
            load = Load(app)
            await load.reaches(60)
            await asyncio.to_thread(own_postgres.restart, "immediate")
            await load.reaches(150)
            await check(cluster, await load.end())

    asyncio.run(main())


def test_lost_connections_under_load_are_survived_once_for_each(make: Make, own_postgres: PostgresServer) -> None:
    cluster = make(store=own_postgres.address(schema="lost"), lease=2)
    cluster.grow(2)

    async def cut() -> None:
        connection = await asyncpg.connect(own_postgres.address())
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        await connection.close()

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(60):
            load = Load(app)
            for count in (40, 80, 120):
                await load.reaches(count)
                await cut()
            await load.reaches(160)
            await check(cluster, await load.end())

    asyncio.run(main())


def test_a_worker_without_postgres_is_not_ready_until_it_is_back(make: Make, own_postgres: PostgresServer) -> None:
    cluster = make(store=own_postgres.address(schema="ready"))
    [worker] = cluster.grow(1, health="127.0.0.1:0", log_level="info")
    port = port_of(worker)

    async def answers(path: str, code: int) -> bool:
        return (await get(port, path))[0] == code

    async def main() -> None:
        assert await answers("/ready", 200)
        own_postgres.halt("immediate")
        try:
            await until(lambda: answers("/ready", 503), "it is not ready", 5)
            assert await answers("/live", 200), "a restart would not help"
        finally:
            own_postgres.resume()
        await until(lambda: answers("/ready", 200), "it has recovered")
        async with cluster.app() as app:
            assert await (await app.start(order, 1)).result(timeout=20) == "ship 1"

    asyncio.run(main())


def test_a_worker_and_an_api_whose_store_is_silent_are_not_ready_until_it_speaks(
    make: Make, own_postgres: PostgresServer
) -> None:
    async def main() -> None:
        async with Proxy("127.0.0.1", own_postgres.port) as wire, httpx.AsyncClient() as client:
            cluster = make(store=own_postgres.address(schema="silent", port=wire.port))
            [worker] = await asyncio.to_thread(cluster.grow, 1, health="127.0.0.1:0", log_level="info")
            [(_, api)] = await asyncio.to_thread(cluster.serve)

            async def both(code: int) -> bool:
                asked = await asyncio.gather(
                    get(port_of(worker), "/ready"), client.get(f"{api}/health/ready", timeout=10)
                )
                return (asked[0][0], asked[1].status_code) == (code, code)

            assert await both(200)
            wire.swallow()
            await until(lambda: both(503), "neither is ready", 5)
            assert (await get(port_of(worker), "/live"))[0] == 200
            assert (await client.get(f"{api}/health/live")).status_code == 200
            wire.heal()
            await until(lambda: both(200), "both have recovered")

    asyncio.run(main())


def test_the_metrics_of_a_worker_count_a_scripted_run_exactly(cluster: Cluster) -> None:
    [worker] = cluster.grow(1, health="127.0.0.1:0", log_level="info")
    port = port_of(worker)

    async def main() -> dict[str, float]:
        before = await metrics(port)
        async with cluster.app() as app:
            runs: list[Run[object]] = [await app.start(chain, 3, 0.0, id=f"chain-{n}") for n in range(10)]
            runs += [await app.start(stubborn, id=f"stubborn-{n}") for n in range(2)]
            waiting = await app.start(told, 1, 0.0)
            await waiting.send("go", 1)
            cancelled = await app.start(told, 1, 0.0)
            await cancelled.until("waiting", timeout=20)
            await cancelled.cancel("no longer wanted")
            await cancelled.until("cancelled", timeout=20)
            await results([*runs, waiting])
        after = await metrics(port)
        return {name: value - before.get(name, 0) for name, value in after.items()}

    counted = asyncio.run(main())

    def of(name: str, **labels: str) -> float:
        text = ",".join(f'{label}="{value}"' for label, value in labels.items())
        return counted.get(f"{name}{{{text}}}" if text else name, 0)

    assert of("perdure_executions_ended_total", status="completed") == 13
    assert of("perdure_executions_ended_total", status="cancelled") == 1
    assert of("perdure_executions_ended_total", status="failed") == 0
    assert of("perdure_actions_total", outcome="ok") == 33
    assert of("perdure_actions_total", outcome="retried") == 2
    assert of("perdure_actions_total", outcome="failed") == 0
    events = "workflow_events_processed_total"
    assert of(events, type="ActionSettled") == 33
    assert of(events, type="ActionAttempted") == 2
    assert of(events, type="EventReceived") == 1
    assert of(events, type="CancelRequested") == 1
    assert of(events, type="Completed") == 13
    assert of(events, type="Cancelled") == 1
    assert of("perdure_takeovers_total") == 0
    assert of("workflow_event_dlq_total", cause="lapses") == 0
    assert not [name for name, value in counted.items() if "errors_total" in name and value]
    assert of("perdure_holds") == of("perdure_attempts_running") == 0
