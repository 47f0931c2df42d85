"""Loops of graphs: rounds, one after the other or at once, and long circles."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import pytest

from perdure import ExecutionFailed, action
from perdure.core import events as ev
from perdure.flows.graph import check, loops, model
from perdure.flows.graph.state import Token
from perdure.testing import World, run as virtually
from tests.flows.making import body, graph, settled

done: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@action
async def l_do(item: Any) -> Any:
    done.append(item)
    return item * 10 if isinstance(item, int) else item


@action
async def l_odd_fails(item: int) -> int:
    if item % 2:
        raise ValueError(f"{item} is odd")
    return item


@action
async def l_third_time(item: int) -> int:
    if action.attempt <= item:
        raise ValueError(f"{item} is not yet there")
    return item * 10


def tokens() -> int:
    return sum(type(one) is Token for one in gc.get_objects())


@action
async def l_look_around(item: int) -> int:
    """In the middle of a long loop: how many rounds does it hold?"""
    if item == 5_000:
        done.append(tokens())
    return item


def do(item: str = "${ .item }") -> tuple[str, dict[str, Any]]:
    return "action", {"action": "l_do", "with": {"item": item}}


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_a_loop_gives_the_outputs_of_its_rounds_in_order(world: World, mode: str) -> None:
    made = graph(
        f"rounds_{mode}",
        {"start": "trigger", "each": ("loop", {"items": "${ .trigger }", "mode": mode}), "do": do(), "end": "end"},
        "start > each:each > do > each",
        "each:done > end",
    )
    run = await world.start(made, [1, 2, 3])
    assert await run.result() == [10, 20, 30]
    nodes = [name for name, _ in await settled(world, run)]
    assert sorted(nodes) == ["each", "each[0]/do", "each[1]/do", "each[2]/do", "end", "start"]


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_every_round_of_a_loop_has_its_record(world: World, mode: str) -> None:
    made = graph(
        f"recorded_{mode}",
        {
            "start": "trigger",
            "each": ("loop", {"items": [0, 1, 3], "mode": mode, "onError": "continue"}),
            "do": ("action", {"action": "l_third_time", "with": {"item": "${ .item }"}, "retries": 2}),
        },
        "start > each:each > do > each",
    )
    run = await world.start(made)
    assert await run.result() == [0, 10, None]
    records = {name: one for name, one in (await run.state()).nodes.items() if name.endswith("/do")}
    assert {name: (one.input, one.output, one.status, one.attempts) for name, one in records.items()} == {
        "each[0]/do": ({"item": 0}, 0, "completed", 1),
        "each[1]/do": ({"item": 1}, 10, "completed", 2),
        "each[2]/do": ({"item": 3}, None, "failed", 3),
    }
    error = records["each[2]/do"].error
    assert error is not None and error.message == "3 is not yet there"


async def test_every_time_that_a_circle_comes_by_a_node_there_is_a_record_of_its_own(world: World) -> None:
    made = graph(
        "recorded_circle",
        {
            "start": "trigger",
            "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
            "do": do("${ .variables.n }"),
            "enough": ("condition", {"when": ".variables.n == 3"}),
        },
        "start > count > do > enough:false > count",
        variables={"n": 0},
    )
    run = await world.start(made)
    await run.result()
    events = [ev.read(row) for row in await world.rows(run.key)]
    ours = [one for one in events if isinstance(one, ev.NodeStarted | ev.NodeSettled) and one.node == "do"]
    assert [type(one) for one in ours] == [ev.NodeStarted, ev.NodeSettled] * 3
    told = [bytes(one.input if isinstance(one, ev.NodeStarted) else one.output) for one in ours]
    assert told == [b'{"item":1}', b"10", b'{"item":2}', b"20", b'{"item":3}', b"30"]


async def test_a_body_may_end_without_coming_back(world: World) -> None:
    made = graph(
        "no_way_back",
        {"start": "trigger", "each": ("loop", {"items": [1, 2]}), "do": do(), "end": "end"},
        "start > each:each > do",
        "each:done > end",
    )
    assert await (await world.start(made)).result() == [10, 20]


async def test_expressions_in_a_body_see_the_item_its_number_and_the_round(world: World) -> None:
    made = graph(
        "sees",
        {
            "start": "trigger",
            "first": do("x"),
            "each": ("loop", {"items": ["a", "b"], "as": "line", "mode": "parallel"}),
            "do": do("${ .line }"),
            "see": ("set", {"variables": {"last": "${ .outputs.do }"}}),
            "tell": do('${ "\\(.line)\\(.index)\\(.outputs.do)\\(.outputs.first)" }'),
            "end": ("end", {"result": '${ [.outputs.each, (.outputs | has("do")), .item] }'}),
        },
        "start > first > each:each > do > see > tell > each",
        "each:done > end",
    )
    assert await (await world.start(made)).result() == [["a0ax", "b1bx"], False, None]


async def test_loops_nest(world: World) -> None:
    made = graph(
        "nest",
        {
            "start": "trigger",
            "rows": ("loop", {"items": "${ .trigger }", "as": "row", "mode": "parallel"}),
            "cells": ("loop", {"items": "${ .row }", "as": "cell"}),
            "do": do("${ .cell + (.row | length) }"),
            "sum": do("${ .outputs.cells | add }"),
        },
        "start > rows:each > cells:each > do > cells",
        "cells:done > sum > rows",
    )
    run = await world.start(made, [[1, 2], [3]])
    assert await run.result() == [700, 400]
    assert "rows[0]/cells[1]/do" in [name for name, _ in await settled(world, run)]


async def test_a_branch_of_a_split_may_come_straight_back_to_the_loop(world: World) -> None:
    made = graph(
        "straight_back",
        {"start": "trigger", "each": ("loop", {"items": [1, 2]}), "p": "parallel", "a": do()},
        "start > each:each > p > a > each",
        "p > each",
    )
    assert await (await world.start(made)).result() == [10, 20]


async def test_a_split_and_a_condition_live_within_a_round(world: World) -> None:
    made = graph(
        "rich_body",
        {
            "start": "trigger",
            "each": ("loop", {"items": [1, 2, 3], "mode": "parallel"}),
            "odd": ("condition", {"when": ".item % 2 == 1"}),
            "p": "parallel",
            "a": do(),
            "b": ("delay", {"duration": "1m"}),
            "join": "join",
        },
        "start > each:each > odd:true > p > a > join > each",
        "p > b > join",
    )
    assert await (await world.start(made)).result() == [{"a": 10, "b": 1}, 2, {"a": 30, "b": 3}]


async def test_a_loop_over_nothing_is_done_at_once(world: World) -> None:
    made = graph(
        "nothing",
        {"start": "trigger", "each": ("loop", {"items": "[]"}), "do": do(), "end": "end"},
        "start > each:each > do > each",
        "each:done > end",
    )
    assert await (await world.start(made)).result() == []


async def test_items_that_are_no_list_fail_the_loop(world: World) -> None:
    made = graph(
        "no_list",
        {"start": "trigger", "each": ("loop", {"items": "${ .trigger }"}), "do": do()},
        "start > each:each > do > each",
    )
    with pytest.raises(ExecutionFailed, match="a loop needs a list"):
        await (await world.start(made, 5)).result()


async def test_a_parallel_loop_keeps_to_its_limit(world: World) -> None:
    made = graph(
        "limited",
        {
            "start": "trigger",
            "each": ("loop", {"items": "[range(10)]", "mode": "parallel", "limit": 3}),
            "nap": ("delay", {"duration": "1h"}),
        },
        "start > each:each > nap > each",
    )
    run = await world.start(made)
    await world.advance("30m")
    assert (await run.state()).published["open"] == ["each", "each[0]/nap", "each[1]/nap", "each[2]/nap"]
    began = world.micros()
    assert await run.result() == list(range(10))
    assert world.micros() - began == pytest.approx(3.5 * 3600 * 1e6, rel=0.01)


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_a_loop_that_continues_has_null_for_rounds_that_fail(world: World, mode: str) -> None:
    made = graph(
        f"continues_{mode}",
        {
            "start": "trigger",
            "each": ("loop", {"items": [1, 2, 3, 4], "mode": mode, "onError": "continue"}),
            "do": ("action", {"action": "l_odd_fails", "with": {"item": "${ .item }"}}),
        },
        "start > each:each > do > each",
    )
    assert await (await world.start(made)).result() == [None, 2, None, 4]


async def test_a_round_that_fails_fails_the_loop_and_ends_the_other_rounds(world: World) -> None:
    made = graph(
        "breaks",
        {
            "start": "trigger",
            "each": ("loop", {"items": [2, 3], "mode": "parallel"}),
            "even": ("condition", {"when": ".item % 2 == 0"}),
            "nap": ("delay", {"duration": "1h"}),
            "do": ("action", {"action": "l_odd_fails", "with": {"item": "${ .item }"}}),
            "tell": do("${ .outputs.each.error.message }"),
        },
        "start > each:each > even:true > nap > each",
        "even:false > do > each",
        "each:error > tell",
    )
    run = await world.start(made)
    assert await run.result() == "3 is odd (node each[1]/do)"
    statuses = await settled(world, run)
    assert {("each[0]/nap", "cancelled"), ("each[1]/do", "failed"), ("each", "failed")} <= set(statuses)


async def test_an_end_within_a_body_ends_the_round(world: World) -> None:
    made = graph(
        "ends_round",
        {
            "start": "trigger",
            "each": ("loop", {"items": [1, 2]}),
            "stop": ("end", {"result": "${ .item + 5 }"}),
            "end": "end",
        },
        "start > each:each > stop",
        "each:done > end",
    )
    assert await (await world.start(made)).result() == [6, 7]


async def test_an_end_that_stops_within_a_body_ends_the_graph(world: World) -> None:
    made = graph(
        "stops_all",
        {
            "start": "trigger",
            "each": ("loop", {"items": [1, 2, 3]}),
            "two": ("condition", {"when": ".item == 2"}),
            "stop": ("end", {"result": "found", "stop": True}),
            "do": do(),
        },
        "start > each:each > two:true > stop",
        "two:false > do > each",
    )
    run = await world.start(made)
    assert await run.result() == "found"
    assert done == [1]
    assert ("each", "cancelled") in await settled(world, run)


async def test_people_in_parallel_rounds_have_tasks_of_their_own(world: World) -> None:
    made = graph(
        "tasks",
        {
            "start": "trigger",
            "each": ("loop", {"items": ["a", "b"], "mode": "parallel"}),
            "ask": ("person", {"task": "${ .item }"}),
        },
        "start > each:each > ask > each",
    )
    run = await world.start(made)
    await run.until("waiting")
    assert [task["event"] for task in (await run.state()).published["tasks"]] == ["each[0]/ask", "each[1]/ask"]
    await run.send("each[1]/ask", 2)
    await run.send("each[0]/ask", 1)
    assert await run.result() == [1, 2]


async def test_what_fails_in_the_innermost_of_many_loops_fails_them_all(world: World) -> None:
    names = [f"l{number}" for number in range(20)]
    loops = {name: ("loop", {"items": [1], "mode": "parallel"}) for name in names}
    bad = ("action", {"action": "l_odd_fails", "with": {"item": 1}})
    ways = [f"{one}:each > {two}" for one, two in pairwise([*names, "bad"])]
    made = graph("deep", {"start": "trigger", **loops, "bad": bad}, "start > l0", *ways)
    run = await world.start(made)
    with pytest.raises(ExecutionFailed, match="1 is odd"):
        await run.result()
    assert [status for _, status in await settled(world, run)].count("failed") == 21


# Long ones.


def test_ten_thousand_items_take_bounded_memory_and_replay() -> None:
    made = graph(
        "many",
        {
            "start": "trigger",
            "each": ("loop", {"items": "[range(10000)]", "mode": "parallel"}),
            "do": ("action", {"action": "l_look_around", "with": {"item": "${ .item }"}}),
            "end": ("end", {"result": "${ .outputs.each | add }"}),
        },
        "start > each:each > do > each",
        "each:done > end",
    )

    gc.collect()
    before = tokens()  # what other tests have left

    async def test() -> None:
        async with World(replay_always=False) as world:
            run = await world.start(made)
            assert await run.result() == sum(range(10_000))
            assert done[0] - before < 100  # twenty rounds
            rows = await world.rows(run.key)
            checkpoints = [row.version for row in rows if row.type == ev.NUMBERS[ev.Restarted]]
            assert checkpoints and max(b - a for a, b in pairwise([0, *checkpoints, len(rows)])) < 40_000

    virtually(test())


async def test_an_endless_circle_has_a_bounded_replay(world: World) -> None:
    made = graph(
        "endless",
        {
            "start": "trigger",
            "count": ("set", {"variables": {"n": "${ .variables.n + 1 }"}}),
            "nap": ("delay", {"duration": "1d"}),
            "do": do("${ .variables.n }"),
            "enough": ("condition", {"when": ".variables.n == 200"}),
            "end": ("end", {"result": "${ .outputs.do }"}),
        },
        "start > count > nap > do > enough:true > end",
        "enough:false > count",
        variables={"n": 0},
    )
    run = await world.start(made)
    await world.advance("100d")
    await world.crash()
    assert await run.result() == 2000
    assert done == list(range(1, 201))
    rows = await world.rows(run.key)
    checkpoints = [row.version for row in rows if row.type == ev.NUMBERS[ev.Restarted]]
    assert len(checkpoints) > 10
    assert max(b - a for a, b in pairwise([*checkpoints, len(rows)])) < 200


async def test_a_sequential_loop_makes_checkpoints_between_its_rounds(world: World) -> None:
    made = graph(
        "sequence_of_rounds",
        {
            "start": "trigger",
            "each": ("loop", {"items": "[range(200)]"}),
            "nap": ("delay", {"duration": 1}),
            "do": do(),
        },
        "start > each:each > nap > do > each",
    )
    run = await world.start(made)
    await world.advance("100s")
    await world.crash()
    assert await run.result() == [10 * item for item in range(200)]
    rows = await world.rows(run.key)
    assert sum(row.type == ev.NUMBERS[ev.Restarted] for row in rows) >= 3


async def test_a_chain_of_five_thousand_nodes_needs_no_recursion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MOST_NODES", 6_000)
    names = [f"n{number}" for number in range(5_000)]
    nodes = {name: ("set", {"variables": {"last": name}}) for name in names}
    nodes["n2500"] = ("delay", {"duration": "1h"})
    made = graph("long", {"start": "trigger", **nodes}, " > ".join(["start", *names]))
    run = await world.start(made, "in")
    assert await run.result() == "in"
    assert (await run.state()).published["variables"] == {"last": "n4999"}


async def test_undos_are_kept_over_checkpoints(world: World) -> None:
    @action
    async def l_book(item: int) -> int:
        return item

    @l_book.undo
    async def l_unbook(item: int, result: int) -> None:
        done.append(item)

    made = graph(
        "books",
        {
            "start": "trigger",
            "each": ("loop", {"items": "[range(60)]"}),
            "book": ("action", {"action": "l_book", "with": {"item": "${ .item }"}}),
            "end": ("end", {"status": "failed"}),
        },
        "start > each:each > book > each",
        "each:done > end",
    )
    run = await world.start(made)
    with pytest.raises(ExecutionFailed):
        await run.result()
    assert done == list(range(60))[::-1]


def test_more_nodes_or_edges_than_the_limit_are_refused_at_once() -> None:
    nodes = {f"n{number}": "trigger" for number in range(1_001)}
    [problem] = check(body("huge", nodes))
    assert problem.message == "there are 1,001 of them, more than 1,000"
    edges = body("dense", {"start": "trigger", "a": do()}, *["start > a"] * 5_001)
    assert [one.where for one in check(edges)] == ["edges"]


async def test_a_long_loop_does_not_wait_for_people_before_it_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "DRAIN", 10)
    made = graph(
        "people_and_rounds",
        {
            "start": "trigger",
            "each": ("loop", {"items": "[range(80)]", "mode": "parallel", "limit": 5}),
            "first": ("condition", {"when": ".item == 0"}),
            "ask": ("person", {"task": "first"}),
            "do": do(),
        },
        "start > each:each > first:true > ask > each",
        "first:false > do > each",
    )
    run = await world.start(made)
    await world.advance("1h")
    assert len(done) == 79
    assert "Restarted" in [entry.type for entry in await run.log()]
    await run.send("each[0]/ask", "ok")
    assert (await run.result())[:3] == ["ok", 10, 20]


@pytest.mark.parametrize(("items", "some"), [(2_000, True), (10_000, False)])
def test_checkpoints_cost_less_than_what_they_save(items: int, some: bool) -> None:
    made = graph(
        "large_items",
        {"start": "trigger", "each": ("loop", {"items": "${ .trigger }"}), "do": do("x")},
        "start > each:each > do > each",
    )

    async def test() -> tuple[int, int, int]:
        async with World(replay_always=False) as world:
            run = await world.start(made, ["y" * 20] * items)
            await run.result()
            rows = await world.rows(run.key)
            checkpoints = [len(row.data) for row in rows if row.type == ev.NUMBERS[ev.Restarted]]
            return len(checkpoints), sum(checkpoints), sum(len(row.data) for row in rows)

    count, size, whole = virtually(test())
    assert bool(count) == some  # what is too large is not written at all
    assert size < 0.8 * whole
