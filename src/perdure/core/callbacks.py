"""Callbacks: whom to tell how an execution ended, and what they are told.

The wish is part of the first row of the log, so it is made durable by the start itself; the end of the execution and
the execution that tells of it are one commit. Rules kept here: what is told is a CloudEvent whose id follows from the
execution alone, so it is the same however often it is sent.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from perdure.core.cloudevents import CloudEvent, source_of
from perdure.core.encoding import digest
from perdure.core.moments import moment
from perdure.core.records import id_of

End: TypeAlias = Literal["completed", "failed", "cancelled"]
ENDS: tuple[End, ...] = get_args(End)
TYPE = "perdure.execution."


class Callback(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where the end of an execution is posted, signed.

    `secret` is a reference to what it is signed with, never the secret itself; `events` are the ends that are told.
    """

    url: str
    secret: str
    events: tuple[End, ...] = ENDS


class Ended(Struct, frozen=True, omit_defaults=True):
    """The end of an execution, without its result: that stays where it is until somebody is told."""

    key: str
    workflow: str
    status: str
    at: int  # microseconds since the epoch
    correlation: str = ""


def message_id(*parts: str) -> str:
    """An id for a message to others: of letters and digits, whatever its parts have in them."""
    return f"msg_{digest(*parts)[:40]}"


def told(ended: Ended, result: Any) -> CloudEvent:
    """What is sent; the result of what did not succeed is its error."""
    name = "result" if ended.status == "completed" else "error"
    data = {"id": id_of(ended.key), "workflow": ended.workflow, "status": ended.status, name: result}
    if ended.correlation:
        data["correlation"] = ended.correlation
    id = message_id("callback", ended.key, ended.status)
    return CloudEvent(id, source_of(ended.key), TYPE + ended.status, moment(ended.at), data, id_of(ended.key))
