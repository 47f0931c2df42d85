"""Following a log over HTTP, on a real server: what comes while one listens, and going on after a break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from perdure import Perdure, event, workflow
from perdure.http import following, serving
from perdure.http.auth import Authenticator, Open


@workflow(name="followed")
async def followed() -> int:
    return await event("first", int) + await event("second", int)


Told = tuple[str, str, Any]


async def events(answer: httpx.Response) -> AsyncIterator[Told]:
    """What a browser would make of it: id, name, data; a comment is an event without a name."""
    lines: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            yield "", "", line
        elif line:
            name, _, value = line.partition(": ")
            lines[name] = value
        elif lines:
            yield lines["id"], lines["event"], json.loads(lines["data"])
            lines = {}


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Perdure, httpx.AsyncClient]]:
    auth = Authenticator(open=Open("default"))
    async with Perdure("memory://") as app, app.working(), serving.listening(app, auth, "127.0.0.1", 0) as address:
        async with httpx.AsyncClient(base_url=address, timeout=20) as client:
            yield app, client


def test(main: Callable[[Perdure, httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), served() as (app, client):
            await main(app, client)

    asyncio.run(run())


test.__test__ = False  # type: ignore[attr-defined]


def test_events_come_while_one_listens_and_the_last_tells_the_end() -> None:
    async def main(app: Perdure, client: httpx.AsyncClient) -> None:
        run = await app.start(followed, id="f1")
        async with client.stream("GET", "/v1/executions/f1/stream") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            told = events(answer)
            assert (await anext(told))[:2] == ("1", "Started")
            await run.send("first", 1)
            seen = [one async for one in _until(told, "EventReceived")]
            assert seen[-1][2]["data"]["payload"] == 1
            await run.send("second", 2)
            rest = [one async for one in told]
        assert [name for _, name, _ in rest[-2:]] == ["Completed", "end"]
        assert rest[-1][2]["result"] == 3

    test(main)


async def _until(told: AsyncIterator[Told], name: str) -> AsyncIterator[Told]:
    async for one in told:
        yield one
        if one[1] == name:
            return


def test_who_was_cut_off_goes_on_after_the_last_id_with_no_gap_and_no_double() -> None:
    async def main(app: Perdure, client: httpx.AsyncClient) -> None:
        run = await app.start(followed, id="f1")
        await run.send("first", 1)
        async with client.stream("GET", "/v1/executions/f1/stream") as answer:
            before = [one async for one in _until(events(answer), "EventReceived")]
        await run.send("second", 2)
        async with client.stream("GET", "/v1/executions/f1/stream", headers={"last-event-id": before[-1][0]}) as answer:
            after = [one async for one in events(answer)]
        versions = [int(id) for id, name, _ in [*before, *after] if name != "end"]
        assert versions == [entry.version for entry in await run.log()]

    test(main)


def test_an_execution_that_has_ended_is_told_to_its_end() -> None:
    async def main(app: Perdure, client: httpx.AsyncClient) -> None:
        run = await app.start(followed, id="f1")
        await run.send("first", 1)
        await run.send("second", 2)
        await run.result("10s")
        answer = await client.get("/v1/executions/f1/stream?after=2")
        assert next(line for line in answer.text.splitlines() if line.startswith("id:")) == "id: 3"
        assert "event: end" in answer.text

    test(main)


def test_silence_is_broken_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SILENCE", 0.05)

    async def main(app: Perdure, client: httpx.AsyncClient) -> None:
        await app.start(followed, id="f1")
        async with client.stream("GET", "/v1/executions/f1/stream") as answer:
            names = [one[2] async for one in _until(events(answer), "")]
        assert names[-1] == ": nothing new"

    test(main)


def test_what_cannot_be_followed_is_refused() -> None:
    async def main(app: Perdure, client: httpx.AsyncClient) -> None:
        await app.start(followed, id="f1")
        assert (await client.get("/v1/executions/nobody/stream")).status_code == 404
        assert (await client.get("/v1/executions/f1/stream", headers={"last-event-id": "x"})).status_code == 400
        assert (await client.get("/v1/executions/f1/stream?after=-1")).status_code == 422

    test(main)
