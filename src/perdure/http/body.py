"""Bodies of requests: read within limits of bytes and time, and decoded if they are JSON of the strict sort."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from perdure.http import strict
from perdure.http.problems import Refused

#: The connection is of no use after an answer to a request that was not read to its end.
_CLOSE = {"Connection": "close"}


async def decoded(request: Request, decode: Callable[[bytes], Any], limit: int, deadline: float) -> Any:
    """The body as a handler takes it."""
    _check_kind(request.headers)
    data = await taken(request, limit, deadline)
    strict.check(data)
    try:
        return decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, "Not JSON", f"the body is not JSON: {error}") from error


def _check_kind(headers: Mapping[str, str]) -> None:
    kind, *parameters = (part.strip().lower() for part in headers.get("content-type", "application/json").split(";"))
    if kind != "application/json" and not kind.endswith("+json"):
        raise _unsupported(f"{kind[:80]} is not JSON: send application/json")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            raise _unsupported("JSON is UTF-8, and no other charset")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise _unsupported("bodies are taken as they are, not compressed: send no Content-Encoding")


def _unsupported(detail: str) -> Refused:
    return Refused(415, "Unsupported Media Type", detail, {"Accept-Encoding": "identity", **_CLOSE})


async def taken(request: Request, limit: int, deadline: float) -> bytes:
    """The body as it came."""
    too_large = Refused(413, "Too Large", f"the body has more than {limit:,} bytes", _CLOSE)
    said = request.headers.get("content-length", "")
    if said.isdecimal() and len(said) < 20 and int(said) > limit:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(deadline):
            async for part in request.stream():
                data += part
                if len(data) > limit:
                    raise too_large
    except TimeoutError:
        raise Refused(408, "Too Slow", f"the body did not arrive within {deadline:g} seconds", _CLOSE) from None
    return bytes(data)
