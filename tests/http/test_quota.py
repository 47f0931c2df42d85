"""What a caller learns of its quota over HTTP, and that it cannot change it."""

from __future__ import annotations

import asyncio

from perdure.http.api import ALL
from tests.http.test_api import Door, problem, served


def test_a_caller_sees_what_its_tenant_may_have_and_has() -> None:
    async def main(door: Door) -> None:
        empty = {"suspended": False, "running": {"now": 0, "most": None}}
        assert (await door("GET", "/v1/quota")).json() == empty
        await door.app.tenants.limit("acme", running=2)
        for number in range(3):
            assert (await door.start(id=f"h{number}")).status_code == 202
        while (told := (await door("GET", "/v1/quota")).json())["running"]["now"] < 2:
            await asyncio.sleep(0.01)
        assert told == {"suspended": False, "running": {"now": 2, "most": 2}}
        await door.app.tenants.suspend("acme")
        assert (await door("GET", "/v1/quota")).json()["suspended"] is True
        door.who = "mill:ann:viewer"
        assert (await door("GET", "/v1/quota")).json() == empty

    served(main)


def test_a_quota_is_read_with_a_scope_and_without_parameters() -> None:
    async def main(door: Door) -> None:
        problem(await door("GET", "/v1/quota?tenant=mill"), 400, "unknown-parameter")
        door.who = "acme:bot:worker"
        problem(await door("GET", "/v1/quota"), 403, "not-allowed")
        door.who = "nobody"
        problem(await door("GET", "/v1/quota"), 401, "unauthenticated")

    served(main, working=False)


def test_no_route_changes_a_quota() -> None:
    assert [one.method for one in ALL if "quota" in one.path or "tenants" in one.path] == ["GET"]
