"""Bulk operations in a browser: first counted, then done, and what became of each."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.losing import lost
from tests.dashboard.opening import menu, open_view
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch


def begin(served: Served, tag: str, count: int, workflow: str = "fulfil") -> list[str]:
    """So many of a tag, each of which waits for a parcel."""
    ids = [f"{tag}-{n}" for n in range(count)]
    for id in ids:
        args = [{"item": "teapot"}] if workflow == "fulfil" else ["no"]
        body = {"workflow": workflow, "id": id, "args": args, "tags": [tag]}
        served.ask("/v1/executions?wait=30s", body)
    return ids


def statuses(served: Served, ids: list[str]) -> set[str]:
    return {served.ask(f"/v1/executions/{id}")["status"] for id in ids}


def count(page: Page, act: str) -> Locator:
    """Choose what to do and count what fits; gives the dialog."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("What to do").select_option(act)
    dialog.get_by_role("button", name="Count them").click()
    return dialog


@pytest.mark.parametrize("act", ["pause", "cancel"])
def test_all_that_fit_are_counted_before_anything_is_done(page: Page, module_served: Served, act: str) -> None:
    ids = begin(module_served, act, 3)
    begin(module_served, f"{act}-other", 1)
    open_view(page, module_served, f"#/executions?tag={act}")
    page.get_by_role("button", name="Change all that fit").click()
    dialog = count(page, act)
    expect(dialog.get_by_text("3 executions found", exact=True)).to_be_visible()
    expect(dialog.get_by_role("link", name=f"{act}-0")).to_be_visible()
    assert statuses(module_served, ids) == {"waiting"}
    dialog.get_by_role("button", name=f"{act.capitalize()} 3 executions").click()
    expect(dialog.get_by_text("3 done of 3 executions found")).to_be_visible()
    expect(page.locator("main tbody .badge")).to_have_text(["paused" if act == "pause" else "cancelled"] * 3)
    assert statuses(module_served, [f"{act}-other-0"]) == {"waiting"}
    newest, dry = module_served.ask("/v1/bulk")["operations"][:2]
    assert (newest["act"], newest["done"], newest["dry_run"], dry["dry_run"]) == (act, 3, False, True)


def test_nothing_that_fits_leaves_nothing_to_do(page: Page, module_served: Served) -> None:
    open_view(page, module_served, "#/executions?tag=nobody-has-it")
    page.get_by_role("button", name="Change all that fit").click()
    dialog = count(page, "cancel")
    expect(dialog.get_by_text("there is nothing to do")).to_be_visible()
    expect(dialog.get_by_role("button")).to_have_text(["Back", "Close"])


def test_an_event_is_sent_to_all_and_asked_for_only_then(page: Page, module_served: Served) -> None:
    ids = begin(module_served, "sent", 2)
    open_view(page, module_served, "#/bulk")
    page.get_by_role("button", name="Change many").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("[name=event]")).to_be_hidden()
    dialog.get_by_label("What to do").select_option("send")
    dialog.locator("[name=event]").fill("packed")
    dialog.locator("[name=payload]").fill('{"tracking": "p-1"}')
    dialog.locator("[name=tag]").fill("sent")
    dialog.get_by_role("button", name="Count them").click()
    dialog.get_by_role("button", name="Send packed to 2 executions").click()
    expect(dialog.get_by_text("2 done of 2 executions found")).to_be_visible()
    for id in ids:
        assert module_served.ask(f"/v1/executions/{id}/result?wait=30s")["result"] == "shipped p-1"


def test_an_operation_whose_answer_is_lost_is_not_done_twice(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("ERR_FAILED")
    begin(module_served, "lost", 1)
    open_view(page, module_served, "#/executions?tag=lost")
    page.get_by_role("button", name="Change all that fit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("lost once")
    go = count(page, "pause").get_by_role("button", name="Pause 1 execution")
    expect(go).to_be_visible()
    with lost(page, "**/v1/bulk"):
        go.click()
    dialog.get_by_role("button", name="Back").click()
    dialog.get_by_role("button", name="Count them").click()  # it is the same wish also after another look
    go.click()
    expect(dialog.get_by_text("1 done of 1 execution found")).to_be_visible()
    assert operations(module_served, "lost once") == 1
    dialog.get_by_role("button", name="Back").click()
    count(page, "pause")
    go.click()
    expect(dialog.get_by_text("1 execution found")).to_be_visible()
    expect(dialog.get_by_role("link", name="bulk operations")).to_be_visible()
    assert operations(module_served, "lost once") == 2, "what is wished again after it was done is done again"


def operations(served: Served, reason: str) -> int:
    found = served.ask("/v1/bulk?limit=100")["operations"]
    return len([one for one in found if one["reason"] == reason and not one["dry_run"]])


def test_what_failed_is_told_and_the_list_has_it_too(page: Page, module_served: Served) -> None:
    begin(module_served, "odd", 2)
    open_view(page, module_served, "#/executions?tag=odd")
    page.get_by_role("button", name="Change all that fit").click()
    page.get_by_role("dialog").get_by_label("What to do").select_option("send")
    page.get_by_role("dialog").locator("[name=event]").fill("unheard")
    dialog = count(page, "send")
    dialog.get_by_role("button", name="Send unheard to").click()
    expect(dialog.get_by_text("0 done of 2 executions found, 2 failed")).to_be_visible()
    dialog.get_by_text("What failed").click()
    expect(dialog.locator("li").first).to_contain_text("takes no event 'unheard'")
    dialog.get_by_role("link", name="bulk operations").click()
    row = page.locator("tbody tr").first
    expect(row).to_contain_text("0 done of 2 executions found, 2 failed")
    row.get_by_text("What failed").click()
    with page.expect_response("**/v1/bulk?*"):
        pass  # the list comes anew
    expect(row.get_by_text("takes no event 'unheard'").first).to_be_visible()


def test_one_goes_back_and_nothing_typed_is_lost(page: Page, module_served: Served) -> None:
    begin(module_served, "again", 1, "fails")
    open_view(page, module_served, "#/executions?tag=again")
    page.get_by_role("button", name="Change all that fit").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("mended")
    dialog = count(page, "cancel")
    expect(dialog.get_by_role("button", name="Cancel 1 execution")).to_be_visible()
    dialog.get_by_role("button", name="Back").click()
    expect(dialog.get_by_label("Reason")).to_have_value("mended")
    count(page, "retry")
    dialog.get_by_role("button", name="Retry 1 execution").click()
    expect(dialog.get_by_text("1 done of 1 execution found")).to_be_visible()
    assert module_served.ask("/v1/bulk")["operations"][0]["reason"] == "mended"


def test_nothing_chosen_does_not_mean_everything(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 4")
    open_view(page, module_served, "#/bulk")
    page.get_by_role("button", name="Change many").click()
    dialog = count(page, "cancel")
    expect(dialog.get_by_role("alert")).to_contain_text("nothing is chosen")
    dialog.get_by_label("All executions that there are").check()
    dialog.get_by_role("button", name="Count them").click()
    expect(dialog.get_by_role("button", name="Cancel")).to_be_visible()


def test_a_viewer_sees_operations_and_is_offered_none(page: Page, module_served: Served) -> None:
    module_served.ask(
        "/v1/bulk", {"act": "pause", "filter": {"tag": ["nobody"]}, "id": "bulk-seen", "reason": "a look"}
    )
    open_view(page, module_served, "#/bulk", "viewer")
    row = page.locator("tr", has_text="bulk-seen")
    expect(row).to_contain_text("a look")
    expect(page.get_by_role("button", name="Change many")).to_have_count(0)
    assert "Bulk" in menu(page)
    row.get_by_role("link", name="bulk-seen").click()
    expect(page.get_by_role("heading", name="bulk-seen")).to_be_visible()
