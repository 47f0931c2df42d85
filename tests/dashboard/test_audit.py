"""The audit in a browser: found, page by page, and taken along as a file that harms no spreadsheet."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.opening import menu, open_view
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch


@pytest.fixture(scope="module")
def filled(module_served: Served) -> Served:
    """Two orders, one of which was paused, the other cancelled."""
    begin(module_served, "order-1")
    begin(module_served, "order-2")
    module_served.ask("/v1/executions/order-1/pause", {"reason": "a short rest"})
    module_served.ask("/v1/executions/order-2/cancel", {})
    return module_served


def begin(served: Served, id: str) -> None:
    served.ask("/v1/executions?wait=30s", {"workflow": "fulfil", "id": id, "args": [{"item": "teapot"}]})


def test_acts_are_shown_the_newest_first(page: Page, filled: Served) -> None:
    open_view(page, filled, "#/audit")
    rows = page.locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("executions.cancel")
    expect(rows.nth(1)).to_contain_text("a short rest")
    expect(rows.nth(1)).to_contain_text("key:")
    page.get_by_role("link", name="order-1").click()
    expect(page.get_by_role("heading", name="order-1")).to_be_visible()


def test_they_are_found_by_what_the_address_asks_for(page: Page, filled: Served) -> None:
    open_view(page, filled, "#/audit")
    page.get_by_label("Target").fill("order-1")
    page.get_by_role("button", name="Find").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("executions.pause")
    assert "target=order-1" in page.url
    page.goto(f"{filled.address}/dashboard/#/audit")
    page.get_by_role("link", name="executions.cancel").click()
    expect(rows).to_have_count(1)
    expect(page.get_by_label("Act", exact=True)).to_have_value("executions.cancel")


def test_times_limit_what_is_found_and_stay_in_their_fields(page: Page, filled: Served) -> None:
    open_view(page, filled, "#/audit")
    page.get_by_label("Before").fill("2020-01-01T10:30:15")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("no act fits")).to_be_visible()
    expect(page.get_by_role("button", name="Export as CSV")).to_be_disabled()
    expect(page.get_by_label("Before")).to_have_value("2020-01-01T10:30:15")
    page.get_by_label("Before").fill("")
    page.get_by_label("After").fill("2020-01-01T10:30:15")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("link", name="executions.cancel")).to_be_visible()


def test_who_asks_for_the_same_again_sees_what_is_new(page: Page, filled: Served) -> None:
    begin(filled, "order-4")
    filled.ask("/v1/executions/order-4/pause", {})
    open_view(page, filled, "#/audit?target=order-4")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(1)
    filled.ask("/v1/executions/order-4/cancel", {})
    page.get_by_role("button", name="Find").click()
    expect(rows).to_have_count(2)
    expect(page.get_by_label("Target")).to_have_value("order-4")


def test_further_pages_are_added(page: Page, filled: Served) -> None:
    for n in range(52):
        filled.ask("/v1/executions/order-1/resume", {"reason": f"turn {n}"})
    open_view(page, filled, "#/audit?act=executions.resume")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="More").click()
    expect(rows).to_have_count(52)
    expect(rows.last).to_contain_text("turn 0")


def test_what_is_shown_is_exported_and_no_cell_is_a_formula(page: Page, filled: Served, tmp_path: Path) -> None:
    begin(filled, "order-3")
    filled.ask("/v1/executions/order-3/pause", {"reason": 'a "short" rest, really'})
    filled.ask("/v1/executions/order-3/cancel", {"reason": '=HYPERLINK("http://evil", "x")'})
    filled.run("keys", "create", "+1", "--role", "viewer", "--reason", "-2+3")
    open_view(page, filled, "#/audit")
    expect(page.get_by_text("-2+3")).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export as CSV").click()
    assert saved.value.suggested_filename == "audit.csv"
    saved.value.save_as(tmp_path / "audit.csv")
    with (tmp_path / "audit.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == page.locator("tbody tr").count()
    by_act = {row["act"]: row for row in reversed(rows)}  # the newest of each
    assert by_act["executions.pause"]["reason"] == 'a "short" rest, really'
    assert by_act["executions.cancel"]["reason"] == """'=HYPERLINK("http://evil", "x")"""
    assert by_act["keys.create"]["reason"] == "'-2+3"
    told = filled.ask("/v1/audit?act=executions.cancel")["acts"][0]
    for name in ("id", "at", "actor", "target", "credential", "request", "node"):
        assert by_act["executions.cancel"][name] == told[name]


def test_the_audit_is_for_admins(page: Page, filled: Served, watch: Watch) -> None:
    watch.allow("status of 403")
    open_view(page, filled, "#/audit", "operator")
    expect(page.get_by_role("alert")).to_contain_text("may not admin")
    assert "Audit" not in menu(page)
