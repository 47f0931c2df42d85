"""Logs of the engine's own workflows, as a release has written them: later releases must go on with them.

Never change a file in tests/logs/inner: schedules live for years. What writes them at first:
python -m tests.runtime.test_inner_logs
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import event, workflow
from perdure.core import copies, events as ev
from perdure.core.replay import Replay
from perdure.flows import bulk, schedule
from perdure.flows.registry import registry
from perdure.testing import World, run

FOLDER = Path(__file__).parents[1] / "logs/inner"


@workflow(name="inner-logs")
async def waits(colour: str) -> None:
    workflow.publish(colour=colour)
    await event("go")


async def a_schedule(world: World) -> str:
    """One that did everything, over several rounds."""
    schedules = world.app.schedules
    await schedules.create("daily", waits, ["red"], cron="30 2 * * *", timezone="Europe/Berlin", jitter="5m")
    await world.advance("60h")
    await schedules.pause("daily", by="ann")
    await world.advance("24h")
    await schedules.resume("daily")
    await schedules.trigger("daily", id="by-hand", overlap="all")
    await schedules.update("daily", every="6h", overlap="cancel_old", args=["blue"])
    await world.advance("25h")
    return "schedule/daily"


async def a_deleted_schedule(world: World) -> str:
    await world.app.schedules.create("hourly", waits, ["red"], every="1h", overlap="queue", catch_up="all")
    await world.advance("90m")
    await world.app.schedules.delete("hourly", by="ann")
    await world.advance("1s")
    return "schedule/hourly"


async def a_bulk_operation(world: World) -> str:
    for number in range(5):
        await world.start(waits, "red", id=f"r{number}")
    await world.settle()
    operation = await world.app.bulk.start("cancel", workflow="inner-logs", reason="enough", by="ann", id="operation")
    await operation.result()
    return operation.id


CASES: list[Callable[[World], Awaitable[str]]] = [a_schedule, a_deleted_schedule, a_bulk_operation]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_recorded_log_replays(file: Path) -> None:
    document: Any = json.loads(file.read_text())
    _, rows = copies.restore(document)
    first = ev.read(rows[0])
    assert isinstance(first, ev.Started)
    found = registry.find(f"{first.workflow}@{first.version}")
    assert found is not None
    starts = [0, *(number for number, row in enumerate(rows) if isinstance(ev.read(row), ev.Restarted))]
    for begin, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        replay = Replay(document["key"], found)
        replay.load(rows[begin:end])
        replay.evict()


def test_every_case_is_recorded() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {case.__name__ for case in CASES}


async def record(case: Callable[[World], Awaitable[str]]) -> None:
    async with World() as world:
        key = f"default/{await case(world)}"
        text = json.dumps(copies.export(key, "default", await world.rows(key)), indent=1)
        (FOLDER / f"{case.__name__}.json").write_text(text + "\n")


if __name__ == "__main__":
    schedule.ROUND = bulk.ROUND = 4
    FOLDER.mkdir(exist_ok=True)
    for one in CASES:
        if not (FOLDER / f"{one.__name__}.json").exists():
            run(record(one))
