"""Dead letters in a browser: found, tried again, given up, by whoever may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from perdure.runtime.managing.dead import CAUSES
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

FLOWS = """
import asyncio
from pathlib import Path

from perdure import Retry, action, workflow


@action(retries=Retry(attempts=1, spent="stuck"))
async def pay(bank: str) -> str:
    if not Path(bank).exists():
        raise RuntimeError("the bank is closed")
    return "paid"


@workflow
async def buy(bank: str) -> str:
    return await pay(bank)


@workflow
async def hangs() -> None:
    await asyncio.Event().wait()
"""


@pytest.fixture(scope="module")
def flows() -> str:
    return FLOWS


@pytest.fixture
def stick(module_served: Served) -> Callable[..., None]:
    """Start executions that get stuck."""

    def stick(workflow: str, *ids: str) -> None:
        for id in ids:
            args = ["bank-" + id] if workflow == "buy" else []
            module_served.ask("/v1/executions?wait=30s", {"workflow": workflow, "id": id, "args": args})
            assert status(module_served, id) == "stuck"

    return stick


@pytest.fixture
def dead(page: Page, module_served: Served) -> Callable[..., Page]:
    """The list, as somebody sees it; an administrator if nobody is named."""

    def dead(query: str = "", key: str = "") -> Page:
        page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{key or module_served.key}')")
        page.goto(f"{module_served.address}/dashboard/#/dead{query}")
        expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
        return page

    return dead


def status(served: Served, id: str) -> str:
    found: str = served.ask(f"/v1/executions/{id}")["status"]
    return found


def test_they_are_found_by_cause_and_workflow(dead: Callable[..., Page], stick: Callable[..., None]) -> None:
    stick("buy", "find-1")
    stick("hangs", "find-2")
    page = dead()
    row = page.get_by_role("row", name="find-1")
    for text in ("attempts", "the bank is closed", "once", "ago"):
        expect(row).to_contain_text(text)
    page.get_by_label("Cause").select_option("never-wakes")
    expect(page.get_by_role("row", name="find-2")).to_be_visible()
    expect(row).to_have_count(0)
    assert "cause=never-wakes" in page.url
    page.get_by_label("Workflow").fill("buy")
    page.get_by_role("button", name="Find", exact=True).click()
    expect(page.get_by_text("nothing is stuck")).to_be_visible()
    expect(page.get_by_role("button", name="Redrive all that fit")).to_have_count(0)
    page.get_by_label("Cause").select_option("")
    row.get_by_role("link", name="find-1").click()
    expect(page.get_by_role("heading", name="find-1")).to_be_visible()


def test_all_causes_can_be_chosen(dead: Callable[..., Page]) -> None:
    page = dead()
    expect(page.get_by_label("Cause").locator("option")).to_have_text(["any cause", *CAUSES])


def test_one_that_is_mended_and_redriven_goes_on(
    dead: Callable[..., Page], stick: Callable[..., None], module_served: Served
) -> None:
    stick("buy", "mend-1", "mend-2")
    page = dead()
    Path(module_served.folder / "bank-mend-1").touch()
    page.get_by_role("button", name="Redrive mend-1").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("it has opened")
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.get_by_text("mend-1: to be tried again")).to_be_visible()
    expect(page.get_by_role("row", name="mend-1")).to_have_count(0)
    expect(page.get_by_role("row", name="mend-2")).to_be_visible()
    assert module_served.ask("/v1/executions/mend-1/result?wait=30s")["result"] == "paid"
    assert "it has opened" in str(module_served.ask("/v1/executions/mend-1/log"))


def test_one_that_gets_stuck_again_says_so(dead: Callable[..., Page], stick: Callable[..., None]) -> None:
    stick("buy", "again-1")
    page = dead()
    page.get_by_role("button", name="Redrive again-1").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    row = page.get_by_role("row", name="again-1")
    expect(row).to_contain_text("It was redriven, and got stuck again.")
    expect(row).to_contain_text("2 times")


def test_what_was_redriven_is_redriven_also_if_nobody_answers_after_it(
    dead: Callable[..., Page], stick: Callable[..., None], watch: Watch
) -> None:
    watch.allow("status of 503")
    stick("buy", "unseen-1")
    page = dead()
    expect(page.get_by_role("row", name="unseen-1")).to_be_visible()
    page.route("**/v1/dead?*", lambda route: route.fulfill(status=503, body="{}"))
    page.get_by_role("button", name="Redrive unseen-1").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("alert")).to_contain_text("503")
    page.unroute("**/v1/dead?*")
    expect(page.get_by_role("row", name="unseen-1")).to_contain_text("2 times")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_all_that_fit_are_named_before_they_are_redriven(
    dead: Callable[..., Page], stick: Callable[..., None], module_served: Served
) -> None:
    stick("hangs", "all-1", "all-2")
    page = dead("?workflow=hangs")
    page.get_by_role("button", name="Redrive all that fit").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("all-1")
    expect(dialog).to_contain_text("all-2")
    assert module_served.ask("/v1/executions/all-1")["status"] == "stuck"  # nothing was done by asking
    stick("hangs", "all-3")  # after it was shown what would be done
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("row", name="all-1")).to_contain_text("2 times")
    expect(page.get_by_role("row", name="all-2")).to_contain_text("2 times")
    expect(page.get_by_role("row", name="all-3")).to_contain_text("once")


def test_a_button_for_all_stays_there_while_the_list_changes(
    dead: Callable[..., Page], stick: Callable[..., None]
) -> None:
    stick("buy", "stays-1")
    page = dead("?workflow=buy")
    redrive = page.get_by_role("button", name="Redrive all that fit")
    redrive.focus()
    pressed = redrive.element_handle()
    stick("buy", "stays-2")
    expect(page.get_by_role("row", name="stays-2")).to_be_visible()
    assert pressed.evaluate("one => one.isConnected")
    expect(redrive).to_be_focused()


def test_a_purge_says_what_it_does_and_ends_those_that_fit(
    dead: Callable[..., Page], stick: Callable[..., None], module_served: Served
) -> None:
    stick("hangs", "gone-1")
    stick("buy", "gone-2")
    page = dead("?workflow=hangs")
    page.get_by_role("button", name="Purge gone-1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("No clean-up and no undos run")
    dialog.get_by_role("button", name="Close").click()
    assert status(module_served, "gone-1") == "stuck"
    page.get_by_role("button", name="Purge all that fit").click()
    expect(dialog).to_contain_text("ends as cancelled")
    dialog.get_by_role("button", name="Purge").click()
    expect(page.get_by_text("nothing is stuck")).to_be_visible()
    assert module_served.ask("/v1/executions/gone-1/result?wait=30s")["status"] == "cancelled"
    assert status(module_served, "gone-2") == "stuck"


def test_each_is_offered_what_they_may_do(
    dead: Callable[..., Page], stick: Callable[..., None], module_served: Served
) -> None:
    stick("buy", "offer-1")
    page = dead(key=module_served.made_key("op", "operator"))
    expect(page.get_by_role("button", name="Redrive offer-1")).to_be_visible()
    expect(page.get_by_role("button", name="Purge")).to_have_count(0)


def test_an_observer_sees_causes_and_no_reasons(
    dead: Callable[..., Page], stick: Callable[..., None], module_served: Served
) -> None:
    stick("buy", "glance-1")
    page = dead(key=module_served.made_key("wall", "observer"))
    row = page.get_by_role("row", name="glance-1")
    expect(row).to_contain_text("attempts")
    expect(row).to_contain_text("redacted")
    expect(row.get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("navigation").get_by_role("link", name="Dead letters")).to_be_visible()


def test_what_is_refused_is_said_in_the_dialog(
    dead: Callable[..., Page], stick: Callable[..., None], module_served: Served, watch: Watch
) -> None:
    watch.allow("403")
    stick("buy", "refuse-1")
    page = dead()
    page.get_by_role("button", name="Redrive refuse-1").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("kept")
    viewer = module_served.made_key("vic", "viewer")
    page.evaluate("key => sessionStorage.setItem('perdure-credential', key)", viewer)
    dialog.get_by_role("button", name="Redrive").click()
    expect(dialog.get_by_role("alert")).to_contain_text("vic may not control")
    expect(dialog.get_by_label("Reason")).to_have_value("kept")
