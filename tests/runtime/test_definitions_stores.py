"""Definitions on real stores, with real time: many publishers at once, and executions that run and change versions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, action
from perdure.core import events as ev
from perdure.flows.registry import registry
from perdure.runtime.definitions.published import blank, key_of_definition
from perdure.runtime.managing import publishing
from tests.flows.script import known, script


@pytest.fixture(autouse=True)
def _kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_workflows", {})  # other tests have workflows of these names
    with known():
        yield


@pytest.fixture(params=["sqlite", "postgres", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mongodb":
        return str(request.getfixturevalue("mongodb"))
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path / 'store.db'}"


@action(name="stores.double")
async def double(n: int) -> int:
    return 2 * n


DOUBLE = {"act": "stores.double", "with": [4]}


def test_many_publishers_at_once_get_versions_of_their_own(url: str) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            apps = [await stack.enter_async_context(Perdure(url)) for _ in range(3)]
            made = await asyncio.gather(
                *(apps[number % 3].definitions.publish(script("order", {"sleep": number % 10})) for number in range(20))
            )
            assert sorted({one.version for one in made}) == list(range(1, 11))
            assert all(made[number].version == made[number + 10].version for number in range(10))
            history = await apps[0].definitions.history("order")
            assert [one.version for one in history] == list(range(1, 11))

    asyncio.run(main())


def test_a_publisher_that_died_does_not_stop_the_next(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            key = key_of_definition("default", "order")
            await app.store.start([blank(key)], 0)
            await app.store.hold([key], "somebody", 500_000)
            assert (await app.definitions.publish(script("order"))).version == 1
            rows = await app.store.read(key)
            assert [type(ev.read(row)).__name__ for row in rows] == ["Started", "TakenOver", "EventReceived"]

    asyncio.run(main())


def test_whose_lease_is_over_writes_nothing_over_the_next(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a publisher that is stopped between its hold and its commit, for longer than its lease
    async def main() -> None:
        async with Perdure(url) as slow, Perdure(url) as quick:
            commit, store = slow.store.commit, slow.store
            stopped = asyncio.Event()

            async def late(group: Any, grace: int) -> Any:
                monkeypatch.setattr(store, "commit", commit)
                stopped.set()
                await asyncio.sleep(0.6)
                return await commit(group, grace)

            monkeypatch.setattr(publishing, "LEASE", 0.3)
            monkeypatch.setattr(store, "commit", late)
            publishing_slowly = asyncio.create_task(slow.definitions.publish(script("order", {"sleep": 1})))
            await stopped.wait()
            # When another publishes meanwhile, then the first comes after it
            assert (await quick.definitions.publish(script("order", {"sleep": 2}))).version == 1
            assert (await publishing_slowly).version == 2

    asyncio.run(main())


def test_what_was_published_runs_and_changes_its_version(url: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), Perdure(url) as client, Perdure(url) as server, server.working():
            await client.definitions.publish(script("order", DOUBLE, {"wait": "packed"}))
            run = await client.start("order", id="o1")
            await run.until("waiting")
            await client.definitions.publish(script("order", DOUBLE, {"wait": "packed"}, DOUBLE))
            await run.migrate(2, by="ada")
            await run.send("packed", 1)
            assert await run.result() == [8, 1, 8]
            assert (await run.state()).definition == "published:order@2"

    asyncio.run(main())


def test_a_bundle_goes_from_store_to_store(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as one, Perdure("memory://") as two:
            for body in (script("order", DOUBLE), script("order", {"wait": "ü"}), script("parcel")):
                await one.definitions.publish(body)
            await one.definitions.deprecate("order", 2, "no")
            bundle = await one.definitions.export()
            await two.definitions.import_(bundle)
            assert await two.definitions.export() == bundle
            assert [listed.name for listed in await one.definitions.list()] == ["order", "parcel"]

    asyncio.run(main())
