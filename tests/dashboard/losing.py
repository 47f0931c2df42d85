"""Answers that are lost on their way to a page: what was asked for is done, and whoever has asked does not know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, Route, expect


@contextmanager
def lost(page: Page, path: str) -> Iterator[None]:
    """The answer to what is asked in the block is lost, and the page says so. Its watch has to allow `ERR_FAILED`."""
    seen = []

    def lose(route: Route) -> None:
        seen.append(route.fetch().status)
        route.abort()

    page.route(path, lose, times=1)
    yield
    expect(page.get_by_role("alert")).to_contain_text("the server does not answer")
    assert [status // 100 for status in seen] == [2], seen
