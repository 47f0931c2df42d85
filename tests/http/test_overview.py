"""Counts, workers, locks and metrics over HTTP; searches by published fields; another version of a definition."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from perdure import action, event, workflow
from perdure.core import events as ev
from perdure.runtime.managing import overview
from perdure.testing import World
from tests.http.test_api import Door, problem, served


@workflow(name="http-stage")
async def stage(stage: str | int) -> None:
    workflow.publish(stage=stage)
    await event("go")


@workflow(name="http-quick")
async def quick() -> None:
    return None


may_go = threading.Event()


@action(name="http.held")
def holds() -> None:
    may_go.wait(20)


@workflow(name="http-held")
async def held() -> None:
    await holds()


async def begun(door: Door, name: str, *stages: str | int) -> None:
    for one in stages:
        await door.start("http-stage", f"{name}-{one}", args=[one])
        await door.app.get(f"{name}-{one}", "acme").until("waiting")


def test_executions_are_found_by_what_they_publish() -> None:
    async def main(door: Door) -> None:
        await begun(door, "x", "paid", "sent", 5, "5")

        async def found(query: str) -> list[str]:
            return [one["id"] for one in (await door("GET", f"/v1/executions?{query}")).json()["executions"]]

        assert await found("field.stage=paid") == ["x-paid"]
        assert await found("field.stage=paid&workflow=http-quick") == []
        assert await found("field.stage=lost") == []
        for wrong in ("field=paid&field.stage=paid", "field.stage=paid&field=paid"):
            problem(await door("GET", f"/v1/executions?{wrong}"), 400, "repeated-parameter")
        problem(await door("GET", "/v1/executions?field=paid"), 422, "invalid-request")
        problem(await door("GET", "/v1/executions?limit.x=1"), 422, "invalid-request")

    served(main)


def test_a_number_and_its_text_are_two_values() -> None:
    async def main(door: Door) -> None:
        await begun(door, "n", 5)
        await begun(door, "t", "7")
        got = [(await door("GET", f"/v1/executions?field.stage={value}")).json() for value in ("5", '"5"', "7", '"7"')]
        assert [[one["id"] for one in found["executions"]] for found in got] == [["n-5"], [], [], ["t-7"]]

    served(main)


async def recounted(door: Door) -> Counter[tuple[str, str]]:
    """By workflow and end, from the logs."""
    found: Counter[tuple[str, str]] = Counter()
    for head in (await door.app.find(tenant="acme", limit=1000)).heads:
        first, *_, last = [ev.read(row) async for row in door.app.get(head.key.partition("/")[2], "acme").rows()]
        assert isinstance(first, ev.Started)
        ends = {ev.Completed: "completed", ev.Failed: "failed", ev.Cancelled: "cancelled"}
        found[first.workflow, ends.get(type(last), "waiting")] += 1
    return found


def test_counts_match_a_recount_from_the_logs() -> None:
    async def main(door: Door) -> None:
        await begun(door, "x", "a", "b")
        for number in range(3):
            await door.start("http-quick", f"q{number}", args=[])
            await door.start("http-fails", f"f{number}", args=[])
            for id in (f"q{number}", f"f{number}"):
                await door.app.get(id, "acme").until("completed", "failed")
        told = (await door("GET", "/v1/stats")).json()
        assert told["total"] == 8 and told["complete"] is True
        assert told["by_status"] == {"waiting": 2, "completed": 3, "failed": 3}
        shown = {
            (one["workflow"], status): count for one in told["workflows"] for status, count in one["by_status"].items()
        }
        assert shown == await recounted(door)
        by_name = {one["workflow"]: one for one in told["workflows"]}
        took = by_name["http-quick"]["durations"]
        assert took["count"] == 3 and 0 <= took["p50"] <= took["p95"] <= took["longest"] < 20
        assert by_name["http-stage"]["durations"] is None
        assert (await door("GET", "/v1/stats?workflow=http-quick")).json()["total"] == 3
        assert (await door("GET", "/v1/stats?before=2000-01-01T00:00:00Z")).json()["total"] == 0
        problem(await door("GET", "/v1/stats?after=2000-01-01T00:00:00"), 400, "usage-error")
        door.who = "evil:eve:admin"
        assert (await door("GET", "/v1/stats")).json()["total"] == 0

    served(main)


@workflow(name="http-naps")
async def naps(seconds: int) -> None:
    await asyncio.sleep(seconds)
    if seconds % 5 == 0:
        raise ValueError("overslept")


async def test_durations_match_a_recount_from_the_logs(world: World) -> None:
    runs = [await world.start(naps, number * number) for number in range(1, 31)]
    open_still = await world.start(naps, 10**6)
    await world.advance("1h")
    told = await overview.stats(world.app, "default")
    [shown] = told.workflows
    ends = [await run.log() for run in runs]
    took = sorted((last.at - first.at).total_seconds() for first, *_, last in ends)
    assert shown.durations == overview.Durations(30, took[14], took[28], took[29])
    assert took == [number * number for number in range(1, 31)]
    recount = Counter(log[-1].type.lower() for log in ends)
    assert shown.by_status == {**recount, "waiting": 1} and recount == {"completed": 24, "failed": 6}
    await open_still.cancel()


def test_what_is_too_much_is_counted_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "_PAGE", 2)

    async def main(door: Door) -> None:
        await begun(door, "x", "a", "b")
        assert (await door("GET", "/v1/stats")).json()["complete"] is True
        await begun(door, "x", "c")
        told = (await door("GET", "/v1/stats")).json()
        assert (told["total"], told["complete"]) == (2, False)

    served(main, counted=2)


def test_a_worker_is_seen_by_those_whose_executions_it_holds() -> None:
    async def main(door: Door) -> None:
        await door.start("http-held", "held", args=[])
        while not (told := (await door("GET", "/v1/workers")).json()["workers"]):
            await asyncio.sleep(0.01)
        assert told == [{"name": door.app.me, "holds": 1, "queues": ["default"], "workflows": ["http-held"]}]
        async with door.app.lock("door", tenant="acme"):
            assert (await door("GET", "/v1/workers")).json()["workers"] == told
        door.who = "evil:eve:admin"
        assert (await door("GET", "/v1/workers")).json() == {"workers": []}
        may_go.set()

    served(main)


def test_a_lock_tells_who_holds_it() -> None:
    async def main(door: Door) -> None:
        assert (await door("GET", "/v1/locks?name=printer/3")).json() == {"name": "printer/3", "held": False}
        async with door.app.lock("printer/3", tenant="acme") as lock:
            told = (await door("GET", "/v1/locks?name=printer/3")).json()
            assert (told["held"], told["holder"], told["fence"]) == (True, lock.token, lock.fence) and told["until"]
            assert told["since"] < told["until"] and 0 <= told["age"] < 20
            await asyncio.sleep(0.02)
            later = (await door("GET", "/v1/locks?name=printer/3")).json()
            assert later["since"] == told["since"] and later["age"] >= told["age"] + 0.02
            door.who = "evil:eve:admin"
            assert (await door("GET", "/v1/locks?name=printer/3")).json()["held"] is False
        problem(await door("GET", "/v1/locks"), 422, "invalid-request")
        problem(await door("GET", "/v1/locks?name=%20"), 400, "usage-error")

    served(main, working=False)


def test_metrics_are_those_of_the_api_and_the_worker_for_admins() -> None:
    async def main(door: Door) -> None:
        await begun(door, "x", "a")
        told = await door("GET", "/v1/metrics")
        assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "# TYPE perdure_holds" in told.text and "# TYPE perdure_api_requests_total" in told.text
        assert told.text.count("# TYPE perdure_external_late_total") == 1
        assert "acme" not in told.text
        door.who = "acme:otto:operator"
        problem(await door("GET", "/v1/metrics"), 403, "not-allowed")

    served(main)


def machine(*states: str) -> dict[str, Any]:
    """Each state leads to the next by `on`."""
    ways = {name: {"on": {"on": after}} for name, after in pairwise(states)}
    return {"machine": "http-line", "initial": states[0], "states": {**ways, states[-1]: {"final": True}}}


def test_an_execution_goes_on_with_another_version() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/definitions", {"definition": machine("one", "two")})
        await door("POST", "/v1/executions?wait=10s", {"workflow": "http-line", "id": "m1"})
        await door("POST", "/v1/definitions", {"definition": machine("one", "two", "three")})
        moved = await door("POST", "/v1/executions/m1/migrate", {"version": 2})
        assert moved.status_code == 200
        [found] = (await door("GET", "/v1/executions")).json()["executions"]
        for told in (moved.json(), found, (await door("GET", "/v1/executions/m1")).json()):
            assert (told["definition"], told["began_as"]) == ("published:http-line@2", "published:http-line@1")
        *_, last = [entry for entry in await door.app.get("m1", "acme").log() if entry.type == "Restarted"]
        assert (last.data["version"], last.data["by"]) == (2, "ann")
        problem(await door("POST", "/v1/executions/m1/migrate", {"version": 9}), 404, "definition-not-found")
        await door("POST", "/v1/definitions", {"definition": machine("four", "five")})
        refused = problem(await door("POST", "/v1/executions/m1/migrate", {"version": 3}), 409, "migration-refused")
        assert refused["problems"]
        problem(await door("POST", "/v1/executions/m1/migrate", {"version": 0}), 422, "invalid-request")

    served(main)


def test_a_version_that_nobody_has_judged_in_time_is_accepted() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/definitions", {"definition": machine("one", "two")})
        async with door.app.working():
            await door("POST", "/v1/executions?wait=10s", {"workflow": "http-line", "id": "m1"})
        await door("POST", "/v1/definitions", {"definition": machine("one", "two", "three")})
        asked = await door("POST", "/v1/executions/m1/migrate?wait=50ms", {"version": 2})
        assert (asked.status_code, asked.json()) == (202, {"id": "m1"})

    served(main, working=False)


def test_code_stays_on_its_version() -> None:
    async def main(door: Door) -> None:
        await door.start()
        problem(await door("POST", "/v1/executions/h1/migrate", {"version": 2}), 400, "usage-error")

    served(main)
