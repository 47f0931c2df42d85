"""What an API process counts: each number changes by exactly what happened, with and without a worker beside it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import pytest

from perdure.core.records import Mail, Sent
from perdure.http.api import ALL
from perdure.http.site import REASONS, Counts
from perdure.stores.memory import MemoryStore
from tests.docs.conftest import ROOT
from tests.http.test_api import Door
from tests.http.test_limits import served

LINE = re.compile(r"^(\w+)(\{.*\})? (\S+)$", re.MULTILINE)


async def counted(door: Door) -> dict[str, float]:
    text = (await door("GET", "/v1/metrics")).text
    return {name + labels: float(value) for name, labels, value in LINE.findall(text)}


def changed(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}


def asked(method: str, path: str, status: str) -> str:
    return f'perdure_api_requests_total{{route="{method} {path}",status="{status}"}}'


def refused(reason: str) -> str:
    return f'perdure_api_refused_total{{reason="{reason}"}}'


def test_a_script_changes_each_number_by_what_happened() -> None:
    async def main(door: Door) -> None:
        await counted(door)
        before = await counted(door)
        await door.start(id="h1")
        await door.start(id="h1")  # the same again is no second one
        await door.start(id="h2")
        event = {"name": "go", "payload": 7, "id": "e1"}
        await door("POST", "/v1/executions/h1/events", event)
        await door("POST", "/v1/executions/h1/events", event)
        await door("POST", "/v1/executions/none/events", event)
        await door("POST", "/v1/executions", {"workflow": 5})
        await door("GET", "/v1/nowhere")
        who, door.who = door.who, "acme:bot:worker"
        await door("GET", "/v1/executions")
        door.who = "nobody"
        await door("GET", "/v1/executions")
        door.who = who
        await door("POST", "/v1/external/complete", {"token": "x"})
        assert changed(before, await counted(door)) == {
            asked("POST", "/v1/executions", "2xx"): 3,
            asked("POST", "/v1/executions", "4xx"): 1,
            asked("POST", "/v1/executions/{id}/events", "2xx"): 2,
            asked("POST", "/v1/executions/{id}/events", "4xx"): 1,
            asked("POST", "/v1/external/complete", "4xx"): 1,
            asked("GET", "/v1/executions", "4xx"): 2,
            asked("GET", "/v1/metrics", "2xx"): 1,
            'perdure_api_requests_total{route="other",status="4xx"}': 1,
            refused("missing"): 3,
            refused("invalid"): 1,
            refused("scope"): 1,
            refused("credential"): 1,
            'perdure_accepted_total{what="execution"}': 2,
            'perdure_accepted_total{what="message"}': 1,
        }

    served(main)


class Slow(MemoryStore):
    """A store whose mail waits until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.through = asyncio.Event()

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        await self.through.wait()
        return await super().send(mail, grace)


def test_writes_that_wait_for_the_store_are_shown_while_they_wait() -> None:
    store = Slow()

    async def main(door: Door) -> None:
        await door.start()
        sending = [
            asyncio.create_task(door("POST", "/v1/executions/h1/events", {"name": "go", "payload": number}))
            for number in range(3)
        ]
        while (await counted(door))["perdure_api_writes_waiting"] < 3:
            await asyncio.sleep(0)
        store.through.set()
        assert {(await one).status_code for one in sending} == {202}
        assert (await counted(door))["perdure_api_writes_waiting"] == 0

    served(main, store)


@pytest.mark.parametrize(
    ("settings", "reason", "paths"),
    [
        ({"api_rate": 0.01, "api_burst": 3}, "rate", ["/v1/executions"] * 5),
        ({}, "invalid", ["/v1/executions?x=1"] * 3),
    ],
    ids=["rate", "invalid"],
)
def test_what_is_refused_is_counted_by_its_reason(settings: dict[str, float], reason: str, paths: list[str]) -> None:
    async def main(door: Door) -> None:
        answers = [(await door("GET", path)).status_code for path in paths]
        door.who = "mill:ann:admin"
        assert (await counted(door))[refused(reason)] == sum(status >= 400 for status in answers) > 0

    served(main, **settings)


def test_labels_have_a_bound_whatever_callers_do() -> None:
    async def main(door: Door) -> None:
        for number in range(50):
            await door("GET", f"/v1/executions/x{number}")
            await door("GET", f"/v1/nowhere/{number}")
        routes = [name for name in await counted(door) if name.startswith("perdure_api_requests_total")]
        assert len(routes) == 2

    served(main)


def test_the_page_names_every_metric_and_every_reason() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    for one in Counts(route.label for route in ALL).all():
        assert f"| `{one.name}` | {one.kind} |" in page and one.meaning in page
    for reason in (*REASONS, "perdure_accepted_total"):
        assert f"`{reason}`" in page


def test_a_process_without_a_worker_tells_how_it_is() -> None:
    async def main(door: Door) -> None:
        answer = await door.client.get("/health")
        assert (answer.status_code, answer.json()) == (200, {"status": "ready"})

    served(main)
