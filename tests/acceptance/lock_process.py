"""Takes a lock, says so with its fence, and keeps it until it is told (a line on stdin) or killed.

usage: lock_process.py STORE NAME LEASE WAIT
"""

from __future__ import annotations

import asyncio
import sys
import time

from perdure import Perdure


async def main(store: str, name: str, lease: float, wait: float) -> None:
    async with Perdure(store) as app:
        async with app.lock(name, lease=lease, wait=wait) as lock:
            print(f"taken {lock.fence} {time.time()}", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        print(f"given {time.time()}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))
