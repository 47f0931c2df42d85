"""Tasks for people: a workflow asks, a person answers, and the log of the task tells who did what."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import Any

import pytest
from msgspec import Struct

from perdure import ChildFailed, Escalate, Run, TaskExpired, event, person, role, workflow
from perdure.core import events as ev
from perdure.core.records import PERSON
from perdure.errors import (
    EventConflict,
    EventRefused,
    ExecutionEnded,
    ExecutionFailed,
    ExecutionNotFound,
    FormInvalid,
    InvalidValue,
    NotRegistered,
    UsageError,
)
from perdure.runtime.managing.tasks import Task
from perdure.testing import World
from perdure.testing.faults import CrashPoints


class Approval(Struct):
    yes: bool
    why: str = ""


@workflow(name="person-approve")
async def approve(amount: int) -> str:
    said = await person("approve", form=Approval, title=f"Spend {amount}?", assign=["ann", role("heads")], data=amount)
    return f"{said.yes} {said.why}"


@workflow(name="person-anybody")
async def anybody() -> Any:
    return await person("look")


async def begun(world: World, flow: Any = approve, *args: Any, id: str = "p") -> Run[Any]:
    run = await world.start(flow, *(args or ((7,) if flow is approve else ())), id=id)
    await world.settle()
    return run


async def test_what_a_person_fills_in_is_the_result(world: World) -> None:
    run = await begun(world)
    task = await world.app.tasks.get("p.1")
    assert (task.name, task.title, task.status, task.data, task.execution) == ("approve", "Spend 7?", "open", 7, "p")
    assert task.form["$defs"]["Approval"]["required"] == ["yes"] and len(task.form_version) == 16
    done = await world.app.tasks.complete("p.1", {"yes": True, "why": "cheap"}, by="ann")
    assert (done.status, done.completed_by, done.value) == ("completed", "ann", {"yes": True, "why": "cheap"})
    assert await run.result() == "True cheap"


async def states(world: World, id: str) -> list[str]:
    """What the log tells of a task: where it went, by which event, by whom."""
    told = []
    for row in await world.rows(f"default/{id}"):
        match ev.read(row):
            case ev.StateChanged(to_state=state, event=name, by=by):
                told.append(f"{state} {name} {by}".strip())
            case ev.EventRejected(name=name):
                told.append(f"no {name}")
            case _:
                pass
    return told


# Who may do it.


async def test_of_two_who_claim_at_once_one_has_it(world: World) -> None:
    run = await begun(world)
    tasks = world.app.tasks
    both = await asyncio.gather(
        tasks.claim("p.1", by="ann"), tasks.claim("p.1", by="bob", roles=["heads"]), return_exceptions=True
    )
    [lost] = [one for one in both if isinstance(one, BaseException)]
    assert isinstance(lost, EventRefused) and "has claimed it" in str(lost)
    winner = (await tasks.get("p.1")).claimed_by
    assert {"ann", "bob"} - {winner} and [one for one in both if one is not lost] == [await tasks.get("p.1")]
    await tasks.complete("p.1", {"yes": False}, by=winner)
    assert await run.result() == "False "


async def test_only_the_people_of_a_task_may_do_it(world: World) -> None:
    await begun(world)
    tasks = world.app.tasks
    for attempt in (
        tasks.claim("p.1", by="eve"),
        tasks.complete("p.1", {"yes": True}, by="eve", roles=["guests"]),
        tasks.complete("p.1", {"yes": True}),
    ):
        with pytest.raises(EventRefused, match="it is for ann or role heads, not for"):
            await attempt
    with pytest.raises(EventRefused, match="does not say who"):
        await tasks.complete("p.1", {"yes": True}, roles=["heads"])
    assert (await tasks.get("p.1")).status == "open"


async def test_only_who_has_claimed_it_may_complete_or_release_it(world: World) -> None:
    await begun(world)
    tasks = world.app.tasks
    await tasks.claim("p.1", by="bob", roles=["heads"])
    with pytest.raises(EventRefused, match="bob has claimed it"):
        await tasks.complete("p.1", {"yes": True}, by="ann")
    with pytest.raises(EventRefused, match="bob has claimed it"):
        await tasks.release("p.1", by="ann")
    assert (await tasks.claim("p.1", by="bob", roles=["heads"])).claimed_by == "bob"
    assert (await tasks.release("p.1", by="bob")).status == "open"
    with pytest.raises(EventRefused, match="nobody has claimed it"):
        await tasks.release("p.1", by="bob")
    await tasks.complete("p.1", {"yes": True}, by="ann")
    assert await states(world, "p.1") == [
        "open",
        "claimed claim bob",
        "no complete",
        "no release",
        "claimed claim bob",
        "open release bob",
        "no release",
        "completed complete ann",
    ]


async def test_a_claim_says_who_it_is(world: World) -> None:
    await begun(world, anybody)
    with pytest.raises(EventRefused, match="does not say who"):
        await world.app.tasks.claim("p.1", by="")


async def test_what_is_for_anybody_can_be_done_without_a_name(world: World) -> None:
    run = await begun(world, anybody)
    await world.app.tasks.complete("p.1", [1, "two"])
    assert await run.result() == [1, "two"]


async def test_a_task_is_passed_on_and_whoever_had_it_has_it_no_more(world: World) -> None:
    await begun(world)
    tasks = world.app.tasks
    await tasks.claim("p.1", by="ann")
    passed = await tasks.assign("p.1", ["cid", role("clerks")], by="boss")
    assert (passed.status, passed.users, passed.roles, passed.claimed_by) == ("open", ("cid",), ("clerks",), "")
    with pytest.raises(EventRefused, match="it is for cid or role clerks"):
        await tasks.complete("p.1", {"yes": True}, by="ann")
    assert (await tasks.list(assignee="ann")).tasks == []
    assert [one.id for one in (await tasks.list(role="clerks")).tasks] == ["p.1"]


async def test_nobody_passes_a_task_on_by_just_sending_an_event(world: World) -> None:
    await begun(world)
    with pytest.raises(InvalidValue, match="takes no event 'assign'"):
        await world.app.send("p.1", "assign", {"users": ["eve"]}, by="eve")


async def test_a_plain_event_is_judged_like_any_other(world: World) -> None:
    run = await begun(world)
    await world.app.send("p.1", "complete", {"yes": "perhaps"}, by="ann")
    await world.app.send("p.1", "complete", {"yes": True}, by="eve")
    await world.app.send("p.1", "complete", {"yes": True}, by="ann")
    assert await run.result() == "True "
    assert await states(world, "p.1") == ["open", "no complete", "no complete", "completed complete ann"]


# What is handed in.


async def test_what_does_not_fit_the_form_is_refused_with_all_that_is_wrong(world: World) -> None:
    run = await begun(world)
    with pytest.raises(FormInvalid) as caught:
        await world.app.tasks.complete("p.1", {"yes": "perhaps", "why": 3}, by="ann")
    assert {one.where for one in caught.value.problems} == {"yes", "why"}
    with pytest.raises(FormInvalid, match="required"):
        await world.app.tasks.complete("p.1", {}, by="ann")
    assert await states(world, "p.1") == ["open"]
    await world.app.tasks.complete("p.1", {"yes": True}, by="ann")
    assert await run.result() == "True "


async def test_a_part_of_a_form_may_depend_on_another(world: World) -> None:
    schema = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}, "why": {"type": "string", "minLength": 1}},
        "required": ["yes"],
        "if": {"properties": {"yes": {"const": False}}},
        "then": {"required": ["why"]},
    }

    @workflow(name="person-schema")
    async def ask() -> Any:
        return await person("approve", form=schema)

    run = await begun(world, ask)
    with pytest.raises(FormInvalid, match="why"):
        await world.app.tasks.complete("p.1", {"yes": False})
    await world.app.tasks.complete("p.1", {"yes": False, "why": "too dear"})
    assert await run.result() == {"yes": False, "why": "too dear"}


async def test_what_is_to_be_a_date_must_be_one(world: World) -> None:
    class Trip(Struct):
        on: date

    @workflow(name="person-date")
    async def ask() -> str:
        return (await person("plan", form=Trip)).on.isoformat()

    run = await begun(world, ask)
    with pytest.raises(FormInvalid, match='"date"'):
        await world.app.tasks.complete("p.1", {"on": "2030-13-01"})
    await world.app.tasks.complete("p.1", {"on": "2030-12-01"})
    assert await run.result() == "2030-12-01"


async def test_what_is_completed_twice_is_completed_once(world: World) -> None:
    await begun(world)
    tasks = world.app.tasks
    first = await tasks.complete("p.1", {"yes": True}, by="ann")
    assert await tasks.complete("p.1", {"yes": True}, by="ann") == first
    for value, by in (({"yes": False}, "ann"), ({"yes": True}, "bob")):
        with pytest.raises(ExecutionEnded, match=r"task p\.1 was completed by ann"):
            await tasks.complete("p.1", value, by=by, roles=["heads"])
    with pytest.raises(ExecutionEnded, match="completed by ann"):
        await tasks.claim("p.1", by="ann")


async def test_of_two_who_complete_at_once_one_does(world: World) -> None:
    run = await begun(world)
    answers = await asyncio.gather(
        *(world.app.tasks.complete("p.1", {"yes": True, "why": why}, by="ann") for why in "abc"), return_exceptions=True
    )
    [done] = [one for one in answers if not isinstance(one, BaseException)]
    assert sum(isinstance(one, ExecutionEnded) for one in answers) == 2
    assert await run.result() == f"True {done.value['why']}"
    assert [entry.type for entry in await run.log()].count("ChildSettled") == 1


async def test_the_same_event_again_gets_the_same_verdict(world: World) -> None:
    await begun(world)
    tasks = world.app.tasks
    for _ in range(2):
        assert (await tasks.claim("p.1", by="ann", event_id="e1")).status == "claimed"
    for _ in range(2):
        with pytest.raises(EventRefused, match="ann has claimed it"):
            await tasks.claim("p.1", by="bob", roles=["heads"], event_id="e2")
    for _ in range(2):
        assert (await tasks.complete("p.1", {"yes": True}, by="ann", event_id="e3")).status == "completed"
    with pytest.raises((EventConflict, ExecutionEnded)):
        await tasks.complete("p.1", {"yes": False}, by="ann", event_id="e3")
    assert (await states(world, "p.1")).count("claimed claim ann") == 1


# Time.


async def test_what_nobody_does_in_time_is_a_timeout(world: World) -> None:
    @workflow(name="person-due")
    async def ask() -> str:
        try:
            return str(await person("approve", due="24h"))
        except TimeoutError as error:
            return f"{type(error).__name__}: {error}"

    run = await begun(world, ask)
    before = world.now()
    assert (await world.app.tasks.get("p.1")).due == before + timedelta(hours=24)
    assert await run.result() == "TaskExpired: nobody did approve within 1d"
    task = await world.app.tasks.get("p.1")
    assert (task.status, task.value, world.now() - before) == ("expired", None, timedelta(hours=24))
    with pytest.raises(ExecutionEnded, match="was expired"):
        await world.app.tasks.complete("p.1", True)


async def test_what_nobody_does_in_time_may_have_a_default(world: World) -> None:
    @workflow(name="person-default")
    async def ask() -> Any:
        return (await person("approve", form=Approval, due="1h", default=None)) is None

    assert await (await begun(world, ask)).result() is True


async def test_an_execution_that_failed_for_want_of_an_answer_asks_again_when_it_is_retried(world: World) -> None:
    @workflow(name="person-again")
    async def ask() -> Any:
        return await person("approve", due="1h")

    run = await begun(world, ask)
    with pytest.raises(ExecutionFailed, match="TaskExpired"):
        await run.result()
    again = await run.retry()
    await world.settle()
    [task] = (await world.app.tasks.list(status="open")).tasks
    await world.app.tasks.complete(task.id, "late")
    assert await again.result() == "late"


async def test_a_task_that_waits_for_long_is_shown_to_others(world: World) -> None:
    @workflow(name="person-escalates")
    async def ask() -> Any:
        later = [Escalate("8h", to="boss"), Escalate("4h", to=role("heads"))]
        return await person("approve", assign="ann", due="24h", escalate=later)

    run = await begun(world, ask)
    tasks = world.app.tasks
    await tasks.claim("p.1", by="ann")
    with pytest.raises(EventRefused):
        await tasks.complete("p.1", 1, by="bob", roles=["heads"])
    await world.advance("4h")
    task = await tasks.get("p.1")
    assert (task.status, task.users, task.roles, task.claimed_by) == ("open", ("ann",), ("heads",), "")
    await world.advance("4h")
    assert (await tasks.get("p.1")).users == ("ann", "boss")
    await tasks.complete("p.1", "at last", by="bob", roles=["heads"])
    assert await run.result() == "at last"
    assert await states(world, "p.1") == [
        "open",
        "claimed claim ann",
        "no complete",
        "open escalate",
        "open escalate",
        "completed complete bob",
    ]


async def test_who_waits_no_more_cancels_the_task(world: World) -> None:
    @workflow(name="person-race")
    async def ask() -> str:
        try:
            async with asyncio.timeout(3600):
                return str(await person("approve"))
        except TimeoutError:
            return await event("go", str)

    run = await begun(world, ask)
    await world.advance("2h")
    assert (await world.app.tasks.get("p.2")).status == "cancelled"
    assert [one.id for one in (await world.app.tasks.list(status="cancelled")).tasks] == ["p.2"]
    with pytest.raises(ExecutionEnded, match="was cancelled"):
        await world.app.tasks.complete("p.2", 1)
    await run.send("go", "on")
    assert await run.result() == "on"


async def test_an_execution_that_is_cancelled_cancels_its_task(world: World) -> None:
    run = await begun(world)
    await run.cancel("changed my mind")
    await world.settle()
    assert (await world.app.tasks.get("p.1")).status == "cancelled"
    assert await states(world, "p.1") == ["open", "cancelled cancel default/p"]


async def test_a_task_that_is_cancelled_by_force_is_not_open_any_more(world: World) -> None:
    @workflow(name="person-forced")
    async def ask() -> str:
        try:
            return str(await person("approve"))
        except ChildFailed as error:
            return error.type

    run = await begun(world, ask)
    await world.app.get("p.1").cancel("away with it", now=True)
    assert await run.result() == "Cancelled"
    tasks = world.app.tasks
    assert ((await tasks.get("p.1")).status, (await tasks.list(status="open")).tasks) == ("cancelled", [])
    assert len((await tasks.list(status="cancelled")).tasks) == 1


# Finding.


async def test_tasks_are_found_by_what_they_are_and_whose(world: World) -> None:
    for number in range(3):
        await begun(world, id=f"p{number}")
    await begun(world, anybody, id="q")
    tasks = world.app.tasks
    await tasks.claim("p0.1", by="ann")
    await tasks.complete("p1.1", {"yes": True}, by="ann")

    async def ids(**query: Any) -> list[str]:
        return sorted(one.id for one in (await tasks.list(**query)).tasks)

    assert await ids() == ["p0.1", "p1.1", "p2.1", "q.1"]
    assert await ids(name="look") == ["q.1"]
    assert await ids(status="open") == ["p2.1", "q.1"]
    assert await ids(status="claimed") == await ids(claimed_by="ann") == ["p0.1"]
    assert await ids(status="completed") == ["p1.1"]
    assert await ids(assignee="ann") == await ids(role="heads") == ["p0.1", "p1.1", "p2.1"]
    assert await ids(execution="p2") == ["p2.1"]
    assert await ids(assignee="eve") == await ids(tenant="other") == []
    assert await ids(role="ann") == await ids(assignee="heads") == []


async def test_what_is_mine_is_what_i_can_do_now(world: World) -> None:
    for number in range(4):
        await begun(world, id=f"p{number}")
    await begun(world, anybody, id="q")
    tasks = world.app.tasks
    await tasks.claim("p0.1", by="ann")
    await tasks.claim("p1.1", by="bob", roles=["heads"])
    await tasks.complete("p2.1", {"yes": True}, by="bob", roles=["heads"])

    async def ids(by: str, *roles: str, **query: Any) -> list[str]:
        return sorted(one.id for one in (await tasks.mine(by, roles, **query)).tasks)

    assert await ids("ann") == ["p0.1", "p3.1", "q.1"]
    assert await ids("bob", "heads") == ["p1.1", "p3.1", "q.1"]
    assert await ids("eve") == ["q.1"]
    assert await ids("bob", "heads", status="claimed") == ["p1.1"]
    assert await ids("bob", "heads", status="completed") == ["p2.1"]
    assert await ids("ann", status="open", name="approve") == ["p3.1"]


async def test_pages_of_what_is_mine_have_no_gaps_and_no_doubles(world: World) -> None:
    for number in range(7):
        await begun(world, approve if number % 2 else anybody, id=f"p{number}")
    seen: list[str] = []
    cursor = None
    while True:
        page = await world.app.tasks.mine("ann", ["heads"], limit=2, cursor=cursor)
        seen += [one.id for one in page.tasks]
        if (cursor := page.next) is None:
            break
    assert seen == [f"p{number}.1" for number in reversed(range(7))]


@pytest.mark.virtual_time
async def test_a_task_is_found_before_any_worker_has_seen_it() -> None:
    async def one(points: CrashPoints) -> tuple[list[Task], Task]:
        async with World(workers=0, check_at_end=False) as world:
            world.add_worker(points)
            await world.settle()
            await begun(world)
            tasks = world.app.tasks
            return (await tasks.list(role="heads", status="open")).tasks, await tasks.get("p.1")

    # Given a worker that dies when it has asked, and no other
    points = CrashPoints()
    await one(points)
    [listed], alone = await one(CrashPoints(points.calls.index("commit"), after=True))
    # Then the task is there
    assert (listed.name, listed.title, listed.users, listed.status) == ("approve", "Spend 7?", ("ann",), "open")
    assert (alone.title, alone.roles, alone.data) == ("Spend 7?", ("heads",), 7)


async def test_tasks_are_not_among_the_executions_that_people_look_for(world: World) -> None:
    await begun(world)
    assert [head.key for head in (await world.app.find()).heads] == ["default/p"]
    with pytest.raises(NotRegistered):
        await world.app.start_by_name(PERSON, [])


async def test_only_tasks_are_tasks(world: World) -> None:
    await begun(world)
    for id in ("p", "nothing"):
        with pytest.raises(ExecutionNotFound, match="there is no task"):
            await world.app.tasks.get(id)
        with pytest.raises(ExecutionNotFound, match="there is no task"):
            await world.app.tasks.claim(id, by="ann")


# Without a worker, and with another one.


async def test_what_nobody_judges_in_time_is_durable_all_the_same(world: World) -> None:
    run = await begun(world)
    [worker] = world.workers
    await worker.shut_down()
    with pytest.raises(TimeoutError, match="is durable and will be judged"):
        await world.app.tasks.complete("p.1", {"yes": True}, by="ann", wait="2s")
    world.add_worker()
    assert await run.result() == "True "


async def test_the_task_runs_where_its_workflow_runs(world: World) -> None:
    @workflow(name="person-elsewhere", queue="elsewhere")
    async def ask() -> Any:
        return await person("look")

    [worker] = world.workers
    await worker.shut_down()
    world.add_worker(queues=["elsewhere"])
    run = await begun(world, ask)
    assert (await world.app.get("p.1").head()).queue == "elsewhere"
    await world.app.tasks.complete("p.1", 5)
    assert await run.result() == 5


async def test_the_words_of_a_task_may_change_in_the_code_while_it_is_open(world: World) -> None:
    words = {"title": "Old words"}

    @workflow(name="person-words")
    async def ask() -> Any:
        return await person("look", **words)  # type: ignore[call-overload]

    run = await begun(world, ask)
    words["title"] = "New words"
    await world.crash()
    await world.app.tasks.complete("p.1", 5)
    assert await run.result() == 5
    assert (await world.app.tasks.get("p.1")).title == "Old words"


async def test_a_task_keeps_the_version_of_its_form_and_later_ones_have_the_next(world: World) -> None:
    form: dict[str, Any] = {"type": "object", "required": ["old"]}

    @workflow(name="person-forms")
    async def ask() -> Any:
        return await person("look", form=dict(form))

    first = await begun(world, ask, id="p")
    form["required"] = ["new"]
    await world.crash()
    second = await begun(world, ask, id="q")
    tasks = world.app.tasks
    was, now = await tasks.get("p.1"), await tasks.get("q.1")
    assert (was.form["required"], now.form["required"]) == (["old"], ["new"])
    assert was.form_version != now.form_version
    for id, right, wrong in (("p.1", "old", "new"), ("q.1", "new", "old")):
        with pytest.raises(FormInvalid, match="not filled in"):
            await tasks.complete(id, {wrong: 1})
        assert (await tasks.complete(id, {right: 1})).status == "completed"
    assert (await first.result(), await second.result()) == ({"old": 1}, {"new": 1})


async def test_another_task_in_the_place_of_the_recorded_one_is_noticed(world: World) -> None:
    name = ["look"]

    @workflow(name="person-other")
    async def ask() -> Any:
        return await person(name[0])

    run = await begun(world, ask)
    name[0] = "listen"
    await world.crash()
    await world.app.tasks.complete("p.1", 5)
    await world.settle()
    assert await run.status() == "stuck"


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"name": ""}, InvalidValue, "cannot be the name of a task"),
        ({"name": "x", "assign": [""]}, InvalidValue, "name of a user"),
        ({"name": "x", "assign": role(" r")}, InvalidValue, "name of a role"),
        ({"name": "x", "assign": ["u"] * 101}, UsageError, "at most 100"),
        ({"name": "x", "form": {"type": "objekt"}}, InvalidValue, "not a JSON Schema"),
        ({"name": "x", "due": "soon"}, InvalidValue, "not a duration"),
        ({"name": "x", "due": "1h", "escalate": [Escalate("1h", to="a")]}, UsageError, "due already"),
    ],
)
async def test_a_task_that_cannot_be_is_refused(
    world: World, asked: dict[str, Any], error: type[Exception], says: str
) -> None:
    caught: list[Exception] = []

    @workflow(name="person-wrong")
    async def ask() -> None:
        try:
            await person(asked["name"], **{key: value for key, value in asked.items() if key != "name"})
        except (InvalidValue, UsageError) as one:
            caught.append(one)

    await (await begun(world, ask)).result()
    assert isinstance(caught[0], error) and says in str(caught[0])


def test_a_person_is_asked_only_inside_of_a_workflow() -> None:
    with pytest.raises(UsageError, match=r"person\(\) works only inside"):
        asyncio.run(person("look"))


async def test_a_crash_at_any_store_call_changes_nothing(world: World) -> None:
    async def answer(run: Run[Any]) -> None:
        tasks = run._app.tasks
        await tasks_there(run)
        await tasks.claim(f"{run.id}.1", by="bob", roles=["heads"], event_id="c", wait="1h")
        with pytest.raises(EventRefused):
            await tasks.claim(f"{run.id}.1", by="ann", event_id="d", wait="1h")
        await tasks.complete(f"{run.id}.1", {"yes": True, "why": "ok"}, by="bob", event_id="e", wait="1h")

    report = await world.crash_everywhere(approve, 7, send=answer)
    assert report.status == "completed" and report.points > 20


async def tasks_there(run: Run[Any]) -> None:
    """Wait until the task exists: its worker may have crashed before."""
    while not (await run._app.tasks.list(execution=run.id)).tasks:
        await asyncio.sleep(0.1)


def test_an_expired_task_is_a_timeout_and_an_error_of_ours() -> None:
    assert issubclass(TaskExpired, TimeoutError)
