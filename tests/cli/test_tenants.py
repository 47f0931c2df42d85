"""Tenants on the command line."""

from __future__ import annotations

from tests.cli.conftest import Shop


def test_a_tenant_is_suspended_listed_and_resumed(shop: Shop) -> None:
    assert "mill is suspended" in shop.out("tenants", "suspend", "mill", "--reason", "the invoice of May")
    [one] = shop.json("tenants", "list")
    assert (one["tenant"], one["reason"]) == ("mill", "the invoice of May")
    assert "mill" in shop.out("tenants", "list")
    assert shop.json("tenants", "resume", "mill") == {"tenant": "mill", "suspended": False}
    assert shop.json("tenants", "list") == []
    assert "no tenant is suspended or has a quota" in shop.run("tenants", "list").stderr


def test_a_tenant_gets_a_quota_that_is_shown_and_taken_back(shop: Shop) -> None:
    assert "mill may have 100 executions running" in shop.out("tenants", "limit", "mill", "--running", "100")
    [one] = shop.json("tenants", "list")
    assert (one["tenant"], one["suspended"], one["running"]) == ("mill", False, 100)
    assert "≤ 100" in shop.out("tenants", "list")
    assert "mill has 0 executions running of 100" in shop.out("tenants", "quota", "mill")
    assert shop.json("tenants", "quota", "mill") == {"tenant": "mill", "suspended": False, "running": 0, "most": 100}
    assert shop.json("tenants", "limit", "mill", "--none") == {"tenant": "mill", "running": None}
    assert shop.json("tenants", "list") == []
    for wrong in ([], ["--running", "5", "--none"]):
        assert "--running" in shop.error("tenants", "limit", "mill", *wrong)


def test_what_is_no_tenant_is_refused(shop: Shop) -> None:
    assert "a/b" in shop.error("tenants", "suspend", "a/b")
