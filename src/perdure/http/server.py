"""The routes as an ASGI application: authentication, limits, decoding and encoding around every handler; nothing else.

Rules kept here: a request is refused as early as it can be, and cheaply; a body has a limit of bytes and of time, and
is JSON of the strict sort; the tenant comes from the credential, and the store is told whom it answers; what
administers is noted in the audit before it is done; an answer is sent only when the verb behind it has returned.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.core.behalf import noted_already
from perdure.http.audit import note
from perdure.http.bodies import reader, taken
from perdure.http.dispatch import Dispatch, Endpoint
from perdure.http.edge import ROUTE, Edge, response_of
from perdure.http.gate import Asks, Gate
from perdure.http.problems import Refused, misshapen
from perdure.http.route import Answer, Call, Nothing, Read, Route
from perdure.http.site import Site
from perdure.runtime.app import Perdure

_encode = msgspec.json.Encoder().encode
_NO_PARAMETERS = Nothing()
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def serve(app: Perdure, asks: Asks, routes: Sequence[Route]) -> Edge:
    """An ASGI application."""
    site = Site(app.settings.api_streams, [one.label for one in routes], lambda: app.writes.waiting, app.store)
    gate = Gate(app, asks)
    endpoints = [(one.method, one.path, _endpoint(app, gate, one, site)) for one in routes]
    return Edge(Dispatch(endpoints, _not_found, _not_allowed), app.settings.api_requests, site)


def _endpoint(app: Perdure, gate: Gate, route: Route, site: Site) -> Endpoint:
    limit, deadline = app.settings.api_bytes, app.settings.api_deadline
    read = route.read or (None if route.body in (Nothing, bytes) else reader(route.body))

    async def endpoint(request: Request) -> Response:
        request.scope[ROUTE] = route.label
        try:
            caller = await gate.passed(request, route)
            _check_texts(request)
            query = _query(route, request)
            body = await _body(route, request, read, limit, deadline)
            told = request.path_params, query, body, request.headers
            call = Call(app, caller, *told, site, lambda: _listens(request))
            with noted_already(await note(route, call)):
                return _response(await gate.served(request, route, caller, route.handler(call)))
        except Exception as error:
            return response_of(error, request)

    return endpoint


async def _listens(request: Request) -> bool:
    return not await request.is_disconnected()


def _check_texts(request: Request) -> None:
    """Refuse what no id, name or value has: some stores cannot be asked for it, and logs would be torn by it."""
    for name, value in (*request.path_params.items(), *request.query_params.multi_items()):
        if _CONTROL.search(name) or _CONTROL.search(value):
            raise Refused(400, "Control Character", f"{name[:80]!r} has a control character, which nothing here has")


def _query(route: Route, request: Request) -> Any:
    if route.query is Nothing:
        if request.query_params:
            raise Refused(400, "Unknown Parameter", f"{next(iter(request.query_params))!r} is not a parameter of this")
        return _NO_PARAMETERS
    several = request.query_params.multi_items()
    lists = route.lists
    once = [(name, value) for name, value in several if name not in lists]
    if len({name for name, _ in once}) < len(once):
        raise Refused(400, "Repeated Parameter", "a parameter is given twice")
    found = _nested(once)
    for name in lists - found.keys():
        if values := request.query_params.getlist(name):
            found[name] = values
    try:
        return msgspec.convert(found, route.query, strict=False)
    except msgspec.ValidationError as error:
        raise misshapen(error) from error


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


async def _body(route: Route, request: Request, read: Read | None, limit: int, deadline: float) -> Any:
    if route.body is bytes:
        return await taken(request, limit, deadline)  # as they came: a signature is over them
    return _NO_PARAMETERS if read is None else read(request.headers, await taken(request, limit, deadline))


def _response(answer: Answer) -> Response:
    if isinstance(answer.data, AsyncIterator):
        return _Flowing(answer)
    data = answer.data if isinstance(answer.data, bytes) else _encode(answer.data)
    if answer.status == 204:
        return Response(status_code=204, headers=dict(answer.headers))
    return Response(data, answer.status, dict(answer.headers), answer.media or None)


class _Flowing(StreamingResponse):
    """An answer that goes on. Whoever counted it is told when it is over, also if nobody ever listened."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.data, answer.status, dict(answer.headers), answer.media)
        self._over = answer.over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._over is not None:
                self._over()


async def _not_found(request: Request) -> Response:
    return response_of(Refused(404, "No Such Route", f"there is nothing at {request.url.path}"), request)


async def _not_allowed(request: Request, methods: Iterable[str]) -> Response:
    allowed = {"Allow": ", ".join(sorted(methods))}
    return response_of(Refused(405, "Method Not Allowed", f"{request.method} is not for this", allowed), request)
