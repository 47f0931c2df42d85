"""`perdure tasks` on a shop that asks its people."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shop
from tests.cli.processes import Process

ASKING = """
from dataclasses import dataclass

from perdure import person, role, workflow


@dataclass
class Answer:
    yes: bool


@workflow
async def ask(item: str) -> bool:
    people = ["ann", role("heads")]
    said = await person("approve", form=Answer, title=f"Buy {item}?", assign=people, data=item, due="9h")
    return said.yes
"""


@pytest.fixture
def asking(shop: Shop) -> Shop:
    """A shop in which two things are asked, and no worker."""
    shop.file.write_text(ASKING)
    for id in ("a", "b"):
        shop.work("ask", [f"tea {id}"], id, until="ChildStarted")
    return shop


@pytest.fixture
def worker(asking: Shop, worker: Process) -> Process:
    return worker


@pytest.mark.usefixtures("worker")
def test_a_task_is_listed_claimed_and_completed(asking: Shop) -> None:
    assert asking.json("tasks", "claim", "a.1", "--by", "ann")["claimed_by"] == "ann"
    listed = asking.out("tasks", "list")
    assert "a.1" in listed and "claimed" in listed and "Buy tea b?" in listed and "ann, role heads" in listed
    assert [one["id"] for one in asking.json("tasks", "list", "--status", "open")["tasks"]] == ["b.1"]
    mine = asking.json("tasks", "list", "--mine", "--by", "bob", "--role", "heads")["tasks"]
    assert [one["id"] for one in mine] == ["b.1"]
    shown = asking.out("tasks", "show", "a.1")
    assert '"tea a"' in shown and "claimed by" in shown and "Answer" in shown
    assert "ann has claimed it" in asking.error("tasks", "complete", "a.1", '{"yes": true}', "--by", "bob", code=1)
    assert "yes" in asking.error("tasks", "complete", "a.1", "{}", "--by", "ann")
    done = asking.json("tasks", "complete", "a.1", '{"yes": true}', "--by", "ann")
    assert (done["status"], done["value"]) == ("completed", {"yes": True})


@pytest.mark.usefixtures("worker")
def test_a_task_is_given_back_and_passed_on(asking: Shop) -> None:
    asking.out("tasks", "claim", "a.1", "--by", "bob", "--role", "heads")
    assert asking.json("tasks", "release", "a.1", "--by", "bob")["status"] == "open"
    passed = asking.json("tasks", "assign", "a.1", "cid", "--role", "clerks")
    assert (passed["users"], passed["roles"]) == (["cid"], ["clerks"])
    assert "it is for cid" in asking.error("tasks", "claim", "a.1", "--by", "ann", code=1)


def test_without_a_worker_a_command_says_that_it_will_be_judged(asking: Shop) -> None:
    told = asking.error("tasks", "claim", "a.1", "--by", "ann", "--wait", "100ms", code=1)
    assert "is durable and will be judged" in told and "start a worker" in told


def test_what_is_asked_wrongly_is_refused(asking: Shop) -> None:
    assert "there is no task" in asking.error("tasks", "show", "nothing", code=1)
    assert "there is no task" in asking.error("tasks", "claim", "a", code=1)
    assert "--mine" in asking.error("tasks", "list", "--mine", "--status", "open")
    assert "one role" in asking.error("tasks", "list", "--role", "x", "--role", "y")
    assert "not JSON" in asking.error("tasks", "complete", "a.1", "{")


def test_a_shop_that_asks_nothing_has_no_tasks(shop: Shop) -> None:
    shop.work("echo", ["tea"], "e", until="Completed")
    assert "there are no such tasks" in shop.run("tasks", "list").stderr
