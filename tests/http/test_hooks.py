"""Webhooks over HTTP: forged, replayed and late calls are refused, rotation loses none, strangers learn nothing."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import HookRoute, HookSend, HookStart, Listen, On, Perdure, event, workflow
from perdure.core import signing
from perdure.core.records import Query
from perdure.errors import HookNotFound, InvalidValue, StoreUnavailable, Unauthenticated, UsageError
from perdure.http.api import api
from perdure.runtime.managing.registers import FRESH
from perdure.runtime.secrets.sources import Source
from perdure.runtime.web import hooks
from perdure.runtime.web.hook_log import fold, key_of_hook, record_of
from tests.http.test_api import Door, People, problem

OLD, NEW = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
SHOP = {"name": "shop", "secret": "secret://shop", "does": {"do": "start", "workflow": "hooked", "input": ".order"}}


@workflow(name="hooked", events={"paid": int})
async def hooked(order: dict[str, Any]) -> str:
    return f"{order['item']} for {await event('paid', int)}"


@workflow(
    name="hooked-parcel", listens=[Listen("hooked.paid", event=".data.order", own=".[0]")], events={"hooked.paid": Any}
)
async def parcel(order: str) -> Any:
    return await event("hooked.paid")


@workflow(name="hooked-offer", starts_on=[On("hooked.asked", input=".")])
async def offer(asked: dict[str, Any]) -> Any:
    return asked


class Shop(Door):
    """A sender of webhooks beside an administrator."""

    last: tuple[str, bytes, dict[str, str]]

    async def hook(self, does: dict[str, Any], name: str = "shop", kind: str = "standard") -> httpx.Response:
        return await self("POST", "/v1/hooks", {"name": name, "secret": "secret://shop", "does": does, "kind": kind})

    async def call(
        self,
        body: Any = None,
        *,
        id: str = "msg_1",
        secret: str = OLD,
        late: int = 0,
        path: str = "acme/shop",
        **headers: str,
    ) -> httpx.Response:
        data = body if isinstance(body, bytes) else json.dumps(body or {"order": {"item": "book"}}).encode()
        at = self.app.clock.now() // 1_000_000 - late
        self.last = f"/v1/hooks/{path}", data, {**signing.sign([secret], id, at, data), **headers}
        return await self.replay()

    async def replay(self) -> httpx.Response:
        """The last call again, byte by byte."""
        path, data, headers = self.last
        return await self.client.post(path, content=data, headers=headers)

    async def started(self) -> list[str]:
        found = await self.app.find(workflow="hooked", tenant="acme")
        return sorted(head.key for head in found.heads)


def opened(test: Callable[[Shop], Awaitable[None]], folder: Path, working: bool = False, **settings: Any) -> None:
    async def main() -> None:
        app = Perdure("memory://", secrets=str(folder), **settings)
        transport = httpx.ASGITransport(app=api(app, People()))
        async with asyncio.timeout(20), app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            shop = Shop(app, client)
            assert (await shop("POST", "/v1/hooks", SHOP)).status_code == 201
            if not working:
                await test(shop)
                return
            async with app.working():
                await test(shop)

    (folder / "acme").mkdir()
    (folder / "acme" / "shop").write_text(f"{OLD}\n")
    (folder / "acme" / "new").write_text(NEW)
    asyncio.run(main())


def test_a_signed_call_starts_a_workflow_once(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        first = await shop.call()
        assert first.status_code == 202
        told = first.json()
        assert told["id"] == "msg_1" and told["execution"].startswith("hook-")
        for _ in range(3):
            problem(await shop.replay(), 409, "call-taken")
        for late in (30, 60, 90):  # a sender that did not hear us signs its call anew
            again = await shop.call(late=late)
            assert (again.status_code, again.json()) == (202, told)
            problem(await shop.replay(), 409, "call-taken")
        assert await shop.started() == [f"acme/{told['execution']}"]
        log = (await shop("GET", f"/v1/executions/{told['execution']}/log")).json()["events"]
        assert (log[0]["data"]["input"], log[0]["data"]["by"]) == ([{"item": "book"}], "hook:shop")

    opened(test, tmp_path)


def test_many_copies_of_a_call_at_once_are_one_call(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        data = b'{"order": {"item": "book"}}'
        shop.last = "/v1/hooks/acme/shop", data, signing.sign([OLD], "msg_1", shop.app.clock.now() // 1_000_000, data)
        answers = await asyncio.gather(*(shop.replay() for _ in range(20)))
        assert sorted(one.status_code for one in answers) == [202] + [409] * 19
        assert len(await shop.started()) == 1

    opened(test, tmp_path)


def test_the_id_of_what_is_started_may_come_from_the_body(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        does = {"do": "start", "workflow": "hooked", "input": ".order", "id": ".number"}
        assert (await shop.hook(does, "numbered")).status_code == 201
        body = {"order": {"item": "pen"}, "number": 42}
        assert (await shop.call(body, path="acme/numbered")).json()["execution"] == "42"
        assert (await shop.call(body, path="acme/numbered", id="msg_2")).json()["execution"] == "42"
        other = {"order": {"item": "ink"}, "number": 42}
        problem(await shop.call(other, path="acme/numbered", id="msg_3"), 409, "execution-exists")
        problem(await shop.call({"order": 1}, path="acme/numbered"), 422, "expression-error")
        problem(await shop.call({"order": 1, "number": "a/b"}, path="acme/numbered"), 400, "usage-error")

    opened(test, tmp_path)


def test_a_signed_call_sends_an_event_once_also_after_the_end(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        id = (await shop.call()).json()["execution"]
        does = {"do": "send", "event": "paid", "execution": ".order", "payload": ".amount"}
        assert (await shop.hook(does, "bank")).status_code == 201
        paid = {"order": id, "amount": 30}
        answer = await shop.call(paid, path="acme/bank", id="pay_1")
        assert (answer.status_code, answer.json()) == (202, {"id": "pay_1", "execution": id})
        done = await shop("GET", f"/v1/executions/{id}/result?wait=10s")
        assert done.json()["result"] == "book for 30"
        problem(await shop.replay(), 409, "call-taken")
        assert (await shop.call(paid, path="acme/bank", id="pay_1", late=9)).status_code == 202
        received = [one for one in await shop.app.get(id, "acme").log() if one.type == "EventReceived"]
        assert len(received) == 1
        problem(await shop.call(paid, path="acme/bank", id="pay_2"), 409, "execution-ended")
        problem(await shop.call({"order": "nobody", "amount": 1}, path="acme/bank"), 404, "execution-not-found")
        problem(await shop.call({"order": id, "amount": "much"}, path="acme/bank"), 422, "invalid-value")

    opened(test, tmp_path, working=True)


def test_a_signed_call_becomes_an_event_for_whoever_listens_once(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        for order in ("o-1", "o-2"):
            await shop.app.start(parcel, order, id=order, tenant="acme")
        await shop.app.start(parcel, "o-1", id="o-1", tenant="rival")
        does = {
            "do": "route",
            "type": '${ "hooked." + .status }',
            "source": "${ .shop }",
            "data": "{order, sum: .cents}",
        }
        assert (await shop.hook(does, "till")).status_code == 201
        paid = {"shop": "/berlin", "status": "paid", "order": "o-1", "cents": 30}
        first = await shop.call(paid, path="acme/till", id="pay_1")
        told = first.json()
        assert (first.status_code, told["id"], "execution" in told) == (202, "pay_1", False)
        assert (told["routed"]["heard"], told["routed"]["woken"], told["routed"]["started"]) == (True, ["o-1"], [])
        problem(await shop.replay(), 409, "call-taken")
        assert (await shop.call(paid, path="acme/till", id="pay_1", late=9)).status_code == 202
        assert (await shop("GET", "/v1/executions/o-1/result?wait=10s")).json()["result"] == {"order": "o-1", "sum": 30}
        received = [one for one in await shop.app.get("o-1", "acme").log() if one.type == "EventReceived"]
        assert [(one.data["by"], one.data["id"]) for one in received] == [("hook:till", told["routed"]["id"])]
        assert (await shop.app.get("o-1", "rival").head()).version == 1  # an event stays with the tenant of the webhook

    opened(test, tmp_path, working=True)


def test_an_event_that_a_call_becomes_has_the_id_of_the_call_and_starts_one_execution(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        assert (await shop.hook({"do": "route", "type": "hooked.asked"}, "asks")).status_code == 201
        answers = [await shop.call({"item": "tea"}, path="acme/asks", id="msg_7", late=late) for late in (9, 0)]
        assert answers[0].json() == answers[1].json()
        [started] = answers[0].json()["routed"]["started"]
        begun = (await shop("GET", f"/v1/executions/{started}/result?wait=10s")).json()["result"]
        assert begun == {
            "specversion": "1.0",
            "id": "msg_7",
            "source": "/tenants/acme/hooks/asks",
            "type": "hooked.asked",
            "datacontenttype": "application/json",
            "data": {"item": "tea"},
        }
        other = await shop.call({"item": "tea"}, path="acme/asks", id="msg_8")
        assert other.json()["routed"]["started"] != [started]

    opened(test, tmp_path, working=True)


def test_a_call_for_which_nobody_listens_is_taken_and_told(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        await shop.hook({"do": "route", "type": "hooked.unheard"}, "void")
        answer = await shop.call(path="acme/void")
        assert (answer.status_code, answer.json()["routed"]["heard"]) == (202, False)
        problem(await shop.replay(), 409, "call-taken")

    opened(test, tmp_path)


def test_a_call_that_failed_may_come_again_as_it_was_signed(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        await shop.hook({"do": "send", "event": "paid", "execution": ".order", "payload": "30"}, "bank")
        problem(await shop.call({"order": "o-9"}, path="acme/bank", id="pay_9"), 404, "execution-not-found")
        await shop.app.start(hooked, {"item": "book"}, id="o-9", tenant="acme")
        assert (await shop.replay()).status_code == 202
        problem(await shop.replay(), 409, "call-taken")

    opened(test, tmp_path)


def test_a_call_whose_webhook_died_before_it_was_kept_as_taken_may_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(shop: Shop) -> None:
        def die(*_: object) -> None:
            raise StoreUnavailable("the process ends here")

        with monkeypatch.context() as dying:
            dying.setattr(hooks, "taken", die)
            problem(await shop.call(), 503, "store-unavailable")
        assert len(await shop.started()) == 1
        assert (await shop.replay()).status_code == 202
        problem(await shop.replay(), 409, "call-taken")
        assert len(await shop.started()) == 1

    opened(test, tmp_path)


def test_a_replay_does_nothing_either_when_the_webhook_means_something_else_by_now(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        await shop.hook({"do": "route", "type": "hooked.unheard"}, "void")
        assert (await shop.call({"item": "tea"}, path="acme/void")).status_code == 202
        await shop("DELETE", "/v1/hooks/void")
        await shop.hook({"do": "start", "workflow": "hooked"}, "void")
        problem(await shop.replay(), 409, "call-taken")
        assert await shop.started() == []

    opened(test, tmp_path)


def test_a_call_of_github_that_nobody_heard_may_be_delivered_again(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        await shop.hook({"do": "route", "type": "hooked.paid"}, "push", "github")
        data = b'{"order": "o-1"}'
        said = {"X-Hub-Signature-256": f"sha256={hmac.digest(OLD.encode(), data, 'sha256').hex()}"}
        shop.last = "/v1/hooks/acme/push", data, said
        assert (await shop.replay()).json()["routed"]["heard"] is False
        await shop.app.start(parcel, "o-1", id="o-1", tenant="acme")
        assert (await shop.replay()).json()["routed"]["woken"] == ["o-1"]
        problem(await shop.replay(), 409, "call-taken")

    opened(test, tmp_path)


def test_a_call_that_makes_no_event_is_refused(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        problem(await shop.hook({"do": "route", "type": "${ . + }"}, "bad"), 422, "expression-error")
        problem(await shop.hook({"do": "route", "type": "a", "data": ".["}, "bad"), 422, "expression-error")
        problem(await shop.hook({"do": "route", "type": ""}, "bad"), 422, "invalid-value")
        await shop.hook({"do": "route", "type": "${ .type }", "source": "${ .source }"}, "strict")
        problem(await shop.call({"source": "/a"}, path="acme/strict"), 422, "expression-error")
        problem(await shop.call({"type": "", "source": "/a"}, path="acme/strict"), 422, "invalid-value")
        problem(await shop.call({"type": "t", "source": ["/a"]}, path="acme/strict"), 422, "expression-error")

    opened(test, tmp_path)


def test_a_webhook_that_routes_is_read_from_its_log_as_it_was_made(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        made = HookRoute("${ .type }", "/shop", ".data")
        await shop.app.hooks.create("routes", made, secret="secret://shop", tenant="acme")
        assert (await shop.app.hooks.get("routes", tenant="acme")).does == made

    opened(test, tmp_path)


def test_whatever_is_not_proven_gets_the_same_answer(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        await shop.hook({"do": "start", "workflow": "hooked"}, "gone")
        await shop("DELETE", "/v1/hooks/gone")
        await shop("POST", "/v1/hooks", {**SHOP, "name": "blind", "secret": "secret://missing"})
        calls = {
            "unknown": shop.call(path="acme/nobody"),
            "unknown tenant": shop.call(path="nobody/shop"),
            "no name at all": shop.call(path="acme/a%20b"),
            "no tenant at all": shop.call(path="keys:/shop"),
            "forged": shop.call(secret=NEW),
            "guessed": shop.call(secret="nobody knows this secret, and nothing is signed with it", path="acme/nobody"),
            "late": shop.call(late=301),
            "early": shop.call(late=-301),
            "unsigned": shop.call(webhook_signature="", **{"webhook-signature": ""}),
            "other id": shop.call(**{"webhook-id": "msg_2"}),
            "other kind": shop.call(**{"webhook-signature": "v2,abc"}),
            "revoked": shop.call(path="acme/gone"),
            "secret is missing here": shop.call(path="acme/blind"),
        }
        told = set()
        for what, call in calls.items():
            answer = await call
            found = problem(answer, 401, "unauthenticated")
            told.add((found["detail"], found["title"], frozenset(answer.headers)))
            assert set(found) == {"type", "title", "status", "detail", "instance"}, what
        assert len(told) == 1
        assert await shop.started() == []

    opened(test, tmp_path)


def test_nothing_is_read_from_a_body_that_is_not_proven(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        problem(await shop.call(b"{", secret=NEW), 401, "unauthenticated")
        problem(await shop.call(b"{"), 422, "invalid-value")
        problem(await shop.call(b"[" * 100_000), 422, "invalid-value")
        problem(await shop.call(b"\xff"), 422, "invalid-value")
        problem(await shop.call(b'"' + b"x" * 2_000_001 + b'"'), 413, "too-large")
        problem(await shop.call({"order": {"item": "x" * 1_000_001}}), 413, "limit-reached")

    opened(test, tmp_path)


def test_a_credential_of_the_api_is_no_signature(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        answer = await shop("POST", "/v1/hooks/acme/shop", {"order": {"item": "book"}})
        problem(answer, 401, "unauthenticated")

    opened(test, tmp_path)


@pytest.mark.parametrize("kind", ["github", "stripe"])
def test_other_kinds_of_signatures_are_understood_and_replays_recognised_by_their_body(
    tmp_path: Path, kind: signing.Kind
) -> None:
    async def test(shop: Shop) -> None:
        await shop.hook({"do": "start", "workflow": "hooked", "input": ".order"}, "them", kind)

        async def call(item: str, secret: str = OLD, late: int = 0, **more: str) -> httpx.Response:
            data = json.dumps({"order": {"item": item}}).encode()
            at = shop.app.clock.now() // 1_000_000 - late
            head = b"" if kind == "github" else f"{at}.".encode()
            right = hmac.digest(secret.encode(), head + data, "sha256").hex()
            if kind == "github":
                said = {"X-Hub-Signature-256": f"sha256={right}"}
            else:
                said = {"Stripe-Signature": f"t={at},v1={right}"}
            return await shop.client.post("/v1/hooks/acme/them", content=data, headers={**said, **more})

        first = await call("book", late=9)
        assert first.status_code == 202
        problem(await call("book", late=9, **{"X-GitHub-Delivery": "new"}), 409, "call-taken")
        if kind == "stripe":  # its next try is signed anew
            assert (await call("book")).json() == first.json()
        assert (await call("pen")).json() != first.json()
        problem(await call("ink", NEW), 401, "unauthenticated")
        if kind == "stripe":
            problem(await call("ink", late=301), 401, "unauthenticated")
        assert len(await shop.started()) == 2

    opened(test, tmp_path)


# --- rotation ---------------------------------------------------------------------------------------------------------


def test_a_rotation_loses_no_call(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        assert (await shop.call(id="a")).status_code == 202
        rotated = await shop("PUT", "/v1/hooks/shop/secret", {"secret": "secret://new", "overlap": "1h"})
        told = rotated.json()
        assert (told["secret"], told["former"], bool(told["overlap_until"])) == ("secret://new", "secret://shop", True)
        assert (await shop.call(id="b", secret=OLD)).status_code == 202
        assert (await shop.call(id="c", secret=NEW)).status_code == 202
        await shop("PUT", "/v1/hooks/shop/secret", {"secret": "secret://shop", "overlap": "0s"})
        problem(await shop.call(id="d", secret=NEW), 401, "unauthenticated")
        assert (await shop.call(id="d", secret=OLD)).status_code == 202
        seen = (await shop("GET", "/v1/hooks/shop")).json()
        assert [one["what"] for one in seen["history"]] == ["created", "rotated", "rotated"]
        assert {one["by"] for one in seen["history"]} == {"ann"}

    opened(test, tmp_path)


def test_a_new_secret_is_good_at_once_in_every_process_and_a_revoked_webhook_not_for_long(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path / 'hooks.db'}"
        (tmp_path / "default").mkdir()
        for name, secret in (("old", OLD), ("new", NEW)):
            (tmp_path / "default" / name).write_text(secret)
        async with Perdure(url, secrets=str(tmp_path)) as here, Perdure(url, secrets=str(tmp_path)) as there:
            now = 0.0
            there.hooks._recent.clock = lambda: now

            async def call(id: str, secret: str) -> None:
                body = b'{"item": "book"}'
                headers = signing.sign([secret], id, there.clock.now() // 1_000_000, body)
                await there.hooks.receive("default", "shop", headers, body)

            await here.hooks.create("shop", HookStart("hooked"), secret="secret://old")
            await call("a", OLD)
            await here.hooks.rotate("shop", "secret://new")
            await call("b", NEW)
            await here.hooks.revoke("shop")
            await call("c", NEW)  # what it has in mind is fresh still
            now += FRESH
            with pytest.raises(Unauthenticated):
                await call("d", NEW)

    asyncio.run(main())


def test_a_secret_that_is_missing_is_said_in_the_log_of_the_process_and_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(shop: Shop) -> None:
        await shop("POST", "/v1/hooks", {**SHOP, "name": "blind", "secret": "secret://missing"})
        with caplog.at_level(logging.ERROR, "perdure.hooks"):
            problem(await shop.call(path="acme/blind"), 401, "unauthenticated")
        assert "tenant 'acme' has no secret 'missing'" in caplog.text and OLD not in caplog.text

    opened(test, tmp_path)


def asking(look: Source, test: Callable[[Shop], Awaitable[None]]) -> None:
    """With the secrets of this function, and one webhook."""

    async def main() -> None:
        app = Perdure("memory://", secrets=look)
        transport = httpx.ASGITransport(app=api(app, People()))
        async with asyncio.timeout(20), app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            shop = Shop(app, client)
            assert (await shop("POST", "/v1/hooks", SHOP)).status_code == 201
            await test(shop)

    asyncio.run(main())


def test_a_vault_that_is_slow_holds_up_nobody_but_the_call_that_needs_it() -> None:
    asked, answered = threading.Event(), threading.Event()

    def slow(tenant: str, name: str) -> str:
        asked.set()
        assert answered.wait(10)
        return OLD

    async def test(shop: Shop) -> None:
        call = asyncio.create_task(shop.call())
        while not asked.is_set():
            await asyncio.sleep(0.01)
        assert (await shop("GET", "/v1/hooks")).status_code == 200
        answered.set()
        assert (await call).status_code == 202

    asking(slow, test)


def test_while_secrets_cannot_be_looked_for_every_call_is_told_to_come_again() -> None:
    def away(tenant: str, name: str) -> str:
        raise ConnectionError("the vault is sealed")

    async def test(shop: Shop) -> None:
        answers = [await shop.call(path=path) for path in ("acme/shop", "acme/nobody", "nobody/shop")]
        told = {problem(one, 503, "access-unavailable")["detail"] for one in answers}
        assert told == {"the signature of the call cannot be checked at the moment: try again"}
        assert await shop.started() == []

    asking(away, test)


def test_a_call_to_no_webhook_takes_the_same_work_and_chooses_nothing_that_is_looked_for() -> None:
    asked: list[tuple[str, str]] = []

    def look(tenant: str, name: str) -> str | None:
        asked.append((tenant, name))
        return OLD if (tenant, name) == ("acme", "shop") else None

    async def test(shop: Shop) -> None:
        for path in ("acme/shop", "acme/nobody", "nobody/shop"):
            problem(await shop.call(path=path, secret=NEW), 401, "unauthenticated")
        assert asked == [("acme", "shop"), *[("default", "perdure-no-such-webhook")] * 2]

    asking(look, test)


# --- administration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "name"),
    [
        ({"name": "a/b"}, 422, "invalid-value"),
        ({"name": ""}, 422, "invalid-value"),
        ({"secret": OLD}, 422, "invalid-value"),
        ({"secret": "env:PATH"}, 422, "invalid-value"),
        ({"secret": "secret://../other/shop"}, 422, "invalid-value"),
        ({"kind": "none"}, 422, "invalid-request"),
        ({"does": {"do": "nothing"}}, 422, "invalid-request"),
        ({"does": {"do": "start", "workflow": "hooked", "input": ".a |"}}, 422, "expression-error"),
        ({"does": {"do": "send", "event": "paid", "execution": "$$"}}, 422, "expression-error"),
        ({"name": "shop"}, 400, "usage-error"),
    ],
)
def test_a_webhook_that_cannot_work_is_not_made(tmp_path: Path, change: dict[str, Any], status: int, name: str) -> None:
    async def test(shop: Shop) -> None:
        problem(await shop("POST", "/v1/hooks", {**SHOP, "name": "other", **change}), status, name)
        assert [one["name"] for one in (await shop("GET", "/v1/hooks")).json()["hooks"]] == ["shop"]

    opened(test, tmp_path)


def test_only_administrators_see_and_change_webhooks(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        shop.who = "acme:otto:operator,author"
        for method, path, body in (
            ("GET", "/v1/hooks", None),
            ("POST", "/v1/hooks", {**SHOP, "name": "b"}),
            ("GET", "/v1/hooks/shop", None),
            ("PUT", "/v1/hooks/shop/secret", {"secret": "secret://new"}),
            ("DELETE", "/v1/hooks/shop", None),
        ):
            problem(await shop(method, path, body), 403, "not-allowed")
        shop.who = "evil:eve:admin"
        assert (await shop("GET", "/v1/hooks")).json() == {"hooks": []}

    opened(test, tmp_path)


def test_a_revoked_webhook_can_be_made_anew_but_not_rotated(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        assert (await shop("DELETE", "/v1/hooks/shop")).json()["active"] is False
        assert (await shop("DELETE", "/v1/hooks/shop")).status_code == 200
        problem(await shop("PUT", "/v1/hooks/shop/secret", {"secret": "secret://new"}), 400, "usage-error")
        problem(await shop.call(), 401, "unauthenticated")
        assert (await shop("POST", "/v1/hooks", SHOP)).status_code == 201
        assert (await shop.call()).status_code == 202

    opened(test, tmp_path)


def test_the_log_of_a_webhook_tells_the_record_and_no_secret(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        await shop("PUT", "/v1/hooks/shop/secret", {"secret": "secret://new"})
        await shop.call()
        key = key_of_hook("acme", "shop")
        rows, head = await shop.app.store.read(key), await shop.app.store.head(key)
        assert fold(record_of(None), rows) == record_of(head)
        kept = [
            row.data for one in await shop.app.store.find(Query(None)) for row in await shop.app.store.read(one.key)
        ]
        assert not any(secret[6:].encode() in data for secret in (OLD, NEW) for data in kept)
        assert [one.key for one in (await shop.app.find(tenant="acme")).heads] == await shop.started()

    opened(test, tmp_path)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path / 'hooks.db'}"
        case _:
            return str(request.getfixturevalue("postgres"))


def test_webhooks_are_kept_by_every_store(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            hooks = app.hooks
            await hooks.create("b", HookStart("hooked"), secret="secret://b", by="ada")
            await hooks.create("a", HookSend("paid", ".id"), secret="secret://a", kind="stripe")
            await hooks.create("a", HookStart("hooked"), secret="secret://a", tenant="other")
            assert [(one.name, one.kind, one.does) for one in await hooks.list()] == [
                ("a", "stripe", HookSend("paid", ".id")),
                ("b", "standard", HookStart("hooked")),
            ]
            assert (await hooks.get("b")).path == "/v1/hooks/default/b"
            await asyncio.gather(*(hooks.rotate("b", f"secret://b{number}") for number in range(3)))
            assert [one.what for one in await hooks.history("b")] == ["created", *["rotated"] * 3]
            with pytest.raises(HookNotFound, match="no webhook 'c'"):
                await hooks.get("c")
            with pytest.raises(UsageError, match="already"):
                await hooks.create("a", HookStart("hooked"), secret="secret://a")
            with pytest.raises(InvalidValue, match="kind of signature"):
                await hooks.create("c", HookStart("hooked"), secret="secret://a", kind="md5")  # type: ignore[arg-type]

    asyncio.run(main())


# --- callbacks over HTTP ----------------------------------------------------------------------------------------------


def test_a_start_may_ask_for_a_callback(tmp_path: Path) -> None:
    async def test(shop: Shop) -> None:
        body = {"workflow": "hooked", "input": {"item": "book"}, "id": "o-1"}
        wish = {"url": "https://shop.example/done", "secret": "secret://shop", "events": ["failed"]}
        answer = await shop("POST", "/v1/executions", {**body, "callback": wish})
        assert answer.status_code == 202
        log = (await shop("GET", "/v1/executions/o-1/log")).json()["events"]
        assert log[0]["data"]["callback"] == wish
        for change, name in (
            ({"url": "https://169.254.169.254/"}, "outbound-refused"),
            ({"url": "http://shop.example/"}, "outbound-refused"),
            ({"secret": OLD}, "invalid-value"),
            ({"secret": "env:HOME"}, "invalid-value"),
            ({"events": ["started"]}, "invalid-request"),
            ({"more": 1}, "invalid-request"),
        ):
            problem(
                await shop("POST", "/v1/executions", {**body, "id": "o-2", "callback": {**wish, **change}}), 422, name
            )
        problem(await shop("GET", "/v1/executions/o-2"), 404, "execution-not-found")

    opened(test, tmp_path)


def test_forged_calls_are_stopped_by_their_address_before_they_cost_a_read_and_good_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    async def test(shop: Shop) -> None:
        head = shop.app.store.head

        async def watched(key: str) -> Any:
            reads.append(key)
            return await head(key)

        for number in range(20):  # more than an address may try
            assert (await shop.call(id=f"good-{number}")).status_code == 202
        problem(await shop.call(b"no json", id="bad-body"), 422, "invalid-value")
        monkeypatch.setattr(shop.app.store, "head", watched)
        forged = [await shop.call(secret=NEW, id=f"forged-{number}") for number in range(20)]
        assert [one.status_code for one in forged] == [401] * 5 + [429] * 15
        assert int(forged[-1].headers["retry-after"]) > 0
        assert len(reads) <= 5
        door = await shop("GET", "/v1/hooks")
        assert door.status_code == 200  # who has a credential does not notice

    opened(test, tmp_path, api_strangers=0.01, api_strangers_burst=5)
