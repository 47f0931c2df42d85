"""Schedules and bulk operations on real stores, in real time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import Perdure, event, workflow


@pytest.fixture(params=["sqlite", "postgres", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mongodb":
        return str(request.getfixturevalue("mongodb"))
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path / 'store.db'}"


@workflow(name="stores-waits")
async def waits(colour: str) -> str:
    workflow.publish(colour=colour)
    await event("go")
    return colour


async def started(app: Perdure, name: str, count: int) -> None:
    async with asyncio.timeout(20):
        while (await app.schedules.get(name)).started < count:
            await asyncio.sleep(0.02)


def test_a_schedule_that_many_create_at_once_is_one_that_fires_once_for_each_time(url: str) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            apps = [await stack.enter_async_context(Perdure(url)) for _ in range(3)]
            for _ in range(2):
                await asyncio.gather(
                    *(one.schedules.create("often", waits, ["red"], every="1s", overlap="all") for one in apps)
                )
            [told] = await apps[0].schedules.list()
            for one in apps:
                await stack.enter_async_context(one.working(drain=0.1))
            await started(apps[1], "often", 2)
            recent = (await apps[2].schedules.get("often")).recent
            assert [fire.at - told.start for fire in recent[:2]] == [timedelta(seconds=1), timedelta(seconds=2)]
            ids = {head.key.partition("/")[2] for head in (await apps[0].find(workflow="stores-waits")).heads}
            assert {fire.id for fire in recent} <= ids

    asyncio.run(main())


def test_the_name_of_a_deleted_schedule_is_free(url: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), Perdure(url) as app, app.working(drain=0.1):
            for colour in ("red", "blue", "green"):
                await app.schedules.create("daily", waits, [colour], cron="@daily")
                assert (await app.schedules.get("daily")).args == [colour]
                await app.schedules.delete("daily")
                while await app.schedules.list():
                    await asyncio.sleep(0.02)
            assert len(await app.schedules.list(ended=True)) == 3

    asyncio.run(main())


def test_a_bulk_operation_acts_on_what_fits(url: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), Perdure(url) as app, app.working(drain=0.1):
            runs = [await app.start(waits, "red" if number % 2 else "blue", id=f"r{number}") for number in range(12)]
            for run in runs:
                await run.until("waiting")
            operation = await app.bulk.start("cancel", fields={"colour": "red"})
            await operation.result()
            told = await app.bulk.get(operation.id)
            assert (told.found, told.done, told.failed) == (6, 6, 0)
            for number, run in enumerate(runs):
                assert await run.until("cancelled" if number % 2 else "waiting")

    asyncio.run(main())
