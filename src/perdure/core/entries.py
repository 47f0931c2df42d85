"""Entries: the events of a log as people read them, each with a line that says what happened."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core import events as ev
from perdure.core.commands import short
from perdure.core.durations import show
from perdure.core.moments import moment
from perdure.core.records import Row
from perdure.errors import Undecodable


class Entry(Struct, frozen=True):
    """One event of a log, readable."""

    version: int
    at: datetime
    type: str
    text: str
    data: dict[str, Any]
    fence: int = 0
    message_id: str | None = None


def entry(row: Row) -> Entry:
    """A row as people read it, also one that this release cannot."""
    try:
        event = ev.read(row)
    except Undecodable as error:
        text = str(error)
        return Entry(row.version, moment(row.at), f"Unknown{row.type}", text, {}, row.fence, row.message_id)
    data = msgspec.json.decode(row.data)
    return Entry(
        row.version, moment(row.at), type(event).__name__, _text(event, row.at), data, row.fence, row.message_id
    )


def _text(event: ev.Event, at: int) -> str:
    match event:
        case ev.Started():
            origin = (
                f", forked from {event.forked}"
                if event.forked
                else f", child of {event.parent}"
                if event.parent
                else ""
            )
            return f"{event.workflow}@{event.version} {short(event.input, 80)}{origin}"
        case ev.Completed():
            return short(event.result, 100) + (f" ({event.note})" if event.note else "")
        case ev.Failed():
            return f"{event.error.type}: {event.error.message}"
        case ev.CancelRequested() | ev.Cancelled() | ev.Redriven() | ev.Resumed():
            return event.reason
        case ev.Paused():
            return (
                f"until {moment(event.until):%Y-%m-%d %H:%M:%S} {event.reason}".strip() if event.until else event.reason
            )
        case ev.TakenOver():
            return f"by {event.holder}"
        case ev.Stuck():
            return f"{event.cause}: {event.reason}"
        case ev.Restarted():
            return short(event.input, 100)
        case ev.ActionSettled():
            took = f" in {show(at - event.began)}" if event.began else ""
            tries = f", attempt {event.attempts}" if event.attempts > 1 else ""
            if event.error is not None:
                return f"{event.name} failed: {event.error.type}: {event.error.message}{tries}"
            return f"{event.name} → {short(event.result, 80)}{took}{tries}"
        case ev.ActionAttempted():
            then = "none is left" if event.spent else f"again in {show(max(0, event.due - at))}"
            if event.put_off:
                return f"{event.name} put off: {event.error.message}; {then}"
            return f"{event.name} attempt {event.attempt}: {event.error.type}: {event.error.message}; {then}"
        case ev.ActionScheduled():
            return f"{event.name} on queue {event.queue}"
        case ev.ActionStarted() | ev.ActionCancelled():
            return event.name
        case ev.ActionProgressed():
            return short(event.details, 100)
        case ev.TimerStarted():
            return f"timer {event.ref}, {show(max(0, event.due - at))}"
        case ev.TimerFired() | ev.TimerCancelled():
            return f"timer {event.ref}"
        case ev.EventReceived():
            return f"{event.name} {short(event.payload, 80)}"
        case ev.EventRejected():
            return f"{event.name}: {event.reason}"
        case ev.StateChanged():
            cause = f" by {event.event}" if event.event else ""
            return f"{event.from_state or '∅'} → {event.to_state}{cause}"
        case ev.NodeStarted():
            return f"{event.node} {short(event.input, 80)}"
        case ev.NodeSettled():
            if event.error is not None:
                return f"{event.node} {event.status}: {event.error.type}: {event.error.message}"
            return f"{event.node} {event.status} → {short(event.output, 80)}"
        case ev.ChildStarted():
            return f"{event.workflow} {event.id}"
        case ev.ChildSettled():
            return f"{event.id} {event.status}"
        case ev.Marked():
            return event.name or short(event.value, 80)
        case ev.Published():
            return short(event.state, 100)
