"""Views of the dashboard, opened by somebody who has signed in."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.dashboard.serving import Served


def open_view(page: Page, served: Served, view: str, role: str = "") -> None:
    """The view of that address, for whoever has the key of the server, or one of this role that is made for it."""
    key = served.run("keys", "create", role, "--role", role)["secret"] if role else served.key
    page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{key}')")
    page.goto(f"{served.address}/dashboard/{view}")
    expect(page.locator("main:not([aria-busy])")).to_be_visible()


def menu(page: Page) -> list[str]:
    """What the menu leads to, behind the name of the whole."""
    return page.get_by_role("navigation").get_by_role("link").all_text_contents()[1:]
