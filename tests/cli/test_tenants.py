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
    assert "no tenant is suspended" in shop.run("tenants", "list").stderr


def test_what_is_no_tenant_is_refused(shop: Shop) -> None:
    assert "a/b" in shop.error("tenants", "suspend", "a/b")
