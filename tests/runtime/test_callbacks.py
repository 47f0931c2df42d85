"""Callbacks: the end of an execution is told, signed, at least once and under one id, whatever dies in between.

What concerns retries and crashes is tried in virtual time, where a day is short and no socket could keep up; there only
the last step, the call itself, is replaced. How calls are made is tested beside it, and at the end here, for real.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Callback, CloudEvent, Perdure, event, webhook_sink, workflow
from perdure.core import signing
from perdure.errors import ExecutionExists, ExecutionFailed, External, InvalidValue, OutboundRefused, UsageError
from perdure.runtime.web.outbound import Outbound, Reply
from perdure.testing import World
from tests.http.receiver import Got, receiving

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SHOP = Callback("https://shop.example/ended", "secret://shop")
DAY = 86_400


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_SHOP", SECRET)


class Post:
    """Takes the calls of all workers of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[tuple[float, dict[str, str], dict[str, Any]]] = []
        self.answer: Callable[[int], Reply] = lambda number: Reply(200, (), b"")

    async def __call__(
        self, method: str, url: str, headers: Any = None, body: bytes = b"", *, signature: Any = None
    ) -> Reply:
        assert (method, url) == ("POST", SHOP.url)
        now = self.world.micros() / 1e6
        assert signing.verify("standard", [SECRET], signature, body, now, 5) == signature["webhook-id"]
        self.calls.append((now, {**headers, **signature}, msgspec.json.decode(body)))
        return self.answer(len(self.calls))

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for _, headers, _ in self.calls]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10 * DAY):
            while len(self.calls) < count:
                await asyncio.sleep(0.1)


@pytest.fixture
def post(world: World, monkeypatch: pytest.MonkeyPatch) -> Post:
    made = Post(world)
    monkeypatch.setattr(Outbound, "request", lambda _, *args, **more: made(*args, **more))
    return made


@workflow(name="told-order")
async def order(total: int) -> dict[str, int]:
    if total < 0:
        raise ValueError("less than nothing")
    return {"total": total}


@workflow(name="told-wait")
async def waits() -> str:
    return await event("go", str)


@workflow(name="told-rounds")
async def rounds(left: int) -> str:
    await asyncio.sleep(3600)
    if left:
        workflow.restart_with(left - 1)
    return "round"


broken = False


@workflow(name="told-stuck")
async def stuck() -> None:
    if broken:
        await asyncio.get_running_loop().create_future()
    await event("go", str)


async def start(world: World, flow: Any, *args: Any, id: str = "o-1", callback: Callback = SHOP) -> Any:
    return await world.app.start(flow, *args, id=id, callback=callback)


async def test_the_end_is_told_as_a_signed_cloudevent(world: World, post: Post) -> None:
    run = await start(world, order, 5)
    assert await run.result() == {"total": 5}
    await post.until(1)
    [(_, headers, told)] = post.calls
    assert headers["content-type"] == "application/cloudevents+json"
    assert told == {
        "specversion": "1.0",
        "id": headers["webhook-id"],
        "source": "/tenants/default/executions/o-1",
        "type": "perdure.execution.completed",
        "subject": "o-1",
        "time": "2030-01-01T00:00:00Z",
        "datacontenttype": "application/json",
        "data": {"id": "o-1", "workflow": "told-order", "status": "completed", "result": {"total": 5}},
    }
    await world.advance(2 * DAY)
    assert len(post.calls) == 1
    await world.check()


async def test_the_correlation_id_is_told_with_the_end(world: World, post: Post) -> None:
    await world.app.start(order, 5, id="o-1", callback=SHOP, correlation="order-4711", tags=["eu"])
    await post.until(1)
    [(_, _, told)] = post.calls
    assert told["data"]["correlation"] == "order-4711" and "tags" not in told["data"]


async def test_a_failure_and_a_cancellation_are_told_with_their_errors(world: World, post: Post) -> None:
    failed = await start(world, order, -1)
    with pytest.raises(ExecutionFailed):
        await failed.result()
    cancelled = await start(world, waits, id="w-1")
    await cancelled.cancel("not any more")
    await post.until(2)
    told = {event["type"]: event["data"] for _, _, event in post.calls}
    assert told["perdure.execution.failed"]["error"]["message"] == "less than nothing"
    assert told["perdure.execution.cancelled"]["error"]["message"] == "not any more"
    assert len(set(post.ids)) == 2


async def test_only_the_ends_that_are_named_are_told(world: World, post: Post) -> None:
    only = Callback(SHOP.url, SHOP.secret, ("failed",))
    await (await start(world, order, 1, callback=only)).result()
    with pytest.raises(ExecutionFailed):
        await (await start(world, order, -1, id="o-2", callback=only)).result()
    await post.until(1)
    await world.advance(60)
    assert [event["subject"] for _, _, event in post.calls] == ["o-2"]


async def test_every_try_has_the_same_id_and_a_new_time(world: World, post: Post) -> None:
    post.answer = lambda number: Reply(200 if number == 4 else 500, (), b"")
    await (await start(world, order, 5)).result()
    await post.until(4)
    times = [time for time, _, _ in post.calls]
    assert len(set(post.ids)) == 1 and len({headers["webhook-timestamp"] for _, headers, _ in post.calls}) == 4
    assert [round(after - before) for before, after in itertools.pairwise(times)] == [1, 3, 9]


async def test_it_is_given_up_after_a_day_and_its_log_says_why(world: World, post: Post) -> None:
    def down(number: int) -> Reply:
        raise External("shop.example cannot be reached")

    post.answer = down
    await (await start(world, order, 5)).result()
    await world.advance(2 * DAY)
    first, last = post.calls[0][0], post.calls[-1][0]
    assert 22 * 3600 < last - first <= DAY and len(post.calls) > 25
    [told] = (await world.app.find(parent="o-1")).heads
    assert (told.workflow, told.status) == ("action:perdure.callback", "failed")
    assert b"cannot be reached" in (told.result or b"")
    await world.check()


async def test_whoever_answers_gone_is_not_called_again(world: World, post: Post) -> None:
    post.answer = lambda number: Reply(410, (), b"")
    await (await start(world, order, 5)).result()
    await world.advance(2 * DAY)
    assert len(post.calls) == 1


async def test_whoever_asks_to_be_left_alone_is(world: World, post: Post) -> None:
    post.answer = lambda number: Reply(200 if number == 2 else 503, (("retry-after", "600"),), b"")
    await (await start(world, order, 5)).result()
    await post.until(2)
    assert post.calls[1][0] - post.calls[0][0] >= 600


async def test_a_secret_that_is_not_there_yet_is_waited_for(
    world: World, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERDURE_SECRET_SHOP")
    await (await start(world, order, 5)).result()
    await world.advance(60)
    assert post.calls == []
    monkeypatch.setenv("PERDURE_SECRET_SHOP", SECRET)
    await post.until(1)


async def test_a_tenant_gets_nothing_signed_with_the_secret_of_another(world: World, post: Post) -> None:
    run = await world.app.start(order, 5, id="o-1", tenant="other", callback=SHOP)
    await run.result()
    await world.advance(60)
    assert post.calls == []
    rows = await world.rows("other/o-1/callback")
    assert any(b"tenant 'other' has no secret 'shop'" in row.data for row in rows)


async def test_the_execution_itself_is_as_any_other(world: World, post: Post) -> None:
    run = await start(world, order, 5)
    await run.result()
    plain = await world.start(order, 5, id="o-2")
    await plain.result()
    assert [entry.type for entry in await run.log()] == [entry.type for entry in await plain.log()]
    assert (await run.head()).parent is None
    assert sorted(head.key for head in (await world.app.find()).heads) == ["default/o-1", "default/o-2"]


async def test_a_restart_keeps_the_callback(world: World, post: Post) -> None:
    await (await start(world, rounds, 2)).result()
    await post.until(1)
    assert post.calls[0][2]["data"]["result"] == "round"
    await world.check()


async def test_a_stuck_execution_that_is_given_up_is_told_as_cancelled(world: World, post: Post) -> None:
    global broken
    broken = True
    run = await start(world, stuck)
    await run.until("stuck")
    broken = False
    await world.advance(60)
    assert post.calls == []
    await world.app.purge(run.id)
    await post.until(1)
    assert post.calls[0][2]["type"] == "perdure.execution.cancelled"


async def test_a_fork_is_told_under_its_own_id(world: World, post: Post) -> None:
    run = await start(world, order, 5)
    await run.result()
    await (await run.fork(id="o-2")).result()
    await post.until(2)
    assert sorted(event["subject"] for _, _, event in post.calls) == ["o-1", "o-2"]
    assert len(set(post.ids)) == 2


async def test_the_same_start_again_is_the_same_and_another_callback_is_a_conflict(world: World, post: Post) -> None:
    await (await start(world, order, 5)).result()
    await (await start(world, order, 5)).result()
    with pytest.raises(ExecutionExists):
        await start(world, order, 5, callback=Callback("https://other.example/", "secret://shop"))
    with pytest.raises(ExecutionExists):
        await world.start(order, 5, id="o-1")
    await world.advance(60)
    assert len(post.calls) == 1


async def test_what_cannot_work_is_refused_before_anything_starts(world: World) -> None:
    for url in ("http://shop.example/", "https://127.0.0.1/", "https://user@shop.example/", "ftp://shop.example/"):
        with pytest.raises(OutboundRefused):
            await start(world, order, 5, callback=Callback(url, "secret://shop"))
    for secret in ("", "SHOP", SECRET, "secret://", "secret://../x", "secret:///etc/passwd", "secret://a b"):
        with pytest.raises(InvalidValue, match="given by reference"):
            await start(world, order, 5, callback=Callback(SHOP.url, secret))
    with pytest.raises(UsageError, match="without events"):
        await start(world, order, 5, callback=Callback(SHOP.url, SHOP.secret, ()))
    assert await world.heads() == []


async def test_the_secret_is_in_no_log(world: World, post: Post) -> None:
    post.answer = lambda number: Reply(200 if number == 2 else 500, (), b"")
    await (await start(world, order, 5)).result()
    await post.until(2)
    rows = [row for head in await world.heads() for row in await world.rows(head.key)]
    assert rows and not any(SECRET.removeprefix("whsec_").encode() in row.data for row in rows)


async def test_a_worker_that_dies_between_the_end_and_the_call_does_not_lose_it(world: World, post: Post) -> None:
    died: list[int] = []

    def dies(number: int) -> Reply:
        if number == 1:
            world.workers[0].process.kill()
            world.add_worker()
            died.append(number)
        return Reply(200, (), b"")

    post.answer = dies
    await start(world, order, 5)
    await post.until(2)
    assert died == [1] and len(set(post.ids)) == 1
    await world.advance(60)
    assert len(post.calls) == 2


@workflow(name="told-twice")
async def twice() -> str:
    await asyncio.sleep(1)
    return await event("go", str)


async def test_a_crash_at_any_call_of_the_store_still_tells_it_once_or_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs begin with the callback, for that is part of how they are started."""
    calls: list[str] = []

    async def request(self: Outbound, *args: Any, signature: Any, **more: Any) -> Reply:
        calls.append(signature["webhook-id"])
        return Reply(200, (), b"")

    plain = Perdure.start

    async def told(self: Perdure, *args: Any, **more: Any) -> Any:
        return await plain(self, *args, **{**more, "callback": SHOP})

    async def check(run: Any) -> None:
        async with asyncio.timeout(DAY):
            while not calls:
                await asyncio.sleep(0.5)
        assert len(set(calls)) == 1
        calls.clear()

    monkeypatch.setattr(Outbound, "request", request)
    monkeypatch.setattr(Perdure, "start", told)
    report = await world.crash_everywhere(twice, send=[("go", "on")], check=check)
    assert report.runs > 8


# --- for real ---------------------------------------------------------------------------------------------------------


def verified(got: Got, kept: int = 300) -> str:
    at = int(got.headers["webhook-timestamp"])
    id = signing.verify("standard", [SECRET], got.headers, got.body, at, kept)
    assert id is not None
    return id


def test_a_receiver_that_fails_twice_gets_the_same_id_thrice() -> None:
    async def main() -> None:
        async with asyncio.timeout(30), receiving(500, 503, 200) as receiver:
            async with Perdure("memory://", outbound_private=True) as app, app.working():
                await app.start(order, 5, id="o-1", callback=Callback(receiver.url, "secret://shop"))
                got = await receiver.until(3)
                assert len({verified(one) for one in got}) == 1
                assert [one.json["data"]["result"] for one in got] == [{"total": 5}] * 3

    asyncio.run(main())


@workflow(name="told-emits")
async def emits() -> str:
    return (await workflow.emit("order.paid", {"total": 5}, subject="o-1")).id


def test_what_workflows_emit_is_posted_with_the_same_id_at_each_try() -> None:
    async def main() -> None:
        async with asyncio.timeout(30), receiving(500, 302, 200) as receiver:
            async with Perdure("memory://", outbound_private=True) as app, app.working():
                app.sink(webhook_sink(app, receiver.url, secret="secret://shop"), types=["order.paid"])
                id = await (await app.start(emits)).result()
                assert len(receiver.got) == 3 and len({verified(one) for one in receiver.got}) == 1
                told = msgspec.json.decode(receiver.got[2].body, type=CloudEvent)
                assert (told.id, told.type, told.data, told.subject) == (id, "order.paid", {"total": 5}, "o-1")

    asyncio.run(main())


def test_a_sink_that_cannot_work_is_refused_when_it_is_made() -> None:
    app = Perdure("memory://")
    with pytest.raises(OutboundRefused):
        webhook_sink(app, "http://127.0.0.1/", secret="secret://shop")
    with pytest.raises(InvalidValue, match="given by reference"):
        webhook_sink(app, "https://shop.example/", secret=SECRET)


PROGRAM = """
import asyncio, sys
from perdure import Callback, Perdure, workflow

@workflow(name="told-there")
async def there(total: int) -> int:
    return total

async def main(store: str, url: str) -> None:
    async with Perdure(store, outbound_private=True, lease=1) as app, app.working():
        await app.start(there, 5, id="o-1", callback=Callback(url, "secret://shop"))
        await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


@workflow(name="told-there")
async def there(total: int) -> int:
    return total


def test_a_process_that_is_killed_while_it_calls_leaves_the_call_to_another(tmp_path: Path) -> None:
    async def main() -> None:
        store = f"sqlite:///{tmp_path / 'told.db'}"
        gate = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first.append((await reader.readuntil(b"\r\n\r\n")).decode())
            gate.set()
            await reader.read()  # until it is dead
            writer.close()

        first: list[str] = []
        async with asyncio.timeout(50), await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            command = [sys.executable, "-c", PROGRAM, store, f"http://127.0.0.1:{port}/in"]
            process = subprocess.Popen(command, env={**os.environ, "PERDURE_SECRET_SHOP": SECRET})
            try:
                await gate.wait()
            finally:
                process.kill()
                process.wait()
            server.close()
            async with receiving() as receiver, Perdure(store, outbound_private=True, lease=1) as app:
                # The address is that of the dead process; whoever listens there now is told.
                again = await asyncio.start_server(receiver.serve, "127.0.0.1", port)
                async with again, app.working():
                    [got] = await receiver.until(1)
            assert f"webhook-id: {verified(got)}" in first[0]

    asyncio.run(main())
