"""How documents are started: by events, by each other, by the version that they give themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import ExecutionFailed, Perdure
from perdure.core.records import id_of
from perdure.flows import reading
from perdure.flows.document import check
from perdure.runtime.app import Perdure as App

PARENT = """
document: {dsl: '1.0.3', namespace: starting, name: parent, version: '1.0.0'}
do:
  - inner:
      run:
        workflow: {namespace: starting, name: part, version: '%s', input: {n: '${ .n }'}}
"""
PART = """
document: {dsl: '1.0.3', namespace: starting, name: part, version: '%s'}
do:
  - answer: {set: {n: '${ .n + %d }'}}
"""
HEARS = """
document: {dsl: '1.0.3', namespace: starting, name: hears, version: '1.0.0'}
schedule:
  on:
    any:
      - with: {type: starting.paid, source: /shop, data: '${ .amount > 10 }'}
      - with: {type: starting.sent, subject: parcel}
do:
  - keep: {set: '${ .[0].data }'}
"""


def on_memory(body: Any) -> None:
    async def main() -> None:
        app = Perdure("memory://")
        async with asyncio.timeout(30), app, app.working():
            await body(app)

    asyncio.run(main())


@pytest.mark.parametrize(("version", "result"), [("latest", 12), ("1.0.0", 11), ("1.1.0", 12)])
def test_a_document_runs_another_by_the_version_that_it_gives_itself(version: str, result: int) -> None:
    async def body(app: App) -> None:
        await app.definitions.publish(PART % ("1.0.0", 1))
        await app.definitions.publish(PART % ("1.1.0", 2))
        await app.definitions.publish(PARENT % version)
        run = await app.start("starting.parent", {"n": 10})
        assert await run.result(20) == {"n": result}

    on_memory(body)


def test_a_version_that_was_never_published_is_an_error_of_configuration() -> None:
    async def body(app: App) -> None:
        await app.definitions.publish(PART % ("1.0.0", 1))
        await app.definitions.publish(PARENT % "9.9.9")
        run = await app.start("starting.parent", {"n": 10})
        with pytest.raises(ExecutionFailed, match=r"no workflow starting\.part@9\.9\.9") as error:
            await run.result(20)
        assert error.value.details["type"].endswith("/configuration")
        assert error.value.details["instance"] == "/do/0/inner"

    on_memory(body)


def test_what_is_not_awaited_lives_on_its_own() -> None:
    text = (PARENT % "latest").replace("      run:\n", "      run:\n        await: false\n")

    async def body(app: App) -> None:
        await app.definitions.publish(PART % ("1.0.0", 1))
        await app.definitions.publish(text)
        run = await app.start("starting.parent", {"n": 10}, id="alone")
        assert await run.result(20) == {"n": 10}
        [started] = [id_of(one.key) for one in (await app.find(workflow="starting.part")).heads]
        assert started.startswith("alone.")
        assert await app.get(started).result(20) == {"n": 11}

    on_memory(body)


@pytest.mark.parametrize(
    ("event", "started"),
    [
        ({"type": "starting.paid", "source": "/shop", "data": {"amount": 11}}, True),
        ({"type": "starting.paid", "source": "/shop", "data": {"amount": 9}}, False),
        ({"type": "starting.paid", "source": "/other", "data": {"amount": 11}}, False),
        ({"type": "starting.sent", "source": "/any", "subject": "parcel", "data": {"amount": 1}}, True),
        ({"type": "starting.sent", "source": "/any", "data": {"amount": 1}}, False),
    ],
)
def test_events_start_a_document_that_names_them(event: dict[str, Any], started: bool) -> None:
    async def body(app: App) -> None:
        await app.definitions.publish(HEARS)
        routed = await app.route({"specversion": "1.0", "id": "1", **event})
        assert len(routed.started) == started
        for id in routed.started:
            assert await app.get(id).result(20) == event["data"]

    on_memory(body)


@pytest.mark.parametrize(
    ("schedule", "where"),
    [
        ("{every: PT1M}", "/schedule/every"),
        ("{cron: '0 0 * * *'}", "/schedule/cron"),
        ("{after: PT1M}", "/schedule/after"),
        ("{on: {all: [{with: {type: a}}, {with: {type: b}}]}}", "/schedule/on"),
        ("{on: {one: {with: {type: '${ .x }'}}}}", "/schedule/on/one/with/type"),
        ("{on: {one: {with: {type: a, data: '${ .x | }'}}}}", "/schedule/on/one/with/data"),
        ("{on: {one: {with: {type: a}, correlate: {x: {from: .y}}}}}", "/schedule/on/one/correlate"),
        ("{never: 1}", "/schedule/never"),
    ],
)
def test_what_cannot_start_a_document_is_refused_with_its_place(schedule: str, where: str) -> None:
    body = reading.read(PART % ("1.0.0", 1) + f"schedule: {schedule}\n")
    assert where in [problem.where for problem in check(body) if problem.level == "error"]
