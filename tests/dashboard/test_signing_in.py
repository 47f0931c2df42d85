"""Who may look at the dashboard: with a key, without one, and with one that may do little."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from tests.cli.asking import ask
from tests.dashboard.opening import open_view
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

ORDER = {"workflow": "fulfil", "args": [{"item": "secret teapot"}], "id": "order-1"}


def test_nothing_is_shown_without_a_key_and_a_bad_one_is_refused(
    page: Page, module_served: Served, watch: Watch
) -> None:
    watch.allow("status of 401")
    page.goto(f"{module_served.address}/")
    key = page.get_by_label("API key or token")
    expect(key).to_be_focused()
    expect(page.get_by_role("navigation")).to_have_count(0)
    key.fill("pdk_nonsense")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("API key or token").fill(module_served.key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_contain_text("ui")
    assert module_served.key not in page.url
    assert page.evaluate("localStorage.length") == 0
    assert page.context.cookies() == []
    page.reload()
    expect(page.get_by_role("navigation")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key or token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_key_that_is_revoked_meanwhile_leads_to_the_door(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 401")
    made = module_served.run("keys", "create", "brief", "--role", "viewer")
    page.goto(f"{module_served.address}/dashboard/#/executions")
    page.get_by_label("API key or token").fill(made["secret"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Executions")).to_be_visible()
    module_served.run("keys", "revoke", made["id"])
    # A server knows for some seconds what it knew, and the list is asked for every few seconds.
    expect(page.get_by_label("API key or token")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("alert")).to_be_visible()


@pytest.mark.parametrize("key", ["pdk_wrong…", "two words", "clé"])
def test_what_can_be_no_key_is_told_and_another_one_can_be_tried(
    key: str, page: Page, module_served: Served, watch: Watch
) -> None:
    watch.allow("status of 401")
    page.goto(f"{module_served.address}/")
    page.get_by_label("API key or token").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("this is no key and no token")
    assert page.evaluate("sessionStorage.length") == 0
    page.get_by_label("API key or token").fill(module_served.key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_contain_text("ui")


def test_a_server_that_refuses_for_another_reason_lets_one_sign_out(
    page: Page, module_served: Served, watch: Watch
) -> None:
    watch.allow("status of (401|503)")
    page.route("**/v1/caller", lambda route: route.fulfill(status=503, body="{}"))
    page.goto(f"{module_served.address}/dashboard/")
    page.evaluate("sessionStorage.setItem('perdure-credential', 'old')")
    page.reload()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    page.unroute("**/v1/caller")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key or token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_who_has_signed_out_is_shown_nothing_at_any_address(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 401")
    open_view(page, module_served, "#/keys")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key or token")).to_be_visible()
    page.evaluate("location.hash = '#/executions'")
    page.get_by_label("API key or token").fill("typed")
    expect(page.get_by_role("navigation")).to_have_count(0)
    expect(page.get_by_label("API key or token")).to_have_value("typed")


def expired(page: Page, key: str, what: str = "**/v1/**") -> None:
    """From now on the server refuses whoever shows this key."""

    def refuse(route: Route) -> None:
        if route.request.headers.get("authorization") == f"Bearer {key}":
            route.fulfill(status=401, content_type="application/problem+json", body='{"detail": "it has expired"}')
        else:
            route.continue_()

    page.route(what, refuse)


def test_who_signs_in_again_loses_nothing_that_was_typed(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 4(01|22)")
    open_view(page, module_served, "#/definitions/:new")
    area = page.get_by_label("Definition, in YAML or JSON")
    expect(page.get_by_text("It can be published.")).to_be_visible()
    with page.expect_response("**/v1/definitions/validate") as judged:  # else that is what is refused
        area.fill(area.input_value().replace("approval", "again"))
    assert judged.value.ok
    expired(page, module_served.key)
    page.get_by_role("button", name="Save draft").click()
    dialog = page.get_by_role("dialog", name="Sign in again")
    expect(dialog.get_by_role("alert")).to_have_text("it has expired")
    dialog.get_by_label("API key or token").fill("pdk_wrong")
    dialog.get_by_role("button", name="Sign in").click()
    expect(dialog.get_by_role("alert")).to_have_count(2)
    dialog.get_by_label("API key or token").fill(module_served.made_key("ui", "admin"))
    dialog.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("the draft of again is saved")).to_be_visible()
    expect(page.get_by_role("heading", name="again")).to_be_visible()


def test_who_signs_in_as_somebody_else_sees_what_those_may_see(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 401")
    open_view(page, module_served, "#/executions")
    expired(page, module_served.key)
    dialog = page.get_by_role("dialog", name="Sign in again")
    dialog.get_by_label("API key or token").fill(module_served.made_key("gast", "viewer"))
    dialog.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_contain_text("gast")
    expect(page.get_by_role("button", name="Start")).to_have_count(0)
    expect(page.get_by_role("heading", name="Executions")).to_be_visible()


def test_nothing_that_somebody_has_asked_for_is_done_in_the_name_of_somebody_else(
    page: Page, module_served: Served, watch: Watch
) -> None:
    watch.allow("status of 401")
    module_served.ask("/v1/executions?wait=30s", {**ORDER, "id": "order-7"})
    open_view(page, module_served, "#/executions/order-7")
    page.get_by_role("button", name="Pause").click()
    expired(page, module_served.key, "**/pause")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    sent: list[str] = []
    page.on("request", lambda one: sent.append(one.url) if one.method == "POST" else None)
    dialog = page.get_by_role("dialog", name="Sign in again")
    dialog.get_by_label("API key or token").fill(module_served.made_key("boss", "operator"))
    dialog.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_contain_text("boss")
    expect(page.get_by_role("heading", name="order-7")).to_be_visible()
    expect(page.locator("main:not([aria-busy])")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert sent == []


def test_who_does_not_sign_in_again_is_led_to_the_door(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 401")
    open_view(page, module_served, "#/executions")
    expired(page, module_served.key)
    page.get_by_role("dialog", name="Sign in again").get_by_role("button", name="Close").click()
    expect(page.get_by_role("navigation")).to_have_count(0)
    expect(page.get_by_label("API key or token")).to_be_visible()


def test_a_viewer_sees_all_and_is_offered_nothing(page: Page, module_served: Served) -> None:
    ask(module_served.address, "/v1/executions?wait=30s", ORDER, module_served.key)
    made = module_served.run("keys", "create", "eve", "--role", "viewer")
    page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{made['secret']}')")
    page.goto(f"{module_served.address}/dashboard/#/executions")
    expect(page.get_by_role("button", name="Start")).to_have_count(0)
    page.get_by_role("link", name="order-1", exact=True).click()
    expect(page.locator("aside")).to_contain_text("secret teapot")
    expect(page.locator("main > header").get_by_role("button")).to_have_count(0)
    page.get_by_role("tab", name="Step by step").click()
    expect(page.locator(".steps strong")).to_be_visible()
    expect(page.get_by_role("button", name="Fork from here")).to_have_count(0)


def test_an_observer_sees_what_happens_and_no_data(page: Page, module_served: Served) -> None:
    ask(module_served.address, "/v1/executions?wait=30s", ORDER, module_served.key)
    made = module_served.run("keys", "create", "olga", "--role", "observer")
    page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{made['secret']}')")
    page.goto(f"{module_served.address}/dashboard/#/executions/order-1")
    expect(page.get_by_text("waits for")).to_be_visible()
    expect(page.get_by_role("tab")).to_have_text(["Timeline", "Log", "Children"])
    page.get_by_role("tab", name="Log").click()
    expect(page.locator(".log .kind").first).to_have_text("Started")
    expect(page.locator("body")).not_to_contain_text("secret teapot")


def test_on_ones_own_machine_no_key_is_asked_for(page: Page, served_by_dev: Served) -> None:
    page.goto(f"{served_by_dev.address}/")
    expect(page.get_by_role("navigation")).to_contain_text("dev")
    expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
