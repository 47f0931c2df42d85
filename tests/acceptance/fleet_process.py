"""A worker process that serves one SQLite file together with others, until it is told to stop.

usage: fleet_process.py DATABASE
"""

from __future__ import annotations

import asyncio
import sys

from perdure import Perdure, action, event, workflow


@action
async def add(n: int) -> int:
    await asyncio.sleep(0.01)
    return n + 1


@workflow
async def climb(steps: int) -> int:
    n = 0
    for _ in range(steps):
        n = await add(n)
    return n


@workflow
async def echo() -> str:
    return await event("say", str)


async def main() -> None:
    app = Perdure(f"sqlite:///{sys.argv[1]}", lease=1, grace=0.2, probe=0.5)
    async with app, app.working():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
