"""Node graphs at work, through the public surface: every type of node, and what becomes of errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure import ExecutionCancelled, ExecutionFailed, InvalidValue, action, workflow
from perdure.core import events as ev
from perdure.errors import UsageError
from perdure.flows.graph import check
from perdure.testing import World
from tests.flows.making import body, graph, node, settled

done: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@action
async def g_note(text: Any) -> Any:
    done.append(text)
    return text


@action
async def g_double(number: int) -> int:
    return 2 * number


@action
async def g_fail(text: str = "no") -> None:
    raise ValueError(text)


@action
async def g_flaky(key: str) -> str:
    done.append(key)
    if done.count(key) < 3:
        raise OSError("again")
    return f"{key} at last"


@action
async def g_book(what: str) -> str:
    done.append(f"book {what}")
    return f"{what} booked"


@g_book.undo
async def g_unbook(what: str, result: str) -> None:
    done.append(f"unbook {what}")


def say(text: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "action", {"action": "g_note", "with": {"text": text}, **more}


# Triggers and ends.


async def test_a_payload_goes_through_an_action_to_the_result(world: World) -> None:
    made = graph(
        "chain",
        {
            "start": "trigger",
            "twice": ("action", {"action": "g_double", "with": {"number": "${ .trigger }"}}),
            "end": "end",
        },
        "start > twice > end",
    )
    run = await world.start(made, 21)
    assert await run.result() == 42
    assert await settled(world, run) == [("start", "completed"), ("twice", "completed"), ("end", "completed")]


async def test_the_trigger_that_started_it_is_recorded(world: World) -> None:
    made = graph(
        "two_triggers",
        {
            "paid": ("trigger", {"event": "paid"}),
            "refunded": ("trigger", {"event": "refunded"}),
            "plus": ("end", {"result": "${ .trigger }"}),
            "minus": ("end", {"result": "${ -.trigger }"}),
        },
        "paid > plus",
        "refunded > minus",
    )
    run = await world.start(made, {"trigger": "refunded", "payload": 5})
    assert await run.result() == -5
    assert (await run.state()).published["trigger"] == "refunded"
    assert msgspec.json.decode((await node(world, run, "refunded")).output) == 5


async def test_with_several_triggers_an_input_says_which(world: World) -> None:
    made = graph("which", {"a": "trigger", "b": "trigger"})
    with pytest.raises(InvalidValue, match="several triggers"):
        await world.app.start(made, {"order": 1})


async def test_a_bare_payload_is_for_the_trigger_by_hand(world: World) -> None:
    made = graph("by_hand", {"paid": "trigger", "manual": "trigger", "end": "end"}, "manual > end")
    assert await (await world.start(made, 7)).result() == 7


async def test_a_payload_that_does_not_fit_the_trigger_is_refused_at_the_start(world: World) -> None:
    made = graph("strict", {"start": ("trigger", {"schema": {"type": "object", "required": ["order"]}})})
    with pytest.raises(InvalidValue, match='"order" is a required property'):
        await world.app.start(made, {})


async def test_the_last_end_that_is_reached_gives_the_result(world: World) -> None:
    made = graph(
        "ends",
        {
            "start": "trigger",
            "both": "parallel",
            "soon": ("end", {"result": "soon"}),
            "pause": ("delay", {"duration": "1h"}),
            "late": ("end", {"result": "late"}),
        },
        "start > both > soon",
        "both > pause > late",
    )
    assert await (await world.start(made)).result() == "late"


async def test_an_end_that_stops_ends_everything_else(world: World) -> None:
    made = graph(
        "stops",
        {
            "start": "trigger",
            "both": "parallel",
            "pause": ("delay", {"duration": "1h"}),
            "late": ("end", {"result": "late"}),
            "stop": ("end", {"result": "stopped", "stop": True}),
        },
        "start > both > pause > late",
        "both > stop",
    )
    run = await world.start(made)
    assert await run.result() == "stopped"
    assert ("pause", "cancelled") in await settled(world, run)


async def test_an_end_may_fail_the_execution(world: World) -> None:
    made = graph(
        "fails",
        {"start": "trigger", "end": ("end", {"status": "failed", "message": '${ "no stock of " + .trigger }'})},
        "start > end",
    )
    with pytest.raises(ExecutionFailed, match="no stock of tea"):
        await (await world.start(made, "tea")).result()


async def test_without_an_end_the_last_output_is_the_result(world: World) -> None:
    made = graph("no_end", {"start": "trigger", "say": say("hello")}, "start > say")
    assert await (await world.start(made)).result() == "hello"


async def test_expressions_see_the_whole_context(world: World) -> None:
    see = "${ [.trigger, .outputs.say, .variables.n, .metadata.owner, .execution] }"
    made = graph(
        "context",
        {"start": "trigger", "say": say("out"), "end": ("end", {"result": see})},
        "start > say > end",
        variables={"n": 3},
        metadata={"owner": "shop"},
    )
    run = await world.start(made, 1)
    assert await run.result() == [1, "out", 3, "shop", run.id]
    assert (await run.state()).published["metadata"] == {"owner": "shop"}


# Choices.


@pytest.mark.parametrize(("total", "way"), [(500, "big"), (5, "small")])
async def test_a_condition_chooses_one_of_two_ways(world: World, total: int, way: str) -> None:
    made = graph(
        "choice",
        {
            "start": "trigger",
            "is_big": ("condition", {"when": ".trigger > 100"}),
            "big": say("big"),
            "small": say("small"),
        },
        "start > is_big:true > big",
        "is_big:false > small",
    )
    run = await world.start(made, total)
    assert await run.result() == way
    assert done == [way]


async def test_a_dead_end_of_a_condition_ends_the_branch_with_what_came_in(world: World) -> None:
    made = graph(
        "dead_end",
        {"start": "trigger", "ask": ("condition", {"when": "${ false }"}), "say": say("never")},
        "start > ask:true > say",
    )
    assert await (await world.start(made, "in")).result() == "in"
    assert done == []


@pytest.mark.parametrize(("country", "way"), [("de", "home"), ("fr", "near"), ("jp", "far"), (1, "one"), (True, "far")])
async def test_a_switch_compares_a_value_or_asks(world: World, country: Any, way: str) -> None:
    cases = [
        {"equals": "de", "handle": "home"},
        {"when": '.trigger == "fr" or .trigger == "at"', "handle": "near"},
        {"equals": 1, "handle": "one"},
    ]
    made = graph(
        "switch",
        {"start": "trigger", "where": ("switch", {"value": "${ .trigger }", "cases": cases})}
        | {name: say(name) for name in ("home", "near", "far", "one")},
        "start > where:home > home",
        "where:near > near",
        "where:default > far",
        "where:one > one",
    )
    assert await (await world.start(made, country)).result() == way


async def test_set_changes_variables_that_are_published(world: World) -> None:
    made = graph(
        "set",
        {
            "start": "trigger",
            "count": ("set", {"variables": {"n": "${ .variables.n + 1 }", "who": "ada"}}),
            "enough": ("condition", {"when": ".variables.n >= 3"}),
            "end": ("end", {"result": "${ .variables }"}),
        },
        "start > count > enough:true > end",
        "enough:false > count",
        variables={"n": 0},
    )
    run = await world.start(made)
    assert await run.result() == {"n": 3, "who": "ada"}
    assert (await run.state()).published["variables"] == {"n": 3, "who": "ada"}


# Time.


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        ({"duration": 2, "unit": "hours"}, 7200),
        ({"duration": 1.5, "unit": "minutes"}, 90),
        ({"duration": 1, "unit": "weeks"}, 604_800),
        ({"duration": 250, "unit": "milliseconds"}, 0.25),
        ({"duration": "PT30M"}, 1800),
        ({"duration": "1h30m"}, 5400),
        ({"duration": "${ .trigger }"}, 60),
        ({"duration": "${ .trigger }", "unit": "days"}, 60 * 86_400),
    ],
    ids=str,
)
async def test_a_delay_takes_as_long_as_it_says(world: World, data: dict[str, Any], seconds: float) -> None:
    made = graph("delay", {"start": "trigger", "pause": ("delay", data), "end": "end"}, "start > pause > end")
    run = await world.start(made, 60)
    began = world.micros()
    await run.result()
    assert world.micros() - began == pytest.approx(seconds * 1e6, abs=1000)


async def test_after_a_delay_and_a_crash_it_goes_on_behind_the_delay(world: World) -> None:
    made = graph(
        "resumes",
        {"start": "trigger", "before": say("before"), "pause": ("delay", {"duration": "1d"}), "after": say("after")},
        "start > before > pause > after",
    )
    run = await world.start(made)
    await world.advance("12h")
    assert (await run.state()).published["open"] == ["pause"]
    await world.crash()
    began = world.micros()
    await run.result()
    assert done == ["before", "after"]
    assert world.micros() - began < 13 * 3600 * 1e6


# Events.


async def test_a_wait_takes_all_its_events_in_any_order(world: World) -> None:
    made = graph(
        "all_events",
        {"start": "trigger", "both": ("wait", {"events": [{"name": "paid"}, {"name": "packed"}]})},
        "start > both",
    )
    run = await world.start(made)
    await run.send("packed", 2)
    await run.send("paid", 1)
    assert await run.result() == [1, 2]


async def test_a_wait_for_any_takes_the_first_and_leaves_the_rest(world: World) -> None:
    made = graph(
        "any_event",
        {
            "start": "trigger",
            "first": ("wait", {"events": [{"name": "a"}, {"name": "b"}], "mode": "any"}),
            "rest": ("wait", {"events": [{"name": "a"}]}),
            "end": ("end", {"result": "${ [.outputs.first, .outputs.rest] }"}),
        },
        "start > first > rest > end",
    )
    run = await world.start(made)
    await run.send("b", 1)
    await run.send("a", 2)
    assert await run.result() == [{"name": "b", "payload": 1}, [2]]


async def test_events_that_came_before_the_wait_are_taken_in_their_order(world: World) -> None:
    made = graph(
        "early",
        {
            "start": "trigger",
            "pause": ("delay", {"duration": "1h"}),
            "two": ("wait", {"events": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "mode": 2}),
            "rest": ("wait", {"events": [{"name": "a"}]}),
            "end": ("end", {"result": "${ [.outputs.two[].payload] + .outputs.rest }"}),
        },
        "start > pause > two > rest > end",
    )
    run = await world.start(made)
    for name in ("c", "b", "a"):
        await run.send(name, name)
    assert await run.result() == ["c", "b", "a"]


async def test_a_wait_matches_fields_with_values_and_expressions(world: World) -> None:
    made = graph(
        "matching",
        {
            "start": "trigger",
            "mine": ("wait", {"events": [{"name": "paid", "match": {"order": "${ .trigger }", "currency": "EUR"}}]}),
        },
        "start > mine",
    )
    run = await world.start(made, 7)
    await run.send("paid", {"order": 6, "currency": "EUR", "n": 1})
    await run.send("paid", {"order": 7, "currency": "USD", "n": 2})
    await run.send("paid", {"order": 7, "currency": "EUR", "n": 3})
    assert (await run.result())[0]["n"] == 3


async def test_a_payload_that_does_not_fit_is_rejected_and_the_wait_goes_on(world: World) -> None:
    events = [{"name": "paid", "schema": {"type": "integer"}}]
    made = graph(
        "picky",
        {"start": "trigger", "pause": ("delay", {"duration": 1}), "paid": ("wait", {"events": events})},
        "start > pause > paid",
    )
    run = await world.start(made)
    await run.send("paid", "early and wrong")
    await world.advance("2s")
    await run.send("paid", "wrong")
    await run.send("paid", 5)
    assert await run.result() == [5]
    rejected = [row for row in map(ev.read, await world.rows(run.key)) if isinstance(row, ev.EventRejected)]
    assert len(rejected) == 2


async def test_a_wait_that_takes_too_long_leaves_by_timeout(world: World) -> None:
    made = graph(
        "patience",
        {
            "start": "trigger",
            "both": ("wait", {"events": [{"name": "a"}, {"name": "b"}], "timeout": "1d"}),
            "late": say("late"),
            "again": ("wait", {"events": [{"name": "b"}]}),
        },
        "start > both:timeout > late > again",
    )
    run = await world.start(made)
    await run.send("a")
    await world.advance("25h")
    assert done == ["late"]
    await run.send("b", 2)
    assert await run.result() == [2]


# People.


async def test_a_person_with_the_role_and_a_fitting_form_finishes_the_task(world: World) -> None:
    form = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    made = graph(
        "person",
        {
            "start": "trigger",
            "approve": (
                "person",
                {"task": '${ "Approve " + .trigger }', "form": form, "roles": ["boss"], "assign": "ada"},
            ),
        },
        "start > approve",
    )
    run = await world.start(made, "o-1")
    await run.until("waiting")
    assert (await run.state()).published["tasks"] == [
        {"node": "approve", "task": "Approve o-1", "assign": "ada", "event": "approve", "roles": ["boss"]}
    ]
    await run.send("approve", {"ok": True}, by="eve", roles=["clerk"])
    await run.send("approve", {"ok": "yes"}, by="ada", roles=["boss"])
    with pytest.raises(UsageError, match="does not say who sent it"):
        await run.send("approve", {"ok": True}, roles=["boss"])
    await run.send("approve", {"ok": False}, by="ada", roles=["boss", "clerk"])
    assert await run.result() == {"ok": False}
    rejected = [row for row in map(ev.read, await world.rows(run.key)) if isinstance(row, ev.EventRejected)]
    assert rejected[0].reason == "only boss may send it"
    assert "ok" in rejected[1].reason
    assert len(rejected) == 2
    assert (await run.state()).published["tasks"] == []


async def test_a_task_nobody_does_leaves_by_timeout(world: World) -> None:
    made = graph(
        "ignored",
        {"start": "trigger", "ask": ("person", {"task": "?", "timeout": "3d"}), "late": say("late")},
        "start > ask:timeout > late",
    )
    run = await world.start(made)
    assert await run.result() == "late"


# Children.


@workflow
async def g_add(a: int, b: int = 1) -> int:
    return a + b


async def test_a_child_is_called_by_name(world: World) -> None:
    made = graph(
        "parent",
        {"start": "trigger", "add": ("child", {"workflow": "g_add", "with": {"a": "${ .trigger }", "b": 5}})},
        "start > add",
    )
    run = await world.start(made, 2)
    assert await run.result() == 7


async def test_a_graph_is_a_child_of_a_graph(world: World) -> None:
    graph("inner", {"start": "trigger", "end": ("end", {"result": "${ .trigger.n + 1 }"})}, "start > end")
    made = graph(
        "outer",
        {"start": "trigger", "in": ("child", {"workflow": "inner", "with": {"n": "${ .trigger }"}})},
        "start > in",
    )
    assert await (await world.start(made, 2)).result() == 3


async def test_a_child_that_nobody_knows_fails_the_node(world: World) -> None:
    made = graph(
        "orphan",
        {"start": "trigger", "who": ("child", {"workflow": "g_unknown", "onError": "continue"}), "end": "end"},
        "start > who > end",
    )
    run = await world.start(made)
    assert await run.result() is None
    assert (await node(world, run, "who")).status == "failed"


# Errors.


async def test_a_node_that_fails_fails_the_execution_and_ends_the_rest(world: World) -> None:
    made = graph(
        "failing",
        {
            "start": "trigger",
            "both": "parallel",
            "pause": ("delay", {"duration": "1h"}),
            "bad": ("action", {"action": "g_fail", "with": {"text": "too bad"}}),
        },
        "start > both > pause",
        "both > bad",
    )
    run = await world.start(made)
    with pytest.raises(ExecutionFailed, match="too bad") as caught:
        await run.result()
    assert "node bad" in str(caught.value)
    assert {("bad", "failed"), ("pause", "cancelled")} <= set(await settled(world, run))
    assert (await run.state()).published["open"] == []


async def test_retries_are_counted_in_the_log(world: World) -> None:
    made = graph(
        "retries",
        {"start": "trigger", "try": ("action", {"action": "g_flaky", "with": {"key": "k"}, "retries": 5})},
        "start > try",
    )
    run = await world.start(made)
    assert await run.result() == "k at last"
    assert (await node(world, run, "try")).attempts == 3


async def test_the_attempts_of_a_failure_are_counted_as_well(world: World) -> None:
    made = graph(
        "exhausted",
        {"start": "trigger", "try": ("action", {"action": "g_fail", "retries": 2, "onError": "continue"})},
        "start > try",
    )
    run = await world.start(made)
    assert await run.result() is None
    assert (await node(world, run, "try")).attempts == 3


async def test_continue_goes_on_with_null(world: World) -> None:
    made = graph(
        "goes_on",
        {
            "start": "trigger",
            "bad": ("action", {"action": "g_fail", "onError": "continue"}),
            "end": ("end", {"result": "${ [.outputs.bad, 1] }"}),
        },
        "start > bad > end",
    )
    run = await world.start(made)
    assert await run.result() == [None, 1]
    found = await node(world, run, "bad")
    assert found.status == "failed" and found.error is not None and found.error.type == "ValueError"


async def test_an_edge_from_error_handles_the_failure(world: World) -> None:
    made = graph(
        "handles",
        {
            "start": "trigger",
            "bad": ("action", {"action": "g_fail"}),
            "tell": say("${ .outputs.bad.error }"),
            "end": "end",
        },
        "start > bad > end",
        "bad:error > tell",
    )
    run = await world.start(made)
    assert await run.result() == {"type": "ValueError", "message": "no"}


async def test_an_expression_that_fails_fails_its_node(world: World) -> None:
    made = graph(
        "expressions",
        {
            "start": "trigger",
            "sum": ("set", {"variables": {"x": "${ .trigger + 1 }"}}),
            "tell": say("${ .outputs.sum.error.type }"),
        },
        "start > sum:error > tell",
    )
    assert await (await world.start(made, {})).result() == "ExpressionError"


async def test_compensate_undoes_all_and_fails_even_within_a_loop_that_continues(world: World) -> None:
    made = graph(
        "compensates",
        {
            "start": "trigger",
            "book": ("action", {"action": "g_book", "with": {"what": "hotel"}}),
            "each": ("loop", {"items": [1, 2], "onError": "continue"}),
            "bad": ("action", {"action": "g_fail", "onError": "compensate"}),
        },
        "start > book > each:each > bad > each",
    )
    run = await world.start(made)
    with pytest.raises(ExecutionFailed):
        await run.result()
    assert done == ["book hotel", "unbook hotel"]


WRONG = "${ .trigger + 1 }"  # of an object
FAILING: dict[str, dict[str, Any]] = {
    "action": {"action": "g_fail"},
    "child": {"workflow": "g_unknown"},
    "condition": {"when": WRONG},
    "delay": {"duration": WRONG},
    "loop": {"items": WRONG},
    "person": {"task": WRONG},
    "set": {"variables": {"x": WRONG}},
    "switch": {"value": WRONG, "cases": [{"equals": 1, "handle": "one"}]},
    "wait": {"events": [{"name": "paid", "match": {"order": WRONG}}]},
}


RAISED = {"action": "ValueError", "child": "NotRegistered"}
CONTINUE, WAY = {"onError": "continue"}, "start > bad"
PAIRS = [
    (kind, how)
    for kind in FAILING
    for how in ("fail", "continue", "catch", "compensate")
    if (kind, how) not in (("condition", "continue"), ("switch", "continue"))
]


@pytest.mark.parametrize(("kind", "how"), PAIRS)
async def test_each_type_of_node_fails_as_it_was_told_to(world: World, kind: str, how: str) -> None:
    told = {"onError": how} if how in ("continue", "compensate") else {}
    handle = {"condition": "true", "loop": "done", "switch": "one"}.get(kind, "")
    made = graph(
        f"{kind}_{how}",
        {
            "start": "trigger",
            "book": ("action", {"action": "g_book", "with": {"what": "hotel"}}),
            "bad": (kind, {**FAILING[kind], **told}),
            "next": say("went on"),
            **({"caught": say("${ .outputs.bad.error.type }")} if how == "catch" else {}),
            **({"round": say("never")} if kind == "loop" else {}),
        },
        f"start > book > bad{':' + handle if handle else ''} > next",
        *(["bad:error > caught"] if how == "catch" else []),
        *(["bad:each > round"] if kind == "loop" else []),
    )
    run = await world.start(made, {})
    fails = how in ("fail", "compensate") or (kind, how) == ("loop", "continue")  # of its rounds, not of itself
    assert await run.until("completed", "failed") == ("failed" if fails else "completed")
    follows = {"continue": "went on", "catch": RAISED.get(kind, "ExpressionError")}
    assert done == ["book hotel", "unbook hotel" if fails else follows[how]]
    assert (await node(world, run, "bad")).status == "failed"


@pytest.mark.parametrize("kind", ["condition", "switch"])
def test_a_choice_that_fails_cannot_continue(kind: str) -> None:
    [problem] = check(body("choice_continues", {"start": "trigger", "bad": (kind, {**FAILING[kind], **CONTINUE})}, WAY))
    assert str(problem) == "nodes.bad.onError: Invalid enum value 'continue'; write one of compensate, fail, handle"


async def test_a_cancel_request_undoes_and_settles_what_is_open(world: World) -> None:
    made = graph(
        "cancelled",
        {
            "start": "trigger",
            "book": ("action", {"action": "g_book", "with": {"what": "flight"}}),
            "wait": ("wait", {"events": [{"name": "never"}]}),
        },
        "start > book > wait",
    )
    run = await world.start(made)
    await run.until("waiting")
    await run.cancel("enough")
    with pytest.raises(ExecutionCancelled):
        await run.result()
    assert done == ["book flight", "unbook flight"]
    assert ("wait", "cancelled") in await settled(world, run)


async def test_an_output_that_is_too_large_makes_it_stuck_whatever_the_node_says(world: World) -> None:
    much = {"x": '${ "x" * 900000 }', "y": '${ "y" * 900000 }'}
    made = graph(
        "large",
        {"start": "trigger", "much": ("set", {"variables": much, "onError": "continue"}), "end": "end"},
        "start > much > end",
    )
    run = await world.start(made)
    await run.until("stuck")
    assert "the data of node much has 1,800,0" in str(await run.why())


async def test_a_circle_in_which_nothing_waits_gets_stuck_with_a_reason(world: World) -> None:
    made = graph(
        "spins",
        {
            "start": "trigger",
            "both": "parallel",
            "count": ("set", {"variables": {"n": 1}}),
            "ask": ("condition", {"when": "false"}),
            "pause": ("delay", {"duration": 1}),
        },
        "start > both > count > ask:false > count",
        "both > pause",
    )
    run = await world.start(made)
    await run.until("stuck")
    assert "does not come to rest" in str(await run.why())


async def test_a_run_is_drawn_with_what_is_done_and_what_is_open(world: World) -> None:
    made = graph(
        "drawn_run",
        {"start": "trigger", "say": say("x"), "wait": ("wait", {"events": [{"name": "go"}]}), "end": "end"},
        "start > say > wait > end",
    )
    run = await world.start(made)
    await run.until("waiting")
    assert {box.id: box.mark for box in (await run.diagram()).boxes} == {
        "start": "done",
        "say": "done",
        "wait": "current",
        "end": "",
    }
    await run.send("go")
    await run.result()
