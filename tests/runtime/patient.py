"""A workflow that waits, and a process with a worker that has nothing to do: it tells what that cost.

usage: patient.py DATABASE
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path

from perdure import Perdure, event, workflow
from perdure.core import loop as loops


@workflow(name="patient-waits")
async def waits() -> str:
    async with asyncio.timeout(30 * 24 * 3600):
        return await event("word", str)


async def main(path: str) -> None:
    app = Perdure(f"sqlite:///{path}", probe=0.05, probe_idle=0.05)
    looks = 0
    async with app, app.working() as worker:
        ask = app.store.next_due

        async def next_due(*args: object) -> object:
            nonlocal looks
            looks += 1
            return await ask(*args)  # type: ignore[arg-type]

        app.store.next_due = next_due  # type: ignore[method-assign, assignment]
        await asyncio.sleep(0.5)
        cpu = time.process_time()
        await asyncio.sleep(1)
        cost = {"cpu": time.process_time() - cpu, "memory": resident(), "looks": looks}
        cost |= {"held": len(worker.residents), "loops": len(loops._live)}
        run = app.get("first")
        await run.send("word", "hello")
        print(json.dumps(cost | {"answer": await run.result(timeout=30)}))


def resident() -> int:
    """Bytes of memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
