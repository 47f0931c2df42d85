"""Bodies of requests: JSON of a declared type, with a limit of depth.

Rules kept here: the type of the media decides before anything is parsed, and what is not JSON is told from what is JSON
of another shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from perdure.http.problems import Refused
from perdure.http.route import Read

_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])')
#: How deep a body may be nested.
DEPTH = 64


def reader(kind: Any) -> Read:
    """Reads JSON of this type, and nothing else."""
    decode = msgspec.json.Decoder(kind).decode

    def read(headers: Mapping[str, str], data: bytes) -> Any:
        media = media_of(headers)
        if media != "application/json" and not media.endswith("+json"):
            raise Refused(415, "Unsupported Media Type", f"{media} is not JSON: send application/json")
        return parsed(data, decode)

    return read


def media_of(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "application/json").partition(";")[0].strip().lower()


def parsed(data: bytes, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
    """JSON that is not nested too deep, or Refused; a ValidationError where it is of another type."""
    if _depth(data) > DEPTH:
        raise Refused(400, "Too Deep", f"the body is nested deeper than {DEPTH}")
    try:
        return decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, "Not JSON", f"the body is not JSON: {error}") from error


def _depth(data: bytes) -> int:
    deepest = depth = 0
    for match in _BRACKETS.finditer(data):
        if match[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif match[2]:
            depth -= 1
    return deepest
