from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from perdure.cli.store import _table
from perdure.runtime.settings import MEANING, explain, look
from tests.cli.conftest import Shop


def test_migrate_makes_the_store_and_reports_its_schema(shop: Shop) -> None:
    assert "created: schema " in shop.out("migrate")
    assert "is up to date: schema " in shop.out("migrate")
    data = shop.json("migrate")
    assert data["store"] == shop.store
    assert data["before"] == data["schema"] >= 1


def test_a_store_that_cannot_be_opened(shop: Shop) -> None:
    shop.store = f"sqlite:///{shop.folder / 'no' / 'such' / 'folder.db'}"
    error = shop.error("migrate", code=1)
    assert "hint: the store is sqlite:///" in error
    shop.store = "memory://"
    assert "lives and dies with its process" in shop.error("list")


def test_a_password_is_not_shown(shop: Shop) -> None:
    shop.store = "sqlite://ada:hunter2@host/orders.db"
    assert "hunter2" not in shop.out("config")
    assert {one["name"]: one["value"] for one in shop.json("config")}["store"] == "sqlite://ada:***@host/orders.db"
    error = shop.error("list")
    assert "***" in error
    assert "hunter2" not in error


def test_config_lists_every_setting(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_LEASE", "30s")
    data = {one["name"]: one for one in shop.json("config")}
    assert list(data) == list(MEANING)
    assert data["lease"] == {
        "name": "lease",
        "variable": "PERDURE_LEASE",
        "older": [],
        "type": "duration",
        "value": 30.0,
        "default": 10.0,
        "source": "environment",
        "place": "PERDURE_LEASE",
        "meaning": MEANING["lease"],
    }
    assert (data["store"]["value"], data["store"]["source"]) == (shop.store, "given")
    given = {one["name"]: one for one in shop.json("config", "--stream", "redis://cache")}["stream"]
    assert (given["value"], given["source"]) == ("redis://cache", "given")
    assert (data["grace"]["source"], data["grace"]["place"]) == ("default", "")
    lines = shop.out("config").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("PERDURE_")] == [
        one["variable"] for one in data.values()
    ]
    line = next(line for line in lines if line.startswith("PERDURE_LEASE"))
    assert line.split()[:3] == ["PERDURE_LEASE", "30.0", "environment"]


@pytest.mark.parametrize("width", [80, 200])
def test_config_fits_a_terminal_and_cuts_nothing(width: int) -> None:
    found = look({"PERDURE_STORE": "postgresql://ada@db.example/shop", "WORKFLOW_REDIS_IDLE_TIMEOUT_MS": "30000"})
    console = Console(file=io.StringIO(), width=width)
    console.print(_table(explain(found), width))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in re.sub("://…", "", shown)
    words = shown.split()
    for row in explain(found):
        assert {row.variable, *row.place.split(), *row.meaning.split()} <= set(words)


def test_config_tells_the_file_and_the_older_name_that_a_value_comes_from(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.folder / "perdure.toml").write_text('# ours\nlease = "7s"\n')
    monkeypatch.setenv("WORKER_CONCURRENCY", "12")
    lines = {line.split()[0]: line.split() for line in shop.out("config").splitlines()}
    assert lines["PERDURE_LEASE"][1:4] == ["7.0", "file", "perdure.toml:2"]
    assert lines["PERDURE_CONCURRENCY"][1:4] == ["12", "environment", "WORKER_CONCURRENCY"]
    data = {one["name"]: one for one in shop.json("config")}
    assert data["lease"]["place"] == "perdure.toml:2"
    assert data["concurrency"]["older"] == [data["concurrency"]["place"]] == ["WORKER_CONCURRENCY"]


def test_a_file_can_be_named_on_the_command_line(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_CONFIG", "nowhere.toml")
    (shop.folder / "other.toml").write_text("lease = 3\n")
    data = {one["name"]: one for one in shop.json("config", "--config", "other.toml")}
    assert (data["lease"]["value"], data["lease"]["place"]) == (3.0, "other.toml:1")
    assert "nowhere.toml cannot be read" in shop.run("config", code=2).stderr


def test_the_file_counts_for_an_application_that_a_module_makes(shop: Shop) -> None:
    shop.file.write_text(f"from perdure import Perdure\napp = Perdure()\n{shop.file.read_text()}")
    (shop.folder / "other.toml").write_text(f'tenant = "acme"\nstore = "{shop.store}"\n')
    shop.out("start", "shop.py", "echo", '"hi"', "--id", "one", "--config", "other.toml")
    assert [one["tenant"] for one in shop.json("list", "--tenant", "acme")["executions"]] == ["acme"]


def test_config_names_what_is_no_setting(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_LEESE", "30s")
    result = shop.run("config", code=2)
    assert "PERDURE_LEESE is not a setting of Perdure: did you mean PERDURE_LEASE?" in result.stderr
    assert "PERDURE_LEASE" in result.stdout
    assert "PERDURE_LEESE is not a setting" in shop.error("list")


def test_a_wrong_value_is_a_usage_error(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_LEASE", "long")
    assert "PERDURE_LEASE cannot be 'long'" in shop.error("list")
    assert "PERDURE_LEASE cannot be 'long'" in shop.run("config", code=2).stderr


def test_migrate_on_postgresql_reports_the_schema_and_grants_a_role(shop: Shop, postgres: str) -> None:
    shop.store = postgres
    assert "created: schema " in shop.out("migrate")
    assert "is up to date: schema " in shop.out("migrate")
    assert "nobody_knows" in shop.error("migrate", "--grant", "nobody_knows", code=1)


def test_only_a_store_with_roles_grants(shop: Shop) -> None:
    assert "this one has none" in shop.error("migrate", "--grant", "worker")
