"""Graphs that are published at run time: started by name, called as children, moved to another version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure import InvalidValue, action
from perdure.errors import DefinitionInvalid, MigrationRefused
from perdure.flows.registry import registry
from perdure.testing import World
from tests.flows.making import body, settled


@action(name="published.say")
async def say(text: Any) -> str:
    return f"said {text}"


@pytest.fixture(autouse=True)
def _own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})  # other tests have workflows of these names


SAY = ("action", {"action": "published.say", "with": {"text": "${ .trigger }"}})


def waiting(*after: str, **nodes: Any) -> dict[str, Any]:
    """A graph that waits in two branches, with what comes behind them."""
    return body(
        "waits",
        {
            "start": "trigger",
            "p": "parallel",
            "nap": ("delay", {"duration": "10d"}),
            "both": ("wait", {"events": [{"name": "a"}, {"name": "b"}]}),
            "join": "join",
            **nodes,
        },
        "start > p > nap > join",
        "p > both > join",
        *after,
    )


async def test_a_published_graph_is_started_by_name(world: World) -> None:
    made = body("greeting", {"start": ("trigger", {"schema": {"type": "string"}}), "say": SAY}, "start > say")
    await world.app.definitions.publish(json.dumps(made))
    with pytest.raises(InvalidValue, match='7 is not of type "string"'):
        await world.app.start("greeting", 7)
    run = await world.app.start("greeting", "hello")
    assert await run.result() == "said hello"


async def test_all_mistakes_are_told_when_it_is_published(world: World) -> None:
    with pytest.raises(DefinitionInvalid) as caught:
        await world.app.definitions.publish(
            body("bad", {"start": "trigger", "a": "join", "b": ("set", {})}, "start > a")
        )
    assert {one.where for one in caught.value.problems} == {"nodes.a", "nodes.b"}


async def test_a_published_graph_is_a_child(world: World) -> None:
    await world.app.definitions.publish(body("inner-graph", {"start": "trigger", "say": SAY}, "start > say"))
    outer = body(
        "outer-graph",
        {"start": "trigger", "in": ("child", {"workflow": "inner-graph", "with": {"n": 1}})},
        "start > in",
    )
    await world.app.definitions.publish(outer)
    run = await world.app.start("outer-graph")
    await world.settle()
    await world.crash()
    assert await run.result() == "said {'n': 1}"


async def test_an_open_graph_goes_on_with_another_version(world: World) -> None:
    await world.app.definitions.publish(waiting())
    run = await world.app.start("waits", "x")
    await run.send("a", 1)
    await world.advance("4d")
    await world.app.definitions.publish(waiting("join > say", say=SAY))
    await run.migrate(2, by="ada")
    began = world.micros()
    await run.send("b", 2)
    assert await run.result() == "said x"
    assert world.micros() - began == pytest.approx(6 * 86_400 * 1e6, rel=0.001)
    assert [name for name, _ in await settled(world, run)] == ["start", "p", "both", "nap", "join", "say"]


async def test_an_open_graph_does_not_go_to_a_version_without_what_is_open(world: World) -> None:
    await world.app.definitions.publish(waiting())
    run = await world.app.start("waits", "x")
    await run.until("waiting")
    await world.app.definitions.publish(body("waits", {"start": "trigger", "say": SAY}, "start > say"))
    with pytest.raises(MigrationRefused, match="this version does not have it"):
        await run.migrate(2)
