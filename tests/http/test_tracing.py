"""Traces over HTTP: a `traceparent` goes from a request into the log, the lines of workers, and the calls to others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Callback, Client, Listen, On, Perdure, action, event, tracing, webhook_sink, workflow
from perdure.core import events as ev
from perdure.core.tracing import of_execution, parse
from perdure.http import problems
from perdure.http.api import api
from perdure.runtime.web.outbound import Outbound
from tests.cli.processes import Process
from tests.client.served import Served, run as against
from tests.http.receiver import receiving
from tests.http.test_api import Door, People, served
from tests.http.test_events import BATCH, STRUCTURED, post
from tests.http.test_hooks import Shop, opened
from tests.runtime.test_tracing import Lines, lines

__all__ = ["lines"]

ID, OTHER, SPAN = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736", "b7ad6b7169203331"
GIVEN, OTHERS = f"00-{ID}-{SPAN}-01", f"00-{OTHER}-{SPAN}-01"
CLOUD = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "go", "data": 7}


@action(name="traced.tells")
async def tells() -> str:
    return action.traceparent


@workflow(name="traced-waits")
async def waits() -> Any:
    return [await event("go"), await tells()]


@workflow(
    name="traced-order",
    listens=[Listen("traced.paid", event=".data.order", own=".[0].id")],
    starts_on=[On("traced.ordered", input=".data")],
)
async def order(data: dict[str, Any]) -> Any:
    return await event("traced.paid")


@workflow(name="traced-emits")
async def emits() -> None:
    await workflow.emit("traced.done", 1)


@action(name="traced.asks")
async def asks(url: str) -> None:
    await action.app.outbound.request("GET", url)


@workflow(name="traced-asking")
async def asking(url: str) -> None:
    await asks(url)


async def trace_of(door: Door, id: str) -> str:
    trace: str = (await door("GET", f"/v1/executions/{id}/state")).json()["trace"]
    return trace


async def received(door: Door, id: str) -> list[dict[str, Any]]:
    log = (await door("GET", f"/v1/executions/{id}/log")).json()["events"]
    return [one["data"] for one in log if one["type"] == "EventReceived"]


def test_a_start_and_what_is_sent_carry_the_trace_of_their_request() -> None:
    async def main(door: Door) -> None:
        body = {"workflow": "traced-waits", "id": "t1", "args": []}
        assert (await door("POST", "/v1/executions", body, traceparent=GIVEN)).status_code == 202
        assert await trace_of(door, "t1") == ID
        path = "/v1/executions/t1/events"
        assert (await door("POST", path, {"name": "go", "payload": 1}, traceparent=OTHERS)).status_code == 202
        result = (await door("GET", "/v1/executions/t1/result?wait=10s")).json()["result"]
        assert parse(result[1]).id == ID  # type: ignore[union-attr]
        assert [one["trace"] for one in await received(door, "t1")] == [OTHERS]
        assert await trace_of(door, "t1") == ID

    served(main)


def test_events_in_batches_carry_it_and_a_cloudevent_has_its_own() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/executions", {"workflow": "traced-waits", "id": "t1", "args": []})
        path, headers = "/v1/executions/t1/events", {"traceparent": GIVEN}
        batch = [{"name": "go", "payload": 1, "id": "a"}, {"name": "go", "payload": 2, "id": "b"}]
        answer = await door("POST", f"{path}/batch", batch, **headers)
        assert answer.status_code < 300, answer.text
        clouds = [CLOUD, {**CLOUD, "id": "2", "traceparent": OTHERS}]
        assert (await post(door, path, clouds, BATCH, **headers)).status_code < 300
        async with door.app.working():
            await door("GET", "/v1/executions/t1/result?wait=10s")
        found = [(one.get("trace"), one.get("attributes", {}).get("traceparent")) for one in await received(door, "t1")]
        assert found == [(GIVEN, None)] * 3 + [(None, OTHERS)]

    served(main, working=False)


def test_what_an_event_starts_has_the_trace_of_the_event_or_else_of_the_request() -> None:
    async def main(door: Door) -> None:
        async def ordered(number: int, **more: str) -> str:
            body = {**CLOUD, "id": str(number), "type": "traced.ordered", "data": {"id": number}, **more}
            answer = await post(door, "/v1/events", body, STRUCTURED, traceparent=GIVEN)
            [started] = answer.json()["started"]
            return str(started)

        assert await trace_of(door, await ordered(1)) == ID
        assert await trace_of(door, await ordered(2, traceparent=OTHERS)) == OTHER
        third = await ordered(3, traceparent="rubbish")
        assert await trace_of(door, third) == ID
        paid = {**CLOUD, "id": "9", "type": "traced.paid", "data": {"order": 3}}
        await post(door, "/v1/events", paid, STRUCTURED, traceparent=OTHERS)
        await door("GET", f"/v1/executions/{third}/result?wait=10s")
        assert [one["trace"] for one in await received(door, third)] == [OTHERS]

    served(main)


def test_a_webhook_carries_it(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        told = (await shop.call(traceparent=GIVEN)).json()
        assert await trace_of(shop, told["execution"]) == ID
        again = (await shop.call(traceparent=OTHERS, late=9)).json()  # the sender did not hear us
        assert again == told

    opened(test, tmp_path)


@pytest.mark.parametrize("given", ["", "rubbish", GIVEN.upper(), f"00-{'0' * 32}-{SPAN}-01", f"{GIVEN}-more"])
def test_a_header_that_is_no_traceparent_is_ignored(given: str) -> None:
    async def main(door: Door) -> None:
        body = {"workflow": "traced-waits", "id": "t1", "args": []}
        assert (await door("POST", "/v1/executions", body, traceparent=given)).status_code == 202
        [row] = await door.app.store.read("acme/t1", 0, 1)
        assert b'"trace"' not in row.data
        assert await trace_of(door, "t1") == of_execution("", "acme/t1", row.at).id

    served(main, working=False)


def test_of_two_headers_none_counts() -> None:
    async def main(door: Door) -> None:
        headers = [("authorization", f"Bearer {door.who}"), ("traceparent", GIVEN), ("traceparent", OTHERS)]
        body = {"workflow": "traced-waits", "id": "t1", "args": []}
        assert (await door.client.post("/v1/executions", json=body, headers=headers)).status_code == 202
        assert await trace_of(door, "t1") not in (ID, OTHER)

    served(main, working=False)


def test_lines_of_the_api_have_the_trace_of_their_request(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(door: Door) -> None:
        async def broken(*args: Any) -> None:
            raise RuntimeError("a mistake of ours")

        monkeypatch.setattr(door.app.store, "head", broken)
        for headers in ({"traceparent": GIVEN}, {}, {"traceparent": "rubbish"}):
            assert (await door("GET", "/v1/executions/t1", **headers)).status_code == 500

    served(main, working=False)
    given, *made = [line["trace"] for line in lines.lines if line["logger"] == problems.log.name]
    assert given == ID
    assert len(set(made)) == 2 and all(parse(f"00-{one}-{SPAN}-01") for one in made)


def test_a_trace_that_was_made_for_lines_is_not_written_down() -> None:
    async def main(door: Door) -> None:
        await door.start("traced-waits", "t1", args=[])
        await door("POST", "/v1/executions/t1/events", {"name": "go", "payload": 1})
        await door("GET", "/v1/executions/t1/result?wait=10s")
        rows = [ev.read(row) for row in await door.app.store.read("acme/t1")]
        assert {row.trace for row in rows if isinstance(row, ev.Started | ev.EventReceived)} == {""}

    served(main)


def test_an_external_worker_is_told_what_to_pass_on() -> None:
    @action(name="traced.pays", external=True, queue="traced-node")
    async def pays(card: str) -> str: ...  # type: ignore[empty-body]

    @workflow(name="traced-paying")
    async def paying() -> str:
        return await pays("4711")

    async def main(door: Door) -> None:
        await door("POST", "/v1/executions", {"workflow": "traced-paying", "id": "t1", "args": []}, traceparent=GIVEN)
        [task] = await door.app.external.poll("traced-node", wait="10s", tenant="acme")
        found = parse(task.traceparent)
        assert found is not None and found.id == ID and found.span != SPAN
        await door.app.external.complete(task.token, "paid", tenant="acme")

    served(main)


# What goes out.


def test_callbacks_and_all_calls_of_the_engine_say_which_trace_they_belong_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_SHOP", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    async def main() -> None:
        app = Perdure("memory://", outbound_private=True)
        async with asyncio.timeout(20), receiving() as receiver, app, app.working():
            app.sink(webhook_sink(app, receiver.url, secret="secret://shop"))
            with tracing(GIVEN):
                callback = Callback(receiver.url, "secret://shop")
                await (await app.start(emits, id="t1", callback=callback)).result(10)
                await (await app.start(asking, receiver.url)).result(10)
            got = await receiver.until(3)
        places = [parse(one.headers["traceparent"]) for one in got]
        assert {one.id for one in places if one is not None} == {ID}
        assert len({one.span for one in places if one is not None} | {SPAN}) == 4

    asyncio.run(main())


def test_a_call_may_say_another_and_outside_of_all_traces_none_is_said() -> None:
    async def main() -> None:
        async with asyncio.timeout(20), receiving() as receiver:
            outbound = Outbound(private=True)
            await outbound.request("GET", receiver.url)
            with tracing(GIVEN):
                await outbound.request("GET", receiver.url)
                await outbound.request("GET", receiver.url, {"Traceparent": OTHERS})
            assert [one.headers.get("traceparent") for one in receiver.got] == [None, GIVEN, OTHERS]

    asyncio.run(main())


def test_the_client_says_the_trace_of_its_context() -> None:
    async def main(served: Served, client: Client) -> None:
        with tracing(GIVEN):
            run = await client.start("traced-waits", id="t1")
        await client.start("traced-waits", id="t2")
        assert (await run.state()).trace == ID != (await client.get("t2").state()).trace

    against(main)


# From a request to the line of another process.

FLOW = """
import logging
from perdure import action, workflow

log = logging.getLogger("my.app")

@action
async def charge(amount: int) -> str:
    log.warning("charged %d", amount)
    return action.traceparent

@workflow
async def pay(amount: int) -> str:
    workflow.log.warning("pays")
    return await charge(amount)
"""


def test_from_a_request_to_the_lines_of_a_worker_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    store = f"sqlite:///{tmp_path / 's.db'}"

    async def ask() -> None:
        app = Perdure(store)
        namespace: dict[str, Any] = {}
        exec(compile(FLOW, "flow.py", "exec"), namespace)
        transport = httpx.ASGITransport(app=api(app, People()))
        async with asyncio.timeout(60), app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            door = Door(app, client)
            for id, headers in (("given", {"traceparent": GIVEN}), ("own", {})):
                body = {"workflow": "pay", "id": id, "args": [7]}
                assert (await door("POST", "/v1/executions", body, **headers)).status_code == 202
                done = await door("GET", f"/v1/executions/{id}/result?wait=30s")
                traces[id] = await trace_of(door, id)
                assert parse(done.json()["result"]).id == traces[id]  # type: ignore[union-attr]

    traces: dict[str, str] = {}
    with Process("worker", "flow.py", "--store", store, "--json", "--all-logs", cwd=tmp_path) as process:
        process.line('"ready"')
        asyncio.run(ask())
        said = [json.loads(line) for line in process.seen]
        while sum(line.get("message") == "charged 7" for line in said) < 2:
            said.append(json.loads(process.line("charged|pays")))
    about = [(one["execution"], one["tenant"], one["message"], one["trace"]) for one in said if "execution" in one]
    assert traces["given"] == ID != traces["own"]
    assert about == [(id, "acme", words, traces[id]) for id in ("given", "own") for words in ("pays", "charged 7")]
    assert all(one.get("worker") for one in said if "execution" in one)
