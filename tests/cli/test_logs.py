from __future__ import annotations

import io
import json
import sys

import pytest

from perdure.cli import logs
from perdure.cli.command import Call
from tests.cli.conftest import SHOP, Shop


@pytest.fixture
def waiting(shop: Shop) -> Shop:
    """A shop with one order that waits for its event; its worker has gone."""
    shop.work("fulfil", [{"item": "tea"}], "order-1", "Published")
    return shop


def test_a_log_goes_out_and_comes_in(waiting: Shop) -> None:
    shop = waiting
    text = shop.out("export", "order-1")
    assert json.loads(text)["format"] == "perdure-log/1"
    shop.run("import", "-", "--id", "order-2", input=text)
    assert "events of order-1 in log.json" in shop.out("export", "order-1", "-o", "log.json")
    assert shop.json("export", "order-1", "-o", "log.json")["events"] == 3
    answer = shop.json("import", "log.json", "--id", "order-3", "--tenant", "other")
    assert (answer["id"], answer["tenant"], answer["status"]) == ("order-3", "other", "waiting")
    logs = [shop.json("show", *where)["log"] for where in (["order-1"], ["order-2"], ["order-3", "--tenant", "other"])]
    assert [[entry["data"] for entry in log] for log in logs] == [[entry["data"] for entry in logs[0]]] * 3


def test_what_is_no_log_is_refused(shop: Shop) -> None:
    assert "cannot be read" in shop.error("import", "nothing.json")
    (shop.folder / "odd.json").write_text("{")
    assert "is not JSON" in shop.error("import", "odd.json")
    (shop.folder / "odd.json").write_text("{}")
    assert "not an exported log" in shop.error("import", "odd.json")


def test_the_same_code_fits(waiting: Shop) -> None:
    assert waiting.out("replay", "shop.py", "--check") == "1 replayed, 1 fits\n"
    data = waiting.json("replay", "shop.py", "--check")
    assert (data["ok"], data["counts"]) == (True, {"fits": 1})


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("    await charge(order)\n", "    await ship(order.item)\n", "asks for action ship as command 1"),
        ("    await charge(order)\n", "    await charge(Order('gin'))\n", "with [{"),
        ("    await charge(order)\n", "    return 'free'\n", "but the code ends with Completed before it"),
        (
            'order: Order) -> str:\n    """An',
            'order: int) -> str:\n    """An',
            "does not fit the workflow's parameters",
        ),
    ],
)
def test_other_code_diverges(waiting: Shop, old: str, new: str, reason: str) -> None:
    waiting.file.write_text(SHOP.replace(old, new))
    text = waiting.out("replay", "shop.py", "--check", code=1)
    assert text.startswith("diverges  order-1  fulfil@1  waiting")
    assert reason in text
    assert waiting.out("replay", "shop.py") == text
    data = waiting.json("replay", "shop.py", "order-1", "--check", code=1)
    assert data["findings"][0]["answer"] == "diverges"


def test_the_executions_of_every_tenant_are_replayed_unless_one_is_named(waiting: Shop) -> None:
    for tenant in ("acme", "zoo"):
        waiting.work("fulfil", [{"item": "tea"}], "order-1", "Published", tenant=tenant)
    assert waiting.out("replay", "shop.py", "--check") == "3 replayed, 3 fits\n"
    waiting.file.write_text(SHOP.replace("    await charge(order)\n", "    await ship(order.item)\n"))
    lines = waiting.out("replay", "shop.py", "--check", code=1).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("diverges")] == [
        "zoo/order-1",
        "acme/order-1",
        "order-1",
    ]
    found = waiting.json("replay", "shop.py", "--check", "--tenant", "acme", code=1)["findings"]
    assert [(one["tenant"], one["id"], one["answer"]) for one in found] == [("acme", "order-1", "diverges")]
    waiting.run("replay", "shop.py", "--check", "--tenant", "nobody")


def test_what_nobody_can_read_does_not_stop_the_replay_of_the_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_KEYRING", str(shop.folder / "ring"))
    shop.run("keyring", "create")
    for tenant in ("acme", "zoo"):
        shop.work("fulfil", [{"item": "tea"}], "order-1", "Published", tenant=tenant)
    shop.run("keyring", "shred", "acme", "--yes")
    told = shop.out("replay", "shop.py", "--check")
    assert "stuck  acme/order-1" in told and "were destroyed" in told
    assert told.endswith("2 replayed, 1 fits, 1 stuck\n")


def test_a_definition_that_is_gone_is_missing(waiting: Shop) -> None:
    waiting.file.write_text(SHOP.replace("async def fulfil", "async def deliver"))
    assert "missing  order-1  fulfil@1" in waiting.out("replay", "shop.py", "--check", code=1)
    waiting.run("replay", "shop.py", "--check", "--missing-ok")
    waiting.run("replay", "shop.py", "--check", "--workflow", "echo")


def test_a_stuck_execution_is_mended_or_not(waiting: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_GRACE", "0.1")
    broken = SHOP.replace("    await charge(order)\n", "    await ship(order.item)\n")
    waiting.file.write_text(broken)
    waiting.run("send", "order-1", "packed", '{"tracking": "X1"}')
    waiting.work("fulfil", [{"item": "tea"}], "order-1", "Stuck")
    assert "stuck  order-1" in waiting.out("replay", "shop.py", "--check")
    waiting.file.write_text(SHOP)
    assert waiting.json("replay", "shop.py", "--check")["counts"] == {"mended": 1}


def test_of_one_whose_attempts_are_spent_the_code_fits_or_diverges(shop: Shop) -> None:
    spends = (
        "from perdure import Retry, action, workflow\n"
        "@action(retries=Retry(attempts=2, first='1ms', spent='stuck'))\n"
        "async def ship() -> None: raise ConnectionError('refused')\n"
        "@action\nasync def other() -> None: ...\n"
        "@workflow\nasync def sends() -> None: await ship()\n"
    )
    shop.file.write_text(spends)
    shop.work("sends", [], "s", "Stuck")
    assert "2, then stuck" in shop.out("actions", "shop.py")
    assert "attempts of ship (command 1) are spent" in shop.out("dead", "show", "s")
    assert shop.json("replay", "shop.py", "--check")["counts"] == {"fits": 1}
    shop.file.write_text(spends.replace("await ship()", "await other()"))
    assert shop.json("replay", "shop.py", "--check", code=1)["counts"] == {"diverges": 1}


def test_replay_begins_at_the_newest_restart(shop: Shop) -> None:
    shop.file.write_text(
        "import asyncio\n"
        "from perdure import action, event, workflow\n"
        "@action\nasync def step(n: int) -> int: return n\n"
        "@workflow\nasync def rounds(n: int) -> None:\n"
        "    await step(n)\n"
        "    if n < 3: workflow.restart_with(n + 1)\n"
        "    await event('stop')\n"
    )
    shop.work("rounds", [1], "r", "Restarted")
    assert shop.out("replay", "shop.py", "--check") == "1 replayed, 1 fits\n"


def test_a_record_that_the_code_no_longer_makes_diverges(shop: Shop) -> None:
    before = (
        "from perdure import event, workflow\n"
        "@workflow\nasync def waits() -> None:\n"
        "    workflow.record(lambda: 1)\n"
        "    await event('stop')\n"
    )
    shop.file.write_text(before)
    shop.work("waits", [], "w", "Marked")
    shop.file.write_text(before.replace("    workflow.record(lambda: 1)\n", ""))
    assert "version 2 of the log records record as command 1, but the code does not" in shop.out(
        "replay", "shop.py", "--check", code=1
    )


def test_replay_checks_the_code_as_well(waiting: Shop) -> None:
    waiting.file.write_text(SHOP.replace("    await charge(order)\n", "    import time; time.sleep(1)\n"))
    assert "time.sleep" in waiting.error("replay", "shop.py", "--check")


def test_replay_needs_a_known_id(waiting: Shop) -> None:
    assert "no execution" in waiting.error("replay", "shop.py", "nobody", code=1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("total", "json", "shown"), [(50, False, True), (49, False, False), (50, True, False)])
def test_a_long_replay_shows_its_progress_to_people(
    monkeypatch: pytest.MonkeyPatch, total: int, json: bool, shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    with logs._progress(Call(None, None, None, json, False), total) as advance:
        for _ in range(total):
            advance()
    assert ("replaying" in terminal.getvalue() and "100%" in terminal.getvalue()) is shown
    assert bool(terminal.getvalue()) is shown
