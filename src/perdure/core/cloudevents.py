"""CloudEvents 1.0: the form in which events leave, and in which they may come.

What comes is kept as an `Envelope`: its attributes as they were written, so that they leave as they came, and its data
as JSON. Two that have the same `source` and `id` are the same event; together they give the id of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, field

from perdure.core.encoding import digest, encode
from perdure.core.records import id_of, tenant_of
from perdure.errors import InvalidValue, LimitReached

SPEC: Literal["1.0"] = "1.0"
#: The types of media: one event as a JSON document, and a list of them.
STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
Attribute: TypeAlias = str | int | bool
#: How many attributes an event may have, and how many bytes all of them together.
MOST, MOST_BYTES = 100, 32_768
_NAME = re.compile(r"[a-z0-9]+")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_TEXTS = ("specversion", "id", "source", "type", "subject", "datacontenttype", "dataschema", "time")
#: Not the name of an attribute, so it can stand among them: the data is binary, and base64 here.
BINARY = "data_base64"


class CloudEvent(Struct, frozen=True, omit_defaults=True):
    """An event that a workflow emitted, or one to be routed. Whoever gets it twice knows it by `source` and `id`."""

    id: str
    source: str
    type: str
    time: datetime
    data: Any = None
    subject: str = ""
    # Made by functions, because what has its default value is not written, and these have to be.
    datacontenttype: str = field(default_factory=lambda: "application/json")
    specversion: Literal["1.0"] = field(default_factory=lambda: SPEC)


class Envelope(Struct, frozen=True):
    """An event that came as a CloudEvent. Binary data is a text in base64."""

    attributes: dict[str, Attribute]
    data: Raw = Raw(b"null")

    @property
    def id(self) -> str:
        return str(self.attributes["id"])

    @property
    def source(self) -> str:
        return str(self.attributes["source"])

    @property
    def type(self) -> str:
        return str(self.attributes["type"])

    @property
    def event_id(self) -> str:
        """The id of ours: the same for the same `source` and `id`, and nothing else."""
        return f"ce-{digest(self.source, self.id)[:40]}"

    def document(self) -> dict[str, Any]:
        return write(self.attributes, self.data)


def read(document: Any) -> Envelope:
    """An event in its JSON form, or InvalidValue.

    >>> read({"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.paid", "data": {"order": 7}}).type
    'order.paid'
    """
    if not isinstance(document, Mapping):
        raise InvalidValue("a CloudEvent is an object")
    attributes = {
        name: _attribute(name, value)
        for name, value in document.items()
        if name not in ("data", BINARY) and value is not None
    }
    for name in ("specversion", "id", "source", "type"):
        if not attributes.get(name):
            raise InvalidValue(f"a CloudEvent has an attribute {name!r}, which this one lacks")
    if attributes["specversion"] != SPEC:
        raise InvalidValue(f"CloudEvents {attributes['specversion']} are not known here: send version {SPEC}")
    if len(attributes) > MOST or len(msgspec.json.encode(attributes)) > MOST_BYTES:
        raise LimitReached(f"a CloudEvent has at most {MOST} attributes, of {MOST_BYTES:,} bytes together")
    if (binary := document.get(BINARY)) is None:
        return Envelope(attributes, Raw(encode(document.get("data"))))
    if not isinstance(binary, str) or document.get("data") is not None:
        raise InvalidValue(f"{BINARY} is a text, and there is no data beside it")
    return Envelope(attributes | {BINARY: True}, Raw(encode(binary)))


def of(event: CloudEvent | Mapping[str, Any]) -> Envelope:
    """One that was made here, or its JSON form."""
    return read(msgspec.to_builtins(event) if isinstance(event, CloudEvent) else event)


def write(attributes: Mapping[str, Attribute], data: Raw) -> dict[str, Any]:
    """The JSON form."""
    written: dict[str, Any] = {name: value for name, value in attributes.items() if name != BINARY}
    if bytes(data) != b"null":
        written[BINARY if BINARY in attributes else "data"] = data
    return written


def source_of(key: str) -> str:
    """Where an event of an execution comes from, as a relative reference."""
    return f"/tenants/{tenant_of(key)}/executions/{id_of(key)}"


def _attribute(name: str, value: Any) -> Attribute:
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"{name[:80]!r} cannot be an attribute of a CloudEvent: a name has a-z and 0-9 only")
    if not isinstance(value, str | int) or (name in _TEXTS and not isinstance(value, str)):
        raise InvalidValue(f"the attribute {name!r} of a CloudEvent cannot be {str(value)[:60]!r}")
    if name == "time" and not _TIME.fullmatch(str(value)):
        raise InvalidValue(f"the time of a CloudEvent is like 2030-01-31T12:00:00Z, not {str(value)[:60]!r}")
    return value
