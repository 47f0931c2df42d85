"""Tasks for people in a browser: found, claimed, passed on and completed, each by whoever may."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.cli.asking import ask
from tests.dashboard.conftest import PATIENCE_MS
from tests.dashboard.losing import lost
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

FLOWS = '''
from dataclasses import dataclass

from perdure import person, role, workflow


@dataclass
class Decision:
    """What the form asks for."""

    approved: bool
    comment: str = ""


@workflow
async def spend(who: str, cents: int) -> str:
    said = await person(
        "approve",
        form=Decision,
        title=f"{who} wants to spend {cents}",
        assign=role("heads"),
        data={"who": who},
        due="1h",
    )
    return f"{said.approved} {said.comment}"


@workflow
async def look() -> None:
    await person("look", priority=7)
'''
REFUSED = "console: Failed to load resource: .* (409|422)"
Enter = Callable[..., Page]


@pytest.fixture(scope="module")
def flows() -> str:
    return FLOWS


@pytest.fixture(scope="module")
def keys(module_served: Served) -> dict[str, str]:
    roles = {"ann": ("sender", "heads"), "bob": ("sender", "heads"), "eve": ("sender",), "vic": ("viewer", "heads")}
    return {name: module_served.made_key(name, *some) for name, some in roles.items()}


@pytest.fixture
def enter(browser: Browser, module_served: Served, keys: dict[str, str]) -> Iterator[Enter]:
    """Let somebody look, each in a browser of their own, all of which are watched."""
    watches = []

    def enter(name: str, place: str, allow: str = "^$", key: str = "") -> Page:
        context = browser.new_context(timezone_id="UTC")
        context.set_default_timeout(PATIENCE_MS)
        watches.append(Watch(context))
        watches[-1].allow(allow)
        page = context.new_page()
        page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{key or keys[name]}')")
        page.goto(f"{module_served.address}/dashboard/#/inbox{place}")
        expect(page.locator("main:not([aria-busy])")).to_be_visible()
        return page

    yield enter
    for watch in watches:
        watch.check()
        watch._context.close()


@pytest.fixture
def begin(module_served: Served) -> Callable[..., str]:
    """Start what asks somebody, and give the id of the task once it is there."""

    def begin(id: str, workflow: str = "spend", *args: Any) -> str:
        body = {"workflow": workflow, "id": id, "args": list(args) or (["Ada", 42] if workflow == "spend" else [])}
        module_served.ask("/v1/executions?wait=30s", body)
        return f"{id}.1"

    return begin


def test_a_list_has_what_one_can_do_or_all_that_fits(enter: Enter, begin: Callable[..., str]) -> None:
    begin("list-1", "spend", "Grace", 7)
    begin("list-2", "look")
    eve = enter("eve", "")
    expect(eve.get_by_role("row", name="list-2")).to_contain_text("anybody")
    expect(eve.get_by_role("row", name="list-2")).to_contain_text("7")
    expect(eve.get_by_role("row", name="list-1")).to_have_count(0)
    eve.get_by_label("Whose").select_option("all")
    row = eve.get_by_role("row", name="list-1")
    expect(row).to_contain_text("Grace wants to spend 7")
    for text in ("open", "role heads"):
        expect(row).to_contain_text(text)
    expect(row).to_contain_text(re.compile("in (59 min|1 h)"))
    eve.get_by_label("Name").fill("approve")
    eve.get_by_role("button", name="Find").click()
    expect(eve.get_by_role("row", name="list-2")).to_have_count(0)
    eve.get_by_label("Status").select_option("expired")
    expect(eve.get_by_text("no task fits")).to_be_visible()
    assert "status=expired" in eve.url
    eve.get_by_label("Whose").select_option("mine")  # where nothing can be expired
    expect(eve.get_by_text("nothing waits for you")).to_be_visible()
    eve.go_back()
    expect(eve.get_by_label("Whose")).to_have_value("all")


def test_a_task_is_claimed_filled_in_and_completed(
    enter: Enter, begin: Callable[..., str], module_served: Served
) -> None:
    begin("do-1", "spend", "Lin", 5)
    ann = enter("ann", "")
    ann.get_by_role("link", name="Lin wants to spend 5").click()
    expect(ann.get_by_role("heading", name="Lin wants to spend 5")).to_be_visible()
    ann.get_by_role("button", name="Claim").click()
    expect(ann.get_by_text("You have claimed it.")).to_be_visible()
    ann.get_by_role("button", name="Release").click()
    expect(ann.get_by_role("button", name="Claim")).to_be_visible()
    ann.get_by_label("approved").select_option("yes")
    ann.get_by_label("comment").fill("go <b>on</b>")
    ann.get_by_role("button", name="Complete").click()
    expect(ann.get_by_text("ann has completed it.")).to_be_visible()
    expect(ann.get_by_text('"comment": "go <b>on</b>"')).to_be_visible()
    expect(ann.get_by_role("button", name="Complete")).to_be_hidden()
    result = module_served.ask("/v1/executions/do-1/result?wait=30s")
    assert result["result"] == "True go <b>on</b>"
    ann.get_by_role("link", name="do-1", exact=True).click()
    expect(ann.get_by_role("heading", name="do-1")).to_be_visible()


def test_what_is_missing_is_said_where_it_is_missing(enter: Enter, begin: Callable[..., str]) -> None:
    ann = enter("ann", f"/{begin('missing')}", REFUSED)
    ann.get_by_label("comment").fill("kept")
    ann.get_by_role("button", name="Complete").click()
    part = ann.locator(".part", has=ann.get_by_label("approved"))
    expect(part).to_contain_text('"approved" is a required property')
    expect(ann.get_by_label("approved")).to_have_attribute("aria-invalid", "true")
    expect(ann.get_by_role("alert")).to_have_text("It is not filled in as its form asks.")
    expect(ann.get_by_label("comment")).to_have_value("kept")
    ann.get_by_label("approved").select_option("no")
    ann.get_by_role("button", name="Complete").click()
    expect(ann.get_by_text("ann has completed it.")).to_be_visible()


def test_of_two_who_claim_one_has_it(enter: Enter, begin: Callable[..., str], module_served: Served) -> None:
    id = begin("two")
    ann, bob = enter("ann", f"/{id}"), enter("bob", f"/{id}", REFUSED)
    # What bob sees stays as it is, so that he can try.
    bob.clock.install()
    bob.clock.pause_at("2100-01-01")
    bob.reload()
    claim = bob.get_by_role("button", name="Claim")
    expect(claim).to_be_visible()
    ann.get_by_role("button", name="Claim").click()
    expect(ann.get_by_text("You have claimed it.")).to_be_visible()
    claim.click()
    expect(bob.get_by_role("alert")).to_have_text(f"task {id} does not take it: ann has claimed it")
    expect(bob.get_by_text("ann has claimed it, so nobody else can do it now.")).to_be_visible()
    expect(claim).to_have_count(0)
    assert module_served.ask(f"/v1/tasks/{id}")["claimed_by"] == "ann"


def test_a_page_tells_what_others_have_done_and_keeps_what_was_typed(
    enter: Enter, begin: Callable[..., str], module_served: Served, keys: dict[str, str]
) -> None:
    id = begin("others")
    ann = enter("ann", f"/{id}")
    ann.get_by_label("comment").fill("half a sen")
    ask(module_served.address, f"/v1/tasks/{id}/claim", {}, keys["bob"])
    expect(ann.get_by_text("bob has claimed it")).to_be_visible()
    expect(ann.get_by_label("comment")).to_be_disabled()
    ask(module_served.address, f"/v1/tasks/{id}/complete", {"value": {"approved": False}}, keys["bob"])
    expect(ann.get_by_text("bob has completed it.")).to_be_visible()
    expect(ann.get_by_label("comment")).to_have_value("half a sen")


def test_an_answer_that_is_late_is_not_shown_instead_of_a_newer_one(enter: Enter, begin: Callable[..., str]) -> None:
    id = begin("overtaken")
    ann = enter("ann", f"/{id}")
    looks = f"**/v1/tasks/{id}"
    looked: list[Route] = []

    def look(route: Route) -> None:
        looked.append(route)
        if len(looked) == 1:
            route.continue_()

    ann.route(looks, look)
    with ann.expect_request(lambda one: one.url.endswith(id) and len(looked) == 1):  # the second
        ann.reload()
    claim = ann.get_by_role("button", name="Claim")
    expect(claim).to_be_visible()
    old = looked[1].fetch()
    claim.click()
    expect(ann.get_by_text("You have claimed it.")).to_be_visible()
    with ann.expect_request(looks):  # the third: then the second is over
        looked[1].fulfill(response=old)
    expect(ann.get_by_text("You have claimed it.")).to_be_visible()


def test_a_verdict_that_comes_twice_is_taken_for_one(enter: Enter, begin: Callable[..., str]) -> None:
    ann = enter("ann", f"/{begin('twice')}")
    claims: list[Route] = []
    ann.route("**/claim?*", lambda route: claims.append(route), times=1)
    ann.get_by_role("button", name="Claim").click()
    expect(ann.get_by_text("You have claimed it.")).to_be_visible()  # by the answer to the second time that it asks
    releases: list[Route] = []
    asked: list[str] = []
    ann.on("request", lambda one: asked.append(one.url) if "/release?" in one.url else None)
    ann.route("**/release?*", lambda route: releases.append(route))
    with ann.expect_request(
        lambda one: "/release?" in one.url and len(asked) == 2
    ):  # it waits for this verdict, and asks for it again
        ann.get_by_role("button", name="Release").click()
        with ann.expect_response("**/claim?*"):
            claims[0].continue_()
    expect(ann.get_by_role("button", name="Release")).to_be_disabled()
    for one in releases:
        one.continue_()
    expect(ann.get_by_role("button", name="Claim")).to_be_visible()


def test_who_leaves_a_form_half_filled_in_is_asked(enter: Enter, begin: Callable[..., str]) -> None:
    ann = enter("ann", f"/{begin('leaves')}")
    ann.get_by_label("comment").fill("half a sen")
    ann.get_by_role("navigation").get_by_role("link", name="Overview").click()
    dialog = ann.get_by_role("dialog", name="Leave without saving?")
    dialog.get_by_role("button", name="Close").click()
    expect(ann.get_by_label("comment")).to_have_value("half a sen")
    ann.get_by_label("approved").select_option("yes")
    ann.get_by_role("button", name="Complete").click()
    expect(ann.get_by_text("ann has completed it.")).to_be_visible()
    ann.get_by_role("navigation").get_by_role("link", name="Overview").click()
    expect(ann.get_by_role("heading", name="Overview")).to_be_visible()


def test_whom_it_is_not_for_is_told_so_and_can_do_nothing(enter: Enter, begin: Callable[..., str]) -> None:
    id = begin("not-for")
    eve = enter("eve", f"/{id}")
    expect(eve.get_by_text("It is for role heads, not for eve: you can neither claim nor complete it.")).to_be_visible()
    vic = enter("vic", f"/{id}")
    expect(vic.get_by_text("vic may only look at it: to do it takes the scope send.")).to_be_visible()
    for page in (eve, vic):
        expect(page.get_by_label("comment")).to_be_disabled()
        for verb in ("Claim", "Release", "Assign", "Complete"):
            expect(page.get_by_role("button", name=verb)).to_have_count(0)


def test_who_loses_the_right_meanwhile_is_refused_and_told_why(
    enter: Enter, begin: Callable[..., str], module_served: Served
) -> None:
    id = begin("lost")
    ann = enter("ann", f"/{id}", REFUSED)
    ann.clock.install()
    ann.clock.pause_at("2100-01-01")
    ann.reload()
    ann.get_by_label("approved").select_option("yes")
    module_served.ask(f"/v1/tasks/{id}/assign", {"users": ["dora"]})
    ann.get_by_role("button", name="Complete").click()
    expect(ann.get_by_role("alert")).to_have_text(f"task {id} does not take it: it is for dora, not for ann")
    expect(ann.get_by_label("approved")).to_have_value("yes")
    assert module_served.ask(f"/v1/tasks/{id}")["status"] == "open"


def test_a_task_is_assigned_to_others(enter: Enter, begin: Callable[..., str], module_served: Served) -> None:
    id = begin("assign")
    ui = enter("ui", f"/{id}", key=module_served.key)
    expect(ui.get_by_text("It is for role heads, not for ui")).to_be_visible()
    ui.get_by_role("button", name="Assign").click()
    dialog = ui.get_by_role("dialog")
    expect(dialog.get_by_label("Roles")).to_have_value("heads")
    dialog.get_by_label("Users").fill("ui, dora")
    dialog.get_by_label("Roles").fill("")
    dialog.get_by_role("button", name="Assign").click()
    expect(dialog).to_have_count(0)
    expect(ui.get_by_role("button", name="Claim")).to_be_visible()
    task = module_served.ask(f"/v1/tasks/{id}")
    assert (task["users"], task["roles"]) == (["ui", "dora"], [])


def test_a_claim_is_not_lost_to_an_assignment_that_is_sent_again(
    enter: Enter, begin: Callable[..., str], module_served: Served
) -> None:
    id = begin("assigned-once")
    ui = enter("ui", f"/{id}", "ERR_FAILED", key=module_served.key)
    ui.get_by_role("button", name="Assign").click()
    dialog = ui.get_by_role("dialog")
    dialog.get_by_label("Users").fill("ui")
    with lost(ui, "**/assign?*"):
        dialog.get_by_role("button", name="Assign").click()
    module_served.ask(f"/v1/tasks/{id}/claim", {})
    dialog.get_by_role("button", name="Assign").click()
    expect(dialog).to_have_count(0)
    assert module_served.ask(f"/v1/tasks/{id}")["claimed_by"] == "ui"


def test_a_task_without_a_form_is_just_completed(
    enter: Enter, begin: Callable[..., str], module_served: Served
) -> None:
    eve = enter("eve", f"/{begin('bare', 'look')}")
    expect(eve.get_by_text("It asks for nothing but to be completed.")).to_be_visible()
    eve.get_by_role("button", name="Complete").click()
    expect(eve.get_by_text("eve has completed it.")).to_be_visible()
    assert module_served.ask("/v1/executions/bare/result?wait=30s")["status"] == "completed"


def test_an_observer_has_no_inbox_in_the_menu(enter: Enter, module_served: Served) -> None:
    watcher = enter("wall", "", "403", key=module_served.made_key("wall", "observer"))
    expect(watcher.get_by_role("alert")).to_contain_text("wall may not read")
    expect(watcher.get_by_role("navigation").get_by_role("link", name="Inbox")).to_have_count(0)


def test_without_a_worker_it_is_said_that_nothing_is_decided_until_it_is(
    page: Page, watch: Watch, served: Served
) -> None:
    watch.allow("ERR_CONNECTION|503")
    served.ask("/v1/executions?wait=30s", {"workflow": "look", "id": "late", "args": []})
    served.stop()
    served.start(work=False)
    page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{served.key}')")
    page.goto(f"{served.address}/dashboard/#/inbox/late.1")
    page.get_by_role("button", name="Claim").click()
    expect(page.get_by_text("No worker has judged the claim yet.")).to_be_visible()
    expect(page.get_by_role("button", name="Claim")).to_be_disabled()
    served.stop()
    served.start()
    expect(page.get_by_text("You have claimed it.")).to_be_visible()
    assert served.ask("/v1/tasks/late.1")["claimed_by"] == "ui"
