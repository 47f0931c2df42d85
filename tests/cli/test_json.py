"""Every command answers in JSON when it is asked to, and every shell completes what is typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from perdure.cli import runs
from perdure.cli.main import app
from tests.cli.conftest import SHOP, Shop
from tests.cli.test_tasks import ASKING

MACHINE = "machine: parcel\ninitial: packed\nstates:\n  packed:\n    on: {send: sent}\n  sent: {final: true}\n"
OTHER = MACHINE.replace("{send: sent}", "{send: sent, lose: sent}")
#: Commands in an order in which each has something to tell; what is in braces comes from the answer before.
SCRIPT = """
workflows shop.py
actions shop.py
config
migrate
start shop.py echo hi --id e
send o packed {"tracking":"X1"} --id e1
list
show o
show o --rows
log o
tail o
state o --at 1
why o
lock printer
pause o
resume o
retry f
fork o --at 1 --id o2
cancel o2
replay shop.py --check
export o
export o -o log.json
import log.json --id o3
validate parcel.yaml
publish parcel.yaml
publish other.yaml
definition parcel
definition parcel --history
definitions list
definitions export all.json
definitions import all.json
deprecate parcel@1
simulate parcel.yaml
schedules create nightly echo hi --every 1h --app shop.py
schedules update nightly --every 2h
schedules list
schedules show nightly
schedules next nightly
schedules pause nightly
schedules resume nightly
schedules trigger nightly
schedules delete nightly
bulk pause --all --detach
bulk resume --all --detach
bulk cancel --workflow echo --detach
bulk retry --all --detach
bulk send packed null --workflow echo --detach
bulk migrate 2 --workflow parcel --detach
bulk show {id}
bulk list
dead list
dead show s
dead redrive s
dead purge --all --yes
tasks list
tasks show a.1
keys create ci --role sender
keys show {id}
keys rotate {id}
keys revoke {id}
keys list
hooks create github --secret secret://github --start echo
hooks rotate github --secret secret://other
hooks show github
hooks revoke github
hooks list
tenants suspend acme
tenants resume acme
tenants limit acme --running 5
tenants quota acme
tenants list
audit list
audit export
keyring create
keyring show
keyring rotate
keyring shred acme --yes
"""
#: These run until they are stopped, or need somebody who works meanwhile: in the tests of each they answer in JSON.
ELSEWHERE = {
    "worker",
    "dev",
    "serve",
    "upgrade",
    *(f"tasks {verb}" for verb in ("claim", "release", "assign", "complete")),
}


def commands(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name


ALL = sorted(commands(typer.main.get_command(app)))


def command_of(line: str) -> str:
    words = line.split()
    return " ".join(words[:2]) if " ".join(words[:2]) in ALL else words[0]


def test_every_command_answers_in_json(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "PATIENCE", 0.0)
    lines = SCRIPT.strip().splitlines()
    assert sorted({*map(command_of, lines), *ELSEWHERE}) == ALL
    # Given a shop in which everything has happened once
    (shop.folder / "parcel.yaml").write_text(MACHINE)
    (shop.folder / "other.yaml").write_text(OTHER)
    shop.file.write_text(SHOP + ASKING + "\n@workflow\nasync def hangs() -> None:\n    await asyncio.Event().wait()\n")
    shop.work("fulfil", [{"item": "tea"}], "o", until="Published")
    shop.work("fails", ["boom"], "f", until="Failed")
    shop.work("hangs", [], "s", until="Stuck")
    shop.work("ask", ["tea"], "a", until="ChildStarted")
    # When each is asked for JSON, then its answer is JSON and nothing else.
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith("keyring"):
            monkeypatch.setenv("PERDURE_KEYRING", "ring")
        words = [word.format(**found) if word == "{id}" else word for word in line.split()]
        out = shop.run(*words, "--json").stdout
        told = [json.loads(one) for one in out.splitlines()]
        assert told, line
        if isinstance(told[0], dict) and "id" in told[0]:
            found = told[0]


WORDS = [("re", {"replay", "resume", "retry"}), ("schedules p", {"pause"}), ("list --status st", {"stuck"})]


@pytest.mark.parametrize(("typed", "offered"), WORDS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_their_options(shell: str, typed: str, offered: set[str]) -> None:
    line = f"perdure {typed}"
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    asked |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    answer = CliRunner().invoke(app, [], prog_name="perdure", env=asked | {"_PERDURE_COMPLETE": f"complete_{shell}"})
    assert answer.exit_code == 0
    lines = answer.stdout.replace("_arguments '*: :((", "").splitlines()
    assert {re.split(r"\W", line.lstrip('"'))[0] for line in lines} == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_is_shown(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests may be run by something that is no shell.
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    shown = CliRunner().invoke(app, ["--show-completion"], prog_name="perdure")
    assert shown.exit_code == 0 and "_PERDURE_COMPLETE" in shown.stdout
