"""Pictures of definitions over HTTP: of versions, of drafts, and of what nobody has published."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Client
from perdure.errors import DefinitionInvalid, DefinitionNotFound
from perdure.flows.diagram import mermaid
from tests.client.served import Served, run as served_client
from tests.http.test_api import Door, problem, served

PATH = "/v1/definitions/diagram"
LAMP: dict[str, Any] = {
    "machine": "drawn-lamp",
    "initial": "dark",
    "states": {"dark": {"on": {"press": "bright"}}, "bright": {"final": True}},
}
DIM = {**LAMP, "initial": "dim", "states": {"dim": {"on": {"press": "bright"}}, "bright": {"final": True}}}


def test_each_version_is_drawn_and_without_a_number_the_one_that_starts_take() -> None:
    async def main(door: Door) -> None:
        for one in (LAMP, DIM):
            await door("POST", "/v1/definitions", {"definition": one})
        path = "/v1/definitions/drawn-lamp/diagram"
        drawn = await door("GET", path)
        assert drawn.headers["content-type"] == "image/svg+xml" and drawn.text.startswith("<svg")
        for query, state in (("", "dim"), ("&version=1", "dark"), ("&version=2", "dim")):
            said = await door("GET", f"{path}?form=mermaid{query}")
            assert said.headers["content-type"].startswith("text/plain") and f"[*] --> b_{state}" in said.text
        await door("POST", "/v1/definitions/drawn-lamp/deprecate", {"version": 2})
        assert "b_dark" in (await door("GET", f"{path}?form=mermaid")).text

    served(main, working=False)


def test_a_draft_is_drawn_or_all_that_is_wrong_with_it_is_told() -> None:
    async def main(door: Door) -> None:
        path = "/v1/definitions/drawn-lamp/diagram?draft=true&form=mermaid"
        await door("POST", "/v1/definitions/drafts", {"definition": LAMP})
        assert "b_dark" in (await door("GET", path)).text
        await door("POST", "/v1/definitions/drafts", {"definition": {**LAMP, "initial": "nowhere"}})
        found = problem(await door("GET", path), 422, "definition-invalid")
        assert [one["where"] for one in found["problems"]] == ["machine.initial"]
        problem(await door("GET", "/v1/definitions/drawn-lamp/diagram"), 404, "definition-not-found")

    served(main, working=False)


def test_what_was_not_published_is_drawn_and_nothing_of_it_is_kept() -> None:
    async def main(door: Door) -> None:
        assert (await door("POST", PATH, {"definition": LAMP})).text.startswith("<svg")
        text = "graph: drawn-flow\nnodes:\n- {id: go, type: trigger}\n- {id: stop, type: end}\n"
        said = await door(
            "POST", f"{PATH}?form=mermaid", {"definition": f"{text}edges: [{{source: go, target: stop}}]"}
        )
        assert "b_go --> b_stop" in said.text
        assert (await door("GET", "/v1/definitions")).json() == {"definitions": []}

    served(main, working=False)


def test_actions_that_are_still_to_be_written_and_missing_secrets_are_drawn() -> None:
    async def main(door: Door) -> None:
        entry = [{"action": "drawn.unwritten", "with": {"key": "secret://nowhere"}}]
        body = {"definition": {**LAMP, "states": {"dark": {"entry": entry, "final": True}}}}
        assert "drawn.unwritten" in (await door("POST", f"{PATH}?form=mermaid", body)).text
        problem(await door("POST", "/v1/definitions", body), 422, "definition-invalid")

    served(main, working=False)


def test_what_cannot_be_drawn_is_told_as_validation_tells_it() -> None:
    async def main(door: Door) -> None:
        for wrong in (
            {},
            {"machine": "drawn lamp"},
            {**LAMP, "initial": "nowhere", "states": {"dark": {"on": {"press": "away"}}}},
            {"document": {"dsl": "1.0.3", "namespace": "drawn", "name": "x", "version": "1.0.0"}, "do": [{"a": {}}]},
        ):
            told = (await door("POST", "/v1/definitions/validate", {"definition": wrong})).json()["problems"]
            found = problem(await door("POST", PATH, {"definition": wrong}), 422, "definition-invalid")
            assert found["problems"] == [one for one in told if one.get("level") != "warning"] != []

    served(main, working=False)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"definition": 7}, "invalid-request"),
        ({"definition": "machine: [x"}, "invalid-value"),
        ({"definition": "x" * 300_000}, "invalid-value"),
        ({"definition": LAMP, "note": "x"}, "invalid-request"),
        ({}, "invalid-request"),
    ],
    ids=["a number", "no YAML", "too long", "a note", "nothing"],
)
def test_what_is_no_definition_is_refused(body: Any, name: str) -> None:
    async def main(door: Door) -> None:
        problem(await door("POST", PATH, body), 422, name)

    served(main, working=False)


def test_a_form_or_a_version_that_does_not_exist_is_refused() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/definitions", {"definition": LAMP})
        path = "/v1/definitions/drawn-lamp/diagram"
        problem(await door("POST", f"{PATH}?form=png", {"definition": LAMP}), 422, "invalid-request")
        for query in ("form=png", "version=0", "version=x", "draft=maybe"):
            problem(await door("GET", f"{path}?{query}"), 422, "invalid-request")
        problem(await door("GET", f"{path}?version=2"), 404, "definition-not-found")
        problem(await door("GET", f"{path}?draft=true"), 404, "definition-not-found")

    served(main, working=False)


def test_a_client_and_an_application_draw_the_same() -> None:
    async def main(place: Served, ann: Client) -> None:
        await ann.definitions.publish(LAMP)
        await ann.definitions.draft(DIM)
        draw = place.app.definitions.diagram
        for version, draft in ((1, False), (None, False), (None, True)):
            drawn = await draw("drawn-lamp", version, draft=draft, tenant="acme")
            assert await ann.definitions.diagram("drawn-lamp", version, draft=draft, form="mermaid") == mermaid(drawn)
        assert (await ann.definitions.draw(LAMP)).startswith("<svg")
        with pytest.raises(DefinitionInvalid) as told:
            await ann.definitions.draw({**LAMP, "initial": "nowhere"})
        assert [one.where for one in told.value.problems] == ["machine.initial"]
        with pytest.raises(DefinitionNotFound):
            await ann.definitions.diagram("drawn-nothing")

    served_client(main)


def test_what_is_left_empty_is_drawn() -> None:
    """`publish:` without a value is null, which is nothing."""

    async def main(door: Door) -> None:
        body = {"definition": {**LAMP, "publish": None}}
        assert (await door("POST", PATH, body)).status_code == 200
        assert (await door("POST", "/v1/definitions", body)).status_code == 201

    served(main, working=False)
