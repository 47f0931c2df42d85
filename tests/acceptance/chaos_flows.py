"""What workers do under fire: random programs, whose effects go into the ledger, and actions that want one lock."""

from __future__ import annotations

import asyncio
import os

from perdure import Perdure, action, workflow
from perdure.testing import programs
from tests.acceptance.cluster_flows import note


class Ledger(programs.Sink):
    """The world outside, shared by all processes."""

    def take(self, step: str) -> None:
        note(step)


programs.sink.set(Ledger())


@action(name="chaos.guarded", retries=9)
async def guarded(seconds: float) -> None:
    async with Perdure(os.environ["PERDURE_STORE"]) as app, app.lock("gate", lease=1, wait=20) as lock:
        note("in", lock=lock.fence)
        await asyncio.sleep(seconds)
        note("out", lock=lock.fence)


@workflow(name="chaos.rival")
async def rival(times: int) -> int:
    for _ in range(times):
        await guarded(0.05)
    return times
