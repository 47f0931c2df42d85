"""Definitions in a browser: found, looked at as pictures and as text, deprecated and restored, started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

Open = Callable[..., None]
LAMP: dict[str, Any] = {
    "machine": "lamp",
    "description": "It is dark, or it is not.",
    "data": {"type": "object", "properties": {"watts": {"type": "integer"}}, "required": ["watts"]},
    "initial": "dark",
    "states": {"dark": {"on": {"press": "bright"}}, "bright": {"on": {"press": "dark"}, "exit": [{"action": "ship"}]}},
}


@pytest.fixture
def open_as(page: Page, context: BrowserContext, module_served: Served) -> Open:
    """Show a view to somebody with the role."""

    def opened(hash: str, role: str = "admin") -> None:
        made = module_served.ask("/v1/keys", {"name": "looks", "roles": [role]})
        context.add_init_script(f"sessionStorage.setItem('perdure-credential', {made['secret']!r})")
        page.goto(f"{module_served.address}/dashboard/{hash}")

    return opened


def publish(served: Served, name: str, **changes: Any) -> None:
    body = {**LAMP, "machine": name, **changes}
    body["states"] = {
        **LAMP["states"],
        "bright": {"on": {"press": "dark"}, "exit": [{"action": "ship", "with": ["t"]}]},
    }
    served.ask("/v1/definitions", {"definition": body, "note": "as it was wished for"})


def test_the_list_tells_of_versions_drafts_and_deprecation(page: Page, module_served: Served, open_as: Open) -> None:
    publish(module_served, "listed")
    publish(module_served, "listed", description="another")
    module_served.ask("/v1/definitions/listed/deprecate", {"version": 2})
    module_served.ask("/v1/definitions/drafts", {"definition": {**LAMP, "machine": "sketch"}})
    open_as("#/definitions")
    row = page.get_by_role("row", name="listed machine")
    expect(row).to_contain_text("1 1 of 2 deprecated")
    expect(page.get_by_role("row", name="sketch")).to_contain_text("none draft")
    row.get_by_role("link", name="listed").click()
    expect(page.get_by_role("heading", level=1, name="listed")).to_be_visible()


def test_an_observer_sees_the_list_and_nothing_to_open_or_make(
    page: Page, module_served: Served, open_as: Open
) -> None:
    publish(module_served, "seen")
    open_as("#/definitions", "observer")
    row = page.get_by_role("row", name="seen machine")
    expect(row).to_be_visible()
    expect(row.get_by_role("link")).to_have_count(0)
    expect(page.get_by_role("link", name="New definition")).to_have_count(0)


def test_a_version_is_a_picture_and_a_text_and_knows_its_actions(
    page: Page, module_served: Served, open_as: Open
) -> None:
    publish(module_served, "shown")
    open_as("#/definitions/shown")
    picture = page.get_by_role("img", name="the definition, drawn")
    expect(picture).not_to_have_js_property("naturalWidth", 0)
    expect(page.get_by_role("row", name="ship")).to_be_visible()
    page.get_by_role("tab", name="Content").click()
    expect(page.locator("pre")).to_contain_text('machine: shown\ndescription: "It is dark, or it is not."')
    page.get_by_role("tab", name="History").click()
    expect(page.get_by_role("row", name="published 1 ui as it was wished for")).to_be_visible()


def test_the_address_says_which_version_is_shown(page: Page, module_served: Served, open_as: Open) -> None:
    publish(module_served, "twice")
    publish(module_served, "twice", description="The second.")
    open_as("#/definitions/twice?tab=content")
    expect(page.locator("pre")).to_contain_text("The second.")
    page.get_by_role("link", name="version 1").click()
    page.get_by_role("tab", name="Content").click()
    expect(page.locator("pre")).to_contain_text("It is dark")
    page.reload()
    expect(page.locator("pre")).to_contain_text("It is dark")


def test_a_version_is_deprecated_for_a_reason_and_restored(page: Page, module_served: Served, open_as: Open) -> None:
    publish(module_served, "fading")
    open_as("#/definitions/fading")
    page.get_by_role("button", name="Deprecate").click()
    page.get_by_label("Reason").fill("too bright")
    page.get_by_role("dialog").get_by_role("button", name="Deprecate").click()
    expect(page.get_by_text("· too bright")).to_be_visible()
    assert module_served.ask("/v1/definitions/fading?version=1")["deprecated"] == "too bright"
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.get_by_role("button", name="Deprecate")).to_be_visible()
    assert module_served.ask("/v1/definitions/fading?version=1")["deprecated"] is None


def test_what_is_shown_is_started_with_an_example_of_its_input(
    page: Page, module_served: Served, open_as: Open
) -> None:
    publish(module_served, "lit")
    open_as("#/definitions/lit")
    page.get_by_role("button", name="Start").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("It is dark, or it is not.")).to_be_visible()
    expect(dialog.get_by_label("Input")).to_have_value('{\n  "watts": 1\n}')
    dialog.get_by_label("one is made if there is none").fill("lit-1")
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", level=1, name="lit-1")).to_be_visible()
    assert module_served.ask("/v1/executions/lit-1")["definition"] == "published:lit@1"
    assert module_served.ask("/v1/executions/lit-1/log/1")["data"]["input"] == [{"watts": 1}]


def test_an_older_version_is_started_by_its_number(page: Page, module_served: Served, open_as: Open) -> None:
    publish(module_served, "older")
    publish(module_served, "older", description="newer")
    open_as("#/definitions/older?version=1")
    page.get_by_role("button", name="Start").click()
    page.get_by_label("one is made if there is none").fill("older-1")
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", level=1, name="older-1")).to_be_visible()
    assert module_served.ask("/v1/executions/older-1")["definition"] == "published:older@1"


def test_its_executions_are_one_click_away(page: Page, module_served: Served, open_as: Open) -> None:
    publish(module_served, "busy")
    module_served.ask("/v1/executions", {"workflow": "busy", "input": {"watts": 5}, "id": "busy-1"})
    open_as("#/definitions/busy")
    page.get_by_role("link", name="show them").click()
    expect(page.get_by_role("link", name="busy-1")).to_be_visible()


def test_a_draft_is_shown_published_and_given_up(
    page: Page, module_served: Served, open_as: Open, watch: Watch
) -> None:
    watch.allow(r"console: .*422 .*draft=true")  # a picture that cannot be drawn yet
    publish(module_served, "plan")
    module_served.ask(
        "/v1/definitions/drafts", {"definition": {"machine": "plan", "initial": "a", "states": {"a": {}}}}
    )
    open_as("#/definitions/plan")
    page.get_by_role("link", name="draft", exact=True).click()
    page.get_by_role("button", name="Publish draft").click()
    page.get_by_label("Note").fill("at last")
    page.get_by_role("dialog").get_by_role("button", name="Publish").click()
    expect(page.locator("main > header")).to_contain_text("version 2")
    last = module_served.ask("/v1/definitions/plan/history")["changes"][-1]
    assert (last["what"], last["version"], last["note"]) == ("published", 2, "at last")
    module_served.ask("/v1/definitions/drafts", {"definition": {**LAMP, "machine": "plan", "initial": "nowhere"}})
    page.goto(f"{module_served.address}/dashboard/#/definitions/plan?draft=true")
    expect(page.get_by_role("alert")).to_contain_text("nowhere")
    page.get_by_role("button", name="Discard draft").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("main > header")).to_contain_text("version 2")
    [listed] = [one for one in module_served.ask("/v1/definitions")["definitions"] if one["name"] == "plan"]
    assert listed["draft"] is False


def test_a_viewer_looks_and_changes_nothing(page: Page, module_served: Served, open_as: Open) -> None:
    publish(module_served, "quiet")
    open_as("#/definitions/quiet", "viewer")
    expect(page.get_by_role("img", name="the definition, drawn")).to_be_visible()
    for verb in ("Deprecate", "Start", "Restore"):
        expect(page.get_by_role("button", name=verb)).to_have_count(0)
    expect(page.get_by_role("link", name="Edit")).to_have_count(0)


def test_code_is_offered_to_be_started_and_says_what_it_takes(page: Page, module_served: Served, open_as: Open) -> None:
    open_as("#/executions")
    page.get_by_role("button", name="Start").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Workflow")).to_be_visible()
    assert "echo" in dialog.locator("datalist option").evaluate_all("all => all.map(one => one.value)")
    dialog.get_by_label("Workflow").fill("echo")
    expect(dialog.get_by_label("Input")).to_have_value('[\n  "hello"\n]')
    dialog.get_by_text("What it takes, as JSON Schema").click()
    expect(dialog.locator("pre")).to_contain_text('"text"')
    dialog.get_by_label("Input").fill('["mine"]')
    dialog.get_by_label("Workflow").fill("fulfil")
    expect(dialog.locator("pre")).to_contain_text('"order"')
    expect(dialog.get_by_label("Input")).to_have_value('["mine"]')  # what somebody has typed stays
    dialog.get_by_label("Workflow").fill("echo")
    dialog.get_by_label("one is made if there is none").fill("echo-1")
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", level=1, name="echo-1")).to_be_visible()
    assert module_served.ask("/v1/executions/echo-1/result?wait=30s")["result"] == "mine"


def test_a_picture_that_is_cut_off_is_a_server_that_does_not_answer(
    page: Page, module_served: Served, open_as: Open
) -> None:
    publish(module_served, "torn")
    page.add_init_script("Response.prototype.blob = () => Promise.reject(new TypeError('network error'))")
    open_as("#/definitions/torn")
    expect(page.get_by_role("alert")).to_contain_text("the server does not answer")


def test_an_example_goes_with_what_it_is_of(page: Page, watch: Watch, open_as: Open) -> None:
    watch.allow("404")
    open_as("#/executions")
    page.get_by_role("button", name="Start").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Workflow").fill("echo")
    expect(dialog.get_by_label("Input")).to_have_value('[\n  "hello"\n]')
    dialog.get_by_label("Workflow").fill("of-others")
    expect(dialog.get_by_label("Input")).to_have_value("[]")


def test_a_definition_that_is_not_there_is_told(page: Page, watch: Watch, open_as: Open) -> None:
    watch.allow("404")
    open_as("#/definitions/nothing")
    expect(page.get_by_role("alert")).to_contain_text("there is no definition nothing")
