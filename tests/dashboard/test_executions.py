"""The list of executions in a browser: found, refreshed, started."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.cli.asking import ask
from tests.cli.conftest import SHOP
from tests.dashboard.losing import lost
from tests.dashboard.opening import open_view
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

KEEPS = """

@workflow
async def keeps(data: dict[str, int]) -> dict[str, int]:
    return data
"""


@pytest.fixture(scope="module")
def flows() -> str:
    return SHOP + KEEPS


@pytest.fixture
def listed(page: Page, module_served: Served) -> Page:
    page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{module_served.key}')")
    page.goto(f"{module_served.address}/dashboard/#/executions")
    expect(page.get_by_role("heading", name="Executions")).to_be_visible()
    return page


def begin(served: Served, workflow: str, id: str, *args: object, **more: object) -> None:
    body = {"workflow": workflow, "id": id, "args": list(args), **more}
    code, told = ask(served.address, "/v1/executions?wait=30s", body, served.key)
    assert code == 200, told


def test_executions_are_found_by_what_the_address_asks_for(listed: Page, module_served: Served) -> None:
    begin(module_served, "echo", "found-1", "hi", tags=["eu"], correlation="c-1")
    begin(module_served, "fails", "found-2", "no", tags=["eu"])
    listed.get_by_label("Tag").fill("eu")
    listed.get_by_role("button", name="Find").click()
    ids = listed.locator("tbody .id")
    expect(ids).to_have_text(["found-2", "found-1"])
    listed.get_by_label("Status").select_option("failed")
    expect(ids).to_have_text(["found-2"])
    assert "status=failed" in listed.url
    assert "tag=eu" in listed.url
    listed.reload()
    expect(ids).to_have_text(["found-2"])
    expect(listed.get_by_label("Status")).to_have_value("failed")
    listed.go_back()
    expect(ids).to_have_text(["found-2", "found-1"])
    listed.goto(f"{module_served.address}/dashboard/#/executions?correlation=c-1")
    expect(ids).to_have_text(["found-1"])


def test_the_list_is_refreshed_while_somebody_looks(listed: Page, module_served: Served) -> None:
    begin(module_served, "echo", "fresh-1", "hi")
    expect(listed.get_by_role("link", name="fresh-1")).to_be_visible()
    row = listed.locator("tr", has_text="fresh-1")
    expect(row.locator(".badge")).to_have_text("completed")
    expect(row).to_contain_text('"hi"')
    row.get_by_role("link").click()
    expect(listed.get_by_role("heading", name="fresh-1")).to_be_visible()


def test_further_pages_are_added(listed: Page, module_served: Served) -> None:
    for n in range(60):
        ask(
            module_served.address,
            "/v1/executions",
            {"workflow": "echo", "args": ["x"], "id": f"many-{n}", "tags": ["many"]},
            module_served.key,
        )
    listed.goto(f"{module_served.address}/dashboard/#/executions?tag=many")
    rows = listed.locator("tbody tr")
    expect(rows).to_have_count(50)
    listed.get_by_role("button", name="More").click()
    expect(rows).to_have_count(60)
    expect(listed.get_by_role("button", name="More")).to_have_count(0)


def test_an_observer_is_offered_to_find_by_nothing_that_is_data(page: Page, module_served: Served) -> None:
    open_view(page, module_served, "#/executions", "observer")
    expect(page.get_by_label("Workflow")).to_be_visible()
    for name in ("Tag", "Correlation id"):
        expect(page.get_by_label(name)).to_have_count(0)


def test_an_execution_is_started_and_shown(listed: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 4")
    listed.get_by_role("button", name="Start").click()
    dialog = listed.get_by_role("dialog")
    go = dialog.get_by_role("button", name="Start")
    go.click()
    expect(listed.get_by_role("alert")).to_contain_text("Workflow is missing")
    dialog.locator("[name=workflow]").fill("nobody-knows")
    dialog.locator("[name=value]").fill('["hello"]')
    dialog.locator("[name=id]").fill("begun-1")
    go.click()
    expect(listed.get_by_role("alert")).to_contain_text("nobody-knows")
    dialog.locator("[name=workflow]").fill("echo")
    dialog.locator("[name=tags]").fill("one, two")
    go.click()
    expect(listed.get_by_role("heading", name="begun-1")).to_be_visible()
    expect(listed.locator("main > header .badge")).to_have_text("completed")
    told = module_served.ask("/v1/executions/begun-1")
    assert (told["result"], told["tags"]) == ("hello", ["one", "two"])


def test_a_start_whose_answer_is_lost_is_not_made_twice(listed: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("ERR_FAILED")
    listed.get_by_role("button", name="Start").click()
    dialog = listed.get_by_role("dialog")
    dialog.locator("[name=workflow]").fill("echo")
    dialog.locator("[name=value]").fill('["hello"]')
    dialog.locator("[name=tags]").fill("lost")
    with lost(listed, "**/v1/executions"):
        dialog.get_by_role("button", name="Start").click()
    dialog.get_by_role("button", name="Start").click()
    expect(listed.locator("main > header .badge")).to_have_text("completed")
    assert len(module_served.ask("/v1/executions?tag=lost")["executions"]) == 1


def test_what_was_done_is_said_also_where_that_leads(listed: Page, module_served: Served) -> None:
    listed.clock.install()
    listed.clock.pause_at("2100-01-01")  # however long it takes, it is not over before it was looked at
    listed.get_by_role("button", name="Start").click()
    dialog = listed.get_by_role("dialog")
    dialog.locator("[name=workflow]").fill("echo")
    dialog.locator("[name=value]").fill('["hello"]')
    dialog.locator("[name=id]").fill("said-1")
    dialog.get_by_role("button", name="Start").click()
    expect(listed.get_by_role("heading", name="said-1")).to_be_visible()
    expect(listed.get_by_role("status")).to_have_text("said-1 has started")


def test_a_number_that_browsers_round_is_sent_and_shown_exactly(listed: Page, module_served: Served) -> None:
    number = "12345678901234567891"
    listed.get_by_role("button", name="Start").click()
    dialog = listed.get_by_role("dialog")
    dialog.locator("[name=workflow]").fill("keeps")
    dialog.locator("[name=value]").fill(f'[{{"n": {number}}}]')
    dialog.locator("[name=id]").fill("exact-1")
    dialog.get_by_role("button", name="Start").click()
    expect(listed.locator("main > header .badge")).to_have_text("completed")
    assert module_served.ask("/v1/executions/exact-1")["result"] == {"n": int(number)}
    expect(listed.locator("aside .json")).to_have_count(2)
    for shown in listed.locator("aside .json").all_text_contents():
        assert number in shown
    listed.get_by_role("navigation").get_by_role("link", name="Executions").click()
    expect(listed.locator("tr", has_text="exact-1")).to_contain_text(number)


def test_a_text_is_told_apart_from_what_it_looks_like(listed: Page, module_served: Served) -> None:
    begin(module_served, "echo", "text-1", "7")
    listed.goto(f"{module_served.address}/dashboard/#/executions/text-1")
    expect(listed.locator("aside .json").last).to_have_text('"7"')


def test_a_large_value_is_shown_in_part_until_somebody_wants_all(listed: Page, module_served: Served) -> None:
    begin(module_served, "echo", "large-1", "x" * 150_000 + "end")
    listed.goto(f"{module_served.address}/dashboard/#/executions/large-1")
    result = listed.locator("aside .json").last
    expect(result).not_to_contain_text("end")
    result.get_by_role("button", name="Show all 150,005 characters").click()
    expect(result).to_contain_text("end")


def test_the_keyboard_stays_where_it_is_when_a_list_comes_anew(listed: Page, module_served: Served) -> None:
    begin(module_served, "echo", "held-1", "hi", tags=["held"])
    begin(module_served, "echo", "held-2", "hi", tags=["held"])
    listed.goto(f"{module_served.address}/dashboard/#/executions?tag=held")
    listed.get_by_role("link", name="held-1").focus()
    begin(module_served, "echo", "held-3", "hi", tags=["held"])
    expect(listed.locator("tbody .id")).to_have_text(["held-3", "held-2", "held-1"])
    expect(listed.locator("tbody .badge")).to_have_text(["completed"] * 3)
    expect(listed.get_by_role("link", name="held-1")).to_be_focused()
    row = listed.locator("tr", has_text="held-1").element_handle()
    for _ in range(2):  # when the second is answered, the first was shown
        listed.wait_for_event("response", lambda answer: "/v1/executions?" in answer.url)
    assert row.evaluate("one => one.isConnected"), "it was drawn anew although nothing is new"
    listed.get_by_label("Status").focus()
    listed.get_by_label("Status").select_option("completed")
    expect(listed.get_by_label("Status")).to_be_focused()
    expect(listed).to_have_title("Executions · Perdure")


@pytest.mark.parametrize("hash", ["#/executions/%zz", "#/nowhere"])
def test_an_address_of_nothing_says_so_and_the_menu_is_there(hash: str, listed: Page, module_served: Served) -> None:
    listed.goto(f"{module_served.address}/dashboard/{hash}")
    expect(listed.get_by_role("alert")).to_contain_text("there is no view")
    listed.get_by_role("navigation").get_by_role("link", name="Executions").click()
    expect(listed.get_by_role("heading", name="Executions")).to_be_visible()


def test_a_time_that_is_half_typed_is_told(listed: Page) -> None:
    listed.get_by_label("Started after").focus()
    listed.keyboard.type("12")
    listed.get_by_role("button", name="Find").click()
    expect(listed.get_by_role("alert")).to_contain_text("Started after is no time")


def test_a_name_with_odd_characters_leads_to_its_page(listed: Page, module_served: Served) -> None:
    odd = "a.b:c@d~e-f"
    begin(module_served, "echo", odd, "hi", tags=["odd"])
    listed.goto(f"{module_served.address}/dashboard/#/executions?tag=odd")
    listed.get_by_role("link", name=odd).click()
    expect(listed.get_by_role("heading", name=odd)).to_be_visible()
    expect(listed.locator("aside")).to_contain_text("hi")


def test_a_long_id_leaves_room_for_what_is_beside_it(listed: Page, module_served: Served) -> None:
    begin(module_served, "echo", "long-" + "o" * 195, "hi", tags=["long"])
    begin(module_served, "echo", "of-ordinary-length-2030-01-01", "hi", tags=["long"])
    listed.goto(f"{module_served.address}/dashboard/#/executions?tag=long")
    expect(listed.locator("tbody tr")).to_have_count(2)
    for row in listed.locator("tbody tr").all():
        expect(row.locator(".badge")).to_be_in_viewport()
        expect(row.get_by_text('"hi"')).to_be_in_viewport()
    ordinary = listed.get_by_role("link", name="of-ordinary-length")
    assert ordinary.evaluate("one => one.getClientRects().length") == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2 * 86400 - 5, "in 2 d"), (3598, "in 1 h"), (1800, "in 30 min"), (-90, "2 min ago"), (-5, "5 s ago"), (0, "now")],
)
def test_a_time_is_told_roughly_and_is_exact_behind_it(seconds: int, text: str, listed: Page) -> None:
    at = 1_900_000_000
    listed.clock.set_fixed_time(at)
    shown = listed.evaluate(f"import('./dom.js').then((all) => all.when({(at + seconds) * 1_000_000}).textContent)")
    assert shown == text
