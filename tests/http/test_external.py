"""External tasks over HTTP: who may ask, what is answered, and what happens to those who come too late."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import httpx
import pytest
from msgspec import Struct

from perdure import Perdure, Retry, action, workflow
from perdure.http.api import api
from perdure.http.auth import Authenticator, Open
from perdure.http.serving import listening
from tests.http.test_api import Door, People, problem, served


class Receipt(Struct):
    id: str


@action(name="http.charge", external=True, queue="http-node", retries=Retry(attempts=3, first="10ms"))
async def charge(card: str) -> Receipt: ...  # type: ignore[empty-body]


@workflow(name="http-buy")
async def buy(card: str) -> str:
    return (await charge(card)).id


POLL = {"queue": "http-node", "wait": "10s"}


async def ask(door: Door, **more: Any) -> list[dict[str, Any]]:
    answer = await door("POST", "/v1/external/poll", {**POLL, **more})
    assert answer.status_code == 200, answer.text
    tasks: list[dict[str, Any]] = answer.json()["tasks"]
    return tasks


async def say(door: Door, what: str, token: str, **more: Any) -> httpx.Response:
    return await door("POST", f"/v1/external/{what}", {"token": token, **more})


async def begin(door: Door, id: str = "b1") -> None:
    assert (await door.start("http-buy", id, args=["visa"])).status_code == 202


def test_a_worker_asks_beats_and_completes() -> None:
    async def main(door: Door) -> None:
        await begin(door)
        door.who = "acme:node-1:worker"
        [task] = await ask(door)
        assert (task["action"], task["args"], task["attempt"], task["execution"]) == ("http.charge", ["visa"], 1, "b1")
        assert task["key"] == "acme/b1/1/http.charge" and datetime.fromisoformat(task["until"])
        beat = await say(door, "heartbeat", task["token"], details={"page": 1})
        assert beat.status_code == 200 and beat.json()["cancelled"] is False
        done = await say(door, "complete", task["token"], result={"id": "r1"})
        assert (done.status_code, done.content) == (204, b"")
        assert await door.app.get("b1", "acme").result() == "r1"

    served(main)


def test_the_name_of_the_worker_is_that_of_the_credential_unless_it_gives_one() -> None:
    async def main(door: Door) -> None:
        for number, more in enumerate([{}, {"worker": "pod-7"}]):
            await begin(door, f"b{number}")
            [task] = await ask(door, **more)
            holder = (await door.app.get(f"b{number}.1", "acme").head()).holder or ""
            assert holder.startswith(f"external:{more.get('worker', 'ann')}:")
            await say(door, "complete", task["token"], result={"id": "r"})

    served(main)


def test_nothing_to_do_is_an_empty_list() -> None:
    async def main(door: Door) -> None:
        assert await ask(door, wait="10ms") == []

    served(main)


def test_a_failure_is_tried_again_and_one_for_good_is_not() -> None:
    async def main(door: Door) -> None:
        await begin(door)
        [task] = await ask(door)
        assert (await say(door, "fail", task["token"], type="Timeout", after="20ms")).status_code == 204
        [task] = await ask(door)
        assert task["attempt"] == 2
        more = {"type": "Declined", "message": "no funds", "retry": False, "details": {"code": 51}}
        assert (await say(door, "fail", task["token"], **more)).status_code == 204
        done = (await door("GET", "/v1/executions/b1/result?wait=10s")).json()
        assert done["status"] == "failed" and "no funds" in done["error"]["message"]

    served(main)


def test_a_result_that_does_not_fit_is_422_and_the_task_stays() -> None:
    async def main(door: Door) -> None:
        await begin(door)
        [task] = await ask(door)
        wrong = problem(await say(door, "complete", task["token"], result={"id": 7}), 422, "invalid-value")
        assert "returned something else than it declares" in wrong["detail"]
        large = await say(door, "complete", task["token"], result={"id": "x" * 1_500_000})
        problem(large, 413, "limit-reached")
        assert (await say(door, "complete", task["token"], result={"id": "r1"})).status_code == 204

    served(main)


def test_a_late_and_a_second_answer_are_409() -> None:
    async def main(door: Door) -> None:
        await begin(door)
        [lost] = await ask(door, lease="1s")
        [task] = await ask(door)
        assert task["attempt"] == 2
        for what, more in (("heartbeat", {}), ("complete", {"result": {"id": "late"}}), ("fail", {"type": "Late"})):
            told = problem(await say(door, what, lost["token"], **more), 409, "task-lost")
            assert told["execution"] == "b1.1"
        assert (await say(door, "complete", task["token"], result={"id": "r1"})).status_code == 204
        again = problem(await say(door, "complete", task["token"], result={"id": "r2"}), 409, "task-lost")
        assert "it has ended (completed)" in again["detail"]
        assert await door.app.get("b1", "acme").result() == "r1"
        assert door.app.external.metrics.late.counts["complete"] == 2
        assert 'perdure_external_late_total{said="complete"} 2' in door.app.external.metrics.text()

    served(main)


def test_a_heartbeat_tells_of_a_cancel() -> None:
    async def main(door: Door) -> None:
        await begin(door)
        [task] = await ask(door)
        await door("POST", "/v1/executions/b1/cancel", {})
        await door.app.get("b1", "acme").until("cancelled")
        assert (await say(door, "heartbeat", task["token"])).json() == {"cancelled": True, "until": None}

    served(main)


def test_a_foreign_tenant_gets_no_tasks_and_its_tokens_are_nobodys() -> None:
    async def main(door: Door) -> None:
        await begin(door)
        door.who = "mill:eve:worker"
        assert await ask(door, wait="100ms") == []
        door.who = "acme:node-1:worker"
        [task] = await ask(door)
        door.who = "mill:eve:worker"
        for what, more in (("heartbeat", {}), ("complete", {"result": {"id": "x"}}), ("fail", {"type": "Evil"})):
            problem(await say(door, what, task["token"], **more), 404, "task-not-found")
            problem(await say(door, what, "made-up", **more), 404, "task-not-found")
        door.who = "acme:node-1:worker"
        assert (await say(door, "complete", task["token"], result={"id": "r1"})).status_code == 204

    served(main)


def test_a_worker_may_do_nothing_else_and_others_may_not_do_this() -> None:
    async def main(door: Door) -> None:
        door.who = "acme:node-1:worker"
        for method, path, body in (
            ("GET", "/v1/executions", None),
            ("POST", "/v1/executions", {"workflow": "http-buy"}),
            ("GET", "/v1/dead", None),
        ):
            problem(await door(method, path, body), 403, "not-allowed")
        for role in ("viewer", "sender", "operator", "author"):
            door.who = f"acme:ann:{role}"
            problem(await door("POST", "/v1/external/poll", POLL), 403, "not-allowed")
            for what in ("heartbeat", "complete"):
                problem(await say(door, what, "x"), 403, "not-allowed")
            problem(await say(door, "fail", "x", type="X"), 403, "not-allowed")

    served(main)


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        ({}, 422, "invalid-request"),
        ({"queue": "nowhere"}, 404, "not-registered"),
        ({"queue": "http-node", "actions": ["nothing"]}, 404, "not-registered"),
        ({"queue": "http-node", "actions": []}, 422, "invalid-request"),
        ({"queue": "http-node", "limit": 0}, 422, "invalid-request"),
        ({"queue": "http-node", "limit": 1000}, 422, "invalid-request"),
        ({"queue": "http-node", "wait": "2m"}, 400, "too-long"),
        ({"queue": "http-node", "wait": "soon"}, 422, "invalid-value"),
        ({"queue": "http-node", "lease": "1ms"}, 400, "usage-error"),
        ({"queue": "http-node", "lease": "2h"}, 400, "usage-error"),
        ({"queue": "http-node", "worker": "a\nb"}, 400, "usage-error"),
        ({"queue": "http-node", "more": 1}, 422, "invalid-request"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(body: dict[str, Any], status: int, name: str) -> None:
    async def main(door: Door) -> None:
        problem(await door("POST", "/v1/external/poll", body), status, name)

    served(main, working=False)


def test_what_cannot_be_said_is_refused() -> None:
    async def main(door: Door) -> None:
        for what, body in (
            ("heartbeat", {}),
            ("complete", {"token": ""}),
            ("complete", {"token": "t", "results": 1}),
            ("fail", {"token": "t"}),
            ("fail", {"token": "t", "type": ""}),
        ):
            problem(await door("POST", f"/v1/external/{what}", body), 422, "invalid-request")
        problem(await say(door, "fail", "t", type="X", after="never"), 422, "invalid-value")

    served(main, working=False)


def test_another_process_takes_the_answer_of_a_worker(tmp_path: Any) -> None:
    """The API that gave the task out is gone; nothing was in its memory only."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/orders.db"
        async with Perdure(url) as app, app.working():
            run = await app.start(buy, "visa", id="b1", tenant="acme")
            async with Perdure(url) as first, _client(first) as client:
                [task] = (await client.post("/v1/external/poll", json=POLL)).json()["tasks"]
            async with Perdure(url) as second, _client(second) as client:
                body = {"token": task["token"], "result": {"id": "r1"}}
                assert (await client.post("/v1/external/complete", json=body)).status_code == 204
            assert await run.result(timeout="10s") == "r1"

    asyncio.run(main())


def _client(app: Perdure) -> httpx.AsyncClient:
    said = {"authorization": "Bearer acme:node:worker"}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=api(app, People())), base_url="http://test", headers=said
    )


def test_who_hung_up_is_given_nothing() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app, app.working():
            authenticator = Authenticator(open=Open("default"))
            async with listening(app, authenticator, "127.0.0.1", 0) as address, httpx.AsyncClient() as client:
                brief = httpx.Timeout(20, read=0.5)
                with pytest.raises(httpx.ReadTimeout):
                    await client.post(f"{address}/v1/external/poll", json={**POLL, "wait": "60s"}, timeout=brief)
                await app.start(buy, "visa", id="b1")
                answer = await client.post(f"{address}/v1/external/poll", json=POLL, timeout=20)
                [task] = answer.json()["tasks"]
                assert task["attempt"] == 1

    asyncio.run(main())


def test_who_waits_is_answered_when_the_server_ends() -> None:
    async def main() -> None:
        async with asyncio.timeout(20), Perdure("memory://") as app, httpx.AsyncClient() as client:
            async with listening(app, Authenticator(open=Open("default")), "127.0.0.1", 0) as address:
                asking = asyncio.create_task(
                    client.post(f"{address}/v1/external/poll", json={**POLL, "wait": "60s"}, timeout=60)
                )
                while not any(watch.waiting for watch in app.external._watches.values()):
                    await asyncio.sleep(0.01)
            assert (await asking).json() == {"tasks": []}

    asyncio.run(main())
