"""Attempts that are spent, on real stores and in real time: dead letters, a redrive, a cancel that cleans up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Perdure, Retry, action, workflow
from perdure.testing import check_log

ill: set[str] = set()
undone: list[str] = []


@pytest.fixture(params=["sqlite", "postgres", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mongodb":
        return str(request.getfixturevalue("mongodb"))
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path / 'store.db'}"


@action(name="stores-reserve")
async def reserve(item: str) -> str:
    return item


@reserve.undo(retries=0)
async def stores_give_back(item: str, reserved: str) -> None:
    undone.append(item)


@action(name="stores-ship", retries=Retry(attempts=2, first="10ms", jitter=0, spent="stuck"))
async def ship(item: str) -> int:
    if item in ill:
        raise ConnectionError(f"{item} is ill")
    return action.attempt


@workflow(name="stores-order")
async def order(item: str) -> int:
    await reserve(item)
    return await ship(item)


def test_it_is_a_dead_letter_until_it_is_redriven_or_cancelled(url: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), Perdure(url) as app, app.working(drain=0.1):
            ill.update({"tea", "milk"})
            tea, milk = [await app.start(order, item, id=item) for item in ("tea", "milk")]
            for one in (tea, milk):
                await one.until("stuck")
            assert {one.id for one in (await app.dead(cause="attempts")).dead} == {"tea", "milk"}
            assert (await tea.head()).shown == "stuck"
            ill.clear()
            assert (await app.redrive("tea")).done == ["tea"]
            assert await tea.result() == 3
            await milk.cancel("out of stock")
            await milk.until("cancelled")
            assert undone == ["milk"]
            for one in (tea, milk):
                check_log([row async for row in one.rows()], one.key)

    undone.clear()
    asyncio.run(main())
