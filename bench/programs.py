"""The workflows that are measured: one no-op step, five in sequence, ten in parallel and joined; and some that wait."""

from __future__ import annotations

import asyncio

from perdure import action, event, workflow


@action
async def increment(n: int) -> int:
    return n + 1


@workflow
async def w1(n: int) -> int:
    return await increment(n)


@workflow
async def w5(n: int) -> int:
    for _ in range(5):
        n = await increment(n)
    return n


@workflow
async def f10(n: int) -> int:
    return sum(await asyncio.gather(*(increment(n) for _ in range(10))))


@workflow
async def waits(n: int) -> int:
    got: int = await event("go", int)
    return n + got


@workflow
async def sleeps(seconds: float) -> None:
    await asyncio.sleep(seconds)


@workflow
async def long(steps: int) -> int:
    n = 0
    for _ in range(steps):
        n = await increment(n)
    return n


MEASURED = {"W1": w1, "W5": w5, "F10": f10}
