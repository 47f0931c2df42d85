"""Correlation ids and tags over HTTP: given with a start, shown, and searched for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.test_api import Door, problem, served
from tests.http.test_bulk import ended

LABELS = {"correlation": "order-4711", "tags": ["vip", "eu"]}


async def started(door: Door, id: str, **labels: Any) -> None:
    body = {"workflow": "http-hello", "args": ["ann"], "id": id, **labels}
    assert (await door("POST", "/v1/executions", body)).status_code == 202


async def found(door: Door, query: str) -> list[str]:
    answer = await door("GET", f"/v1/executions?{query}")
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["executions"]]


def test_executions_are_started_with_labels_and_found_by_them() -> None:
    async def main(door: Door) -> None:
        await started(door, "a", **LABELS)
        await started(door, "b", correlation="order-4711", tags=["eu"])
        await started(door, "c", tags=["eu"])
        await started(door, "d")
        assert await found(door, "correlation=order-4711") == ["b", "a"]
        assert await found(door, "tag=eu") == ["c", "b", "a"]
        assert await found(door, "tag=eu&tag=vip") == ["a"]
        assert await found(door, "tag=eu&correlation=order-4711&limit=1&workflow=http-hello") == ["b"]
        assert await found(door, "tag=eu&status=completed") == []

    served(main, working=False)


def test_an_execution_shows_its_labels_if_it_has_some() -> None:
    async def main(door: Door) -> None:
        await started(door, "a", **LABELS)
        await started(door, "b")
        told = (await door("GET", "/v1/executions/a")).json()
        assert (told["correlation"], told["tags"]) == ("order-4711", ["eu", "vip"])
        plain = (await door("GET", "/v1/executions/b")).json()
        assert not {"correlation", "tags"} & plain.keys()

    served(main, working=False)


def test_a_page_by_tag_leads_to_the_next() -> None:
    async def main(door: Door) -> None:
        for id in "abc":
            await started(door, id, tags=["t"])
        page = (await door("GET", "/v1/executions?tag=t&limit=2")).json()
        assert [one["id"] for one in page["executions"]] == ["c", "b"]
        assert await found(door, f"tag=t&limit=2&cursor={page['next']}") == ["a"]

    served(main, working=False)


def test_another_tenant_finds_nothing_by_them() -> None:
    async def main(door: Door) -> None:
        await started(door, "a", **LABELS)
        door.who = "evil:eve:admin"
        assert await found(door, "correlation=order-4711") == await found(door, "tag=eu") == []
        await started(door, "mine", **LABELS)
        assert await found(door, "correlation=order-4711&tag=eu&tag=vip") == ["mine"]

    served(main, working=False)


def test_an_observer_does_not_see_them() -> None:
    async def main(door: Door) -> None:
        await started(door, "a", **LABELS)
        door.who = "acme:obi:observer"
        for path in ("/v1/executions", "/v1/executions/a", "/v1/executions/a/log"):
            answer = await door("GET", path)
            assert answer.status_code == 200 and "4711" not in answer.text and "vip" not in answer.text, path

    served(main, working=False)


def test_the_same_id_with_other_labels_is_a_conflict() -> None:
    async def main(door: Door) -> None:
        for _ in range(2):
            await started(door, "a", **LABELS)
        for other in ({}, {"correlation": "order-4712"}, {"tags": ["eu"]}):
            body = {"workflow": "http-hello", "args": ["ann"], "id": "a", **other}
            problem(await door("POST", "/v1/executions", body), 409, "execution-exists")

    served(main, working=False)


@pytest.mark.parametrize(
    ("labels", "status", "name"),
    [
        ({"correlation": ""}, 422, "invalid-request"),
        ({"correlation": "x" * 201}, 422, "invalid-request"),
        ({"correlation": 7}, 422, "invalid-request"),
        ({"correlation": "a\nb"}, 400, "usage-error"),
        ({"tags": "eu"}, 422, "invalid-request"),
        ({"tags": [""]}, 422, "invalid-request"),
        ({"tags": ["x"] * 21}, 422, "invalid-request"),
        ({"tags": ["\x7f"]}, 400, "usage-error"),
    ],
)
def test_a_start_with_labels_that_cannot_be_is_refused(labels: dict[str, Any], status: int, name: str) -> None:
    async def main(door: Door) -> None:
        body = {"workflow": "http-hello", "args": ["ann"], **labels}
        problem(await door("POST", "/v1/executions", body), status, name)
        assert await found(door, "") == []

    served(main, working=False)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("correlation=", 422),
        (f"correlation={'x' * 201}", 422),
        ("correlation=a&correlation=b", 400),
        ("correlation=a%0Ab", 400),
        ("tag=", 422),
        ("tag=a&tag=", 422),
        ("tag=a%00", 400),
        ("&".join(["tag=x"] * 21), 422),
        ("tag.x=1", 422),
        ("tag=a&tag.x=1", 422),
    ],
)
def test_a_search_by_labels_that_cannot_be_is_refused(query: str, status: int) -> None:
    async def main(door: Door) -> None:
        answer = await door("GET", f"/v1/executions?{query}")
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"

    served(main, working=False)


def test_a_bulk_operation_goes_by_labels() -> None:
    async def main(door: Door) -> None:
        await started(door, "a", **LABELS)
        await started(door, "b", correlation="order-4711")
        which = {"correlation": "order-4711", "tag": ["vip"]}
        asked = await door("POST", "/v1/bulk", {"act": "cancel", "filter": which, "dry_run": True})
        assert (await ended(door, asked.json()["id"]))["first"] == ["a"]

    served(main)
