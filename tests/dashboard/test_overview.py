"""The overview in a browser: counts that lead on, what needs a person, durations, workers, health."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.dashboard.opening import menu, open_view
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

FLOWS = """
import asyncio

from perdure import Retry, action, person, workflow


@action(retries=Retry(attempts=1, spent="stuck"))
async def never() -> None:
    raise RuntimeError("the bank is closed")


@action
async def long() -> None:
    await asyncio.sleep(600)


@workflow
async def echo(text: str) -> str:
    return text


@workflow
async def fails(text: str) -> None:
    raise ValueError(text)


@workflow
async def sticks() -> None:
    await never()


@workflow
async def works() -> None:
    await long()


@workflow
async def asks() -> bool:
    return await person("approve", form=bool, title="May Ada spend it?")
"""


@pytest.fixture(scope="module")
def flows() -> str:
    return FLOWS


@pytest.fixture(scope="module")
def filled(module_served: Served) -> Served:
    """Three that completed, and one each that failed, is stuck, waits for a person, and is at work."""
    for n in range(3):
        begin(module_served, "echo", f"echo-{n}", "hi")
    begin(module_served, "fails", "failed-1", "no such item")
    begin(module_served, "sticks", "stuck-1")
    begin(module_served, "asks", "asked-1")
    module_served.ask("/v1/executions", {"workflow": "works", "id": "works-1", "args": []})
    return module_served


def begin(served: Served, workflow: str, id: str, *args: object) -> None:
    served.ask("/v1/executions?wait=30s", {"workflow": workflow, "id": id, "args": list(args)})


def test_it_is_what_opens_first(page: Page, filled: Served) -> None:
    open_view(page, filled, "")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    shown = menu(page)
    assert shown[0] == "Overview"
    assert shown[-2:] == ["Audit", "Keys"]


def test_a_count_leads_to_what_it_counts(page: Page, filled: Served) -> None:
    open_view(page, filled, "#/overview")
    expect(page.locator(".tile.total strong")).to_have_text("7")
    page.get_by_role("link", name="3 completed").click()
    expect(page.locator("tbody .id")).to_have_text(["echo-2", "echo-1", "echo-0"])
    assert "status=completed" in page.url
    page.go_back()
    page.locator(".flows").get_by_role("link", name="fails").click()
    expect(page.locator("tbody .id")).to_have_text(["failed-1"])


def test_what_needs_a_person_is_named(page: Page, filled: Served) -> None:
    open_view(page, filled, "#/overview")
    needs = page.locator(".card", has=page.get_by_role("heading", name="Needs a person"))
    expect(needs.locator("tr", has_text="stuck-1")).to_contain_text("the bank is closed")
    expect(needs.locator("tr", has_text="failed-1")).to_contain_text("ValueError: no such item")
    task = needs.get_by_role("link", name="May Ada spend it?")
    expect(task).to_have_attribute("href", re.compile(r"^#/inbox/asked-1\.\d+$"))
    needs.get_by_role("link", name="stuck-1").click()
    expect(page.get_by_role("heading", name="stuck-1")).to_be_visible()


def test_each_workflow_has_its_statuses_and_durations(page: Page, filled: Served) -> None:
    open_view(page, filled, "#/overview")
    row = page.locator(".flows tr", has=page.get_by_role("link", name="echo"))
    expect(row.get_by_role("img")).to_have_attribute("aria-label", "3 completed")
    expect(row.locator("td").nth(1)).to_have_text("3")
    expect(row.locator("td").nth(5)).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    expect(page.locator(".flows tr", has_text="sticks").locator("td").nth(5)).to_have_text("")


def test_the_range_is_in_the_address_and_limits_the_counts(page: Page, filled: Served) -> None:
    open_view(page, filled, "#/overview")
    expect(page.get_by_role("button", name="Last day")).to_have_attribute("aria-pressed", "true")
    with page.expect_request(lambda sent: "/v1/stats" in sent.url) as sent:
        page.get_by_role("button", name="Last hour").click()
    assert "after=" in sent.value.url
    assert page.url.endswith("#/overview?range=hour")
    with page.expect_request(lambda sent: "/v1/stats" in sent.url) as sent:
        page.get_by_role("button", name="All").click()
    assert "after=" not in sent.value.url
    page.reload()
    expect(page.get_by_role("button", name="All")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("link", name="3 completed")).to_have_attribute("href", "#/executions?status=completed")


def test_workers_health_and_quota_are_shown(page: Page, filled: Served) -> None:
    open_view(page, filled, "#/overview")
    expect(page.locator("aside")).to_contain_text("ready")
    expect(page.locator("aside")).to_contain_text("of any number")
    row = page.locator("aside tr", has_text="works")
    expect(row.locator("td").last).to_have_text("1")
    [worker] = filled.ask("/v1/workers")["workers"]
    expect(row).to_contain_text(worker["name"])


def test_counts_that_are_not_complete_say_so(page: Page, filled: Served) -> None:
    def partly(route: Route) -> None:
        told = route.fetch()
        route.fulfill(response=told, body=json.dumps({**told.json(), "complete": False}))

    open_view(page, filled, "#/overview")
    expect(page.get_by_text("older ones are not counted")).to_have_count(0)
    page.route("**/v1/stats*", partly)
    page.reload()
    expect(page.get_by_text("These are the newest 7; older ones are not counted.")).to_be_visible()


def test_it_is_counted_again_every_ten_seconds_and_not_more_often(page: Page, filled: Served) -> None:
    page.clock.install(time="2030-01-01T00:00:00Z")
    page.clock.pause_at("2030-01-01T00:00:01Z")  # from here on it goes as this test says
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url) if "/health/ready" in sent.url else None)  # comes first
    open_view(page, filled, "#/overview")
    page.clock.run_for(9_000)
    page.evaluate("0")  # what the page has asked for before its answer is known with it
    assert len(asked) == 1
    with page.expect_response("**/v1/stats*"):
        page.clock.run_for(2_000)
    assert len(asked) == 2


def test_an_observer_sees_counts_and_neither_tasks_nor_quota(page: Page, filled: Served) -> None:
    open_view(page, filled, "#/overview", "observer")
    expect(page.get_by_role("link", name="3 completed")).to_be_visible()
    expect(page.get_by_text("Tasks for me")).to_have_count(0)
    expect(page.get_by_text("of any number")).to_have_count(0)
    expect(page.locator("main")).not_to_contain_text("no such item")
    assert not {"Bulk", "Audit", "Keys"} & set(menu(page))


def test_a_store_that_does_not_answer_is_told(page: Page, filled: Served, watch: Watch) -> None:
    watch.allow("status of 503")
    away = {"status": "the store does not answer"}
    page.route("**/health/ready", lambda route: route.fulfill(status=503, json=away))
    page.route("**/v1/stats*", lambda route: route.fulfill(status=503, json={"detail": "no store", "status": 503}))
    open_view(page, filled, "#/overview")
    expect(page.get_by_role("alert")).to_have_text("no store")
    expect(page.get_by_text("the store does not answer")).to_be_visible()
