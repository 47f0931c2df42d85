"""One execution in a browser: what it shows while it runs, and every verb in the statuses in which it is offered."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.cli.asking import ask
from tests.dashboard.losing import lost
from tests.dashboard.opening import open_view
from tests.dashboard.serving import Served
from tests.dashboard.watching import Watch

FLOWS = '''
import asyncio
from perdure import Breaker, External, Retry, action, event, workflow


@action
async def greet(name: str) -> str:
    return f"hello {name}"


@action(retries=Retry(attempts=1, spent="stuck"))
async def never() -> None:
    raise RuntimeError("the bank is closed")


@action(retries=Retry(attempts=0, first="1h"))
async def later() -> None:
    raise ConnectionError("no route to the bank")


@action(retries=Retry(attempts=0, first="1h"), breaker=Breaker(failures=1, pause="1h"))
async def broken() -> None:
    raise External("the bank is ill")


@action(timeout="1h")
async def endless() -> None:
    await asyncio.sleep(3600)


@workflow
async def runs() -> None:
    await endless()


@workflow
async def child(text: str) -> str:
    return text


@workflow
async def waits(name: str) -> str:
    """Greets, has a child, and waits for a word."""
    said = await greet(name)
    workflow.publish(stage="greeted")
    await child(said)
    return f"{said}, {await event('word', str)}"


@workflow
async def fails(text: str) -> None:
    await greet(text)
    raise ValueError(text)


@workflow
async def sticks() -> None:
    await never()


@workflow
async def retries() -> None:
    await later()


@workflow
async def cleans() -> None:
    try:
        await event("never", str)
    finally:
        await event("clean")


@workflow
async def leaves() -> None:
    await cleans()


@workflow
async def breaks() -> None:
    await broken()


@workflow
async def meets() -> None:
    await asyncio.gather(event("b", str), event("a", int), event("b", str))


@workflow
async def sleeps() -> None:
    await asyncio.sleep(86400)


'''
STATES = {"shut": {"on": {"push": "open"}}, "open": {"on": {"lock": "locked"}}, "locked": {"final": True}}
MACHINE = {"machine": "door", "initial": "shut", "states": STATES}


@pytest.fixture(scope="module")
def flows() -> str:
    return FLOWS


@pytest.fixture
def start(module_served: Served, page: Page, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Starts an execution, waits until it stands, and opens its page."""

    def begin(workflow: str, *args: object, status: str = "waiting", **more: object) -> str:
        id = f"{workflow}-{request.node.name[:40]}"
        body = {"workflow": workflow, "id": id, **(more or {"args": list(args)})}
        code, told = ask(module_served.address, "/v1/executions?wait=30s", body, module_served.key)
        assert code == 200, told
        assert told["status"] == status, told
        page.goto(f"{module_served.address}/dashboard/#/executions/{id}")
        expect(page.get_by_role("heading", name=id)).to_be_visible()
        return id

    return begin


@pytest.fixture(autouse=True)
def signed_in(page: Page, module_served: Served) -> None:
    page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{module_served.key}')")


def status(page: Page, text: str) -> None:
    expect(page.locator("main > header .badge")).to_have_text(text)


def verb(page: Page, name: str) -> None:
    page.locator("main > header").get_by_role("button", name=name).click()


def field(page: Page, name: str) -> Locator:
    return page.get_by_role("dialog").locator(f"[name={name}]")


def done(page: Page, name: str) -> None:
    """Say yes to the dialog, which closes."""
    page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def told(served: Served, id: str) -> dict[str, object]:
    return dict(ask(served.address, f"/v1/executions/{id}", key=served.key)[1])


def sent(served: Served, id: str) -> list[dict[str, object]]:
    """The events that came, once nothing that was sent waits to be folded into the log."""
    for _ in range(600):
        if told(served, id).get("rests"):
            break
        time.sleep(0.05)
    events = ask(served.address, f"/v1/executions/{id}/log?sent=true", key=served.key)[1]["events"]
    return [one["data"] for one in events]


def test_it_shows_where_it_stands_and_goes_on_while_one_looks(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    id = start("waits", "ann")
    expect(page.get_by_text("waits for the event word")).to_be_visible()
    expect(page.locator("aside")).to_contain_text('"stage": "greeted"')
    rows = page.locator(".gantt .name")
    expect(rows).to_have_text(["greet", f"{id}.2"])
    ask(module_served.address, f"/v1/executions/{id}/events", {"name": "word", "payload": "bye"}, module_served.key)
    status(page, "completed")
    expect(rows).to_have_text(["greet", f"{id}.2", "event word"])
    expect(page.locator("aside")).to_contain_text("hello ann, bye")
    expect(page.get_by_role("button", name="Send event")).to_have_count(0)


def test_every_attempt_is_a_bar(start: Callable[..., str], page: Page) -> None:
    start("retries")
    expect(page.get_by_text("no route to the bank")).to_be_visible()
    expect(page.locator(".gantt rect.failed")).to_have_count(1)
    expect(page.locator(".gantt .badge")).to_have_text("retrying")


def test_an_action_whose_attempts_are_spent_is_stuck_until_it_is_tried_again(
    start: Callable[..., str], page: Page
) -> None:
    start("sticks", status="stuck")
    expect(page.locator(".gantt .badge")).to_have_text("stuck")
    verb(page, "Retry")
    done(page, "Retry")
    expect(page.locator(".gantt rect.failed")).to_have_count(2)
    expect(page.locator(".gantt .badge")).to_have_text("stuck")


def test_what_is_put_off_by_an_open_circuit_is_no_attempt(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    module_served.ask("/v1/executions?wait=30s", {"workflow": "breaks", "id": "breaks-first", "args": []})
    id = start("breaks")
    assert module_served.ask(f"/v1/executions/{id}/log/2")["data"]["put_off"] == 1
    expect(page.locator(".gantt .badge")).to_have_text("retrying")
    expect(page.locator(".gantt rect")).to_have_class("retrying")


def test_the_log_grows_and_has_the_data_of_each_event(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    id = start("waits", "bob")
    page.get_by_role("tab", name="Log").click()
    kinds = page.locator(".log .kind")
    expect(page.get_by_text("waits for the event word")).to_be_visible()  # it waits for its child as well
    expect(kinds.last).to_have_text("ChildSettled")
    before = kinds.count()
    ask(module_served.address, f"/v1/executions/{id}/events", {"name": "word", "payload": "bye"}, module_served.key)
    expect(kinds.nth(before)).to_have_text("EventReceived")
    expect(kinds.last).to_have_text("Completed")
    page.get_by_text('word "bye"').click()
    expect(page.locator(".log details[open]")).to_contain_text('"payload": "bye"')


def test_step_by_step_shows_what_each_event_changed_and_forks_from_there(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    id = start("waits", "cy")
    page.get_by_role("tab", name="Step by step").click()
    expect(page.locator(".steps strong")).to_have_text("5 of 5")
    page.get_by_role("button", name="one back").click()
    expect(page.locator(".steps strong")).to_have_text("4 of 5")
    assert page.url.endswith("?tab=steps&at=4")
    page.get_by_role("slider").fill("2")
    expect(page.get_by_text("ActionSettled", exact=True)).to_be_visible()
    expect(page.locator(".changed")).to_have_text(["actions"])
    page.get_by_role("button", name="Fork from here").click()
    edits = field(page, "edit")
    expect(edits).to_have_value(re.compile("hello cy"))
    edits.fill(edits.input_value().replace("hello cy", "good day"))
    field(page, "id").fill(f"{id}-fork")
    done(page, "Fork")
    expect(page.get_by_role("heading", name=f"{id}-fork")).to_be_visible()
    verb(page, "Send event")
    field(page, "name").fill("word")
    field(page, "payload").fill('"bye"')
    done(page, "Send")
    status(page, "completed")
    assert told(module_served, f"{id}-fork")["result"] == "good day, bye"


def test_a_machine_is_drawn_where_it_is_and_can_go_on_with_another_version(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    for definition in (MACHINE, {**MACHINE, "states": {**STATES, "shut": {"on": {"push": "open", "kick": "open"}}}}):
        code, _ = ask(module_served.address, "/v1/definitions", {"definition": definition}, module_served.key)
        assert code == 201
    id = start("door", input={}, version=1)
    page.get_by_role("tab", name="Diagram").click()
    image = page.get_by_alt_text("where it is, drawn")
    expect(image).to_be_visible()
    before = image.get_attribute("src")
    verb(page, "Send event")
    field(page, "name").fill("push")
    done(page, "Send")
    expect(image).not_to_have_attribute("src", before or "")
    expect(image).not_to_have_js_property("naturalWidth", 0)
    verb(page, "Migrate")
    field(page, "version").fill("2")
    done(page, "Migrate")
    expect(page.locator("aside")).to_contain_text("published:door@2")
    assert told(module_served, id)["definition"] == "published:door@2"


def test_events_that_it_waits_for_are_suggested(start: Callable[..., str], page: Page, module_served: Served) -> None:
    id = start("meets")
    suggested = page.get_by_role("dialog").locator("datalist option")
    verb(page, "Send event")
    assert [one.get_attribute("value") for one in suggested.all()] == ["a", "b"]
    expect(field(page, "name")).to_have_attribute("list", "events")
    field(page, "name").fill("a")
    field(page, "payload").fill("1")
    done(page, "Send")
    expect(page.get_by_text("waits for the event a")).to_have_count(0)
    verb(page, "Send event")
    assert [one.get_attribute("value") for one in suggested.all()] == ["b"]
    field(page, "name").fill("c")
    done(page, "Send")
    assert [one["name"] for one in sent(module_served, id)] == ["a", "c"], "others can be sent as well"


def test_each_event_that_a_state_takes_is_suggested(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    states = {"shut": {"on": {"push": "open", "kick": "open"}}, "open": {"final": True}}
    definition = {"machine": "gate", "initial": "shut", "states": states}
    ask(module_served.address, "/v1/definitions", {"definition": definition}, module_served.key)
    start("gate", input={})
    verb(page, "Send event")
    options = page.get_by_role("dialog").locator("datalist option").all()
    assert [one.get_attribute("value") for one in options] == ["kick", "push"]


def test_children_and_parents_lead_to_each_other(start: Callable[..., str], page: Page) -> None:
    id = start("waits", "dan")
    page.get_by_role("tab", name="Children").click()
    page.locator("table").get_by_role("link", name=f"{id}.2").click()
    expect(page.get_by_role("heading", name=f"{id}.2")).to_be_visible()
    page.locator("aside").get_by_role("link", name=id).click()
    expect(page.get_by_role("heading", name=id, exact=True)).to_be_visible()


def test_children_that_go_on_when_their_parent_has_ended_are_shown_as_they_are(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    id = start("leaves")
    page.get_by_role("tab", name="Children").click()
    child = page.locator("tbody .badge")
    expect(child).to_have_text("waiting")
    module_served.ask(f"/v1/executions/{id}/cancel", {"now": True})
    status(page, "cancelled")
    expect(child).to_have_text("waiting")
    with page.expect_response("**/v1/executions?parent=*"):
        pass  # it is still asked what became of it
    module_served.ask(f"/v1/executions/{id}.1/events", {"name": "clean"})
    expect(child).to_have_text("cancelled")


#: In each status, the verbs that have an effect; an event is none for what has ended.
OFFERED = {
    ("waits", "eve"): ("waiting", ["Send event", "Pause", "Cancel", "Fork"]),
    ("sticks",): ("stuck", ["Send event", "Retry", "Cancel", "Fork"]),
    ("fails", "no"): ("failed", ["Retry", "Fork"]),
    ("child", "yes"): ("completed", ["Fork"]),
}


@pytest.mark.parametrize("flow", OFFERED, ids=lambda flow: flow[0])
def test_a_verb_is_offered_where_it_has_an_effect(flow: tuple[str, ...], start: Callable[..., str], page: Page) -> None:
    stands, offered = OFFERED[flow]
    start(*flow, status=stands)
    status(page, stands)
    expect(page.locator("main > header").get_by_role("button")).to_have_text(offered)


def test_what_runs_now_is_offered_the_same_as_what_waits_and_is_cancelled(page: Page, module_served: Served) -> None:
    module_served.ask("/v1/executions", {"workflow": "runs", "args": [], "id": "runs-1"})
    page.goto(f"{module_served.address}/dashboard/#/executions/runs-1")
    status(page, "running")
    buttons = page.locator("main > header").get_by_role("button")
    expect(buttons).to_have_text(["Send event", "Pause", "Cancel", "Fork"])
    verb(page, "Cancel")
    field(page, "now").check()
    done(page, "Cancel it")
    status(page, "cancelled")
    expect(buttons).to_have_text(["Retry", "Fork"])


def test_a_sender_is_offered_to_send_and_nothing_else(page: Page, module_served: Served) -> None:
    module_served.ask("/v1/executions?wait=30s", {"workflow": "waits", "args": ["sue"], "id": "sent-1"})
    open_view(page, module_served, "#/executions/sent-1", "sender")
    expect(page.locator("main > header").get_by_role("button")).to_have_text(["Send event"])
    page.get_by_role("tab", name="Step by step").click()
    expect(page.locator(".steps strong")).to_be_visible()
    expect(page.get_by_role("button", name="Fork from here")).to_have_count(0)


def test_what_runs_is_paused_resumed_and_cancelled(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    id = start("sleeps")
    verb(page, "Pause")
    field(page, "reason").fill("the auditor is here")
    done(page, "Pause")
    status(page, "paused")
    expect(page.locator("main > header").get_by_role("button")).to_have_text(["Send event", "Resume", "Cancel", "Fork"])
    verb(page, "Resume")
    done(page, "Resume")
    status(page, "waiting")
    verb(page, "Cancel")
    field(page, "reason").fill("enough")
    done(page, "Cancel it")
    status(page, "cancelled")
    expect(page.locator("main > header").get_by_role("button")).to_have_text(["Retry", "Fork"])
    assert told(module_served, id)["status"] == "cancelled"
    log = module_served.run("show", id)
    assert "the auditor is here" in str(log)


def test_what_was_cancelled_says_why_and_who_asked_for_it(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    id = start("leaves")
    module_served.ask(f"/v1/executions/{id}/cancel", {"reason": "enough"})
    module_served.ask(f"/v1/executions/{id}.1/events", {"name": "clean"})
    status(page, "cancelled")
    expect(page.locator(".notice")).to_have_text("it was cancelled: enough · asked for by ui")
    page.goto(f"{module_served.address}/dashboard/#/executions/{id}.1")
    expect(page.get_by_role("heading", name=f"{id}.1")).to_be_visible()
    status(page, "cancelled")
    expect(page.locator(".notice")).to_have_text(
        f"it was cancelled: its parent no longer waits for it · asked for by {id}"
    )
    expect(page.locator(".notice").get_by_role("link")).to_have_attribute("href", f"#/executions/{id}")


def test_what_was_cancelled_without_a_reason_names_who_asked_for_it(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    id = start("sleeps")
    module_served.ask(f"/v1/executions/{id}/cancel", {})
    status(page, "cancelled")
    expect(page.locator(".notice")).to_have_text("it was cancelled · asked for by ui")


def test_nobody_is_said_to_have_cancelled_what_somebody_else_had_cancelled_before(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    id = start("cleans")
    for reason in ("enough", "too late"):
        module_served.ask(f"/v1/executions/{id}/cancel", {"reason": reason})
        sent(module_served, id)
    module_served.ask(f"/v1/executions/{id}/events", {"name": "clean"})
    status(page, "cancelled")
    expect(page.locator(".notice")).to_have_text("it was cancelled: enough")


def test_an_end_that_comes_between_two_answers_is_shown_whole(
    start: Callable[..., str], page: Page, module_served: Served
) -> None:
    id = start("sleeps")
    before = module_served.ask(f"/v1/executions/{id}/state")
    page.route("**/state", lambda route: route.fulfill(json=before))
    module_served.ask(f"/v1/executions/{id}/cancel", {"reason": "enough"})
    status(page, "cancelled")
    page.unroute("**/state")
    expect(page.locator(".notice")).to_have_text("it was cancelled: enough · asked for by ui")


def test_what_is_paused_until_a_time_says_so(start: Callable[..., str], page: Page) -> None:
    start("sleeps")
    verb(page, "Pause")
    field(page, "until").fill("2040-01-01T12:00:00")
    done(page, "Pause")
    status(page, "paused")
    expect(page.get_by_text("2040-01-01")).to_be_visible()


def test_a_retry_of_what_failed_leads_to_the_new_execution(start: Callable[..., str], page: Page) -> None:
    id = start("fails", "no such item", status="failed")
    expect(page.get_by_text("ValueError: no such item")).to_be_visible()
    verb(page, "Retry")
    done(page, "Retry")
    expect(page.get_by_role("heading", name=id, exact=True)).to_have_count(0)
    status(page, "failed")


def test_a_retry_of_what_is_stuck_goes_on_here(start: Callable[..., str], page: Page) -> None:
    id = start("sticks", status="stuck")
    version = page.locator("aside dt", has_text="Version").locator("+ dd")
    before = version.inner_text()
    verb(page, "Retry")
    done(page, "Retry")
    expect(version).not_to_have_text(before)
    expect(page.get_by_role("heading", name=id, exact=True)).to_be_visible()
    status(page, "stuck")


def test_what_is_refused_is_told_and_nothing_typed_is_lost(start: Callable[..., str], page: Page, watch: Watch) -> None:
    watch.allow("status of 4")
    start("waits", "fay")
    verb(page, "Send event")
    field(page, "name").fill("word")
    field(page, "payload").fill("{no json")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Payload is no JSON")
    expect(field(page, "name")).to_have_value("word")
    field(page, "payload").fill("7")
    field(page, "id").fill("x" * 600)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert")).not_to_contain_text("no JSON")
    expect(field(page, "payload")).to_have_value("7")
    field(page, "id").fill("")
    field(page, "payload").fill('"bye"')
    done(page, "Send")
    status(page, "completed")


def test_what_is_refused_after_the_dialog_was_closed_is_told(
    start: Callable[..., str], page: Page, watch: Watch
) -> None:
    watch.allow("status of 422")
    start("waits", "ian")
    held: list[Route] = []
    page.route("**/events", lambda route: held.append(route))
    verb(page, "Send event")
    field(page, "name").fill("word")
    with page.expect_request("**/events"):
        page.get_by_role("dialog").get_by_role("button", name="Send").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    held[0].fulfill(status=422, json={"detail": "word is no longer taken"})
    expect(page.get_by_role("status")).to_have_text("word is no longer taken")


def test_what_was_taken_is_done_also_if_nobody_answers_after_it(
    start: Callable[..., str], page: Page, watch: Watch
) -> None:
    watch.allow("status of 503")
    start("waits", "hal")
    page.route("**/why", lambda route: route.fulfill(status=503, body="{}"))
    verb(page, "Send event")
    field(page, "name").fill("word")
    field(page, "payload").fill('"bye"')
    done(page, "Send")
    expect(page.get_by_role("alert")).to_contain_text("503")
    page.unroute("**/why")
    status(page, "completed")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_event_whose_answer_is_lost_is_not_sent_twice(
    start: Callable[..., str], page: Page, module_served: Served, watch: Watch
) -> None:
    watch.allow("ERR_FAILED")
    id = start("sleeps")
    verb(page, "Send event")
    field(page, "name").fill("word")
    with lost(page, "**/events"):
        page.get_by_role("dialog").get_by_role("button", name="Send").click()
    done(page, "Send")
    assert len(sent(module_served, id)) == 1
    verb(page, "Send event")
    field(page, "name").fill("word")
    done(page, "Send")
    assert len(sent(module_served, id)) == 2, "another dialog is another wish"


def test_an_event_that_was_changed_after_its_answer_was_lost_is_another(
    start: Callable[..., str], page: Page, module_served: Served, watch: Watch
) -> None:
    watch.allow("ERR_FAILED")
    id = start("sleeps")
    verb(page, "Send event")
    field(page, "name").fill("word")
    for payload in ('"hello"', '"bye"'):
        field(page, "payload").fill(payload)
        with lost(page, "**/events"):
            page.get_by_role("dialog").get_by_role("button", name="Send").click()
    field(page, "payload").fill('"hello"')
    done(page, "Send")
    assert [one["payload"] for one in sent(module_served, id)] == ["hello", "bye"]


def test_a_copy_whose_answer_is_lost_is_not_made_twice(
    start: Callable[..., str], page: Page, module_served: Served, watch: Watch
) -> None:
    watch.allow("ERR_FAILED")
    id = start("fails", "no such item", status="failed")
    for count, name in enumerate(["Fork", "Retry"], 1):
        verb(page, name)
        with lost(page, f"**/{name.lower()}"):
            page.get_by_role("dialog").get_by_role("button", name=name).click()
        done(page, name)
        expect(page.get_by_role("heading", name=re.compile(f"^{re.escape(id)}~[0-9a-f]{{8}}$"))).to_be_visible()
        found = module_served.ask("/v1/executions?workflow=fails&limit=100")["executions"]
        assert len([one for one in found if one["id"].startswith(f"{id}~")]) == count
        page.goto(f"{module_served.address}/dashboard/#/executions/{id}")
        expect(page.get_by_role("heading", name=id, exact=True)).to_be_visible()


def test_what_is_open_grows_older_also_if_nothing_new_comes(start: Callable[..., str], page: Page) -> None:
    page.clock.install()
    start("sleeps")
    row = page.locator(".gantt")
    expect(row).to_contain_text("left")
    name = page.locator(".gantt .name").element_handle()
    page.clock.fast_forward("10:00")
    expect(row).to_contain_text(re.compile(r"10 min( \d+ s)?, 23 h \d+ min left"))
    expect(page.get_by_text(re.compile(r"^10 min( \d+ s)? in all"))).to_be_visible()
    assert name.evaluate("one => one.isConnected"), "it was drawn anew although nothing is new"


def test_what_comes_from_executions_is_text_and_never_markup(start: Callable[..., str], page: Page) -> None:
    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    id = start("fails", evil, status="failed")
    expect(page.locator(".trouble")).to_contain_text(evil)
    page.get_by_role("tab", name="Log").click()
    page.locator(".log summary").first.click()
    expect(page.locator(".log details[open]")).to_contain_text("onerror")
    assert page.locator("main img, main script").count() == 0
    expect(page).to_have_title(f"{id} · Perdure")


def test_what_is_not_there_says_so_and_the_way_back_works(page: Page, module_served: Served, watch: Watch) -> None:
    watch.allow("status of 404")
    page.goto(f"{module_served.address}/dashboard/#/executions/nobody")
    expect(page.get_by_role("alert")).to_contain_text("there is no execution 'nobody'")
    page.get_by_role("navigation").get_by_role("link", name="Executions").click()
    expect(page.get_by_role("heading", name="Executions")).to_be_visible()


def test_it_goes_on_when_the_server_was_away(served: Served, page: Page, watch: Watch) -> None:
    watch.allow("ERR_|network error")
    page.add_init_script(f"sessionStorage.setItem('perdure-credential', '{served.key}')")
    ask(served.address, "/v1/executions?wait=30s", {"workflow": "waits", "args": ["gil"], "id": "w"}, served.key)
    page.goto(f"{served.address}/dashboard/#/executions/w?tab=log")
    expect(page.locator(".log .kind").first).to_have_text("Started")
    served.kill()
    expect(page.get_by_role("alert")).to_contain_text("the server does not answer")
    served.start()
    ask(served.address, "/v1/executions/w/events", {"name": "word", "payload": "bye"}, served.key)
    expect(page.locator(".log .kind").last).to_have_text("Completed")
    status(page, "completed")
    expect(page.get_by_role("alert")).to_have_count(0)
