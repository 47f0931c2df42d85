"""`perdure dead` on real poison: a careless deploy, a crash in every attempt, and two operators at once."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shop
from tests.cli.processes import Process

FITTING = """
from perdure import action, event, workflow


@action
async def pay(item: str) -> str:
    return f"paid {item}"


@workflow
async def order(item: str) -> str:
    receipt = await pay(item)
    await event("go")
    return receipt
"""
BROKEN = FITTING.replace("receipt = await pay(item)", "receipt = item")
DEADLY = """
import os

from perdure import action, event, workflow


@action
async def fall() -> None:
    os.kill(os.getpid(), 9)


@workflow
async def falling(item: str) -> list[int]:
    await fall()
    return [await event("note", int) for _ in range(3)]
"""
HARMLESS = DEADLY.replace("os.kill(os.getpid(), 9)", "pass")


@pytest.fixture
def dead(shop: Shop) -> Shop:
    """A shop with two orders that a careless deploy has made stuck, and no worker."""
    shop.file.write_text(FITTING)
    for id in ("a", "b"):
        shop.work("order", [f"item {id}"], id, until="ActionSettled")
    shop.file.write_text(BROKEN)
    with shop.process("worker", "shop.py", "--json") as process:
        process.line('"ready"')
        for id in ("a", "b"):
            shop.out("send", id, "go")
            process.line(f"{id} is stuck")
        process.stop()
    assert [one["status"] for one in shop.json("list")["executions"]] == ["stuck", "stuck"]
    return shop


def types(shop: Shop, id: str) -> list[str]:
    return [entry["type"] for entry in shop.json("show", id)["log"]]


def work(shop: Shop, *ids: str) -> None:
    """Run a worker until these have ended."""
    with shop.process("worker", "shop.py", "--json") as process:
        process.line('"ready"')
        follow(shop, *ids)
        process.stop()


def follow(shop: Shop, *ids: str) -> None:
    for id in ids:
        with shop.process("tail", id, "--follow") as tail:
            tail.end()


def test_list_tells_cause_reason_and_tries(dead: Shop) -> None:
    out = dead.out("dead", "list")
    assert out.splitlines()[0].split() == ["id", "workflow", "stuck", "cause", "tries", "lapses", "reason"]
    assert "nondeterminism" in out
    data = dead.json("dead", "list", "--oldest")
    assert [one["id"] for one in data["dead"]] == ["a", "b"]
    assert [one["id"] for one in dead.json("dead", "list")["dead"]] == ["b", "a"]
    first = data["dead"][0]
    assert (first["cause"], first["tries"], first["lapses"], first["definition"]) == ("nondeterminism", 1, 0, "order@1")
    assert first["since"].endswith("+00:00")
    page = dead.json("dead", "list", "--limit", "1")
    assert [one["id"] for one in dead.json("dead", "list", "--cursor", page["next"])["dead"]] == ["a"]
    assert dead.json("dead", "list", "--cause", "lapses")["dead"] == []
    assert "is no cause" in dead.error("dead", "list", "--cause", "luck")


def test_show_has_the_payload_the_events_and_the_remedy(dead: Shop) -> None:
    out = dead.out("dead", "show", "a")
    assert '["item a"]' in out
    assert "ActionSettled" in out
    assert "workflow.patched" in out
    data = dead.json("dead", "show", "a")
    assert data["input"] == ["item a"]
    assert data["dead"]["reason"] in data["events"][-2]["text"] + data["events"][-1]["text"]
    assert data["place"].startswith("after version 2, ActionSettled")
    assert "there is no execution" in dead.error("dead", "show", "nobody", code=1)


def test_redrive_by_name_after_mending(dead: Shop) -> None:
    dead.file.write_text(FITTING)
    assert "redrive accepted  a" in dead.out("dead", "redrive", "a", "--reason", "rolled back")
    assert "redrive was asked for before  a" in dead.out("dead", "redrive", "a")
    work(dead, "a", "b")  # b goes on as well: a worker with other code tries by itself
    assert types(dead, "a").count("Redriven") == types(dead, "b").count("Redriven") == 1
    assert [one["status"] for one in dead.json("list")["executions"]] == ["completed", "completed"]
    result = dead.run("dead", "redrive", "a", "nobody", code=1)
    assert "not stuck  a" in result.stdout
    assert "not found  nobody" in result.stdout
    assert dead.json("dead", "redrive", "nobody", code=1)["missing"] == ["nobody"]
    assert "nothing is stuck" in dead.run("dead", "list").stderr


def test_two_operators_and_a_deploy_at_once_redrive_each_once(dead: Shop) -> None:
    dead.file.write_text(FITTING)
    with (
        dead.process("worker", "shop.py", "--json") as worker,
        dead.process("dead", "redrive", "--all", "--json") as ada,
        dead.process("dead", "redrive", "--all", "--json") as bob,
    ):
        assert (ada.end(), bob.end()) == (0, 0)
        worker.line('"ready"')
        follow(dead, "a", "b")
        worker.stop()
    for id in ("a", "b"):
        assert types(dead, id).count("Redriven") == 1
        assert types(dead, id)[-1] == "Completed"


def test_purge_ends_them_and_keeps_their_logs(dead: Shop) -> None:
    assert "--dry-run tells which ones, --yes does it" in dead.error("dead", "purge", "--all")
    assert "nothing is chosen" in dead.error("dead", "purge", "--yes")
    assert dead.json("dead", "purge", "--workflow", "order", "--dry-run")["done"] == ["b", "a"]
    assert types(dead, "a")[-1] != "Cancelled"
    result = dead.run("dead", "purge", "--all", "--yes", "--reason", "sold by hand")
    assert "2 purge accepted" in result.stdout
    assert "no worker has taken up b yet" in result.stderr
    work(dead, "a", "b")
    assert types(dead, "a")[:2] == ["Started", "ActionSettled"]
    assert types(dead, "a")[-1] == "Cancelled"
    assert {one["result"]["message"] for one in dead.json("list")["executions"]} == {"purged: sold by hand"}


def test_what_kills_its_workers_is_a_dead_letter_and_goes_on_once_mended(shop: Shop) -> None:
    shop.file.write_text(DEADLY)
    short = {"PERDURE_LEASE": "300ms", "PERDURE_GRACE": "100ms", "PERDURE_PROBE": "100ms", "PERDURE_LAPSES": "1"}
    shop.out("start", "shop.py", "falling", '"piano"', "--id", "poison")
    for number in (1, 2):
        shop.out("send", "poison", "note", str(number), "--id", f"note-{number}")
        with Process("worker", "shop.py", "--store", shop.store, cwd=shop.folder, **short) as worker:
            assert worker.end() == -9
    with Process("worker", "shop.py", "--store", shop.store, cwd=shop.folder, **short) as worker:
        worker.line("poison is stuck")
        worker.stop()
    data = shop.json("dead", "show", "poison")
    assert (data["dead"]["cause"], data["dead"]["lapses"], data["input"]) == ("lapses", 2, ["piano"])
    assert "look into the logs of the workers" in data["mend"]
    for number in (2, 3):  # one that was accepted before, and one that is new
        shop.out("send", "poison", "note", str(number), "--id", f"note-{number}")
    shop.file.write_text(HARMLESS)
    shop.json("dead", "redrive", "--cause", "lapses")
    work(shop, "poison")
    assert types(shop, "poison")[-1] == "Completed"
    assert types(shop, "poison").count("EventReceived") == 3, "every event that was accepted is there once"
    assert shop.json("show", "poison")["result"] == [1, 2, 3]
