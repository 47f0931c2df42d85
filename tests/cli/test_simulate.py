"""Dry runs and pictures of definitions on the command line."""

from __future__ import annotations

import time
from xml.etree import ElementTree as ET

import pytest

from tests.cli.conftest import Shop

EXPENSE = """\
machine: expense
initial: draft
states:
  draft:
    on:
      submit: {to: review, when: "${ .data.cents > 0 }"}
  review:
    entry: [{action: ship, with: {tracking: "${ .data.who }"}, set: {told: "${ .result }"}}]
    after: {PT24H: escalate}
    on:
      approve: {to: approved, roles: [manager]}
      escalate: director
  director:
    on:
      approve: {to: approved, roles: [director]}
  approved: {final: true}
"""
SCRIPT = """\
input: {who: Ada, cents: 5}
results:
  ship: {returns: T1, takes: 2s}
events:
  - {name: submit}
  - {name: approve, by: dora, roles: [director], after: 30h}
"""


@pytest.fixture
def dry(shop: Shop) -> Shop:
    (shop.folder / "expense.yaml").write_text(EXPENSE)
    (shop.folder / "script.yaml").write_text(SCRIPT)
    return shop


def test_a_definition_is_run_dry(dry: Shop) -> None:
    out = dry.out("simulate", "expense.yaml", "--script", "script.yaml", "--code", "shop.py")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any("StateChanged draft → review by submit" in line for line in lines)
    assert any("StateChanged review → director by escalate" in line for line in lines)
    assert "status completed" in lines
    assert 'result {"cents":5,"who":"Ada","told":"T1"}' in lines
    assert not (dry.folder / "shop.db").exists(), "a dry run keeps nothing"


def test_a_dry_run_as_json(dry: Shop) -> None:
    done = dry.json("simulate", "expense.yaml", "--script", "script.yaml", "--code", "shop.py")
    assert (done["status"], done["state"], done["needs"]) == ("completed", {"state": "approved"}, [])
    assert done["log"][0]["type"] == "Started"


def test_a_dry_run_that_needs_a_result_says_which(dry: Shop) -> None:
    (dry.folder / "script.yaml").write_text("input: {who: Ada, cents: 5}\nevents: [{name: submit}]\n")
    out = dry.run("simulate", "expense.yaml", "--script", "script.yaml", "--code", "shop.py", code=1).stdout
    assert 'needs a result of ship("Ada")' in " ".join(out.split())


def test_code_is_run_dry_too(dry: Shop) -> None:
    (dry.folder / "script.yaml").write_text(
        'input: [{item: tea}]\nresults: {charge: r1, ship: T1}\nevents: [{name: packed, payload: {tracking: "7"}}]\n'
    )
    done = dry.json("simulate", "fulfil", "--script", "script.yaml", "--code", "shop.py")
    assert (done["status"], done["result"]) == ("completed", "T1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inputs: 5\n", "script.yaml is not a script"),
        ("events: [{nam: x}]\n", "the events of the script"),
        ("results: {ship: [5]}\ninput: {who: Ada, cents: 5}\nevents: [{name: submit}]\n", "the result given for ship"),
    ],
    ids=["field", "event", "result"],
)
def test_a_script_with_a_mistake_is_refused(text: str, message: str, dry: Shop) -> None:
    (dry.folder / "script.yaml").write_text(text)
    assert message in dry.error("simulate", "expense.yaml", "--script", "script.yaml", "--code", "shop.py")


def test_a_dry_run_as_a_picture(dry: Shop) -> None:
    words = ("simulate", "expense.yaml", "--script", "script.yaml", "--code", "shop.py", "--diagram")
    assert "class b_approved current" in dry.out(*words, "mermaid")
    assert ET.fromstring(dry.out(*words, "svg")).tag.endswith("svg")
    assert "machines, graphs and documents" in dry.error("simulate", "fulfil", "--code", "shop.py", "--diagram", "svg")


def test_where_an_execution_is_is_marked_in_its_picture(dry: Shop) -> None:
    dry.run("publish", "expense.yaml", "--code", "shop.py")
    dry.run("start", "expense", '{"who":"Ada","cents":5}', "--id", "e1")
    with dry.process("worker", "shop.py") as worker:
        worker.line("ready: ")
        dry.run("send", "e1", "submit")
        while "review" not in dry.out("state", "e1"):
            time.sleep(0.05)
        assert "only manager may send it" not in dry.out("show", "e1")
        assert "does not take approve: only" in dry.error("send", "e1", "approve", "--now", code=1)
    assert "unknown place" not in dry.out("why", "e1")
    assert "class b_review current" in dry.out("show", "e1", "--diagram", "mermaid")
    assert "<svg" in dry.out("show", "e1", "--diagram", "svg")


def test_an_event_is_sent_in_a_role(dry: Shop) -> None:
    dry.run("publish", "expense.yaml", "--code", "shop.py")
    dry.run("start", "expense", '{"who":"Ada","cents":5}', "--id", "e1")
    dry.run("send", "e1", "submit")
    dry.run("send", "e1", "approve", "--role", "clerk", "--role", "manager")
    with dry.process("worker", "shop.py") as worker:
        worker.line("ready: ")
        while "approved" not in dry.out("state", "e1"):
            time.sleep(0.05)


def test_an_execution_of_code_has_no_picture(dry: Shop) -> None:
    dry.run("start", "shop.py", "fulfil", '{"item": "tea"}', "--id", "order-1")
    assert "which is code" in dry.error("show", "order-1", "--diagram", "svg")
