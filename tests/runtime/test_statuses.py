"""What is asked of an execution, from every status: the table in docs/howto/operations.md, pair by pair."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import ExecutionEnded, Perdure, RetryRefused, Run, action, event, workflow
from perdure.http.api import api
from tests.http.test_api import Door, People, problem

_PAGE = Path(__file__).parents[2] / "docs" / "howto" / "operations.md"
VERBS = ("pause", "resume", "cancel", "retry", "send")
ENDED = ("completed", "failed", "cancelled")


@action(name="statuses.fail", retries=0)
async def fail() -> None:
    raise ValueError("no")


@action(name="statuses.last", retries=0)
async def last() -> None:
    await asyncio.Event().wait()


@workflow(name="statuses-wait")
async def waits() -> str:
    return str(await event("go"))


@workflow(name="statuses-fail")
async def fails() -> None:
    await fail()


@workflow(name="statuses-run")
async def runs() -> None:
    await last()


@workflow(name="statuses-stick")
async def sticks() -> None:
    await asyncio.get_running_loop().create_future()


def published() -> dict[tuple[str, str], str]:
    """The outcome of each pair of status and verb."""
    text = _PAGE.read_text().partition("| status | pause |")[2].partition("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {
        (status, verb): outcome for status, *outcomes in rows for verb, outcome in zip(VERBS, outcomes, strict=True)
    }


TABLE = published()


async def brought_to(app: Perdure, status: str) -> Run[Any]:
    """An execution that has come to this status."""
    made = {"running": runs, "failed": fails, "stuck": sticks}.get(status, waits)
    run = await app.start(made)
    match status:
        case "paused":
            await run.pause()
        case "completed":
            await run.send("go")
        case "cancelled":
            await run.cancel()
        case _:
            pass
    await run.until(status, timeout=20)  # type: ignore[arg-type]
    return run


async def ask(run: Run[Any], verb: str) -> None:
    await (run.send("go") if verb == "send" else getattr(run, verb)())


async def refused(app: Perdure, run: Run[Any], verb: str) -> None:
    """Also over HTTP; and nothing has changed."""
    before = (await run.status(), len(await run.log()))
    kind, name = (RetryRefused, "retry-refused") if verb == "retry" else (ExecutionEnded, "execution-ended")
    with pytest.raises(kind):
        await ask(run, verb)
    transport = httpx.ASGITransport(app=api(app, People()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        door = Door(app, client)
        door.who = "default:ann:admin"
        path, body = ("events", {"name": "go"}) if verb == "send" else (verb, {})
        told = problem(await door("POST", f"/v1/executions/{run.id}/{path}", body), 409, name)
    assert told["execution"] == run.id
    assert (await run.status(), len(await run.log())) == before


async def taken(run: Run[Any]) -> None:
    """Whatever was asked has been looked at."""
    async with asyncio.timeout(20):
        while (await run.head()).mail:
            await asyncio.sleep(0.01)


def test_the_table_has_every_pair() -> None:
    statuses = ("running", "waiting", "paused", "stuck", *ENDED)
    assert set(TABLE) == {(status, verb) for status in statuses for verb in VERBS}


@pytest.mark.parametrize(("status", "verb"), TABLE)
def test_what_is_asked_has_the_outcome_that_is_published(status: str, verb: str) -> None:
    outcome = TABLE[status, verb]

    async def main() -> None:
        app = Perdure("memory://")
        async with app, app.working(drain=0.1):
            run = await brought_to(app, status)
            if outcome == "refused":
                await refused(app, run, verb)
                return
            await ask(run, verb)
            if status != "stuck" or outcome != "stuck":
                await taken(run)
            await run.until(outcome, timeout=20)  # type: ignore[arg-type]

    asyncio.run(main())
