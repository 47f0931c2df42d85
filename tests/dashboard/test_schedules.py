"""Schedules in a browser: listed, looked at, made, changed, paused, triggered, ended."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.losing import lost
from tests.dashboard.opening import open_view
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

FLOWS = """
from perdure import event, workflow


@workflow
async def echo(text: str) -> str:
    return text


@workflow
async def waits() -> str:
    return await event("go", str)
"""


@pytest.fixture(scope="module")
def flows() -> str:
    return FLOWS


def create(served: Served, name: str, **more: Any) -> None:
    served.ask("/v1/schedules", {"name": name, "workflow": "echo", "args": ["hi"], "cron": "0 3 * * *", **more})


def head(page: Page) -> Locator:
    return page.locator("main > header")


def act(page: Page, verb: str, go: str = "") -> None:
    """Press a button of the view, and what does it in the dialog."""
    head(page).get_by_role("button", name=verb).click()
    page.get_by_role("dialog").get_by_role("button", name=go or verb).click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_schedules_are_listed_with_when_they_start_what(page: Page, module_served: Served) -> None:
    create(module_served, "nightly", timezone="Europe/Berlin", overlap="queue")
    create(module_served, "pulse", cron=None, every="90m", paused=True)
    create(module_served, "launch", cron=None, at=["2090-01-01T07:00:00", "2091-01-01T07:00:00"])
    open_view(page, module_served, "#/schedules")
    nightly = page.locator("tr", has_text="nightly")
    for text in ("0 3 * * *", "Europe/Berlin", "03:00:00", "queue", "active"):
        expect(nightly).to_contain_text(text)
    expect(page.locator("tr", has_text="pulse")).to_contain_text("every 1h 30m")
    expect(page.locator("tr", has_text="pulse").locator(".badge")).to_have_text("paused")
    expect(page.locator("tr", has_text="launch")).to_contain_text("2090-01-01 07:00:00 and 1 more")
    page.get_by_role("link", name="nightly").click()
    expect(page.get_by_role("heading", name="nightly")).to_be_visible()


def test_one_shows_its_settings_and_next_times_on_its_own_clock(page: Page, module_served: Served) -> None:
    create(
        module_served, "summer", timezone="Europe/Berlin", cron="0 12 1 jan,jul *", note="for the board", jitter="10m"
    )
    open_view(page, module_served, "#/schedules/summer")
    about = page.locator("aside")
    for text in ("0 12 1 jan,jul *", "Europe/Berlin", "for the board", "10m", "the newest", '"hi"'):
        expect(about).to_contain_text(text)
    times = page.locator(".card", has=page.get_by_role("heading", name="Next times")).locator("tbody tr")
    expect(times).to_have_count(10)
    expect(times.filter(has_text="-01-01 12:00:00").first).to_contain_text("+01:00")
    expect(times.filter(has_text="-07-01 12:00:00").first).to_contain_text("+02:00")


def test_one_is_made(page: Page, module_served: Served) -> None:
    open_view(page, module_served, "#/schedules")
    head(page).get_by_role("button", name="Make one").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=name]").fill("made")
    dialog.locator("[name=workflow]").fill("echo")
    dialog.locator("[name=value]").fill('["hello"]')
    dialog.get_by_role("button", name="Make").click()
    expect(dialog.get_by_role("alert")).to_have_text("a schedule has one of Cron line, Every and At")
    dialog.locator("[name=at]").fill("2090-06-01T07:00\n2090-07-01T07:00")
    dialog.locator("[name=timezone]").fill("Europe/Berlin")
    dialog.locator("[name=end]").fill("2090-12-31T00:00:00")
    dialog.locator("[name=overlap]").select_option("all")
    dialog.get_by_role("button", name="Make").click()
    expect(page.get_by_role("heading", name="made")).to_be_visible()
    told = module_served.ask("/v1/schedules/made")
    assert told["at"] == ["2090-06-01T07:00:00+02:00", "2090-07-01T07:00:00+02:00"]
    assert told["end"] == "2090-12-30T23:00:00Z"
    assert (told["args"], told["overlap"], told["paused"]) == (["hello"], "all", False)


def test_what_is_refused_is_said_and_nothing_typed_is_lost(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 4")
    open_view(page, module_served, "#/schedules")
    head(page).get_by_role("button", name="Make one").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=name]").fill("refused")
    dialog.locator("[name=workflow]").fill("echo")
    dialog.locator("[name=value]").fill('["hello"]')
    dialog.locator("[name=cron]").fill("99 3 * * *")
    dialog.get_by_role("button", name="Make").click()
    expect(dialog.get_by_role("alert")).to_contain_text("99")
    expect(dialog.locator("[name=cron]")).to_have_value("99 3 * * *")


@pytest.mark.parametrize(
    ("workflow", "given", "typed", "changed", "kept"),
    [
        ("echo", {"args": ["hi"]}, ["hi"], ["bye"], ["bye"]),
        (
            "door",
            {"args": None, "input": {"colour": "red"}},
            {"colour": "red"},
            {"colour": "blue"},
            [{"colour": "blue"}],
        ),
    ],
    ids=["code", "published"],
)
def test_input_is_changed_in_the_form_in_which_it_was_given(
    page: Page, module_served: Served, workflow: str, given: Any, typed: Any, changed: Any, kept: Any
) -> None:
    states = {"shut": {"on": {"push": "open"}}, "open": {"final": True}}
    module_served.ask("/v1/definitions", {"definition": {"machine": "door", "initial": "shut", "states": states}})
    create(module_served, f"of-{workflow}", workflow=workflow, **given)
    open_view(page, module_served, f"#/schedules/of-{workflow}")
    head(page).get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog")
    assert json.loads(dialog.locator("[name=value]").input_value()) == typed
    dialog.locator("[name=value]").fill(json.dumps(changed))
    dialog.get_by_role("button", name="Change").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("aside")).to_contain_text(changed[0] if workflow == "echo" else "blue")
    assert module_served.ask(f"/v1/schedules/of-{workflow}")["args"] == kept


def test_a_change_changes_what_was_changed_and_nothing_else(page: Page, module_served: Served) -> None:
    create(module_served, "changing", timezone="Europe/Berlin", note="old", end="2090-01-01T00:00:30", jitter="5m")
    before = module_served.ask("/v1/schedules/changing")
    open_view(page, module_served, "#/schedules/changing")
    head(page).get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("[name=end]")).to_have_value("2090-01-01T00:00:30")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog.get_by_role("alert")).to_have_text("nothing was changed")
    dialog.locator("[name=cron]").fill("")
    dialog.locator("[name=every]").fill("2h")
    dialog.locator("[name=note]").fill("")
    dialog.locator("[name=end]").fill("")
    dialog.locator("[name=value]").fill('["bye"]')
    with page.expect_request(lambda sent: sent.method == "PATCH") as sent:
        dialog.get_by_role("button", name="Change").click()
    assert sent.value.post_data_json == {"every": "2h", "note": "", "end": None, "args": ["bye"]}
    expect(page.locator("aside")).to_contain_text("every 2h")
    now = module_served.ask("/v1/schedules/changing")
    changed = {"every": "2h", "cron": "", "note": "", "end": None, "args": ["bye"]}
    kept = ("workflow", "timezone", "start", "overlap", "catch_up", "jitter", "version")
    assert {name: now[name] for name in changed} == changed
    assert [now[name] for name in kept] == [before[name] for name in kept]


def test_it_is_paused_and_resumed(page: Page, module_served: Served) -> None:
    create(module_served, "resting")
    open_view(page, module_served, "#/schedules/resting")
    act(page, "Pause")
    expect(head(page).locator(".badge")).to_have_text("paused")
    expect(head(page).get_by_role("button", name="Pause")).to_have_count(0)
    assert module_served.ask("/v1/schedules/resting")["paused"] is True
    act(page, "Resume")
    expect(head(page).locator(".badge")).to_have_text("active")
    assert module_served.ask("/v1/schedules/resting")["paused"] is False


def test_a_trigger_leads_to_what_it_has_started(page: Page, module_served: Served) -> None:
    create(module_served, "handy", paused=True)
    open_view(page, module_served, "#/schedules/handy")
    act(page, "Trigger")
    expect(page.get_by_role("heading", name=re.compile("^handy~"))).to_be_visible()
    expect(head(page).locator(".badge")).to_have_text("completed")
    [fired] = module_served.ask("/v1/schedules/handy")["recent"]
    page.goto(f"{module_served.address}/dashboard/#/schedules/handy")
    row = page.locator("tr", has=page.get_by_role("link", name=fired["id"]))
    expect(row.locator(".badge")).to_have_text("started")


def test_a_trigger_whose_answer_is_lost_starts_one(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("ERR_FAILED")
    create(module_served, "lost", paused=True)
    open_view(page, module_served, "#/schedules/lost")
    head(page).get_by_role("button", name="Trigger").click()
    with lost(page, "**/trigger"):
        page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    expect(page.get_by_role("heading", name=re.compile("^lost~"))).to_be_visible()
    told = module_served.ask("/v1/schedules/lost")
    assert (told["pending"], len(told["recent"])) == (0, 1)


def test_a_trigger_that_is_skipped_says_why(page: Page, module_served: Served) -> None:
    create(module_served, "busy", workflow="waits", args=[])
    open_view(page, module_served, "#/schedules/busy")
    act(page, "Trigger")
    expect(page.get_by_role("heading", name=re.compile("^busy~"))).to_be_visible()
    page.go_back()
    act(page, "Trigger")
    expect(page.get_by_role("status")).to_contain_text("is still running")
    expect(page.locator("tbody .badge", has_text="skipped")).to_be_visible()
    assert module_served.ask("/v1/schedules/busy")["skipped"] == 1


def test_a_trigger_is_not_asked_for_again_if_nobody_answers_after_it(
    page: Page, module_served: Served, watch: Watch
) -> None:
    watch.allow("status of 503")
    create(module_served, "unanswered", paused=True)
    open_view(page, module_served, "#/schedules/unanswered")
    page.route("**/v1/schedules/unanswered", lambda route: route.fulfill(status=503, body="{}"))
    act(page, "Trigger")
    expect(page.get_by_role("status")).to_contain_text("starts when a worker has seen it")
    expect(page.get_by_role("alert")).to_contain_text("503")
    page.unroute("**/v1/schedules/unanswered")
    expect(page.locator("tbody .badge", has_text="started")).to_have_count(1)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_it_is_ended_and_found_among_those_that_have_ended(page: Page, module_served: Served) -> None:
    create(module_served, "leaving")
    open_view(page, module_served, "#/schedules/leaving")
    act(page, "End", "End it")
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    expect(page.locator("main:not([aria-busy])")).to_be_visible()  # or the list is not there yet
    expect(page.get_by_role("link", name="leaving")).to_have_count(0)
    assert "leaving" not in [one["name"] for one in module_served.ask("/v1/schedules")["schedules"]]
    page.get_by_label("Also those that have ended").check()
    expect(page.locator("tr", has_text="leaving").locator(".badge")).to_have_text("ended")
    assert "ended=true" in page.url


def test_a_viewer_is_offered_nothing(page: Page, module_served: Served) -> None:
    create(module_served, "looked-at")
    open_view(page, module_served, "#/schedules/looked-at", "viewer")
    expect(page.get_by_role("heading", name="looked-at")).to_be_visible()
    expect(head(page).get_by_role("button")).to_have_count(0)


def test_an_observer_sees_the_list_and_no_arguments(page: Page, module_served: Served) -> None:
    create(module_served, "seen", args=["secret"])
    open_view(page, module_served, "#/schedules", "observer")
    expect(page.locator("tr", has_text="seen")).to_contain_text("0 3 * * *")
    expect(page.get_by_role("link", name="seen")).to_have_count(0)
    expect(page.get_by_role("button", name="Make one")).to_have_count(0)
