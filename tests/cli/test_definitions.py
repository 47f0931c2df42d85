"""Definitions on the command line: check, publish, look, start, deprecate, upgrade, copy out and in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shop
from tests.flows.script import known, script

ROOT = Path(__file__).parents[2]
#: Makes the kind of these tests known to a process of its own.
KIND = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.flows.script import register
register()
"""
ORDER = script("order", {"act": "ship", "with": ["X1"]}, {"wait": "packed"})
TWO = script("order", {"act": "ship", "with": ["X1"]}, {"wait": "packed"}, {"act": "ship", "with": ["X2"]})


@pytest.fixture(autouse=True)
def _kind() -> Iterator[None]:
    with known():
        yield


def put(shop: Shop, name: str, body: dict[str, Any]) -> str:
    (shop.folder / name).write_text(json.dumps(body))
    return name


@pytest.fixture
def published(shop: Shop) -> Shop:
    shop.run("publish", put(shop, "order.json", ORDER), "--code", "shop.py")
    return shop


def test_publish_tells_the_version(shop: Shop) -> None:
    (shop.folder / "order.yaml").write_text("script: order\nsteps:\n- {act: ship, with: [X1]}\n")
    out = shop.out("publish", "order.yaml", put(shop, "parcel.json", script("parcel")), "--code", "shop.py")
    assert out.splitlines()[0].startswith("order is version 1")
    assert out.splitlines()[1].startswith("parcel is version 1")
    [again, _] = shop.json("publish", "order.yaml", "parcel.json", "--code", "shop.py")
    assert (again["name"], again["version"], again["kind"]) == ("order", 1, "script")
    assert "body" not in again


def test_publish_says_when_a_newer_version_is_what_starts_take(published: Shop) -> None:
    published.run("publish", put(published, "two.json", TWO), "--code", "shop.py")
    result = published.run("publish", "order.json", "--code", "shop.py")
    assert "order is version 1" in result.stdout
    assert "version 2 of order is newer" in result.stderr
    assert "order is version 3" in published.out("publish", "order.json", "--new", "--code", "shop.py")


def test_problems_are_a_table_and_nothing_is_published(shop: Shop) -> None:
    good, bad = put(shop, "good.json", script("good")), put(shop, "bad.json", script("bad", {"act": "nothing"}, {}))
    result = shop.run("publish", good, bad, "--code", "shop.py", code=1)
    assert result.stdout.split("\n")[0].split() == ["file", "where", "what", "how", "to", "mend", "it"]
    assert "bad.json" in result.stdout and "steps[1]" in result.stdout and "say act, wait" in result.stdout
    assert shop.json("definitions", "list") == []
    answer = shop.json("publish", bad, "--code", "shop.py", code=1)
    assert answer["ok"] is False
    assert answer["problems"][0]["where"] == "steps[1]"


def test_validate_tells_all_that_is_wrong_and_needs_no_store(shop: Shop) -> None:
    assert "can be published" in shop.out("validate", put(shop, "order.json", ORDER), "--code", "shop.py")
    assert "no action of this name" in shop.out("validate", "order.json", code=1)
    (shop.folder / "broken.yaml").write_text("a: 1\nb: *x\n")
    assert "broken.yaml:2:4: aliases are not allowed" in shop.out("validate", "broken.yaml", code=1)
    assert shop.json("validate", "order.json", "--code", "shop.py") == {"ok": True, "problems": []}
    assert not (shop.folder / "shop.db").exists()


def test_a_missing_secret_forbids_publishing_and_is_a_warning_where_there_is_no_store(shop: Shop) -> None:
    good = put(shop, "good.json", script("good"))
    bad = put(shop, "bad.json", script("bad", {"act": "charge", "with": ["secret://nobody"]}))
    told = shop.run("validate", bad, "--code", "shop.py").stdout
    assert "has no secret 'nobody'" in told and "can be published" in told
    refused = shop.out("publish", good, bad, "--code", "shop.py", code=1)
    assert "steps[0].with[0]" in refused and "has no secret 'nobody'" in refused
    assert shop.json("definitions", "list") == []


def test_a_file_that_is_not_there_is_an_error(shop: Shop) -> None:
    assert "cannot be read" in shop.error("publish", "nothing.json")


def test_a_definition_is_read_from_stdin(shop: Shop) -> None:
    result = shop.run("validate", "-", input="script: a\nsteps: []\n")
    assert "stdin can be published" in result.stdout


def test_definitions_are_listed(published: Shop) -> None:
    published.run("publish", put(published, "draft.json", script("order")), "--draft")
    lines = published.out("definitions", "list").splitlines()
    assert lines[0].split() == ["name", "kind", "newest", "versions", "deprecated", "published", "by"]
    assert lines[1].split()[:6] == ["order", "script", "1", "+", "draft", "1"]
    [listed] = published.json("definitions", "list")
    assert (listed["name"], listed["newest"], listed["draft"]) == ("order", 1, True)


def test_a_definition_is_shown_as_it_was_written(published: Shop) -> None:
    assert json.loads(published.out("definition", "order")) == ORDER
    assert published.json("definition", "order", "--version", "1")["body"] == ORDER
    assert "there is no definition order@7" in published.error("definition", "order", "--version", "7")


def test_a_definition_is_drawn(shop: Shop) -> None:
    lamp = {"machine": "cli-lamp", "initial": "dark", "states": {"dark": {"on": {"press": "lit"}}, "lit": {}}}
    shop.run("publish", put(shop, "lamp.json", lamp))
    shop.run("publish", put(shop, "dim.json", {**lamp, "initial": "lit", "states": {"lit": {}}}), "--draft")
    assert "[*] --> b_dark" in shop.out("definition", "cli-lamp", "--diagram", "mermaid")
    assert "[*] --> b_lit" in shop.out("definition", "cli-lamp", "--draft", "--diagram", "mermaid")
    assert shop.out("definition", "cli-lamp", "--version", "1", "--diagram", "svg").startswith("<svg")


def test_the_history_tells_who_did_what(published: Shop) -> None:
    published.run("deprecate", "order@1", "--reason", "too slow")
    lines = published.out("definition", "order", "--history").splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["published", "deprecated"]
    assert "too slow" in lines[2]
    assert [one["what"] for one in published.json("definition", "order", "--history")] == ["published", "deprecated"]


def test_a_deprecated_version_is_not_started_by_name(published: Shop) -> None:
    assert "is deprecated" in published.out("deprecate", "order@1")
    assert "every version" in published.error("start", "order")
    assert "started" in published.out("start", "order", "--version", "1")
    assert published.json("deprecate", "order@1", "--undo")["deprecated"] is None
    assert "started" in published.out("start", "order")
    assert "name one version" in published.error("deprecate", "order")


def test_start_takes_a_published_name_and_its_input(published: Shop) -> None:
    head = published.json("start", "order", '{"item": "tea"}', "--id", "o1")
    assert (head["definition"], head["workflow"]) == ("published:order@1", "order")
    entry = published.json("show", "o1")["log"][0]
    assert entry["data"]["input"] == [{"item": "tea"}]


def test_start_still_takes_code(shop: Shop) -> None:
    assert "started" in shop.out("start", "shop.py", "echo", "hello")
    assert "started" in shop.out("start", "shop", "echo", "hello")
    assert "which workflow of shop.py" in shop.error("start", "shop.py")


def test_what_is_neither_code_nor_published_is_refused(published: Shop) -> None:
    assert "no workflow nothing" in published.error("start", "nothing")


def test_definitions_are_copied_out_and_in(published: Shop, tmp_path: Path) -> None:
    assert "1 version(s) written" in published.out("definitions", "export", "all.json")
    text = (published.folder / "all.json").read_text()
    assert published.out("definitions", "export", "-") == text
    other = f"sqlite:///{tmp_path / 'other.db'}"
    published.store = other
    assert "order is version 1" in published.out("definitions", "import", "all.json")
    assert "everything was there already" in published.run("definitions", "import", "all.json").stderr
    assert published.out("definitions", "export", "-") == text
    changed = json.loads(text)
    changed["definitions"][0]["hash"] = "0"
    put(published, "bad.json", changed)
    assert "its hash is not that of its body" in published.out("definitions", "import", "bad.json", code=1)


def worker(shop: Shop, name: str, code: str) -> Any:
    (shop.folder / name).write_text(KIND + code)
    return shop.process("worker", name, "--json")


EMPTY = """
from perdure import workflow

@workflow
async def nothing() -> None: ...
"""


def test_of_two_workers_the_one_with_the_code_runs_the_action(published: Shop) -> None:
    # Given a worker that has the kind, and not the code of the action
    with worker(published, "without.py", EMPTY) as without:
        without.line('"ready"')
        published.run("start", "order", "--id", "o1")
        wait_for(published, "o1", "ActionScheduled")
        # When another comes that has it
        with worker(published, "having.py", (published.folder / "shop.py").read_text()) as having:
            having.line('"ready"')
            wait_for(published, "o1", "ActionSettled")
            # Then the first goes on, and a running execution can change its version
            published.run("publish", put(published, "two.json", TWO), "--code", "shop.py")
            assert published.json("upgrade", "o1", "--to", "2")["definition"] == "published:order@2"
            assert "goes on with version 2" in published.out("upgrade", "o1", "--to", "2")
            published.run("send", "o1", "packed", "1")
            wait_for(published, "o1", "Completed")
    assert "published:order@2, queue default" in published.out("show", "o1")
    log = published.json("show", "o1")["log"]
    assert log[-1]["data"]["result"] == ["shipped X1", 1, "shipped X2"]


def wait_for(shop: Shop, id: str, kind: str) -> None:
    deadline = time.monotonic() + 20
    while kind not in [entry["type"] for entry in shop.json("show", id)["log"]]:
        assert time.monotonic() < deadline, shop.out("show", id)
        time.sleep(0.1)


def test_an_upgrade_that_does_not_fit_says_why(published: Shop) -> None:
    published.run("publish", put(published, "two.json", script("order")), "--code", "shop.py")
    with worker(published, "having.py", (published.folder / "shop.py").read_text()) as having:
        having.line('"ready"')
        published.run("start", "order", "--version", "1", "--id", "o1")
        wait_for(published, "o1", "ActionSettled")
        assert "it waits at packed, not at the end" in published.error("upgrade", "o1", "--to", "2", code=1)


def test_an_upgrade_without_a_worker_is_waited_for(published: Shop) -> None:
    published.run("publish", put(published, "wait.json", script("wait", {"wait": "a"})))
    published.run("publish", put(published, "wait.json", script("wait", {"wait": "a"}, {"wait": "b"})))
    published.run("start", "wait", "--version", "1", "--id", "w1")
    error = published.error("upgrade", "w1", "--to", "2", "--timeout", "200ms")
    assert "no worker has done it within 200ms" in error
