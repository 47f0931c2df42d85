"""Bulk operations over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.http.test_api import Door, problem, served


async def ended(door: Door, id: str) -> dict[str, Any]:
    while (told := (await door("GET", f"/v1/bulk/{id}")).json())["status"] != "completed":
        await asyncio.sleep(0.01)
    return dict(told)


def test_executions_that_fit_are_sent_to_and_it_is_told_how_far_that_is() -> None:
    async def main(door: Door) -> None:
        for number in range(5):
            await door.start(id=f"h{number}")
        body = {"act": "send", "event": "go", "payload": 7, "filter": {"workflow": "http-hello"}, "reason": "now"}
        asked = await door("POST", "/v1/bulk", body)
        assert asked.status_code == 202 and asked.headers["location"] == f"/v1/bulk/{asked.json()['id']}"
        told = await ended(door, asked.json()["id"])
        assert (told["found"], told["done"], told["by"], told["reason"]) == (5, 5, "ann", "now")
        for number in range(5):
            result = await door("GET", f"/v1/executions/h{number}/result?wait=10s")
            assert result.json()["result"] == "hello ann 7"
        [listed] = (await door("GET", "/v1/bulk")).json()["operations"]
        assert listed["id"] == told["id"]

    served(main)


def test_an_idempotency_key_makes_one_operation_of_two() -> None:
    async def main(door: Door) -> None:
        body = {"act": "cancel", "all": True, "dry_run": True}
        answers = [await door("POST", "/v1/bulk", body, idempotency_key="k") for _ in range(2)]
        assert answers[0].json() == answers[1].json()
        assert (await ended(door, answers[0].json()["id"]))["dry_run"] is True
        other = await door("POST", "/v1/bulk", {**body, "dry_run": False}, idempotency_key="k")
        problem(other, 422, "idempotency-key-reused")

    served(main)


def test_another_tenant_is_neither_touched_nor_told() -> None:
    async def main(door: Door) -> None:
        await door.start()
        door.who = "evil:eve:admin"
        theirs = (await door("POST", "/v1/bulk", {"act": "cancel", "all": True})).json()["id"]
        assert (await ended(door, theirs))["found"] == 0
        door.who = "acme:ann:admin"
        assert (await door("GET", "/v1/executions/h1")).json()["status"] in ("running", "waiting")
        problem(await door("GET", f"/v1/bulk/{theirs}"), 404, "execution-not-found")
        assert (await door("GET", "/v1/bulk")).json() == {"operations": []}

    served(main)


def test_whoever_may_only_start_and_send_gets_no_bulk_operation() -> None:
    async def main(door: Door) -> None:
        door.who = "acme:sam:sender"
        problem(await door("POST", "/v1/bulk", {"act": "cancel", "all": True}), 403, "not-allowed")
        problem(await door("POST", "/v1/executions", {"workflow": "bulk:", "args": []}), 404, "not-registered")

    served(main, working=False)


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        ({"act": "cancel"}, 400, "usage-error"),
        ({"act": "explode", "all": True}, 422, "invalid-request"),
        ({"act": "send", "all": True}, 400, "usage-error"),
        ({"act": "migrate", "all": True, "version": 0}, 422, "invalid-request"),
        ({"act": "cancel", "filter": {"workflow": "lock:"}}, 400, "usage-error"),
        ({"act": "cancel", "filter": {"after": "2030-01-01T00:00:00"}}, 400, "usage-error"),
        ({"act": "cancel", "filter": {"colour": "red"}}, 422, "invalid-request"),
    ],
)
def test_what_is_no_operation_is_refused(body: dict[str, Any], status: int, name: str) -> None:
    async def main(door: Door) -> None:
        problem(await door("POST", "/v1/bulk", body), status, name)

    served(main, working=False)


def test_an_execution_is_no_bulk_operation() -> None:
    async def main(door: Door) -> None:
        await door.start()
        problem(await door("GET", "/v1/bulk/h1"), 404, "execution-not-found")

    served(main)
