"""The client against a real server: the verbs of the embedded application, and what it does when the server is away."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import msgspec
import pytest

from perdure import (
    Callback,
    Client,
    DefinitionInvalid,
    EventConflict,
    ExecutionCancelled,
    ExecutionExists,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionStuck,
    InvalidValue,
    Perdure,
    StoreError,
    event,
    workflow,
)
from perdure.core.entries import Entry
from perdure.errors import (
    NotRegistered,
    OutboundRefused,
    OutcomeUnknown,
    RequestRefused,
    Unauthenticated,
)
from perdure.http import serving
from perdure.http.auth import Authenticator, Open


class Order(msgspec.Struct):
    item: str
    count: int = 1


class Receipt(msgspec.Struct):
    item: str
    paid: int


@workflow(name="client-order", events={"paid": int})
async def ordering(order: Order) -> Receipt:
    workflow.publish(stage="waiting")
    return Receipt(order.item, await event("paid", int))


@workflow(name="client-fails")
async def failing() -> None:
    raise ValueError("as always")


@workflow(name="client-stuck")
async def stuck() -> None:
    await asyncio.get_running_loop().create_future()


MACHINE = {
    "machine": "client-door",
    "initial": "shut",
    "states": {"shut": {"on": {"push": "open"}}, "open": {"final": True}},
}
OPEN = Authenticator(open=Open("default"))


@asynccontextmanager
async def served(patience: float = 10.0) -> AsyncIterator[tuple[Perdure, Client]]:
    async with Perdure("memory://") as app, app.working(), serving.listening(app, OPEN, "127.0.0.1", 0) as address:
        async with Client(address, patience=patience) as client:
            yield app, client


def run(main: Callable[[Perdure, Client], Awaitable[None]]) -> None:
    async def everything() -> None:
        async with asyncio.timeout(40), served() as (app, client):
            await main(app, client)

    asyncio.run(everything())


def test_a_workflow_is_started_by_its_code_and_its_result_is_typed() -> None:
    async def main(app: Perdure, client: Client) -> None:
        started = await client.start(ordering, Order("tea", 2), id="o1")
        again = await client.start("client-order", {"item": "tea", "count": 2}, id="o1")
        assert (started.id, again.id) == ("o1", "o1")
        assert await started.send("paid", 250, id="e1") == await client.send("o1", "paid", 250, event_id="e1") == "e1"
        receipt: Receipt = await started.result("10s")
        assert receipt == Receipt("tea", 250)
        assert await again.result() == {"item": "tea", "paid": 250}
        assert (await started.head()).state == {"stage": "waiting"}

    run(main)


def test_a_start_may_ask_for_a_callback_which_the_server_checks() -> None:
    async def main(app: Perdure, client: Client) -> None:
        wish = Callback("https://shop.example/ended", "secret://shop", ("failed",))
        started = await client.start(ordering, Order("tea"), id="o1", callback=wish)
        first = (await started.log())[0]
        assert first.data["callback"] == {"url": wish.url, "secret": "secret://shop", "events": ["failed"]}
        with pytest.raises(OutboundRefused):
            await client.start(ordering, Order("tea"), callback=Callback("https://127.0.0.1/", "secret://shop"))
        with pytest.raises(InvalidValue, match="given by reference"):
            await client.start(ordering, Order("tea"), callback=Callback(wish.url, "hush"))

    run(main)


def test_an_execution_is_asked_about_paused_forked_and_cancelled() -> None:
    async def main(app: Perdure, client: Client) -> None:
        one = await client.start(ordering, Order("tea"), id="o1")
        assert await one.until("waiting", timeout="10s") == "waiting"
        assert "paid" in str(await one.why())
        await one.pause(until=datetime.now(UTC) + timedelta(hours=1), reason="lunch")
        await one.until("paused", timeout="10s")
        await one.resume()
        await one.until("waiting", timeout="10s")
        other = await one.fork(id="o2")
        await other.send("paid", 1)
        assert await other.result("10s") == Receipt("tea", 1)
        assert (await one.state(at=1)).version == 1
        await one.cancel("no more tea")
        with pytest.raises(ExecutionCancelled, match="no more tea"):
            await one.result("10s")
        found = await client.find(workflow="client-order", status="cancelled")
        assert [each.id for each in found.executions] == ["o1"]

    run(main)


def test_a_log_is_read_and_followed() -> None:
    async def main(app: Perdure, client: Client) -> None:
        one = await client.start(ordering, Order("tea"), id="o1")
        following = asyncio.create_task(_all(one.follow()))
        await one.send("paid", 7)
        followed = await following
        assert followed == await one.log() == await app.get("o1").log()
        assert followed[-1].type == "Completed"
        assert [each.version for each in await one.log(after=1, until=2)] == [2]

    run(main)


async def _all(things: AsyncIterator[Entry]) -> list[Entry]:
    return [one async for one in things]


def test_a_failure_is_raised_with_its_recorded_type() -> None:
    async def main(app: Perdure, client: Client) -> None:
        with pytest.raises(ExecutionFailed, match="as always") as caught:
            await (await client.start(failing)).result("10s")
        assert caught.value.type == "ValueError"

    run(main)


def test_what_is_stuck_is_listed_redriven_retried_and_given_up() -> None:
    async def main(app: Perdure, client: Client) -> None:
        one = await client.start(stuck, id="s1")
        with pytest.raises(ExecutionStuck, match="s1"):
            await one.result("10s")
        assert [dead.id for dead in (await client.dead()).dead] == ["s1"]
        assert (await client.redrive("s1")).done == ["s1"]
        with pytest.raises(ExecutionStuck):
            await one.result("10s")
        assert (await one.retry(reason="again")).id == "s1"
        with pytest.raises(ExecutionStuck):
            await one.result("10s")
        assert (await client.purge(all=True)).done == ["s1"]
        with pytest.raises(ExecutionCancelled):
            await one.result("10s")

    run(main)


def test_a_definition_is_published_started_and_deprecated() -> None:
    async def main(app: Perdure, client: Client) -> None:
        definitions = client.definitions
        assert await definitions.validate(MACHINE) == []
        made = await definitions.publish(MACHINE, note="first")
        assert (made.name, made.version) == ("client-door", 1)
        door = await client.start("client-door", None, id="d1")
        await door.send("push")
        await door.result("10s")
        await definitions.deprecate("client-door", 1, "old")
        await definitions.restore("client-door", 1)
        assert [one.what for one in await definitions.history("client-door")] == ["published", "deprecated", "restored"]
        assert [one.name for one in await definitions.list()] == ["client-door"]
        assert (await definitions.get("client-door")).body["machine"] == "client-door"
        with pytest.raises(DefinitionInvalid) as caught:
            await definitions.publish({"machine": "bad", "initial": "nowhere", "states": {"a": {}}})
        assert caught.value.problems and caught.value.problems[0].where

    run(main)


def test_errors_are_those_of_the_embedded_application() -> None:
    async def main(app: Perdure, client: Client) -> None:
        with pytest.raises(ExecutionNotFound) as caught:
            await client.get("nobody").status()
        assert caught.value.key.endswith("nobody")
        with pytest.raises(NotRegistered):
            await client.start("client-nothing")
        one = await client.start(ordering, Order("tea"), id="o1")
        with pytest.raises(ExecutionExists):
            await client.start(ordering, Order("coffee"), id="o1")
        with pytest.raises(InvalidValue):
            await one.send("paid", "much")
        await one.send("paid", 1, id="e1")
        with pytest.raises((EventConflict, ExecutionFailed)):
            await one.send("paid", 2, id="e1")
        with pytest.raises(RequestRefused) as refused:
            await client.find(limit=5000)
        assert refused.value.status == 422

    run(main)


def test_without_a_credential_it_is_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        from perdure.http.keys import Keys

        async with Perdure("memory://") as app:
            keys = Keys(app)
            async with serving.listening(app, Authenticator(keys=keys), "127.0.0.1", 0) as address:
                async with Client(address) as nobody:
                    with pytest.raises(Unauthenticated):
                        await nobody.find()
                made = await keys.create("ci", roles=["sender"])
                async with Client(address, made.secret) as somebody:
                    assert (await somebody.find()).executions == []
                    assert (await somebody.health()).status == "ready"

    asyncio.run(main())


def test_a_client_waits_for_a_server_that_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/w.db"
        async with Perdure(url) as app:
            async with serving.listening(app, OPEN, "127.0.0.1", 0) as address:
                port = int(address.rpartition(":")[2])
                client = Client(address)
                one = await client.start(ordering, Order("tea"), id="o1")
                waiting = asyncio.create_task(one.result("30s"))
                following = asyncio.create_task(_all(one.follow()))
                await asyncio.sleep(0)
        sending = asyncio.create_task(one.send("paid", 9, id="e1"))
        async with Perdure(url) as app, app.working(), serving.listening(app, OPEN, "127.0.0.1", port):
            assert await sending == "e1"
            assert await waiting == Receipt("tea", 9)
            assert [entry.version for entry in await following] == [entry.version for entry in await one.log()]
            await client.close()

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


def test_what_no_worker_has_looked_at_has_not_come_to_rest() -> None:
    async def main() -> None:
        async with Perdure("memory://", grace=0.05) as app, serving.listening(app, OPEN, "127.0.0.1", 0) as address:
            async with Client(address) as client:
                one = await client.start(ordering, Order("tea"), id="o1")
                for run in (one, app.get("o1")):
                    assert await run.status() == "waiting"
                    with pytest.raises(TimeoutError):
                        await run.until("waiting", timeout="50ms")
                async with app.working():
                    assert await one.until("waiting", timeout="10s") == "waiting"
                    assert (await one.head()).rests

    asyncio.run(main())


class Flaky(httpx.AsyncBaseTransport):
    """Lets a request through, but loses the answer: what is left is not knowing."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self.inner.handle_async_request(request)
        if self.losses:
            self.losses -= 1
            await answer.aread()
            raise httpx.ReadError("the answer got lost", request=request)
        return answer

    async def aclose(self) -> None:
        await self.inner.aclose()


def test_a_lost_answer_is_asked_for_again_and_nothing_happens_twice() -> None:
    async def main(app: Perdure, client: Client) -> None:
        address = client._door.url
        async with Client(address, transport=Flaky(1)) as flaky:
            one = await flaky.start(ordering, Order("tea"))
        assert len((await app.find(workflow="client-order")).heads) == 1
        async with Client(address, transport=Flaky(1)) as flaky:
            await flaky.get(one.id).send("paid", 3)
        assert await one.__class__(client._door, one.id).result("10s") == {"item": "tea", "paid": 3}
        async with Client(address, transport=Flaky(100), patience=0.2) as lost:
            with pytest.raises(OutcomeUnknown, match="repeat"):
                await lost.start(ordering, Order("milk"))

    run(main)


def test_a_server_that_cannot_be_reached_is_named() -> None:
    async def main() -> None:
        async with Client("http://127.0.0.1:9", patience=0.1) as client:
            with pytest.raises(StoreError, match="127.0.0.1:9 cannot be reached"):
                await client.start(ordering, Order("tea"))

    asyncio.run(main())


def test_the_client_needs_nothing_of_the_server() -> None:
    code = (
        "import sys, perdure; perdure.Client('http://127.0.0.1:9')\n"
        "sys.exit(str(sorted({'starlette', 'uvicorn', 'jwt', 'cryptography', 'asyncpg', 'redis'} & set(sys.modules))))"
    )
    told = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True)
    assert told.stderr.strip() == "[]"
