"""States that ask people: the task is open as long as the state lasts, and its end is an event of the machine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Ask, Do, ExecutionFailed, InvalidValue, Machine, Run, State, To, action
from perdure.core import events as ev
from perdure.flows.machine import build, check
from perdure.flows.registry import registry
from perdure.flows.rehearsal import rehearse
from perdure.runtime.managing.tasks import Task
from perdure.testing import World

FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


@dataclass
class Answer:
    ok: bool


@dataclass
class Leave:
    who: str = "ann"
    days: int = 3
    by: str = ""


@action(name="asking.count")
async def count(days: int) -> int:
    return days + 10


def document(name: str, **person: Any) -> dict[str, Any]:
    """A machine that rests in `review`, from where three ways lead on."""
    asked = {"task": '${ .data.who + " wants leave" }', "form": FORM, "roles": ["heads"], **person}
    return {
        "machine": name,
        "initial": "review",
        "states": {
            "review": {
                "person": asked,
                "done": [
                    {"to": "granted", "when": "${ .event.payload.ok }", "set": {"by": "${ .event.by }"}},
                    {"to": "refused", "when": "${ .data.days > 1 }"},
                ],
                "on": {"drop": "dropped", "again": "review"},
                "after": {"P3D": {"to": "late"}},
                "error": {"to": "lost", "set": {"why": "${ .event.payload.type }"}},
            },
            **{name: {"final": True} for name in ("granted", "refused", "dropped", "late", "lost")},
        },
        "output": {"by": "${ .data.by }", "why": "${ .data.why }"},
    }


def made(name: str, **person: Any) -> Any:
    machine = build(document(name, **person))
    registry.add_workflow(machine)
    return machine


async def tasks(world: World, run: Run[Any], status: str = "open") -> list[Task]:
    await world.settle()
    return [one for one in (await world.app.tasks.list(execution=run.id)).tasks if one.status == status]


async def the_task(world: World, run: Run[Any]) -> Task:
    [task] = await tasks(world, run)
    return task


async def start(world: World, name: str, **person: Any) -> Run[Any]:
    run: Run[Any] = await world.start(made(name, **person), {"who": "ann", "days": 3})
    return run


async def start_noted(world: World, name: str) -> Run[Any]:
    """It takes a `note` without leaving the state; after every step there is a checkpoint."""
    body = document(name)
    body["states"]["review"]["on"]["note"] = {"set": {"days": "${ .data.days + 1 }"}}
    machine = build(body)
    registry.add_workflow(machine)
    run: Run[Any] = await world.start(machine, {"who": "ann", "days": 3})
    return run


def rejected(rows: list[Any]) -> list[str]:
    return [one.reason for one in map(ev.read, rows) if isinstance(one, ev.EventRejected)]


async def test_a_state_asks_and_goes_on_when_the_task_is_done(world: World) -> None:
    about = {"with": {"days": "${ .data.days }"}, "assign": "ada", "priority": 2, "due": "2d"}
    run = await start(world, "asking-plain", **about)
    task = await the_task(world, run)
    assert (task.name, task.title, task.users, task.roles) == ("review", "ann wants leave", ("ada",), ("heads",))
    assert task.priority == 2 and task.due is not None
    assert (await world.app.tasks.get(task.id)).data == {"days": 3}
    await world.app.tasks.complete(task.id, {"ok": True}, by="bob", roles=["heads"])
    assert await run.result() == {"by": "bob", "why": None}
    changes = [one for one in map(ev.read, await world.rows(run.key)) if isinstance(one, ev.StateChanged)]
    assert [(one.to_state, one.event, one.by) for one in changes] == [
        ("review", "", ""),
        ("granted", "done review", "bob"),
    ]


async def test_what_is_handed_in_chooses_the_way(world: World) -> None:
    run = await start(world, "asking-choice")
    await world.app.tasks.complete((await the_task(world, run)).id, {"ok": False}, by="bob", roles=["heads"])
    await run.result()
    assert (await run.state()).published["state"] == "refused"


@pytest.mark.parametrize("way", ["event", "timer"])
async def test_whatever_leaves_the_state_withdraws_the_task(world: World, way: str) -> None:
    run = await start(world, f"asking-{way}")
    task = await the_task(world, run)
    if way == "event":
        await run.send("drop")
    await run.result()
    await world.settle()
    assert (await run.state()).published["state"] == ("dropped" if way == "event" else "late")
    assert (await world.app.tasks.get(task.id)).status == "cancelled"
    assert await tasks(world, run) == []


async def test_a_state_that_is_entered_again_asks_anew(world: World) -> None:
    run = await start(world, "asking-again")
    first = await the_task(world, run)
    await run.send("again")
    second = await the_task(world, run)
    assert first.id != second.id
    assert (await world.app.tasks.get(first.id)).status == "cancelled"


async def test_what_no_transition_takes_is_rejected_and_asked_once_more(world: World) -> None:
    run: Run[Any] = await world.start(made("asking-twice"), {"who": "ann", "days": 1})
    first = await the_task(world, run)
    await world.app.tasks.complete(first.id, {"ok": False}, by="bob", roles=["heads"])
    second = await the_task(world, run)
    assert first.id != second.id
    assert rejected(await world.rows(run.key)) == ["the condition does not hold"]
    await world.app.tasks.complete(second.id, {"ok": True}, by="bob", roles=["heads"])
    assert (await run.result())["by"] == "bob"


async def test_a_task_that_somebody_cancels_is_an_error_of_the_state(world: World) -> None:
    run = await start(world, "asking-cancelled")
    task = await the_task(world, run)
    await world.app.get(task.id).cancel("nobody is there")
    assert await run.result() == {"by": None, "why": "Cancelled"}


async def test_a_task_that_cannot_be_asked_for_is_an_error_of_the_state(world: World) -> None:
    run = await start(world, "asking-badly", task="${ .data.who | keys | first }")
    assert await run.result() == {"by": None, "why": "ExpressionError"}


async def test_without_an_error_transition_a_cancelled_task_ends_the_machine(world: World) -> None:
    body = document("asking-ends")
    del body["states"]["review"]["error"], body["states"]["lost"]
    machine = build(body)
    registry.add_workflow(machine)
    run: Run[Any] = await world.start(machine, {"who": "ann", "days": 3})
    await world.app.get((await the_task(world, run)).id).cancel("nobody is there")
    with pytest.raises(ExecutionFailed):
        await run.result()


async def test_a_machine_that_is_cancelled_withdraws_what_it_asked(world: World) -> None:
    run = await start(world, "asking-stopped")
    task = await the_task(world, run)
    await run.cancel("no longer needed")
    assert await run.until("cancelled") == "cancelled"
    await world.settle()
    assert (await world.app.tasks.get(task.id)).status == "cancelled"


async def test_the_outcome_of_a_task_cannot_be_pretended(world: World) -> None:
    run = await start(world, "asking-false")
    number = (await the_task(world, run)).id.rpartition(".")[2]
    done = {"ref": int(number), "id": "x", "result": {"ok": True}}
    with pytest.raises(Exception, match="takes no event"):
        await run.send(f"/child:{number}", done, by="eve")
    assert await run.status() == "waiting"


async def test_a_task_outlives_crashes_and_checkpoints(world: World) -> None:
    run = await start_noted(world, "asking-lasting")
    task = await the_task(world, run)
    await run.send("note")
    await world.crash()
    await run.send("note")
    assert (await the_task(world, run)).id == task.id
    await world.app.tasks.complete(task.id, {"ok": True}, by="bob", roles=["heads"])
    assert (await run.result())["by"] == "bob"


async def test_a_crash_at_any_point_changes_nothing(world: World) -> None:
    async def answer(run: Run[Any]) -> None:
        people = run._app.tasks
        while not (page := await people.list(execution=run.id)).tasks:
            await asyncio.sleep(0.1)
        await people.complete(page.tasks[0].id, {"ok": True}, by="bob", roles=["heads"], event_id="e", wait="1h")

    report = await world.crash_everywhere(made("asking-crash"), {"who": "ann", "days": 3}, send=answer)
    assert report.status == "completed"


async def test_a_fork_asks_for_itself(world: World) -> None:
    run = await start_noted(world, "asking-forked")
    task = await the_task(world, run)
    await run.send("note")
    assert (await the_task(world, run)).id == task.id
    fork = await run.fork(id="the-fork")
    other = await the_task(world, fork)
    assert other.id != task.id
    await world.app.tasks.complete(other.id, {"ok": True}, by="bob", roles=["heads"])
    assert (await fork.result())["by"] == "bob"
    assert (await world.app.tasks.get(task.id)).status == "open"


async def test_in_python_forms_are_types_and_words_are_functions(world: World) -> None:
    def granted(leave: Leave, event: Any) -> None:
        leave.by = f"{event.by} {event.payload}"

    machine: Machine[Leave] = Machine(
        "asking-python",
        data=Leave,
        initial="count",
        states={
            "count": State(
                initial="review",
                entry=[
                    Do(count, lambda leave, event: (leave.days,), set=lambda leave, days: setattr(leave, "days", days))
                ],
                states={
                    "review": State(
                        person=Ask(lambda leave: f"{leave.who}: {leave.days}", form=Answer, data=lambda leave: leave),
                        done=To("granted", set=granted),
                    )
                },
            ),
            "granted": State(final=True),
        },
    )
    run = await world.start(machine, Leave())
    task = await the_task(world, run)
    assert (task.name, task.title) == ("count.review", "ann: 13")  # as the actions have left the data
    assert (await world.app.tasks.get(task.id)).data == {"who": "ann", "days": 13, "by": ""}
    await world.app.tasks.complete(task.id, {"ok": True}, by="bob")
    assert (await run.result()).by == "bob Answer(ok=True)"


async def test_states_around_one_another_ask_side_by_side(world: World) -> None:
    machine: Machine[Any] = Machine(
        "asking-nested",
        initial="outer",
        states={
            "outer": State(
                person=Ask("outer"),
                done="end",
                initial="inner",
                states={"inner": State(person=Ask("inner"), done="other"), "other": State()},
            ),
            "end": State(final=True),
        },
    )
    run = await world.start(machine, None)
    both = {one.title: one for one in await tasks(world, run)}
    assert set(both) == {"outer", "inner"}
    await world.app.tasks.complete(both["inner"].id, None, by="bob")
    assert [one.id for one in await tasks(world, run)] == [both["outer"].id]
    await world.app.tasks.complete(both["outer"].id, None, by="bob")
    await run.result()


async def test_another_version_takes_tasks_over_and_withdraws_what_it_does_not_ask(world: World) -> None:
    definitions = world.app.definitions
    first = await definitions.publish(document("asking-versions"))
    run = await world.app.start("asking-versions", {"who": "ann", "days": 3})
    task = await the_task(world, run)
    changed = document("asking-versions", priority=5)
    await run.migrate((await definitions.publish(changed)).version, by="ada")
    assert (await the_task(world, run)).id == task.id
    silent = document("asking-versions")
    del silent["states"]["review"]["person"], silent["states"]["review"]["done"]
    for name in ("granted", "refused"):
        del silent["states"][name]
    await run.migrate((await definitions.publish(silent)).version, by="ada")
    assert await tasks(world, run) == []
    await run.migrate(first.version, by="ada")
    assert (await the_task(world, run)).id != task.id


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        ({"form": {"type": "text"}}, "states.review.person", "not a JSON Schema"),
        ({"form": "text"}, "states.review.person.form", "not a JSON Schema"),
        ({"task": ""}, "states.review.person", "the task has no title"),
        ({"task": "${ .data. }"}, "states.review.person", "at /task"),
        ({"due": "soon"}, "states.review.person", "is not a duration"),
        ({"roles": "heads"}, "states.review.person.roles", "is not a list"),
        ({"priority": "high"}, "states.review.person.priority", "is not a number"),
        ({"titel": "x"}, "states.review.person", "'titel' is not known here"),
    ],
)
def test_what_is_wrong_with_a_task_is_told(change: dict[str, Any], where: str, message: str) -> None:
    found = [one for one in check(document("asking-wrong", **change)) if one.level == "error"]
    assert [one.where for one in found] == [where]
    assert message in found[0].message


def test_something_follows_a_task_and_no_task_is_asked_at_the_end() -> None:
    body = document("asking-nowhere")
    del body["states"]["review"]["done"]
    body["states"]["late"]["person"] = {"task": "x"}
    for name in ("granted", "refused"):
        del body["states"][name]
    assert [(one.where, one.message) for one in check(body)] == [
        ("states.review.person", "nothing follows when it is done"),
        ("states.late", "a final state is the end: it has no transitions, timers, tasks or states inside"),
    ]


def test_a_rehearsal_answers_for_the_person() -> None:
    machine = build(document("asking-rehearsed"))
    leave = {"who": "ann", "days": 3}
    given = {"person:review": {"returns": {"ok": True}, "by": "bob", "takes": "2h"}}
    done = rehearse(machine, leave, results=given)
    assert (done.status, done.result) == ("completed", {"by": "bob", "why": None})
    late = rehearse(machine, leave, results={"person:review": {"returns": {"ok": True}, "takes": "4d"}})
    assert (late.status, late.state.current) == ("completed", "late")
    assert rehearse(machine, leave).state.current == "late"
    failed = rehearse(machine, leave, results={"person:review": {"raises": "Cancelled"}})
    assert failed.result == {"by": None, "why": "Cancelled"}
    with pytest.raises(InvalidValue, match="the result given for person:review does not fit"):
        rehearse(machine, leave, results={"person:review": {"returns": 5}})


def test_a_picture_shows_what_is_asked() -> None:
    notes = [box.note for box in build(document("asking-picture", task="Approve it")).diagram().boxes]
    assert "asks: Approve it" in notes
