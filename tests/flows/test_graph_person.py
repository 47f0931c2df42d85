"""Person nodes of graphs: each has a task, which people claim and complete, beside the event of the node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import ExecutionFailed, Run
from perdure.core import events as ev
from perdure.flows.graph import Graph
from perdure.runtime.managing.tasks import Task
from perdure.testing import World
from tests.flows.making import body, graph

FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def review(name: str, **data: Any) -> dict[str, Any]:
    asked = {"task": '${ "Approve " + .trigger }', "form": FORM, "roles": ["boss"], **data}
    nodes = {"start": "trigger", "approve": ("person", asked), "end": ("end", {"result": "${ .outputs.approve }"})}
    return body(name, nodes, "start > approve > end")


async def open_task(world: World, run: Run[Any]) -> Task:
    await world.settle()
    [task] = [one for one in (await world.app.tasks.list(execution=run.id)).tasks if one.status == "open"]
    return task


async def test_a_task_of_a_node_is_found_and_completed(world: World) -> None:
    made = Graph(review("person-node", assign="ada", priority=2, timeout="3d", **{"with": {"order": "${ .trigger }"}}))
    run = await world.start(made, "o-1", id="r")
    task = await open_task(world, run)
    assert (task.name, task.title, task.users, task.roles) == ("approve", "Approve o-1", ("ada",), ("boss",))
    assert (task.priority, task.execution) == (2, "r") and task.due is not None
    assert (await world.app.tasks.get(task.id)).data == {"order": "o-1"}
    assert [one.id for one in (await world.app.tasks.mine("bob", ["boss"])).tasks] == [task.id]
    await world.app.tasks.complete(task.id, {"ok": True}, by="bob", roles=["boss"])
    assert await run.result() == {"ok": True}


async def test_an_event_for_the_node_completes_it_and_withdraws_the_task(world: World) -> None:
    run = await world.start(Graph(review("person-event")), "o-1")
    task = await open_task(world, run)
    await run.send("approve", {"ok": False}, by="ada", roles=["boss"])
    assert await run.result() == {"ok": False}
    await world.settle()
    assert (await world.app.tasks.get(task.id)).status == "cancelled"


async def test_the_outcome_of_a_task_cannot_be_pretended(world: World) -> None:
    run = await world.start(Graph(review("person-false")), "o-1")
    task = await open_task(world, run)
    number = task.id.rpartition(".")[2]
    done = {"ref": int(number), "id": task.id, "result": {"ok": True}}
    await run.send(f"/child:{number}", done, by="eve")
    await world.settle()
    assert await run.status() == "waiting"
    rejected = [row for row in map(ev.read, await world.rows(run.key)) if isinstance(row, ev.EventRejected)]
    assert [one.reason for one in rejected] == ["this name is the engine's own"]
    await world.app.tasks.complete(task.id, {"ok": False}, by="bob", roles=["boss"])
    assert await run.result() == {"ok": False}


async def test_a_node_that_is_left_by_timeout_withdraws_its_task(world: World) -> None:
    made = graph(
        "person-late",
        {"start": "trigger", "ask": ("person", {"task": "?", "timeout": "3d"}), "late": ("end", {"result": "late"})},
        "start > ask:timeout > late",
    )
    run = await world.start(made)
    task = await open_task(world, run)
    assert await run.result() == "late"
    await world.settle()
    assert (await world.app.tasks.get(task.id)).status == "cancelled"
    assert (await world.app.tasks.list(status="open")).tasks == []


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_what_ends_the_graph_withdraws_its_tasks(world: World, how: str) -> None:
    made = graph(
        f"person-{how}",
        {
            "start": "trigger",
            "p": "parallel",
            "ask": ("person", {"task": "?"}),
            "go": ("wait", {"events": [{"name": "go"}]}),
            "end": ("end", {"stop": True}),
        },
        "start > p > ask",
        "p > go > end",
    )
    run = await world.start(made)
    task = await open_task(world, run)
    await (run.send("go") if how == "stop" else run.cancel())
    await world.settle()
    assert await run.status() in ("completed", "cancelled")
    assert (await world.app.tasks.get(task.id)).status == "cancelled"


async def test_a_task_that_somebody_cancels_fails_its_node(world: World) -> None:
    run = await world.start(Graph(review("person-gone")), "o-1")
    task = await open_task(world, run)
    await world.app.get(task.id).cancel("not needed")
    with pytest.raises(ExecutionFailed, match="not needed"):
        await run.result()


async def test_parallel_rounds_have_tasks_of_their_own(world: World) -> None:
    made = graph(
        "person-rounds",
        {
            "start": "trigger",
            "each": ("loop", {"items": ["a", "b"], "mode": "parallel"}),
            "ask": ("person", {"task": "${ .item }"}),
        },
        "start > each:each > ask > each",
    )
    run = await world.start(made)
    await world.settle()
    tasks = {one.title: one.id for one in (await world.app.tasks.list(status="open")).tasks}
    await world.app.tasks.complete(tasks["b"], 2)
    await world.app.tasks.complete(tasks["a"], 1)
    assert await run.result() == [1, 2]


async def test_a_task_outlives_a_checkpoint(world: World) -> None:
    made = graph(
        "person-lasting",
        {
            "start": "trigger",
            "p": "parallel",
            "ask": ("person", {"task": "?"}),
            "nap": ("delay", {"duration": "1s"}),
            "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
            "more": ("condition", {"when": ".variables.n < 60"}),
            "join": "join",
            "end": ("end", {"result": "${ [.outputs.ask, .variables.n] }"}),
        },
        "start > p > ask > join > end",
        "p > nap > count > more:true > nap",
        "more:false > join",
        variables={"n": 0},
    )
    run = await world.start(made)
    task = await open_task(world, run)
    await world.advance("2m")
    restarted = [row for row in map(ev.read, await world.rows(run.key)) if isinstance(row, ev.Restarted)]
    assert restarted and all(one.lasting == [int(task.id.rpartition(".")[2])] for one in restarted)
    assert [one.id for one in (await world.app.tasks.list()).tasks] == [task.id]
    assert list((await run.state()).children.values()) == [task.id]
    await world.crash()
    await world.app.tasks.complete(task.id, "at last")
    assert await run.result() == ["at last", 60]


async def migrated(world: World, name: str, **changed: Any) -> tuple[Run[Any], Task]:
    """An execution whose definition has been replaced while a person was asked."""
    await world.app.definitions.publish(review(name))
    run = await world.app.start(name, "o-1", id=name)
    task = await open_task(world, run)
    await world.app.definitions.publish(review(name, **changed))
    await run.migrate(2)
    return run, task


async def test_a_task_outlives_a_change_of_version(world: World) -> None:
    run, task = await migrated(world, "person-migrated", roles=["boss", "chief"])
    assert (await open_task(world, run)).id == task.id
    await world.app.tasks.complete(task.id, {"ok": True}, by="bob", roles=["boss"])
    assert await run.result() == {"ok": True}


async def test_what_does_not_fit_the_form_of_a_new_version_is_asked_once_more(world: World) -> None:
    changed = {**FORM, "required": ["ok", "why"]}
    run, task = await migrated(world, "person-reformed", form=changed)
    await world.app.tasks.complete(task.id, {"ok": True}, by="bob", roles=["boss"])
    again = await open_task(world, run)
    assert again.id != task.id and again.form_version != task.form_version
    await world.app.tasks.complete(again.id, {"ok": True, "why": "!"}, by="bob", roles=["boss"])
    assert await run.result() == {"ok": True, "why": "!"}


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_fork_asks_for_itself(world: World, checkpoint: bool) -> None:
    if checkpoint:
        run, task = await migrated(world, "person-forked", priority=1)
    else:
        run = await world.start(Graph(review("person-fork")), "o-1")
        task = await open_task(world, run)
    fork = await run.fork()
    own = await open_task(world, fork)
    assert own.id != task.id and own.execution == fork.id
    await world.app.tasks.complete(own.id, {"ok": True}, by="bob", roles=["boss"])
    assert await fork.result() == {"ok": True}
    assert (await world.app.tasks.get(task.id)).status == "open"


async def test_a_purged_execution_leaves_no_task(world: World) -> None:
    run, task = await migrated(world, "person-purged", priority=1)
    await run.cancel("away", now=True)
    await world.settle()
    assert await run.status() == "cancelled"
    assert (await world.app.tasks.get(task.id)).status == "cancelled"


async def test_a_crash_at_any_point_changes_nothing(world: World) -> None:
    async def answer(run: Run[Any]) -> None:
        tasks = run._app.tasks
        while not (page := await tasks.list(execution=run.id)).tasks:
            await asyncio.sleep(0.1)
        await tasks.complete(page.tasks[0].id, {"ok": True}, by="bob", roles=["boss"], event_id="e", wait="1h")

    report = await world.crash_everywhere(Graph(review("person-crash")), "o-1", send=answer)
    assert report.status == "completed"
