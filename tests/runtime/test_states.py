"""States that are kept at hand: hot in the process, warm in Redis; the log decides, whatever becomes of them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from perdure import Perdure, action, event, workflow
from perdure.core import view
from perdure.core.records import Row
from perdure.http.api import api
from perdure.runtime import backends
from perdure.runtime.callers import states
from perdure.runtime.run import Run
from perdure.runtime.settings import Settings
from perdure.streams.redis import warm
from perdure.testing.servers.valkey import ValkeyServer
from tests.http.test_api import People


@action
async def counted(n: int) -> dict[str, int]:
    return {"n": n}


@workflow
async def counts(steps: int) -> int:
    for n in range(steps):
        await counted(n)
        workflow.publish(n=n)
    await event("go on")
    await counted(steps)
    await event("end")
    return steps


async def folded(run: Run[int]) -> view.State:
    """What the log says, without anything that is kept."""
    return view.final([row async for row in run.rows()], run.key)


def reading(app: Perdure, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions that are read from the store for a state."""
    read: list[int] = []
    rows = app.states._rows

    async def watched(key: str, after: int, until: int | None):  # type: ignore[no-untyped-def]
        async for row in rows(key, after, until):
            read.append(row.version)
            yield row

    monkeypatch.setattr(app.states, "_rows", watched)
    return read


def test_only_what_was_written_since_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        here, there = (Perdure(f"sqlite:///{tmp_path}/s.db") for _ in range(2))
        async with here, there, there.working():
            run = await here.start(counts, 40)
            await run.until("waiting", timeout=20)
            before = await run.state()
            read = reading(here, monkeypatch)
            assert await run.state() == before == await folded(run)
            assert read == []
            await run.send("go on")  # another process appends
            while len((await run.state()).actions) == 40:
                await asyncio.sleep(0.01)
            await run.until("waiting", timeout=20)
            after = await run.state()
            assert after == await folded(run)
            assert min(read) == before.version + 1
            read.clear()
            assert (await run.state(at=10)).version == 10  # older than what is kept
            assert read == list(range(1, 11))

    asyncio.run(body())


def test_a_state_is_warm_for_another_process_and_may_vanish(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "PATIENCE", 20)

    async def body() -> None:
        options = {"stream": redis_url, "stream_prefix": f"states-{os.getpid()}"}
        here, there = (Perdure(f"sqlite:///{tmp_path}/s.db", **options) for _ in range(2))
        cache = backends.warm(Settings(**options))  # type: ignore[arg-type]
        assert cache is not None
        async with here, there, here.working():
            run = await here.start(counts, 40)
            await run.until("waiting", timeout=20)
            state = await run.state()
            name = states._name(run.key)
            [kept] = await cache.get([name])
            assert kept is not None
            with pytest.MonkeyPatch.context() as patch:
                read = reading(there, patch)
                assert await there.get(run.id).state() == state
                assert read == []
            for damaged in (b"{", kept.replace(b"default/", b"others/", 1)):  # a miss, never a wrong answer
                await cache.put({name: damaged}, 60)
                await there.states.close()
                assert await there.get(run.id).state() == state
        await cache.close()

    asyncio.run(body())


@workflow(name="states-ending")
async def ending(how: str) -> int:
    for n in range(60):
        await counted(n)
    workflow.publish(n=60)
    if how == "fails":
        raise ValueError("as it should")
    await event("end")
    return 60


def test_what_has_ended_is_read_as_before_when_nothing_is_left_but_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hot and warm states are gone, and so are the processes that had them."""
    monkeypatch.setattr(warm, "PATIENCE", 20)
    ways = ("", "/state", "/log", "/result", "/why", "/state?at=30")

    async def read(app: Perdure) -> list[bytes]:
        transport = httpx.ASGITransport(app=api(app, People()))
        said = {"authorization": "Bearer default:ann:admin"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=said) as client:
            paths = [f"/v1/executions/{how}{way}" for how in ("ends", "fails", "stops") for way in ways]
            answers = [await client.get(path) for path in paths]
        assert {answer.status_code for answer in answers} == {200}
        return [answer.content for answer in answers]

    async def body(server: ValkeyServer) -> None:
        def app() -> Perdure:
            return Perdure(f"sqlite:///{tmp_path}/s.db", stream=server.url, warm=70)

        async with app() as here, here.working():
            runs = {how: await here.start(ending, how, id=how) for how in ("ends", "fails", "stops")}
            await runs["ends"].send("end")
            await runs["stops"].until("waiting", timeout=20)
            await runs["stops"].cancel()
            for how, status in (("ends", "completed"), ("fails", "failed"), ("stops", "cancelled")):
                await runs[how].until(status, timeout=20)
            before = await read(here)
            kept = server.do("KEYS", "*:state*").decode().split()[2::2]
            assert len(kept) == 3
            assert all(0 < int(server.do("PTTL", key)[1:]) <= 70_000 for key in kept), "the time to live is a setting"
        server.do("FLUSHALL")
        async with app() as there:
            assert await read(there) == before

    with ValkeyServer() as server:
        asyncio.run(body(server))


def test_without_a_time_to_live_nothing_is_kept_in_redis(tmp_path: Path) -> None:
    async def body(server: ValkeyServer) -> None:
        async with Perdure(f"sqlite:///{tmp_path}/s.db", stream=server.url, warm=0) as app, app.working():
            run = await app.start(counts, 40)
            await run.until("waiting", timeout=20)
            assert await run.state() == await folded(run)
            assert server.do("KEYS", "*:state*") == b"*0\r\n"

    with ValkeyServer() as server:
        asyncio.run(body(server))


def test_short_logs_are_not_kept() -> None:
    rows: list[Row] = []

    async def none(key: str, after: int, until: int | None):  # type: ignore[no-untyped-def]
        for row in rows:
            yield row

    async def body() -> None:
        kept = states.States(none, 10)
        assert (await kept.at("default/none", None)).version == 0
        assert not kept._hot

    asyncio.run(body())
