"""Machines and graphs, published while a fleet runs: on PostgreSQL and Redis, with two workers, one of them killed."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from perdure import Perdure, Run
from perdure.core import events as ev
from perdure.flows.registry import registry
from tests.acceptance.cluster import Cluster, check, results, rows_of, until
from tests.acceptance.cluster_flows import work
from tests.acceptance.conftest import Make

MACHINE: dict[str, Any] = {
    "machine": "fleet-machine",
    "initial": "new",
    "states": {
        "new": {
            "on": {
                "pay": {
                    "to": "paid",
                    "do": [
                        {"action": "work", "with": {"step": "reserve"}, "name": "reserve"},
                        {"action": "work", "with": {"step": "charge"}, "name": "charge"},
                        {
                            "action": "work",
                            "with": {"step": "pack"},
                            "name": "pack",
                            "after": ["reserve", "charge"],
                            "set": {"packed": "${ .result }"},
                        },
                    ],
                }
            }
        },
        "paid": {
            "after": {"PT0.2S": {"to": "late"}},
            "on": {"ship": {"to": "sent", "roles": ["packer"]}},
        },
        "late": {
            "entry": [{"action": "work", "with": {"step": "remind"}}],
            "on": {"ship": {"to": "sent", "roles": ["packer"], "set": {"by": "${ .event.by }"}}},
        },
        "sent": {"final": True},
    },
}
GRAPH: dict[str, Any] = {
    "graph": "fleet-graph",
    "nodes": [
        {"id": "start", "type": "trigger"},
        {"id": "both", "type": "parallel"},
        {"id": "left", "type": "action", "data": {"action": "work", "with": {"step": "left"}}},
        {"id": "nap", "type": "delay", "data": {"duration": "PT0.15S"}},
        {"id": "rest", "type": "delay", "data": {"duration": 100, "unit": "milliseconds"}},
        {"id": "right", "type": "action", "data": {"action": "work", "with": {"step": "right"}}},
        {"id": "met", "type": "join"},
        {"id": "each", "type": "loop", "data": {"items": "${ .trigger.items }", "mode": "parallel", "limit": 2}},
        {"id": "pack", "type": "action", "data": {"action": "work", "with": {"step": "${ \"pack-\" + .item }"}}},
        {"id": "go", "type": "wait", "data": {"events": [{"name": "go"}], "mode": "any"}},
        {"id": "end", "type": "end", "data": {"result": "${ .outputs.each }"}},
    ],
    "edges": [
        {"source": "start", "target": "both"},
        {"source": "both", "target": "left"},
        {"source": "both", "target": "right"},
        {"source": "right", "target": "rest"},
        {"source": "left", "target": "nap"},
        {"source": "nap", "target": "met"},
        {"source": "rest", "target": "met"},
        {"source": "met", "target": "each"},
        {"source": "each", "sourceHandle": "each", "target": "pack"},
        {"source": "pack", "target": "each"},
        {"source": "each", "sourceHandle": "done", "target": "go"},
        {"source": "go", "target": "end"},
    ],
}  # fmt: skip
COUNT = 40


@pytest.fixture(autouse=True)
def _that_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing looks for the action by its name, which local ones of other tests may have, too."""
    monkeypatch.setitem(registry._actions, "work", [work])


async def machines(app: Perdure) -> list[Run[Any]]:
    runs = [await app.start("fleet-machine", {"n": n}, id=f"machine-{n}") for n in range(COUNT)]
    await asyncio.gather(*(run.send("pay", id="pay") for run in runs))
    return runs


async def graphs(app: Perdure) -> list[Run[Any]]:
    return [await app.start("fleet-graph", {"items": ["a", "b", "c"]}, id=f"graph-{n}") for n in range(COUNT)]


@pytest.fixture(params=["redis", "postgres"])
def fleet(request: pytest.FixtureRequest, make: Make, redis_url: str) -> Cluster:
    return make(redis_url if request.param == "redis" else "")


def test_machines_and_graphs_survive_the_death_of_a_worker(fleet: Cluster) -> None:
    victim, _ = fleet.grow(2)

    async def main() -> None:
        async with fleet.app() as app:
            for body in (MACHINE, GRAPH):
                await app.definitions.publish(body)
            runs = await machines(app)
            walks = await graphs(app)
            await until(lambda: len(fleet.ledger.calls()) > COUNT, "they are under way")
            victim.signal(signal.SIGKILL)
            fleet.grow(1)

            async def late() -> bool:
                return len((await app.find(state="late", limit=COUNT)).heads) == COUNT

            await until(late, "nobody has shipped in time", 40)
            await asyncio.gather(*(run.send("ship", id="ship", by="pat", roles=["packer"]) for run in runs))
            await asyncio.gather(*(run.send("go", id="go") for run in walks))
            assert await results(runs) == [{"n": n, "packed": "pack", "by": "pat"} for n in range(COUNT)]
            assert await results(walks) == [["pack-a", "pack-b", "pack-c"]] * COUNT
            await check(fleet, [*runs, *walks])
            for run in runs:
                changed = [e for row in await rows_of(run) if isinstance(e := ev.read(row), ev.StateChanged)]
                assert [one.to_state for one in changed] == ["new", "paid", "late", "sent"]

    asyncio.run(main())
    steps = {call["step"] for call in fleet.ledger.calls()}
    assert steps == {"reserve", "charge", "pack", "remind", "left", "right", "pack-a", "pack-b", "pack-c"}


def test_a_running_machine_stays_on_its_version_and_goes_on_with_another_on_request(make: Make, redis_url: str) -> None:
    fleet = make(redis_url)
    fleet.grow(2)
    newer = {**MACHINE, "states": {**MACHINE["states"], "late": {"on": {"ship": "sent", "drop": "sent"}}}}

    async def main() -> None:
        async with fleet.app() as app:
            first = await app.definitions.publish(MACHINE)
            old, moved = [await app.start("fleet-machine", {}, id=id) for id in ("old", "moved")]
            await asyncio.gather(*(run.send("pay") for run in (old, moved)))

            async def late(run: Run[Any]) -> bool:
                return (await run.state()).current == "late" and await run.status() == "waiting"

            for run in (old, moved):
                await until(lambda run=run: late(run), "it is late")
            second = await app.definitions.publish(newer)
            assert (first.version, second.version) == (1, 2)
            await moved.migrate(2, by="ops", timeout="20s")
            await moved.send("drop")
            await moved.result(timeout=20)
            await old.send("ship", by="pat", roles=["packer"])
            await old.result(timeout=20)
            states = [await run.state() for run in (old, moved)]
            assert [state.definition for state in states] == ["published:fleet-machine@1", "published:fleet-machine@2"]
            fresh = await app.start("fleet-machine", {}, id="fresh")
            assert (await fresh.head()).definition == "published:fleet-machine@2"

    asyncio.run(main())
