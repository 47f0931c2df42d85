"""The API on a real socket, and clients that do not keep to HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import Perdure
from perdure.http.auth import Authenticator, Open
from perdure.http.serving import listening
from tests.http.test_api import hello

_HOST = b"Host: localhost\r\n"
_POST = b"POST /v1/executions HTTP/1.1\r\n" + _HOST
_JSON = b"Content-Type: application/json\r\n"


class Wire:
    def __init__(self, host: str, port: int) -> None:
        self._place = host, port

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(*self._place)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], Any]:
        async with self() as (reader, writer):
            writer.write(data)
            return await answer(reader)


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    if headers.get("transfer-encoding") == "chunked":
        size, body = -1, b""
        while size:
            size = int(await reader.readline(), 16)
            body += await reader.readexactly(size)
            await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split()[1]), headers, json.loads(body) if body else None


def on_the_wire(test: Callable[[Wire], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        app = Perdure("memory://", **settings)
        asks = Authenticator(open=Open("acme"))
        async with asyncio.timeout(30), app, listening(app, asks, "127.0.0.1", 0) as address:
            place = urlsplit(address)
            wire = Wire(str(place.hostname), int(place.port or 0))
            await test(wire)
            # Whatever came before, the server is well.
            assert (await wire.ask(b"GET /health/ready HTTP/1.1\r\n" + _HOST + b"\r\n"))[0] == 200

    asyncio.run(main())


def body(data: bytes, head: bytes = _POST + _JSON) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(data) + data


def test_a_good_request_is_answered() -> None:
    async def main(wire: Wire) -> None:
        sent = {"workflow": hello.name, "args": ["ann"], "id": "h1"}
        status, headers, told = await wire.ask(body(json.dumps(sent).encode()))
        assert (status, told) == (202, {"id": "h1"})
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers

    on_the_wire(main)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (body(b"{"), 400),
        (body(b"{\x00}"), 400),
        (body(b"\xff\xfe{\x00}\x00"), 400),
        (body(b'{"workflow":"x","workflow":"y"}'), 400),
        (body(b"[1]"), 422),
        (body(b"{}", _POST + b"Content-Type: text/html\r\n"), 415),
        (body(b"{}", _POST + b"Content-Type: application/json; charset=utf-16\r\n"), 415),
        (body(b"{}", _POST + b"Content-Type: \xff\xfe\r\n"), 415),
        (body(b"\x1f\x8b\x08", _POST + _JSON + b"Content-Encoding: gzip\r\n"), 415),
        (body(b"{}", _POST + _JSON + _JSON), 400),
        (body(b"{}", _POST + _HOST + _JSON), 400),
        (body(b"{}", _POST + b"Content-Length: 3\r\n" + _JSON), 400),
        (body(b"{}", _POST + _JSON + b"Transfer-Encoding: chunked\r\n"), 400),
        (body(b"{}", _POST + _JSON + b"Transfer-Encoding: gzip, chunked\r\n"), 400),
        (_POST + _JSON + b"Content-Length: -1\r\n\r\n", 400),
        (_POST + _JSON + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
        (_POST + _JSON + b"Content-Length: 5000000\r\n\r\n{", 413),
        (_POST + _JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (_POST + b"".join(b"X-%d: 1\r\n" % n for n in range(10_000)) + b"\r\n", 431),
        (_POST + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"\r\n", 431),
        (_POST + b"X: " + b"x" * 200_000 + b"\r\n\r\n", 400),
        (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /v1/executions\r\n\r\n", 400),
        (b"GET /v1/executions/%00 HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
        (b"GET /v1/executions/%ff%fe/log HTTP/1.1\r\n" + _HOST + b"\r\n", 404),
        (b"GET /v1/executions/h/log?after=99999999999999999999999999 HTTP/1.1\r\n" + _HOST + b"\r\n", 404),
        (b"GET /v1/executions/h/state?at=" + b"9" * 5000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
        (b"GET /v1/executions?limit=1000000000 HTTP/1.1\r\n" + _HOST + b"\r\n", 422),
        (b"GET /v1/executions?cursor=%ed%a0%80&cursor=1 HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
        (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n" + _HOST + b"\r\n", 404),
        (b"TRACE /v1/executions HTTP/1.1\r\n" + _HOST + b"\r\n", 405),
        (b"GET /v1/executions HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET /v1/executions HTTP/1.1\r\n" + _HOST + b"Authorization: \xff\r\nAuthorization: x\r\n\r\n", 400),
    ],
)
def test_whatever_comes_is_answered_with_a_problem_of_the_senders(data: bytes, status: int) -> None:
    async def main(wire: Wire) -> None:
        got, headers, told = await wire.ask(data)
        # Whether headers are too large is told by whoever sees it first: it depends on how they arrive.
        assert got == status or (got, status) == (400, 431), told
        assert headers["content-type"] == "application/problem+json"
        assert told["status"] == got and told["detail"]

    on_the_wire(main)


def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    async def main(wire: Wire) -> None:
        async with wire() as (reader, writer):
            writer.write(_POST + _JSON + b"Content-Length: 100\r\n\r\n{")
            status, headers, told = await answer(reader)
            assert (status, told["type"]) == (408, "urn:perdure:problem:too-slow")
            assert headers["connection"] == "close"
            assert await reader.read() == b""

    on_the_wire(main, api_deadline=0.3)


def test_headers_that_come_byte_by_byte_are_given_up() -> None:
    async def main(wire: Wire) -> None:
        async with wire() as (reader, writer):

            async def drip() -> None:
                for byte in _POST + b"X: " + b"x" * 1000:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            status, _, told = await answer(reader)
            assert (status, told["type"]) == (408, "urn:perdure:problem:too-slow")
            assert await reader.read() == b""
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)

    on_the_wire(main, api_deadline=0.3)


def test_who_connects_and_says_nothing_is_cut_off() -> None:
    async def main(wire: Wire) -> None:
        async with wire() as (reader, _):
            assert await reader.read() == b""

    on_the_wire(main, api_deadline=0.3)


def test_an_answer_that_takes_its_time_is_not_cut_off() -> None:
    """Only what is yet to arrive has a deadline."""

    async def main(wire: Wire) -> None:
        sent = {"workflow": hello.name, "args": ["ann"], "id": "h1"}
        await wire.ask(body(json.dumps(sent).encode()))
        status, _, told = await wire.ask(b"GET /v1/executions/h1/result?wait=1s HTTP/1.1\r\n" + _HOST + b"\r\n")
        assert (status, told["status"]) == (200, "waiting")

    on_the_wire(main, api_deadline=0.3)


def test_two_requests_on_one_connection_are_both_answered() -> None:
    async def main(wire: Wire) -> None:
        async with wire() as (reader, writer):
            for _ in range(2):
                writer.write(b"GET /v1/executions HTTP/1.1\r\n" + _HOST + b"\r\n")
                assert (await answer(reader))[0] == 200
                await asyncio.sleep(0.2)
            assert await reader.read() == b""  # and then it says nothing

    on_the_wire(main, api_deadline=0.3)
