"""Fixtures: a browser, a page that is watched, and the server whose pages it opens.

Without a browser these tests are skipped, and say why; with `CI` in the environment they fail.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect

from tests.backends import skipped
from tests.cli.conftest import SHOP
from tests.dashboard.chromium import NoBrowser, browsing
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

#: How long anything on a page may take, in milliseconds: many times as long as it does when there is nothing else.
PATIENCE_MS = 30_000

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the tests of a module, and gone before the next module begins: see `browsing`."""
    with ExitStack() as stack:
        with skipped(NoBrowser):
            opened = stack.enter_context(browsing())
        yield opened


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What a test stores in the browser is gone after it. Time, language and size are the same everywhere."""
    made = browser.new_context(
        locale="en-GB", timezone_id="UTC", viewport={"width": 1280, "height": 800}, reduced_motion="reduce"
    )
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def watch(context: BrowserContext) -> Watch:
    """What goes wrong on the pages of this test; it fails the test at its end."""
    return Watch(context)


@pytest.fixture
def page(context: BrowserContext, watch: Watch, tmp_path: Path) -> Page:
    """An empty page, which is watched; what is kept of it if the test fails is kept in `tmp_path`."""
    return context.new_page()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None]:
    """What has gone wrong on a page counts as part of the test; and a test that fails keeps a picture of its page."""
    try:
        yield
        if "watch" in item.funcargs:
            item.funcargs["watch"].check()
    except (Exception, pytest.fail.Exception) as error:
        if "page" in item.funcargs:
            error.add_note(f"screenshot: {picture(item.funcargs['page'], item.funcargs['tmp_path'])}")
        raise


def picture(page: Page, folder: Path) -> str:
    """Where it is, or why there is none."""
    try:
        page.screenshot(path=folder / "page.png", full_page=True)
    except Error as error:
        return f"none, {error.message}"
    return str(folder / "page.png")


@pytest.fixture(scope="module")
def flows() -> str:
    """The code of the workflows that are served; a module of tests has its own fixture of this name for other code."""
    return SHOP


@pytest.fixture
def served(tmp_path: Path, flows: str) -> Iterator[Served]:
    """`perdure serve` with a worker, for this test alone."""
    with Served(tmp_path, flows) as one:
        yield one


@pytest.fixture(scope="module")
def module_served(tmp_path_factory: pytest.TempPathFactory, flows: str) -> Iterator[Served]:
    """The same for a whole module of tests: to start one takes longer than most of them."""
    with Served(tmp_path_factory.mktemp("served"), flows) as one:
        yield one


@pytest.fixture
def served_by_dev(tmp_path: Path, flows: str) -> Iterator[Served]:
    """`perdure dev`, which asks for no key."""
    with Served(tmp_path, flows, "dev") as one:
        yield one
