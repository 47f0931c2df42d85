"""Webhooks on the command line."""

from __future__ import annotations

import asyncio

from perdure import Callback, Perdure, workflow
from tests.cli.conftest import Shop


@workflow(name="hooks-quick")
async def quick() -> str:
    return "done"


BUILD = (
    *("hooks", "create", "github", "--kind", "github", "--secret", "secret://github"),
    *("--start", "build", "--id", ".id"),
)


def test_create_prints_the_path_alone(shop: Shop) -> None:
    result = shop.run(*BUILD, "--input", ".repository")
    assert result.stdout == "/v1/hooks/default/github\n"
    assert "signed with secret://github" in result.stderr
    [hook] = shop.json("hooks", "list")
    assert (hook["kind"], hook["active"], hook["secret"]) == ("github", True, "secret://github")
    assert hook["does"] == {"do": "start", "workflow": "build", "input": ".repository", "id": ".id"}


def test_a_webhook_that_sends_names_the_execution(shop: Shop) -> None:
    does = ("--send", "paid", "--to", ".order", "--payload", ".sum")
    shop.out("hooks", "create", "bank", "--secret", "secret://bank", *does)
    shown = shop.out("hooks", "show", "bank")
    for fact in ("send paid", ".order", ".sum", "/v1/hooks/default/bank", "standard", "active", "created"):
        assert fact in shown


def test_a_webhook_that_routes_shows_the_event_that_it_makes(shop: Shop) -> None:
    event = ("--route", '${ "order." + .status }', "--source", "/shop", "--data", ".order")
    shop.out("hooks", "create", "till", "--secret", "secret://till", *event)
    shown = shop.out("hooks", "show", "till")
    for fact in ('route ${ "order." + .status }', "/shop", ".order"):
        assert fact in shown
    [hook] = shop.json("hooks", "list")
    assert hook["does"] == {"do": "route", "type": event[1], "source": "/shop", "data": ".order"}


def test_a_webhook_does_one_thing(shop: Shop) -> None:
    both = ("--start", "a", "--route", "b")
    for more in ((), ("--start", "a", "--send", "b", "--to", "."), ("--send", "b"), both):
        assert "does one thing" in shop.error("hooks", "create", "x", "--secret", "secret://x", *more)
    assert "no kind of signature" in shop.error(
        "hooks", "create", "x", "--secret", "secret://x", "--start", "a", "--kind", "md5"
    )
    assert "given by reference" in shop.error("hooks", "create", "x", "--secret", "hush", "--start", "a")


def test_rotate_and_revoke_are_in_the_history(shop: Shop) -> None:
    shop.out(*BUILD)
    result = shop.run("hooks", "rotate", "github", "--secret", "secret://github-2", "--overlap", "1h")
    assert "is signed with secret://github-2" in result.stdout and "secret://github is good until" in result.stderr
    assert shop.json("hooks", "rotate", "github", "--secret", "secret://github-2")["former"] == "secret://github"
    assert "github is revoked" in shop.out("hooks", "revoke", "github")
    assert shop.json("hooks", "revoke", "github")["active"] is False
    history = shop.json("hooks", "show", "github")["history"]
    assert [one["what"] for one in history] == ["created", "rotated", "revoked"]
    listed = shop.out("hooks", "list")
    assert "start build" in listed and "revoked" in listed


def test_a_webhook_that_is_not_there_is_said_to_be_missing(shop: Shop) -> None:
    shop.out(*BUILD)
    assert "has no webhook 'gitlab'" in shop.error("hooks", "show", "gitlab")


def test_the_execution_that_tells_of_an_end_can_be_looked_at(shop: Shop) -> None:
    """Its id has a slash, which no id has that people choose."""

    async def main() -> None:
        async with Perdure(shop.store, outbound_private=True) as app, app.working():
            wish = Callback("http://127.0.0.1:1/nobody", "secret://shop")
            await (await app.start(quick, id="o-1", callback=wish)).result()

    asyncio.run(main())
    assert "action:perdure.callback" in shop.out("show", "o-1/callback")
