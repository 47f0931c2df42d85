"""The routes on Starlette: authentication, limits, decoding and encoding around every handler; nothing else.

Rules kept here: a request is refused as early as it can be, and cheaply; a body has a limit of bytes and of depth; the
tenant comes from the credential; what administers is noted in the audit before it is done; an answer is sent only when
the verb behind it has returned.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as Path

from perdure.http.audit import note
from perdure.http.caller import ANYBODY, Caller
from perdure.http.leaving import Leaving
from perdure.http.problems import MEDIA, Refused, problem_of
from perdure.http.route import Answer, Call, Nothing, Route
from perdure.runtime.app import Perdure

_encode = msgspec.json.Encoder().encode
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])')
#: How deep a body may be nested.
DEPTH = 64
_NO_PARAMETERS = Nothing()


class Asks(Protocol):
    """Says who calls, or raises."""

    async def caller(self, headers: Mapping[str, str]) -> Caller: ...


def serve(app: Perdure, asks: Asks, routes: Sequence[Route], limit: int = 2_000_000) -> Starlette:
    """An ASGI application; `limit` is of the bytes of a body."""
    leaving = Leaving()
    paths = [
        Path(one.path, _endpoint(app, asks, one, limit, leaving), methods=[one.method], name=one.name) for one in routes
    ]
    handlers = {404: _not_found, 405: _not_allowed, Exception: _broken}
    served = Starlette(routes=paths, exception_handlers=handlers)
    served.state.leaving = leaving
    return served


def _endpoint(
    app: Perdure, asks: Asks, route: Route, limit: int, leaving: Leaving
) -> Callable[[Request], Awaitable[Response]]:
    decode = None if route.body in (Nothing, bytes) else msgspec.json.Decoder(route.body).decode

    async def endpoint(request: Request) -> Response:
        try:
            caller = ANYBODY if route.scope is None else await asks.caller(request.headers)
            if route.scope is not None:
                caller.require(route.scope)
            query = _query(route, request)
            # Bytes are handed on as they came: a signature is over them.
            body = await _bytes(request, limit) if route.body is bytes else await _body(request, decode, limit)
            told = request.path_params, query, body, request.headers
            call = Call(app, caller, *told, leaving, lambda: _listens(request))
            await note(route, call)
            return _response(await route.handler(call))
        except Exception as error:
            return _problem(error, request)

    return endpoint


async def _listens(request: Request) -> bool:
    return not await request.is_disconnected()


def _query(route: Route, request: Request) -> Any:
    if route.query is Nothing:
        if request.query_params:
            raise Refused(400, "Unknown Parameter", f"{next(iter(request.query_params))!r} is not a parameter of this")
        return _NO_PARAMETERS
    several = request.query_params.multi_items()
    if len({name for name, _ in several}) < len(several):
        raise Refused(400, "Repeated Parameter", "a parameter is given twice")
    return msgspec.convert(_nested(several), route.query, strict=False)


def _nested(several: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """`field.stage=paid` is a part of `field`."""
    found: dict[str, Any] = {}
    for name, value in several:
        outer, dot, inner = name.partition(".")
        if outer in found and not (dot and isinstance(found[outer], dict)):
            raise Refused(400, "Repeated Parameter", f"{outer!r} is given twice")
        if dot:
            found.setdefault(outer, {})[inner] = value
        else:
            found[name] = value
    return found


async def _body(request: Request, decode: Callable[[bytes], Any] | None, limit: int) -> Any:
    if decode is None:
        return _NO_PARAMETERS
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refused(415, "Unsupported Media Type", f"{kind} is not JSON: send application/json")
    data = await _bytes(request, limit)
    if _depth(data) > DEPTH:
        raise Refused(400, "Too Deep", f"the body is nested deeper than {DEPTH}")
    try:
        return decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, "Not JSON", f"the body is not JSON: {error}") from error


async def _bytes(request: Request, limit: int) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit:
            raise Refused(413, "Too Large", f"the body has more than {limit:,} bytes")
    return bytes(data)


def _depth(data: bytes) -> int:
    deepest = depth = 0
    for match in _BRACKETS.finditer(data):
        if match[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif match[2]:
            depth -= 1
    return deepest


def _response(answer: Answer) -> Response:
    if isinstance(answer.data, AsyncIterator):
        return StreamingResponse(answer.data, answer.status, dict(answer.headers), answer.media)
    data = answer.data if isinstance(answer.data, bytes) else _encode(answer.data)
    if answer.status == 204:
        return Response(status_code=204, headers=dict(answer.headers))
    return Response(data, answer.status, dict(answer.headers), answer.media)


def _problem(error: BaseException, request: Request) -> Response:
    problem, headers = problem_of(error, request.url.path)
    return Response(_encode(problem), problem.status, dict(headers), MEDIA)


async def _not_found(request: Request, error: Exception) -> Response:
    return _problem(Refused(404, "No Such Route", f"there is nothing at {request.url.path}"), request)


async def _not_allowed(request: Request, error: Exception) -> Response:
    allowed = getattr(error, "headers", None) or {}
    return _problem(Refused(405, "Method Not Allowed", f"{request.method} is not for this", allowed), request)


async def _broken(request: Request, error: Exception) -> Response:
    return _problem(error, request)
