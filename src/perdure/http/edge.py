"""The edge: what holds for every request and every answer, before and after any route.

Rules kept here: no more than so many requests are served at once, and reads are not kept out by writes that wait; the
headers of a request have a bound, and those that decide something come once; every answer tells browsers to believe its
type, and not to keep it; what a request starts and sends belongs to the trace that it names. No page of another site
may call: there are no CORS headers, and no cookies that would help.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.core.behalf import on_behalf_of
from perdure.core.tracing import HEADER, Trace, of_headers, tracing
from perdure.http.problems import MEDIA, Refused, problem_of
from perdure.http.site import Site

#: The headers of a request, and the bytes of their names and values.
MOST_HEADERS, HEADER_BYTES = 100, 32_768
#: A second one of these would leave open which of the two counts.
_ONCE = (b"authorization", b"content-type", b"content-length", b"content-encoding", b"host", b"idempotency-key")
#: Whoever checks the health of a process wants to know, above all, while it is busy.
_ALWAYS = "/health/"
#: After an answer to a request that was not read to its end, the connection is of no use.
_CLOSE = {"Connection": "close"}
#: What was asked for, and what came of it, for those who count.
ROUTE, _PROBLEM = "perdure.route", "perdure.problem"
_TRACE = HEADER.encode()
_YEAR = "max-age=31536000"
_SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"


class Edge:
    """An ASGI application around another; `most` is how many reads, and how many writes, are served at once."""

    def __init__(self, app: ASGIApp, most: int, site: Site) -> None:
        self._app = app
        self._most = most
        self._counts = site.counts
        #: Told by whoever runs the server that it is about to end.
        self.leaving = site.leaving
        self._busy: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._counted(scope, _with_headers(send, scope["scheme"] == "https"))
        try:
            _check_headers(scope["headers"])
            sort = self._enter(scope)
        except Refused as error:
            await response_of(error, Request(scope))(scope, receive, answer)
            return
        try:
            # Whoever calls is set once it is known, and forgotten with the request.
            with on_behalf_of(None), tracing(_trace(scope["headers"])):
                await self._app(scope, receive, answer)
        finally:
            self._busy[sort] -= 1

    def _counted(self, scope: Scope, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counts.answered(scope.get(ROUTE, ""), message["status"], scope.get(_PROBLEM, ""))
            await send(message)

        return sending

    def _enter(self, scope: Scope) -> str:
        sort = "reads" if scope["method"] in ("GET", "HEAD") else "writes"
        if f"{scope['path']}/".startswith(_ALWAYS):
            sort = "checks"
        elif self._busy[sort] >= self._most:
            raise Refused(503, "Busy", f"{self._most} {sort} are being served: try again", {"Retry-After": "1"})
        self._busy[sort] += 1
        return sort


def _trace(headers: list[tuple[bytes, bytes]]) -> Trace:
    """That of the request; one without gets one of its own, for the lines of the log that it leads to."""
    given = of_headers([value for name, value in headers if name == _TRACE])
    return given or Trace(os.urandom(16).hex(), os.urandom(8).hex(), made=True)


def response_of(error: BaseException, request: Request) -> Response:
    """The answer that an error is."""
    problem, headers = problem_of(error, request.url.path)
    request.scope[_PROBLEM] = problem.type.rpartition(":")[2]
    return Response(msgspec.json.encode(problem), problem.status, dict(headers), MEDIA)


def _check_headers(headers: list[tuple[bytes, bytes]]) -> None:
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > HEADER_BYTES:
        detail = f"a request has at most {MOST_HEADERS} headers, of {HEADER_BYTES:,} bytes together"
        raise Refused(431, "Headers Too Large", detail, _CLOSE)
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise Refused(400, "Repeated Header", f"the header {name.decode()} is given twice", _CLOSE)
    if b"transfer-encoding" in names and b"content-length" in names:
        # A proxy before us may go by the other one, and take the rest of the body for a request.
        raise Refused(400, "Two Lengths", "a body has a Content-Length or a Transfer-Encoding, not both", _CLOSE)


def _with_headers(send: Send, secure: bool) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: Any = MutableHeaders(scope=message)
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Cache-Control", "no-store")
            headers.setdefault("Referrer-Policy", "no-referrer")
            if secure:
                headers.setdefault("Strict-Transport-Security", _YEAR)
            if headers.get("content-type", "").startswith("image/svg+xml"):
                headers.setdefault("Content-Security-Policy", _SVG_POLICY)
        await send(message)

    return sending
