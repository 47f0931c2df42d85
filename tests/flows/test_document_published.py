"""Documents that are published at run time: checked, started by name, drawn, called as children, moved on."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from perdure import InvalidValue, action
from perdure.errors import DefinitionInvalid, MigrationRefused
from perdure.flows.diagram import mermaid, svg
from perdure.flows.document import build
from perdure.flows.registry import registry
from perdure.flows.rehearsal import Cue, rehearse
from perdure.testing import World
from tests.flows.documenting import body, listed, settled


@action(name="documents.say")
async def say(text: Any) -> str:
    return f"said {text}"


@action(name="documents.count")
async def count(number: int, word: Literal["ab", "cd"] = "ab") -> str:
    return f"{number} {word}"


@pytest.fixture(autouse=True)
def _own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})  # other tests have workflows of these names


SAY = {"call": "documents.say", "with": {"text": "${ .n }"}}
HEAR = {"listen": {"to": {"all": [{"with": {"type": "a"}}, {"with": {"type": "b"}}]}}}


async def test_a_published_document_is_started_by_its_namespace_and_name(world: World) -> None:
    schema = {"document": {"type": "object", "required": ["n"]}}
    await world.app.definitions.publish(body("greeting", {"say": SAY}, input={"schema": schema}))
    with pytest.raises(InvalidValue, match='"n" is a required property'):
        await world.app.start("tests.greeting", {})
    run = await world.app.start("tests.greeting", {"n": 7})
    assert await run.result() == "said 7"


async def test_all_mistakes_are_told_when_it_is_published(world: World) -> None:
    with pytest.raises(DefinitionInvalid) as caught:
        await world.app.definitions.publish(body("bad", {"a": {"wait": "soon"}, "b": {"set": {}}}))
    assert {one.where for one in caught.value.problems} == {"/do/0/a/wait", "/do/1/b/set"}


async def test_an_action_that_nobody_has_is_told_when_it_is_published(world: World) -> None:
    with pytest.raises(DefinitionInvalid, match=r"documents\.nowhere"):
        await world.app.definitions.publish(body("bad", {"a": {"call": "documents.nowhere"}}))


async def test_constants_that_an_action_does_not_take_are_told_when_it_is_published(world: World) -> None:
    for given, where in (({"words": 1}, "/do/0/a"), ({"number": "x"}, "/do/0/a/with")):
        called = "documents.say" if "words" in given else "documents.count"
        with pytest.raises(DefinitionInvalid) as caught:
            await world.app.definitions.publish(body("bad", {"a": {"call": called, "with": given}}))
        assert [one.where for one in caught.value.problems] == [where]


async def test_texts_with_expressions_are_not_taken_for_constants(world: World) -> None:
    tasks = {"a": {"call": "documents.count", "with": {"number": "${ .n }", "word": "a${ .b }"}}}
    await world.app.definitions.publish(body("computed", tasks))
    assert await (await world.app.start("tests.computed", {"n": 1, "b": "b"})).result() == "1 ab"


async def test_a_secret_that_is_not_declared_cannot_be_used(world: World) -> None:
    with pytest.raises(DefinitionInvalid):
        await world.app.definitions.publish(body("bad", {"a": {"set": {"n": "${ $secret.x }"}}}))


async def test_a_published_document_survives_a_crash(world: World) -> None:
    await world.app.definitions.publish(body("crashes", {"nap": {"wait": "PT1H"}, "say": SAY}))
    run = await world.app.start("tests.crashes", {"n": 1})
    await world.settle()
    await world.crash()
    assert await run.result() == "said 1"


# Another version.


async def test_a_wait_goes_on_with_another_version_and_ends_when_it_would_have_ended(world: World) -> None:
    await world.app.definitions.publish(body("moves", {"nap": {"wait": "P10D"}}))
    run = await world.app.start("tests.moves", {"n": 5})
    await world.advance("4d")
    await world.app.definitions.publish(body("moves", {"nap": {"wait": "P10D"}, "say": SAY}))
    await run.migrate(2, by="ada")
    began = world.micros()
    assert await run.result() == "said 5"
    assert world.micros() - began == pytest.approx(6 * 86_400 * 1e6, rel=0.001)
    assert await settled(world, run) == [("nap", "completed"), ("say", "completed")]


async def test_events_that_were_taken_are_kept_by_another_version(world: World) -> None:
    await world.app.definitions.publish(body("hears", {"hear": HEAR}))
    run = await world.app.start("tests.hears", {"n": 5})
    await run.send("b", 1)
    await world.settle()
    await world.app.definitions.publish(body("hears", {"hear": HEAR, "last": {"set": {"got": "${ . }"}}}))
    await run.migrate(2, by="ada")
    await run.send("a", 2)
    assert await run.result() == {"got": [1, 2]}


async def test_a_timeout_counts_on_in_another_version(world: World) -> None:
    nap = {"wait": "P10D", "timeout": {"after": "P5D"}}
    await world.app.definitions.publish(body("limited", {"nap": nap}))
    run = await world.app.start("tests.limited", {})
    await world.advance("4d")
    await world.app.definitions.publish(body("limited", {"nap": nap, "say": SAY}))
    await run.migrate(2, by="ada")
    await world.advance("23h")
    assert await run.status() == "waiting"
    await world.advance("2h")
    assert await run.status() == "failed"


async def test_a_document_that_waits_inside_another_task_is_not_moved_and_says_when_it_can_be(world: World) -> None:
    await world.app.definitions.publish(body("forked", {"both": {"fork": {"branches": listed(a={"wait": "P10D"})}}}))
    run = await world.app.start("tests.forked", {})
    await run.until("waiting")
    await world.app.definitions.publish(body("forked", {"both": {"wait": "PT1S"}}))
    with pytest.raises(MigrationRefused, match="try again once a wait or a listen of its main list waits"):
        await run.migrate(2, by="ada")
    await run.cancel("seen")


async def test_a_version_without_the_task_that_is_open_is_refused(world: World) -> None:
    await world.app.definitions.publish(body("changes", {"nap": {"wait": "P10D"}}))
    run = await world.app.start("tests.changes", {})
    await run.until("waiting")
    await world.app.definitions.publish(body("changes", {"other": {"wait": "P10D"}}))
    with pytest.raises(MigrationRefused, match="it is at nap, and this version does not have it"):
        await run.migrate(2, by="ada")
    await run.cancel("seen")


# Pictures and dry runs.

TASKS: dict[str, Any] = {
    "check": {"switch": [{"big": {"when": ".n > 9", "then": "ask"}}]},
    "each": {"for": {"in": "[1, 2]"}, "do": listed(say={"call": "documents.say", "with": ["${ $item }"]})},
    "ask": {"listen": {"to": {"one": {"with": {"type": "answer"}}}}},
    "tell": {"emit": {"event": {"with": {"type": "told"}}}},
}


def test_a_document_is_drawn_with_its_tasks_inside_one_another() -> None:
    drawn = build(body("drawn", TASKS), version=1).diagram()
    boxes = {box.id: box for box in drawn.boxes}
    assert boxes["/do/1/each/do/0/say"].inside == "/do/1/each"
    shapes = [boxes[at].shape for at in ("/do/0/check", "/do/1/each", "/do/2/ask")]
    assert shapes == ["choice", "loop", "wait"]
    assert ("/do/0/check", "/do/2/ask", "big") in {(one.source, one.target, one.label) for one in drawn.arrows}
    assert "tests.drawn" in svg(drawn)
    assert "answer" not in mermaid(drawn)


def test_branches_are_drawn_side_by_side_and_nothing_follows_an_error() -> None:
    tasks = {
        "both": {"fork": {"branches": listed(a={"set": {"n": 1}}, b={"set": {"n": 2}})}},
        "no": {"raise": {"error": {"type": "about:no", "status": 400}}},
        "never": {"set": {"n": 3}},
    }
    drawn = build(body("branches", tasks), version=1).diagram()
    assert [(one.source, one.target) for one in drawn.arrows] == [
        ("start", "/do/0/both"),
        ("/do/0/both", "/do/1/no"),
        ("/do/2/never", "end"),
    ]


async def test_the_picture_of_an_execution_marks_where_it_is(world: World) -> None:
    await world.app.definitions.publish(body("drawn", TASKS))
    run = await world.app.start("tests.drawn", {"n": 1})
    await run.until("waiting")
    marks = {box.id: box.mark for box in (await run.diagram()).boxes if box.mark}
    assert marks == {"/do/0/check": "done", "/do/1/each": "done", "/do/1/each/do/0/say": "done", "/do/2/ask": "current"}
    await run.cancel("seen")


def test_a_document_is_rehearsed_without_any_effect() -> None:
    made = build(body("dry", TASKS), version=1)
    done = rehearse(made, {"n": 1}, results={"documents.say": "x"}, events=[Cue("answer", 7)])
    assert (done.status, done.needs) == ("completed", [])
    assert done.result["type"] == "told"
    assert done.state.nodes["/do/1/each[1]/do/0/say"].output == "x"
