"""The workflows of the cluster's tests, for `perdure worker` and for the clients in the tests.

What the outside world sees goes into the ledger, a file with one line per call. A line is written with one append, so
that many processes can share the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from perdure import ActionFailed, Breaker, Escalate, External, Perdure, Retry, action, event, person, role, workflow

LEDGER = os.environ.get("LEDGER", "")


def note(step: str, **more: object) -> None:
    """Say to the world that a step is done, with the key and the fence that it would compare."""
    call = {"execution": action.execution, "step": step, "key": action.key, "fence": action.fence, "pid": os.getpid()}
    line = json.dumps({**call, "at": time.time(), **more}) + "\n"
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@action
async def work(step: str, seconds: float = 0) -> str:
    note(step)
    await asyncio.sleep(seconds)
    return step


@action
async def stay(seconds: float) -> None:
    """In and out again: who else is in meanwhile can be seen in the ledger."""
    note("in")
    await asyncio.sleep(seconds)
    note("out")


@action(queue="studio")
async def render(scene: int, seconds: float) -> int:
    note(f"scene {scene}")
    await asyncio.sleep(seconds)
    return scene


@workflow
async def film(scenes: int, seconds: float) -> int:
    return len(await asyncio.gather(*(render(scene, seconds) for scene in range(scenes))))


@action(everywhere=2)
async def visit(seconds: float) -> None:
    """As `stay`, but no more than two at once in all workers."""
    note("in")
    await asyncio.sleep(seconds)
    note("out")


@action(retries=Retry(attempts=3, first=0.05))
def fail_once() -> str:
    note("tried", attempt=action.attempt)
    if action.attempt == 1:
        raise RuntimeError("not yet")
    return "done"


@action(retries=Retry(attempts=3, first=1, jitter=0))
async def fail_at_first() -> int:
    note("tried", attempt=action.attempt)
    if action.attempt == 1:
        raise RuntimeError("come back later")
    return action.attempt


@action(transactional=True, retries=Retry(attempts=20, first=0.2, factor=1))
async def enter(seconds: float) -> int:
    """One row for the call, in a table beside those of the store; who comes second waits for the first."""
    schema = os.environ["PERDURE_STORE"].partition("schema=")[2].partition("&")[0]
    await action.connection.execute(f'insert into "{schema}".entries values ($1, $2)', action.key, os.getpid())
    note("entered")
    await asyncio.sleep(seconds)
    return os.getpid()


@action(at_most_once=True)
async def launch(seconds: float) -> None:
    note("launched")
    await asyncio.sleep(seconds)


@action(breaker=Breaker(failures=3, pause=2, fail_fast=True))
async def ask() -> str:
    """A service that is ill as long as nobody says that it is well."""
    note("asked")
    if not Path(f"{LEDGER}.well").exists():
        raise External("out of order")
    return "fine"


@workflow(name="fleet_order")
async def order(number: int) -> str:
    """Four steps, two of them side by side, and a short rest."""
    await work("reserve")
    async with asyncio.TaskGroup() as group:
        group.create_task(work("charge"))
        group.create_task(work("pack"))
    await asyncio.sleep(0.02)
    return f"{await work('ship')} {number}"


@workflow
async def chain(steps: int, seconds: float = 0) -> int:
    workflow.publish(done=0)
    for number in range(steps):
        await work(f"step-{number}", seconds)
        workflow.publish(done=number + 1)
    return steps


@workflow
async def told(times: int, rest: float = 0.01) -> list[int]:
    """Waits to be told, works, rests, and waits again."""
    heard = []
    for number in range(times):
        heard.append(await event("go", int))
        await work(f"go-{number}")
        if rest:
            await asyncio.sleep(rest)
    return heard


@workflow
async def gives_up() -> None:
    raise ValueError(f"told {await event('go', int)} times")


@workflow
async def watchful(seconds: float) -> list[str]:
    """Takes an event while it is busy with an action."""
    said: list[str] = []

    async def hear() -> None:
        said.append(await event("word", str))
        workflow.publish(word=said[-1])

    async with asyncio.TaskGroup() as group:
        group.create_task(hear())
        group.create_task(work("busy", seconds))
    return said


@workflow
async def both(seconds: float) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(side, seconds)) for side in ("left", "right")]
    return [task.result() for task in tasks]


@workflow
async def alarm(moment: float) -> None:
    await asyncio.sleep(moment - workflow.now().timestamp())


@workflow(name="fleet_elsewhere", queue="nobody")
async def elsewhere() -> None:
    """On a queue that no worker serves."""


@workflow
async def alone(seconds: float) -> None:
    await stay(seconds)


@workflow
async def visits(seconds: float) -> None:
    await visit(seconds)


@workflow
async def account(seconds: float) -> int:
    return await enter(seconds)


@workflow
async def rocket(seconds: float) -> str:
    """Two calls that a death may cut off: one is made again, the other is not."""
    again = asyncio.create_task(work("fuel", seconds))
    try:
        await launch(seconds)
    except ActionFailed as unknown:
        return f"{await again}, {unknown.type}"
    return f"{await again}, launched"


async def asking() -> str:
    try:
        return await ask()
    except ActionFailed as failure:
        return failure.type


asks_here = workflow(asking, name="asks_here")
asks_there = workflow(asking, name="asks_there", queue="there")


@workflow
async def stubborn() -> str:
    return await fail_once()


@workflow
async def put_off() -> int:
    return await fail_at_first()


@action
async def print_page(seconds: float) -> None:
    """One printer for all workers: who prints holds its lock."""
    async with Perdure(os.environ["PERDURE_STORE"]) as app, app.lock("printer", lease=5, wait=30) as lock:
        note("in", lock=lock.fence)
        await asyncio.sleep(seconds)
        note("out", lock=lock.fence)


@workflow
async def page(seconds: float) -> None:
    await print_page(seconds)


@workflow(name="fleet_review")
async def reviewed() -> list[Any]:
    """Asks somebody who is never there, so others may do it soon; then for a signature that nobody gives."""
    form = {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}
    approved = await person(
        "approve", title="approve it", form=form, assign="zoe", escalate=[Escalate(0.3, to=role("boss"))]
    )
    return [approved["ok"], await person("sign", title="sign it", due=0.3, default="nobody signed")]
