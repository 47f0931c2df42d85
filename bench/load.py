"""Load, and how a process of its own is told to make it.

A client process reads one Job per line and answers each with one Done. Rules kept here: the time of an execution begins
when it is started, not when it gets a place; a paced load does not wait for what came before, so a slow answer is not
hidden by starting less.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct


class Job(Struct, frozen=True):
    """So many executions of a program: `at_once` in flight or, if it is not zero, `per_second`."""

    program: str
    count: int
    at_once: int = 1000
    per_second: float = 0


class Done(Struct, frozen=True):
    """Seconds of the whole, CPU seconds of the client, and one time per execution, sorted."""

    seconds: float
    cpu: float
    times: list[float]


#: Runs one execution, given its number, and gives its time.
One = Callable[[int], Awaitable[float]]


async def closed(one: One, count: int, at_once: int) -> list[float]:
    """`count` executions with `at_once` in flight."""
    numbers, times = iter(range(count)), []

    async def one_after_the_other() -> None:
        for number in numbers:
            times.append(await one(number))

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return sorted(times)


async def paced(one: One, count: int, per_second: float) -> list[float]:
    """`count` executions, one every `1 / per_second` seconds."""
    loop = asyncio.get_running_loop()
    began, tasks = loop.time(), []
    for number in range(count):
        await asyncio.sleep(began + number / per_second - loop.time())
        tasks.append(asyncio.ensure_future(one(number)))
    return sorted(await asyncio.gather(*tasks))


async def do(job: Job, one: One) -> Done:
    began, cpu = time.perf_counter(), time.process_time()
    if job.per_second:
        times = await paced(one, job.count, job.per_second)
    else:
        times = await closed(one, job.count, job.at_once)
    return Done(time.perf_counter() - began, time.process_time() - cpu, times)


async def obey(one_of: Callable[[str], One]) -> None:
    """Do the jobs that come in on stdin until it ends; `one_of` gives what runs one execution of a program."""
    say({"event": "ready"})
    while line := await asyncio.to_thread(sys.stdin.readline):
        job = msgspec.json.decode(line, type=Job)
        say(await do(job, one_of(job.program)))


def say(answer: object) -> None:
    """One line for whoever started this process."""
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def percentile(times: Sequence[float], share: float) -> float:
    """Of sorted times, the one that this share of them does not exceed."""
    return times[max(0, math.ceil(len(times) * share) - 1)]
