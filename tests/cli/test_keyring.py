"""The key ring on the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Perdure
from tests.cli.conftest import Shop


@pytest.fixture
def ring(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = shop.folder / "ring"
    monkeypatch.setenv("PERDURE_KEYRING", str(place))
    return place


def test_a_ring_is_made_used_rotated_and_shown(shop: Shop, ring: Path) -> None:
    made = shop.run("keyring", "create")
    assert "is a key ring with the master key" in made.stdout and "back it up" in made.stderr
    shop.work("echo", ["canary-of-the-cli"], "e1", "Completed")
    assert b"canary-of-the-cli" not in b"".join(one.read_bytes() for one in shop.folder.glob("shop.db*"))
    assert "canary-of-the-cli" in shop.out("show", "e1")
    shown = shop.json("keyring", "show")
    assert (shown["tenants"], shown["shredded"], len(shown["masters"])) == (["default"], [], 1)
    assert "1 tenants have new keys" in shop.out("keyring", "rotate")
    assert len(shop.json("keyring", "show")["masters"]) == 2
    assert "canary-of-the-cli" in shop.out("show", "e1")
    assert "current master key" in shop.out("keyring", "show")


def test_shredding_is_said_twice_and_noted(shop: Shop, ring: Path) -> None:
    shop.run("keyring", "create")
    shop.work("echo", ["a"], "e1", "Completed")
    assert "say so with --yes" in shop.error("keyring", "shred", "default")
    assert "a" in shop.out("show", "e1")
    done = shop.run("keyring", "shred", "default", "--yes", "--reason", "the contract has ended")
    assert "are destroyed" in done.stdout and "backups" in done.stderr
    assert "were destroyed" in shop.error("show", "e1", code=1)
    assert shop.json("keyring", "shred", "default", "--yes")["had_keys"] is False
    acts = shop.json("audit", "list", "--act", "keyring.shred")["acts"]
    assert [(one["target"], one["reason"]) for one in acts][-1] == ("default", "the contract has ended")
    assert shop.json("list")["executions"][0]["id"] == "e1"


def test_without_a_ring_it_is_said_which_setting_names_it(
    shop: Shop, ring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "perdure keyring create" in shop.error("keyring", "show", code=1)
    assert "perdure keyring create" in shop.error("list", code=1)
    monkeypatch.delenv("PERDURE_KEYRING")
    assert "PERDURE_KEYRING" in shop.error("keyring", "create")


def test_a_client_of_the_shop_reads_what_a_worker_has_sealed(shop: Shop, ring: Path) -> None:
    shop.run("keyring", "create")
    shop.work("echo", ["a"], "e1", "Completed")

    async def main() -> None:
        async with Perdure(shop.store) as app:
            assert await app.get("e1").result(5) == "a"

    asyncio.run(main())
