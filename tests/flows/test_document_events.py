"""emit and listen: events that leave, and those that are waited for."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import CloudEvent, Run
from perdure.testing import World
from tests.flows.documenting import document, failure, kind, listed, paths, result


def wants(type: str, **more: Any) -> dict[str, Any]:
    correlate = {"correlate": more.pop("correlate")} if "correlate" in more else {}
    return {"with": {"type": type, **more}, **correlate}


def listen(to: dict[str, Any], read: str = "", **more: Any) -> dict[str, Any]:
    return {"listen": {"to": to, **({"read": read} if read else {})}, **more}


def event(type: str, data: Any, number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": f"{type}-{number}-{data}",
        "source": "/shop",
        "type": type,
        "data": data,
        **more,
    }


async def begun(world: World, task: dict[str, Any], input: Any = None) -> Run[Any]:
    """An execution of one task that waits."""
    run = await world.start(document({"hear": task}), input)
    await run.until("waiting")
    return run


# emit.


async def test_an_emitted_event_goes_out_with_what_it_lacks_made_and_is_the_output(world: World) -> None:
    got: list[CloudEvent] = []

    @world.workers[0].app.sink
    async def keep(event: CloudEvent) -> None:
        got.append(event)

    tasks = {"nap": {"wait": "PT1S"}, "tell": {"emit": {"event": {"with": {"type": "paid", "data": {"n": "${ .n }"}}}}}}
    run = await world.start(document(tasks), {"n": 5})
    found = await run.result()
    [event] = got
    assert found == {
        "specversion": "1.0",
        "id": event.id,
        "source": f"/tenants/default/executions/{run.id}",
        "type": "paid",
        "time": "2030-01-01T00:00:01Z",
        "datacontenttype": "application/json",
        "data": {"n": 5},
    }


async def test_an_event_may_have_attributes_of_its_own(world: World) -> None:
    own = {"id": "7", "source": "/mine", "type": "${ .type }", "subject": "s", "time": "2020-02-02T00:00:00Z"}
    found = await result(world, {"tell": {"emit": {"event": {"with": own}}}}, {"type": "sent"})
    assert found == {**own, "type": "sent", "specversion": "1.0", "datacontenttype": "application/json"}


async def test_an_event_that_cannot_be_one_fails_at_once(world: World) -> None:
    for bad in ({"time": "${ .text }"}, {"source": "${ 5 }"}, {"type": "${ null }"}):
        found = await failure(world, {"tell": {"emit": {"event": {"with": {"type": "sent", **bad}}}}}, {"text": "soon"})
        assert kind(found) == "expression", bad
        assert world.now().minute == 0


# listen: one, any, all.


async def test_one_event_is_waited_for_and_its_data_comes_in_a_list(world: World) -> None:
    run = await begun(world, listen({"one": wants("paid")}))
    await run.send("paid", {"n": 1})
    assert await run.result() == [{"n": 1}]


async def test_an_event_that_was_there_before_is_taken(world: World) -> None:
    run = await world.start(document({"nap": {"wait": "PT1H"}, "hear": listen({"one": wants("paid")})}))
    await run.send("paid", 1)
    assert await run.result() == [1]
    assert world.now().hour == 1


async def test_events_are_taken_in_the_order_in_which_they_came(world: World) -> None:
    tasks = {"nap": {"wait": "PT1H"}, "a": listen({"one": wants("paid")}), "b": listen({"one": wants("paid")})}
    run = await world.start(document(tasks, output={"as": "[., $context]"}))
    for number in (1, 2, 3):
        await run.send("paid", number)
    assert (await run.result())[0] == [2]


async def test_the_first_of_any_ends_the_wait(world: World) -> None:
    run = await begun(world, listen({"any": [wants("paid"), wants("cancelled")]}))
    await run.send("cancelled", "c")
    assert await run.result() == ["c"]


async def test_all_events_are_waited_for_and_come_in_the_order_in_which_they_came(world: World) -> None:
    run = await begun(world, listen({"all": [wants("paid"), wants("packed")]}))
    await run.send("packed", "p1")
    await run.send("packed", "p2")
    await run.send("paid", "q")
    assert await run.result() == ["p1", "q"]


async def test_until_an_expression_is_true_any_number_is_taken(world: World) -> None:
    run = await begun(world, listen({"any": [wants("bid")], "until": "length == 3 or .[-1] > 100"}))
    for bid in (5, 500, 7):
        await run.send("bid", bid)
    assert await run.result() == [5, 500]


async def test_until_other_events_come_any_number_is_taken(world: World) -> None:
    run = await begun(world, listen({"any": [wants("bid")], "until": {"one": wants("closed")}}))
    await run.send("bid", 1)
    await run.send("bid", 2)
    await run.send("closed", "now")
    assert await run.result() == [1, 2]


async def test_until_all_of_others_have_come(world: World) -> None:
    run = await begun(world, listen({"any": [wants("bid")], "until": {"all": [wants("closed"), wants("signed")]}}))
    for name in ("closed", "bid", "closed", "bid", "signed", "bid"):
        await run.send(name, name)
    assert await run.result() == ["bid", "bid"]


async def test_until_any_of_others_comes(world: World) -> None:
    run = await begun(world, listen({"any": [wants("bid")], "until": {"any": [wants("closed"), wants("signed")]}}))
    await run.send("signed", 1)
    assert await run.result() == []


# Filters.


async def test_an_event_that_does_not_fit_waits_for_whoever_wants_it(world: World) -> None:
    tasks = {
        "big": listen({"one": wants("paid", data="${ .n > 10 }")}),
        "small": listen({"one": wants("paid")}, output={"as": "[.[0], $input[0]]"}),
    }
    run = await world.start(document(tasks))
    await run.until("waiting")
    await run.send("paid", {"n": 1})
    await run.send("paid", {"n": 11})
    assert await run.result() == [{"n": 1}, {"n": 11}]


async def test_a_filter_sees_the_data_of_the_execution(world: World) -> None:
    run = await begun(world, listen({"one": wants("paid", data="${ .order == $input.order }")}), {"order": 7})
    await run.send("paid", {"order": 8})
    await run.send("paid", {"order": 7})
    assert await run.result() == [{"order": 7}]


async def test_a_filter_that_cannot_be_computed_of_an_event_does_not_mean_it(world: World) -> None:
    run = await begun(world, listen({"one": wants("paid", data="${ .order.id == 7 }")}))
    await run.send("paid", {"order": "seven"})
    await run.send("paid", {"order": {"id": 7}})
    assert await run.result() == [{"order": {"id": 7}}]


async def test_events_are_filtered_by_their_attributes(world: World) -> None:
    run = await begun(world, listen({"one": wants("paid", source="/shop", subject='${ startswith("o-") }')}))
    for number, more in enumerate(({"subject": "x-1"}, {"source": "/bank", "subject": "o-2"}, {"subject": "o-3"})):
        await world.app.route(event("paid", number, **more))
    assert await run.result() == [2]


async def test_events_are_correlated_by_a_value_that_is_expected(world: World) -> None:
    correlate = {"order": {"from": "${ .data.order }", "expect": "${ $workflow.input.order }"}}
    made = document({"hear": listen({"one": wants("paid", correlate=correlate)})})
    runs = [await world.start(made, {"order": number}) for number in (1, 2)]
    for number in (2, 1):
        await world.app.route(event("paid", {"order": number}, number))
    assert [await run.result() for run in runs] == [[{"order": 1}], [{"order": 2}]]


async def test_an_event_is_sent_only_to_executions_whose_input_is_expected(world: World) -> None:
    correlate = {"order": {"from": ".data.order", "expect": "${ $workflow.input.order.id }"}}
    made = document({"hear": listen({"one": wants("shipped", correlate=correlate)})})
    runs = [await world.start(made, {"order": {"id": number}}) for number in (1, 2)]
    routed = await world.app.route(event("shipped", {"order": 2}))
    assert routed.woken == [runs[1].id]
    assert await runs[1].result() == [{"order": 2}]
    await runs[0].cancel("seen")


async def test_without_an_expectation_the_first_event_tells_what_the_others_belong_to(world: World) -> None:
    def about(type: str) -> dict[str, Any]:
        return wants(type, correlate={"order": {"from": ".data.order"}})

    run = await begun(world, listen({"all": [about("paid"), about("packed")]}))
    await run.send("paid", {"order": 1})
    await run.send("packed", {"order": 2})
    await run.send("packed", {"order": 1})
    assert await run.result() == [{"order": 1}, {"order": 1}]


# What is read.


async def test_an_envelope_is_the_whole_event(world: World) -> None:
    run = await begun(world, listen({"one": wants("paid")}, read="envelope"))
    sent = event("paid", {"n": 1}, subject="s", color="red")
    await world.app.route(sent)
    [found] = await run.result()
    assert found == sent


async def test_an_event_that_was_sent_by_its_name_has_an_envelope_too(world: World) -> None:
    run = await begun(world, listen({"one": wants("paid")}, read="raw"))
    await run.send("paid", 5, id="mine")
    assert await run.result() == [
        {
            "specversion": "1.0",
            "id": "mine",
            "source": f"/tenants/default/executions/{run.id}",
            "type": "paid",
            "data": 5,
        }
    ]


async def test_for_each_event_tasks_run_one_after_the_other(world: World) -> None:
    each = {"item": "bid", "at": "n", "do": listed(nap={"wait": "PT1H"}, tell={"set": {"got": "${ [$n, $bid, .] }"}})}
    run = await begun(world, listen({"any": [wants("bid")], "until": "length == 2"}, foreach=each))
    await run.send("bid", 5)
    await run.send("bid", 6)
    assert await run.result() == [{"got": [0, 5, 5]}, {"got": [1, 6, 6]}]
    assert world.now().hour == 2
    assert [path for path, _ in await paths(world, run)] == [
        "/do/0/hear/foreach[0]/do/0/nap",
        "/do/0/hear/foreach[0]/do/1/tell",
        "/do/0/hear/foreach[1]/do/0/nap",
        "/do/0/hear/foreach[1]/do/1/tell",
        "/do/0/hear",
    ]


async def test_what_the_tasks_for_an_event_export_is_seen_by_the_end_of_the_wait(world: World) -> None:
    each = {"do": listed(add={"set": {"n": 1}, "export": {"as": "{sum: (($context.sum // 0) + $item)}"}})}
    run = await begun(world, listen({"any": [wants("bid")], "until": "$context.sum > 10"}, foreach=each))
    for bid in (5, 6, 7):
        await run.send("bid", bid)
    assert len(await run.result()) == 2


async def test_what_is_taken_for_each_event_can_be_transformed_and_exported(world: World) -> None:
    each = {"do": listed(a={"set": {"n": "${ $item }"}}), "output": {"as": ".n * 2"}, "export": {"as": "{last: .}"}}
    made = document(
        {"hear": listen({"any": [wants("bid")], "until": "length == 2"}, foreach=each)}, output={"as": "[., $context]"}
    )
    run = await world.start(made)
    await run.send("bid", 1)
    await run.send("bid", 2)
    assert await run.result() == [[2, 4], {"last": 4}]


# Waiting.


async def test_a_wait_for_events_can_time_out_and_be_caught(world: World) -> None:
    hear = listen({"one": wants("paid")}, timeout={"after": "PT1M"})
    tasks = {"one": {"try": listed(hear=hear), "catch": {"do": listed(tell={"set": {"is": "${ $error.status }"}})}}}
    run = await world.start(document(tasks))
    assert await run.result() == {"is": 408}


async def test_two_branches_each_take_an_event(world: World) -> None:
    both = {"fork": {"branches": listed(a=listen({"one": wants("paid")}), b=listen({"one": wants("paid")}))}}
    run = await begun(world, both)
    await run.send("paid", 1)
    await run.send("paid", 2)
    assert await run.result() == [[1], [2]]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_crash_in_the_middle_of_a_wait_loses_nothing(crash: bool, world: World) -> None:
    run = await begun(world, listen({"all": [wants("a"), wants("b"), wants("c")]}))
    for name in ("b", "x", "a", "c"):
        await run.send(name, name)
        if crash:
            await world.crash()
    assert await run.result() == ["b", "a", "c"]


async def test_an_input_that_has_nothing_to_expect_is_no_hindrance_to_the_start(world: World) -> None:
    correlate = {"order": {"from": ".data.order", "expect": "${ $workflow.input.order }"}}
    made = document({"hear": {**listen({"one": wants("shipped", correlate=correlate)}), "if": "false"}})
    assert await (await world.start(made, "text")).result() == "text"
