"""The audit on the command line: commands that administer are noted, and can be listed and exported."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

from tests.cli.conftest import Shop


def test_what_administers_is_noted_with_who_and_why(shop: Shop) -> None:
    shop.run("keys", "create", "ci", "--role", "sender", "--reason", "for the builds")
    shop.work("fulfil", [{"item": "tea"}], "order-1", "Published")
    shop.run("pause", "order-1", "--reason", "the bank is down")
    shop.run("show", "order-1")
    shop.run("dead", "purge", "--all", "--dry-run")
    acts = shop.json("audit", "list")["acts"]
    assert [(one["act"], one["target"], one["reason"], one["credential"]) for one in acts] == [
        ("executions.pause", "order-1", "the bank is down", "cli"),
        ("keys.create", "ci", "for the builds", "cli"),
    ]
    assert all(one["actor"] and one["node"] for one in acts)


def test_every_command_that_administers_takes_a_reason() -> None:
    from perdure.cli.command import app

    groups = [app, *(one.typer_instance for one in app.registered_groups if one.typer_instance)]
    commands = [one.callback for group in groups for one in group.registered_commands]
    noted = [one for one in commands if one is not None and inspect.getclosurevars(one).nonlocals.get("act")]
    assert len(noted) > 15
    assert [one.__name__ for one in noted if not {"reason", "note"} & inspect.signature(one).parameters.keys()] == []


def test_taking_a_deprecation_back_is_an_act_of_its_own(shop: Shop) -> None:
    Path("door.yaml").write_text("machine: door\ninitial: shut\nstates: {shut: {final: true}}\n")
    shop.run("publish", "door.yaml")
    shop.run("deprecate", "door@1", "--reason", "too small")
    shop.run("deprecate", "door@1", "--undo")
    acts = shop.json("audit", "list")["acts"]
    assert [(one["act"], one["target"]) for one in acts] == [
        ("definitions.restore", "door@1"),
        ("definitions.deprecate", "door@1"),
        ("definitions.publish", "door.yaml"),
    ]


def test_the_list_is_for_people_and_the_export_for_machines(shop: Shop) -> None:
    shop.run("keys", "create", "ci", "--role", "sender")
    shop.run("keys", "create", "cd", "--role", "sender", "--tenant", "mill")
    assert "keys.create" in shop.out("audit", "list")
    lines = [json.loads(line) for line in shop.out("audit", "export", "--jsonl").splitlines()]
    assert [one["target"] for one in lines] == ["ci"]
    assert shop.json("audit", "list", "--target", "cd", "--tenant", "mill", "--since", "1h")["acts"]
    assert "nothing was done" in shop.run("audit", "list", "--act", "executions.fork").stderr
    assert "nothing was done" in shop.run("audit", "list", "--until", "1h").stderr


def test_the_list_goes_on_by_a_cursor_that_knows_since_when(shop: Shop) -> None:
    for name in "abc":
        shop.run("keys", "create", name, "--role", "sender")
    first = shop.json("audit", "list", "--since", "1h", "--limit", "2")
    rest = shop.json("audit", "list", "--since", "1h", "--limit", "2", "--cursor", first["next"])
    assert [one["target"] for one in first["acts"] + rest["acts"]] == ["c", "b", "a"] and rest["next"] is None


def test_notes_are_not_among_the_executions(shop: Shop) -> None:
    shop.run("keys", "create", "ci", "--role", "sender")
    assert shop.json("list")["executions"] == []
