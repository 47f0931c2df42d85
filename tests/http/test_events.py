"""Events over HTTP: what became of one, batches, CloudEvents in all their forms, and events for whoever listens."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from perdure import Listen, On, event, workflow
from tests.http.test_api import MACHINE, Door, problem, served

CLOUD = {
    "specversion": "1.0",
    "id": "A 1/ü",
    "source": "https://shop.example/orders",
    "type": "go",
    "subject": "order-7",
    "time": "2030-01-31T12:00:00.5+01:00",
    "datacontenttype": "application/json; charset=utf-8",
    "dataschema": "https://shop.example/schema",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "sequence": 12,
    "urgent": True,
    "data": 7,
}
STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"


@workflow(name="http-any")
async def anything() -> list[Any]:
    got = []
    while (one := await event.received("go", "blob", "stop")).name != "stop":
        got.append(one.payload)
    return got


@workflow(
    name="http-shipment",
    listens=[Listen("http.paid", event=".data.order", own=".[0].id")],
    starts_on=[On("http.ordered", input=".data")],
)
async def shipment(order: dict[str, Any]) -> Any:
    return await event("http.paid")


async def post(door: Door, path: str, body: Any, media: str, **headers: str) -> httpx.Response:
    said = {"authorization": f"Bearer {door.who}", "content-type": media, **headers}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await door.client.post(path, content=content, headers=said)


async def status(door: Door, id: str, until: str = "completed") -> dict[str, Any]:
    """The status of an event, once it is that."""
    async with asyncio.timeout(10):
        while (found := (await door("GET", f"/v1/executions/h1/events/{id}")).json())["status"] != until:
            await asyncio.sleep(0.01)
    told: dict[str, Any] = found
    return told


# What became of one


def test_an_event_is_pending_and_then_completed() -> None:
    async def main(door: Door) -> None:
        await door.start()
        sent = await door("POST", "/v1/executions/h1/events", {"name": "go", "payload": 7, "id": "e1"})
        place = sent.headers["location"]
        assert (await door("GET", place)).json() == {
            "id": "e1",
            "execution": "h1",
            "name": "go",
            "status": "pending",
        }
        async with door.app.working():
            found = await status(door, "e1")
        assert found["version"] == 2 and found["at"] and "error" not in found

    served(main, working=False)


def test_an_event_that_a_machine_rejects_has_failed_and_another_tells_its_state() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/definitions", {"definition": MACHINE})
        await door.start("http-door")
        for name in ("pull", "push"):
            await door("POST", "/v1/executions/h1/events", {"name": name, "id": name})
        assert (await status(door, "push"))["result"] == "open"
        assert "shut" in (await status(door, "pull", "failed"))["error"]

    served(main)


def test_an_event_that_nobody_sent_is_not_found() -> None:
    async def main(door: Door) -> None:
        await door.start()
        problem(await door("GET", "/v1/executions/h1/events/e9"), 404, "event-not-found")
        problem(await door("GET", "/v1/executions/none/events/e9"), 404, "execution-not-found")

    served(main)


# Batches


def test_a_batch_has_a_receipt_for_each_event() -> None:
    async def main(door: Door) -> None:
        await door.start()
        batch = [
            {"name": "go", "payload": 1, "id": "e1"},
            {"name": "go", "payload": "no number"},
            {"name": "other"},
            {"name": "go", "payload": 2, "id": "a b"},
            {"name": "go", "payload": 1, "id": "e1"},
            {"name": "go", "payload": 3, "id": "e1"},
            {"name": "go", "payload": 4},
        ]
        answer = await door("POST", "/v1/executions/h1/events/batch", batch)
        told = answer.json()
        assert answer.status_code == 202
        problems = [one.get("problem", {}).get("title") for one in told]
        refused = ["InvalidValue", "InvalidValue", "UsageError", None, "EventConflict", None]
        assert problems == [None, *refused]
        assert told[0] == {"id": "e1"} and told[6]["id"]

    served(main, working=False)


def test_a_batch_with_a_key_can_be_sent_again_also_when_it_is_in_the_log() -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        batch = [{"name": "go", "payload": number} for number in range(50)]
        first = await door("POST", "/v1/executions/h1/events/batch", batch, idempotency_key="b-1")
        await status(door, first.json()[49]["id"])
        again = await door("POST", "/v1/executions/h1/events/batch", batch, idempotency_key="b-1")
        assert first.json() == again.json() and all("id" in one for one in again.json())
        batch[3]["payload"] = "other"
        third = (await door("POST", "/v1/executions/h1/events/batch", batch, idempotency_key="b-1")).json()
        assert [one["problem"]["title"] for one in third if "problem" in one] == ["EventConflict"]
        await door("POST", "/v1/executions/h1/events", {"name": "stop"})
        result = await door("GET", "/v1/executions/h1/result?wait=10s")
        assert result.json()["result"] == list(range(50))

    served(main)


def test_a_batch_is_refused_as_a_whole_when_it_is_too_long_or_for_nobody() -> None:
    async def main(door: Door) -> None:
        await door.start()
        path = "/v1/executions/h1/events/batch"
        problem(await door("POST", path, [{"name": "go", "payload": 1}] * 1001), 422, "invalid-request")
        problem(await door("POST", path, []), 422, "invalid-request")
        problem(await door("POST", path, {"name": "go"}), 422, "invalid-request")
        nobody = await door("POST", "/v1/executions/none/events/batch", [{"name": "go", "payload": 1}])
        problem(nobody, 404, "execution-not-found")

    served(main, working=False)


def test_a_batch_for_what_has_ended_says_so_for_each() -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        await door("POST", "/v1/executions/h1/events?wait=10s", {"name": "stop", "id": "s"})
        batch = [{"name": "go"}, {"name": "stop", "id": "s"}]
        told = (await door("POST", "/v1/executions/h1/events/batch", batch)).json()
        assert told[0]["problem"]["type"] == "urn:perdure:problem:execution-ended" and told[1] == {"id": "s"}

    served(main)


# CloudEvents


def test_a_structured_cloudevent_leaves_as_it_came() -> None:
    async def main(door: Door) -> None:
        await door.start()
        sent = await post(door, "/v1/executions/h1/events", CLOUD, STRUCTURED)
        assert sent.status_code == 202, sent.text
        place = sent.headers["location"]
        for _ in range(2):
            out = await door("GET", place, accept=STRUCTURED)
            assert out.headers["content-type"] == STRUCTURED
            assert out.json() == CLOUD
            async with door.app.working():
                await status(door, sent.json()["id"])

    served(main, working=False)


def test_a_cloudevent_is_known_by_its_source_and_id() -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        path = "/v1/executions/h1/events"
        ids = [
            (await post(door, path, {**CLOUD, **more}, STRUCTURED)).json()["id"]
            for more in ({}, {"time": "2031-01-01T00:00:00Z"}, {"source": "/other"}, {"id": "A2"})
        ]
        assert ids[0] == ids[1] and len(set(ids)) == 3
        conflict = await post(door, path, {**CLOUD, "data": 8}, STRUCTURED)
        problem(conflict, 409, "event-conflict")
        await door("POST", path, {"name": "stop"})
        assert (await door("GET", "/v1/executions/h1/result?wait=10s")).json()["result"] == [7, 7, 7]

    served(main)


@pytest.mark.parametrize(
    ("media", "body", "out"),
    [
        ("application/json", b'{"a": 1}', {"data": {"a": 1}}),
        ("application/vnd.shop+json; v=1", b"[1]", {"data": [1]}),
        ("text/plain", "grün".encode(), {"data": "grün"}),
        ("image/png", b"\x89PNG", {"data_base64": base64.b64encode(b"\x89PNG").decode()}),
        ("application/json", b"", {}),
    ],
)
def test_a_binary_cloudevent_has_its_attributes_in_headers(media: str, body: bytes, out: dict[str, Any]) -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        headers = {
            "ce-specversion": "1.0",
            "ce-id": "1",
            "ce-source": "/shop",
            "ce-type": "blob",
            "ce-note": "gr%C3%BCn",
        }
        sent = await post(door, "/v1/executions/h1/events", body, media, **headers)
        assert sent.status_code == 202, sent.text
        found = await door("GET", sent.headers["location"], accept=STRUCTURED)
        attributes = {name.removeprefix("ce-"): value for name, value in headers.items()}
        assert found.json() == {**attributes, "note": "grün", "datacontenttype": media, **out}

    served(main, working=False)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"data": None, "datacontenttype": None},
        {"data": {"a": [1, "ü"]}, "datacontenttype": None},
        {"data": "<a/>", "datacontenttype": "text/xml", "note": 'say "50 %" – ä'},
        {"data": None, "data_base64": "iVBORw==", "datacontenttype": "image/png"},
    ],
)
def test_an_event_that_leaves_in_binary_form_enters_again_as_the_same(change: dict[str, Any]) -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        cloud = {name: value for name, value in {**CLOUD, **change, "type": "blob"}.items() if value is not None}
        sent = await post(door, "/v1/executions/h1/events", cloud, STRUCTURED)
        out = await door("GET", f"{sent.headers['location']}?form=binary")
        assert out.headers.get("content-type") == cloud.get("datacontenttype")
        await door.start("http-any", "h2", args=[])
        headers = {name: value for name, value in out.headers.items() if name.startswith("ce-")}
        headers |= {"authorization": f"Bearer {door.who}"}
        if "content-type" in out.headers:
            headers["content-type"] = out.headers["content-type"]
        again = await door.client.post("/v1/executions/h2/events", content=out.content, headers=headers)
        found = (await door("GET", f"{again.headers['location']}?form=structured")).json()
        assert found == {**cloud, "sequence": "12", "urgent": "true"}  # headers know texts only

    served(main, working=False)


def test_a_batch_of_cloudevents_has_a_receipt_for_each() -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        batch = [CLOUD, {**CLOUD, "id": "2"}, {**CLOUD, "specversion": "0.3"}, "no event", CLOUD]
        told = (await post(door, "/v1/executions/h1/events", batch, BATCH)).json()
        titles = [one.get("problem", {}).get("title") for one in told]
        assert titles == [None, None, "InvalidValue", "InvalidValue", None]
        assert told[0] == told[4]

    served(main, working=False)


@pytest.mark.parametrize(
    ("change", "title", "code"),
    [
        ({"id": None}, "invalid-value", 422),
        ({"type": ""}, "invalid-value", 422),
        ({"source": 5}, "invalid-value", 422),
        ({"specversion": "2.0"}, "invalid-value", 422),
        ({"time": "yesterday"}, "invalid-value", 422),
        ({"Bad_Name": "x"}, "invalid-value", 422),
        ({"nested": {"a": 1}}, "invalid-value", 422),
        ({"half": 0.5}, "invalid-value", 422),
        ({"data_base64": "AA=="}, "invalid-value", 422),
        ({"long": "x" * 40_000}, "limit-reached", 413),
    ],
)
@pytest.mark.parametrize("path", ["/v1/executions/h1/events", "/v1/events"])
def test_what_is_no_cloudevent_is_refused(path: str, change: dict[str, Any], title: str, code: int) -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        problem(await post(door, path, {**CLOUD, **change}, STRUCTURED), code, title)
        assert (await door("GET", "/v1/executions/h1")).json().get("mail", 0) == 0

    served(main, working=False)


def test_what_is_not_json_or_of_another_type_is_refused() -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        for path in ("/v1/executions/h1/events", "/v1/events"):
            problem(await post(door, path, b"{", STRUCTURED), 400, "not-json")
            problem(await post(door, path, b"[" * 99 + b"]" * 99, STRUCTURED), 400, "too-deep")
            problem(await post(door, path, b"<x/>", "text/xml"), 415, "unsupported-media-type")
            problem(await post(door, path, [CLOUD] * 1001, BATCH), 422, "invalid-request")
            twice = {"ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0", "ce-data": "x"}
            problem(await post(door, path, b"1", "application/json", **twice), 422, "invalid-value")
            plain = {name: value for name, value in twice.items() if name != "ce-data"}
            problem(await post(door, path, b"\xff", "text/plain", **plain), 422, "invalid-value")

    served(main, working=False)


def test_the_log_gives_its_external_events_as_a_batch_that_another_execution_takes() -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        await post(door, "/v1/executions/h1/events", CLOUD, STRUCTURED)
        for number in range(2):
            await door("POST", "/v1/executions/h1/events", {"name": "go", "payload": number, "id": f"n{number}"})
        await door("POST", "/v1/executions/h1/events?wait=10s", {"name": "stop", "id": "stop"})
        found, path = [], "/v1/executions/h1/log?limit=2&sent=true"
        while path:
            page = await door("GET", path, accept=BATCH)
            assert page.headers["content-type"] == BATCH
            found += page.json()
            path = page.links.get("next", {}).get("url", "")
        assert [one["id"] for one in found] == [CLOUD["id"], "n0", "n1", "stop"]
        assert found[0] == CLOUD
        assert found[1]["source"] == "/tenants/acme/executions/h1" and found[1]["type"] == "go"
        await door.start("http-any", "h2", args=[])
        told = (await post(door, "/v1/executions/h2/events", found, BATCH)).json()
        assert [*map(list, told)] == [["id"]] * 4
        await door("GET", "/v1/executions/h2/result?wait=10s")
        again = await door("GET", "/v1/executions/h2/log?sent=true", accept=BATCH)
        assert again.json() == found
        plain = (await door("GET", "/v1/executions/h2/log?sent=true")).json()["events"]
        assert [one["type"] for one in plain] == ["EventReceived"] * 4

    served(main)


def test_every_event_of_a_log_leaves_as_a_cloudevent_in_every_form_and_the_same_in_all() -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        await post(door, "/v1/executions/h1/events", CLOUD, STRUCTURED)
        await door("POST", "/v1/executions/h1/events?wait=10s", {"name": "stop", "id": "stop"})
        shown = (await door("GET", "/v1/executions/h1/log")).json()["events"]
        batch = (await door("GET", "/v1/executions/h1/log", accept=BATCH)).json()
        assert [one["type"] for one in batch] == ["perdure.log.Started", "go", "stop", "perdure.log.Completed"]
        assert batch[1] == CLOUD
        assert batch[0] == {
            "specversion": "1.0",
            "id": "h1/1",
            "source": "/tenants/acme/executions/h1",
            "type": "perdure.log.Started",
            "datacontenttype": "application/json",
            "subject": "h1",
            "time": shown[0]["at"],
            "data": shown[0],
        }
        for version, cloud in enumerate(batch, 1):
            path = f"/v1/executions/h1/log/{version}"
            assert (await door("GET", path)).json() == shown[version - 1]
            structured = await door("GET", path, accept=STRUCTURED)
            assert (structured.headers["content-type"], structured.json()) == (STRUCTURED, cloud)
            assert (await door("GET", f"{path}?form=structured")).json() == cloud
            binary = await door("GET", f"{path}?form=binary")
            assert binary.json() if "data" in cloud else binary.content == b""
            for name in set(cloud) - {"data", "datacontenttype"}:
                said = str(cloud[name]).lower() if isinstance(cloud[name], bool) else str(cloud[name])
                assert unquote(binary.headers[f"ce-{name}"]) == said
            assert await door.app.get("h1", "acme").cloudevent(version) | {"data": None} == cloud | {"data": None}
        flow = (await door("GET", "/v1/executions/h1/stream", accept=f"text/event-stream, {STRUCTURED}")).text
        told = [json.loads(line[6:]) for line in flow.splitlines() if line.startswith("data: ")]
        assert told[:-1] == batch
        assert (await door("GET", "/v1/executions/h1/stream?form=structured")).text == flow

    served(main)


@pytest.mark.parametrize("form", ["structured", "binary", "batch"])
def test_an_event_of_the_engines_own_comes_back_and_keeps_its_attributes(form: str) -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        await door("POST", "/v1/executions/h1/events?wait=10s", {"name": "stop"})
        await door.start("http-any", "h2", args=[])
        events = "/v1/executions/h2/events"
        own = (await door("GET", "/v1/executions/h1/log/1", accept=STRUCTURED)).json()
        if form == "binary":
            left = await door("GET", "/v1/executions/h1/log/1?form=binary")
            headers = {name: value for name, value in left.headers.items() if name.startswith("ce-")}
            sent = await post(door, events, left.content, left.headers["content-type"], **headers)
        else:
            sent = await post(door, events, [own] if form == "batch" else own, BATCH if form == "batch" else STRUCTURED)
        assert sent.status_code == 202, sent.text
        [id] = [one["id"] for one in (sent.json() if form == "batch" else [sent.json()])]
        again = await door("GET", f"{events}/{id}", accept=STRUCTURED)
        assert again.json() == own

    served(main)


def test_an_event_that_a_log_does_not_have_is_not_found() -> None:
    async def main(door: Door) -> None:
        await door.start("http-any", args=[])
        for version in ("0", "99", "9" * 18, "9" * 30, "-1", "one"):
            problem(await door("GET", f"/v1/executions/h1/log/{version}"), 404, "event-not-found")
            problem(await door("GET", f"/v1/executions/nobody/log/{version}"), 404, "execution-not-found")
        problem(await door("GET", "/v1/executions/h1/log/1?form=other"), 422, "invalid-request")

    served(main)


# For whoever listens


def test_an_event_starts_one_execution_and_another_wakes_it() -> None:
    async def main(door: Door) -> None:
        ordered = {**CLOUD, "type": "http.ordered", "data": {"id": 7}}
        routed = await post(door, "/v1/events", ordered, STRUCTURED)
        assert routed.status_code == 202, routed.text
        [id] = routed.json()["started"]
        paid = {**CLOUD, "type": "http.paid", "id": "2", "data": {"order": 7}}
        assert (await post(door, "/v1/events", paid, "application/json")).json()["woken"] == [id]
        other = {**paid, "id": "3", "data": {"order": 8}}
        nobody = (await post(door, "/v1/events", other, STRUCTURED)).json()
        assert (nobody["heard"], nobody["started"], nobody["woken"]) == (False, [], [])
        result = (await door("GET", f"/v1/executions/{id}/result?wait=10s")).json()
        assert result == {"status": "completed", "result": {"order": 7}}

    served(main)


def test_a_batch_is_routed_one_by_one() -> None:
    async def main(door: Door) -> None:
        batch = [{**CLOUD, "type": "http.ordered", "id": str(number), "data": {"id": number}} for number in range(20)]
        batch.insert(3, {"type": "nothing"})
        told = (await post(door, "/v1/events", batch, BATCH)).json()
        assert [len(one["routed"]["started"]) if "routed" in one else 0 for one in told] == [1, 1, 1, 0, *[1] * 17]
        assert told[3]["problem"]["title"] == "InvalidValue"

    served(main, working=False)


def test_an_event_wakes_nobody_of_another_tenant() -> None:
    async def main(door: Door) -> None:
        await door.start("http-shipment", args=[{"id": 7}])
        paid = {**CLOUD, "type": "http.paid", "data": {"order": 7}}
        door.who = "evil:eve:admin"
        assert (await post(door, "/v1/events", paid, STRUCTURED)).json()["woken"] == []
        door.who = "acme:ann:admin"
        assert (await post(door, "/v1/events", paid, STRUCTURED)).json()["woken"] == ["h1"]

    served(main, working=False)
