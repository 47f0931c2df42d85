"""call and run: actions, functions of a document, other workflows; what they get, and what their errors become."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Secret, action, workflow
from perdure.core import events as ev
from perdure.errors import NotRegistered
from perdure.flows.bound import Bound
from perdure.flows.document import build, check
from perdure.testing import World
from tests.flows.documenting import body, document, failure, kind, listed, paths, result

done: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@action
async def doc_add(a: int, b: int = 10) -> int:
    done.append((a, b))
    return a + b


@action(retries=3)
async def doc_flaky() -> str:
    done.append("try")
    if len(done) < 3:
        raise OSError("again")
    return "at last"


@action
async def doc_book(what: str) -> str:
    done.append(f"book {what}")
    return f"{what} booked"


@doc_book.undo
async def doc_unbook(what: str, result: str) -> None:
    done.append(f"unbook {what}")


@action
async def doc_pay(key: Secret) -> str:
    return f"{len(key.reveal())} letters"


class Refused(Exception):
    """An error with problem details."""

    def __init__(self) -> None:
        super().__init__("the bank says no")
        self.details = {"type": "https://bank.example/no", "status": 402, "title": "No"}


@action
async def doc_bank() -> None:
    raise Refused


# Actions.


@pytest.mark.parametrize(
    "given", [{"a": 1, "b": 2}, {"b": 2, "a": 1}, [1, 2], {"a": "${ .n }", "b": 2}, ["${ .n }", 2]]
)
async def test_an_action_gets_its_arguments_by_name_or_in_order(given: Any, world: World) -> None:
    assert await result(world, {"sum": {"call": "doc_add", "with": given}}, {"n": 1}) == 3


async def test_what_is_left_out_has_its_default(world: World) -> None:
    assert await result(world, {"sum": {"call": "doc_add", "with": {"a": 1}}}) == 11


async def test_an_action_is_tried_again_by_its_own_rules_and_the_record_tells_how_often(world: World) -> None:
    run = await world.start(document({"try": {"call": "doc_flaky"}}))
    assert await run.result() == "at last"
    node = (await run.state()).nodes["/do/0/try"]
    assert (node.attempts, node.status, node.input, node.output) == (3, "completed", {}, "at last")


async def test_the_record_of_a_call_that_failed_tells_how_often_it_was_tried(world: World) -> None:
    @action(retries=2)
    async def doc_never() -> None:
        raise OSError("no")

    run = await world.start(document({"try": {"call": "doc_never"}}))
    await run.until("failed")
    node = (await run.state()).nodes["/do/0/try"]
    assert (node.attempts, node.status) == (3, "failed")
    assert node.error is not None and "no" in node.error.message


async def test_what_was_done_is_undone_when_the_workflow_fails(world: World) -> None:
    bad = {"raise": {"error": {"type": "about:no", "status": 500}}}
    tasks = {"hotel": {"call": "doc_book", "with": ["hotel"]}, "car": {"call": "doc_book", "with": {"what": "car"}}}
    await failure(world, {**tasks, "bad": bad})
    assert done == ["book hotel", "book car", "unbook car", "unbook hotel"]


async def test_what_was_done_is_not_undone_when_the_error_is_caught(world: World) -> None:
    tasks = listed(
        hotel={"call": "doc_book", "with": ["hotel"]}, bad={"raise": {"error": {"type": "x:y", "status": 500}}}
    )
    await result(world, {"one": {"try": tasks, "catch": {}}})
    assert done == ["book hotel"]


def test_an_action_that_nobody_has_is_found_when_the_document_is_made() -> None:
    with pytest.raises(NotRegistered, match="doc_nowhere"):
        document({"x": {"call": "doc_nowhere"}})


async def test_a_secret_is_given_by_reference_and_never_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_STRIPE", "hunter2")
    made = document({"pay": {"call": "doc_pay", "with": {"key": "${ $secrets.stripe }"}}}, use={"secrets": ["stripe"]})
    async with World(secrets="env:") as vault:
        run = await vault.start(made)
        assert await run.result() == "7 letters"
        log = b"".join(bytes(row.data) for row in await vault.rows(run.key))
    assert b"secret://stripe" in log
    assert b"hunter2" not in log


async def test_a_secret_that_is_not_there_is_an_error_of_authorization(world: World) -> None:
    made = {"pay": {"call": "doc_pay", "with": {"key": "${ $secrets.nowhere }"}}}
    found = await failure(world, made, use={"secrets": ["nowhere"]})
    assert (kind(found), found["status"]) == ("authorization", 403)


async def test_an_error_with_problem_details_keeps_them(world: World) -> None:
    found = await failure(world, {"pay": {"call": "doc_bank"}})
    assert found == {"type": "https://bank.example/no", "status": 402, "title": "No", "instance": "/do/0/pay"}


async def test_an_action_that_took_too_long_is_a_timeout(world: World) -> None:
    @action(timeout=5)
    async def doc_slow() -> None:
        await asyncio.sleep(60)

    assert kind(await failure(world, {"slow": {"call": "doc_slow"}})) == "timeout"


async def test_arguments_that_an_action_does_not_take_fail(world: World) -> None:
    found = await failure(world, {"sum": {"call": "doc_add", "with": {"a": "${ .n }"}}}, {"n": "one"})
    assert kind(found) in ("validation", "runtime")


# Functions.


async def test_a_function_gets_its_arguments_as_input(world: World) -> None:
    use = {"functions": {"twice": {"set": {"n": "${ .x * 2 }"}}}}
    assert await result(world, {"one": {"call": "twice", "with": {"x": "${ .a }"}}}, {"a": 4}, use=use) == {"n": 8}


async def test_a_function_sees_nothing_of_the_loop_that_calls_it(world: World) -> None:
    functions = {"tell": {"set": {"n": "${ $item }"}}}
    problems = check(body("function", {"one": {"call": "tell"}}, use={"functions": functions}))
    assert [(one.where, "$item" in one.message) for one in problems] == [("/use/functions/tell/set", True)]


async def test_a_function_sees_the_context_and_may_change_it(world: World) -> None:
    use = {"functions": {"keep": {"set": {"n": "${ $context.a }"}, "export": {"as": "{b: .n}"}}}}
    assert await result(world, {"one": {"call": "keep"}}, {"a": 1}, use=use, output={"as": "$context"}) == {"b": 1}


async def test_functions_call_functions_and_each_passage_has_its_path(world: World) -> None:
    use = {
        "functions": {
            "inner": {"call": "doc_add", "with": ["${ .n }", 1]},
            "outer": {
                "do": listed(
                    a={"call": "inner", "with": {"n": "${ .n }"}}, b={"call": "inner", "with": {"n": "${ . }"}}
                )
            },
        }
    }
    run = await world.start(document({"one": {"call": "outer", "with": {"n": 5}}}, use=use))
    assert await run.result() == 7
    assert [path for path, _ in await paths(world, run)] == [
        "/do/0/one/outer/do/0/a/inner",
        "/do/0/one/outer/do/0/a",
        "/do/0/one/outer/do/1/b/inner",
        "/do/0/one/outer/do/1/b",
        "/do/0/one/outer",
        "/do/0/one",
    ]


def test_a_function_that_calls_itself_is_refused() -> None:
    use = {"functions": {"a": {"call": "b"}, "b": {"do": listed(x={"call": "a"})}}}
    found = check(body("circle", {"one": {"call": "a"}}, use=use))
    assert [(one.where, one.message) for one in found] == [
        ("/use/functions/b/do/0/x/call", "a calls itself: a → b → a")
    ]


def test_functions_that_call_each_other_twice_are_read_once() -> None:
    functions: dict[str, Any] = {
        f"f{number}": {"do": listed(a={"call": f"f{number + 1}"}, b={"call": f"f{number + 1}"})} for number in range(18)
    }
    functions["f18"] = {"set": {"n": 1}}
    assert check(body("many", {"one": {"call": "f0"}}, use={"functions": functions})) == []


def test_a_function_that_nobody_calls_is_checked_as_well() -> None:
    found = check(body("unused", {"one": {"set": {"a": 1}}}, use={"functions": {"x": {"set": {"n": "${ ( }"}}}}))
    assert [one.where for one in found] == ["/use/functions/x/set"]


async def test_an_error_in_a_function_names_the_place_in_it(world: World) -> None:
    use = {"functions": {"bad": {"do": listed(no={"raise": {"error": {"type": "about:no", "status": 400}}})}}}
    assert (await failure(world, {"one": {"call": "bad"}}, use=use))["instance"] == "/use/functions/bad/do/0/no"


# Workflows.


@workflow(name="tests.doc-code")
async def doc_code(n: int) -> dict[str, int]:
    if n < 0:
        raise ValueError("negative")
    return {"code": n + 1}


def child(name: str, input: Any = None) -> dict[str, Any]:
    return {"run": {"workflow": {"namespace": "tests", "name": name, "input": input}}}


async def test_a_document_runs_code(world: World) -> None:
    assert await result(world, {"one": child("doc-code", {"n": "${ .n }"})}, {"n": 1}) == {"code": 2}


async def test_a_document_runs_another(world: World) -> None:
    other = document({"one": {"set": {"got": "${ . }"}}})
    assert await result(world, {"one": child(other.name.partition(".")[2], {"n": 1})}) == {"got": {"n": 1}}


async def test_an_error_of_a_child_is_that_of_the_task_that_runs_it(world: World) -> None:
    error = {"type": "https://example.org/no", "status": 418}
    other = document({"deep": {"do": listed(bad={"raise": {"error": error}})}})
    found = await failure(world, {"one": {"do": listed(inner=child(other.name.partition(".")[2]))}})
    assert found == {**error, "instance": "/do/0/one/do/0/inner"}


async def test_an_error_of_code_is_one_of_the_runtime(world: World) -> None:
    found = await failure(world, {"one": child("doc-code", {"n": -1})})
    assert (kind(found), found["title"]) == ("runtime", "ValueError")


async def test_a_child_that_nobody_has_is_an_error_of_configuration(world: World) -> None:
    assert kind(await failure(world, {"one": child("doc-nowhere")})) == "configuration"


# What a worker may lack.


def test_a_published_document_is_built_without_the_code_of_its_actions() -> None:
    made = build(
        body("absent", {"x": {"call": "doc_nowhere"}}),
        version=1,
        hash="h",
        bounds={"doc_nowhere": Bound("doc_nowhere")},
    )
    assert list(made.bounds) == ["doc_nowhere"]


async def test_every_task_that_started_has_settled(world: World) -> None:
    run = await world.start(document({"a": {"call": "doc_add", "with": [1]}, "b": {"call": "doc_bank"}}))
    await run.until("failed")
    log = [ev.read(row) for row in await world.rows(run.key)]
    begun = [event.node for event in log if isinstance(event, ev.NodeStarted)]
    assert begun == [event.node for event in log if isinstance(event, ev.NodeSettled)] == ["/do/0/a", "/do/1/b"]
