"""CloudEvents 1.0: the form in which events leave."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perdure.core.records import id_of, tenant_of

SPEC: Literal["1.0"] = "1.0"


class CloudEvent(Struct, frozen=True, omit_defaults=True):
    """An event that a workflow emitted. Whoever gets it twice recognises it by `source` and `id`."""

    id: str
    source: str
    type: str
    time: datetime
    data: Any = None
    subject: str = ""
    datacontenttype: str = "application/json"
    specversion: Literal["1.0"] = SPEC


def structured(event: CloudEvent) -> bytes:
    """The event as one JSON document (`application/cloudevents+json`), with all that the specification requires."""
    named = {name: getattr(event, name) for name in event.__struct_fields__}
    return msgspec.json.encode({name: value for name, value in named.items() if value or name == "data"})


def source_of(key: str) -> str:
    """Where an event of an execution comes from, as a relative reference."""
    return f"/tenants/{tenant_of(key)}/executions/{id_of(key)}"
