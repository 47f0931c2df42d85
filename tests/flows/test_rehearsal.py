"""Dry runs: the same path as the real thing, without any effect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import InvalidValue, action, event, workflow
from perdure.errors import UsageError
from perdure.flows.machine import build
from perdure.flows.registry import registry
from perdure.flows.rehearsal import Cue, rehearse
from perdure.testing import World
from tests.flows.test_machine import Request, approval, parallel
from tests.flows.test_machine_document import ORDER, seen


@action(name="rehearsal.ask")
async def ask(question: str) -> int:
    raise AssertionError("an action of a rehearsal is never run")


@workflow(name="rehearsal.code")
async def code(n: int) -> list[Any]:
    first = await ask("first")
    try:
        async with asyncio.timeout(3600):
            word = await event("word", str)
    except TimeoutError:
        word = "silence"
    return [n, first, await ask("second"), word]


def kinds(log: list[Any]) -> list[tuple[str, Any]]:
    """What a log says happened, without times, keys and numbers."""
    told = ("StateChanged", "ActionSettled", "EventReceived", "EventRejected", "TimerFired", "Completed", "Failed")
    return [
        (
            entry.type,
            {name: value for name, value in entry.data.items() if name not in ("began", "id", "due", "ref", "worker")},
        )
        for entry in log
        if entry.type in told
    ]


def test_code_is_rehearsed_with_given_results_and_virtual_time() -> None:
    done = rehearse(code, 7, results={"rehearsal.ask": [{"returns": 1, "takes": "1h"}, {"returns": 2}]})
    assert (done.status, done.result) == ("completed", [7, 1, 2, "silence"])
    assert (done.log[-1].at - done.log[0].at).total_seconds() == 7200
    heard = rehearse(code, 7, results={"rehearsal.ask": 1}, events=[Cue("word", "hello")])
    assert heard.result == [7, 1, 1, "hello"]


def test_an_action_without_a_given_result_ends_the_rehearsal_and_is_named() -> None:
    done = rehearse(code, 7)
    assert (done.status, done.needs) == ("waiting", ['rehearsal.ask("first")'])


def test_failures_can_be_given() -> None:
    done = rehearse(code, 7, results={"rehearsal.ask": {"raises": "ValueError: what?"}})
    assert done.status == "failed" and (done.result["type"], done.result["message"]) == ("ValueError", "what?")


def test_a_given_result_must_fit_the_action() -> None:
    with pytest.raises(InvalidValue, match="the result given for rehearsal.ask does not fit"):
        rehearse(code, 7, results={"rehearsal.ask": "one"})


def test_a_rehearsal_that_never_ends_is_called_off() -> None:
    @workflow(name="rehearsal.endless")
    async def endless() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(UsageError, match="did not end within 10,000 inputs"):
        rehearse(endless)


def test_what_it_waits_for_is_told() -> None:
    done = rehearse(approval, Request(5), results={"machine.note": "x"}, events=[Cue("submit")])
    assert done.status == "waiting" and done.state.current == "director"  # nobody came within a day
    assert done.waits["events"][0]["names"] == ["approve"]


async def test_a_rehearsal_takes_the_path_of_the_real_run(world: World) -> None:
    order = build({**ORDER, "machine": "rehearsed-order"})
    registry.add_workflow(order)
    seen.clear()
    first = {"items": ["tea"], "total": 10}
    results = {"document.reserve": {"shelf": 2}, "document.charge": "r-20", "document.tell": None}
    cues = [Cue("add", "milk"), Cue("pay", {"who": "ann"}), Cue("ship"), Cue("ship", by="pat", roles=("packer",))]
    done = rehearse(order, first, results={name: {"returns": one} for name, one in results.items()}, events=cues)
    assert seen == []
    run = await world.start(order, first)
    for cue in cues:
        await run.until("waiting")
        await run.send(cue.name, cue.payload, by=cue.by, roles=cue.roles)
    assert await run.result() == done.result
    assert kinds(done.log) == kinds(await run.log())
    assert ("EventRejected", {"name": "ship", "reason": "only packer may send it"}) in kinds(done.log)


def test_actions_side_by_side_take_their_time() -> None:
    results = {"machine.slow": {"returns": "x", "takes": "1s"}}
    done = rehearse(parallel, None, results=results, events=[Cue("go")])
    assert (done.log[-1].at - done.log[0].at).total_seconds() == 3
