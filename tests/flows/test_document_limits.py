"""What keeps a document within bounds: circles, checkpoints, sizes; and what becomes of time and events there."""

from __future__ import annotations

import time
from typing import Any

import pytest

from perdure import action
from perdure.core import events as ev
from perdure.core.replay import Replay
from perdure.flows import described
from perdure.flows.document import plan
from perdure.testing import World
from tests.corpus.drive import Case, Drive
from tests.corpus.workflows import CORPUS, Member
from tests.flows.documenting import document, listed, settled

done: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@action
async def doc_reserve(n: int) -> int:
    done.append(n)
    return n


@doc_reserve.undo
async def doc_release(n: int, result: int) -> None:
    done.append(-n)


def circle(rounds: int, *tasks: dict[str, Any]) -> dict[str, Any]:
    """Tasks that go round and round; the number is in `.n`."""
    inner = {name: one for task in tasks for name, one in task.items()}
    more = {"switch": [{"yes": {"when": f".n < {rounds}", "then": "count"}}]}
    return {"count": {"set": {"n": "${ .n + 1 }"}, "export": {"as": "$context + {n: .n}"}}, **inner, "more": more}


NAP = {"nap": {"wait": "PT1S"}}


async def test_a_circle_without_any_rest_is_stuck_and_says_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described, "MOST_AT_ONCE", 500)
    run = await world.start(document({"a": {"set": {"n": 1}}, "b": {"set": {"n": 2}, "then": "a"}}))
    assert await run.until("stuck") == "stuck"
    stuck = (await run.state()).stuck
    assert stuck is not None
    assert "500 of its parts have settled in one turn, the last one task /do/" in stuck.reason
    assert "put something into the circle that waits" in stuck.reason


async def test_a_try_that_never_gives_up_and_never_waits_is_stuck(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(described, "MOST_AT_ONCE", 500)
    bad = listed(bad={"raise": {"error": {"type": "about:no", "status": 400}}})
    run = await world.start(document({"one": {"try": bad, "catch": {"retry": {}}}}))
    assert await run.until("stuck") == "stuck"


async def test_a_circle_that_rests_may_go_on_for_as_long_as_it_likes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(described, "MOST_AT_ONCE", 50)
    run = await world.start(document(circle(100, NAP)), {"n": 0})
    assert await run.result() == {"n": 100}


def long_log(rounds: int) -> tuple[Any, list[Any]]:
    made = document(circle(rounds, NAP))
    CORPUS["long"] = Member("long", made, (), ({"n": 0},))
    try:
        return made, Drive(Case("long", 1, noise=False)).run(2 * rounds + 10).rows
    finally:
        del CORPUS["long"]


def test_ten_thousand_rounds_replay_from_the_newest_checkpoint_in_no_time() -> None:
    made, rows = long_log(10_000)
    assert isinstance(ev.read(rows[-1]), ev.Completed)
    newest = max(place for place, row in enumerate(rows) if isinstance(ev.read(row), ev.Restarted))
    tail = rows[newest:]
    assert len(tail) < 1_000 < len(rows)
    began = time.perf_counter()
    replay = Replay("corpus/run", made)
    replay.load(tail)
    assert replay.outcome is not None
    assert time.perf_counter() - began < 2


async def test_what_was_exported_and_what_came_in_is_there_after_a_checkpoint(world: World) -> None:
    tell = {"tell": {"set": {"n": "${ .n }", "of": "${ $workflow.input.n }", "at": "${ $workflow.startedAt.iso8601 }"}}}
    run = await world.start(document(circle(100, NAP) | tell, output={"as": ". + $context"}), {"n": 0, "kept": True})
    assert await run.result() == {"n": 100, "kept": True, "of": 0, "at": "2030-01-01T00:00:00.000Z"}
    assert any(entry.type == "Restarted" for entry in await run.log())


async def test_events_that_nobody_has_taken_outlive_a_checkpoint(world: World) -> None:
    hear = {"hear": {"listen": {"to": {"one": {"with": {"type": "paid"}}}}}}
    run = await world.start(document(circle(100, NAP) | hear), {"n": 0})
    await run.send("paid", 7)
    assert await run.result() == [7]
    assert any(entry.type == "Restarted" for entry in await run.log())


async def test_what_was_done_before_a_checkpoint_is_still_undone(world: World) -> None:
    tasks = {"first": {"call": "doc_reserve", "with": [1], "output": {"as": "{n: 0}"}}, **circle(60, NAP)}
    bad = {"bad": {"raise": {"error": {"type": "about:no", "status": 400}}}}
    run = await world.start(document({**tasks, **bad}), {})
    await run.until("failed")
    assert any(entry.type == "Restarted" for entry in await run.log())
    assert done == [1, -1]


async def test_the_timeout_of_a_workflow_counts_from_its_beginning_whatever_checkpoints_there_are(world: World) -> None:
    run = await world.start(document(circle(1_000, NAP), timeout={"after": "PT150S"}), {"n": 0})
    await run.until("failed")
    assert any(entry.type == "Restarted" for entry in await run.log())
    error = (await run.state()).error
    assert error is not None and error.type.endswith("/timeout")
    assert (world.now().minute, world.now().second) == (2, 30)


async def test_data_that_the_log_would_not_take_makes_it_stuck_and_says_which_task(world: World) -> None:
    async with World(payload_bytes=20_000) as small:
        made = document({"grow": {"set": {"text": '${ "x" * 30000 }'}}})
        run = await small.start(made, {})
        assert await run.until("stuck") == "stuck"
        stuck = (await run.state()).stuck
        assert stuck is not None
        assert "the data of task /do/0/grow has 30," in stuck.reason


async def test_a_state_that_is_too_large_is_not_written_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LARGEST", 1_000)
    tasks = circle(120, NAP)
    tasks["count"] = {"set": {"n": "${ .n + 1 }", "text": '${ .text // ("x" * 2000) }'}}
    run = await world.start(document(tasks, output={"as": ".n"}), {"n": 0})
    assert await run.result() == 120
    assert not any(entry.type == "Restarted" for entry in await run.log())


async def test_names_with_slashes_and_tildes_are_escaped_in_paths(world: World) -> None:
    run = await world.start(document({"a/b~c": {"set": {"n": 1}}}))
    await run.result()
    assert list((await run.state()).nodes) == ["/do/0/a~1b~0c"]
    assert await settled(world, run) == [("a~1b~0c", "completed")]
