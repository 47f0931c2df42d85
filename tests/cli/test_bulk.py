"""Bulk operations on the command line."""

from __future__ import annotations

import time

from tests.cli.conftest import Shop
from tests.cli.processes import Process


def begun(shop: Shop, count: int) -> None:
    """Orders that wait to be packed; a worker runs."""
    for number in range(count):
        shop.run("start", "shop.py", "fulfil", '{"item": "tea"}', "--id", f"o{number}")
    deadline = time.monotonic() + 20
    while len(shop.json("list", "--field", "step=packing")["executions"]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_dry_run_tells_which_and_an_operation_does_it(shop: Shop, worker: Process) -> None:
    begun(shop, 3)
    said = shop.out("bulk", "cancel", "--workflow", "fulfil", "--field", "item=tea", "--dry-run")
    assert "would be done  o2" in said and "3 found" in said
    told = shop.json("bulk", "send", "packed", '{"tracking": "X1"}', "--workflow", "fulfil", "--reason", "at once")
    assert (told["status"], told["done"], told["reason"]) == ("completed", 3, "at once")
    assert shop.out("start", "shop.py", "fulfil", '{"item": "tea"}', "--id", "o0", "--wait").strip() == '"shipped X1"'
    listed = shop.json("bulk", "list")
    assert [one["act"] for one in listed] == ["send", "cancel"]
    assert "send" in shop.out("bulk", "list") and "3 done" in shop.out("bulk", "show", told["id"])


def test_what_cannot_be_done_is_told_with_exit_code_1(shop: Shop, worker: Process) -> None:
    begun(shop, 2)
    said = shop.out("bulk", "migrate", "2", "--workflow", "fulfil", code=1)
    assert "failed  o1" in said and "which is code" in said and "2 failed" in said


def test_without_a_worker_it_says_what_is_missing(shop: Shop) -> None:
    shop.run("start", "shop.py", "echo", '"x"')
    result = shop.run("bulk", "pause", "--all")
    assert "no worker has begun bulk-" in result.stderr and "0 found" in result.stdout
    assert shop.json("bulk", "resume", "--all", "--detach")["status"] == "waiting"


def test_what_is_asked_wrongly_is_told(shop: Shop) -> None:
    shop.run("start", "shop.py", "echo", '"x"')
    assert "nothing is chosen" in shop.error("bulk", "cancel")
    assert "the engine's own" in shop.error("bulk", "retry", "--workflow", "lock:")
    assert "no bulk operation" in shop.run("bulk", "list").stderr
    assert "there is no execution 'nobody'" in shop.error("bulk", "show", "nobody", code=1)
