"""Schedules over HTTP."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import workflow
from tests.http.test_api import Door, problem, served


@workflow(name="http-report")
async def report(what: str) -> str:
    return what


DAILY = {"name": "daily", "workflow": "http-report", "args": ["sales"], "cron": "0 9 * * *"}


async def until(door: Door, name: str, **wanted: Any) -> dict[str, Any]:
    """Once a worker has seen what was wished."""
    while True:
        told: dict[str, Any] = (await door("GET", f"/v1/schedules/{name}")).json()
        if wanted.items() <= told.items():
            return told
        await asyncio.sleep(0.01)


def test_a_schedule_is_made_listed_and_shown() -> None:
    async def main(door: Door) -> None:
        made = await door("POST", "/v1/schedules", {**DAILY, "timezone": "Europe/Berlin", "note": "for Ann"})
        assert (made.status_code, made.headers["location"]) == (201, "/v1/schedules/daily")
        told = (await door("GET", "/v1/schedules/daily")).json()
        assert (told["workflow"], told["args"], told["timezone"]) == ("http-report", ["sales"], "Europe/Berlin")
        assert told["next"].endswith(("T09:00:00+01:00", "T09:00:00+02:00"))
        listed = (await door("GET", "/v1/schedules")).json()["schedules"]
        assert [one["name"] for one in listed] == ["daily"]
        times = (await door("GET", "/v1/schedules/daily/next?count=3")).json()["times"]
        assert len(times) == 3 and times[0] == told["next"]

    served(main)


def test_a_schedule_starts_its_workflow_at_its_time_and_when_it_is_triggered() -> None:
    async def main(door: Door) -> None:
        soon = datetime.now(UTC) + timedelta(seconds=0.5)
        body = {
            "name": "soon",
            "workflow": "http-report",
            "args": ["x"],
            "at": [soon.isoformat(), "2099-01-01T00:00:00Z"],
        }
        await door("POST", "/v1/schedules", body)
        id = (await until(door, "soon", started=1))["recent"][0]["id"]
        assert (await door("GET", f"/v1/executions/{id}/result?wait=10s")).json()["result"] == "x"
        answers = [await door("POST", "/v1/schedules/soon/trigger", {}, idempotency_key="k") for _ in range(2)]
        [first, again] = [answer.json()["execution"] for answer in answers]
        assert first == again and answers[0].status_code == 202
        other = await door("POST", "/v1/schedules/soon/trigger", {"overlap": "all"}, idempotency_key="k")
        problem(other, 422, "idempotency-key-reused")
        await until(door, "soon", started=2)
        assert (await door("GET", f"/v1/executions/{first}/result?wait=10s")).json()["result"] == "x"

    served(main)


def test_a_schedule_is_paused_resumed_changed_and_ended() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/schedules", {**DAILY, "end": "2099-01-01T00:00:00Z"})
        assert (await door("POST", "/v1/schedules/daily/pause")).status_code == 202
        await until(door, "daily", paused=True)
        await door("POST", "/v1/schedules/daily/resume")
        changed = await door("PATCH", "/v1/schedules/daily", {"cron": "0 10 * * *", "args": ["tea"], "end": None})
        assert (changed.status_code, changed.json()) == (202, {"name": "daily"})
        told = await until(door, "daily", cron="0 10 * * *")
        assert (told["args"], told["paused"], told["end"]) == (["tea"], False, None)
        assert (await door("DELETE", "/v1/schedules/daily")).status_code == 202
        while (await door("GET", "/v1/schedules")).json()["schedules"]:
            await asyncio.sleep(0.01)
        problem(await door("GET", "/v1/schedules/daily"), 404, "execution-not-found")
        [ended] = (await door("GET", "/v1/schedules?ended=true")).json()["schedules"]
        assert ended["ended"] is True

    served(main)


def test_another_tenant_has_no_such_schedule() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/schedules", DAILY)
        door.who = "other:bob:admin"
        assert (await door("GET", "/v1/schedules")).json() == {"schedules": []}
        for method, path, body in [
            ("GET", "", None),
            ("GET", "/next", None),
            ("PATCH", "", {"note": "mine"}),
            ("DELETE", "", None),
            ("POST", "/pause", None),
            ("POST", "/resume", None),
            ("POST", "/trigger", {}),
        ]:
            problem(await door(method, f"/v1/schedules/daily{path}", body), 404, "execution-not-found")

    served(main)


def test_whoever_may_only_start_makes_no_schedules() -> None:
    async def main(door: Door) -> None:
        door.who = "acme:sam:sender"
        problem(await door("POST", "/v1/schedules", DAILY), 403, "not-allowed")

    served(main)


def test_nobody_starts_the_workflow_behind_schedules_by_its_name() -> None:
    async def main(door: Door) -> None:
        problem(await door("POST", "/v1/executions", {"workflow": "schedule:", "args": []}), 404, "not-registered")

    served(main)


@pytest.mark.parametrize(
    ("change", "status", "name"),
    [
        ({"cron": "whenever"}, 422, "invalid-value"),
        ({"every": "1h"}, 400, "usage-error"),
        ({"timezone": "Mars/Base"}, 422, "invalid-value"),
        ({"overlap": "maybe"}, 422, "invalid-request"),
        ({"name": "a/b"}, 400, "usage-error"),
        ({"workflow": "nobody-knows"}, 404, "not-registered"),
        ({"args": [1]}, 422, "invalid-value"),
        ({"colour": "red"}, 422, "invalid-request"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(change: dict[str, Any], status: int, name: str) -> None:
    async def main(door: Door) -> None:
        problem(await door("POST", "/v1/schedules", {**DAILY, **change}), status, name)
        assert (await door("GET", "/v1/schedules")).json() == {"schedules": []}

    served(main, working=False)


def test_another_schedule_under_the_same_name_is_refused_and_so_are_bad_changes() -> None:
    async def main(door: Door) -> None:
        assert [(await door("POST", "/v1/schedules", DAILY)).status_code for _ in range(2)] == [201, 201]
        problem(await door("POST", "/v1/schedules", {**DAILY, "cron": "@hourly"}), 409, "execution-exists")
        problem(await door("PATCH", "/v1/schedules/daily", {}), 400, "usage-error")
        problem(await door("PATCH", "/v1/schedules/daily", {"cron": "never"}), 422, "invalid-value")
        problem(await door("GET", "/v1/schedules/daily/next?count=0"), 422, "invalid-request")

    served(main, working=False)
