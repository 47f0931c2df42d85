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
from perdure.http.problems import Refused
from perdure.http.route import FLOW, Answer
from perdure.http.server import _response
from perdure.http.site import Site
from perdure.stores.memory import MemoryStore


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
async def served(**settings: Any) -> AsyncIterator[tuple[Perdure, httpx.AsyncClient]]:
    auth = Authenticator(open=Open("default"))
    app = Perdure("memory://", **settings)
    async with app, app.working(), serving.listening(app, auth, "127.0.0.1", 0) as address:
        async with httpx.AsyncClient(base_url=address, timeout=20) as client:
            yield app, client


def test(main: Callable[[Perdure, httpx.AsyncClient], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), served(**settings) as (app, client):
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


def test_a_tenant_follows_no_more_logs_at_once_than_it_may_and_ends_make_room() -> None:
    async def main(app: Perdure, client: httpx.AsyncClient) -> None:
        run = await app.start(followed, id="f1")
        path = "/v1/executions/f1/stream"

        async def gauge() -> str:
            lines = (await client.get("/v1/metrics")).text.splitlines()
            return next(line for line in lines if line.startswith("perdure_api_streams "))

        async with client.stream("GET", path) as first:
            assert first.status_code == 200
            async with client.stream("GET", path) as second:
                assert second.status_code == 200 and await gauge() == "perdure_api_streams 2"
                refused = await client.get(path)
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
                assert refused.json()["type"] == "urn:perdure:problem:too-many-streams"
                assert (await client.get("/v1/executions/f1")).status_code == 200  # other reads go on
                assert (await client.get("/v1/executions/none/stream")).status_code == 404
        while await gauge() != "perdure_api_streams 0":  # the server notices that both have gone
            await asyncio.sleep(0.01)
        for number, name in enumerate(("first", "second")):
            await run.send(name, number)
        await run.result("10s")
        for _ in range(5):  # one that is told to its end leaves, too
            assert (await client.get(path)).status_code == 200

    test(main, api_streams=2)


def test_a_seat_is_given_back_when_nobody_ever_listened() -> None:
    async def main() -> None:
        site = Site(1, [], lambda: 0, MemoryStore())
        answer = Answer(_never(), media=FLOW, over=site.seats.take("acme"))
        with pytest.raises(Refused, match="follows 1 logs"):
            site.seats.take("acme")
        site.seats.take("mill")()

        async def gone(*_: Any) -> Any:
            raise OSError("the caller is gone")

        with pytest.raises(BaseException, match="gone|Group"):
            await _response(answer)({"type": "http", "asgi": {}}, gone, gone)
        assert site.seats.taken == 0

    asyncio.run(main())


async def _never() -> AsyncIterator[bytes]:
    yield b""
