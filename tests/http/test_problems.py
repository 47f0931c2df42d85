"""Every status that a problem can have is produced once, over the real thing, and every problem has the same form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Struct

from perdure import Perdure, errors, event, workflow
from perdure.core.records import Head, Mail, Query, Sent, Start, Started
from perdure.core.trouble import name_of
from perdure.http.api import ALL, api
from perdure.http.problems import STATUS, problem_of
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import MemoryStream
from tests.http.every import body_of, path_of
from tests.http.test_api import Door, People

#: What must never be told: how the store is reached, where files are, what the code is.
PASSWORD = "hunter2"
PLACE = f"postgresql://perdure:{PASSWORD}@db.internal:5432/orders"
INSIDE = (PASSWORD, "db.internal", "postgresql", "Traceback", 'File "', "/srv/perdure", ".py", "asyncpg", "sqlite3")


@workflow(name="problem-line", events={"go": int})
async def line(what: str) -> int:
    return await event("go", int)


class Problem(Struct, forbid_unknown_fields=True):
    """As RFC 9457 has it, with the two additions of this API."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    execution: str = ""
    problems: list[dict[str, Any]] = []


class Broken(MemoryStore):
    """A store that fails with whatever it is told to, in the words that a driver has."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        raise self.error

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        raise self.error

    async def head(self, key: str) -> Head | None:
        raise self.error

    async def find(self, query: Query) -> list[Head]:
        raise self.error

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        raise self.error


def told(answer: httpx.Response, status: int, name: str, path: str) -> Problem:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = msgspec.json.decode(answer.content, type=Problem)
    assert (found.type, found.status, found.instance) == (f"urn:perdure:problem:{name}", status, path)
    assert found.title and found.detail
    for word in INSIDE:
        assert word not in answer.text + str(answer.headers), answer.text
    return found


def served(test: Callable[[Door], Awaitable[None]], store: Any = "memory://", **settings: Any) -> None:
    async def main() -> None:
        app = Perdure(store, stream=None if isinstance(store, str) else MemoryStream(), api_bytes=10_000, **settings)
        transport = httpx.ASGITransport(app=api(app, People()))
        async with asyncio.timeout(20), app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await test(Door(app, client))

    asyncio.run(main())


Produce = Callable[[Door], Awaitable[None]]
E = "/v1/executions"
BEGIN = {"workflow": "problem-line", "args": ["x"], "id": "h1"}


async def bad_request(door: Door) -> None:
    told(await door("POST", E, {**BEGIN, "id": "a b"}), 400, "usage-error", E)


async def unauthenticated(door: Door) -> None:
    answer = await door.client.get(E)
    told(answer, 401, "unauthenticated", E)
    assert answer.headers["www-authenticate"] == "Bearer"


async def not_allowed(door: Door) -> None:
    door.who = "acme:eve:viewer"
    told(await door("POST", E, BEGIN), 403, "not-allowed", E)


async def not_found(door: Door) -> None:
    found = told(await door("GET", f"{E}/h1"), 404, "execution-not-found", f"{E}/h1")
    assert found.execution == "h1"


async def wrong_method(door: Door) -> None:
    answer = await door("DELETE", f"{E}/h1")
    told(answer, 405, "method-not-allowed", f"{E}/h1")
    assert "GET" in answer.headers["allow"]


async def too_slow(door: Door) -> None:
    async def drops() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(10)

    said = {"authorization": f"Bearer {door.who}", "content-type": "application/json"}
    answer = await door.client.post(E, content=drops(), headers=said)
    told(answer, 408, "too-slow", E)
    assert answer.headers["connection"] == "close"


async def conflict(door: Door) -> None:
    await door("POST", E, BEGIN)
    assert told(await door("POST", E, {**BEGIN, "args": ["y"]}), 409, "execution-exists", E).execution == "h1"


async def too_large(door: Door) -> None:
    told(await door("POST", E, {**BEGIN, "args": ["x" * 20_000]}), 413, "too-large", E)


async def wrong_media(door: Door) -> None:
    said = {"authorization": f"Bearer {door.who}", "content-type": "text/plain"}
    told(await door.client.post(E, content=b"{}", headers=said), 415, "unsupported-media-type", E)


async def invalid(door: Door) -> None:
    told(await door("POST", E, {**BEGIN, "args": [1]}), 422, "invalid-value", E)
    bad = await door("POST", "/v1/definitions", {"definition": {"machine": "x", "initial": "no", "states": {}}})
    assert told(bad, 422, "definition-invalid", "/v1/definitions").problems


async def too_many(door: Door) -> None:
    answers = [await door("GET", E) for _ in range(4)]
    told(answers[-1], 429, "too-many-requests", E)
    assert int(answers[-1].headers["retry-after"]) > 0


async def headers_too_large(door: Door) -> None:
    told(await door("GET", E, x_long="x" * 40_000), 431, "headers-too-large", E)


async def unavailable(door: Door) -> None:
    answer = await door("POST", E, BEGIN)
    told(answer, 503, "store-unavailable", E)
    assert answer.headers["retry-after"] == "1"


def away() -> MemoryStore:
    return Broken(errors.StoreUnavailable(f"{PLACE}: the connection was lost (asyncpg.ConnectionDoesNotExistError)"))


#: A way to each status, and with what settings and store.
EACH: dict[int, tuple[Produce, Mapping[str, Any]]] = {
    400: (bad_request, {}),
    401: (unauthenticated, {}),
    403: (not_allowed, {}),
    404: (not_found, {}),
    405: (wrong_method, {}),
    408: (too_slow, {"api_deadline": 0.05}),
    409: (conflict, {}),
    413: (too_large, {}),
    415: (wrong_media, {}),
    422: (invalid, {}),
    429: (too_many, {"api_rate": 0.1, "api_burst": 2}),
    431: (headers_too_large, {}),
    503: (unavailable, {"store": away}),
}


@pytest.mark.parametrize("status", EACH)
def test_a_problem_of_this_status_has_the_form_of_all(status: int) -> None:
    produce, how = EACH[status]
    settings = {name: value for name, value in how.items() if name != "store"}
    served(produce, how["store"]() if "store" in how else "memory://", **settings)


def test_no_status_is_forgotten() -> None:
    """410 is tested with the keys that are destroyed, 500 with a handler that is broken."""
    assert {status for _, status in STATUS} | {405, 408, 413, 415, 429, 431} == EACH.keys() | {410}


# The same for the one route that most callers use: an event for an execution.

EVENT = "/v1/executions/h1/events"
GO = {"name": "go", "payload": 1, "id": "e1"}


async def _submitted(door: Door, status: int) -> httpx.Response:
    """A submit that is answered with this status; what comes before it is accepted."""
    body: Any = GO
    if status == 429:
        for _ in range(2):
            await door("POST", EVENT, GO)
    elif status == 401:
        return await door.client.post(EVENT, json=GO)
    elif status == 400:
        said = {"authorization": f"Bearer {door.who}", "content-type": "application/json"}
        return await door.client.post(EVENT, content=b'{"name": "go",', headers=said)
    elif status == 403:
        door.who = "acme:eve:viewer"
    elif status == 404:
        door.who = "mill:ann:admin"
    elif status == 409:
        await door("POST", EVENT, {**GO, "payload": 2})
    elif status == 413:
        body = {**GO, "payload": "x" * 20_000}
    elif status == 422:
        body = {**GO, "payload": "no number"}
    return await door("POST", EVENT, body)


#: What it is called, how many letters there are afterwards, and with what settings.
SUBMITS: dict[int, tuple[str, int, Mapping[str, Any]]] = {
    400: ("not-json", 0, {}),
    401: ("unauthenticated", 0, {}),
    403: ("not-allowed", 0, {}),
    404: ("execution-not-found", 0, {}),
    409: ("event-conflict", 1, {}),
    413: ("too-large", 0, {}),
    422: ("invalid-value", 0, {}),
    429: ("too-many-requests", 1, {"api_rate": 0.1, "api_burst": 2}),
    503: ("store-unavailable", 0, {}),
}


@pytest.mark.parametrize("status", SUBMITS)
def test_a_submit_is_refused_with_this_status_and_leaves_nothing(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, letters, settings = SUBMITS[status]
    store = MemoryStore()

    async def main(door: Door) -> None:
        await door.app.start(line, "x", id="h1", tenant="acme")
        if status == 503:
            monkeypatch.setattr(store, "send", away().send)
        told(await _submitted(door, status), status, name, EVENT)
        head = await store.head("acme/h1")
        assert head is not None and (head.version, head.mail) == (1, letters)

    served(main, store, **settings)


def _all_errors(kind: type[BaseException] = errors.PerdureError) -> list[type[BaseException]]:
    return [kind, *(one for below in kind.__subclasses__() for one in _all_errors(below))]


FAILURES = [one for one in _all_errors() if issubclass(one, errors.StoreError | errors.KeyringError)]


@pytest.mark.parametrize("kind", FAILURES, ids=lambda kind: str(kind.__name__))
def test_what_the_store_says_of_itself_is_for_the_log(kind: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    error = kind(f"{PLACE}: gone; see /srv/perdure/keys/acme.json (asyncpg.Error)")

    async def main(door: Door) -> None:
        for method, path, body in (("POST", E, BEGIN), ("GET", E, None), ("GET", f"{E}/h1", None)):
            answer = await door(method, path, body)
            status, name = answer.status_code, name_of(kind.__name__).rpartition(":")[2]
            assert status in (410, 503)
            found = told(answer, status, name, path)
            number = found.detail.rpartition(" ")[2].rstrip(")")
            assert f"{number}: {error}" in caplog.text

    with caplog.at_level(logging.WARNING, "perdure.http"):
        served(main, Broken(error))


def test_a_store_that_fails_is_503_on_every_route_that_asks_it() -> None:
    """Nobody is told that something does not exist, or that nothing is there, by a store that did not answer."""
    without = {
        "/health/live",
        "/openapi.json",
        "/docs",
        "/v1/actions",
        "/v1/caller",
        "/v1/definitions/validate",
        "/v1/definitions/diagram",
        "/v1/workflows",
        "/v1/metrics",  # there is no worker here
        *(f"/v1/external/{what}" for what in ("poll", "heartbeat", "complete", "fail")),  # no token, nothing to ask for
    }

    async def main(door: Door) -> None:
        for one in ALL:
            answer = await door(one.method, path_of(one), body_of(one))
            if one.path in without:
                assert answer.status_code != 503
            elif one.path in ("/health", "/health/ready"):
                assert (answer.status_code, answer.json()) == (503, {"status": "the store does not answer"})
            else:
                told(answer, 503, "store-unavailable", path_of(one).partition("?")[0])

    served(main, away())


@pytest.mark.parametrize("kind", _all_errors(), ids=lambda kind: str(kind.__name__))
def test_every_error_has_a_type_that_stays(kind: type[BaseException]) -> None:
    error = kind.__new__(kind)
    Exception.__init__(error, "what happened")
    problem, _ = problem_of(error, "/v1/x")
    known = any(issubclass(kind, one) for one, _ in STATUS)
    assert (problem.status == 500) is not known
    assert problem.title == (kind.__name__ if known else "Internal")
    assert problem.type.startswith("urn:perdure:problem:") and problem.type == problem.type.lower()


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"])
def test_a_time_that_is_outside_of_all_calendars_in_utc_is_refused(time: str) -> None:
    async def main(door: Door) -> None:
        await door("POST", E, BEGIN)
        said = time.replace("+", "%2B")
        for path in (
            f"/v1/executions?after={said}",
            f"/v1/executions?before={said}",
            f"/v1/executions/h1/state?at={said}",
        ):
            told(await door("GET", path), 422, "invalid-value", path.partition("?")[0])
        for path, body in (("/v1/executions/h1/pause", {"until": time}), ("/v1/executions/h1/resume", {"at": time})):
            told(await door("POST", path, body), 422, "invalid-value", path)

    served(main)
