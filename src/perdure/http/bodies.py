"""Bodies of requests: read within limits of bytes and time, and decoded if they are JSON of the strict sort.

Rules kept here: what cannot be of use is refused before it is read; the type of the media decides before anything is
parsed, and what is not JSON is told from what is JSON of another shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.http import strict
from perdure.http.problems import Refused, misshapen
from perdure.http.route import Read

if TYPE_CHECKING:  # clients import what goes over the wire, and need no server for it
    from starlette.requests import Request

#: The connection is of no use after an answer to a request that was not read to its end.
_CLOSE = {"Connection": "close"}


async def taken(request: Request, limit: int, deadline: float) -> bytes:
    """The body as it came."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise unsupported("bodies are taken as they are, not compressed: send no Content-Encoding")
    too_large = Refused(
        413,
        "Too Large",
        f"the body has more than {limit:,} bytes (api_bytes): send less, or in several requests",
        _CLOSE,
    )
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


def reader(kind: Any) -> Read:
    """Reads JSON of this type, and nothing else."""
    decode = msgspec.json.Decoder(kind).decode

    def read(headers: Mapping[str, str], data: bytes) -> Any:
        media = media_of(headers)
        if not is_json(media):
            raise unsupported(f"{media[:80]} is not JSON: send application/json")
        _check_charset(headers)
        return parsed(data, decode)

    return read


def media_of(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "application/json").partition(";")[0].strip().lower()


def is_json(media: str) -> bool:
    return media == "application/json" or media.endswith("+json")


def _check_charset(headers: Mapping[str, str]) -> None:
    for parameter in headers.get("content-type", "").lower().split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            raise unsupported("JSON is UTF-8, and no other charset")


def parsed(data: bytes, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
    """JSON of the strict sort and of the right type, or Refused."""
    strict.check(data)
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise misshapen(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, "Not JSON", f"the body is not JSON: {error}") from error


def unsupported(detail: str) -> Refused:
    return Refused(415, "Unsupported Media Type", detail, {"Accept-Encoding": "identity"})
