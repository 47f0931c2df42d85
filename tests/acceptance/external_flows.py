"""A workflow with an external action, for the processes of `test_external`."""

from __future__ import annotations

import asyncio

from perdure import action, workflow


@action(name="far.double", external=True, queue="far", retries=2)
async def double(n: int) -> int: ...  # type: ignore[empty-body]


@workflow(name="far-sum")
async def total(numbers: list[int]) -> int:
    return sum(await asyncio.gather(*map(double, numbers)))
