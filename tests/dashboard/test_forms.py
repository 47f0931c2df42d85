"""Forms that are drawn from JSON Schemas: every sort of field, and JSON where there is none for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

FLOWS = """
from typing import Any

from perdure import person, workflow


@workflow
async def fill(form: Any) -> Any:
    return await person("fill", form=form)
"""
ADDRESS = {
    "title": "Address",
    "type": "object",
    "properties": {"street": {"type": "string"}, "zip": {"type": "integer", "default": 1000}},
    "required": ["street"],
}
Drawn = Callable[[Any], Locator]


@pytest.fixture(scope="module")
def flows() -> str:
    return FLOWS


@pytest.fixture
def drawn(page: Page, module_served: Served, request: pytest.FixtureRequest) -> Drawn:
    """The form of a task with this schema, on its page."""

    def drawn(schema: Any) -> Locator:
        id = request.node.name.removeprefix("test_")[:40]
        module_served.ask("/v1/executions?wait=30s", {"workflow": "fill", "id": id, "args": [schema]})
        page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{module_served.key}')")
        page.goto(f"{module_served.address}/dashboard/#/inbox/{id}.1")
        return page.locator("main form")

    return drawn


@pytest.fixture
def value(page: Page, module_served: Served) -> Callable[[], Any]:
    """Complete it, and give what the API has of it then."""

    def value() -> Any:
        page.get_by_role("button", name="Complete").click()
        expect(page.get_by_text("ui has completed it.")).to_be_visible()
        return module_served.ask(f"/v1/tasks/{page.url.rpartition('/')[2]}")["value"]

    return value


def asks(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "$defs": {"Address": ADDRESS}}


def test_texts_numbers_dates_and_choices(drawn: Drawn, value: Callable[[], Any]) -> None:
    form = drawn(
        asks(
            "name",
            name={"type": "string", "description": "As in the passport"},
            story={"type": "string", "maxLength": 2000},
            count={"type": "integer"},
            share={"type": "number"},
            day={"type": "string", "format": "date"},
            at={"type": "string", "format": "date-time"},
            level={"enum": ["low", 2, None]},
            size={"oneOf": [{"const": "s", "title": "small"}, {"const": "l", "title": "large"}]},
        )
    )
    expect(form.get_by_text("As in the passport")).to_be_visible()
    expect(form.get_by_text("name *")).to_be_visible()
    form.get_by_label("name").fill("Ada")
    form.get_by_label("story").fill("one\ntwo")
    form.get_by_label("count").fill("3")
    form.get_by_label("share").fill("0.25")
    form.get_by_label("day").fill("2030-02-03")
    form.get_by_label("at").fill("2030-02-03T04:05:06")
    form.get_by_label("level").select_option("2")
    form.get_by_label("size").select_option("large")
    assert value() == {
        "name": "Ada",
        "story": "one\ntwo",
        "count": 3,
        "share": 0.25,
        "day": "2030-02-03",
        "at": "2030-02-03T04:05:06.000Z",
        "level": 2,
        "size": "l",
    }


def test_defaults_are_there_and_what_is_left_empty_is_left_out(drawn: Drawn, value: Callable[[], Any]) -> None:
    form = drawn(
        asks(
            note={"type": "string"},
            greeting={"type": "string", "default": "hello"},
            cleared={"type": "string", "default": "some"},
            count={"type": "integer", "default": 4},
            urgent={"type": "boolean", "default": True},
            level={"enum": ["low", "high"], "default": "high"},
            perhaps={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            known={"type": ["boolean", "null"]},
        )
    )
    expect(form.get_by_label("greeting")).to_have_value("hello")
    expect(form.get_by_label("urgent")).to_be_checked()
    form.get_by_label("cleared").fill("")
    same = {"greeting": "hello", "cleared": "", "count": 4, "urgent": True, "level": "high"}
    assert value() == {**same, "perhaps": None, "known": None}


def test_objects_in_objects_and_those_that_may_be_absent(drawn: Drawn, value: Callable[[], Any]) -> None:
    ref = {"$ref": "#/$defs/Address"}
    form = drawn(asks("ship_to", ship_to=ref, billing={"anyOf": [ref, {"type": "null"}]}, spare=ref))
    form.get_by_role("group", name="ship to").get_by_label("street").fill("Main St 1")
    expect(form.get_by_role("group", name="billing")).to_have_count(0)
    form.get_by_label("billing").check()
    billing = form.get_by_role("group", name="billing")
    billing.get_by_label("street").fill("Side St 2")
    billing.get_by_label("zip").fill("2000")
    assert value() == {
        "ship_to": {"street": "Main St 1", "zip": 1000},
        "billing": {"street": "Side St 2", "zip": 2000},
    }


def test_lists_grow_and_shrink(drawn: Drawn, value: Callable[[], Any]) -> None:
    form = drawn(asks("tags", tags={"type": "array", "items": {"type": "string"}}, none={"type": "array", "items": {}}))
    for text in ("red", "wrong", "blue", ""):
        form.get_by_role("button", name="Add to tags").click()
        form.get_by_role("textbox").last.fill(text)
    form.get_by_role("button", name="Remove").nth(1).click()
    assert value() == {"tags": ["red", "blue"]}


def test_what_cannot_be_drawn_is_filled_in_as_json(drawn: Drawn, page: Page, value: Callable[[], Any]) -> None:
    either = {"anyOf": [{"type": "string"}, {"type": "array"}]}
    form = drawn(asks(either=either, table={"type": "object", "additionalProperties": {"type": "integer"}}))
    form.get_by_label("either").fill("[1,")
    page.get_by_role("button", name="Complete").click()
    expect(form.locator(".part", has=page.get_by_label("either"))).to_contain_text("either is no JSON")
    form.get_by_label("either").fill("[1, 2]")
    form.get_by_label("table").fill('{"a": 1}')
    assert value() == {"either": [1, 2], "table": {"a": 1}}


def test_all_of_it_can_be_json_and_goes_back_and_forth(drawn: Drawn, value: Callable[[], Any]) -> None:
    form = drawn(asks(name={"type": "string"}, count={"type": "integer"}))
    form.get_by_label("name").fill("Ada")
    form.get_by_role("button", name="As JSON").click()
    expect(form.get_by_role("textbox")).to_have_value('{\n  "name": "Ada"\n}')
    form.get_by_role("textbox").fill('{"name": "Bob", "count": 3, "more": [true]}')
    form.get_by_role("button", name="As a form").click()
    expect(form.get_by_label("name")).to_have_value("Bob")
    form.get_by_label("count").fill("4")
    assert value() == {"more": [True], "name": "Bob", "count": 4}


def test_a_schema_that_contains_itself_has_an_end(drawn: Drawn, value: Callable[[], Any]) -> None:
    node = {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#"}}}
    form = drawn(node)
    form.get_by_label("name").fill("first")
    form.get_by_label("next").check()
    form.get_by_label("name").last.fill("second")
    assert value() == {"name": "first", "next": {"name": "second"}}


def test_a_form_of_one_value(drawn: Drawn, value: Callable[[], Any]) -> None:
    form = drawn({"type": "boolean"})
    form.get_by_role("combobox").select_option("no")
    assert value() is False


def test_what_is_asked_for_only_sometimes_can_be_said(
    drawn: Drawn, page: Page, watch: Watch, value: Callable[[], Any]
) -> None:
    watch.allow("422")
    schema = asks("ok", ok={"type": "boolean"})
    schema["if"] = {"properties": {"ok": {"const": False}}}
    schema["then"] = {"properties": {"why": {"type": "string"}}, "required": ["why"]}
    form = drawn(schema)
    form.get_by_label("ok").select_option("no")
    page.get_by_role("button", name="Complete").click()
    expect(form.locator(".part", has=page.get_by_label("why"))).to_contain_text('"why" is a required property')
    form.get_by_label("why").fill("too dear")
    assert value() == {"ok": False, "why": "too dear"}


def test_what_is_wrong_is_said_at_its_place(drawn: Drawn, page: Page, watch: Watch) -> None:
    watch.allow("422")
    inner = asks(
        "share",
        share={"type": "number", "maximum": 1},
        codes={"type": "array", "items": {"type": "string", "minLength": 2}},
    )
    form = drawn(asks("inner", inner=inner, table={"type": "object", "additionalProperties": {"type": "integer"}}))
    form.get_by_label("share").fill("7")
    form.get_by_role("button", name="Add to codes").click()
    form.get_by_label("codes 1").fill("x")
    form.get_by_label("table").fill('{"a": "b"}')
    page.get_by_role("button", name="Complete").click()
    for name, text in {
        "share": "7 is greater than",
        "codes 1": '"x" is shorter',
        "table": 'a: "b" is not of type',
    }.items():
        expect(form.locator(".part", has=page.get_by_label(name))).to_contain_text(text)
    expect(page.get_by_role("alert")).to_have_text("It is not filled in as its form asks.")
    form.get_by_label("share").fill("1")
    page.get_by_role("button", name="Complete").click()
    expect(form.get_by_label("share")).to_have_attribute("aria-invalid", "false")
    expect(form.get_by_label("codes 1")).to_have_attribute("aria-invalid", "true")
