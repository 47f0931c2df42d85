"""Definitions written in a browser: drawn as they are typed, with all that is wrong; kept, published, and not lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from perdure.flows import reading
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

LAMP = "machine: {}\ninitial: dark\nstates:\n  dark: {{on: {{press: bright}}}}\n  bright: {{final: true}}\n"
Open = Callable[..., None]


@pytest.fixture
def go(page: Page, context: BrowserContext, module_served: Served, watch: Watch) -> Open:
    """Show a view to an administrator. What cannot be drawn is refused, and a browser notes that on its console."""
    watch.allow(r"console: .*422 .*definitions/(diagram|drafts)")
    context.add_init_script(f"sessionStorage.setItem('perdure-credential', {module_served.key!r})")

    def show(hash: str) -> None:
        page.goto(f"{module_served.address}/dashboard/{hash}")

    return show


@pytest.fixture
def area(page: Page) -> Locator:
    return page.get_by_label("Definition, in YAML or JSON")


def definitions(served: Served) -> dict[str, Any]:
    return {one["name"]: one for one in served.ask("/v1/definitions")["definitions"]}


@pytest.mark.parametrize(
    ("kind", "name"), [("machine", "approval"), ("graph", "greeting"), ("document", "shop.reminder")]
)
def test_every_template_can_be_published_as_it_is(
    kind: str, name: str, page: Page, go: Open, area: Locator, module_served: Served
) -> None:
    go("#/definitions")
    page.get_by_role("link", name="New definition").click()
    page.get_by_role("button", name=kind).click()
    expect(page.get_by_role("button", name=kind)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_text("It can be published.")).to_be_visible()
    expect(page.get_by_role("list", name="Problems")).to_have_count(0)
    expect(page.get_by_role("img")).not_to_have_js_property("naturalWidth", 0)
    text = area.input_value()
    page.get_by_role("button", name="Publish").click()
    page.get_by_label("Note").fill("from a template")
    page.get_by_role("dialog").get_by_role("button", name="Publish").click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
    made = module_served.ask(f"/v1/definitions/{name}?version=1")
    assert (made["kind"], made["body"]) == (kind, reading.read(text))
    assert module_served.ask(f"/v1/definitions/{name}/history")["changes"][0]["note"] == "from a template"


def test_the_picture_follows_what_is_typed(page: Page, go: Open, area: Locator) -> None:
    go("#/definitions/:new")
    expect(page.get_by_text("It can be published.")).to_be_visible()
    before = page.get_by_role("img").get_attribute("src")
    area.fill(LAMP.format("typed").replace("bright", "shining"))
    expect(page.get_by_text("not saved")).to_be_visible()
    expect(page.get_by_role("img")).not_to_have_attribute("src", before or "")
    expect(page.get_by_text("It can be published.")).to_be_visible()


def test_all_that_is_wrong_is_listed_and_the_last_picture_stays(page: Page, go: Open, area: Locator) -> None:
    go("#/definitions/:new")
    expect(page.get_by_text("It can be published.")).to_be_visible()
    area.fill(LAMP.format("wrong").replace("initial: dark", "initial: night").replace("press: bright", "press: away"))
    problems = page.get_by_role("list", name="Problems")
    expect(problems).to_contain_text("machine.initial: ")
    expect(problems).to_contain_text("away")
    expect(page.get_by_role("img", name="what is written, drawn")).to_have_class("diagram stale")
    area.fill(LAMP.format("wrong"))
    expect(problems).to_have_count(0)
    expect(page.get_by_role("img", name="what is written, drawn")).to_have_class("diagram")


def test_an_action_that_is_not_written_yet_is_drawn_and_named(page: Page, go: Open, area: Locator) -> None:
    go("#/definitions/:new")
    area.fill(
        "graph: early\nnodes:\n- {id: a, type: trigger}\n- {id: b, type: action, data: {action: unwritten}}\n"
        "edges: [{source: a, target: b}]\n"
    )
    expect(page.get_by_role("list", name="Problems")).to_contain_text("no action unwritten")
    expect(page.get_by_role("img", name="what is written, drawn")).to_have_class("diagram")


def test_a_mistake_in_the_text_leads_to_its_line(page: Page, go: Open, area: Locator) -> None:
    go("#/definitions/:new")
    area.fill("machine: torn\ninitial: [a\nstates: {}\n")
    page.get_by_role("button", name="line 3").click()
    expect(area).to_be_focused()
    assert area.evaluate("one => one.value.slice(0, one.selectionStart).split('\\n').length") == 3


def test_tab_indents_and_enter_keeps_the_indentation(page: Page, go: Open, area: Locator) -> None:
    go("#/definitions/:new")
    area.fill("states:")
    area.press("End")
    area.press("Enter")
    area.press("Tab")
    area.press_sequentially("dark:")
    area.press("Enter")
    area.press_sequentially("lit:")
    expect(area).to_have_value("states:\n  dark:\n  lit:")
    area.press("Shift+Tab")
    expect(area).to_have_value("states:\n  dark:\nlit:")
    area.press("ControlOrMeta+a")
    area.press("Tab")
    expect(area).to_have_value("  states:\n    dark:\n  lit:")
    area.press("ControlOrMeta+z")
    expect(area).to_have_value("states:\n  dark:\nlit:")
    area.press("Escape")
    area.press("Tab")
    expect(area).not_to_be_focused()


def test_a_draft_is_saved_survives_a_reload_and_is_published(
    page: Page, go: Open, area: Locator, module_served: Served
) -> None:
    go("#/definitions/:new")
    area.fill("machine: kept\ninitial: nowhere\nstates: {dark: {}}\n")
    page.get_by_role("button", name="Save draft").click()
    expect(page.get_by_role("heading", level=1, name="kept")).to_be_visible()
    page.reload()
    expect(area).to_have_value("machine: kept\ninitial: nowhere\nstates: {dark: {}}\n")
    expect(page.get_by_role("list", name="Problems")).to_contain_text("nowhere")
    area.fill(LAMP.format("kept"))
    page.get_by_role("button", name="Save draft").click()
    expect(page.get_by_text("not saved")).to_have_count(0)
    assert module_served.ask("/v1/definitions/kept?draft=true")["body"] == reading.read(LAMP.format("kept"))
    page.get_by_role("button", name="Publish").click()
    page.get_by_role("dialog").get_by_role("button", name="Publish").click()
    expect(page.get_by_text("version 1", exact=True).first).to_be_visible()
    assert (definitions(module_served)["kept"]["newest"], definitions(module_served)["kept"]["draft"]) == (1, False)


def test_a_draft_is_given_up(page: Page, go: Open, module_served: Served) -> None:
    module_served.ask("/v1/definitions/drafts", {"definition": LAMP.format("given-up")})
    go("#/definitions/given-up/edit")
    page.get_by_role("button", name="Discard draft").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    expect(page.get_by_role("heading", level=1, name="Definitions")).to_be_visible()
    assert "given-up" not in definitions(module_served)


def test_what_cannot_be_published_says_why_and_nothing_typed_is_lost(
    page: Page, go: Open, area: Locator, watch: Watch
) -> None:
    watch.allow(r"console: .*422 .*v1/definitions\b")
    go("#/definitions/:new")
    text = LAMP.format("refused").replace("initial: dark", "initial: night")
    area.fill(text)
    page.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note").fill("try")
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog.get_by_role("alert")).to_contain_text("machine refused has")
    expect(dialog.get_by_role("alert").get_by_role("listitem").first).to_contain_text("machine.initial")
    expect(dialog.get_by_label("Note")).to_have_value("try")
    dialog.get_by_role("button", name="Close").click()
    expect(area).to_have_value(text)


def test_a_text_without_a_name_is_no_draft_and_stays(page: Page, go: Open, area: Locator) -> None:
    go("#/definitions/:new")
    area.fill("nothing: here\n")
    page.get_by_role("button", name="Save draft").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("it does not say what it is")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(area).to_have_value("nothing: here\n")


def test_who_leaves_without_saving_is_asked(page: Page, go: Open, area: Locator) -> None:
    go("#/definitions/:new")
    area.fill(LAMP.format("leaving"))
    page.get_by_role("link", name="Executions").click()
    dialog = page.get_by_role("dialog", name="Leave without saving?")
    dialog.get_by_role("button", name="Close").click()
    expect(area).to_have_value(LAMP.format("leaving"))
    assert page.url.endswith("#/definitions/:new")
    page.get_by_role("link", name="Executions").click()
    dialog.get_by_role("button", name="Leave").click()
    expect(page.get_by_role("heading", level=1, name="Executions")).to_be_visible()


def test_what_is_typed_while_a_draft_is_saved_is_not_saved_with_it(page: Page, go: Open, area: Locator) -> None:
    go("#/definitions/:new")
    area.fill(LAMP.format("hasty"))
    page.get_by_role("button", name="Save draft").click()
    expect(page.get_by_role("heading", name="hasty")).to_be_visible()
    held: list[Route] = []
    page.route("**/drafts", lambda route: held.append(route))
    with page.expect_request("**/drafts"):
        page.get_by_role("button", name="Save draft").click()
    area.press("End")
    area.press_sequentially(" ")
    with page.expect_response("**/drafts"):
        held[0].continue_()
    expect(page.get_by_role("status")).to_have_text("the draft of hasty is saved")
    expect(page.get_by_text("not saved")).to_be_visible()
    page.get_by_role("link", name="Executions").click()
    expect(page.get_by_role("dialog", name="Leave without saving?")).to_be_visible()


def test_who_closes_the_page_without_saving_is_asked(page: Page, go: Open, area: Locator, watch: Watch) -> None:
    go("#/definitions/:new")
    area.press_sequentially("# mine")
    watch.allow("dialog: beforeunload")
    with page.expect_event("dialog") as asked:
        page.reload()
    assert asked.value.type == "beforeunload"
    expect(page.get_by_text("It can be published.")).to_be_visible()


def test_who_has_changed_nothing_is_not_asked(page: Page, go: Open, module_served: Served) -> None:
    module_served.ask("/v1/definitions", {"definition": LAMP.format("calm")})
    go("#/definitions/calm/edit")
    expect(page.get_by_text("It can be published.")).to_be_visible()
    page.get_by_role("link", name="Executions").click()
    expect(page.get_by_role("heading", level=1, name="Executions")).to_be_visible()


def test_text_and_picture_stand_beside_each_other_or_below(page: Page, go: Open, area: Locator) -> None:
    go("#/definitions/:new")
    picture = page.get_by_role("img", name="what is written, drawn")
    expect(page.get_by_text("It can be published.")).to_be_visible()
    for width, beside in ((1280, True), (700, False)):
        page.set_viewport_size({"width": width, "height": 800})
        left, right = area.bounding_box(), picture.bounding_box()
        assert left is not None and right is not None
        assert (right["x"] > left["x"] + left["width"]) is beside
        assert (right["y"] > left["y"] + left["height"]) is not beside
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


STRANGE = [
    "",
    "on",
    "no",
    "null",
    "~",
    "True",
    "1",
    "0x1",
    "- a",
    "a: b",
    "a #b",
    "{a}",
    "[a",
    "'a'",
    "a\nb",
    " a",
    "\t",
]
STRANGE += [
    "a\u0085b",
    "\u2028",
    "\ufeff",
    "é",
    "😀",
    "${ .a }",
    "? a",
    "|",
    "---",
    "<<",
    ".inf",
    "2020-01-01",
    "\\",
    "x" * 99,
]


def test_what_is_shown_as_text_is_what_was_published(
    page: Page, go: Open, area: Locator, module_served: Served
) -> None:
    deep = [[], {}, [{"a": [1, -1.5, None, True], "b": {}}], [["x", []]], *STRANGE]
    about = {
        "dsl": "1.0.3",
        "namespace": "shop",
        "name": "strange",
        "version": "1.0.0",
        "metadata": {one: one for one in STRANGE},
    }
    body = {"document": about, "do": [{"keep": {"set": {"deep": [one for one in deep if "${" not in str(one)]}}}]}
    made = module_served.ask("/v1/definitions", {"definition": body})
    go("#/definitions/shop.strange/edit")
    expect(page.get_by_text("It can be published.")).to_be_visible()
    assert reading.read(area.input_value()) == body
    again = module_served.ask("/v1/definitions", {"definition": area.input_value()})
    assert (again["version"], again["hash"]) == (1, made["hash"])


def test_who_may_not_define_is_told(page: Page, context: BrowserContext, module_served: Served) -> None:
    made = module_served.ask("/v1/keys", {"name": "looks", "roles": ["viewer"]})
    context.add_init_script(f"sessionStorage.setItem('perdure-credential', {made['secret']!r})")
    page.goto(f"{module_served.address}/dashboard/#/definitions/:new")
    expect(page.get_by_role("alert")).to_contain_text("takes the scope define")
