"""CloudEvents over HTTP: structured, binary and in batches, and what of it is plain JSON of ours.

Rules kept here: headers that begin with `ce-` make a body the data of one event, whatever its type; a body of the type
of CloudEvents is one event, or a list of them, each judged by itself.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta, Struct

from perdure.core import cloudevents
from perdure.core.cloudevents import BATCH, BINARY, STRUCTURED, Envelope
from perdure.errors import InvalidValue, UsageError
from perdure.http.bodies import is_json, media_of, parsed, reader
from perdure.http.problems import Refused
from perdure.http.route import Answer, Read

#: Events in one request.
MOST = 1000
_PREFIX = "ce-"
#: What stands for itself in a header: all that can be seen, but neither quotes nor the percent sign.
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_decode_batch = msgspec.json.Decoder(Annotated[list[Any], Meta(max_length=MOST)]).decode


class Clouds(Struct, frozen=True):
    """What came as CloudEvents; of a batch each is an event, or why it is none."""

    events: list[Envelope | UsageError]
    batch: bool = False

    @property
    def one(self) -> Envelope:
        [only] = self.events
        if isinstance(only, UsageError):
            raise only
        return only


def clouds(headers: Mapping[str, str], data: bytes) -> Clouds | None:
    """The CloudEvents of a request; None if it is none."""
    media = media_of(headers)
    if media == BATCH:
        return Clouds([_judged(one) for one in parsed(data, _decode_batch)], batch=True)
    if media == STRUCTURED:
        return Clouds([cloudevents.read(parsed(data))])
    if any(name.lower().startswith(_PREFIX) for name in headers):
        return Clouds([_binary(headers, media, data)])
    return None


def or_json(kind: Any) -> Read:
    """Reads CloudEvents, or else JSON of this type."""
    plain = reader(kind)

    def read(headers: Mapping[str, str], data: bytes) -> Any:
        found = clouds(headers, data)
        return plain(headers, data) if found is None else found

    return read


def only(headers: Mapping[str, str], data: bytes) -> Clouds:
    """Reads CloudEvents, and nothing else; an object in plain JSON may be one."""
    found = clouds(headers, data)
    if found is not None:
        return found
    if (media := media_of(headers)) != "application/json":
        raise Refused(415, "Unsupported Media Type", f"{media} without ce- headers is no CloudEvent: send {STRUCTURED}")
    return Clouds([cloudevents.read(parsed(data))])


def wants(headers: Mapping[str, str]) -> bool:
    """Whether the answer should be CloudEvents."""
    accepted = headers.get("accept", "")
    return STRUCTURED in accepted or BATCH in accepted


def binary(document: Mapping[str, Any]) -> Answer:
    """One event in binary form: attributes in headers, the data as the body."""
    attributes = {name: value for name, value in document.items() if name not in ("data", BINARY)}
    media = str(attributes.pop("datacontenttype", ""))
    headers = {f"{_PREFIX}{name}": quote(_said(value), safe=_PLAIN) for name, value in attributes.items()}
    # Among the headers it stays as it is; as the type of an answer it would get a charset.
    return Answer(_body(document, media), headers=headers | ({"content-type": media} if media else {}), media="")


def _body(document: Mapping[str, Any], media: str) -> bytes:
    if BINARY in document:
        return base64.b64decode(msgspec.json.decode(document[BINARY], type=str))
    if "data" not in document:
        return b""
    data = msgspec.json.decode(document["data"])
    if isinstance(data, str) and not is_json(media_of({"content-type": media} if media else {})):
        return data.encode()
    return bytes(document["data"])


def _said(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _judged(document: Any) -> Envelope | UsageError:
    try:
        return cloudevents.read(document)
    except UsageError as error:
        return error


def _binary(headers: Mapping[str, str], media: str, data: bytes) -> Envelope:
    document: dict[str, Any] = {
        name.lower().removeprefix(_PREFIX): unquote(value)
        for name, value in headers.items()
        if name.lower().startswith(_PREFIX)
    }
    if "data" in document or "datacontenttype" in document:
        raise InvalidValue("the data of a CloudEvent in binary mode is the body, and its type is Content-Type")
    if "content-type" in headers:
        document["datacontenttype"] = headers["content-type"]
    if data and is_json(media):
        document["data"] = parsed(data)
    elif data and media.startswith("text/"):
        document["data"] = _text(data)
    elif data:
        document[BINARY] = base64.b64encode(data).decode()
    return cloudevents.read(document)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"the body is text, but not in UTF-8: {error}") from error
