"""What is data in the corpus at work: with a store and workers, crashed wherever that is possible."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure import Run
from perdure.core import events as ev
from perdure.core.records import ENDED, Row
from perdure.testing import World
from tests.corpus import workflows
from tests.corpus.drive import Broken
from tests.corpus.scenes import LONG, NAMES, Sight, play, retrace, scene, sight, start, unanswered, unlucky
from tests.corpus.workflows import CORPUS

#: A crash takes less than the shortest timer, and what waits for one is not held: then there are fewer calls to crash.
QUICK: dict[str, Any] = {"lease": 0.2, "grace": 0.1, "probe": 0.2, "linger": 0}


async def seen(world: World, name: str) -> tuple[Sight, list[Row]]:
    run = await start(world.app, name, "run")
    await play(run, scene(name))
    await run.until(*ENDED)
    rows = await world.rows(run.key)
    return sight(await run.head(), rows), rows


@pytest.mark.parametrize("name", [name for name in NAMES if scene(name).steady])
async def test_it_does_not_matter_how_many_workers_there_are_and_what_they_remember(name: str, world: World) -> None:
    alone, rows = await seen(world, name)
    retrace("default/run", CORPUS[name].workflow, rows)
    async with World(workers=3, replay_always=False, linger=0) as crowd:
        together, rows = await seen(crowd, name)
        retrace("default/run", CORPUS[name].workflow, rows)
    assert together == alone


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LONG])
async def test_a_crash_at_any_store_call_changes_nothing(name: str, world: World) -> None:
    await crash_everywhere(name, "plain")


@pytest.mark.parametrize(
    "name", ["machine_of_undos", "machine_of_parts", "graph_of_splits", "graph_of_undos", "document_that_undoes"]
)
async def test_a_crash_at_any_store_call_changes_nothing_when_actions_fail(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "happenings", [unlucky])
    await crash_everywhere(name, "unlucky")


async def crash_everywhere(name: str, id: str) -> None:
    member = CORPUS[name]

    async def send(run: Run[Any]) -> None:
        await play(run, unanswered(name))  # how soon an answer comes would depend on the crash

    async def check(run: Run[Any]) -> None:
        retrace(run.key, member.workflow, [row async for row in run.rows()])

    async with World(**QUICK) as world:
        steady = scene(name).steady
        report = await world.crash_everywhere(
            member.workflow, *member.args, send=send, check=check, id=id, same_inputs=steady
        )
        assert report.runs > 10


# --- the tests can fail ----------------------------------------------------------------------------------------------


async def test_a_log_with_another_state_cannot_be_retraced(world: World) -> None:
    _, rows = await seen(world, "machine_of_events")
    place = next(index for index, row in enumerate(rows) if isinstance(ev.read(row), ev.StateChanged))
    rows[place] = ev.row(ev.StateChanged("", "b"), rows[place].version, rows[place].at)
    with pytest.raises(Broken, match=f"default/run, row {place + 1}:\n log .*'b'"):
        retrace("default/run", CORPUS["machine_of_events"].workflow, rows)


async def test_a_log_without_one_of_its_inputs_cannot_be_retraced(world: World) -> None:
    _, rows = await seen(world, "graph_of_actions")
    fewer = [row for row in rows if not isinstance(ev.read(row), ev.ActionSettled)]
    with pytest.raises(Broken):
        retrace("default/run", CORPUS["graph_of_actions"].workflow, fewer)


async def test_a_log_that_ends_otherwise_cannot_be_retraced(world: World) -> None:
    _, rows = await seen(world, "graph_of_actions")
    rows[-1] = ev.row(ev.Completed(msgspec.Raw(b"1")), rows[-1].version, rows[-1].at)
    with pytest.raises(Broken):
        retrace("default/run", CORPUS["graph_of_actions"].workflow, rows)
