"""A dry run of every machine and graph of the corpus goes the way of the real run, if its actions give the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.core import entries, events as ev
from perdure.core.entries import Entry
from perdure.core.records import ENDED, Row
from perdure.flows.registry import registry
from perdure.flows.rehearsal import Cue, Rehearsal, rehearse
from perdure.testing import World
from tests.corpus.scenes import NAMES, play, scene, start, unanswered
from tests.corpus.workflows import CORPUS

#: What actions give, here and there.
RESULTS = {
    "corpus.step": 9,
    "corpus.book": "ticket",
    "graphs.book": "ticket",
}
FAILS = {"corpus.fails": "ValueError: never"}
#: An undo gives nothing.
UNDOS = ("unbook", "graphs_unbook")


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RESULTS.items():
        monkeypatch.setattr(registry.action(name), "fn", lambda *args, _value=value, **named: _value)
    for name in FAILS:
        monkeypatch.setattr(registry.action(name), "fn", _never)


def _never(*args: Any) -> None:
    raise ValueError("never")


def cues(rows: Sequence[Row]) -> list[Cue]:
    """The events of a real run, at their times: just after what happened at the same moment."""
    found = []
    for row in rows:
        if isinstance(event := ev.read(row), ev.EventReceived):
            after = (row.at - rows[0].at + len(found) + 1) / 1e6
            found.append(Cue(event.name, event.payload, after, event.by, tuple(event.roles)))
    return found


def way(log: Sequence[Entry]) -> list[str]:
    """States in their order, then nodes, refusals and calls; what happens side by side has no order."""
    said = [(one.type, defaultdict(str, one.data)) for one in log]
    states = [
        f"{one['from_state']} > {one['to_state']} by {one['event']}" for kind, one in said if kind == "StateChanged"
    ]
    nodes = sorted(f"{one['node']} {one['status']}" for kind, one in said if kind == "NodeSettled")
    refused = [f"{one['name']}: {one['reason']}" for kind, one in said if kind == "EventRejected"]
    asked = sorted(f"{one['name']} {one['args']}" for kind, one in said if kind == "ActionSettled")
    return states + nodes + refused + asked


def children(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """What the children of a real run gave, by their workflows."""
    found: dict[str, list[Any]] = {}
    begun: dict[int, str] = {}
    for event in map(ev.read, rows):
        if isinstance(event, ev.ChildStarted):
            begun[event.ref] = event.workflow
        elif isinstance(event, ev.ChildSettled) and event.ref in begun:
            wrong = "" if event.error is None else event.error.type
            outcome = {"raises": wrong} if wrong else {"returns": event.result}
            found.setdefault(begun[event.ref], []).append(outcome)
    return found


def rehearsed(name: str, rows: Sequence[Row]) -> Rehearsal:
    given: dict[str, Any] = {one: {"returns": value} for one, value in RESULTS.items()}
    given |= {one: {"raises": why} for one, why in FAILS.items()} | {one: {"returns": None} for one in UNDOS}
    member = CORPUS[name]
    return rehearse(member.workflow, *member.args, results=given | children(rows), events=cues(rows), id="run")


#: Of those that end by themselves: in a dry run nobody is there to be asked.
WAYS = [name for name in NAMES if scene(name).steady and not scene(name).cancel and name != "graph_that_asks"]


@pytest.mark.parametrize("name", WAYS)
async def test_the_dry_run_goes_the_way_of_the_real_one(name: str, world: World, stubbed: None) -> None:
    # Given a real run
    run = await start(world.app, name, "run")
    await play(run, unanswered(name))
    await run.until(*ENDED)
    rows = await world.rows(run.key)
    # When it is rehearsed with what came in
    done = rehearsed(name, rows)
    # Then it goes the same way, to the same end
    assert done.needs == []
    assert way(done.log) == way(await run.log())
    assert done.status == await run.status()


def test_two_ways_can_be_told_apart() -> None:
    ways = [entries.entry(ev.row(ev.StateChanged("a", to, "go"), 1, 0)) for to in ("b", "c")]
    assert way(ways[:1]) != way(ways[1:])
