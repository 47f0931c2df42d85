"""Applications with a key ring: nothing readable leaves the process, and a shredded tenant disturbs nobody."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import redis.asyncio

import perdure
from perdure import DirectoryRing, Perdure, action, event, workflow
from perdure.core.behalf import on_behalf_of, seen_by
from perdure.core.records import Hint
from perdure.errors import ExecutionStuck, KeyShredded, SettingsError, UsageError
from perdure.http.api import api
from perdure.http.auth import Authenticator, Open
from perdure.runtime.callers.batch import Batch
from perdure.runtime.callers.ends import end_of, news_of
from perdure.runtime.callers.states import WORTHWHILE
from perdure.runtime.sealing.seals import Seals
from perdure.runtime.sealing.store import SealedStore
from perdure.runtime.sealing.stream import SealedCache, SealedStream
from perdure.runtime.telemetry.health import Checks
from perdure.runtime.telemetry.metrics import Metrics
from perdure.streams.memory import MemoryStream
from perdure.testing import World
from tests.stores.sealing import Ring
from tests.stores.test_sealed import store_of

CANARY = "canary-5e0a"


@action(name="sealed.tell", retries=1)
async def tell(text: str) -> str:
    action.heartbeat({"text": text})
    if action.attempt == 1:
        raise ConnectionError(f"not {text}")
    return f"told {text}"


@workflow(name="sealed-child")
async def child(text: str) -> str:
    return text


@workflow(name="sealed-flow", events={"more": str})
async def flow(text: str) -> str:
    workflow.publish(stage="telling", note=text)
    told = await tell(text)
    below = await child(f"child {text}")
    more = await event("more", str)
    for number in range(WORTHWHILE):
        workflow.record(lambda: f"{number} {text}")  # noqa: B023
    return f"{told} {below} {more}"


@workflow(name="sealed-waits", events={"more": str})
async def waits(text: str) -> str:
    return await event("more", str)


@pytest.fixture
def ring(tmp_path: Path) -> str:
    directory = str(tmp_path / "ring")
    DirectoryRing.create(directory)
    return directory


async def drive(app: Perdure) -> None:
    run = await app.start(flow, CANARY, id="f1")
    await run.send("more", f"event {CANARY}")
    assert await run.result(30) == f"told {CANARY} child {CANARY} event {CANARY}"
    other = await app.start(waits, CANARY, id="w1")
    await other.until("waiting", timeout=20)
    assert (await run.state()).published == {"stage": "telling", "note": CANARY}
    assert CANARY in str(await run.log())
    assert [head.key for head in (await app.find(stage="telling")).heads] == ["default/f1"]


def test_the_canary_is_not_in_the_file(tmp_path: Path, ring: str) -> None:
    async def main() -> None:
        app = Perdure(f"sqlite:///{tmp_path / 's.db'}", keyring=ring, searchable="stage")
        async with app, app.working():
            await drive(app)

    asyncio.run(main())
    written = b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())
    assert b"sealed-flow" in written
    assert CANARY.encode() not in written
    assert b"telling" not in written


def test_without_the_ring_nothing_can_be_read(tmp_path: Path, ring: str) -> None:
    async def main() -> None:
        place = f"sqlite:///{tmp_path / 's.db'}"
        async with Perdure(place, keyring=ring) as app:
            await app.start(waits, CANARY, id="w1")
        async with Perdure(place) as blind:
            rows = await blind.store.read("default/w1")
            assert CANARY not in str(rows)
        DirectoryRing.create(str(tmp_path / "other"))
        async with Perdure(place, keyring=str(tmp_path / "other")) as stranger:
            with pytest.raises(Exception, match="every process needs the same key ring"):
                await stranger.get("w1").log()

    asyncio.run(main())


async def dumped_postgres(address: str) -> bytes:
    schema = address.rpartition("schema=")[2].partition("&")[0]
    connection = await asyncpg.connect(address.partition("?")[0])
    found = []
    for table in await connection.fetch("select tablename from pg_tables where schemaname = $1", schema):
        for row in await connection.fetch(f'select * from "{schema}"."{table[0]}"'):
            found += [one if isinstance(one, bytes) else str(one).encode() for one in row.values()]
    await connection.close()
    return b"\n".join(found)


async def dumped_redis(url: str) -> bytes:
    client = redis.asyncio.from_url(url)
    found = []
    async for key in client.scan_iter("*"):
        found += [key, await client.dump(key) or b""]
        kind = await client.type(key)
        if kind == b"stream":
            found.append(str(await client.xrange(key)).encode())
        elif kind == b"string":
            found.append(await client.get(key) or b"")
        elif kind == b"hash":
            found.append(str(await client.hgetall(key)).encode())
    await client.aclose()
    return b"\n".join(found)


def test_the_canary_is_neither_in_postgresql_nor_in_redis(postgres: str, redis_url: str, ring: str) -> None:
    prefix = f"sealed{os.getpid()}"
    heard: list[bytes] = []

    async def listen() -> None:
        client = redis.asyncio.from_url(redis_url)
        async with client.pubsub() as ear:
            await ear.psubscribe("*")
            async for message in ear.listen():
                heard.append(str(message["data"]).encode())

    async def main() -> None:
        ear = asyncio.create_task(listen())
        options: dict[str, Any] = {"stream": redis_url, "stream_prefix": prefix, "keyring": ring, "searchable": "stage"}
        async with Perdure(postgres, **options) as client:
            app = Perdure(postgres, **options)
            async with app, app.working():
                await drive(client)
                store = await dumped_postgres(postgres)
                cache = await dumped_redis(redis_url)
        ear.cancel()
        await asyncio.gather(ear, return_exceptions=True)
        assert b"sealed-flow" in store and prefix.encode() in cache and heard
        for found in (store, cache, b"\n".join(heard)):
            assert CANARY.encode() not in found
            assert CANARY.encode().hex().encode() not in found

    asyncio.run(main())


@action(name="sealed.insert", transactional=True)
async def insert(text: str) -> str:
    return f"inserted {await action.connection.fetchval('select $1::text', text)}"


@workflow(name="sealed-inserts", events={"more": str})
async def inserts(text: str) -> str:
    return await insert(text) + await event("more", str)


def test_writes_in_a_transaction_of_the_caller_are_sealed_as_well(postgres: str, ring: str) -> None:
    async def main() -> None:
        app = Perdure(postgres, keyring=ring)
        async with app, app.working():
            connection = await asyncpg.connect(postgres.partition("?")[0])
            async with connection.transaction():
                run = await app.start(inserts, CANARY, id="t1", connection=connection)
                await app.send("t1", "more", CANARY, connection=connection)
            assert await run.result(20) == f"inserted {CANARY}{CANARY}"
            await connection.close()
        assert CANARY.encode() not in await dumped_postgres(postgres)

    asyncio.run(main())


# A shredded tenant.


def test_a_shredded_tenant_gets_stuck_once_and_the_others_go_on(tmp_path: Path, ring: str) -> None:
    async def main() -> None:
        app = Perdure(f"sqlite:///{tmp_path / 's.db'}", keyring=ring, probe=0.1, lease=0.5)
        async with app:
            doomed = await app.start(waits, CANARY, id="w1", tenant="acme")
            lives = await app.start(waits, CANARY, id="w1", tenant="rival")
            await doomed.send("more", "never read")
            DirectoryRing(ring).shred("acme")
            app.store.seals.ring._known.clear()  # type: ignore[attr-defined]
            async with app.working():
                await lives.send("more", "and on")
                assert await lives.result(20) == "and on"
                async with asyncio.timeout(20):
                    while not (await app.dead(tenant="acme")).dead:
                        await asyncio.sleep(0.05)
            [dead] = (await app.dead(tenant="acme")).dead
            assert (dead.cause, dead.tries, dead.mail) == ("sealed", 1, 0)
            assert "were destroyed" in dead.reason
            with pytest.raises(ExecutionStuck, match="were destroyed"):
                await doomed.result(1)
            for asking in (doomed.log(), doomed.send("more", "x"), doomed.cancel()):
                with pytest.raises(KeyShredded):
                    await asking
            assert [head.key for head in (await app.find(tenant="acme")).heads] == ["acme/w1"]
            assert await app.store.next_due(["default"], ["sealed-waits@1"]) is None

    asyncio.run(main())


def test_a_running_execution_whose_keys_are_destroyed_is_left_and_gets_stuck(tmp_path: Path) -> None:
    async def main() -> None:
        keys = Ring()
        app = Perdure(f"sqlite:///{tmp_path / 's.db'}", keyring=keys, probe=0.1, lease=0.5)
        async with app, app.working():
            run = await app.start(waits, CANARY, id="w1", tenant="acme")
            await run.until("waiting", timeout=20)
            await run.send("more", "x")
            keys.shredded.add("acme")
            async with asyncio.timeout(20):
                while (await app.find(tenant="acme")).heads[0].status != "stuck":
                    await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_state_that_a_process_has_in_mind_is_not_told_after_the_keys_are_gone() -> None:
    async def main() -> None:
        keys = Ring()
        app = Perdure("memory://", keyring=keys)
        async with app, app.working():
            run = await app.start(flow, CANARY, id="f1", tenant="acme")
            await run.send("more", "m")
            await run.result(20)
            assert (await run.state()).published["note"] == CANARY
            keys.shredded.add("acme")
            with pytest.raises(KeyShredded):
                await run.state()

    asyncio.run(main())


def test_over_http_what_is_shredded_is_gone() -> None:
    async def main() -> None:
        keys = Ring()
        app = Perdure("memory://", keyring=keys)
        there = api(app, Authenticator(open=Open("acme")))
        async with app, httpx.AsyncClient(transport=httpx.ASGITransport(there), base_url="http://localhost") as client:
            await app.start(waits, CANARY, id="w1", tenant="acme")
            keys.shredded.add("acme")
            for path in ("/log", "/state", "/why"):
                answer = await client.get(f"/v1/executions/w1{path}")
                assert (answer.status_code, answer.json()["type"]) == (410, "urn:perdure:problem:key-shredded")
            assert (await client.get("/v1/executions")).json()["executions"][0]["id"] == "w1"
            # That it was done must be told all the same.
            assert (await client.post("/v1/executions/w1/cancel", json={})).status_code == 410
            assert (await client.get("/v1/audit")).json()["acts"][0]["act"] == "executions.cancel"

    asyncio.run(main())


def test_one_start_that_cannot_be_sealed_does_not_fail_those_that_share_its_write() -> None:
    async def main() -> None:
        keys = Ring()
        async with Perdure("memory://", keyring=keys) as app:
            keys.shredded.add("acme")
            answers = await asyncio.gather(
                app.start(waits, "1", tenant="rival"),
                app.start(waits, "2", tenant="acme"),
                app.start(waits, "3", tenant="third"),
                return_exceptions=True,
            )
            assert [type(one).__name__ for one in answers] == ["Run", "KeyShredded", "Run"]

    asyncio.run(main())


def test_a_batch_is_repeated_by_halves_for_such_an_error() -> None:
    calls: list[list[int]] = []

    async def write(items: Sequence[int]) -> Sequence[int]:
        calls.append(list(items))
        if 2 in items:
            raise KeyShredded("two")
        return items

    async def main() -> None:
        batch = Batch(write)
        await asyncio.gather(*(batch.put(one) for one in (1, 2, 3)), return_exceptions=True)

    asyncio.run(main())
    assert calls == [[1, 2, 3], [1], [2, 3], [2], [3]]


def test_what_many_share_is_written_on_nobodys_behalf() -> None:
    seen: list[str | None] = []

    async def write(items: Sequence[int]) -> Sequence[int]:
        seen.append(seen_by(None))
        return items

    async def main() -> None:
        with on_behalf_of("acme"):
            await Batch(write).put(1)

    asyncio.run(main())
    assert seen == [None]


# The stream and the cache.


def test_news_carry_the_result_sealed() -> None:
    from perdure.core.records import End

    async def main() -> None:
        stream = SealedStream(MemoryStream(), Seals(Ring()))
        sent: list[Hint] = []

        async def publish(hints: Sequence[Hint]) -> None:
            sent.extend(hints)

        stream.inside.publish = publish  # type: ignore[method-assign]
        await stream.publish([news_of("acme/one", End("completed", f'"{CANARY}"'.encode())), Hint("acme/one", "q")])
        assert CANARY not in str(sent) and sent[0].result
        opened = stream._opened(sent[0])
        assert end_of(opened) == End("completed", f'"{CANARY}"'.encode())
        assert sent[1] == Hint("acme/one", "q")
        # What cannot be opened tells to look.
        for wrong in ("no base64!", sent[0].result[:-8] + "AAAAAAA="):
            assert end_of(stream._opened(Hint("acme/one", ended=True, status="completed", result=wrong))) is None

    asyncio.run(main())


def test_the_shared_cache_has_sealed_states_and_forgets_what_it_cannot_open() -> None:
    class Memory:
        def __init__(self) -> None:
            self.items: dict[str, bytes] = {}

        async def get(self, keys: Sequence[str]) -> list[bytes | None]:
            return [self.items.get(key) for key in keys]

        async def put(self, items: Any, ttl: float) -> None:
            self.items.update(items)

        async def close(self) -> None: ...

    async def main() -> None:
        keys, inside = Ring(), Memory()
        cache = SealedCache(inside, Seals(keys))
        await cache.put({"state1:acme/one": CANARY.encode()}, 1)
        assert CANARY not in str(inside.items)
        assert await cache.get(["state1:acme/one", "state1:acme/two"]) == [CANARY.encode(), None]
        inside.items["state1:acme/two"] = inside.items["state1:acme/one"]
        assert await cache.get(["state1:acme/two"]) == [None]
        keys.shredded.add("acme")
        assert await cache.get(["state1:acme/one"]) == [None]
        await cache.put({"state1:acme/three": b"x"}, 1)
        assert "state1:acme/three" not in inside.items

    asyncio.run(main())


# Settings.


def test_a_ring_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="perdure keyring create"):
        Perdure("memory://", keyring=str(tmp_path / "nowhere"))


def test_the_extra_is_named_where_it_is_missing(ring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "perdure.runtime.sealing.keyring", None)
    with pytest.raises(SettingsError, match=r"perdure\[encryption\]"):
        Perdure("memory://", keyring=ring)
    with pytest.raises(ImportError, match=r"DirectoryRing needs a further package: .*perdure\[encryption\]"):
        _ = perdure.DirectoryRing


def test_fields_that_are_not_searchable_are_refused() -> None:
    async def main() -> None:
        async with Perdure("memory://", keyring=Ring()) as app:
            with pytest.raises(UsageError, match="`searchable`"):
                await app.find(stage="paid")

    asyncio.run(main())


def test_health_says_whether_it_is_on() -> None:
    class Floor:
        me, draining, residents, metrics = "w1", False, {}, Metrics()

    class Pulse:
        stalled = 0.0

    async def main() -> None:
        for app in (Perdure("memory://", keyring=Ring()), Perdure("memory://")):
            checks = Checks(Floor(), app.stream, app.store, Pulse())
            assert (await checks.report()).encrypted == isinstance(app.store, SealedStore)

    asyncio.run(main())


# The engine as a whole, on a sealed store in virtual time.


def test_a_world_on_a_sealed_store_survives_crashes() -> None:
    from perdure.stores.memory import MemoryStore
    from perdure.testing import run

    async def main() -> None:
        async with World(store=lambda clock: store_of(inside=MemoryStore(clock)), workers=2) as world:
            running = await world.start(flow, CANARY)
            await running.send("more", "m")
            await world.crash()
            assert await running.result() == f"told {CANARY} child {CANARY} m"

    run(main())
