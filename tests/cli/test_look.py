from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from perdure import Perdure
from tests.cli.conftest import Shop
from tests.cli.processes import Process

TEA = '{"item": "tea"}'


@pytest.fixture
def order(shop: Shop, worker: Process) -> str:
    """An order that has come to its end."""
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    shop.run("send", "order-1", "packed", '{"tracking": "X1"}')
    shop.run("tail", "order-1", "--follow")
    return "order-1"


def test_show_has_a_header_and_a_timeline(shop: Shop, order: str) -> None:
    text = shop.out("show", order)
    assert "workflow  fulfil@1, queue default" in text
    assert 'status    completed  → "shipped X1"' in text
    assert 'state     {"step":"packing","item":"tea"}' in text
    timeline = text.partition("\n\n")[2].splitlines()
    assert timeline[0].split() == ["v", "time", "(UTC)", "gap", "event", "what"]
    assert "Started" in timeline[1]
    assert "Completed" in timeline[-1]


def test_show_json_has_the_head_and_the_log(shop: Shop, order: str) -> None:
    data = shop.json("show", order)
    assert data["status"] == "completed"
    assert data["result"] == "shipped X1"
    assert [entry["version"] for entry in data["log"]] == list(range(1, data["version"] + 1))
    assert len(shop.json("show", order, "--limit", "2")["log"]) == 2
    assert "earlier events are not shown" in shop.run("show", order, "--limit", "2").stderr


def test_rows_are_shown_as_they_are_stored(shop: Shop, order: str) -> None:
    rows = shop.lines("show", order, "--rows")
    assert rows[0]["type"] == 1
    assert rows[0]["data"]["input"] == [{"item": "tea"}]
    assert '{"workflow":"fulfil","version":1' in shop.out("show", order, "--rows")


def test_an_unknown_id_is_an_error_with_a_hint(shop: Shop) -> None:
    shop.run("migrate")
    for command in ("show", "log", "tail", "state", "why", "export", "retry", "fork"):
        error = shop.error(command, "nobody", code=1)
        assert error.startswith("error: there is no execution")
        assert "hint: looked in" in error


def test_debug_shows_the_traceback(shop: Shop) -> None:
    shop.run("migrate")
    with shop.process("show", "nobody", "--debug") as process:
        process.line("Traceback")
        process.line("ExecutionNotFound")
        assert process.end() == 1


def test_log_goes_page_by_page_through_the_versions_asked_for(shop: Shop, order: str) -> None:
    whole = shop.json("log", order)
    assert whole["next"] is None and len(whole["events"]) > 5
    page = shop.json("log", order, "--after", "1", "--until", "5", "--limit", "3")
    assert [one["version"] for one in page["events"]] == [2, 3, 4]
    rest = shop.json("log", order, "--limit", "3", "--cursor", page["next"])
    assert rest == {"events": [whole["events"][4]], "next": None}
    assert "begin again without a cursor" in shop.error("log", order, "--until", "6", "--cursor", page["next"])
    told = shop.run("log", order, "--limit", "1")
    assert "Started" in told.stdout and "there are more: --cursor " in told.stderr


def test_tail_begins_with_the_newest(shop: Shop, order: str) -> None:
    entries = shop.lines("tail", order, "-n", "2")
    assert [entry["type"] for entry in entries] == ["ActionSettled", "Completed"]
    assert shop.out("tail", order, "-n", "1").split()[-2:] == ['"shipped', 'X1"']


def test_tail_follows_a_log_while_it_grows(shop: Shop, worker: Process) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    with shop.process("tail", "order-1", "--follow", "--json") as tail:
        tail.line("Published")
        shop.run("send", "order-1", "packed", '{"tracking": "X1"}')
        tail.line("EventReceived")
        tail.line("Completed")
        assert tail.end() == 0


def test_state_at_a_version_and_at_a_time(shop: Shop, order: str) -> None:
    now = shop.json("state", order)
    assert now["status"] == "completed"
    assert now["published"] == {"step": "packing", "item": "tea"}
    assert shop.json("state", order, "--at", "1")["status"] == "open"
    before = datetime.fromisoformat(now["started_at"]) - timedelta(seconds=1)
    assert shop.json("state", order, "--at", before.isoformat())["version"] == 0
    text = shop.out("state", order)
    assert 'action    charge → "paid 1 tea"' in text
    assert "is not a time" in shop.error("state", order, "--at", "soon")
    assert "versions begin at 1" in shop.error("state", order, "--at", "0")


def test_why_tells_what_it_waits_for(shop: Shop, worker: Process) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    shop.json("resume", "order-1")  # returns when a worker has taken it up
    text = shop.out("why", "order-1")
    assert text.startswith("order-1 is waiting\n  • waits for the event packed, for ")
    assert "at fulfil, line" in text
    assert shop.json("why", "order-1")["reasons"][0]["kind"] == "event"


def test_text_from_outside_cannot_command_the_terminal(shop: Shop, worker: Process) -> None:
    shop.run("start", "shop.py", "fails", "bad\x1b[2J\nnews", "--id", "f", "--wait", code=1)
    for command in (["show", "f"], ["list"], ["why", "f"], ["state", "f"]):
        text = shop.out(*command)
        assert "\x1b" not in text
        assert r"bad\x1b[2J\nnews" in text


def test_lock_tells_who_holds_it_and_for_how_long(shop: Shop) -> None:
    async def take() -> tuple[str, int]:
        async with Perdure(shop.store) as app:
            lock = app.lock("printer/3", lease="1h")
            return lock.token, await lock.acquire()  # and dies with it

    shop.run("migrate")
    assert shop.json("lock", "printer/3") == {"name": "printer/3", "held": False}
    assert shop.out("lock", "printer/3") == "printer/3 is held by nobody\n"
    holder, fence = asyncio.run(take())
    told = shop.json("lock", "printer/3")
    assert (told["name"], told["held"], told["holder"], told["fence"]) == ("printer/3", True, holder, fence)
    assert 0 <= told["age"] < 60
    assert datetime.fromisoformat(told["until"]) - datetime.fromisoformat(told["since"]) >= timedelta(minutes=59)
    text = shop.out("lock", "printer/3").replace("held by", "held")
    lines = dict(line.strip().split(maxsplit=1) for line in text.splitlines())
    assert (lines["lock"], lines["held"], lines["fence"]) == ("printer/3", holder, str(fence))
    assert " UTC, for " in lines["since"] and lines["until"].endswith("UTC, if nothing renews it")
