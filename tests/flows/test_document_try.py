"""try: what is caught, how often it is tried again, and what follows."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from perdure import ExecutionCancelled, action
from perdure.flows.document.reader import Reader
from perdure.flows.document.trying import Policy
from perdure.testing import World
from tests.flows.documenting import document, failure, kind, listed, result, settled

calls: list[float] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()


@action
async def doc_try(fails: int = 100) -> str:
    """Fails so many times; each time is noted."""
    calls.append(asyncio.get_running_loop().time())
    if len(calls) <= fails:
        raise ValueError(f"time {len(calls)}")
    return f"after {len(calls)}"


TYPES = "https://serverlessworkflow.io/spec/1.0.0/errors/"
BROKEN = {"type": "https://example.org/broken", "status": 503, "title": "Broken", "detail": "it is broken"}
RAISE = listed(bad={"raise": {"error": BROKEN}})
TELL = {"do": listed(tell={"set": {"caught": "${ $error }"}})}


def attempt(tasks: list[dict[str, Any]] = RAISE, **catch: Any) -> dict[str, Any]:
    return {"try": tasks, "catch": catch}


def trying(fails: int, **retry: Any) -> dict[str, Any]:
    return attempt(listed(call={"call": "doc_try", "with": {"fails": fails}}), retry=retry)


def pauses() -> list[float]:
    return [round(b - a, 3) for a, b in itertools.pairwise(calls)]


# What is caught.


async def test_what_goes_well_is_not_caught(world: World) -> None:
    assert await result(world, {"one": attempt(listed(a={"set": {"a": 1}}), **TELL)}) == {"a": 1}


async def test_a_caught_error_is_a_variable_where_it_is_handled(world: World) -> None:
    found = await result(world, {"one": attempt(**TELL)})
    assert found == {"caught": {**BROKEN, "instance": "/do/0/one/try/0/bad"}}


async def test_the_variable_of_an_error_has_the_name_that_it_is_given(world: World) -> None:
    handler = listed(tell={"set": {"status": "${ $oops.status }"}})
    assert await result(world, {"one": attempt(**{"as": "oops", "do": handler})}) == {"status": 503}


async def test_without_a_handler_the_task_completes_with_its_input(world: World) -> None:
    assert await result(world, {"one": attempt()}, {"n": 1}) == {"n": 1}


@pytest.mark.parametrize(
    ("wanted", "caught"),
    [
        ({"type": BROKEN["type"]}, True),
        ({"type": "https://example.org/other"}, False),
        ({"status": 503}, True),
        ({"status": 500}, False),
        ({"title": "Broken", "status": 503}, True),
        ({"title": "Broken", "status": 500}, False),
        ({"detail": "it is broken"}, True),
        ({"details": "it is broken"}, True),
        ({"instance": "/do/0/one/try/0/bad"}, True),
        ({"instance": "/do/0/one"}, False),
        ({}, True),
    ],
)
async def test_a_filter_means_errors_that_have_all_it_names(wanted: dict[str, Any], caught: bool, world: World) -> None:
    tasks = {"one": attempt(errors={"with": wanted}, **TELL)}
    found = await (result if caught else failure)(world, tasks)
    assert ("caught" in found) is caught


@pytest.mark.parametrize("path", ["dsl/errors/types/", "errors/types/", "spec/1.0.0/errors/"])
@pytest.mark.parametrize("host", ["https://serverlessworkflow.io/", "https://open-workflow-specification.org/"])
async def test_types_of_the_specification_are_caught_however_they_are_written(
    host: str, path: str, world: World
) -> None:
    raised = {"type": f"{TYPES}communication", "status": 500}
    tasks = {
        "one": attempt(
            listed(a={"raise": {"error": raised}}), errors={"with": {"type": f"{host}{path}communication"}}, **TELL
        )
    }
    assert (await result(world, tasks))["caught"]["type"] == raised["type"]


async def test_types_that_the_specification_does_not_name_are_compared_as_they_are(world: World) -> None:
    raised = {"type": "https://serverlessworkflow.io/errors/types/mine", "status": 500}
    tasks = {"one": attempt(listed(a={"raise": {"error": raised}}), errors={"with": {"type": f"{TYPES}mine"}})}
    assert (await failure(world, tasks))["type"] == raised["type"]


async def test_when_and_except_when_see_the_error_and_the_input(world: World) -> None:
    async def caught(n: int, **catch: Any) -> bool:
        try:
            return await result(world, {"one": attempt(**catch)}, {"n": n}) == {"n": n}
        except Exception:
            return False

    when = {"when": "$error.status == 503 and .n > 1"}
    assert [await caught(n, **when) for n in (1, 2)] == [False, True]
    unless = {"exceptWhen": "${ .n > 1 }"}
    assert [await caught(n, **unless) for n in (1, 2)] == [True, False]
    assert await caught(2, **when, **unless) is False


async def test_errors_of_actions_and_expressions_are_caught_as_what_they_are(world: World) -> None:
    caught = await result(world, {"one": attempt(listed(call={"call": "doc_try"}), **TELL)})
    assert kind(caught["caught"]) == "runtime"
    assert caught["caught"]["title"] == "ValueError"
    caught = await result(world, {"one": attempt(listed(a={"set": {"n": "${ .a.b }"}}), **TELL)}, {"a": 1})
    assert kind(caught["caught"]) == "expression"


async def test_an_error_of_the_handler_goes_on(world: World) -> None:
    other = {"type": "about:other", "status": 500}
    found = await failure(world, {"one": attempt(do=listed(worse={"raise": {"error": other}}))})
    assert found == {**other, "instance": "/do/0/one/catch/do/0/worse"}


async def test_what_one_does_not_catch_the_next_one_does(world: World) -> None:
    inner = listed(inner=attempt(errors={"with": {"status": 400}}))
    assert "caught" in await result(world, {"outer": attempt(inner, **TELL)})


async def test_a_cancel_is_not_caught(world: World) -> None:
    made = document({"one": attempt(listed(nap={"wait": "P1D"}), **TELL), "two": {"set": {"n": 1}}})
    run = await world.start(made)
    await run.until("waiting")
    await run.cancel("enough")
    with pytest.raises(ExecutionCancelled):
        await run.result()
    assert await settled(world, run) == [("nap", "cancelled"), ("one", "cancelled")]


async def test_an_end_is_not_caught(world: World) -> None:
    tasks = {"one": attempt(listed(a={"set": {"a": 1}, "then": "end"}), **TELL), "two": {"set": {"b": 1}}}
    assert await result(world, tasks) == {"a": 1}


# Trying again.


async def test_tasks_are_tried_again_until_they_succeed(world: World) -> None:
    run = await world.start(document({"one": trying(2, delay="PT1S")}))
    assert await run.result() == "after 3"
    assert pauses() == [1, 1]
    assert (await run.state()).nodes["/do/0/one"].attempts == 3


async def test_every_attempt_begins_with_the_input_of_the_task(world: World) -> None:
    tasks = listed(
        count={"set": {"n": "${ .n + 1 }"}, "export": {"as": "."}},
        call={"call": "doc_try", "with": {"fails": 2}},
        tell={"set": {"n": "${ $context.n }"}},
    )
    assert await result(world, {"one": attempt(tasks, retry={})}, {"n": 0}) == {"n": 1}


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        ({"delay": "PT2S"}, [2, 2, 2, 2]),
        ({"delay": {"seconds": 2}, "backoff": {"constant": {}}}, [2, 2, 2, 2]),
        ({"delay": "PT2S", "backoff": {"linear": {}}}, [2, 4, 6, 8]),
        ({"delay": "PT2S", "backoff": {"exponential": {}}}, [2, 4, 8, 16]),
        ({"backoff": {"linear": {}}}, [1, 2, 3, 4]),
        ({"backoff": {"exponential": {}}}, [1, 2, 4, 8]),
        ({}, [0, 0, 0, 0]),
        ({"delay": "PT20H", "backoff": {"exponential": {}}}, [72_000, 86_400, 86_400, 86_400]),
        ({"delay": "${ {seconds: .n} }"}, [3, 3, 3, 3]),
    ],
)
async def test_the_pause_grows_as_the_back_off_says(retry: dict[str, Any], expected: list[int], world: World) -> None:
    await result(world, {"one": trying(4, **retry)}, {"n": 3})
    assert pauses() == expected


async def test_the_count_limits_all_attempts_together(world: World) -> None:
    tasks = {"one": trying(9, limit={"attempt": {"count": 3}})}
    tasks["one"]["catch"]["do"] = TELL["do"]
    run = await world.start(document(tasks))
    assert "time 3" in (await run.result())["caught"]["detail"]
    assert len(calls) == 3
    assert (await run.state()).nodes["/do/0/one"].attempts == 3


async def test_a_handler_runs_only_when_it_is_not_tried_again(world: World) -> None:
    tasks = {"one": trying(1, delay="PT1S")}
    tasks["one"]["catch"]["do"] = TELL["do"]
    assert await result(world, tasks) == "after 2"


async def test_the_duration_limits_all_attempts_and_pauses_together(world: World) -> None:
    assert await result(world, {"one": trying(9, delay="PT10S", limit={"duration": "PT35S"})}, {"n": 1}) == {"n": 1}
    assert pauses() == [10, 10, 10]


async def test_each_attempt_can_have_a_limit(world: World) -> None:
    nap = attempt(
        listed(nap={"wait": "PT1H"}),
        retry={"delay": "PT1S", "limit": {"attempt": {"count": 2, "duration": "PT5S"}}},
        **TELL,
    )
    found = await result(world, {"one": nap})
    assert (kind(found["caught"]), found["caught"]["status"]) == ("timeout", 408)
    assert world.now().second == 11


async def test_the_policy_decides_by_the_error_whether_it_is_tried_again(world: World) -> None:
    await result(world, {"one": trying(9, when='$error.detail | endswith("time 1") or endswith("time 2")')})
    assert len(calls) == 3
    calls.clear()
    await result(world, {"one": trying(9, exceptWhen='$error.detail | endswith("time 2")')})
    assert len(calls) == 2


async def test_a_policy_may_have_a_name(world: World) -> None:
    task = attempt(listed(call={"call": "doc_try", "with": [2]}), retry="often")
    assert await result(world, {"one": task}, use={"retries": {"often": {"delay": "PT1S"}}}) == "after 3"


async def test_jitter_is_added_within_its_bounds(world: World) -> None:
    await result(world, {"one": trying(8, delay="PT10S", jitter={"from": "PT1S", "to": "PT3S"})})
    assert all(11 <= pause <= 13 for pause in pauses())
    assert len(set(pauses())) > 4


@settings(max_examples=60)
@given(
    st.integers(0, 100_000),
    st.sampled_from(["constant", "linear", "exponential"]),
    st.integers(1, 200),
    st.integers(0, 10_000),
)
def test_pauses_follow_the_arithmetic_and_never_exceed_a_day(delay: int, backoff: str, tries: int, seed: int) -> None:
    reader = Reader({})
    policy = Policy(reader, {"delay": {"milliseconds": delay}, "backoff": {backoff: {}}}, "/retry", (), ())
    assert reader.problems == []
    factor = {"constant": 1, "linear": tries, "exponential": 2 ** (tries - 1)}[backoff]
    assert policy.pause(tries, 0, 0, None, {}) == min(delay * 1000 * factor, 86_400_000_000)


async def test_attempts_are_told_also_where_the_error_is_not_caught_in_the_end(world: World) -> None:
    tasks = {"one": trying(9, delay="PT1S")}
    tasks["one"]["catch"]["exceptWhen"] = '$error.detail | endswith("time 3")'
    run = await world.start(document(tasks))
    await run.until("failed")
    assert (await run.state()).nodes["/do/0/one"].attempts == 3


# Timeouts.


async def test_a_task_that_takes_too_long_fails_with_a_timeout(world: World) -> None:
    found = await failure(world, {"nap": {"wait": "PT1H", "timeout": {"after": "PT5S"}}})
    assert (kind(found), found["status"], found["instance"]) == ("timeout", 408, "/do/0/nap")
    assert world.now().second == 5


async def test_a_timeout_may_have_a_name_and_be_an_expression(world: World) -> None:
    task = {"wait": "PT1H", "timeout": "short"}
    await failure(world, {"nap": task}, {"n": 7}, use={"timeouts": {"short": {"after": "${ {seconds: .n} }"}}})
    assert world.now().second == 7


async def test_a_timeout_of_a_task_can_be_caught(world: World) -> None:
    nap = {"wait": "PT1H", "timeout": {"after": "PT5S"}}
    tasks = {"one": attempt(listed(nap=nap), errors={"with": {"type": f"{TYPES}timeout", "status": 408}}, **TELL)}
    assert (await result(world, tasks))["caught"]["instance"] == "/do/0/one/try/0/nap"


async def test_a_task_in_time_is_not_touched(world: World) -> None:
    tasks = {"nap": {"wait": "PT5S", "timeout": {"after": "PT5.1S"}}, "long": {"wait": "PT1H"}}
    assert await result(world, tasks, {"n": 1}) == {"n": 1}


async def test_a_timeout_around_tasks_ends_the_one_that_is_open(world: World) -> None:
    made = document({"outer": {"do": listed(a={"wait": "PT3S"}, b={"wait": "PT3S"}), "timeout": {"after": "PT5S"}}})
    run = await world.start(made)
    await run.until("failed")
    assert await settled(world, run) == [("a", "completed"), ("b", "cancelled"), ("outer", "failed")]


async def test_a_timeout_of_the_workflow_cannot_be_caught(world: World) -> None:
    made = document({"one": attempt(listed(nap={"wait": "PT1H"}), **TELL)}, timeout={"after": "PT5S"})
    run = await world.start(made)
    await run.until("failed")
    assert await settled(world, run) == [("nap", "cancelled"), ("one", "cancelled")]
    error = (await run.state()).error
    assert error is not None and error.type == f"{TYPES}timeout"


async def test_an_action_that_is_cut_off_is_not_waited_for(world: World) -> None:
    @action
    async def doc_hang() -> None:
        await asyncio.sleep(86_400)

    found = await failure(world, {"hang": {"call": "doc_hang", "timeout": {"after": "PT5S"}}})
    assert kind(found) == "timeout"
    assert world.now().minute == 0
