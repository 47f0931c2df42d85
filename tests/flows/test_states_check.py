"""What is wrong with a workflow of states is found before it runs: all of it, each with its place."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import DefinitionInvalid
from perdure.flows import kinds, reading
from perdure.flows.states import States, build, check
from tests.flows.stating import body, echoes, operation

WHOLE = """
id: stating-whole
version: '1.2'
specVersion: '0.8'
name: everything
description: all that a workflow may have
start: wait
keepActive: true
constants: {adult: 18}
secrets: [key]
annotations: [one]
metadata: {by: ann}
dataInputSchema: {schema: {type: object}, failOnValidationErrors: true}
timeouts:
  workflowExecTimeout: {duration: P1D, interrupt: false, runBefore: bye}
  stateExecTimeout: {total: PT1H}
  actionExecTimeout: PT1M
  branchExecTimeout: PT1M
  eventTimeout: PT1M
functions:
  - {name: echo, type: custom, operation: stating.echo}
  - {name: adult, type: expression, operation: '.age >= $CONST.adult'}
events:
  - {name: paid, type: stating.paid, source: /bank, correlation: [{contextAttributeName: order}]}
  - {name: out, type: stating.out, kind: produced}
errors: [{name: Refused}, {name: Late, code: '408'}]
retries: [{name: often, maxAttempts: 3, delay: PT1S, increment: PT1S, multiplier: 2, maxDelay: PT1M, jitter: 0.1}]
states:
  - name: wait
    type: event
    onEvents:
      - eventRefs: [paid]
        eventDataFilter: {data: '${ .order }', toStateData: '${ .order }'}
        actionMode: parallel
        actions:
          - functionRef: {refName: echo, arguments: {a: '${ .age }'}, invoke: async}
          - functionRef: adult
            retryRef: often
            retryableErrors: [Refused]
            actionDataFilter: {fromStateData: '${ . }', results: '${ . }', toStateData: '${ .adult }'}
            sleep: {before: PT1S, after: PT1S}
            condition: '${ fn:adult }'
    onErrors: [{errorRef: Late, transition: split}]
    transition: {nextState: split, produceEvents: [{eventRef: out, data: '${ .order }'}], compensate: true}
  - name: split
    type: parallel
    completionType: atLeast
    numCompleted: 1
    branches:
      - {name: one, actions: [{subFlowRef: {workflowId: other, invoke: async}}]}
      - {name: two, actions: [{eventRef: {triggerEventRef: out, resultEventRef: paid}}]}
    compensatedBy: undo
    transition: each
  - {name: undo, type: sleep, duration: PT1S, usedForCompensation: true}
  - name: each
    type: foreach
    inputCollection: '${ .items }'
    outputCollection: '${ .done }'
    iterationParam: it
    batchSize: 2
    actions: [{functionRef: echo}]
    transition: ask
  - name: ask
    type: callback
    action: {functionRef: echo}
    eventRef: paid
    transition: choose
  - name: choose
    type: switch
    eventConditions: [{eventRef: paid, end: {terminate: true}}]
    defaultCondition: {transition: look}
  - name: look
    type: switch
    dataConditions:
      - {name: grown up, condition: '${ .age > 17 }', end: {continueAs: {workflowId: other, data: {a: 1}}}}
    defaultCondition: {end: true}
  - {name: bye, type: inject, data: {bye: true}, end: true}
"""


def whole() -> dict[str, Any]:
    found: dict[str, Any] = reading.read(WHOLE)
    return found


def problems(found: Any) -> dict[str, str]:
    return {one.where: one.message for one in kinds.check(found)}


def test_what_is_right_has_no_problems() -> None:
    assert kinds.check(whole()) == []
    assert kinds.name_of(whole()) == "stating-whole"
    assert kinds.label_of(whole()) == "1.2"
    assert kinds.actions(whole()) == ["stating.echo"]


def test_all_problems_are_found_at_once() -> None:
    caught = [{"errorRef": "lost", "end": True}]
    found = body(
        {"name": "a", "type": "inject", "data": {}, "transition": "nowhere"},
        {"name": "b", "type": "inject", "data": {}},
        operation({"functionRef": "lost"}, echoes() | {"retryRef": "lost"}, name="c", onErrors=caught),
        {"name": "d", "type": "event", "onEvents": [{"eventRefs": ["lost"]}], "end": True},
        {"name": "a", "type": "strange"},
    )  # fmt: skip
    where = [(one.where, one.level) for one in check(found)]
    assert where == [
        ("/states/1", "error"),
        ("/states/2/onErrors/0/errorRef", "error"),
        ("/states/2/actions/0/functionRef/refName", "error"),
        ("/states/2/actions/1/retryRef", "error"),
        ("/states/3/onEvents/0/eventRefs/0", "error"),
        ("/states/4/type", "error"),
        ("/states/0/transition", "error"),
        ("/states/1", "warning"),
        ("/states/2", "warning"),
        ("/states/3", "warning"),
    ]


def changed(path: str, value: Any) -> dict[str, Any]:
    found = whole()
    *way, last = path.split("/")[1:]
    place: Any = found
    for key in way:
        place = place[int(key)] if isinstance(place, list) else place[key]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return found


@pytest.mark.parametrize(
    ("path", "value", "where", "message"),
    [
        ("/specVersion", "0.7", "/specVersion", "version 0.7 of the DSL is not known here"),
        ("/expressionLang", "jsonpath", "/expressionLang", "expressions are in jq"),
        ("/auth", [{"name": "a"}], "/auth", "nothing here authenticates"),
        ("/functions", "https://x.example/f.json", "/functions", "what lies elsewhere is not fetched"),
        ("/functions/0/type", "rest", "/functions/0/operation", "this is no operation of an API"),
        ("/functions/0/type", "asyncapi", "/functions/0/type", "function 'echo' is of type asyncapi"),
        ("/functions/0/type", "graphql", "/functions/0/type", "function 'echo' is of type graphql"),
        ("/functions/0/authRef", "a", "/functions/0/authRef", "nothing here authenticates"),
        ("/functions/1/operation", ".age |", "/functions/1/operation", ""),
        ("/functions/1/name", "echo", "/functions/1/name", "'echo' is defined twice"),
        ("/constants", "https://x.example", "/constants", "constants are an object"),
        ("/dataInputSchema", "https://x.example", "/dataInputSchema/schema", "a schema that lies elsewhere"),
        ("/start", "nowhere", "/start", "there is no state 'nowhere'"),
        (
            "/start",
            {"stateName": "wait", "schedule": "R/PT2H"},
            "/start/schedule",
            "a workflow does not start at times",
        ),
        (
            "/timeouts/stateExecTimeout/single",
            "PT1S",
            "/timeouts/stateExecTimeout/single",
            "a state is not tried again",
        ),
        (
            "/timeouts/workflowExecTimeout/runBefore",
            "split",
            "/timeouts/workflowExecTimeout/runBefore",
            "state 'split'",
        ),
        ("/timeouts/workflowExecTimeout/duration", "P1H", "/timeouts/workflowExecTimeout/duration", "'P1H' is not"),
        ("/retries/0/jitter", 2, "/retries/0/jitter", "a share of the delay from 0 to 1"),
        ("/retries/0/maxAttempts", ..., "/retries/0", "maxAttempts is missing"),
        ("/autoRetries", True, "/states/0/onEvents/0/actions/1/retryableErrors", "with autoRetries: true"),
        ("/events/0/kind", "produced", "/states/0/onEvents/0/eventRefs/0", "event 'paid' is produced"),
        ("/states/0/onEvents/0/actions/0/functionRef/refName", "adult", "", "takes no arguments"),
        ("/states/0/onEvents/0/actions/0/subFlowRef", "x", "/states/0/onEvents/0/actions/0", "exactly one of"),
        ("/states/0/onEvents/0/actions/1/condition", "${ fn:lost }", "", "there is no 'lost' among the functions"),
        ("/states/0/transition/produceEvents/0/contextAttributes", {"a": "b"}, "", "have no attributes of their own"),
        ("/states/0/transition/nextState", "undo", "/states/0/transition", "'undo' is not for this"),
        ("/states/0/end", True, "/states/0", "it has a transition and an end"),
        ("/states/1/numCompleted", 3, "/states/1/numCompleted", "a number from 1 to 2"),
        ("/states/1/numCompleted", ..., "/states/1/numCompleted", "atLeast has a numCompleted"),
        ("/states/1/compensatedBy", "ask", "/states/1/compensatedBy", "state 'ask' is not for that"),
        ("/states/1/compensatedBy", "lost", "/states/1/compensatedBy", "there is no state 'lost'"),
        ("/states/2/compensatedBy", "undo", "/states/2/compensatedBy", "what compensates is not compensated"),
        ("/states/2/end", {"compensate": True}, "/states/2/end", "a state that compensates just leads on"),
        ("/states/3/mode", "both", "/states/3/mode", "one of parallel, sequential"),
        ("/states/5/dataConditions", [], "/states/5", "one of dataConditions and eventConditions"),
        ("/states/5/transition", "look", "/states/5/transition", "'transition' is not known here"),
        ("/states/6/dataConditions/0/end/continueAs/workflowExecTimeout", "PT1M", "", "has its own timeout"),
        ("/states/6/dataConditions/0/end/terminate", False, "", "what continues as another execution is over"),
    ],
)
def test_each_mistake_is_told_with_its_place(path: str, value: Any, where: str, message: str) -> None:
    found = problems(changed(path, value))
    place = where or next(one for one in found if message in found[one])
    assert message in found[place]
    assert place.startswith(where or path.rpartition("/")[0])


def test_a_workflow_that_nothing_ends_is_warned_of() -> None:
    found = body(operation(echoes()), keepActive=True)
    [problem] = check(found)
    assert (problem.where, problem.level) == ("/keepActive", "warning")


def test_an_expression_that_is_injected_is_warned_of() -> None:
    [problem] = check(body({"name": "a", "type": "inject", "data": {"n": "${ .n }"}, "end": True}))
    assert (problem.where, problem.level) == ("/states/0/data", "warning")


def test_what_is_wrong_is_not_made() -> None:
    with pytest.raises(DefinitionInvalid, match="there are no states"):
        States(body())


@pytest.mark.parametrize("odd", [None, 1, -1, True, "", "x", "${", "${ . }", [], {}, [1], {"x": 1}, [None], [{}]])
def test_reading_is_safe_with_any_json(odd: Any) -> None:
    for path in _places(whole(), ""):
        found = changed(path, copy.deepcopy(odd))
        if not [one for one in kinds.check(found) if one.level == "error"]:
            build(found, version=1, bounds={}).diagram()


def _places(value: Any, at: str) -> Iterator[str]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield f"{at}/{key}"
        yield from _places(one, f"{at}/{key}")


def test_a_picture_shows_states_branches_and_ways() -> None:
    found = build(whole(), version=1, bounds={}).diagram({"ask": "current"})
    words = {box.id: (box.words, box.shape, box.mark) for box in found.boxes}
    assert words["/states/4"] == ("ask", "wait", "current")
    assert words["/states/1/branches/0"][0] == "one"
    arrows = {(arrow.source, arrow.target, arrow.label) for arrow in found.arrows}
    assert {
        ("start", "/states/0", ""),
        ("/states/5", "end", "paid"),
        ("/states/1", "/states/2", "compensate"),
    } <= arrows


# --- examples --------------------------------------------------------------------------------------------------------

#: Why examples of the specification are refused once their functions are actions; their other forms likewise.
REFUSED = {
    "book-lending": "what lies elsewhere is not fetched",
    "car-vitals-checks-3": "there is no 'DisplayChecksOnDashboard' among the events",
    "car-vitals-checks-4": "there is no 'DisplayChecksOnDashboard' among the events",
    "check-inbox-periodically": "a workflow does not start at times by itself",
    "event-based-transitions-example": "'eventTimeout' is not known here",
    "handle-car-auction-bids-example": "a workflow does not start at times by itself",
    "new-patient-onboarding": "there is no 'NewPatientEvent' among the events",
    "online-food-ordering-1": "what lies elsewhere is not fetched",
    "online-food-ordering-2": "there is no 'Food Order Event' among the events",
    "online-food-ordering-3": "there is no 'Dispatch Courrier Function' among the functions",
    "perform-customer-credit-check-example": "there is no 'callCreditCheckMicroservice' among the functions",
    "process-transactions": "there is no 'Banking Service - Smaller Tx' among the functions",
    "purchase-order-deadline": "'PT30D' is not a duration",
    "reusing-function-and-event-definitions": "what lies elsewhere is not fetched",
}


def test_examples_of_the_specification_load_or_are_refused_for_a_reason() -> None:
    folder = os.environ.get("PERDURE_TEST_SW_EXAMPLES")
    if not folder:
        pytest.skip("PERDURE_TEST_SW_EXAMPLES is not set: it is the folder of the examples of the specification")
    files = sorted(Path(folder, "0.8").iterdir())
    assert len(files) > 50
    for file in files:
        found = reading.read(file.read_text(), file.name)
        for one in found if isinstance(found, list) else [found]:
            _check_example(file.stem, one)


def _check_example(name: str, found: dict[str, Any]) -> None:
    functions = found.get("functions") or []
    called = [one for one in functions if isinstance(one, dict) and one.get("type", "rest") != "expression"]
    told = problems(found)
    for number, one in enumerate(functions if called else []):
        rest = one.get("type", "rest") == "rest"
        fine = one.get("type") == "expression" or (rest and one["operation"].startswith(("http://", "https://")))
        where = f"/functions/{number}/{'operation' if rest else 'type'}"
        assert (where in told) is not fine, (name, where)
    for one in called:
        one["type"] = "custom"
    wrong = [str(one) for one in kinds.check(found) if one.level == "error"]
    reason = REFUSED.get(name) or REFUSED.get(name.removesuffix("-2"))
    assert any(reason in one for one in wrong) if reason else not wrong, (name, wrong)
