"""Splits and joins of graphs: what runs at the same time, what a join waits for, and what it ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from perdure import ExecutionFailed, action
from perdure.flows.graph.state import State
from perdure.testing import World
from tests.flows.making import graph, settled

done: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@action
async def s_do(name: str) -> str:
    done.append(name)
    return name


@action
async def s_fail() -> None:
    raise ValueError("no")


def do(name: str) -> tuple[str, dict[str, Any]]:
    return "action", {"action": "s_do", "with": {"name": name}}


def pause(length: str | int) -> tuple[str, dict[str, Any]]:
    return "delay", {"duration": length}


async def test_a_join_waits_for_all_branches_and_has_their_outputs(world: World) -> None:
    made = graph(
        "fork",
        {
            "start": "trigger",
            "fork": "parallel",
            "a": do("a"),
            "nap": pause("1h"),
            "b": do("b"),
            "join": "join",
            "end": "end",
        },
        "start > fork > a > join",
        "fork > nap > b > join > end",
    )
    run = await world.start(made)
    assert await run.result() == {"a": "a", "b": "b"}
    assert [name for name, _ in await settled(world, run)].count("join") == 1


async def test_two_waits_of_a_fork_both_resume(world: World) -> None:
    made = graph(
        "two_waits",
        {
            "start": "trigger",
            "fork": "parallel",
            "x": ("wait", {"events": [{"name": "x"}]}),
            "y": ("wait", {"events": [{"name": "y"}]}),
            "join": "join",
        },
        "start > fork > x > join",
        "fork > y > join",
    )
    run = await world.start(made)
    await run.until("waiting")
    assert (await run.state()).published["open"] == ["x", "y"]
    await run.send("y", 2)
    await world.crash()
    await run.send("x", 1)
    assert await run.result() == {"x": [1], "y": [2]}


@pytest.mark.parametrize("crashes", [(), (90,), (30, 90, 150)], ids=["no crash", "one crash", "a crash before each"])
async def test_two_delays_of_a_fork_both_resume_behind_themselves_on_any_worker(
    crashes: tuple[int, ...], world: World
) -> None:
    made = graph(
        "two_delays",
        {
            "start": "trigger",
            "fork": "parallel",
            "x0": do("x0"),
            "x": pause("PT1H"),
            "x1": do("x1"),
            "y0": do("y0"),
            "y": ("delay", {"duration": 2, "unit": "hours"}),
            "y1": do("y1"),
            "join": "join",
        },
        "start > fork > x0 > x > x1 > join",
        "fork > y0 > y > y1 > join",
    )
    run = await world.start(made)
    began, at = world.micros(), 0
    await run.until("waiting")
    assert (await run.state()).published["open"] == ["x", "y"]
    for minutes in crashes:
        await world.advance(60.0 * (minutes - at))
        at = minutes
        await world.crash()
    assert await run.result() == {"x1": "x1", "y1": "y1"}
    assert done == ["x0", "y0", "x1", "y1"], "each once: what was before a delay is not done again"
    assert world.micros() - began == pytest.approx(max(2 * 3600, 60 * at) * 1e6, abs=20e6)
    settles = [(name, status) for name, status in await settled(world, run) if name in "xy"]
    assert settles == [("x", "completed"), ("y", "completed")]


async def test_a_branch_that_ends_elsewhere_keeps_no_join_waiting(world: World) -> None:
    made = graph(
        "elsewhere",
        {
            "start": "trigger",
            "fork": "parallel",
            "ask": ("condition", {"when": "false"}),
            "a": do("a"),
            "b": do("b"),
            "nap": pause("1h"),
            "own": ("end", {"result": "own"}),
            "join": "join",
            "after": do("after"),
        },
        "start > fork > ask:true > a > join",
        "fork > b > join > after",
        "fork > nap > own",
    )
    run = await world.start(made)
    await world.advance("1m")
    assert done == ["b", "after"]
    assert await run.result() == "own"


async def test_a_join_goes_on_when_the_last_branch_turns_away(world: World) -> None:
    made = graph(
        "turns_away",
        {
            "start": "trigger",
            "fork": "parallel",
            "a": do("a"),
            "nap": pause("1h"),
            "ask": ("condition", {"when": "false"}),
            "join": "join",
        },
        "start > fork > a > join",
        "fork > nap > ask:true > join",
    )
    run = await world.start(made)
    await world.advance("30m")
    assert (await run.state()).published["open"] == ["join", "nap"]
    assert await run.result() == {"a": "a"}


@pytest.mark.parametrize(("mode", "came"), [("any", ["b"]), (2, ["b", "c"])])
async def test_a_join_of_some_ends_the_rest_of_its_split(world: World, mode: Any, came: list[str]) -> None:
    made = graph(
        "race",
        {
            "start": "trigger",
            "fork": "parallel",
            "a": pause("3h"),
            "b": do("b"),
            "nap": pause("1h"),
            "c": do("c"),
            "other": pause("9h"),
            "join": ("join", {"mode": mode}),
        },
        "start > fork > a > join",
        "fork > b > join",
        "fork > nap > c > join",
        "fork > other",
    )
    run = await world.start(made)
    assert await run.result() == {name: name for name in came}
    statuses = await settled(world, run)
    assert ("a", "cancelled") in statuses and ("other", "cancelled") in statuses
    assert (("nap", "cancelled") in statuses) == (mode == "any")


async def test_a_join_of_some_goes_on_with_fewer_if_no_more_can_come(world: World) -> None:
    made = graph(
        "too_few",
        {
            "start": "trigger",
            "fork": "parallel",
            "a": do("a"),
            "ask": ("condition", {"when": "false"}),
            "join": ("join", {"mode": 2}),
        },
        "start > fork > a > join",
        "fork > ask:true > join",
    )
    assert await (await world.start(made)).result() == {"a": "a"}


async def test_an_inner_join_ends_only_its_own_split(world: World) -> None:
    made = graph(
        "nested",
        {
            "start": "trigger",
            "outer": "parallel",
            "inner": "parallel",
            "a": do("a"),
            "nap": pause("5h"),
            "first": ("join", {"mode": "any"}),
            "wait": pause("1h"),
            "b": do("b"),
            "all": "join",
        },
        "start > outer > inner > a > first > all",
        "inner > nap > first",
        "outer > wait > b > all",
    )
    run = await world.start(made)
    assert await run.result() == {"first": {"a": "a"}, "b": "b"}
    assert ("nap", "cancelled") in await settled(world, run)


async def test_splits_within_splits_may_meet_in_one_join(world: World) -> None:
    made = graph(
        "one_join",
        {
            "start": "trigger",
            "p": "parallel",
            "q": "parallel",
            "a": do("a"),
            "b": do("b"),
            "c": pause(9),
            "join": "join",
        },
        "start > p > a > join",
        "p > q > b > join",
        "q > c > join",
    )
    run = await world.start(made, "in")
    assert await run.result() == {"a": "a", "b": "b", "c": "in"}


async def test_joins_of_one_split_may_follow_one_another(world: World) -> None:
    made = graph(
        "stairs",
        {
            "start": "trigger",
            "p": "parallel",
            "a": do("a"),
            "b": do("b"),
            "c": pause("1h"),
            "ab": "join",
            "d": do("d"),
            "abc": "join",
        },
        "start > p > a > ab > d > abc",
        "p > b > ab",
        "p > c > abc",
    )
    run = await world.start(made, "in")
    await world.advance("1m")
    assert sorted(done[:2]) == ["a", "b"] and done[2:] == ["d"]
    assert await run.result() == {"d": "d", "c": "in"}


async def test_a_circle_may_pass_a_split_and_its_join_again_and_again(world: World) -> None:
    made = graph(
        "again",
        {
            "start": "trigger",
            "p": "parallel",
            "a": do("a"),
            "b": do("b"),
            "join": "join",
            "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
            "enough": ("condition", {"when": ".variables.n == 4"}),
            "end": ("end", {"result": "${ .variables.n }"}),
        },
        "start > p > a > join > count > enough:true > end",
        "p > b > join",
        "enough:false > p",
        variables={"n": 0},
    )
    run = await world.start(made)
    assert await run.result() == 4
    assert sorted(done) == ["a"] * 4 + ["b"] * 4


async def test_joins_that_wait_for_each_other_in_a_circle_go_on(world: World) -> None:
    # From either join a way leads to the other one, so both might still be reached again.
    made = graph(
        "knot",
        {
            "start": "trigger",
            "p": "parallel",
            "q": "parallel",
            "a": do("a"),
            "b": do("b"),
            "c": do("c"),
            "d": do("d"),
            "one": "join",
            "two": "join",
            "ask1": ("condition", {"when": "false"}),
            "ask2": ("condition", {"when": "false"}),
        },
        "start > p > q > a > one",
        "q > b > one > ask1:true > two",
        "p > c > two > ask2:true > one",
        "p > d > two",
    )
    run = await world.start(made)
    await run.result()
    assert sorted(done) == ["a", "b", "c", "d"]


async def test_a_failing_branch_ends_the_others(world: World) -> None:
    made = graph(
        "one_fails",
        {
            "start": "trigger",
            "p": "parallel",
            "a": pause("1h"),
            "bad": ("action", {"action": "s_fail"}),
            "join": "join",
        },
        "start > p > a > join",
        "p > bad > join",
    )
    run = await world.start(made)
    with pytest.raises(ExecutionFailed, match="no"):
        await run.result()
    assert ("a", "cancelled") in await settled(world, run)


async def test_a_branch_may_name_its_handle(world: World) -> None:
    made = graph(
        "handles_of_parallel",
        {"start": "trigger", "p": "parallel", "a": do("a"), "b": do("b"), "join": "join"},
        "start > p:left > a > join",
        "p:right > b > join",
    )
    assert await (await world.start(made)).result() == {"a": "a", "b": "b"}


async def test_a_wide_split_meets_in_its_join(world: World) -> None:
    names = [f"n{number}" for number in range(300)]
    made = graph(
        "wide",
        {
            "start": "trigger",
            "p": "parallel",
            "join": "join",
            **{name: pause(number % 7) for number, name in enumerate(names)},
        },
        "start > p",
        *(f"p > {name} > join" for name in names),
    )
    run = await world.start(made, 1)
    assert await run.result() == dict.fromkeys(names, 1)


async def test_what_a_join_ends_is_really_cancelled(world: World) -> None:
    made = graph(
        "cancels",
        {
            "start": "trigger",
            "p": "parallel",
            "a": do("a"),
            "nap": pause("30d"),
            "join": ("join", {"mode": "any"}),
            "last": ("wait", {"events": [{"name": "go"}]}),
        },
        "start > p > a > join > last",
        "p > nap > join",
    )
    run = await world.start(made)
    await world.advance("40d")
    assert "TimerFired" not in [entry.type for entry in await run.log()]
    assert (await run.state()).published["open"] == ["last"]
    await run.send("go")
    await run.result()


async def test_joins_of_rounds_at_the_same_time_are_apart(world: World) -> None:
    made = graph(
        "apart",
        {
            "start": "trigger",
            "each": ("loop", {"items": [1, 2, 3], "mode": "parallel"}),
            "p": "parallel",
            "a": pause("${ .item }"),
            "b": pause("${ 5 - .item }"),
            "c": pause("1d"),
            "join": ("join", {"mode": 2}),
        },
        "start > each:each > p > a > join > each",
        "p > b > join",
        "p > c > join",
    )
    run = await world.start(made)
    assert await run.result() == [{"a": item, "b": item} for item in (1, 2, 3)]


async def test_a_circle_does_not_make_an_inner_join_one_of_the_outer_split(world: World) -> None:
    # The way back leads from the other branch of the outer split to the inner join, but only through that split again.
    made = graph(
        "outer_circle",
        {
            "start": "trigger",
            "outer": "parallel",
            "inner": "parallel",
            "a": do("a"),
            "nap": pause("2h"),
            "first": ("join", {"mode": "any"}),
            "b": pause("1h"),
            "done": do("done"),
            "both": "join",
            "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
            "enough": ("condition", {"when": ".variables.n == 2"}),
            "end": "end",
        },
        "start > outer > inner > a > first > both",
        "inner > nap > first",
        "outer > b > done > both > count > enough:true > end",
        "enough:false > outer",
        variables={"n": 0},
    )
    run = await world.start(made)
    assert await run.result() == {"first": {"a": "a"}, "done": "done"}
    assert done == ["a", "done", "a", "done"]


async def test_a_circle_keeps_nothing_of_the_splits_it_has_passed(world: World) -> None:
    held: list[int] = []

    @action
    async def s_count_splits(name: str) -> str:
        held.append(max(len(one.splits) for one in gc.get_objects() if type(one) is State))
        return name

    @action
    async def s_long() -> None:
        await asyncio.sleep(10_000)

    made = graph(
        "keeps_nothing",
        {
            "start": "trigger",
            "beside": "parallel",
            "long": ("action", {"action": "s_long"}),  # while it runs there are no checkpoints
            "p": "parallel",
            "nap": pause("1m"),
            "a": ("action", {"action": "s_count_splits", "with": {"name": "a"}}),
            "enough": ("condition", {"when": ".variables.n == 20"}),
            "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
        },
        "start > beside > long",
        "beside > p > a",
        "p > nap > count > enough:false > p",
        variables={"n": 0},
    )
    run = await world.start(made)
    await run.result()
    assert max(held) < 10
