"""From a path to its endpoint: one look into a dict, whatever the number of routes.

Rules kept here: a path that has no variable part is found before one that has; a path that exists, but not for this
method, is told from one that does not exist. A slash more or less is another path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]
#: Segments of a path; None stands for a parameter.
_Shape = tuple[str | None, ...]


class Dispatch:
    """An ASGI application of endpoints by method and path."""

    def __init__(
        self,
        endpoints: Iterable[tuple[str, str, Endpoint]],
        missing: Endpoint,
        other_method: Callable[[Request, Iterable[str]], Awaitable[Response]],
    ) -> None:
        self._missing = missing
        self._other_method = other_method
        self._found: dict[_Shape, dict[str, tuple[Endpoint, list[str]]]] = {}
        for method, path, endpoint in endpoints:
            parts = path.split("/")
            names = [part[1:-1] for part in parts if part.startswith("{")]
            shape = tuple(None if part.startswith("{") else part for part in parts)
            self._found.setdefault(shape, {})[method] = endpoint, names
        #: For each number of segments, where the parameters of its paths stand; those with fewest first.
        self._places: dict[int, list[tuple[int, ...]]] = {}
        for shape in self._found:
            places = tuple(place for place, part in enumerate(shape) if part is None)
            known = self._places.setdefault(len(shape), [])
            if places not in known:
                known.append(places)
                known.sort(key=len)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        request = Request(scope, receive)
        response = await self._answer(request, scope)
        await response(scope, receive, send)

    async def _answer(self, request: Request, scope: Scope) -> Response:
        path, root = scope["path"], scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        others: Mapping[str, object] = {}
        parts = path.split("/")
        for places in self._places.get(len(parts), ()):
            shape: list[str | None] = list(parts)
            for place in places:
                shape[place] = None
            methods = self._found.get(tuple(shape))
            if methods is None or not all(parts[place] for place in places):
                continue
            if method in methods:
                endpoint, names = methods[method]
                scope["path_params"] = {name: parts[place] for name, place in zip(names, places, strict=True)}
                return await endpoint(request)
            others = others or methods
        return await (self._other_method(request, others) if others else self._missing(request))


async def _live(receive: Receive, send: Send) -> None:
    """Servers ask whether to begin and to end; there is nothing to do for it."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
