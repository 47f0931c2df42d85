"""An execution that is followed in a browser: what is new is shown, whatever becomes of the stream and the server."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Request, Route, expect

from tests.dashboard.opening import open_view
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

FLOWS = """
from perdure import action, event, workflow


@action
async def greet(name: str) -> str:
    return f"hello {name}"


@workflow
async def child(n: int) -> int:
    return n


@workflow
async def waits(name: str) -> str:
    while (word := await event("word", str)) != "bye":
        await greet(word)
        workflow.publish(word=word)
    return name


@workflow
async def parent(count: int) -> str:
    for n in range(count):
        await child(n)
    return await event("word", str)
"""
STREAM = "**/stream?*"
Begin = Callable[..., None]
Send = Callable[[str], None]


@pytest.fixture(scope="module")
def flows() -> str:
    return FLOWS


@pytest.fixture
def id(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "-", request.node.name)[:80].strip("-")


@pytest.fixture
def begin(page: Page, module_served: Served, id: str) -> Begin:
    """Starts the execution, and opens it when it waits for a word."""

    def begin(tab: str = "log", workflow: str = "waits", argument: object = "ann") -> None:
        body = {"workflow": workflow, "id": id, "args": [argument]}
        module_served.ask("/v1/executions", body)
        open_view(page, module_served, f"#/executions/{id}?tab=children")
        expect(page.get_by_text("waits for the event word")).to_be_visible()
        page.evaluate(f"location.hash = '#/executions/{id}?tab={tab}'")
        expect(page.get_by_role("tab", selected=True)).not_to_have_text("Children" if tab != "children" else "Log")
        expect(page.locator("main:not([aria-busy])")).to_be_visible()

    return begin


@pytest.fixture
def send(module_served: Served, id: str) -> Send:
    """Sends the execution a word, with which it is done when this returns."""

    def send(word: str) -> None:
        body = {"name": "word", "payload": word}
        module_served.ask(f"/v1/executions/{id}/events?wait=30s", body)

    return send


@pytest.fixture
def streams(page: Page) -> list[Request]:
    """Those that were asked for, the newest last."""
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request) if "/stream?" in request.url else None)
    return asked


def refuse(route: Route) -> None:
    route.fulfill(status=429, content_type="application/problem+json", body='{"detail": "too many follow"}')


def test_a_notice_goes_when_the_server_is_back_also_if_nothing_is_new(served: Served, page: Page, watch: Watch) -> None:
    watch.allow("ERR_|network error")
    served.ask("/v1/executions?wait=30s", {"workflow": "waits", "args": ["gil"], "id": "w"})
    open_view(page, served, "#/executions/w")
    served.kill()
    expect(page.get_by_role("alert")).to_contain_text("the server does not answer")
    served.start()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_without_a_stream_it_is_asked_for_what_is_new(begin: Begin, send: Send, page: Page, watch: Watch) -> None:
    watch.allow("status of 429")
    page.route(STREAM, refuse)
    begin()
    send("one")
    expect(page.locator(".log .kind", has_text="EventReceived")).to_have_count(1)
    expect(page.get_by_role("alert")).to_have_count(0)
    send("bye")
    expect(page.locator("main > header .badge")).to_have_text("completed")


def test_an_observer_who_has_no_stream_sees_it_go_on_as_well(
    module_served: Served, send: Send, page: Page, id: str, streams: list[Request]
) -> None:
    module_served.ask("/v1/executions", {"workflow": "waits", "args": ["ann"], "id": id})
    open_view(page, module_served, f"#/executions/{id}?tab=log", "observer")
    expect(page.get_by_text("waits for")).to_be_visible()
    send("bye")
    expect(page.locator(".log .kind").last).to_have_text("Completed")
    expect(page.locator("main > header .badge")).to_have_text("completed")
    assert streams == []


@pytest.mark.parametrize("tab", ["log", "timeline"])
def test_what_could_not_be_shown_at_once_is_not_lost(
    tab: str, begin: Begin, send: Send, page: Page, watch: Watch
) -> None:
    watch.allow("status of 503")
    begin(tab)
    page.route("**/why", lambda route: route.fulfill(status=503, body="{}"))
    send("one")
    expect(page.get_by_role("alert")).to_be_visible()
    page.unroute("**/why")
    send("two")
    expect(page.get_by_role("alert")).to_have_count(0)
    if tab == "log":
        versions = page.locator(".log td:first-child")
        expect(versions).to_have_text([str(n) for n in range(1, 8)])
    else:
        expect(page.locator(".gantt .name")).to_have_text(["event word", "greet", "event word", "greet"])


def test_the_stream_is_there_only_while_somebody_looks(
    begin: Begin, send: Send, page: Page, streams: list[Request]
) -> None:
    page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.away === true})")
    begin()
    with page.expect_event("requestfailed", lambda one: one == streams[-1]):
        page.evaluate("away = true; document.dispatchEvent(new Event('visibilitychange'))")
    send("one")
    with page.expect_request(STREAM):
        page.evaluate("away = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator(".log .kind", has_text="EventReceived")).to_have_count(1)


def test_a_view_that_was_left_ends_its_stream(begin: Begin, page: Page, streams: list[Request]) -> None:
    begin()
    with page.expect_event("requestfailed", lambda one: one == streams[-1]):
        page.get_by_role("navigation").get_by_role("link", name="Keys").click()


def test_what_is_pressed_or_marked_stays_while_it_runs(begin: Begin, send: Send, page: Page) -> None:
    begin()
    pause = page.get_by_role("button", name="Pause").element_handle()
    given = page.locator("aside pre").first.element_handle()
    send("one")
    expect(page.locator(".log .kind", has_text="EventReceived")).to_have_count(1)
    assert pause.evaluate("one => one.isConnected")
    assert given.evaluate("one => one.isConnected")
    expect(page.locator("aside")).to_contain_text('"word": "one"')


def test_a_fork_begins_at_the_version_that_is_shown(begin: Begin, send: Send, page: Page) -> None:
    begin()
    send("one")
    expect(page.locator(".log .kind", has_text="EventReceived")).to_have_count(1)
    last = page.locator(".log td:first-child").last
    expect(last).to_have_text("4")
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("dialog").locator("[name=at]")).to_have_value("4")


def test_all_children_can_be_seen(begin: Begin, page: Page) -> None:
    begin("children", "parent", 60)
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="More").click()
    expect(rows).to_have_count(60)


def test_more_of_the_log_is_shown_on_request_and_a_failure_is_told_until_that_is_done(
    begin: Begin, module_served: Served, page: Page, watch: Watch, id: str
) -> None:
    watch.allow("status of 503")
    begin("log", "parent", 60)
    rows = page.locator(".log tbody tr")
    expect(rows).to_have_count(100)
    page.route("**/log?*", lambda route: route.fulfill(status=503, body="{}"))
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("alert")).to_contain_text("503")
    module_served.ask(f"/v1/executions/{id}/events", {"name": "other"})
    expect(page.locator(".facts dd").get_by_text("122", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("503")  # that the rest is renewed has not mended it
    page.unroute("**/log?*")
    page.get_by_role("button", name="More").click()
    expect(rows).to_have_count(122)
    expect(page.get_by_role("button", name="More")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_step_that_is_not_there_is_the_last(begin: Begin, page: Page) -> None:
    begin("steps&at=9999", "parent", 2)
    expect(page.locator(".steps strong")).to_have_text("5 of 5")


def test_who_moves_on_quickly_is_shown_where_they_stop(begin: Begin, page: Page) -> None:
    asked: list[str] = []
    begin("steps", "parent", 60)
    page.on("request", lambda request: asked.append(request.url))
    slider = page.get_by_role("slider")
    slider.evaluate(
        "one => { for (let n = 120; n > 20; n--) { one.value = n; one.dispatchEvent(new Event('input')) } }"
    )
    expect(page.locator(".steps strong")).to_have_text("21 of 121")
    assert len([url for url in asked if "/log/" in url]) < 10
    assert page.url.endswith("tab=steps&at=21")
