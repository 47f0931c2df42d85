"""What the API refuses before it does anything: too many requests, too much at once, a store that does not keep up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Perdure
from perdure.core import signing
from perdure.core.behalf import seen_by
from perdure.core.records import Mail, Sent, Start, Started
from perdure.errors import OutcomeUnknown, SettingsError
from perdure.http import rates
from perdure.http.api import api
from perdure.http.caller import Caller
from perdure.http.rates import Pace, Rates, read_paces
from perdure.http.strict import check
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import MemoryStream
from tests.http.test_api import Door, People, problem


@asynccontextmanager
async def opened(store: Any = "memory://", asks: Any = None, **settings: Any) -> AsyncIterator[Door]:
    app = Perdure(store, stream=None if isinstance(store, str) else MemoryStream(), **settings)
    transport = httpx.ASGITransport(app=api(app, asks or People()))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Door(app, client)


def served(
    test: Callable[[Door], Awaitable[None]], store: Any = "memory://", asks: Any = None, **settings: Any
) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), opened(store, asks, **settings) as door:
            await test(door)

    asyncio.run(main())


# Rates


def test_a_tenant_that_asks_too_often_is_told_when_to_come_again() -> None:
    async def main(door: Door) -> None:
        answers = [await door("GET", "/v1/executions") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        problem(answers[-1], 429, "too-many-requests")
        assert int(answers[-1].headers["retry-after"]) == 10
        assert (await door.start()).status_code == 202  # writes have a bucket of their own
        door.who = "mill:ann:admin"
        assert (await door("GET", "/v1/executions")).status_code == 200

    served(main, api_rate=0.1, api_burst=3)


def test_single_tenants_have_rates_of_their_own() -> None:
    async def main(door: Door) -> None:
        assert {(await door("GET", "/v1/executions")).status_code for _ in range(20)} == {200}
        door.who = "mill:ann:admin"
        assert [(await door("GET", "/v1/executions")).status_code for _ in range(3)] == [200, 429, 429]

    served(main, api_rate=0.0, api_rates="mill=0.1/1, zoo=5")


@pytest.mark.parametrize("text", ["acme", "acme=", "acme=x", "a b=1", "acme=-1", "acme=1/0", "acme=inf", "acme=1/nan"])
def test_rates_that_cannot_be_read_stop_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match="api_rates"):
        read_paces(text, Pace(10, 20))


def test_a_bucket_fills_again_with_time() -> None:
    now = [0.0]
    limits = Rates(Pace(2, 1), strangers=Pace(1, 1), clock=lambda: now[0])
    limits.proven("key", "", "acme", "reads")
    with pytest.raises(Exception, match="more than 2 reads"):
        limits.admit("key", "", "reads")
    now[0] = 0.5
    assert limits.admit("key", "", "reads")


class Slow:
    """Counts how often a credential was looked at."""

    def __init__(self) -> None:
        self.asked = 0

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        self.asked += 1
        return await People().caller(headers)


def test_a_request_beyond_the_rate_costs_no_authentication() -> None:
    asks = Slow()

    async def main(door: Door) -> None:
        for _ in range(10):
            await door("GET", "/v1/executions")
        assert asks.asked == 3

    served(main, asks=asks, api_rate=0.1, api_burst=3)


def test_whoever_tries_credentials_is_stopped_and_those_with_a_good_one_are_not() -> None:
    asks = Slow()

    async def main(door: Door) -> None:
        good = door.who
        assert (await door("GET", "/v1/executions")).status_code == 200
        for number in range(20):
            door.who = f"guess{number}"
            answer = await door("GET", "/v1/executions")
            assert answer.status_code == (401 if number < 5 else 429)
        assert asks.asked == 6
        door.who = good
        assert {(await door("GET", "/v1/executions")).status_code for _ in range(10)} == {200}

    served(main, asks=asks, api_strangers=0.01, api_strangers_burst=5)


def test_strangers_may_come_as_often_as_the_deployment_says() -> None:
    async def tried(door: Door) -> list[int]:
        door.who = "nobody"
        return [(await door("GET", "/v1/executions")).status_code for _ in range(210)]

    async def few(door: Door) -> None:
        assert (await tried(door)).count(401) == 2
        assert "api_strangers" in problem(await door("GET", "/v1/executions"), 429, "too-many-requests")["detail"]

    async def usual(door: Door) -> None:
        assert 200 <= (await tried(door)).count(401) <= 209

    async def any_number(door: Door) -> None:
        assert (await tried(door)).count(401) == 210

    served(few, api_strangers=0.01, api_strangers_burst=2)
    served(usual, api_strangers=0.01)
    served(any_number, api_strangers=0)


def test_credentials_that_prove_good_do_not_count_against_their_address() -> None:
    limits = Rates(Pace(0, 1), strangers=Pace(0.01, 2), clock=lambda: 0.0)
    for number in range(100):
        assert not limits.admit(f"key{number}", "1.2.3.4", "reads")
        limits.proven(f"key{number}", "1.2.3.4", "acme", "reads")


def test_a_credential_that_is_good_no_longer_is_a_stranger_again() -> None:
    limits = Rates(Pace(0, 1), strangers=Pace(0.01, 1), clock=lambda: 0.0)
    limits.proven("key", "", "acme", "reads")
    assert limits.admit("key", "", "reads")
    limits.forget("key")
    assert not limits.admit("key", "", "reads")


def test_what_is_remembered_of_callers_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "KEPT", 10)
    limits = Rates(Pace(1, 1), strangers=Pace(1, 1))
    for number in range(100):
        limits.admit(f"key{number}", f"10.0.0.{number}", "reads")
        limits.proven(f"key{number}", f"10.0.0.{number}", f"t{number}", "reads")
    assert len(limits._tenants) == len(limits._addresses) == len(limits._known) == 10


def test_addresses_of_one_network_of_ipv6_are_one() -> None:
    limits = Rates(Pace(0, 1), strangers=Pace(0.01, 2), clock=lambda: 0.0)
    limits.admit("a", "2001:db8::1", "reads")
    limits.admit("b", "2001:db8::2%eth0", "reads")
    with pytest.raises(Exception, match="this address"):
        limits.admit("c", "2001:db8::3", "reads")
    limits.admit("d", "2001:db8:0:1::1", "reads")


def test_calls_of_webhooks_with_wrong_signatures_are_counted_for_their_address_and_good_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "shop").write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    async def main(door: Door) -> None:
        does = {"do": "start", "workflow": "http-hello", "input": ".name"}
        assert (await door("POST", "/v1/hooks", {"name": "shop", "secret": "secret://shop", "does": does})).is_success

        async def call(number: int, secret: str) -> int:
            data = b'{"name":"ann"}'
            said = signing.sign([secret], f"m{number}", door.app.clock.now() // 1_000_000, data)
            return (await door.client.post("/v1/hooks/acme/shop", content=data, headers=said)).status_code

        good, wrong = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
        assert {await call(number, good) for number in range(10)} == {202}
        assert [await call(number, wrong) for number in range(5)] == [401, 401, 401, 429, 429]

    served(main, secrets=str(tmp_path), api_strangers=0.01, api_strangers_burst=3)


# A store that does not keep up


class Stuck(MemoryStore):
    """A store whose writes wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.through = asyncio.Event()

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        await self.through.wait()
        return await super().start(starts, grace)

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        await self.through.wait()
        return await super().send(mail, grace)


async def waiting(door: Door, count: int) -> None:
    while len(door.app._writes.starts) < count:
        await asyncio.sleep(0)


def test_writes_are_refused_while_too_many_wait_and_reads_go_on() -> None:
    store = Stuck()

    async def main(door: Door) -> None:
        async def start(number: int) -> tuple[str, int]:
            answer = await door.start(id=f"x{number}")
            if answer.status_code != 202:
                problem(answer, 503, "store-unavailable")
                assert answer.headers["retry-after"] == "1"
            return f"x{number}", answer.status_code

        tasks = []
        for number in range(12):
            tasks.append(asyncio.create_task(start(number)))
            await waiting(door, min(number + 1, 8))
        assert (await door("GET", "/v1/executions")).json()["executions"] == []
        store.through.set()
        answers = dict([await task for task in tasks])
        assert sorted(answers.values()) == [202] * 8 + [503] * 4
        there = {one["id"] for one in (await door("GET", "/v1/executions")).json()["executions"]}
        assert there == {id for id, status in answers.items() if status == 202}
        assert (await door.start(id="later")).status_code == 202

        store.through.clear()
        crowd = [asyncio.create_task(start(number)) for number in range(20, 28)]
        await waiting(door, 8)
        problem(await door.client.post("/v1/hooks/acme/shop", content=b"{}"), 503, "store-unavailable")
        store.through.set()
        await asyncio.gather(*crowd)

    served(main, store, api_writes=8)


def test_writes_are_refused_while_one_has_waited_for_too_long() -> None:
    store = Stuck()

    async def main(door: Door) -> None:
        first = asyncio.create_task(door.start(id="first"))
        await waiting(door, 1)
        while door.app._writes.starts.age < 0.1:
            await asyncio.sleep(0.01)
        problem(await door.start(id="second"), 503, "store-unavailable")
        problem(await door("POST", "/v1/executions/first/events", {"name": "go"}), 503, "store-unavailable")
        assert (await door("GET", "/v1/executions")).status_code == 200
        store.through.set()
        assert (await first).status_code == 202
        assert (await door.start(id="third")).status_code == 202
        there = {one["id"] for one in (await door("GET", "/v1/executions")).json()["executions"]}
        assert there == {"first", "third"}

    served(main, store, api_patience=0.1)


def test_more_requests_at_once_than_the_bound_are_refused_and_health_is_not() -> None:
    store = Stuck()

    async def main(door: Door) -> None:
        begun = [asyncio.create_task(door.start(id=f"x{number}")) for number in range(2)]
        await waiting(door, 2)
        answer = await door.start(id="x2")
        problem(answer, 503, "busy")
        assert answer.headers["retry-after"] == "1"
        assert (await door("GET", "/v1/executions")).status_code == 200
        assert (await door("GET", "/health/ready")).status_code == 200
        store.through.set()
        assert [(await one).status_code for one in begun] == [202, 202]
        assert (await door.start(id="x2")).status_code == 202

    served(main, store, api_requests=2)


class Unsure(MemoryStore):
    """A store that writes, and then loses the connection before it can say so; once."""

    def __init__(self) -> None:
        super().__init__()
        self.lose = True

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        answers = await super().start(starts, grace)
        if self.lose:
            self.lose = False
            raise OutcomeUnknown("the connection was lost")
        return answers


def test_a_start_of_unknown_outcome_is_never_202_and_can_be_repeated() -> None:
    async def main(door: Door) -> None:
        answer = await door.start()
        problem(answer, 503, "outcome-unknown")
        assert answer.headers["retry-after"] == "1"
        assert (await door.start()).status_code == 202
        assert len((await door("GET", "/v1/executions")).json()["executions"]) == 1

    served(main, Unsure())


# Whom the store answers


def test_the_store_is_told_whom_it_answers_and_forgets_it_with_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str | None] = []

    async def main(door: Door) -> None:
        head = door.app.store.head

        async def watched(key: str) -> Any:
            told.append(seen_by("evil"))
            return await head(key)

        monkeypatch.setattr(door.app.store, "head", watched)
        await door.start()
        await door("GET", "/v1/executions/h1")
        assert set(told) == {"acme"}
        assert seen_by("evil") == "evil"

    served(main)


def test_a_log_that_is_followed_is_read_for_its_caller_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str | None] = []

    async def main(door: Door) -> None:
        read = door.app.store.read

        async def watched(*args: Any, **more: Any) -> Any:
            told.append(seen_by("evil"))
            return await read(*args, **more)

        async with door.app.working():
            await door.start()
            await door("POST", "/v1/executions/h1/events?wait=10s", {"name": "go", "payload": 1})
            monkeypatch.setattr(door.app.store, "read", watched)
            assert "event: end" in (await door("GET", "/v1/executions/h1/stream")).text
        assert set(told) == {"acme"}

    served(main)


# Headers


def test_every_answer_has_the_headers_that_browsers_need() -> None:
    async def main(door: Door) -> None:
        for path in ("/v1/executions", "/v1/nowhere", "/health/live"):
            answer = await door("GET", path)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert "strict-transport-security" not in answer.headers
            assert not [name for name in answer.headers if name.startswith("access-control")]
        secure = await door.client.get("https://test/health/live", headers={"origin": "https://elsewhere"})
        assert secure.headers["strict-transport-security"].startswith("max-age=")
        assert "access-control-allow-origin" not in secure.headers
        asked = await door.client.options("/v1/executions", headers={"access-control-request-method": "POST"})
        assert asked.status_code == 405

    served(main)


@pytest.mark.parametrize(
    ("headers", "status", "name"),
    [
        ([(f"x-{number}", "1") for number in range(150)], 431, "headers-too-large"),
        ([("x-long", "1" * 40_000)], 431, "headers-too-large"),
        ([("content-type", "application/json"), ("content-type", "text/plain")], 400, "repeated-header"),
        ([("idempotency-key", "1"), ("idempotency-key", "2")], 400, "repeated-header"),
        ([("authorization", "Bearer a"), ("authorization", "Bearer b")], 400, "repeated-header"),
        ([("content-encoding", "gzip")], 415, "unsupported-media-type"),
        ([("content-type", "application/json; charset=latin-1")], 415, "unsupported-media-type"),
        ([("content-type", "application/x-www-form-urlencoded")], 415, "unsupported-media-type"),
        ([("content-length", "5000000")], 413, "too-large"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_headers_that_cannot_be_are_refused(headers: list[tuple[str, str]], status: int, name: str) -> None:
    async def main(door: Door) -> None:
        said = headers if any(key == "authorization" for key, _ in headers) else [_ANN, *headers]
        problem(await door.client.post("/v1/executions", content=b"{}", headers=said), status, name)

    served(main)


_ANN = ("authorization", "Bearer acme:ann:admin")


# JSON


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"a": NaN}', "not-json"),
        (b'{"a": -Infinity}', "not-json"),
        (b'{"a": "\\ud800"}', "not-json"),
        (b'{"a": "\\udc00\\ud800"}', "not-json"),
        (b'{"a": "\xed\xa0\x80"}', "not-json"),
        (b'{"a": "\xff"}', "not-json"),
        (b'{"a": "\x00"}', "not-json"),
        (b'\xef\xbb\xbf{"a": 1}', "not-json"),
        (b'{"a": 1,}', "not-json"),
        (b"", "not-json"),
        (b'{"a": "\\u0000"}', "nul-character"),
        (b'{"a": "\\\\\\u0000"}', "nul-character"),
        (b'{"\\u0000": 1}', "nul-character"),
        (b'{"a": 1, "a": 1}', "repeated-key"),
        (b'{"a": {"b": 1, "\\u0062": 2}}', "repeated-key"),
        (b'[[{"a": 1, "b": 2, "a": 3}]]', "repeated-key"),
        (b'{"a": 18446744073709551616}', "number-too-large"),
        (b'{"a": -9223372036854775809}', "number-too-large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "number-too-large"),
        (b'{"a": 1e400}', "number-too-large"),
        (b'{"a": -1.5E+0400}', "number-too-large"),
        (b"[" * 65 + b"]" * 65, "too-deep"),
        (b'{"a":[' * 33 + b"]}" * 33, "too-deep"),
        (b"[" * 100_000 + b"]" * 100_000, "too-deep"),
    ],
)
def test_json_that_means_different_things_to_different_readers_is_refused(text: bytes, name: str) -> None:
    async def main(door: Door) -> None:
        headers = [_ANN, ("content-type", "application/json")]
        body = b'{"workflow": "http-hello", "input": ' + text + b"}" if text else b""
        problem(await door.client.post("/v1/executions", content=body, headers=headers), 400, name)

    served(main)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": "\\\\u0000", "b": "\\ud83d\\ude00", "c": "NaN, 1e400"}',
        b'{"a": 18446744073709551615, "b": -9223372036854775808, "c": 1e300, "d": 0.1234567890123456789012}',
        b'{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}',
        b'"' + b"[{" * 100 + b'\\"' + b"[" * 100 + b'\\\\"',
        b"[" * 64 + b"]" * 64,
        b'{"a": "99999999999999999999999999999999", "b": 1e-400}',
        b" 7 ",
    ],
)
def test_json_that_is_only_unusual_is_taken(text: bytes) -> None:
    check(text)


def test_a_body_may_be_as_long_as_the_deployment_says() -> None:
    async def sent(door: Door, size: int) -> httpx.Response:
        return await door.start(args=["x" * size])

    async def short(door: Door) -> None:
        assert (await sent(door, 10)).status_code == 202
        assert "api_bytes" in problem(await sent(door, 2000), 413, "too-large")["detail"]

    async def usual(door: Door) -> None:
        assert (await sent(door, 1_900_000)).status_code == 202
        assert "2,000,000" in problem(await sent(door, 2_000_000), 413, "too-large")["detail"]

    async def long(door: Door) -> None:
        assert (await sent(door, 3_000_000)).status_code == 202

    served(short, api_bytes=1000)
    served(usual, payload_bytes=5_000_000)
    served(long, payload_bytes=5_000_000, api_bytes=4_000_000)
