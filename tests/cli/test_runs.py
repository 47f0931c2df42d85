from __future__ import annotations

import pytest

from tests.cli.conftest import Shop
from tests.cli.processes import Process

TEA = '{"item": "tea"}'


def test_an_execution_is_started_once_by_its_id(shop: Shop) -> None:
    assert shop.out("start", "shop.py", "fulfil", TEA, "--id", "order-1") == "started order-1\n"
    head = shop.json("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    assert head["id"] == "order-1"
    assert head["status"] == "waiting"
    assert len(shop.json("list")["executions"]) == 1


def test_another_input_under_the_same_id_is_refused(shop: Shop) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    error = shop.error("start", "shop.py", "fulfil", '{"item": "gin"}', "--id", "order-1", code=1)
    assert "order-1 exists already" in error


def test_executions_are_listed_by_what_they_are_about(shop: Shop) -> None:
    labels = ("--correlation", "tea 7", "--tag", "vip", "--tag", "eu")
    head = shop.json("start", "shop.py", "fulfil", TEA, "--id", "order-1", *labels)
    assert (head["correlation"], head["tags"]) == ("tea 7", ["eu", "vip"])
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-2", "--tag", "eu")
    assert [one["id"] for one in shop.json("list", "--tag", "eu")["executions"]] == ["order-2", "order-1"]
    found = shop.json("list", "--correlation", "tea 7", "--tag", "eu", "--tag", "vip")["executions"]
    assert [one["id"] for one in found] == ["order-1"]
    shown = shop.out("show", "order-1")
    assert "tea 7" in shown and "eu, vip" in shown
    dry = shop.json("bulk", "cancel", "--tag", "vip", "--dry-run", "--detach")
    assert dry["act"] == "cancel"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fulfil", TEA, "--correlation", ""], "correlation id"),
        (["nope", "1"], "no workflow nope"),
        (["fulfil", "{item: tea}"], "an argument is not JSON"),
        (["fulfil", '{"count": 1}'], "missing required field `item`"),
        (["fulfil", "--input", "{}"], "--input is the list"),
        (["fulfil", TEA, "--version", "7"], "no workflow fulfil@7"),
        (["fulfil", TEA, "--id", "a/b"], "'a/b' cannot"),
    ],
)
def test_wrong_starts_are_usage_errors(shop: Shop, args: list[str], message: str) -> None:
    assert message in shop.error("start", "shop.py", *args)


def test_arguments_may_be_plain_words_or_one_list(shop: Shop, worker: Process) -> None:
    assert shop.out("start", "shop.py", "echo", "hello", "--wait") == '"hello"\n'
    assert shop.out("start", "shop.py", "echo", "--input", '["42"]', "--wait") == '"42"\n'


def test_waiting_for_a_failed_run_gives_1(shop: Shop, worker: Process) -> None:
    assert "failed: ValueError: boom" in shop.error("start", "shop.py", "fails", "boom", "--wait", code=1)
    head = shop.json("start", "shop.py", "fails", "boom", "--wait", code=1)
    assert head["status"] == "failed"
    assert head["result"]["type"] == "ValueError"


def test_an_event_reaches_a_worker_in_another_process_at_once(shop: Shop, worker: Process) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    assert shop.out("send", "order-1", "packed", '{"tracking": "X1"}').startswith("accepted packed")
    assert shop.out("tail", "order-1", "--follow").splitlines()[-1].split()[-2:] == ['"shipped', 'X1"']


def test_an_event_is_sent_once_by_its_id(shop: Shop) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    answers = [shop.json("send", "order-1", "packed", '{"tracking": "X1"}', "--id", "e1") for _ in range(2)]
    assert answers == [{"id": "order-1", "event": "e1", "name": "packed", "accepted": True}] * 2
    assert shop.json("show", "order-1")["mail"] == 1
    assert "sent before" in shop.error("send", "order-1", "packed", '{"tracking": "X2"}', "--id", "e1", code=1)


def test_a_payload_is_checked_where_the_code_is_named(shop: Shop) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    error = shop.error("send", "order-1", "packed", "{}", "--app", "shop.py")
    assert "`tracking`" in error
    assert "has the types" in error
    assert "has the types" not in shop.error("list", "--cursor", "another"), "of what no code declares"


def test_nothing_can_be_sent_to_nobody(shop: Shop) -> None:
    shop.run("migrate")
    error = shop.error("send", "nobody", "packed", code=1)
    assert "error: there is no execution" in error
    assert f"hint: looked in {shop.store}, tenant default" in error


def test_list_filters_and_pages(shop: Shop, worker: Process) -> None:
    for number in range(3):
        shop.run("start", "shop.py", "echo", f"text {number}", "--id", f"echo-{number}", "--wait")
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    shop.json("pause", "order-1")
    assert "order-1" in shop.out("list", "--status", "paused")
    assert [one["id"] for one in shop.json("list", "--field", "item=tea")["executions"]] == ["order-1"]
    assert shop.json("list", "--workflow", "echo", "--since", "1h")["executions"][0]["result"] == "text 2"
    assert shop.json("list", "--since", "2100-01-01T00:00Z")["executions"] == []
    first = shop.json("list", "--workflow", "echo", "--limit", "2")
    second = shop.json("list", "--workflow", "echo", "--limit", "2", "--cursor", first["next"])
    assert [one["id"] for one in first["executions"] + second["executions"]] == ["echo-2", "echo-1", "echo-0"]
    assert second["next"] is None
    recent = shop.json("list", "--since", "1h", "--limit", "3")
    rest = shop.json("list", "--since", "1h", "--limit", "3", "--cursor", recent["next"])
    assert [one["id"] for one in rest["executions"]] == ["echo-0"]


def test_list_says_when_there_is_nothing(shop: Shop) -> None:
    assert "there is no store at" in shop.error("list", code=1)
    shop.run("migrate")
    assert "no execution found" in shop.run("list").stderr
    assert "name=value" in shop.error("list", "--field", "x")
    assert "one plain value" in shop.error("list", "--field", "x=[1]")
    assert "no execution found" in shop.run("list", "--field", "status=odd").stderr


def test_tenants_are_apart(shop: Shop) -> None:
    shop.run("start", "shop.py", "echo", "hi", "--id", "e", "--tenant", "one")
    assert shop.json("list", "--tenant", "one")["executions"][0]["tenant"] == "one"
    assert shop.json("list")["executions"] == []


def test_pause_and_resume(shop: Shop, worker: Process) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    assert shop.out("pause", "order-1", "--reason", "lunch") == "pause accepted: order-1 is paused\n"
    assert "(lunch)" in shop.out("why", "order-1")
    answer = shop.json("resume", "order-1")
    assert answer == {"id": "order-1", "accepted": "resume", "taken": True, "status": "waiting"}
    assert "not paused" in shop.run("resume", "order-1").stderr


def test_a_pause_with_an_end(shop: Shop, worker: Process) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    shop.run("pause", "order-1", "--until", "+2h")
    assert "paused until 2" in shop.out("why", "order-1")
    assert "is not a time" in shop.error("resume", "order-1", "--at", "tomorrow")
    assert shop.json("resume", "order-1", "--at", "+1h")["status"] == "paused"


def test_what_nobody_takes_up_is_noted(shop: Shop) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    result = shop.run("cancel", "order-1")
    assert result.stdout.startswith("cancel accepted: ")
    assert "no worker has taken it up yet; it needs one that serves queue 'default' and has fulfil@1" in result.stderr


def test_cancel_runs_the_undos(shop: Shop, worker: Process) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    shop.run("cancel", "order-1", "--reason", "changed my mind", "--timeout", "10s")
    log = shop.lines("tail", "order-1", "--follow", code=1)
    assert [entry["data"].get("name") for entry in log if entry["type"] == "ActionSettled"] == ["charge", "refund"]
    assert log[-1]["data"]["reason"] == "changed my mind"
    assert "has ended" in shop.error("cancel", "order-1", "--now", code=1)


def test_retry_of_a_failed_run_is_a_new_one(shop: Shop, worker: Process) -> None:
    shop.run("start", "shop.py", "fails", "boom", "--id", "f", "--wait", code=1)
    answer = shop.json("retry", "f")
    assert answer["from"] == "f"
    assert answer["id"].startswith("f~")
    shop.run("start", "shop.py", "echo", "hi", "--id", "e", "--wait")
    assert "only failed, cancelled and stuck" in shop.error("retry", "e", code=1)


def test_fork_with_another_payload(shop: Shop, worker: Process) -> None:
    shop.run("start", "shop.py", "fulfil", TEA, "--id", "order-1")
    shop.run("send", "order-1", "packed", '{"tracking": "X1"}')
    log = shop.lines("tail", "order-1", "--follow")
    version = next(str(entry["version"]) for entry in log if entry["type"] == "EventReceived")
    edit = f'{version}={{"tracking": "X2"}}'
    shop.run("fork", "order-1", "--at", version, "--edit", edit, "--id", "order-1b")
    assert shop.lines("tail", "order-1b", "--follow")[-1]["data"]["result"] == "shipped X2"
    assert "--edit takes VERSION=JSON" in shop.error("fork", "order-1", "--edit", "x=1")
    assert "only results" in shop.error("fork", "order-1", "--at", "8", "--edit", "3=1")
