"""Waits that nothing can ever match, and arguments that an action cannot take, are refused before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from perdure import DefinitionInvalid, Secret, action
from perdure.core.codec import encode
from perdure.flows import fields, kinds
from perdure.flows.graph import Graph
from perdure.flows.machine import build
from tests.flows.making import body

PAID = {
    "type": "object",
    "properties": {
        "order": {"type": "integer"},
        "kind": {"enum": ["card", "cash"]},
        "card": {"$ref": "#/$defs/card"},
    },
    "additionalProperties": False,
    "$defs": {"card": {"type": "object", "properties": {"number": {"type": "string"}}, "additionalProperties": False}},
}


@dataclass
class Login:
    user: str
    password: Secret


@action(name="unmatched.pay")
async def pay(cents: int, tip: Decimal = Decimal(0), note: str = "") -> str:
    return note


@action(name="unmatched.open")
async def opens(door: str, key: Secret, login: Login | None = None) -> str:
    return door


def machine(on: Any, **more: Any) -> dict[str, Any]:
    states = {"open": {"on": on}, "done": {"final": True}}
    return {"machine": "unmatched", "initial": "open", "states": states, **more}


def errors(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.where, one.message) for one in kinds.check(document) if one.level == "error"]


def warnings(document: dict[str, Any]) -> list[str]:
    return [one.message for one in kinds.check(document) if one.level == "warning"]


# --- conditions of machines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ("${ .event.payload.sum > 5 }", "its schema has no .sum"),
        ('${ .data.total > 5 and .event.payload.card.owner == "ada" }', "its schema has no .card.owner"),
        ('${ .event.payload.kind == "gold" }', '"gold" is not one of'),
        ('${ "7" == .event.payload.order and .data.open }', '"7" is not of type "integer"'),
        ("${ .event.payload.card.number == 5 }", '5 is not of type "string"'),
    ],
)
def test_a_condition_that_no_event_can_meet(when: str, reason: str) -> None:
    events = {"paid": {"schema": PAID}}
    [(where, message)] = errors(machine({"paid": {"to": "done", "when": when}}, events=events))
    assert where == "states.open.on.paid.when"
    assert message.startswith("no 'paid' can match: ") and reason in message


@pytest.mark.parametrize(
    "when",
    [
        '${ .event.payload.kind == "card" and .event.payload.order == 7 }',
        '${ .event.payload.kind == "gold" or .data.gold }',
        '${ .event.payload.kind != "gold" }',
        "${ .event.payload.card.number }",
        "${ .event.payload | has(.data.field) }",
        "${ .data.payload.sum == 5 }",
    ],
)
def test_a_condition_that_may_hold_is_left_alone(when: str) -> None:
    assert errors(machine({"paid": {"to": "done", "when": when}}, events={"paid": {"schema": PAID}})) == []


@pytest.mark.parametrize(
    "schema",
    [{}, True, {"properties": {}}, {"additionalProperties": False, "patternProperties": {"^s": {}}}, {"$ref": "#/x"}],
)
def test_a_schema_that_leaves_a_field_open_says_nothing(schema: Any) -> None:
    assert fields.at(schema, ["sum"]) is True


def test_an_event_that_is_no_object_has_no_fields() -> None:
    assert fields.at({"type": ["string", "null"]}, ["sum"]) is False
    assert fields.at({"type": ["object", "null"]}, ["sum"]) is True


def test_an_event_that_is_misspelt_is_told_where_the_declared_one_is_taken_nowhere() -> None:
    [(where, message)] = errors(machine({"aprove": "done"}, events={"approve": {}}))
    assert where == "states.open.on.aprove"
    assert message == "no event 'aprove' is declared, and nothing takes 'approve'"


def test_not_all_events_need_be_declared() -> None:
    assert errors(machine({"approve": "done", "aprove": "done", "other": "done"}, events={"approve": {}})) == []


# --- waits of graphs -------------------------------------------------------------------------------------------------


def waiting(data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return body("unmatched", {"start": "trigger", "wait": ("wait", data)}, "start > wait", **more)


@pytest.mark.parametrize(
    ("match", "reason"),
    [
        ({"sum": 5}, "its schema has no .sum"),
        ({"sum": "${ .trigger.sum }"}, "its schema has no .sum"),
        ({"order": "7"}, '"7" is not of type "integer"'),
        ({"kind": "gold"}, '"gold" is not one of'),
    ],
)
@pytest.mark.parametrize("declared", [True, False])
def test_a_match_that_no_event_can_meet(match: dict[str, Any], reason: str, declared: bool) -> None:
    event = {"name": "paid", "match": match}
    if declared:
        document = waiting({"events": [event]}, events={"paid": {"schema": PAID}})
    else:
        document = waiting({"events": [{**event, "schema": PAID}]})
    [(where, message)] = errors(document)
    assert where == "nodes.wait"
    assert message.startswith("no 'paid' can match: ") and reason in message


def test_a_match_that_may_be_met_is_left_alone() -> None:
    match = {"order": "${ .trigger }", "kind": "cash"}
    assert errors(waiting({"events": [{"name": "paid", "match": match, "schema": PAID}]})) == []


@pytest.mark.parametrize(
    "node", [("wait", {"events": [{"name": "payed"}]}), ("person", {"task": "t", "event": "payed"})]
)
def test_a_graph_that_declares_events_waits_for_no_others(node: Any) -> None:
    nodes = {"start": "trigger", "node": node}
    [(where, message)] = errors(body("unmatched", nodes, "start > node", events={"paid": {}}))
    assert (where, message) == ("nodes.node", "it waits for 'payed', which is not declared: nobody can send it")
    assert errors(body("unmatched", nodes, "start > node")) == []


@pytest.mark.parametrize(
    ("events", "where"),
    [
        ({"paid": {"schema": {"type": "text"}}}, "events.paid.schema"),
        ({"paid": {"shape": 1}}, "events"),
        ([], "events"),
    ],
)
def test_what_a_graph_declares_is_read_with_care(events: Any, where: str) -> None:
    document = waiting({"events": [{"name": "paid"}]}, events=events)
    assert where in [place for place, _ in errors(document)]


# --- subscriptions ---------------------------------------------------------------------------------------------------


def test_a_subscription_that_no_event_or_no_input_can_meet() -> None:
    data = {"type": "object", "properties": {"id": {}}, "additionalProperties": False}
    listen = {"type": "paid", "event": ".data.number", "own": ".[0].nr", "when": '.data.kind == "gold"'}
    found = errors(machine({"paid": "done"}, events={"paid": {"schema": PAID}}, data=data, listens=[listen]))
    assert [where for where, _ in found] == ["listens[0].event", "listens[0].when", "listens[0].own"]
    fine = {"type": "paid", "event": ".data.order", "own": ".[0].id", "when": '.data.kind == "card"'}
    assert errors(machine({"paid": "done"}, events={"paid": {"schema": PAID}}, data=data, listens=[fine])) == []


def test_a_subscription_of_a_graph_that_no_event_can_meet() -> None:
    listen = {"type": "paid", "event": ".data.number", "own": ".[0]"}
    document = waiting({"events": [{"name": "paid"}]}, events={"paid": {"schema": PAID}}, listens=[listen])
    assert errors(document) == [("listens[0].event", "no 'paid' can match: its schema has no .number")]


# --- arguments -------------------------------------------------------------------------------------------------------


def calling(kind: str, given: Any, name: str = "unmatched.pay") -> dict[str, Any]:
    if kind == "machine":
        return machine({"go": {"to": "done", "do": [{"action": name, "with": given}]}})
    nodes = {"start": "trigger", "act": ("action", {"action": name, "with": given})}
    return body("unmatched", nodes, "start > act")


both = pytest.mark.parametrize("kind", ["machine", "graph"])


@both
@pytest.mark.parametrize("given", [{"cents": "many"}, ["many"], {"cents": 1, "tip": "much"}])
def test_a_constant_that_does_not_fit_its_parameter(kind: str, given: Any) -> None:
    [(where, message)] = errors(calling(kind, given))
    assert where.endswith(".with") and "do not fit unmatched.pay" in message


@both
@pytest.mark.parametrize(
    "given", [{"cents": 1, "tip": 2}, {"cents": "${ .trigger }"}, [5], {"cents": 1, "tip": "2.50"}]
)
def test_what_the_action_can_read_is_left_alone(kind: str, given: Any) -> None:
    assert errors(calling(kind, given)) == []


@both
@pytest.mark.parametrize("value", ["hunter2-hunter2", 5, None, "secret://", {"secret": "x"}])
def test_a_value_in_place_of_a_secret_is_refused_and_not_repeated(kind: str, value: Any) -> None:
    [problem] = kinds.check(calling(kind, {"door": "a", "key": value}, "unmatched.open"))
    assert problem.where.endswith(".with.key") and "given by reference" in problem.message
    assert "hunter2" not in str(problem)


@both
def test_a_value_inside_of_another_in_place_of_a_secret_is_refused_and_not_repeated(kind: str) -> None:
    login = {"user": "ada", "password": "hunter2-hunter2"}
    document = calling(kind, {"door": "a", "key": "secret://key", "login": login}, "unmatched.open")
    [(_, message)] = errors(document)
    assert "login cannot be read" in message and "hunter2" not in message


@both
def test_references_and_expressions_stand_where_a_secret_may(kind: str) -> None:
    for key in ("secret://key", "${ .trigger }"):
        assert kinds.check(calling(kind, {"door": "a", "key": key}, "unmatched.open")) == []


@both
def test_a_reference_that_an_action_takes_for_a_text_is_a_warning(kind: str) -> None:
    assert warnings(calling(kind, {"cents": 1, "note": "secret://key"})) == [
        "unmatched.pay takes a text here, and gets the reference itself"
    ]


@both
def test_the_secrets_of_a_document_are_known_with_their_places(kind: str) -> None:
    login = {"user": "ada", "password": "secret://login"}
    document = calling(kind, {"door": "a", "key": "secret://key", "login": login}, "unmatched.open")
    found = kinds.secrets(document)
    assert [one.name for one in found] == ["key", "login"]
    assert [one.where.partition(".with")[2] for one in found] == [".key", ".login.password"]
    assert kinds.secrets(calling(kind, {"door": "a", "key": "${ .trigger }"}, "unmatched.open")) == []


# --- what was published before ---------------------------------------------------------------------------------------


def test_what_was_published_before_still_runs() -> None:
    document = machine({"paid": {"to": "done", "when": "${ .event.payload.sum }"}}, events={"paid": {"schema": PAID}})
    with pytest.raises(DefinitionInvalid):
        build(document)
    assert build(document, hash="1234", bounds={}).name == "unmatched"


def test_a_graph_takes_the_events_that_it_declares() -> None:
    document = waiting({"events": [{"name": "paid"}]}, events={"paid": {"schema": PAID}, "sent": {}})
    made = Graph({**document, "graph": "unmatched-declared"})
    assert list(made.events) == ["paid", "sent"]
    assert made.events["paid"].decode(encode({"order": 7})) == {"order": 7}
