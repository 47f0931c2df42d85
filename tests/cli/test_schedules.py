"""Schedules on the command line."""

from __future__ import annotations

import asyncio

from perdure import Perdure
from perdure.cli import loading
from tests.cli.conftest import Shop, forget

CREATE = ("schedules", "create", "daily", "echo", '"hi"', "--app", "shop.py")


def worked(shop: Shop, **wanted: object) -> None:
    """Work in this process until the schedule shows this."""
    forget(shop.folder)
    loading.load("shop.py")

    async def main() -> None:
        async with asyncio.timeout(20), Perdure(shop.store) as client, client.working():
            while True:
                [told] = await client.schedules.list(ended=True)
                if all(getattr(told, name) == value for name, value in wanted.items()):
                    return
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_schedule_is_made_listed_and_shown(shop: Shop) -> None:
    said = shop.out(*CREATE, "--cron", "0 9 * * *", "--timezone", "Europe/Berlin", "--note", "for Ann")
    assert said.startswith("daily starts ") and "09:00:00" in said
    listed = shop.out("schedules", "list")
    assert "daily" in listed and "0 9 * * * Europe/Berlin" in listed
    shown = shop.out("schedules", "show", "daily")
    assert 'echo ["hi"]' in shown and "for Ann" in shown
    assert shop.json("schedules", "show", "daily")["cron"] == "0 9 * * *"


def test_the_next_times_are_told(shop: Shop) -> None:
    shop.run(*CREATE, "--at", "2099-01-01T09:00", "--at", "2099-07-01T09:00", "--timezone", "Europe/Berlin")
    assert shop.json("schedules", "next", "daily") == ["2099-01-01T09:00:00+01:00", "2099-07-01T09:00:00+02:00"]
    assert shop.out("schedules", "next", "daily", "--count", "1") == "Thu 2099-01-01 09:00:00 +0100\n"


def test_a_schedule_is_changed_paused_resumed_triggered_and_ended(shop: Shop) -> None:
    shop.run(*CREATE, "--every", "1h", "--paused")
    assert "paused" in shop.out("schedules", "list")
    shop.run(
        "schedules",
        "update",
        "daily",
        "--every",
        "2h",
        "--args",
        '["you"]',
        "--end",
        "2099-01-01T00:00Z",
        "--app",
        "shop.py",
    )
    assert "1 wish(es)" in shop.out("schedules", "show", "daily")
    shop.run("schedules", "resume", "daily")
    triggered = shop.json("schedules", "trigger", "daily", "--overlap", "all")["execution"]
    worked(shop, started=1, paused=False)
    shown = shop.json("schedules", "show", "daily")
    assert (shown["every"], shown["args"], shown["recent"][0]["id"]) == ("2h", ["you"], triggered)
    assert triggered in shop.out("schedules", "show", "daily")
    assert shop.out("schedules", "pause", "daily") == "pause accepted: daily\n"
    shop.run("schedules", "delete", "daily")
    worked(shop, ended=True)
    assert shop.json("schedules", "list") == []
    assert "ended" in shop.out("schedules", "list", "--ended")


def test_what_is_asked_wrongly_is_told(shop: Shop) -> None:
    assert "is not a cron line" in shop.error(*CREATE, "--cron", "daily")
    assert "one of cron, every and at" in shop.error(*CREATE)
    assert "is not a time" in shop.error(*CREATE, "--at", "noon")
    shop.run("start", "shop.py", "echo", '"x"')
    assert "there is no schedule 'nobody'" in shop.error("schedules", "show", "nobody", code=1)
    assert "no schedules" in shop.run("schedules", "list").stderr
