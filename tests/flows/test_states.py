"""What workflows of states do: their data, functions, retries, timeouts, branches and rounds, one idea at a time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from perdure import ExecutionFailed
from perdure.core import events as ev
from perdure.errors import InvalidValue
from perdure.flows.states import States
from perdure.flows.states.data import merged
from perdure.runtime.run import Run
from perdure.testing import World, simulate
from tests.flows.stating import body, echoes, operation, refuses, result, states


def sleep(name: str, duration: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "sleep",
        "duration": duration,
        **({} if "transition" in more else {"end": True}),
        **more,
    }


def inject(name: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "inject", "data": data, **({} if "transition" in more else {"end": True}), **more}


# --- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "both"),
    [
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": "x"}, {"a": 2}, {"a": 2}),
        ([1, True], [True, 1, 2], [1, True, 2]),
        ([{"n": 1}], [{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 2}]),
        ({"a": None}, {"a": [1]}, {"a": [1]}),
        ({"a": [1]}, {"a": None}, {"a": None}),
    ],
)
def test_values_are_merged_as_the_rules_say(old: Any, new: Any, both: Any) -> None:
    assert merged(old, new) == both


@pytest.mark.parametrize(("old", "new"), [({}, []), ([], {}), ({"a": {}}, {"a": 1}), ("x", []), ({}, "x")])
def test_values_of_different_kinds_are_not_merged(old: Any, new: Any) -> None:
    with pytest.raises(InvalidValue, match="cannot be merged into"):
        merged(old, new)


async def test_filters_of_a_state_shape_what_comes_in_and_what_goes_out(world: World) -> None:
    filters = {"input": "${ {n: .order.n} }", "output": "${ .n }"}
    made = states(inject("a", {"m": 2}, stateDataFilter=filters))
    assert await result(world, made, {"order": {"n": 1}, "rest": 0}) == 1


async def test_results_go_where_the_filter_says(world: World) -> None:
    filters = {"fromStateData": "${ .order }", "results": "${ .result }", "toStateData": "${ .seen.number }"}
    made = states(operation(echoes(x={"y": 1}, n="${ .n }", actionDataFilter=filters | {"results": "${ .n }"})))
    assert await result(world, made, {"order": {"n": 7}}) == {"order": {"n": 7}, "seen": {"number": 7}}


async def test_results_that_are_not_used_change_nothing(world: World) -> None:
    made = states(operation(echoes(n=1, actionDataFilter={"useResults": False, "toStateData": "${ .x }"})))
    assert await result(world, made) == {}


async def test_each_action_sees_what_those_before_it_gave(world: World) -> None:
    made = states(operation(echoes(n=1), echoes(n="${ .n + 1 }", m="${ .n }")))
    assert await result(world, made) == {"n": 2, "m": 1}


async def test_actions_side_by_side_see_the_same_and_are_merged_in_their_order(world: World) -> None:
    slow = echoes(n="${ .n + 1 }", sleep={"before": "PT1M"})
    made = states(operation(slow, echoes(n="${ .n + 10 }"), actionMode="parallel"))
    assert await result(world, made, {"n": 0}) == {"n": 10}


async def test_a_result_that_does_not_fit_the_data_is_an_error_that_says_what_to_do(world: World) -> None:
    with pytest.raises(ExecutionFailed, match="say with toStateData where") as error:
        await result(world, states(operation(echoes(result="text"))))
    assert error.value.details["type"].endswith("/validation")
    assert error.value.details["instance"] == "/states/0"


async def test_an_action_is_skipped_if_its_condition_does_not_hold(world: World) -> None:
    made = states(operation(echoes(a=1, condition="${ .n > 1 }"), echoes(b=1, condition="${ .n == 1 }")))
    assert await result(world, made, {"n": 1}) == {"n": 1, "b": 1}


# --- functions and names ---------------------------------------------------------------------------------------------

AGE = {"name": "is adult", "type": "expression", "operation": ".age >= $CONST.adult"}


async def test_an_expression_has_a_name_in_conditions_and_as_an_action(world: World) -> None:
    switch = {
        "name": "s",
        "type": "switch",
        "dataConditions": [{"condition": "${ fn:is adult }", "transition": "a"}],
        "defaultCondition": {"end": True},
    }
    call = {"functionRef": "is adult", "actionDataFilter": {"toStateData": "${ .adult }"}}
    made = states(switch, operation(call), functions=[AGE], constants={"adult": 18})
    assert await result(world, made, {"age": 18}) == {"age": 18, "adult": True}
    assert await result(world, made, {"age": 17}) == {"age": 17}


async def test_a_secret_is_a_reference(world: World) -> None:
    made = states(operation(echoes(key="${ $SECRETS.stripe }")), secrets=["stripe"])
    assert await result(world, made) == {"key": "secret://stripe"}


async def test_an_action_may_have_the_name_of_its_function(world: World) -> None:
    function = {"name": "stating.echo", "type": "custom", "operation": "/path/to/script.ts#main"}
    call = {"functionRef": {"refName": "stating.echo", "arguments": {"n": 1}}}
    assert await result(world, states(operation(call), functions=[function])) == {"n": 1}


async def test_an_input_that_does_not_fit_is_refused_at_the_start(world: World) -> None:
    schema = {"type": "object", "required": ["n"]}
    made = states(operation(), dataInputSchema={"schema": schema, "failOnValidationErrors": True})
    with pytest.raises(InvalidValue, match="does not fit its schema"):
        await world.start(made, {})
    lenient = states(operation(), dataInputSchema={"schema": schema, "failOnValidationErrors": False})
    assert await result(world, lenient) == {}


# --- errors and retries ----------------------------------------------------------------------------------------------


async def tries(world: World, run: Run[Any]) -> list[int]:
    """When its actions failed, in seconds after its start."""
    rows = await world.rows(run.key)
    failed = [row.at for row in rows if isinstance(event := ev.read(row), ev.ActionSettled) and event.error is not None]
    return [round((at - rows[0].at) / 1e6) for at in failed]


async def failing(world: World, *policy: dict[str, Any], **more: Any) -> list[int]:
    errors = more.pop("errors", [{"name": "Refused"}])
    made = states(operation(refuses(**more.pop("action", {}))), retries=list(policy), errors=errors, **more)
    run = await world.start(made, {})
    try:
        await run.result()
    except ExecutionFailed:
        pass
    return await tries(world, run)


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        ({"maxAttempts": 2, "delay": "PT10S"}, [0, 10, 20]),
        ({"maxAttempts": 4, "delay": "PT10S", "increment": "PT2S"}, [0, 10, 22, 36, 52]),
        ({"maxAttempts": 4, "delay": "PT10S", "multiplier": 2}, [0, 10, 30, 70, 150]),
        ({"maxAttempts": "3", "delay": "PT10S", "multiplier": "4", "maxDelay": "PT20S"}, [0, 10, 30, 50]),
        ({"maxAttempts": 0}, [0]),
    ],
)
async def test_the_pause_grows_as_the_policy_says(world: World, policy: dict[str, Any], times: list[int]) -> None:
    assert await failing(world, {"name": "p", **policy}, action={"retryRef": "p"}) == times


@pytest.mark.parametrize("jitter", [0.5, "PT5S"])
async def test_jitter_moves_the_pause_both_ways_within_its_bounds(world: World, jitter: Any) -> None:
    policy = {"name": "p", "maxAttempts": 40, "delay": "PT10S", "jitter": jitter}
    times = await failing(world, policy, action={"retryRef": "p"})
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(pauses) == 40
    assert min(pauses) in (5, 6, 7)
    assert max(pauses) in (13, 14, 15)


async def test_only_errors_that_are_known_are_tried_again(world: World) -> None:
    policy = {"name": "p", "maxAttempts": 1}
    assert await failing(world, policy, action={"retryRef": "p"}, errors=[{"name": "Other"}]) == [0]
    both = [{"name": "Refused"}, {"name": "Other"}]
    assert await failing(world, policy, action={"retryRef": "p", "retryableErrors": ["Other"]}, errors=both) == [0]
    assert await failing(world, policy, action={"retryRef": "p", "retryableErrors": ["Refused"]}, errors=both) == [0, 0]


async def test_with_auto_retries_all_errors_are_tried_again_but_those_that_are_named(world: World) -> None:
    limit = {"timeouts": {"workflowExecTimeout": "PT20S"}}
    assert await failing(world, autoRetries=True, **limit) == [0, 1, 3, 7, 15]
    named = {"nonRetryableErrors": ["Refused"]}
    assert await failing(world, autoRetries=True, action=named, **limit) == [0]


@pytest.mark.parametrize(
    ("error", "caught"),
    [
        ({"name": "Refused"}, True),
        ({"name": "no luck", "code": "Refused"}, True),
        ({"name": "no luck", "code": "runtime"}, True),
        ({"name": "no luck", "code": "500"}, True),
        ({"name": "Refused", "code": "404"}, False),
        ({"name": "*"}, True),
    ],
)
async def test_an_error_is_known_by_its_code_or_else_by_its_name(world: World, error: Any, caught: bool) -> None:
    ways = [{"errorRef": error["name"], "end": True}]
    run = await world.start(states(operation(refuses(), onErrors=ways), errors=[error]), {})
    assert await run.until("completed", "failed") == ("completed" if caught else "failed")


async def test_an_error_of_a_child_is_known_by_its_own_name(world: World) -> None:
    part = states(operation(refuses("Broken")))
    ways = [{"errorRef": "Broken", "end": True}]
    made = states(operation({"subFlowRef": part.name}, onErrors=ways), errors=[{"name": "Broken"}])
    assert await result(world, made) == {}


# --- timeouts --------------------------------------------------------------------------------------------------------


async def test_a_try_of_an_action_that_takes_too_long_is_tried_again(world: World) -> None:
    part = states(sleep("s", "PT1H"))
    action = {"subFlowRef": part.name, "retryRef": "p"}
    late = [{"name": "Late", "code": "timeout"}]
    made = states(
        operation(action, onErrors=[{"errorRef": "Late", "end": True}], timeouts={"actionExecTimeout": "PT10S"}),
        retries=[{"name": "p", "maxAttempts": 2}],
        errors=late,
    )
    run = await world.start(made, {})
    assert await run.result() == {}
    [node] = [one for one in (await run.state()).nodes.values() if one.node.endswith(part.name)]
    assert (node.status, node.attempts) == ("failed", 3)


async def test_a_state_has_the_timeout_of_the_workflow_unless_it_has_its_own(world: World) -> None:
    late = {"errors": [{"name": "Late", "code": "408"}], "timeouts": {"stateExecTimeout": "PT1M"}}
    ways = [{"errorRef": "Late", "transition": "b"}]
    made = states(sleep("a", "PT1H", onErrors=ways), inject("b", {"late": True}), **late)
    assert await result(world, made) == {"late": True}
    patient = {"stateExecTimeout": {"total": "PT2H"}}
    made = states(sleep("a", "PT1H", onErrors=ways, timeouts=patient), inject("b", {"late": True}), **late)
    assert await result(world, made) == {}


async def test_months_are_those_of_the_calendar_from_the_moment_on_at_which_they_begin(world: World) -> None:
    began = world.now()
    made = states(sleep("a", "P1M", transition="b"), sleep("b", "P1Y"), timeouts={"workflowExecTimeout": "P2M"})
    with pytest.raises(ExecutionFailed):
        await result(world, made)
    assert (world.now().month - began.month) % 12 == 2
    assert (world.now().day, world.now().time()) == (began.day, began.time())


async def test_a_branch_that_takes_too_long_is_an_error_of_its_state(world: World) -> None:
    branches = [
        {"name": "slow", "actions": [echoes(sleep={"before": "PT1H"})], "timeouts": {"branchExecTimeout": "PT1M"}},
        {"name": "patient", "actions": [echoes(sleep={"before": "PT1H"})]},
    ]
    made = states({"name": "p", "type": "parallel", "branches": branches, "end": True})
    run = await world.start(made, {})
    with pytest.raises(ExecutionFailed, match="branch slow took longer than 60 s"):
        await run.result()


# --- branches and rounds ---------------------------------------------------------------------------------------------


async def test_branches_have_their_own_copies_and_are_merged_in_their_order(world: World) -> None:
    branches = [
        {"name": "slow", "actions": [echoes(n="${ .n + 1 }", sleep={"before": "PT1H"}), echoes(a="${ .n }")]},
        {"name": "fast", "actions": [echoes(m="${ .n }")]},
    ]
    made = states({"name": "p", "type": "parallel", "branches": branches, "end": True})
    assert await result(world, made, {"n": 0}) == {"n": 1, "a": 1, "m": 0}


async def test_at_least_so_many_branches_are_enough(world: World) -> None:
    branches = [
        {"name": f"b{hours}", "actions": [echoes(**{f"h{hours}": True}, sleep={"before": f"PT{hours}H"})]}
        for hours in (3, 1, 2)
    ]
    parallel = {"name": "p", "type": "parallel", "completionType": "atLeast", "branches": branches}
    made = states({**parallel, "numCompleted": "${ .count }", "end": True})
    assert await result(world, made, {"count": 2}) == {"count": 2, "h1": True, "h2": True}


async def test_rounds_are_gathered_in_the_order_of_the_items(world: World) -> None:
    each = {
        "name": "f",
        "type": "foreach",
        "inputCollection": "${ .items }",
        "outputCollection": "${ .done }",
        "iterationParam": "it",
        "actions": [echoes(result="${ .it * .by }", sleep={"before": "PT1M"})],
        "end": True,
    }
    data = {"items": [2, 2, 3], "by": 10, "done": ["before"]}
    assert await result(world, states(each), data) == data | {"done": ["before", 20, 20, 30]}


async def test_without_a_collection_the_results_of_rounds_are_merged(world: World) -> None:
    each = {
        "name": "f",
        "type": "foreach",
        "mode": "sequential",
        "inputCollection": "${ .items }",
        "actions": [echoes(sum="${ (.sum // 0) + .item }")],
        "end": True,
    }
    assert await result(world, states(each), {"items": [1, 2, 3]}) == {"items": [1, 2, 3], "sum": 6}


async def test_rounds_go_batch_by_batch(world: World) -> None:
    each = {
        "name": "f",
        "type": "foreach",
        "inputCollection": "${ [range(5)] }",
        "batchSize": 2,
        "actions": [echoes(n="${ .item }", sleep={"before": "PT1M"})],
        "end": True,
    }
    run = await world.start(states(each), {})
    await run.result()
    rows = await world.rows(run.key)
    begun = [row.at for row in rows if isinstance(event := ev.read(row), ev.NodeStarted) and "actions" in event.node]
    assert [round((at - rows[0].at) / 6e7) for at in begun] == [0, 0, 1, 1, 2]


async def test_every_round_has_a_record_of_each_of_its_actions(world: World) -> None:
    actions = [echoes(n="${ .item }", sleep={"before": "PT1M"}), echoes(m="${ .n + 1 }")]
    each = {"name": "f", "type": "foreach", "inputCollection": "${ .items }", "actions": actions, "end": True}
    run = await world.start(states(each), {"items": [5, 6]})
    await run.result()
    records = [one for name, one in (await run.state()).nodes.items() if "actions" in name]
    items = {"items": [5, 6]}
    assert {one.node: (one.input, one.output, one.status, one.attempts) for one in records} == {
        "/states/f[0]/actions/0/echo": (items | {"item": 5}, {"n": 5}, "completed", 1),
        "/states/f[1]/actions/0/echo": (items | {"item": 6}, {"n": 6}, "completed", 1),
        "/states/f[0]/actions/1/echo": (items | {"item": 5, "n": 5}, {"m": 6}, "completed", 1),
        "/states/f[1]/actions/1/echo": (items | {"item": 6, "n": 6}, {"m": 7}, "completed", 1),
    }


async def test_a_collection_that_is_no_list_is_an_error(world: World) -> None:
    each = {"name": "f", "type": "foreach", "inputCollection": "${ .items }", "actions": [echoes()], "end": True}
    with pytest.raises(ExecutionFailed, match="inputCollection gives no list"):
        await result(world, states(each))


# --- other workflows and long lives ----------------------------------------------------------------------------------


async def test_a_child_gets_the_data_and_gives_its_own(world: World) -> None:
    part = states(inject("a", {"m": 2}))
    assert await result(world, states(operation({"subFlowRef": part.name})), {"n": 1}) == {"n": 1, "m": 2}


async def test_a_child_is_found_by_the_version_that_it_gives_itself(world: World) -> None:
    for number, label in enumerate(("1.0", "2.0"), 1):
        States({**body(inject("a", {"from": label})), "id": "stating-labelled", "version": label}, version=number)
    for ref, label in (({"version": "1.0"}, "1.0"), ({}, "2.0")):
        made = states(operation({"subFlowRef": {"workflowId": "stating-labelled", **ref}}))
        assert await result(world, made) == {"from": label}


async def test_a_picture_shows_where_an_execution_is(world: World) -> None:
    run = await world.start(states(inject("a", {}, transition="b"), sleep("b", "PT1H")), {})
    await world.settle()
    marks = {box.label: box.mark for box in (await run.diagram()).boxes}
    assert (marks["a"], marks["b"]) == ("done", "current")


def test_whatever_fails_the_end_is_the_same() -> None:
    branches = [
        {"name": "slow", "actions": [echoes(a=1, sleep={"before": "PT20S"})]},
        {"name": "fast", "actions": [echoes(b=1)]},
    ]
    parallel = {"name": "p", "type": "parallel", "branches": branches, "completionType": "atLeast", "numCompleted": 1}
    made = states(
        {**parallel, "compensatedBy": "undo", "transition": "each"},
        {
            "name": "each",
            "type": "foreach",
            "inputCollection": "${ [1, 2, 3] }",
            "batchSize": 2,
            "outputCollection": "${ .out }",
            "actions": [echoes(result="${ .item }")],
            "transition": {"nextState": "last", "compensate": True},
        },
        operation(echoes(undone=True), name="undo", usedForCompensation=True),
        operation(echoes(c="${ .undone }"), name="last"),
    )

    async def check(run: Run[Any]) -> None:
        assert await run.result() == {"b": 1, "out": [1, 2, 3], "undone": True, "c": True}

    assert simulate(made, {}, seeds=range(10), check=check).executions == 30


async def test_a_child_that_nobody_waits_for_may_live_on(world: World) -> None:
    part = states(sleep("s", "PT1H"))
    lives = {"workflowId": part.name, "invoke": "async", "onParentComplete": "continue"}
    run = await world.start(states(operation({"subFlowRef": lives})), {})
    await run.result()
    await world.advance("30m")
    other = world.app.get(f"{run.id}.1")
    assert await other.status() == "waiting"
    assert await other.result() == {}


async def test_a_long_circle_of_states_goes_on_from_checkpoints(world: World) -> None:
    made = states(
        operation(echoes(n="${ .n + 1 }"), name="count", transition="nap", compensatedBy="back"),
        sleep("nap", "PT1S", transition="more"),
        {
            "name": "more",
            "type": "switch",
            "dataConditions": [{"condition": "${ .n < 100 }", "transition": "count"}],
            "defaultCondition": {"end": {"compensate": True}},
        },
        operation(echoes(n="${ .n - 1 }"), name="back", usedForCompensation=True),
    )
    run = await world.start(made, {"n": 0})
    assert await run.result() == {"n": 0}
    log = [ev.read(row) for row in await world.rows(run.key)]
    assert sum(isinstance(event, ev.Restarted) for event in log) >= 2
