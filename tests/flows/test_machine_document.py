"""Machines as documents: the same rules, with expressions; and what is wrong with a document."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import DefinitionInvalid, EventRefused, InvalidValue, Run, action
from perdure.flows.machine import actions, build, check
from perdure.flows.registry import registry
from perdure.testing import World

seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@action(name="document.reserve")
async def reserve(items: list[str], note: str = "") -> dict[str, Any]:
    seen.append(["reserve", items, note])
    return {"shelf": len(items)}


@action(name="document.charge")
async def charge(amount: int, who: str) -> str:
    seen.append(["charge", amount, who])
    if amount > 500:
        raise ValueError("too much")
    return f"r-{amount}"


@charge.undo
async def refund(amount: int, who: str, receipt: str) -> None:
    seen.append(["refund", amount, who, receipt])


@action(name="document.tell")
async def tell(data: Any) -> None:
    seen.append(["tell", data])


ORDER: dict[str, Any] = {
    "machine": "order-document",
    "data": {
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"type": "string"}}, "total": {"type": "integer"}},
        "required": ["items", "total"],
    },
    "events": {"pay": {"schema": {"type": "object", "required": ["who"]}}},
    "initial": "cart",
    "publish": ["total"],
    "on": {"drop": "dropped"},
    "states": {
        "cart": {
            "on": {
                "add": {"set": {"items": "${ .data.items + [.event.payload] }", "total": "${ .data.total + 10 }"}},
                "pay": [
                    {
                        "to": "paid",
                        "when": "${ .data.total > 0 }",
                        "set": {"by": "${ .event.by }"},
                        "do": [
                            {"action": "document.reserve", "with": {"items": "${ .data.items }"}, "name": "reserve",
                             "set": {"shelf": "${ .result.shelf }"}},
                            {"action": "document.charge", "after": ["reserve"], "retries": 1, "timeout": "5s",
                             "with": {"amount": "${ .data.total }", "who": "${ .event.payload.who }"},
                             "set": {"receipt": "${ .result }"}},
                        ],
                    },
                    {"set": {"note": "an empty cart"}},
                ],
            }
        },
        "paid": {
            "entry": "document.tell",
            "after": {"PT48H": {"to": "late"}},
            "on": {"ship": {"to": "shipped", "roles": ["packer"]}},
            "error": {"to": "dropped", "set": {"why": "${ .event.payload.message }"}},
        },
        "late": {"on": {"ship": "shipped"}},
        "shipped": {"final": True},
        "dropped": {"final": True},
    },
    "output": {"receipt": "${ .data.receipt }", "items": "${ .data.items | length }"},
}  # fmt: skip


@pytest.fixture(scope="module")
def order() -> Any:
    made = build(ORDER)
    registry.add_workflow(made)
    return made


async def test_a_document_runs_like_any_machine(order: Any, world: World) -> None:
    run: Run[Any] = await world.start(order, {"items": ["tea"], "total": 10})
    await run.send("add", "milk")
    await run.send("pay", {"who": "ann"}, by="ann")
    await run.until("waiting")
    assert (await run.state()).published == {"state": "paid", "total": 20}
    with pytest.raises(EventRefused, match="only packer may send ship"):
        await run.send("ship", validate="now")
    await run.send("ship", by="ann", roles=["packer"])
    assert await run.result() == {"receipt": "r-20", "items": 2}
    data = {"items": ["tea", "milk"], "total": 20, "by": "ann", "shelf": 2, "receipt": "r-20"}
    assert seen == [["reserve", ["tea", "milk"], ""], ["charge", 20, "ann"], ["tell", data]]


async def test_the_first_transition_whose_condition_holds_is_taken(order: Any, world: World) -> None:
    run = await world.start(order, {"items": [], "total": 0})
    await run.send("pay", {"who": "ann"})
    await run.until("waiting")
    assert (await run.state()).current == "cart"
    await run.send("drop")
    assert await run.result() == {"receipt": None, "items": 0}


async def test_a_failed_action_of_a_document_takes_the_error_transition(order: Any, world: World) -> None:
    run = await world.start(order, {"items": ["car"], "total": 900})
    await run.send("pay", {"who": "ann"})
    await run.result()
    assert (await run.state()).current == "dropped"
    assert [one[0] for one in seen] == ["reserve", "charge", "charge"]


async def test_timers_of_a_document(order: Any, world: World) -> None:
    run = await world.start(order, {"items": ["tea"], "total": 10})
    await run.send("pay", {"who": "ann"})
    await world.advance("49h")
    assert (await run.state()).current == "late"


async def test_payloads_and_data_are_checked_by_their_schemas(order: Any, world: World) -> None:
    with pytest.raises(InvalidValue, match="the input of order-document does not fit its schema"):
        order.check_input({"items": "tea"})
    run = await world.start(order, {"items": ["tea"], "total": 10})
    with pytest.raises(InvalidValue, match='"who" is a required property'):
        await run.send("pay", {})
    await run.send("add", 5)  # would make the data wrong: items are texts
    await run.until("waiting")
    [refused] = [entry for entry in await run.log() if entry.type == "EventRejected"]
    assert "the data does not fit its schema: items.1: 5 is not of type" in refused.text


async def test_a_document_survives_a_crash_at_any_point(order: Any, world: World) -> None:
    async def send(run: Run[Any]) -> None:
        await run.send("add", "milk", id="1")
        await run.send("pay", {"who": "ann"}, id="2")
        await run.send("ship", by="ann", roles=["packer"], id="3")

    report = await world.crash_everywhere(order, {"items": ["tea"], "total": 10}, send=send)
    assert report.status == "completed"


async def test_what_a_document_did_is_undone_when_it_is_cancelled(order: Any, world: World) -> None:
    run = await world.start(order, {"items": ["tea"], "total": 10})
    await run.send("pay", {"who": "ann"})
    await run.until("waiting")
    await run.cancel()
    await run.until("cancelled")
    assert seen[-1] == ["refund", 10, "ann", "r-10"]


def test_the_actions_of_a_document_are_known() -> None:
    assert actions(ORDER) == ["document.reserve", "document.charge", "document.tell"]
    assert check(ORDER) == []


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("name", {"machine": ""}, "machine: the name is missing"),
    ("key", {"inital": "cart"}, "'inital' is not known here; did you mean `initial`?"),
    ("state key", {"states": {"cart": {"onn": {}}}}, "states.cart: 'onn' is not known here; did you mean `on`?"),
    ("kind", {"states": {"cart": {"on": ["pay"]}}}, "states.cart.on: \"['pay']\" is not an object"),
    ("final", {"states": {"cart": {"final": "yes"}}}, "states.cart.final: 'yes' is not true or false"),
    ("target", {"states": {"cart": {"on": {"x": {"to": "nowhere"}}}}}, "there is no state 'nowhere'"),
    ("action", {"states": {"cart": {"entry": ["nobody"]}}}, "no action nobody"),
    ("no action", {"states": {"cart": {"entry": [{"with": {}}]}}}, "the action is missing; write `action: charge`"),
    (
        "arguments",
        {"states": {"cart": {"entry": [{"action": "document.charge", "with": {"amount": 5}}]}}},
        "document.charge() missing a required argument: 'who'; it takes: amount, who",
    ),
    (
        "expression",
        {"states": {"cart": {"on": {"x": {"when": "${ .data. }"}}}}},
        "states.cart.on.x.when:",
    ),
    ("condition", {"states": {"cart": {"on": {"x": {"when": 5}}}}}, "5 is not a condition"),
    ("schema", {"data": {"type": "objekt"}}, "data: not a JSON Schema"),
    ("duration", {"states": {"cart": {"after": {"PTX": "x"}, "on": {"x": "cart"}}}}, "'PTX' is not a duration"),
    (
        "retries",
        {"states": {"cart": {"entry": [{"action": "document.tell", "retries": {"factor": 0}}]}}},
        "factor >= 1",
    ),
    (
        "timeout",
        {"states": {"cart": {"entry": [{"action": "document.tell", "timeout": "soon"}]}}},
        "'soon' is not a dur",
    ),
]


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_mistakes_of_a_document_name_the_place_and_the_remedy(change: dict[str, Any], message: str) -> None:
    plain = {"machine": "m", "initial": "cart", "states": {"cart": {"on": {"y": "end"}}, "end": {"final": True}}}
    assert check(plain) == []
    body = {**plain, **change}
    found = [str(problem) for problem in check(body)]
    assert any(message in one for one in found), found
    with pytest.raises(DefinitionInvalid) as caught:
        build(body)
    assert message in str(caught.value)


async def test_an_expression_that_fails_rejects_its_event(world: World) -> None:
    body = {
        "machine": "failing-expression",
        "initial": "a",
        "states": {
            "a": {"on": {"x": {"to": "b", "when": "${ .event.payload.n > 1 }"}}},
            "b": {"final": True},
        },
    }
    made = build(body)
    registry.add_workflow(made)
    run: Run[Any] = await world.start(made, {})
    await run.send("x", [1])
    await run.until("waiting")
    [refused] = [entry for entry in await run.log() if entry.type == "EventRejected"]
    assert "ExpressionError" in refused.text
    await run.send("x", {"n": 2})
    await run.result()
