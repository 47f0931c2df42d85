"""One execution of which a store with limits of its own does not take what it writes, and those that run beside it."""

from __future__ import annotations

import asyncio

import pytest

from perdure import ExecutionStuck, Perdure, action, event, workflow


@action(name="culprits.fill")
async def fill(size: int) -> str:
    return "x" * size


@workflow(name="culprits.bucket")
async def bucket() -> int:
    size = await event("size", int)
    return len(await fill(size))


def test_a_result_that_is_no_document_of_mongodb_makes_its_execution_stuck(mongodb: str) -> None:
    async def main() -> None:
        async with Perdure(mongodb, payload_bytes=30_000_000) as app, app.working():
            runs = [await app.start(bucket) for _ in range(8)]
            for run in runs:
                await run.until("waiting", timeout=20)
            sizes = [17_000_000 if n == 3 else n for n in range(8)]
            await asyncio.gather(*(run.send("size", size) for run, size in zip(runs, sizes, strict=True)))
            with pytest.raises(ExecutionStuck, match=r"\(refused\): .* a document of MongoDB has 16 MB"):
                await runs[3].result(timeout=30)
            for n, run in enumerate(runs):
                if n != 3:
                    assert await run.result(timeout=30) == n
            [dead] = (await app.dead(cause="refused")).dead
            assert dead.id == runs[3].id

    asyncio.run(main())
