"""Every scenario of the conformance kit: in memory, on SQLite with the laws of replay, and with crashes everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Perdure
from perdure.core import events as ev
from perdure.core.records import Row
from perdure.errors import ExecutionCancelled, ExecutionFailed
from perdure.flows.document import Document, build
from perdure.runtime import app as application
from perdure.runtime.run import Run
from perdure.testing import World, run
from tests.conformance.features import FOLDER, SCENARIOS, Did, Scenario, Step, Went, check_step, scenarios
from tests.conformance.services import Here, services
from tests.corpus.drive import event_rows, replay_of, settle_outputs, text

FOUND = list(scenarios())
needs_kit = pytest.mark.skipif(not FOLDER, reason="PERDURE_TEST_CTK does not name the folder of the conformance kit")
each_scenario = pytest.mark.parametrize("scenario", FOUND, ids=str)
#: What a turn gives out; the rest of a log went in, or is the engine's bookkeeping.
OUTPUTS = (ev.NodeStarted, ev.NodeSettled, ev.TimerCancelled, ev.ActionCancelled, ev.ChildStarted, ev.Marked)
INPUTS = (ev.ActionSettled, ev.ChildSettled, ev.TimerFired, ev.EventReceived, ev.Completed, ev.Failed, ev.Cancelled)


async def executed(app: Perdure, scenario: Scenario) -> tuple[Went, list[Row]]:
    async with app, services() as elsewhere:
        app.outbound = elsewhere
        published = await app.definitions.publish(scenario.definition)
        async with app.working():
            execution = await app.start(published.name, scenario.input)
            status, result = await ended(execution)
        rows = [row async for row in execution.rows()]
        return Went(status, result, tasks_of(rows)), rows


async def ended(execution: Run[Any]) -> tuple[str, Any]:
    try:
        return "completed", await execution.result(timeout=20)
    except ExecutionFailed as error:
        return "failed", error.details
    except ExecutionCancelled as error:
        return "cancelled", str(error)


def tasks_of(rows: Sequence[Row]) -> list[Did]:
    """What the tasks did. One that others begin inside of is not in the list."""
    began: list[str] = []
    settled: dict[str, ev.NodeSettled] = {}
    for row in rows:
        match ev.read(row):
            case ev.NodeStarted(node=node):
                began.append(node)
            case ev.NodeSettled(node=node) as event:
                settled[node] = event
    plain = [node for node in began if not any(other.startswith(f"{node}/") for other in began)]
    return [
        Did(
            node.rpartition("/")[2],
            settled[node].status,
            msgspec.json.decode(settled[node].output),
            None if (error := settled[node].error) is None else msgspec.json.decode(error.details),
        )
        for node in plain
    ]


def obeys_the_laws(scenario: Scenario, rows: Sequence[Row]) -> None:
    """Every prefix of the log, replayed, gives out what the log has next, and the whole ends as it did."""
    definition = build(scenario.definition, version=1)
    for end in range(1, len(rows)):
        replay = replay_of(definition, rows[:end], "default/kit")
        given = [
            (type(one).__name__, text(msgspec.json.encode(one)))
            for one in settle_outputs(replay, end, rows[end - 1].at)
        ]
        coming: list[Row] = []
        for row in rows[end:]:
            if isinstance(ev.read(row), INPUTS):
                break
            if isinstance(ev.read(row), OUTPUTS):
                coming.append(row)
        assert given == event_rows(coming), f"from version {end} on"
        if isinstance(ev.read(rows[end]), ev.Completed | ev.Failed):
            assert replay.outcome is not None
            assert event_rows([ev.row(replay.outcome, end + 1, rows[end].at)]) == event_rows([rows[end]])
        replay.evict()


@needs_kit
def test_the_kit_is_there_as_a_whole() -> None:
    assert len([scenario for scenario in FOUND if scenario.file != "own"]) >= SCENARIOS


def test_a_step_that_does_not_hold_or_is_not_known_fails() -> None:
    went = Went("completed", {"a": [1]}, [Did("first", "completed"), Did("second", "failed")])
    wrong = [
        Step("the workflow should fault"),
        Step("the workflow should complete with output:", "a: [2]"),
        Step("the workflow output should have properties 'a', 'b.c'"),
        Step("the workflow output should have a 'a' property containing 2 items"),
        Step("second should run first"),
        Step("second should run before first"),
        Step("second should complete"),
        Step("the workflow should be quick"),
    ]
    for step in wrong:
        with pytest.raises(AssertionError):
            check_step(step, went)


@each_scenario
def test_a_scenario_holds_in_memory(scenario: Scenario) -> None:
    went, _ = asyncio.run(executed(Perdure("memory://"), scenario))
    scenario.check(went)


@each_scenario
def test_a_scenario_holds_on_sqlite_and_from_every_prefix_of_its_log(scenario: Scenario, tmp_path: Path) -> None:
    went, rows = asyncio.run(executed(Perdure(f"sqlite:///{tmp_path}/kit.db", replay_always=True), scenario))
    scenario.check(went)
    obeys_the_laws(scenario, rows)


@each_scenario
def test_a_scenario_holds_whichever_store_call_the_worker_dies_at(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "Outbound", lambda *_, **__: Here())
    body = scenario.definition
    body["document"]["name"] = f"kit-{FOUND.index(scenario)}"  # two scenarios have one name, and code has it once
    document = Document(body)

    async def check(execution: Run[Any]) -> None:
        status, result = await ended(execution)
        scenario.check(Went(status, result, tasks_of([row async for row in execution.rows()])))

    async def crash() -> None:
        async with World() as world:
            report = await world.crash_everywhere(document, scenario.input, check=check)
            assert report.points

    run(crash())
