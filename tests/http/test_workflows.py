"""What can be started is told: the workflows of the code, and what each takes, also of those that were published."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from perdure import Client, Machine, State, workflow
from perdure.errors import NotRegistered
from tests.client.served import Served, run as served_client
from tests.http.test_api import Door, problem, served


class Cake(Struct):
    layers: int
    name: str = "plain"


@workflow(name="told-bake", version=1)
async def bake_before() -> str:
    return "old"


@workflow(name="told-bake", version=2)
async def bake(cake: Cake, for_whom: str, hot: bool = False) -> str:
    """Bakes a cake."""
    return f"{cake.layers} layers for {for_whom}"


@workflow(name="told-strict")
async def strict(*, only: str) -> None: ...


oven = Machine("told-oven", data=Cake, initial="cold", states={"cold": State(final=True)})


def document(schema: Any) -> dict[str, Any]:
    about = {"dsl": "1.0.3", "namespace": "told", "name": "x", "version": "1.0.0"}
    return {"document": about, "input": {"schema": {"document": schema}}, "do": [{"a": {"set": {"b": 1}}}]}


GRAPH: dict[str, Any] = {
    "graph": "told-graph",
    "nodes": [
        {"id": "left", "type": "trigger"},
        {"id": "right", "type": "trigger", "data": {"schema": {"type": "object", "required": ["n"]}}},
        {"id": "end", "type": "end"},
    ],
    "edges": [{"source": "left", "target": "end"}, {"source": "right", "target": "end"}],
}


def test_the_newest_version_of_each_workflow_of_the_code_is_listed_once() -> None:
    async def main(door: Door) -> None:
        listed = (await door("GET", "/v1/workflows")).json()["workflows"]
        assert [one["name"] for one in listed] == sorted({one["name"] for one in listed})
        found = {one["name"]: one for one in listed}
        told = {"version": 2, "kind": "code", "queue": "default", "description": "Bakes a cake."}
        assert found["told-bake"] == {"name": "told-bake", **told}
        assert found["told-oven"]["kind"] == "machine"
        assert not [name for name in found if ":" in name], "those of the engine are nobody's business"

    served(main, working=False)


def test_what_code_takes_is_told_and_the_example_starts_it() -> None:
    async def main(door: Door) -> None:
        told = (await door("GET", "/v1/workflows/told-bake")).json()
        assert list(told["input"]["properties"]) == ["cake", "for_whom", "hot"]
        assert told["input"]["required"] == ["cake", "for_whom"]
        assert told["example"] == {"workflow": "told-bake", "args": [{"layers": 1}, "hello"]}
        made = (await door("POST", "/v1/executions?wait=10s", told["example"])).json()
        assert made["result"] == "1 layers for hello"
        first = (await door("GET", "/v1/workflows/told-bake?version=1")).json()
        assert (first["version"], first["input"]["properties"]) == (1, {})

    served(main)


@pytest.mark.parametrize(
    ("body", "example"),
    [
        (document({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}), {"n": 1}),
        (document(True), {}),
        (GRAPH, {"trigger": "left"}),
        ({**GRAPH, "nodes": GRAPH["nodes"][1:], "edges": GRAPH["edges"][1:]}, {"n": None}),
        ({"machine": "told-machine", "data": {"type": "string"}, "initial": "a", "states": {"a": {}}}, "hello"),
        ({"machine": "told-machine", "initial": "a", "states": {"a": {}}}, {}),
        (
            {
                "id": "told-states",
                "specVersion": "0.8",
                "dataInputSchema": {"schema": {"type": "object", "required": ["k"]}, "failOnValidationErrors": True},
                "states": [{"name": "a", "type": "inject", "data": {}, "end": True}],
            },
            {"k": None},
        ),
    ],
)
def test_what_a_published_definition_takes_is_told_and_the_example_starts_it(body: Any, example: Any) -> None:
    async def main(door: Door) -> None:
        made = (await door("POST", "/v1/definitions", {"definition": body})).json()
        told = (await door("GET", f"/v1/workflows/{made['name']}")).json()
        assert (told["kind"], told["version"]) == (made["kind"], 1)
        assert told["example"] == {"workflow": made["name"], "input": example}
        assert (await door("POST", "/v1/executions", told["example"])).status_code == 202

    served(main, working=False)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[0-9]{17}$"},
        {"type": "array", "items": {"type": "object"}, "minItems": 10**15},
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "string", "examples": {"a": 1}},
        {
            "$defs": {"t": {"type": "object", "required": [f"k{n}" for n in range(40)]}},
            "allOf": [{"type": "object", "required": ["x"], "properties": {"x": {"type": ["string", "null"]}}}],
            "required": ["y"],
        },
    ],
    ids=["a pattern", "huge", "another draft", "several"],
)
def test_where_no_example_comes_to_mind_there_is_none(schema: Any) -> None:
    async def main(door: Door) -> None:
        made = await door("POST", "/v1/definitions", {"definition": document(schema)})
        assert made.status_code == 201, made.text
        told = (await door("GET", "/v1/workflows/told.x")).json()
        assert (told["example"], told["input"]) == (None, schema)

    served(main, working=False)


def test_code_that_takes_what_no_list_can_give_has_no_example() -> None:
    async def main(door: Door) -> None:
        told = (await door("GET", "/v1/workflows/told-strict")).json()
        assert (told["example"], told["input"]["required"]) == (None, ["only"])

    served(main, working=False)


def test_what_refers_to_itself_ends() -> None:
    names = [f"k{n}" for n in range(12)]
    tree = {"type": "object", "required": names, "properties": {name: {"$ref": "#/$defs/tree"} for name in names}}

    async def main(door: Door) -> None:
        definition = document({"$defs": {"tree": tree}, "$ref": "#/$defs/tree"})
        assert (await door("POST", "/v1/definitions", {"definition": definition})).status_code == 201
        assert (await door("GET", "/v1/workflows/told.x")).json()["example"] is None

    served(main, working=False)


def test_what_is_not_there_or_asked_for_wrongly_is_refused() -> None:
    async def main(door: Door) -> None:
        for path in ("told-nothing", "told-bake?version=9"):
            problem(await door("GET", f"/v1/workflows/{path}"), 404, "not-registered")
        problem(await door("GET", "/v1/workflows/told-bake?version=x"), 422, "invalid-request")

    served(main, working=False)


def test_a_client_asks_the_same() -> None:
    async def main(place: Served, ann: Client) -> None:
        assert "told-bake" in [one.name for one in await ann.workflows()]
        told = await ann.workflow("told-bake")
        assert (told.version, told.kind) == (2, "code")
        assert (await ann.workflow("told-bake", 1)).version == 1
        with pytest.raises(NotRegistered, match="/v1/workflows lists"):
            await ann.workflow("told-nothing")

    served_client(main)
