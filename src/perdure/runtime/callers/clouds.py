"""Events of a log as CloudEvents.

Rules kept here: what came as a CloudEvent leaves with the attributes that it came with. What was sent in another form
has the id that it was sent under, and the execution as its source. What the engine itself has written is of the type
`perdure.log.NAME`, with the event as logs show it for data; its id has a slash, which no id of an event that was sent
has. So `source` and `id` tell all events apart, and an event always leaves as the same CloudEvent.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw

from perdure.core import cloudevents
from perdure.core.entries import Entry
from perdure.core.events import EventReceived
from perdure.core.moments import moment
from perdure.core.records import id_of
from perdure.runtime.callers.whereabouts import Sent

#: What the types of the engine's own events begin with.
TYPE = "perdure.log."
#: The type of an entry that came from outside.
SENT = EventReceived.__name__


def of_sent(key: str, event: Sent) -> dict[str, Any]:
    """An event that was sent to an execution; it has no time while it is not in the log."""
    if event.attributes:
        return cloudevents.write(event.attributes, event.payload)
    return _made(key, event.id, event.name, event.payload, at=moment(event.at) if event.at else None)


def of_entry(key: str, entry: Entry) -> dict[str, Any]:
    """Any event of the log of an execution."""
    data = msgspec.json.encode(entry.data if entry.type == SENT else entry)
    if entry.type == SENT:
        event = msgspec.json.decode(data, type=EventReceived)
        if event.attributes:
            return cloudevents.write(event.attributes, event.payload)
        return _made(key, event.id, event.name, event.payload, at=entry.at)
    id = id_of(key)
    return _made(key, f"{id}/{entry.version}", TYPE + entry.type, Raw(data), subject=id, at=entry.at)


def _made(key: str, id: str, type: str, data: Raw, *, subject: str = "", at: datetime | None = None) -> dict[str, Any]:
    made: dict[str, str | int | bool] = {
        "specversion": cloudevents.SPEC,
        "id": id,
        "source": cloudevents.source_of(key),
        "type": type,
        "datacontenttype": "application/json",
    }
    if subject:
        made["subject"] = subject
    if at is not None:
        made["time"] = msgspec.to_builtins(at)
    return cloudevents.write(made, data)
