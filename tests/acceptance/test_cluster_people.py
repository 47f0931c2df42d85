"""People do what machines, graphs and workflows ask, on PostgreSQL and Redis with two workers, one of them killed.

Every run has two questions: one that is answered, after a form that is filled in wrongly, and one that time answers.
What the fleet did, tasks and all, is run once more in memory with what came in, and must look as it does in a world of
virtual time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from perdure import Perdure, Run
from perdure.core import summary
from perdure.core.records import PERSON, PUBLISHED, Query, id_of
from perdure.errors import EventRefused, FormInvalid
from perdure.flows.registry import registry
from perdure.runtime.managing.tasks import Task
from perdure.testing import World, run as in_virtual_time
from perdure.testing.invariants import check_log
from tests.acceptance import cluster_flows
from tests.acceptance.cluster import Cluster, results, rows_of, until
from tests.acceptance.cluster_flows import reviewed, work
from tests.corpus.scenes import Sight, retrace, sight

FORM = {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}
MACHINE: dict[str, Any] = {
    "machine": "fleet-approval",
    "initial": "new",
    "states": {
        "new": {"entry": [{"action": "work", "with": {"step": "weigh"}}], "on": {"send": "review"}},
        "review": {
            "person": {"task": "approve it", "form": FORM, "roles": ["boss"], "with": "${ .data.n }"},
            "done": {"to": "unsigned", "when": "${ .event.payload.ok }", "set": {"by": "${ .event.by }"}},
        },
        "unsigned": {
            "entry": [{"action": "work", "with": {"step": "pack"}}],
            "person": {"task": "sign it", "due": "PT0.3S"},
            "done": "over",
            "after": {"PT0.3S": {"to": "over", "set": {"late": True}}},
        },
        "over": {"final": True},
    },
}
GRAPH: dict[str, Any] = {
    "graph": "fleet-questions",
    "nodes": [
        {"id": "start", "type": "trigger"},
        {"id": "ask", "type": "person", "data": {"task": "approve it", "form": FORM, "roles": ["boss"]}},
        {"id": "pack", "type": "action", "data": {"action": "work", "with": {"step": "pack"}}},
        {"id": "sign", "type": "person", "data": {"task": "sign it", "timeout": "300ms"}},
        {"id": "remind", "type": "action", "data": {"action": "work", "with": {"step": "remind"}}},
        {"id": "end", "type": "end", "data": {"result": "${ [.outputs.ask, .outputs.remind] }"}},
    ],
    "edges": [
        {"source": "start", "target": "ask"},
        {"source": "ask", "target": "pack"},
        {"source": "pack", "target": "sign"},
        {"source": "sign", "target": "end"},
        {"source": "sign", "sourceHandle": "timeout", "target": "remind"},
        {"source": "remind", "target": "end"},
    ],
}
COUNT = 5
Begin: TypeAlias = Callable[[Perdure, str], Awaitable[Run[Any]]]
#: How one of each kind looks at its end: what was seen of the execution, and of its tasks.
Sights: TypeAlias = tuple[Sight, list[Sight]]


@pytest.fixture(autouse=True)
def _that_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing looks for the action by its name, which local ones of other tests may have, too."""
    monkeypatch.setitem(registry._actions, "work", [work])


async def a_machine(app: Perdure, id: str) -> Run[Any]:
    run = await app.start("fleet-approval", {"n": 3}, id=id)
    await run.send("send", id="send", by="bob")
    return run


async def a_graph(app: Perdure, id: str) -> Run[Any]:
    return await app.start("fleet-questions", None, id=id)


async def a_workflow(app: Perdure, id: str) -> Run[Any]:
    return await app.start(reviewed, id=id)


KINDS: dict[str, tuple[Begin, Any]] = {
    "machine": (a_machine, {"n": 3, "by": "ann", "late": True}),
    "graph": (a_graph, [{"ok": True}, "remind"]),
    "workflow": (a_workflow, [True, "nobody signed"]),
}


async def claimed(app: Perdure, run: Run[Any]) -> Task:
    """Ann has the first task; Eve, who is no boss, cannot have it, and nobody else once Ann has it."""
    found: list[Task] = []

    async def there() -> bool:
        found[:] = (await app.tasks.list(role="boss", execution=run.id)).tasks
        return bool(found)

    await until(there, "it asks")
    [task] = found
    with pytest.raises(EventRefused, match="not for eve"):
        await app.tasks.claim(task.id, by="eve", event_id="eve", wait="20s")
    taken = await app.tasks.claim(task.id, by="ann", roles=["boss"], event_id="claim", wait="20s")
    assert (taken.status, taken.claimed_by) == ("claimed", "ann")
    return taken


async def handed_in(app: Perdure, task: Task) -> None:
    complete = partial(app.tasks.complete, task.id, by="ann", event_id="complete", wait="20s")
    with pytest.raises(FormInvalid, match="not filled in"):
        await complete({"ok": "yes"})
    with pytest.raises(EventRefused, match="ann has claimed it"):
        await app.tasks.complete(task.id, {"ok": True}, by="cat", roles=["boss"], event_id="cat", wait="20s")
    assert (await complete({"ok": True})).status == "completed"
    assert (await complete({"ok": True})).completed_by == "ann"  # the same once more is the same


async def seen(app: Perdure, run: Run[Any]) -> Sights:
    """The execution and its tasks, each as it is and as it comes out in memory."""
    await until(partial(_all_ended, app, run), "all tasks have ended")
    heads = await app.store.find(Query(app.tenant, workflow=PERSON, parent=run.key))
    tasks = [app.get(id_of(head.key)) for head in heads]
    found = [await _retraced(app, one) for one in (run, *tasks)]
    return found[0], sorted(found[1:], key=lambda one: str(one.published["title"]))


async def _all_ended(app: Perdure, run: Run[Any]) -> bool:
    page = await app.tasks.list(execution=run.id)
    return all(task.status not in ("open", "claimed") for task in page.tasks)


async def _retraced(app: Perdure, run: Run[Any]) -> Sight:
    head, rows = await run.head(), await rows_of(run)
    check_log(rows, run.key)
    data = head.definition.startswith(PUBLISHED)
    workflow = await app.described(run.key, await run.state()) if data else registry.find(head.definition)
    assert workflow is not None
    status, result, _ = summary.ended(retrace(run.key, workflow, rows).outcome)
    assert (head.status, head.result) == (status, result)
    found = sight(head, rows)
    # When exactly a task is due depends on when it began.
    return replace(found, published={**found.published, "due": found.published.get("due") is not None})


async def published(app: Perdure) -> None:
    for body in (MACHINE, GRAPH):
        await app.definitions.publish(body)


async def played(app: Perdure, begin: Begin, ids: Sequence[str], between: Callable[[], None]) -> list[Run[Any]]:
    """All of them ask, all are claimed, something happens, all are answered."""
    runs = [await begin(app, id) for id in ids]
    tasks = await asyncio.gather(*(claimed(app, run) for run in runs))
    between()
    await asyncio.gather(*(handed_in(app, task) for task in tasks))
    return runs


def nothing() -> None:
    pass


def in_memory(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Sights:
    monkeypatch.setattr(cluster_flows, "LEDGER", str(folder / "memory.jsonl"))
    begin, end = KINDS[kind]

    async def main() -> Sights:
        async with World() as world:
            await published(world.app)
            [run] = await played(world.app, begin, ["one"], nothing)
            assert await run.result() == end
            return await seen(world.app, run)

    return in_virtual_time(main())


@pytest.mark.parametrize("killed", [False, True], ids=["calm", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_people_do_on_a_fleet_is_what_they_do_in_memory(
    kind: str, killed: bool, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, _ = cluster.grow(2)
    begin, end = KINDS[kind]

    async def main() -> list[Sights]:
        async with cluster.app() as app:
            await published(app)
            ids = [f"{kind}-{number}" for number in range(COUNT)]
            runs = await played(app, begin, ids, partial(victim.signal, signal.SIGKILL) if killed else nothing)
            assert await results(runs) == [end] * COUNT
            return [await seen(app, run) for run in runs]

    expected = in_memory(kind, tmp_path, monkeypatch)
    assert [one.status for one in expected[1]] == ["completed", "failed" if kind == "workflow" else "cancelled"]
    assert asyncio.run(main()) == [expected] * COUNT
