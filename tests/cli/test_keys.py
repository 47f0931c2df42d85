"""API keys on the command line: the secret is printed once, and only there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from perdure import Perdure
from perdure.http.keys import Keys
from tests.cli.conftest import Shop

SECRET = re.compile(r"pdk_([a-z2-7]{12})_[A-Za-z0-9]{43}")


def made(shop: Shop, *more: str) -> tuple[str, str]:
    """The secret of a new key, and its id."""
    secret = shop.out("keys", "create", "ci", "--role", "sender", *more).strip()
    found = SECRET.fullmatch(secret)
    assert found is not None
    return secret, found[1]


def user_of(shop: Shop, secret: str) -> str:
    async def main() -> str:
        async with Perdure(shop.store) as app:
            keys = Keys(app)
            found = await keys.caller(secret)
            await keys.close()
            return f"{found.user} of {found.tenant}"

    return asyncio.run(main())


def test_create_prints_the_key_alone_and_says_that_it_is_the_only_time(shop: Shop) -> None:
    result = shop.run("keys", "create", "ci", "--role", "sender", "--role", "manager", "--expires", "90d")
    assert SECRET.fullmatch(result.stdout.strip())
    assert "ci of default with sender, manager, until" in result.stderr
    assert "it is not shown again" in result.stderr
    assert "manager: no role of the API" in result.stderr
    assert user_of(shop, result.stdout.strip()) == "ci of default"


def test_a_key_can_be_an_observers(shop: Shop) -> None:
    result = shop.run("keys", "create", "wall", "--role", "observer")
    assert "wall of default with observer." in result.stderr
    assert "no role of the API" not in result.stderr


def test_create_answers_in_json(shop: Shop) -> None:
    answer = shop.json("keys", "create", "ci", "--role", "sender", "--tenant", "mill")
    assert SECRET.fullmatch(answer["secret"])
    assert (answer["tenant"], answer["name"], answer["roles"], answer["status"]) == ("mill", "ci", ["sender"], "active")
    assert user_of(shop, answer["secret"]) == "ci of mill"


def test_a_key_without_a_role_of_the_api_is_not_made(shop: Shop) -> None:
    assert "could do nothing" in shop.error("keys", "create", "ci", "--role", "sendr")
    assert "is not a duration" in shop.error("keys", "create", "ci", "--role", "sender", "--expires", "soon")
    assert shop.json("keys", "list") == []


def test_keys_are_listed_without_their_secrets(shop: Shop) -> None:
    secret, id = made(shop)
    user_of(shop, secret)
    lines = shop.out("keys", "list").splitlines()
    assert lines[0].split() == ["id", "name", "roles", "status", "created", "by", "expires", "used"]
    assert lines[1].split()[:4] == [id, "ci", "sender", "active"]
    [listed] = shop.json("keys", "list")
    assert listed["id"] == id and listed["used_at"] is not None
    assert "secret" not in listed and "hash" not in listed
    assert shop.json("keys", "list", "--tenant", "mill") == []
    assert "there are no API keys" in shop.run("keys", "list", "--tenant", "mill").stderr


def test_rotate_prints_a_new_secret_and_the_old_one_is_good_for_a_while(shop: Shop) -> None:
    secret, id = made(shop)
    result = shop.run("keys", "rotate", id, "--overlap", "1h")
    again = result.stdout.strip()
    assert SECRET.fullmatch(again) and again != secret
    assert "the secret before is good until" in result.stderr
    assert user_of(shop, secret) == user_of(shop, again) == "ci of default"


def test_a_revoked_key_stays_in_the_list(shop: Shop) -> None:
    _, id = made(shop)
    result = shop.run("keys", "revoke", id)
    assert f"{id} ci is revoked" in result.stdout
    assert "for another 10 s" in result.stderr
    assert shop.json("keys", "revoke", id)["status"] == "revoked"
    assert [one["status"] for one in shop.json("keys", "list")] == ["revoked"]
    assert "has been revoked: create another" in shop.error("keys", "rotate", id)


def test_show_tells_who_did_what(shop: Shop) -> None:
    _, id = made(shop)
    shop.run("keys", "rotate", id)
    shop.run("keys", "revoke", id)
    out = shop.out("keys", "show", id)
    assert [word for word in ("created", "rotated", "revoked") if out.count(word) >= 2] == [
        "created",
        "rotated",
        "revoked",
    ]
    answer = shop.json("keys", "show", id)
    assert [one["what"] for one in answer["history"]] == ["created", "rotated", "revoked"]
    assert answer["key"]["id"] == id


def test_a_key_that_is_not_there_is_an_error(shop: Shop) -> None:
    _, id = made(shop)
    for verb in ("show", "rotate", "revoke"):
        assert "has no API key" in shop.error("keys", verb, "aaaaaaaaaaaa")
        assert "tenant 'mill' has no API key" in shop.error("keys", verb, id, "--tenant", "mill")


def test_the_secret_is_nowhere_in_the_files_of_the_store(shop: Shop) -> None:
    secrets = [made(shop)[0] for _ in range(2)]
    secrets.append(shop.out("keys", "rotate", made(shop)[1]).strip())
    for file in Path(shop.folder).glob("shop.db*"):
        data = file.read_bytes()
        assert not any(secret.rpartition("_")[2].encode() in data for secret in secrets)
