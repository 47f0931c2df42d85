from __future__ import annotations

import pytest

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
    shop.store = "sqlite://ada:secret@host/orders.db"
    assert "secret" not in shop.out("config")
    assert {one["name"]: one["value"] for one in shop.json("config")}["store"] == "sqlite://ada:***@host/orders.db"


def test_config_lists_every_setting(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_LEASE", "30s")
    data = {one["name"]: one for one in shop.json("config")}
    assert data["lease"]["value"] == 30.0
    assert data["lease"]["source"] == "environment"
    assert data["store"] == {
        "name": "store",
        "variable": "PERDURE_STORE",
        "value": shop.store,
        "source": "given",
        "meaning": data["store"]["meaning"],
    }
    assert data["grace"]["source"] == "default"
    line = next(line for line in shop.out("config").splitlines() if line.startswith("PERDURE_LEASE"))
    assert line.split()[:3] == ["PERDURE_LEASE", "30.0", "environment"]


def test_config_names_what_is_no_setting(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_LEESE", "30s")
    result = shop.run("config", code=2)
    assert "PERDURE_LEESE is set, but it is not a setting" in result.stderr
    assert "PERDURE_LEASE" in result.stdout
    assert "PERDURE_LEESE is not a setting" in shop.error("list")


def test_a_wrong_value_is_a_usage_error(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_LEASE", "long")
    assert "PERDURE_LEASE cannot be 'long'" in shop.error("config")


def test_migrate_on_postgresql_reports_the_schema_and_grants_a_role(shop: Shop, postgres: str) -> None:
    shop.store = postgres
    assert "created: schema " in shop.out("migrate")
    assert "is up to date: schema " in shop.out("migrate")
    assert "nobody_knows" in shop.error("migrate", "--grant", "nobody_knows", code=1)


def test_only_a_store_with_roles_grants(shop: Shop) -> None:
    assert "this one has none" in shop.error("migrate", "--grant", "worker")
