"""How data flows through a document: inputs, outputs, schemas, the context, and what expressions see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from perdure import ExecutionFailed, InvalidValue
from perdure.flows.document.terms import Value, is_whole, pieces
from perdure.testing import World
from tests.flows.documenting import document, failure, kind, listed, result, settled

WHOLE = {"type": "object", "required": ["whole"]}


def schema(document: Any) -> dict[str, Any]:
    return {"format": "json", "document": document}


# Tasks.


async def test_the_output_of_a_task_is_the_input_of_the_next(world: World) -> None:
    assert await result(world, {"one": {"set": {"n": 1}}, "two": {"set": {"n": "${ .n + 1 }"}}}) == {"n": 2}


async def test_the_condition_sees_what_comes_in_and_not_the_input(world: World) -> None:
    task = {"if": "${ .raw }", "input": {"from": "${ {} }"}, "set": {"ran": True}}
    assert await result(world, {"one": task}, {"raw": True}) == {"ran": True}


async def test_a_task_whose_condition_is_not_true_is_skipped_and_lets_its_input_through(world: World) -> None:
    run = await world.start(
        document({"one": {"if": ".a", "set": {"no": 1}}, "two": {"set": {"n": "${ . }"}}}), {"a": None}
    )
    assert await run.result() == {"n": {"a": None}}
    assert await settled(world, run) == [("one", "skipped"), ("two", "completed")]


async def test_a_task_that_is_skipped_does_not_go_where_it_would_have_gone(world: World) -> None:
    tasks = {"one": {"if": "false", "set": {"a": 1}, "then": "end"}, "two": {"set": {"b": 2}}}
    assert await result(world, tasks) == {"b": 2}


async def test_the_schema_of_the_input_is_for_what_comes_in(world: World) -> None:
    task = {"input": {"schema": schema(WHOLE), "from": ".whole"}, "set": {"got": "${ . }"}}
    assert await result(world, {"one": task}, {"whole": 5}) == {"got": 5}
    found = await failure(world, {"one": task}, {"half": 5})
    assert kind(found) == "validation" and found["status"] == 400 and found["instance"] == "/do/0/one"


async def test_the_schema_of_the_output_is_for_what_goes_out(world: World) -> None:
    task = {"set": {"n": 5}, "output": {"as": ".n", "schema": schema({"type": "integer"})}}
    assert await result(world, {"one": task}) == 5
    found = await failure(world, {"one": {**task, "output": {**task["output"], "as": "."}}})
    assert kind(found) == "validation"
    assert "the output does not fit its schema" in found["detail"]


async def test_what_a_task_exports_becomes_the_context(world: World) -> None:
    tasks = {
        "one": {"set": {"n": 5}, "output": {"as": ".n"}, "export": {"as": "${ {kept: ., seen: $output} }"}},
        "two": {"set": {"context": "${ $context }"}},
    }
    assert await result(world, tasks) == {"context": {"kept": 5, "seen": 5}}


async def test_the_schema_of_an_export_is_for_the_context(world: World) -> None:
    task = {"set": {"n": 5}, "export": {"as": ".n", "schema": schema({"type": "string"})}}
    found = await failure(world, {"one": task})
    assert kind(found) == "validation"
    assert "what it exports" in found["detail"]


async def test_a_failed_export_leaves_the_context_as_it_was(world: World) -> None:
    bad = {"set": {"n": 5}, "export": {"as": ".n", "schema": schema({"type": "string"})}}
    caught = {"catch": {"do": listed(tell={"set": {"context": "${ $context }"}})}, "try": listed(bad=bad)}
    assert await result(world, {"one": caught}, {"first": 1}) == {"context": {"first": 1}}


async def test_the_context_is_the_input_of_the_workflow_at_first(world: World) -> None:
    tasks = {"one": {"set": {"a": 1}}, "two": {"set": {"context": "${ $context }"}}}
    assert await result(world, tasks, {"x": [7]}, input={"from": ".x"}) == {"context": [7]}


async def test_a_task_around_others_sees_what_they_have_exported(world: World) -> None:
    inner = listed(a={"set": {"n": 1}, "export": {"as": "{inner: .n}"}})
    tasks = {"outer": {"do": inner, "output": {"as": "$context"}, "export": {"as": "{outer: $context.inner}"}}}
    assert await result(world, tasks, output={"as": "[., $context]"}) == [{"inner": 1}, {"outer": 1}]


async def test_transformations_may_be_objects(world: World) -> None:
    tasks = {
        "one": {"input": {"from": {"n": "${ .a + 1 }"}}, "set": "${ . }", "output": {"as": {"m": ["${ .n }", "n"]}}},
    }
    assert await result(world, tasks, {"a": 1}) == {"m": [2, "n"]}


# The workflow.


async def test_the_input_of_a_workflow_is_checked_as_it_comes_and_then_transformed(world: World) -> None:
    made = document({"one": {"set": {"got": "${ . }"}}}, input={"schema": schema(WHOLE), "from": ".whole"})
    assert await (await world.start(made, {"whole": 1})).result() == {"got": 1}
    with pytest.raises(InvalidValue, match='"whole" is a required property'):
        await world.start(made, {"half": 1})


async def test_no_input_is_an_empty_object(world: World) -> None:
    made = document({"one": {"set": {"got": "${ . }"}}}, input={"schema": schema({"type": "object"})})
    assert await (await world.start(made)).result() == {"got": {}}


async def test_the_output_of_a_workflow_is_transformed_and_then_checked(world: World) -> None:
    output = {"as": "${ .n + $context.one }", "schema": schema({"type": "integer"})}
    tasks = {"one": {"set": {"n": 5}}}
    assert await result(world, tasks, {"one": 1}, output=output) == 6
    found = await failure(world, tasks, {"one": 0.5}, output=output)
    assert (kind(found), found["instance"]) == ("validation", "/output")


async def test_an_input_that_cannot_be_made_fails_at_the_input(world: World) -> None:
    found = await failure(world, {"one": {"set": {"n": 1}}}, {"a": 1}, input={"from": ".a.b"})
    assert (kind(found), found["instance"]) == ("expression", "/input")


async def test_expressions_in_data_are_never_evaluated(world: World) -> None:
    assert await result(world, {"one": {"set": {"got": "${ .text }"}}}, {"text": "${ 1 + 1 }"}) == {"got": "${ 1 + 1 }"}


# What expressions see.


async def test_an_expression_sees_its_task(world: World) -> None:
    task = {
        "metadata": {"color": "red"},
        "input": {"from": ".a"},
        "set": {"n": 1},
        "output": {
            "as": "{name: $task.name, at: $task.reference, color: $task.definition.metadata.color, raw: $task.input,"
            " given: $input, raw_output: $task.output}"
        },
    }
    assert await result(world, {"one": {"do": listed(**{"x/y~z": task})}}, {"a": 5}) == {
        "name": "x/y~z",
        "at": "/do/0/one/do/0/x~1y~0z",
        "color": "red",
        "raw": {"a": 5},
        "given": 5,
        "raw_output": {"n": 1},
    }


async def test_an_expression_sees_its_workflow(world: World) -> None:
    tasks = {"one": {"set": {"id": "${ $workflow.id }", "of": "${ $workflow.definition.document.name }"}}}
    made = document({"zero": {"set": {"n": 1}}, **tasks}, output={"as": "[., $workflow.input]"}, input={"from": ".a"})
    run = await world.start(made, {"a": 5})
    assert await run.result() == [{"id": run.id, "of": made.name.partition(".")[2]}, {"a": 5}]


async def test_an_expression_sees_the_engine(world: World) -> None:
    found = await result(world, {"one": {"set": {"got": "${ $runtime }"}}})
    assert found == {"got": {"name": "perdure", "version": "1", "metadata": {}}}


async def test_an_expression_sees_when_its_workflow_and_its_task_began(world: World) -> None:
    tasks = {
        "nap": {"wait": "PT1H30M"},
        "one": {"set": {"task": "${ $task.startedAt }", "workflow": "${ $workflow.startedAt.iso8601 }"}},
    }
    found = await result(world, tasks)
    assert found["workflow"] == "2030-01-01T00:00:00.000Z"
    assert found["task"] == {
        "iso8601": "2030-01-01T01:30:00.000Z",
        "epoch": {"seconds": 1_893_461_400, "milliseconds": 1_893_461_400_000},
    }


async def test_a_secret_is_seen_as_a_reference(world: World) -> None:
    tasks = {"one": {"set": {"got": "${ $secrets.stripe }"}}}
    assert await result(world, tasks, use={"secrets": ["stripe"]}) == {"got": "secret://stripe"}


# Expressions.


async def test_an_expression_has_exactly_one_output(world: World) -> None:
    for text in ("${ empty }", "${ 1, 2 }"):
        found = await failure(world, {"one": {"set": {"n": text}}})
        assert kind(found) == "expression", text


async def test_an_expression_that_fails_names_its_task(world: World) -> None:
    found = await failure(world, {"one": {"do": listed(two={"set": {"n": "${ .a.b.c }"}})}}, {"a": 1})
    assert (kind(found), found["status"], found["instance"]) == ("expression", 400, "/do/0/one/do/0/two")


async def test_texts_without_braces_are_texts(world: World) -> None:
    assert await result(world, {"one": {"set": {"n": "$input", "m": ".a"}}}) == {"n": "$input", "m": ".a"}


async def test_text_around_expressions_is_joined_to_what_they_give(world: World) -> None:
    text = "${ .n } of ${ .all }: ${ .done }, ${ .none }${ .text }"
    data = {"n": 1, "all": 2.5, "done": True, "none": None, "text": "!"}
    assert await result(world, {"one": {"set": {"t": text}}}, data) == {"t": "1 of 2.5: true, null!"}


async def test_a_text_cannot_have_an_object_in_it(world: World) -> None:
    found = await failure(world, {"one": {"set": {"t": "so: ${ . }"}}}, {})
    assert kind(found) == "expression"
    assert "object" in found["detail"]


async def test_one_expression_keeps_its_type_also_with_blanks_around_it(world: World) -> None:
    assert await result(world, {"one": {"set": {"n": "  ${ .n }\n"}}}, {"n": [1]}) == {"n": [1]}


async def test_a_transformation_may_be_a_text_with_two_expressions(world: World) -> None:
    task = {"set": {"a": 1, "b": 2}, "output": {"as": "${ .a } and ${ .b }"}}
    assert await result(world, {"one": task}) == "1 and 2"


async def test_a_condition_is_false_for_false_and_null_only(world: World) -> None:
    for value, ran in ((0, True), ("", True), ([], True), (None, False), (False, False)):
        found = await result(world, {"one": {"if": ".v", "set": {"ran": True}}}, {"v": value})
        assert (found == {"ran": True}) is ran, value


JQ_TEXT = st.text(alphabet='ab}{"\\()$ \n', max_size=12).map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
)
JQ = st.recursive(
    JQ_TEXT,
    lambda inner: st.one_of(
        st.builds("{{a: {}}}".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("({})".format, inner),
        st.builds('"x\\({})}}y"'.format, inner),
    ),
    max_leaves=6,
)


@given(st.lists(JQ, min_size=1, max_size=3), st.lists(st.text(alphabet='ab}{" ', max_size=5), min_size=4, max_size=4))
def test_expressions_are_found_in_any_text(programs: list[str], texts: list[str]) -> None:
    joined = texts[0] + "".join(f"${{ {one} }}{text}" for one, text in zip(programs, texts[1:], strict=False))
    found = list(pieces(joined))
    assert [part for computed, part in found if computed] == programs
    assert "".join(f"${{ {part} }}" if computed else part for computed, part in found) == joined


@given(JQ)
def test_a_text_that_is_one_expression_gives_what_the_expression_gives(program: str) -> None:
    assert is_whole(f"${{{program}}}")
    assert Value(f"${{{program}}}", ()).of(None, {}) == Value(program, (), bare=True).of(None, {})


def test_an_expression_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidValue, match="a closing brace is missing"):
        Value({"a": 'x ${ "}" '}, ())


async def test_an_error_of_a_workflow_can_be_read_by_whoever_started_it(world: World) -> None:
    run = await world.start(document({"one": {"set": {"n": "${ error }"}}}))
    with pytest.raises(ExecutionFailed) as caught:
        await run.result()
    assert caught.value.type == "https://serverlessworkflow.io/spec/1.0.0/errors/expression"
