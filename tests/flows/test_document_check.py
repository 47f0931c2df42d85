"""What is wrong with a document is found when it is published: all of it at once, each with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from perdure import DefinitionInvalid, action
from perdure.flows import kinds
from perdure.flows.bound import Problem
from perdure.flows.document import Document, actions, calls, check
from perdure.flows.document.catalog import KINDS
from tests.flows.documenting import body, listed

ABOUT = {"dsl": "1.0.3", "namespace": "tests", "name": "checked", "version": "1.0.0"}
SET = {"set": {"a": 1}}
TRY = listed(a=SET)
COUNT = "/catch/retry/limit/attempt/count"


@action(name="document-check.send")
async def send(text: str) -> None:
    """Never called."""


def wrong(task: Any, **more: Any) -> list[tuple[str, str]]:
    """What is wrong with a document of one task: places below it, and messages."""
    found = check(body("checked", {"t": task}, **more))
    return [(one.where.removeprefix("/do/0/t"), one.message) for one in found]


def only(task: Any, **more: Any) -> tuple[str, str]:
    [one] = wrong(task, **more)
    return one


def whole(document: Any) -> list[str]:
    return [f"{one.where}: {one.message}" for one in check(document)]


def test_a_document_without_faults_has_no_problems() -> None:
    assert wrong(SET) == []


def test_all_problems_are_found_at_once() -> None:
    tasks = {
        "a": {"set": {"n": "${ ( }"}},
        "b": {"wait": "PT1M", "thn": "a"},
        "c": {"set": {"n": 1}, "then": "nowhere"},
        "d": {"wait": "P1H"},
    }
    assert [one.where for one in check(body("many", tasks, timeot={}))] == [
        "/timeot",
        "/do/0/a/set",
        "/do/1/b/thn",
        "/do/3/d/wait",
        "/do/2/c/then",
    ]


def test_a_document_that_cannot_work_is_refused_with_all_its_problems() -> None:
    with pytest.raises(DefinitionInvalid, match="document tests.checked has 2 mistakes") as caught:
        Document(body("checked", {"a": {"wait": "soon"}, "b": {"do": []}}))
    assert [one.where for one in caught.value.problems if isinstance(one, Problem)] == ["/do/0/a/wait", "/do/1/b/do"]


# The document.


def test_what_a_document_says_of_itself_is_checked() -> None:
    assert whole({"document": {"dsl": "0.9.0", "namespace": "a b", "name": 5}, "do": listed(a=SET)}) == [
        "/document: version is missing",
        "/document/namespace: a name has letters, digits and dashes, and at most 63 of them",
        "/document/name: a name has letters, digits and dashes, and at most 63 of them",
        "/document/dsl: version 0.9.0 of the DSL is not known here",
    ]
    assert whole({"document": {**ABOUT, "version": "one"}, "do": listed(a=SET)}) == [
        "/document/version: a version is like 1.0.3"
    ]


def test_parts_that_are_missing_are_named() -> None:
    assert whole({"document": ABOUT}) == [": do is missing", "/do: a list of tasks is expected here"]


def test_other_languages_and_loose_expressions_are_refused() -> None:
    assert wrong(SET, evaluate={"language": "js"}) == [("/evaluate", "expressions are in jq, and strict: in ${ }")]
    assert wrong(SET, evaluate={"mode": "loose"}) == [("/evaluate", "expressions are in jq, and strict: in ${ }")]
    assert wrong(SET, evaluate={"language": "jq", "mode": "strict"}) == []


@pytest.mark.parametrize("key", ["errors", "functions", "retries", "timeouts"])
def test_what_is_used_stands_under_names(key: str) -> None:
    assert wrong(SET, use={key: []}) == [(f"/use/{key}", "this is a list, and should be an object")]


def test_secrets_are_a_list_of_names() -> None:
    for bad in ("stripe", ["a/b"], [5], {"a": 1}):
        assert wrong(SET, use={"secrets": bad}) == [("/use/secrets", "a list of names is expected here")]


def test_names_that_are_not_there_are_found_with_those_that_are() -> None:
    found = check(
        body("checked", {"t": {"wait": "PT1S", "timeout": "long"}}, use={"timeouts": {"short": {"after": "PT1S"}}})
    )
    assert [(one.where, one.message, one.fix) for one in found] == [
        ("/do/0/t/timeout", "use.timeouts has no 'long'", "it has: short")
    ]


def test_a_schema_that_lies_elsewhere_is_not_fetched() -> None:
    schema = {"resource": {"endpoint": "https://example.org/schema.json"}}
    assert only({**SET, "input": {"schema": schema}})[0] == "/input/schema"
    assert "is not fetched" in only({**SET, "input": {"schema": schema}})[1]


def test_a_schema_is_json_schema() -> None:
    assert only({**SET, "output": {"schema": {"format": "avro", "document": {}}}})[0] == "/output/schema/format"
    assert "not a JSON Schema" in only({**SET, "output": {"schema": {"document": {"type": "objekt"}}}})[1]


# Tasks.


def test_a_task_says_what_it_does_and_does_one_thing() -> None:
    assert only({}) == ("", "it does not say what it does")
    assert only({"set": {"a": 1}, "wait": "PT1S"}) == ("", "it is set and wait at once")
    assert only(5) == ("", "a task is an object")


def test_a_task_is_an_object_with_one_key() -> None:
    assert whole({"document": ABOUT, "do": [{"a": SET, "b": SET}, [], "x"]}) == [
        f"/do/{place}: a task is an object with one key, its name" for place in range(3)
    ]


def test_two_tasks_of_one_name_are_refused_in_one_list_only() -> None:
    assert whole({"document": ABOUT, "do": [{"a": SET}, {"a": SET}]}) == ["/do/1/a: this list has two tasks named 'a'"]
    assert whole({"document": ABOUT, "do": [{"a": {"do": listed(a=SET)}}]}) == []


def test_directives_are_no_names() -> None:
    assert [one.partition(":")[0] for one in whole(body("checked", {"exit": SET, "end": SET}))] == [
        "/do/0/exit",
        "/do/1/end",
    ]


def test_a_task_goes_on_to_one_of_its_own_list() -> None:
    inner = {"do": listed(b={**SET, "then": "a"})}
    assert whole(body("checked", {"a": SET, "outer": inner})) == [
        "/do/1/outer/do/0/b/then: there is no task 'a' beside it"
    ]


def test_unknown_keys_are_refused_wherever_they_stand() -> None:
    for task in (
        {**SET, "retry": {}},
        {**SET, "input": {"form": "."}},
        {"for": {"in": "[1]", "step": 1}, "do": listed(a=SET)},
        {"fork": {"branches": listed(a=SET), "join": 1}},
        {"try": listed(a=SET), "catch": {"error": {}}},
        {"try": listed(a=SET), "catch": {"retry": {"count": 3}}},
        {"try": listed(a=SET), "catch": {"errors": {"with": {"kind": 1}}}},
        {"raise": {"error": {"type": "x:y", "status": 1, "code": 7}}},
        {"emit": {"event": {"with": {"type": "x", "color": "red"}}}},
        {"listen": {"to": {"one": {"with": {"type": "x"}, "when": "."}}}},
    ):
        assert "is not known here" in only(task)[1], task


@pytest.mark.parametrize(
    ("task", "where"),
    [
        ({"set": {}}, "/set"),
        ({"set": "text"}, "/set"),
        ({"set": 5}, "/set"),
        ({"switch": []}, "/switch"),
        ({"switch": [{"a": {"when": "true"}}]}, "/switch/0/a"),
        ({"switch": [{"a": {"then": "exit"}}, {"b": {"then": "end"}}]}, "/switch"),
        ({"switch": [{"a": {"when": "(", "then": "end"}}]}, "/switch/0/a/when"),
        ({"do": {}}, "/do"),
        ({"for": {}, "do": listed(a=SET)}, "/for"),
        ({"for": {"in": "[1]"}}, "/do"),
        ({"for": {"in": "[1]", "each": "a b"}, "do": listed(a=SET)}, "/for/each"),
        ({"for": {"in": "[1]", "each": "$x"}, "do": listed(a=SET)}, "/for/each"),
        ({"for": {"in": "[1]", "each": "context"}, "do": listed(a=SET)}, "/for/each"),
        ({"for": {"in": "[1]", "each": "i", "at": "i"}, "do": listed(a=SET)}, "/for/at"),
        ({"for": {"in": "[1]"}, "while": "(", "do": listed(a=SET)}, "/while"),
        ({"fork": {}}, "/fork/branches"),
        ({"fork": {"branches": listed(a=SET), "compete": "yes"}}, "/fork/compete"),
        ({"fork": {"branches": listed(a={**SET, "then": "b"}, b=SET)}}, "/fork/branches/0/a/then"),
        ({"try": TRY}, "/catch"),
        ({"try": TRY, "catch": {"as": "input"}}, "/catch/as"),
        ({"try": TRY, "catch": {"retry": "often"}}, "/catch/retry"),
        ({"try": TRY, "catch": {"retry": {"backoff": {"linear": {}, "constant": {}}}}}, "/catch/retry/backoff"),
        ({"try": TRY, "catch": {"retry": {"limit": {"attempt": {"count": 0}}}}}, COUNT),
        ({"try": TRY, "catch": {"retry": {"limit": {"attempt": {"count": True}}}}}, COUNT),
        ({"try": TRY, "catch": {"retry": {"jitter": {"from": "PT1S"}}}}, "/catch/retry/jitter"),
        ({"raise": {}}, "/raise"),
        ({"raise": {"error": {"type": "x:y"}}}, "/raise/error"),
        ({"raise": {"error": {"type": "x:y", "status": "many"}}}, "/raise/error/status"),
        ({"raise": {"error": {"type": 5, "status": 500}}}, "/raise/error/type"),
        ({"wait": "1 hour"}, "/wait"),
        ({"wait": "P1H"}, "/wait"),
        ({"wait": "PT0,5S"}, "/wait"),
        ({"wait": "P1D "}, "/wait"),
        ({"wait": "-P1D"}, "/wait"),
        ({"wait": "P10001Y"}, "/wait"),
        ({"wait": {}}, "/wait"),
        ({"wait": {"years": 1}}, "/wait"),
        ({"wait": {"seconds": -1}}, "/wait"),
        ({"wait": {"seconds": 1.5}}, "/wait"),
        ({"wait": {"days": 10**9}}, "/wait"),
        ({"wait": 5}, "/wait"),
        ({"emit": {"event": {"with": {}}}}, "/emit/event/with"),
        ({"listen": {"to": {}}}, "/listen/to"),
        ({"listen": {"to": {"one": {"with": {}}}}}, "/listen/to/one/with"),
        ({"listen": {"to": {"one": {"with": {"type": "${ .x }"}}}}}, "/listen/to/one/with"),
        ({"listen": {"to": {"any": []}}}, "/listen/to/any"),
        ({"listen": {"to": {"all": [{"with": {"type": "x"}}], "until": "true"}}}, "/listen/to/until"),
        ({"listen": {"to": {"one": {"with": {"type": "x"}, "correlate": []}}}}, "/listen/to/one/correlate"),
        ({"listen": {"to": {"one": {"with": {"type": "x"}}}, "read": "all"}}, "/listen/read"),
        ({"call": "grpc", "with": {}}, "/call"),
        ({"call": "f:1.0.0@default"}, "/call"),
        ({"call": ""}, "/call"),
        ({"run": {}}, "/run"),
        ({"run": {"container": {"image": "x"}}}, "/run/container"),
        ({"run": {"script": {"language": "js"}}}, "/run/script"),
        ({"run": {"shell": {"command": "ls"}}}, "/run/shell"),
        ({"run": {"workflow": {"name": "x"}}}, "/run/workflow"),
        ({"run": {"workflow": {"namespace": "a", "name": "b"}, "await": "no"}}, "/run/await"),
        ({**SET, "if": 5}, "/if"),
        ({**SET, "if": "$item"}, "/if"),
        ({**SET, "if": "$input"}, "/if"),
        ({**SET, "timeout": {}}, "/timeout"),
        ({**SET, "timeout": {"after": "P1H"}}, "/timeout/after"),
        ({**SET, "then": 5}, "/then"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_at_its_place(task: dict[str, Any], where: str) -> None:
    assert only(task)[0] == where


def test_a_text_that_looks_like_an_expression_is_warned_of() -> None:
    [found] = check(body("checked", {"t": {"set": {"a": "$error", "b": "${ $context }"}}}))
    assert (found.where, found.level, found.fix) == ("/do/0/t/set/a", "warning", "an expression is ${ $error }")


def test_names_in_places_are_escaped() -> None:
    assert [one.where for one in check(body("checked", {"a/b~c": {"wait": "soon"}}))] == ["/do/0/a~1b~0c/wait"]


def test_a_problem_says_how_to_mend_it() -> None:
    [found] = check(body("checked", {"t": {"run": {"shell": {"command": "ls"}}}}))
    assert found.fix == "call an action that runs it"


def test_calls_of_actions_are_found_wherever_they_are() -> None:
    inner = listed(
        a={"call": "one", "with": {"x": 1}},
        b={"try": listed(c={"call": "two"}), "catch": {"do": listed(d={"call": "one"})}},
    )
    found = body(
        "checked", {"t": {"fork": {"branches": inner}}, "f": {"call": "f"}}, use={"functions": {"f": {"call": "three"}}}
    )
    assert actions(found) == ["one", "two", "three"]
    assert next((one.where, one.action, one.given) for one in calls(found)) == (
        "/do/0/t/fork/branches/0/a",
        "one",
        {"x": 1},
    )


def nested(depth: int) -> dict[str, Any]:
    task: dict[str, Any] = SET
    for _ in range(depth - 1):
        task = {"do": listed(t=task)}
    return task


def test_tasks_stand_inside_one_another_up_to_a_limit() -> None:
    assert wrong(nested(40)) == []
    assert only(nested(41))[1] == "there are more than 40 tasks inside one another"


@pytest.mark.parametrize("depth", [60, 1000])
def test_tasks_at_any_depth_are_judged_and_nothing_is_raised(depth: int) -> None:
    assert len(wrong(nested(depth))) == 1 if depth < 100 else wrong(nested(depth))


def test_functions_that_are_called_count_as_tasks_inside() -> None:
    functions = {f"f{number}": {"do": listed(a={"call": f"f{number + 1}"})} for number in range(500)}
    found = check(body("checked", {"t": {"call": "f0"}}, use={"functions": {**functions, "f500": SET}}))
    assert found and all("deep" in one.message or "inside one another" in one.message for one in found)


def test_a_function_does_not_say_where_to_go_on() -> None:
    found = check(body("checked", {"t": {"call": "f"}}, use={"functions": {"f": {**SET, "then": "end"}}}))
    assert [(one.where, one.fix) for one in found] == [
        ("/use/functions/f/then", "give `then` to the task that calls it")
    ]


def test_a_secret_cannot_be_part_of_a_text() -> None:
    task = {"call": "document-check.send", "with": {"text": "Bearer ${ $secrets.token }"}}
    found = check(body("checked", {"t": task}, use={"secrets": ["token"]}))
    assert [(one.where, one.fix) for one in found] == [
        ("/do/0/t/with", "give it by itself, where the action takes a Secret")
    ]


def test_the_secrets_of_a_document_are_those_that_it_declares() -> None:
    assert [one.name for one in kinds.secrets(body("checked", {"t": SET}, use={"secrets": ["a", "b"]}))] == ["a", "b"]


# Anything.

JSON = st.recursive(
    st.one_of(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["${ . }", "${", "PT1S", "$x", "a"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from(
    [
        *KINDS, "if", "input", "output", "export", "timeout", "then", "catch", "foreach", "with", "while",
        "schema", "from", "as", "after", "document", "each", "in", "at", "branches", "compete", "error", "errors",
        "type", "status", "event", "to", "one", "any", "all", "until", "read", "correlate", "expect", "retry",
        "delay", "backoff", "limit", "jitter", "attempt", "count", "duration", "workflow", "namespace", "name",
        "when", "exceptWhen", "item",
    ]
)  # fmt: skip
SHAPES = st.recursive(
    JSON,
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=4),
        st.lists(st.dictionaries(st.just("t"), inner, max_size=1), max_size=2),
    ),
    max_leaves=25,
)  # fmt: skip


@settings(max_examples=400)
@given(SHAPES)
def test_a_task_of_any_shape_is_judged_and_nothing_is_raised(task: Any) -> None:
    for found in check(body("checked", {"t": task})):
        assert found.message


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(["document", "input", "use", "do", "timeout", "output", "schedule", "evaluate"]), SHAPES
    )
)
def test_a_document_of_any_shape_is_judged_and_nothing_is_raised(document: dict[str, Any]) -> None:
    assert check(document)
    kinds.check(document)


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(["errors", "functions", "retries", "secrets", "timeouts", "authentications"]), SHAPES
    )
)
def test_what_is_used_may_be_of_any_shape(use: dict[str, Any]) -> None:
    check(body("checked", {"t": {"call": "t"}, "u": {"raise": {"error": "t"}}}, use=use))
