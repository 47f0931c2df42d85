"""The fixtures that tests of pages stand on: pages open, and what goes wrong on them fails their test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Error, Page, Route, expect

from tests.dashboard import conftest
from tests.dashboard.serving import Served
from tests.dashboard.watching import Trouble, Watch

SITE = "http://localhost"
POLICY = "Content-Security-Policy"

#: A page, its headers, and what is said about it.
TROUBLES = {
    "console": ("<script>console.error('lost', 7)</script>", {}, r"console: lost 7 \(http://localhost/:1\)"),
    "assertion": ("<script>console.assert(false, 'lost')</script>", {}, "console: lost"),
    "exception": ("<script>throw new TypeError('lost')</script>", {}, "exception: TypeError: lost"),
    "rejection": ("<script>Promise.reject(new Error('lost'))</script>", {}, "exception: Error: lost"),
    "policy": (
        "<script>1</script>",
        {POLICY: "default-src 'none'"},
        "content security policy: script-src-elem forbids",
    ),
    "reported": (
        "<script>1</script>",
        {f"{POLICY}-Report-Only": "script-src 'none'"},
        "content security policy: script",
    ),
    "caught": (
        "<script>try { eval('1') } catch {}</script>",
        {POLICY: "script-src 'unsafe-inline'"},
        "content security policy: script-src forbids eval",
    ),
    "dialog": ("<script>alert('hello')</script>", {}, "dialog: alert 'hello'"),
    "elsewhere": ("<img src='http://elsewhere.example/a.png'>", {}, "request: to another host, http://elsewhere.exa"),
    "neighbour": ("<img src='http://10.255.0.1/a.png'>", {}, "request: to another host, http://10.255.0.1/a.png"),
    "missing": ("<img src='/none.png'>", {}, "console: Failed to load resource: .* 404 .*none.png"),
    "window": ("<script>open().console.error('lost')</script>", {}, "console: lost"),
}


@pytest.fixture
def show(context: BrowserContext, page: Page) -> Callable[..., None]:
    """Open a page that consists of this."""

    def show(body: str, headers: dict[str, str] | None = None) -> None:
        def answer(route: Route) -> None:
            if route.request.url.endswith(".png"):
                route.fulfill(status=404)
            else:
                route.fulfill(body=body, headers={"Content-Type": "text/html", **(headers or {})})

        context.route(f"{SITE}/**", answer)
        page.goto(f"{SITE}/")

    return show


@pytest.mark.parametrize("kind", TROUBLES)
def test_a_trouble_is_found(kind: str, show: Callable[..., None], watch: Watch) -> None:
    body, headers, told = TROUBLES[kind]
    show(body, headers)
    with pytest.raises(Trouble, match=told):
        watch.check()
    watch.troubles.clear()


@pytest.mark.parametrize("kind", ["console", "policy", "dialog"])
@pytest.mark.xfail(raises=Trouble)
def test_a_trouble_fails_its_test_at_the_end(kind: str, show: Callable[..., None]) -> None:
    body, headers, _ = TROUBLES[kind]
    show(body, headers)


@pytest.mark.xfail(raises=Trouble)
def test_a_trouble_of_the_last_moment_fails_its_test(page: Page) -> None:
    page.evaluate("setTimeout(() => console.error('late')), 0")


def test_what_is_only_said_is_no_trouble(show: Callable[..., None], watch: Watch) -> None:
    show("<script>console.log('a'); console.info('b'); console.warn('c')</script><img src='data:image/gif;base64,'>")
    watch.check()


def test_what_is_allowed_is_no_trouble_and_all_else_is(page: Page, watch: Watch) -> None:
    watch.allow("console: .*refused")
    page.evaluate("console.error('it was refused'); console.error('it was lost')")
    with pytest.raises(Trouble, match=r"^on the page:\nconsole: it was lost .*$"):
        watch.check()
    watch.troubles.clear()


def test_a_dialog_is_accepted_if_it_is_allowed_and_dismissed_if_not(page: Page, watch: Watch) -> None:
    watch.allow("dialog: confirm 'Cancel it")
    assert page.evaluate("confirm('Cancel it?')") is True
    watch.check()
    assert page.evaluate("confirm('Terminate it?')") is False
    assert watch.troubles == ["dialog: confirm 'Terminate it?'"]
    watch.troubles.clear()


def test_a_test_that_fails_says_where_a_picture_of_its_page_is(
    request: pytest.FixtureRequest, page: Page, tmp_path: Path
) -> None:
    page.set_content("<h1>Seen</h1>")
    call = conftest.pytest_runtest_call(request.node)
    next(call)
    with pytest.raises(AssertionError) as told:
        call.throw(AssertionError("not what was expected"))
    assert told.value.__notes__ == [f"screenshot: {tmp_path / 'page.png'}"]
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_that_is_gone_has_no_picture(page: Page, tmp_path: Path) -> None:
    page.close()
    assert conftest.picture(page, tmp_path).startswith("none, ")


# Servers


def test_a_page_of_the_server_opens(page: Page, module_served: Served) -> None:
    page.goto(f"{module_served.address}/docs")
    expect(page.get_by_role("heading", level=1)).to_contain_text("API 1")
    page.get_by_text("/v1/executions", exact=True).first.click()
    expect(page.locator("details[open]")).to_have_count(1)


def test_the_server_knows_its_key_and_works(module_served: Served) -> None:
    module_served.ask("/v1/executions", {"workflow": "echo", "args": ["a"], "id": "one"})
    assert module_served.ask("/v1/executions/one/result?wait=30s") == {"status": "completed", "result": "a"}


def test_a_server_that_was_stopped_comes_back_at_its_address(page: Page, served: Served) -> None:
    page.goto(f"{served.address}/docs")
    served.ask("/v1/executions", {"workflow": "echo", "args": ["a"], "id": "one"})
    for leave in (served.stop, served.kill):
        leave()
        with pytest.raises(Error, match="ERR_CONNECTION_REFUSED"):
            page.reload()
        served.start()
        page.goto(f"{served.address}/docs")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert served.ask("/v1/executions/one")["id"] == "one"


def test_dev_asks_for_no_key(page: Page, served_by_dev: Served) -> None:
    assert served_by_dev.ask("/v1/executions")["executions"] == []
    page.goto(f"{served_by_dev.address}/docs")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
