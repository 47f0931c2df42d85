"""The client of a fleet, in a process of its own: starts executions and waits for their results.

It runs on uvloop, as the worker does, and is told by the environment where store and stream are.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvloop

from bench import programs
from bench.load import One, obey
from perdure import Perdure
from perdure.core.events import TimerFired, read
from perdure.runtime.settings import load

#: Shortest and longest sleep of a timer that is measured: below and above the time for which a worker keeps an
#: execution in memory.
SHORTEST, LONGEST, KINDS = 0.2, 2.0, 19


def timed(app: Perdure, workflow: Any) -> One:
    """From the start of an execution to its result."""

    async def one(number: int) -> float:
        began = time.perf_counter()
        run = await app.start(workflow, 1)
        await run.result()
        return time.perf_counter() - began

    return one


def late(app: Perdure) -> One:
    """How late a timer fired, by the log: the time of the event after the time at which it was due."""

    async def one(number: int) -> float:
        seconds = SHORTEST + number % KINDS * (LONGEST - SHORTEST) / (KINDS - 1)
        run = await app.start(programs.sleeps, seconds)
        await run.result()
        async for row in run.rows():
            event = read(row)
            if isinstance(event, TimerFired):
                return (row.at - event.due) / 1e6
        raise RuntimeError(f"{run.key} has slept, but no timer of it has fired")

    return one


async def main() -> None:
    settings = load()
    async with Perdure(settings.store, settings=settings) as app:
        await obey(lambda name: late(app) if name == "sleeps" else timed(app, programs.MEASURED[name]))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
