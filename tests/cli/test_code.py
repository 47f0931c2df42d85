from __future__ import annotations

import itertools
import resource
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from perdure.cli.main import app
from tests.cli.conftest import SHOP, Shop


def test_workflows_with_their_schemas(shop: Shop) -> None:
    lines = shop.out("workflows", "shop.py").splitlines()
    assert lines[0].split() == ["workflow", "takes", "gives", "queue", "events", "about"]
    assert lines[1].split()[:6] == ["fulfil@1", "order:", "Order", "string", "default", "packed"]
    data = {one["name"]: one for one in shop.json("workflows", "shop.py")}
    assert data["echo"]["parameters"]["properties"]["text"] == {"type": "string"}
    assert "packed" in data["fulfil"]["events"]
    assert data["fulfil"]["description"] == "An order from payment to parcel."


def test_actions_with_their_schemas(shop: Shop) -> None:
    line = next(line for line in shop.out("actions", "shop.py").splitlines() if line.startswith("charge"))
    assert line.split() == [
        "charge",
        "order:",
        "Order",
        "string",
        "3",
        "timeout",
        "30s",
        "refund",
        "Take",
        "the",
        "money.",
    ]
    data = {one["name"]: one for one in shop.json("actions", "shop.py")}
    assert set(data) == {"charge", "refund", "ship"}
    assert data["ship"]["result"] == {"type": "string"}


@pytest.mark.parametrize("spec", ["shop.py", "./shop.py", "shop", "shop.py:app", "shop:app"])
def test_a_module_is_named_in_many_ways(shop: Shop, spec: str) -> None:
    shop.file.write_text(f"from perdure import Perdure\napp = Perdure('memory://')\n{SHOP}")
    assert "fulfil@1" in shop.out("workflows", spec)


def test_the_application_of_the_module_names_the_store(shop: Shop) -> None:
    shop.file.write_text(f"from perdure import Perdure\nshop = Perdure('sqlite:///own.db', tenant='tea')\n{SHOP}")
    runner = CliRunner()
    assert runner.invoke(app, ["start", "shop.py", "echo", "hi", "--id", "e"]).exit_code == 0
    assert (shop.folder / "own.db").exists()
    shown = runner.invoke(app, ["list", "--app", "shop.py"]).stdout
    assert "echo@1" in shown
    assert runner.invoke(app, ["list", "--store", "sqlite:///own.db", "--tenant", "tea"]).stdout == shown
    shop.run("start", "shop.py", "echo", "hi", "--id", "e")  # --store goes above it
    assert (shop.folder / "shop.db").exists()


def test_a_file_in_a_package_may_import_its_neighbours(shop: Shop) -> None:
    package = shop.folder / "office"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "names.py").write_text("NAME = 'post'\n")
    (package / "flows.py").write_text(
        "from perdure import workflow\nfrom .names import NAME\n@workflow(name=NAME)\nasync def one() -> None: ...\n"
    )
    assert "post@1" in shop.out("workflows", "office/flows.py")
    assert "post@1" in shop.out("workflows", "office.flows")


def test_a_file_may_be_named_like_a_module_of_python(shop: Shop) -> None:
    (shop.folder / "queue.py").write_text(SHOP)
    assert "fulfil@1" in shop.out("workflows", "queue.py")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def broken(:\n", "shop.py:1: invalid syntax: def broken(:"),
        ("import no_such_thing\n", "shop.py:1: there is no module no_such_thing; is it installed?"),
        ("\n1 / 0\n", "shop.py:2: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "shop.py:1: SystemExit: 3"),
        ("x = 1\n", "shop.py registers nothing"),
        (SHOP + "\nfrom perdure import Perdure\nPerdure().run(echo, 'x')\n", "put it below `if __name__"),
        (SHOP + "\nfrom perdure import Perdure\na, b = Perdure(), Perdure()\n", "several Perdure objects"),
        (
            "import time\nfrom perdure import workflow\n@workflow\nasync def w() -> None:\n    time.sleep(1)\n",
            "time.sleep",
        ),
    ],
)
def test_code_that_cannot_be_loaded_is_a_usage_error(shop: Shop, code: str, message: str) -> None:
    shop.file.write_text(code)
    assert message in shop.error("start", "shop.py", "echo", "x")


def test_a_worker_does_not_start_with_a_name_that_nothing_defines(shop: Shop) -> None:
    shop.file.write_text(SHOP + "\n@workflow\nasync def sells(n: int) -> None:\n    await chrage(n)\n")
    assert "uses chrage, which nothing defines" in shop.error("worker", "shop.py")


def test_a_module_that_is_not_there(shop: Shop) -> None:
    assert "there is no file nope.py" in shop.error("workflows", "nope.py")
    assert "there is no module nope" in shop.error("workflows", "nope")
    assert "neither a file nor a module" in shop.error("workflows", "a-b")
    assert "no Perdure object 'nope'" in shop.error("start", "shop.py:nope", "echo", "x")
    assert "is a workflow: name it behind the module, as in shop.py echo" in shop.error("start", "shop.py:echo", '"x"')


def test_what_the_code_prints_does_not_disturb_json(shop: Shop) -> None:
    shop.file.write_text(SHOP + "\nprint('hello from the module')\n")
    assert shop.json("start", "shop.py", "echo", "x")["workflow"] == "echo"


def test_help_is_wrapped_where_the_terminal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = [line.strip() for line in CliRunner().invoke(app, ["worker", "--help"]).stdout.splitlines()]
    first = next(number for number, line in enumerate(shown) if line.startswith("It then finishes"))
    text = shown[first : shown.index("", first)]
    for line, following in itertools.pairwise(text):
        assert len(f" {line} {following.split()[0]} ") > 80, "the next word had room here"


def test_the_help_is_there_for_all_and_fast() -> None:
    runner = CliRunner()
    for command in ["", *(one.name or "" for one in app.registered_commands)]:
        result = runner.invoke(app, [*command.split(), "--help"])
        assert result.exit_code == 0
        assert "Example: perdure" in result.stdout or "PERDURE_" in result.stdout or not command
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, "-m", "perdure.cli.main", "--help"], check=True, capture_output=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2.0  # about 0.3 s, or 0.7 s to compile it


def test_usage_errors_end_with_2() -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["nope"]).exit_code == 2
    assert runner.invoke(app, ["list", "--status", "odd"]).exit_code == 2
    assert runner.invoke(app, ["--version"]).stdout.startswith("perdure ")
