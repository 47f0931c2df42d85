"""Executions of one definition that run among each other: what is one's own is found nowhere but at home."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from perdure import Do, Machine, Retry, Run, State, To, action, event, workflow
from perdure.runtime.telemetry.logs import JsonLines
from perdure.testing import World
from tests.flows.making import graph

COUNT = 100
MARK = re.compile(r"m\d{3}x")
log = logging.getLogger("perdure.isolation-test")


class Lines(logging.Handler):
    """What the processes would write, by the execution that a line names."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonLines())
        self.marks: dict[str, set[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.marks.setdefault(json.loads(line).get("execution", ""), set()).update(MARK.findall(line))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, ours = Lines(), logging.getLogger("perdure")
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel("DEBUG")
    yield handler
    ours.removeHandler(handler)
    ours.setLevel(before)


@action(name="isolation.note", retries=Retry(attempts=3, first="1s"))
async def note(mark: str, step: str) -> dict[str, str]:
    log.info("noting %s of %s", step, mark)
    await asyncio.sleep(0.5)
    if step == "second" and action.attempt == 1:
        raise OSError(f"not yet, {mark}")
    action.heartbeat({"of": mark})
    return {"mark": mark, "step": step}


@workflow(name="isolation.code")
async def code(mark: str) -> Any:
    workflow.publish(mark=mark)
    workflow.log.info("it is %s", mark)
    first = await note(mark, "first")
    both = await asyncio.gather(event("go"), note(mark, "second"))
    await asyncio.sleep(30)
    return [first, both, await leaf(mark)]


@workflow(name="isolation.leaf")
async def leaf(mark: str) -> dict[str, str]:
    return await note(mark, "leaf")


def acts(step: str) -> tuple[str, dict[str, Any]]:
    return "action", {"action": "isolation.note", "with": {"mark": "${ .trigger }", "step": step}}


GRAPH = graph(
    "isolation-graph",
    {
        "start": "trigger",
        "keep": ("set", {"variables": {"mark": "${ .trigger }"}}),
        "fork": "parallel",
        "first": acts("first"),
        "go": ("wait", {"events": [{"name": "go"}]}),
        "second": acts("second"),
        "join": "join",
        "nap": ("delay", {"duration": 30}),
        "end": ("end", {"result": "${ [.variables, .outputs] }"}),
    },
    "start > keep > fork > first > join",
    "fork > go > second > join > nap > end",
)
MACHINE: Machine[Any] = Machine(
    "isolation-machine",
    initial="new",
    publish=["mark"],
    states={
        "new": State(
            entry=[
                Do(note, lambda data, event: (data["mark"], "first"), name="first"),
                Do(note, lambda data, event: (data["mark"], "second"), name="second"),
            ],
            after={"40s": To("late")},
            on={"go": To(set=lambda data, event: {**data, "go": event.payload})},
        ),
        "late": State(final=True),
    },
)


async def home(world: World, run: Run[Any]) -> bytes:
    """All that is stored and shown of an execution, and of its children."""
    found = b""
    for head in await world.heads():
        if run.key in (head.key, head.parent):
            rows = await world.rows(head.key)
            state = await world.app.get(head.key.partition("/")[2]).state()
            found += msgspec.json.encode([head, [row.data.decode() for row in rows], state])
    return found


@pytest.mark.world(workers=3)
@pytest.mark.parametrize("kind", ["code", "graph", "machine"])
async def test_nothing_of_one_execution_is_found_in_another_or_in_its_lines(
    world: World, kind: str, lines: Lines
) -> None:
    made: Any = {"code": code, "graph": GRAPH, "machine": MACHINE}[kind]
    dice = Random(kind)
    marks = [f"m{number:03}x" for number in range(COUNT)]
    runs = [await world.start(made, {"mark": mark} if kind == "machine" else mark) for mark in marks]
    await world.advance("300ms")
    order = list(zip(runs, marks, strict=True))
    dice.shuffle(order)
    for number, (run, mark) in enumerate(order):
        await run.send("go", {"of": mark}, by=f"user of {mark}")
        await asyncio.sleep(dice.random() / 100)
        if number == COUNT // 2:
            await world.crash()
    await world.advance("20s")
    resting = [await home(world, run) for run in runs]
    results = await asyncio.gather(*(run.result() for run in runs))
    for mark, run, result, rested in zip(marks, runs, results, resting, strict=True):
        for text in (rested, await home(world, run), msgspec.json.encode(result)):
            assert set(MARK.findall(text.decode())) == {mark}
        said = lines.marks.pop(run.id)
        assert said == {mark}, f"{run.id} of {mark}"
        assert lines.marks.pop(f"{run.id}.4", {mark}) == {mark}
    assert not set().union(*lines.marks.values()), "no line of nobody, or of somebody else, has a mark"
