"""API keys in a browser: made, rotated, revoked, and their secrets shown once."""

from __future__ import annotations

from playwright.sync_api import Page, Route, expect

from tests.cli.asking import ask
from tests.dashboard.opening import menu, open_view
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch


def good(served: Served, secret: str) -> bool:
    return ask(served.address, "/v1/caller", key=secret)[0] == 200


def key_of(served: Served, name: str) -> dict[str, object]:
    [found] = [one for one in served.ask("/v1/keys")["keys"] if one["name"] == name]
    return dict(found)


def shown_secret(page: Page) -> str:
    return page.get_by_role("dialog").get_by_label("secret", exact=True).input_value()


def no_list(route: Route) -> None:
    if route.request.method == "GET":
        route.fulfill(status=503, body="{}")
    else:
        route.continue_()


def test_a_key_is_made_and_its_secret_shown_once(page: Page, module_served: Served) -> None:
    open_view(page, module_served, "#/keys")
    page.get_by_role("button", name="Create").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("ci")
    dialog.get_by_role("combobox").select_option("sender")
    dialog.get_by_label("Other roles").fill("clerk, boss")
    dialog.get_by_label("Good for").fill("90d")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_text("it cannot be seen again")).to_be_visible()
    secret = shown_secret(page)
    assert good(module_served, secret)
    made = key_of(module_served, "ci")
    assert made["roles"] == ["sender", "clerk", "boss"]
    assert made["expires_at"]
    for _ in range(3):
        page.keyboard.press("Escape")  # a slip does not lose it
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    expect(page.locator("tr", has_text="ci").locator(".badge")).to_have_text("active")
    assert secret not in page.content()
    assert secret not in page.url
    kept = page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])")
    assert secret not in kept


def test_a_secret_is_copied(page: Page, module_served: Served) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=module_served.address)
    open_view(page, module_served, "#/keys")
    page.get_by_role("button", name="Create").click()
    page.get_by_label("Name").fill("copied")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_text("It is copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == shown_secret(page)


def test_what_is_refused_is_said_and_nothing_typed_is_lost(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 4")
    open_view(page, module_served, "#/keys")
    page.get_by_role("button", name="Create").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_have_text("Name is missing")
    dialog.get_by_label("Name").fill("hasty")
    dialog.get_by_label("Good for").fill("soon")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("soon")
    expect(dialog.get_by_label("Name")).to_have_value("hasty")
    assert "hasty" not in [one["name"] for one in module_served.ask("/v1/keys")["keys"]]


def test_a_key_is_rotated_and_both_secrets_are_good_for_a_while(page: Page, module_served: Served) -> None:
    made = module_served.run("keys", "create", "turning", "--role", "viewer")
    open_view(page, module_served, "#/keys")
    page.locator("tr", has_text="turning").get_by_role("button", name="Rotate").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Overlap")).to_have_value("24h")
    dialog.get_by_label("Overlap").fill("2h")
    dialog.get_by_role("button", name="Rotate").click()
    expect(dialog.get_by_text("The one before is good for 2h as well.")).to_be_visible()
    secret = shown_secret(page)
    assert secret != made["secret"]
    assert good(module_served, secret)
    assert good(module_served, made["secret"])
    dialog.get_by_role("button", name="Close").click()
    page.locator("tr", has_text="turning").get_by_role("link").click()
    expect(page.get_by_text("The secret before is good")).to_be_visible()
    history = page.locator(".card", has=page.get_by_role("heading", name="What was done to it"))
    expect(history.locator("tr", has_text="rotated")).to_contain_text("ui")


def test_a_secret_is_shown_also_to_whom_the_dialog_was_closed_meanwhile(page: Page, module_served: Served) -> None:
    open_view(page, module_served, "#/keys")
    held: list[Route] = []
    page.route("**/v1/keys", lambda route: held.append(route) if route.request.method == "POST" else route.continue_())
    page.get_by_role("button", name="Create").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("hurried")
    with page.expect_request(lambda one: one.method == "POST"):
        dialog.get_by_role("button", name="Create").click()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    held[0].continue_()
    expect(dialog.get_by_text("it cannot be seen again")).to_be_visible()
    assert good(module_served, shown_secret(page))
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    expect(page.locator("tr", has_text="hurried")).to_be_visible()


def test_the_keyboard_stays_with_the_key_that_was_rotated(page: Page, module_served: Served) -> None:
    module_served.made_key("keyboard", "viewer")
    open_view(page, module_served, "#/keys")
    rotate = page.locator("tr", has_text="keyboard").get_by_role("button", name="Rotate")
    rotate.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Rotate").press("Enter")
    expect(page.get_by_text("it cannot be seen again")).to_be_visible()
    module_served.made_key("another", "viewer")
    page.get_by_role("dialog").get_by_role("button", name="Close").press("Enter")
    expect(page.locator("tr", has_text="another")).to_be_visible()  # the list has come anew
    expect(rotate).to_be_focused()


def test_a_secret_is_shown_also_if_nobody_answers_after_it(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 503")
    open_view(page, module_served, "#/keys")
    page.route("**/v1/keys", no_list)
    page.get_by_role("button", name="Create").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("shown")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_text("it cannot be seen again")).to_be_visible()
    assert good(module_served, shown_secret(page))
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("alert")).to_contain_text("503")


def test_whoever_rotates_the_own_key_sees_the_new_secret_and_goes_on_with_it(
    page: Page, module_served: Served, watch: Watch
) -> None:
    watch.allow("status of 401")
    old = module_served.made_key("myself", "admin")
    page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{old}')")
    page.goto(f"{module_served.address}/dashboard/#/keys")
    page.locator("tr", has_text="myself").get_by_role("button", name="Rotate").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Overlap").fill("0s")
    dialog.get_by_role("button", name="Rotate").click()
    expect(dialog.get_by_text("it cannot be seen again")).to_be_visible()
    secret = shown_secret(page)
    assert good(module_served, secret)
    assert not good(module_served, old)
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("dialog", name="Sign in again").get_by_label("API key or token").fill(secret)
    page.get_by_role("dialog", name="Sign in again").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("tr", has_text="myself").locator(".badge")).to_have_text("active")


def test_a_key_is_revoked_and_offers_nothing_more(page: Page, module_served: Served) -> None:
    made = module_served.run("keys", "create", "leaving", "--role", "viewer")
    open_view(page, module_served, f"#/keys/{made['id']}")
    page.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke it").click()
    expect(page.locator("main > header .badge")).to_have_text("revoked")
    expect(page.locator("main > header").get_by_role("button")).to_have_count(0)
    assert not good(module_served, made["secret"])
    assert key_of(module_served, "leaving")["status"] == "revoked"


def test_whoever_revokes_a_key_of_their_own_name_is_warned(page: Page, module_served: Served) -> None:
    open_view(page, module_served, "#/keys")
    page.locator("tr", has_text="ui").first.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog")).to_contain_text("You may be using it yourself.")


def test_keys_are_for_admins(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 403")
    open_view(page, module_served, "#/keys", "operator")
    expect(page.get_by_role("alert")).to_contain_text("may not admin")
    assert "Keys" not in menu(page)
