"""The kinds of tasks that need nobody else: set, switch, do, for, fork, raise, wait; and where a task goes on."""

from __future__ import annotations

from calendar import monthrange
from typing import Any

import pytest

from perdure import ExecutionCancelled, action
from perdure.testing import World
from tests.flows.documenting import document, failure, kind, listed, paths, result, settled

done: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@action
async def doc_note(text: Any) -> Any:
    done.append(text)
    return text


@action
async def doc_refuse(text: str = "no") -> None:
    raise ValueError(text)


def note(text: Any, **more: Any) -> dict[str, Any]:
    return {"call": "doc_note", "with": {"text": text}, **more}


REFUSE = {"call": "doc_refuse"}

# set and switch.


async def test_set_gives_exactly_its_value(world: World) -> None:
    assert await result(world, {"one": {"set": {"a": 1, "b": {"c": ["${ .x }"]}}}}, {"x": 2, "y": 3}) == {
        "a": 1,
        "b": {"c": [2]},
    }


async def test_set_may_be_one_expression(world: World) -> None:
    assert await result(world, {"one": {"set": "${ [.x, $context.x] }"}}, {"x": 2}) == [2, 2]


CHOICE = [{"big": {"when": ".n > 9", "then": "big"}}, {"middle": {"when": ".n > 5", "then": "exit"}}]


async def test_the_first_case_that_is_true_says_where_to_go_on(world: World) -> None:
    tasks = {
        "which": {"switch": CHOICE},
        "small": {"set": {"is": "small"}, "then": "end"},
        "big": {"set": {"is": "big"}},
    }
    assert await result(world, tasks, {"n": 10}) == {"is": "big"}
    assert await result(world, tasks, {"n": 7}) == {"n": 7}
    assert await result(world, tasks, {"n": 1}) == {"is": "small"}


async def test_the_default_is_taken_where_no_case_is_true_wherever_it_stands(world: World) -> None:
    tasks = {
        "which": {"switch": [{"else": {"then": "other"}}, *CHOICE]},
        "small": {"set": {"is": "small"}},
        "big": {"set": {"is": "big"}, "then": "end"},
        "other": {"set": {"is": "other"}},
    }
    assert await result(world, tasks, {"n": 10}) == {"is": "big"}
    assert await result(world, tasks, {"n": 1}) == {"is": "other"}


async def test_without_a_match_the_task_itself_says_where_to_go_on(world: World) -> None:
    tasks = {"which": {"switch": CHOICE, "then": "end"}, "big": {"set": {"is": "big"}}}
    assert await result(world, tasks, {"n": 1}) == {"n": 1}


# Where a task goes on.


async def test_a_task_can_go_back_to_one_before_it(world: World) -> None:
    tasks = {
        "count": {"set": {"n": "${ .n + 1 }"}},
        "more": {"switch": [{"yes": {"when": ".n < 5", "then": "count"}}]},
    }
    run = await world.start(document(tasks), {"n": 0})
    assert await run.result() == {"n": 5}
    assert len(await settled(world, run)) == 10


async def test_exit_leaves_the_list_and_end_the_workflow(world: World) -> None:
    for directive, expected in (("exit", {"after": {"b": 1}}), ("end", {"b": 1})):
        inner = listed(a={"do": listed(b={"set": {"b": 1}, "then": directive}, c={"set": {"c": 1}})})
        found = await result(world, {"outer": {"do": inner}, "after": {"set": {"after": "${ . }"}}})
        assert found == expected, directive


async def test_exit_in_the_main_list_ends_the_workflow(world: World) -> None:
    assert await result(world, {"a": {"set": {"a": 1}, "then": "exit"}, "b": {"set": {"b": 1}}}) == {"a": 1}


async def test_an_end_inside_still_goes_through_the_output_of_the_workflow(world: World) -> None:
    tasks = {"outer": {"do": listed(a={"set": {"a": 1}, "then": "end"}), "output": {"as": "7"}}}
    assert await result(world, tasks, output={"as": "[.]"}) == [{"a": 1}]


async def test_tasks_around_an_end_are_settled(world: World) -> None:
    run = await world.start(document({"outer": {"do": listed(a={"set": {"a": 1}, "then": "end"})}}))
    await run.result()
    assert await settled(world, run) == [("a", "completed"), ("outer", "completed")]


async def test_do_gives_what_its_last_task_gives(world: World) -> None:
    tasks = {"outer": {"do": listed(a={"set": {"n": "${ .n + 1 }"}}, b={"set": {"n": "${ .n * 2 }"}})}}
    assert await result(world, tasks, {"n": 1}) == {"n": 4}


# for.


def each(what: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"for": {"in": ".items", **more.pop("of", {})}, "do": listed(body=what), **more}


async def test_a_loop_runs_its_tasks_for_every_item_each_with_what_the_last_gave(world: World) -> None:
    body = {"set": {"items": "${ .items }", "sum": "${ (.sum // 0) + $item * 10 + $index }"}}
    found = await result(world, {"loop": each(body)}, {"items": [1, 2, 3]})
    assert found["sum"] == 63


async def test_variables_of_a_loop_have_the_names_that_it_gives_them(world: World) -> None:
    loop = each({"set": {"got": '${ "\\($place):\\($word)" }'}}, of={"each": "word", "at": "place"})
    assert await result(world, {"loop": loop}, {"items": ["a", "b"]}) == {"got": "1:b"}


async def test_a_loop_over_nothing_gives_its_input(world: World) -> None:
    assert await result(world, {"loop": each({"set": {"no": 1}})}, {"items": []}) == {"items": []}


async def test_a_loop_ends_when_its_condition_is_no_longer_true(world: World) -> None:
    loop = each({"set": {"sum": "${ (.sum // 0) + $item }"}}, **{"while": "(.sum // 0) < 3 and $index < 9"})
    assert await result(world, {"loop": loop}, {"items": [1, 2, 3, 4]}) == {"sum": 3}


async def test_the_condition_of_a_loop_sees_the_context_of_now(world: World) -> None:
    body = {"set": {"n": "${ $index }"}, "export": {"as": "{n: $index}"}}
    loop = each(body, **{"while": "($context.n // 0) < 2"})
    assert await result(world, {"loop": loop}, {"items": [0, 1, 2, 3, 4]}) == {"n": 2}


async def test_loops_in_loops_see_both_variables_and_name_their_rounds(world: World) -> None:
    inner = {"for": {"in": "$row", "each": "cell", "at": "x"}, "do": listed(say=note("${ [$y, $x, $cell] }"))}
    outer = {"for": {"in": "${ .rows }", "each": "row", "at": "y"}, "do": listed(cells=inner)}
    run = await world.start(document({"rows": outer}), {"rows": [[1], [2, 3]]})
    await run.result()
    assert done == [[0, 0, 1], [1, 0, 2], [1, 1, 3]]
    assert [path for path, _ in await paths(world, run)] == [
        "/do/0/rows[0]/do/0/cells[0]/do/0/say",
        "/do/0/rows[0]/do/0/cells",
        "/do/0/rows[1]/do/0/cells[0]/do/0/say",
        "/do/0/rows[1]/do/0/cells[1]/do/0/say",
        "/do/0/rows[1]/do/0/cells",
        "/do/0/rows",
    ]


async def test_a_loop_over_what_is_no_list_fails(world: World) -> None:
    found = await failure(world, {"loop": each({"set": {"no": 1}})}, {"items": {"a": 1}})
    assert kind(found) == "expression"
    assert "a loop needs a list" in found["detail"]


async def test_exit_in_a_loop_leaves_its_round(world: World) -> None:
    inner = listed(a={"if": "$item == 1", "set": {"out": 1}, "then": "exit"}, b={"set": {"b": "${ $item }"}})
    found = await result(world, {"loop": {"for": {"in": "[1, 2, 1]"}, "do": inner}})
    assert found == {"out": 1}


async def test_end_in_a_loop_ends_everything(world: World) -> None:
    loop = {"for": {"in": "[1, 2, 3]"}, "do": listed(a=note("${ $item }", then="end"))}
    assert await result(world, {"loop": loop, "after": {"set": {"no": 1}}}) == 1
    assert done == [1]


async def test_every_round_of_a_loop_has_its_record(world: World) -> None:
    run = await world.start(document({"loop": {"for": {"in": "[5, 6]"}, "do": listed(say=note("${ $item }"))}}))
    await run.result()
    nodes = (await run.state()).nodes
    first, second = nodes["/do/0/loop[0]/do/0/say"], nodes["/do/0/loop[1]/do/0/say"]
    assert (first.input, first.output, first.status, first.attempts) == ({}, 5, "completed", 1)
    assert (second.input, second.output, second.status, second.attempts) == (5, 6, "completed", 1)


# fork.


def fork(compete: bool = False, **branches: Any) -> dict[str, Any]:
    return {"fork": {"branches": listed(**branches), **({"compete": True} if compete else {})}}


def later(duration: str, text: str) -> dict[str, Any]:
    return {"do": listed(nap={"wait": duration}, say=note(text))}


async def test_a_fork_gives_a_list_of_what_its_branches_gave_in_their_order(world: World) -> None:
    made = document({"both": fork(slow=later("PT2H", "slow"), quick={"set": {"n": "${ .n }"}})})
    assert await (await world.start(made, {"n": 1})).result() == ["slow", {"n": 1}]


async def test_branches_run_side_by_side(world: World) -> None:
    run = await world.start(document({"both": fork(a=later("PT1H", "a"), b=later("PT1H", "b"))}))
    await run.result()
    assert world.now().hour == 1


async def test_open_tasks_can_be_seen_while_branches_run(world: World) -> None:
    run = await world.start(document({"both": fork(a=later("PT1H", "a"), b={"wait": "PT2H"})}), {"n": 1})
    await run.until("waiting")
    nodes = (await run.state()).nodes
    assert [(path, one.status, one.input) for path, one in nodes.items()] == [
        ("/do/0/both", "open", {"n": 1}),
        ("/do/0/both/fork/branches/0/a", "open", {"n": 1}),
        ("/do/0/both/fork/branches/0/a/do/0/nap", "open", {"n": 1}),
        ("/do/0/both/fork/branches/1/b", "open", {"n": 1}),
    ]


async def test_of_branches_that_compete_the_first_wins_and_the_others_are_ended(world: World) -> None:
    run = await world.start(document({"race": fork(True, slow=later("PT2H", "slow"), quick=later("PT1H", "quick"))}))
    assert await run.result() == "quick"
    assert done == ["quick"]
    assert [one for one in await settled(world, run) if one[1] == "cancelled"] == [
        ("nap", "cancelled"),
        ("slow", "cancelled"),
    ]


async def test_the_first_error_ends_the_other_branches_and_the_fork(world: World) -> None:
    made = document({"both": fork(slow=later("PT2H", "slow"), bad=REFUSE)})
    run = await world.start(made)
    await run.until("failed")
    assert done == []
    assert (await settled(world, run))[-1] == ("both", "failed")
    assert ("nap", "cancelled") in await settled(world, run)
    error = (await run.state()).error
    assert error is not None and error.details is not None
    assert b"/do/0/both/fork/branches/1/bad" in bytes(error.details)


async def test_a_branch_that_fails_cannot_win(world: World) -> None:
    assert await result(world, {"race": fork(True, bad=REFUSE, slow=later("PT1H", "slow"))}) == "slow"


async def test_where_all_that_compete_fail_the_first_error_counts(world: World) -> None:
    bad = {"do": listed(nap={"wait": "PT1H"}, bad={**REFUSE, "with": ["second"]})}
    found = await failure(world, {"race": fork(True, late=bad, soon={**REFUSE, "with": ["first"]})})
    assert found["detail"].endswith("first")


async def test_forks_in_forks_are_lists_in_lists(world: World) -> None:
    inner = fork(a={"set": {"n": 1}}, b=later("PT1S", "b"))
    assert await result(world, {"outer": fork(x=inner, y={"set": {"n": 2}})}) == [[{"n": 1}, "b"], {"n": 2}]


async def test_an_end_in_a_branch_ends_the_others_and_the_workflow(world: World) -> None:
    for compete in (False, True):
        end = {"do": listed(nap={"wait": "PT1H"}, stop={"set": {"stopped": True}, "then": "end"})}
        run = await world.start(
            document({"both": fork(compete, slow=later("PT2H", "no"), stops=end), "no": note("no")})
        )
        assert await run.result() == {"stopped": True}
        assert done == []
        assert ("slow", "cancelled") in await settled(world, run)


async def test_a_branch_itself_may_say_end(world: World) -> None:
    tasks = {"both": fork(a={"set": {"a": 1}, "then": "end"}, b={"wait": "PT1H"}), "no": note("no")}
    assert await result(world, tasks) == {"a": 1}


async def test_what_branches_export_is_seen_after_the_fork(world: World) -> None:
    tasks = {
        "both": fork(
            a={"set": {"a": 1}, "export": {"as": "$context + {a: 1}"}},
            b={"do": listed(nap={"wait": "PT1H"}, b={"set": {"b": 1}, "export": {"as": "$context + {b: 1}"}})},
        ),
        "tell": {"set": {"context": "${ $context }"}},
    }
    assert await result(world, tasks) == {"context": {"a": 1, "b": 1}}


# raise.

PROBLEM = {"type": "https://example.org/broken", "status": 418}


async def test_a_raised_error_is_that_of_the_workflow(world: World) -> None:
    error = {**PROBLEM, "title": "T", "detail": "d"}
    assert await failure(world, {"one": {"raise": {"error": error}}}) == {**error, "instance": "/do/0/one"}


async def test_a_raised_error_may_have_a_name(world: World) -> None:
    found = await failure(world, {"one": {"raise": {"error": "broken"}}}, use={"errors": {"broken": PROBLEM}})
    assert found == {**PROBLEM, "instance": "/do/0/one"}


async def test_a_raised_error_may_have_expressions(world: World) -> None:
    error = {"type": "${ .type }", "status": "${ 400 + 18 }", "detail": "there is no ${ .what }"}
    found = await failure(world, {"one": {"raise": {"error": error}}}, {"type": "about:blank", "what": "tea"})
    assert found == {"type": "about:blank", "status": 418, "detail": "there is no tea", "instance": "/do/0/one"}


async def test_a_raised_error_whose_parts_are_of_the_wrong_type_is_an_error_of_expressions(world: World) -> None:
    for error in ({"type": "${ 1 }", "status": 400}, {"type": "x", "status": "${ true }"}):
        assert kind(await failure(world, {"one": {"raise": {"error": error}}})) == "expression"


# wait.


@pytest.mark.parametrize("duration", ["PT90S", {"minutes": 1, "seconds": 30}, "${ .for }", "${ {seconds: 90} }"])
async def test_a_wait_takes_its_time_and_lets_its_input_through(duration: Any, world: World) -> None:
    assert await result(world, {"nap": {"wait": duration}}, {"for": "PT1M30S"}) == {"for": "PT1M30S"}
    assert (world.now().minute, world.now().second) == (1, 30)


async def test_a_month_is_one_of_the_calendar_from_the_moment_on_at_which_it_begins(world: World) -> None:
    tasks = {
        "first": {"wait": "P1M"},
        "second": {"wait": "${ .for }"},
        "third": {"do": listed(never={"wait": "P1Y"}), "timeout": {"after": "P1M"}},
    }
    began = world.now()
    assert began.day == 1, "or months have other lengths than below"
    found = await failure(world, tasks, {"for": "P1M"})
    assert (kind(found), found["instance"]) == ("timeout", "/do/2/third")
    ended = world.now()
    assert (ended.year * 12 + ended.month) - (began.year * 12 + began.month) == 3
    assert (ended.day, ended.time()) == (began.day, began.time())


async def test_a_timeout_of_months_counts_from_the_start(world: World) -> None:
    tasks = {"nap": {"wait": "P40D"}, "more": {"wait": "P1Y"}}
    began = world.now()
    assert kind(await failure(world, tasks, timeout={"after": "P2M"})) == "timeout"
    assert (world.now().month - began.month) % 12 == 2
    assert (world.now().day, world.now().time()) == (began.day, began.time())


async def test_tries_in_vain_end_after_a_month_of_the_calendar(world: World) -> None:
    retry = {"delay": "P1D", "limit": {"duration": "P1M"}}
    tries = {"try": listed(no={"raise": {"error": {"type": "x:y", "status": 500}}}), "catch": {"retry": retry}}
    began = world.now()
    await result(world, {"insist": tries})
    assert (world.now() - began).days == monthrange(began.year, began.month)[1]


async def test_a_wait_for_what_is_no_duration_fails(world: World) -> None:
    found = await failure(world, {"nap": {"wait": "${ .for }"}}, {"for": "soon"})
    assert kind(found) == "expression"
    assert "not a duration" in found["detail"]


# Cancel.


async def test_a_cancelled_workflow_ends_its_tasks(world: World) -> None:
    run = await world.start(document({"both": fork(a={"wait": "P1D"}, b=later("P1D", "b"))}))
    await run.until("waiting")
    await run.cancel("enough")
    with pytest.raises(ExecutionCancelled):
        await run.result()
    assert {status for _, status in await settled(world, run)} == {"cancelled"}
