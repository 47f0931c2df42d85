"""The audit: every act that administers is noted before it is done, and only admins of the tenant can read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from perdure import Act, Perdure
from perdure.core.records import Start, Started
from perdure.errors import OutcomeUnknown
from perdure.http.api import ALL, api
from perdure.http.audit import NOTED, act_of
from perdure.runtime.managing.audit import LONGEST
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import MemoryStream
from tests.http.test_api import MACHINE, Door, People, problem, served
from tests.runtime.test_noting import Full


async def acts(door: Door, query: str = "") -> list[dict[str, Any]]:
    answer = await door("GET", f"/v1/audit{query}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["acts"]
    return found


def test_a_cancel_is_noted_with_all_that_matters() -> None:
    async def main(door: Door) -> None:
        await door.start()
        await door("POST", "/v1/executions/h1/cancel", {"reason": "out of stock"}, x_request_id="r-17")
        [one] = await acts(door)
        assert one.pop("id") and one.pop("at") and one.pop("node") == door.app.me
        assert one == {
            "actor": "ann",
            "act": "executions.cancel",
            "target": "h1",
            "reason": "out of stock",
            "credential": "test",
            "request": "r-17",
            "roles": ["admin", "owner"],
        }

    served(main)


def test_starting_sending_and_looking_are_not_noted() -> None:
    async def main(door: Door) -> None:
        await door.start()
        await door("POST", "/v1/executions/h1/events", {"name": "go", "payload": 7})
        await door("GET", "/v1/executions/h1")
        await door("POST", "/v1/definitions/validate", {"definition": MACHINE})
        await door("POST", "/v1/dead/purge", {"all": True, "dry_run": True})
        assert await acts(door) == []

    served(main)


def test_every_other_route_that_administers_is_noted() -> None:
    """Whatever becomes of the act: it is noted that it was asked for."""
    noted = [one for one in ALL if one.method != "GET" and one.scope in NOTED and not one.harmless]
    bodies = {
        "publish": {"definition": MACHINE},
        "fork": {},
        "redrive": {"ids": ["a", "b"]},
        "purge": {"cause": "limit"},
    }

    async def main(door: Door) -> None:
        taken = set()
        asked = 0
        for route in noted:
            path = route.path.replace("{id}", "h1").replace("{name}", "http-door")
            more = {"version": 1} if route.name in ("deprecate", "restore") else {}
            answer = await door(route.method, path, bodies.get(route.name, more))
            if answer.status_code != 422:  # what is no proper request is no act
                taken.add(act_of(route))
                asked += 1
        seen = await acts(door, "?limit=1000")
        assert len(seen) == asked  # the verbs behind the routes note nothing again
        assert {one["credential"] for one in seen} == {"test"}
        found = {one["act"]: one["target"] for one in seen}
        assert taken <= found.keys() and len(taken) > 10
        assert "keys.revoke" in found
        assert found["executions.pause"] == "h1"
        assert found["definitions.publish"] == found["definitions.deprecate"] == "http-door"
        assert found["system.redrive"] == "a, b"
        assert found["system.purge"] == "cause=limit"

    served(main)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"counted", "counted"),
        ("Lager räumen".encode(), "Lager räumen"),
        (b"Lager r%C3%A4umen, 50%", "Lager räumen, 50%"),
        (b"Lager r\xe4umen", "Lager räumen"),
        (b"a%0Ab", "a\ufffdb"),
    ],
)
def test_a_reason_may_come_in_a_header_in_any_language(header: bytes, reason: str) -> None:
    async def main(door: Door) -> None:
        await door.start()
        said = [(b"authorization", f"Bearer {door.who}".encode()), (b"x-reason", header)]
        answer = await door.client.post("/v1/executions/h1/fork", json={}, headers=said)
        assert answer.status_code == 202, answer.text
        assert [one["reason"] for one in await acts(door)] == [reason]

    served(main)


def test_a_reason_in_the_header_goes_before_a_note_for_other_readers() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/definitions", {"definition": MACHINE, "note": "wider"}, x_reason="asked for by sales")
        await door("POST", "/v1/executions/h1/cancel", {"reason": "in the body"}, x_reason="in the header")
        assert [one["reason"] for one in await acts(door)] == ["in the body", "asked for by sales"]

    served(main)


def test_who_may_not_is_not_noted() -> None:
    async def main(door: Door) -> None:
        door.who = "acme:eve:viewer"
        problem(await door("POST", "/v1/executions/h1/cancel", {}), 403, "not-allowed")
        door.who = "acme:ann:admin"
        assert await acts(door) == []

    served(main)


def test_an_act_that_cannot_be_noted_is_not_done() -> None:
    async def main() -> None:
        app = Perdure(Full(), stream=MemoryStream())
        transport = httpx.ASGITransport(app=api(app, People()))
        async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            door = Door(app, client)
            await door.start()
            problem(await door("POST", "/v1/executions/h1/cancel", {}), 503, "store-full")
            assert (await app.get("h1", "acme").head()).mail == 0

    asyncio.run(main())


def test_a_note_whose_outcome_is_unknown_is_written_once() -> None:
    class Doubtful(MemoryStore):
        tries = 0

        async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
            answer = await super().start(starts, grace)
            self.tries += 1
            if self.tries == 1:
                raise OutcomeUnknown("the connection broke")
            return answer

    async def main() -> None:
        async with Perdure(Doubtful(), stream=MemoryStream()) as app:
            await app.audit.note(Act("ann", "executions.cancel"))
            assert len((await app.audit.find()).acts) == 1

    asyncio.run(main())


def test_the_audit_is_its_tenants_and_for_admins() -> None:
    async def main(door: Door) -> None:
        await door("POST", "/v1/executions/h1/pause", {})
        door.who = "acme:oli:operator"
        problem(await door("GET", "/v1/audit"), 403, "not-allowed")
        door.who = "rival:rob:admin"
        assert await acts(door) == []
        door.who = "acme:ann:admin"
        [one] = await acts(door)
        # Notes are no executions of the tenant: nobody finds, reads or forks them as such.
        for path in (f"/v1/executions/{one['id']}", f"/v1/executions/{one['id']}/log"):
            problem(await door("GET", path), 404, "execution-not-found")
        assert (await door("GET", "/v1/executions?workflow=audit:")).json()["executions"] == []

    served(main)


def test_it_is_filtered_and_paged() -> None:
    async def main(door: Door) -> None:
        for number in range(5):
            door.who = f"acme:{'ann' if number % 2 else 'bob'}:admin"
            await door("POST", f"/v1/executions/h{number}/pause", {})
        assert [one["target"] for one in await acts(door, "?actor=ann")] == ["h3", "h1"]
        assert [one["target"] for one in await acts(door, "?target=h2&act=executions.pause")] == ["h2"]
        assert await acts(door, "?before=2020-01-01T00:00:00Z") == []
        assert len(await acts(door, "?after=2020-01-01T00:00:00Z")) == 5
        first = (await door("GET", "/v1/audit?limit=2")).json()
        second = (await door("GET", f"/v1/audit?limit=2&cursor={first['next']}")).json()
        assert [one["target"] for one in first["acts"] + second["acts"]] == ["h4", "h3", "h2", "h1"]
        assert [one.target async for one in door.app.audit.all(tenant="acme")] == ["h4", "h3", "h2", "h1", "h0"]
        problem(await door("GET", "/v1/audit?cursor=x"), 422, "invalid-value")
        problem(await door("GET", "/v1/audit?limit=0"), 422, "invalid-request")

    served(main)


def test_payloads_are_not_in_it_and_long_texts_are_cut() -> None:
    async def main(door: Door) -> None:
        await door.start()
        await door("POST", "/v1/executions/h1/fork", {"at": 1, "edit": {"1": ["canary-in-an-edit"]}})
        await door("POST", "/v1/definitions", {"definition": {**MACHINE, "description": "canary"}})
        await door("POST", "/v1/executions/h1/cancel", {"reason": "x" * 1000 + "\x1b"})
        found = await acts(door)
        assert "canary" not in json.dumps(found)
        assert [len(one["reason"]) for one in found if one["act"] == "executions.cancel"] == [LONGEST]

    served(main)


@pytest.mark.parametrize("given", ["", "x" * 200, "a\tb"])
def test_a_request_without_a_proper_id_gets_one(given: str) -> None:
    async def main(door: Door) -> None:
        headers = {"x_request_id": given} if given else {}
        await door("POST", "/v1/executions/h1/pause", {}, **headers)
        [one] = await acts(door)
        assert len(one["request"]) == 32

    served(main)


def test_a_note_is_an_ended_execution_with_a_log() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            id = await app.audit.note(Act("ann", "keys.revoke", "k1"))
            head = await app.store.head(f"audit:default/{id}")
            assert head is not None and (head.status, head.workflow, head.version) == ("completed", "audit:", 2)
            rows = await app.store.read(head.key)
            assert b'"act":"keys.revoke"' in rows[0].data
            assert (await app.find()).heads == []

    asyncio.run(main())
