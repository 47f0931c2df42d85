"""CloudEvents 1.0: the form in which events leave."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

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


def source_of(key: str) -> str:
    """Where an event of an execution comes from, as a relative reference."""
    return f"/tenants/{tenant_of(key)}/executions/{id_of(key)}"
