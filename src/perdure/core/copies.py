"""Logs as material for new executions: forks, retries, exports and imports.

A copy keeps what drove the code and drops what belonged to the original alone: its holders, pauses, open attempts, its
unsettled children. Command numbers stay, so the copied results fit; the key is new, so nothing is confused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, structs

from perdure.core import events as ev, summary, view
from perdure.core.codec import digest
from perdure.core.records import ENDED, Row, Start, definition_of
from perdure.errors import InvalidValue, UsageError

_OWN = (
    ev.TakenOver,
    ev.Paused,
    ev.Resumed,
    ev.Stuck,
    ev.Redriven,
    ev.Completed,
    ev.Failed,
    ev.Cancelled,
    ev.TimerStarted,
    ev.TimerCancelled,
)
_OF_COMMANDS = (ev.ActionScheduled, ev.ActionStarted, ev.ActionAttempted, ev.ActionProgressed, ev.ChildStarted)
FORMAT = "perdure-log/1"


def retry_point(rows: Sequence[Row]) -> int:
    """The last version that a retry keeps: before what made it fail, and before everything that was undone."""
    last = ev.read(rows[-1])
    if isinstance(last, ev.Failed | ev.Cancelled):
        return max(1, last.since)
    raise UsageError("only a failed or cancelled log has a point to retry from")


def prefix(
    rows: Sequence[Row], edits: Mapping[int, Raw], origin: str, by: str = "", acting_as: tuple[str, ...] = ()
) -> list[Row]:
    """The rows of a fork: renumbered, edited, without what belonged to the original alone; who forked began it."""
    log = [(row, ev.read(row)) for row in rows]
    if not log:
        raise UsageError("there is no log to fork from")
    if missing := edits.keys() - {row.version for row in rows}:
        raise UsageError(f"cannot edit version {min(missing)}: the fork ends before it")
    settled = {e.ref for _, e in log if isinstance(e, ev.ActionSettled | ev.ChildSettled)}
    times = _driven_at(log)
    copied: list[Row] = []
    numbers: dict[int, int] = {}
    for row, event in log:
        if isinstance(event, _OWN) or (isinstance(event, _OF_COMMANDS) and event.ref not in settled):
            continue
        if isinstance(event, ev.Started):
            seed = event.seed or origin.rpartition("@")[0]
            event = structs.replace(event, by=by, acting_as=acting_as, forked=origin, seed=seed)
        if isinstance(event, ev.Restarted) and event.lasting:
            event = structs.replace(event, lasting=[ref for ref in event.lasting if ref in settled])
        if isinstance(event, ev.Restarted) and event.buffered:
            waiting = [structs.replace(one, version=numbers.get(one.version, 0)) for one in event.buffered]
            event = structs.replace(event, buffered=waiting)
        numbers[row.version] = len(copied) + 1
        if row.version in edits:
            event = _edited(event, row.version, edits[row.version])
        copied.append(ev.row(event, len(copied) + 1, times.get(row.version, row.at), 0, row.message_id, ev.writer(row)))
    return copied


def _driven_at(log: Sequence[tuple[Row, ev.Event]]) -> dict[int, int]:
    """When inputs reached the code that came while it was paused or stuck: at the end of that, which is not copied."""
    times: dict[int, int] = {}
    kept_back: list[int] | None = None
    for row, event in log:
        if isinstance(event, ev.Paused | ev.Stuck):
            kept_back = kept_back or []
        elif isinstance(event, ev.Resumed | ev.Redriven):
            times.update(dict.fromkeys(kept_back or (), row.at))
            kept_back = None
        elif kept_back is not None:
            kept_back.append(row.version)
    return times


def _edited(event: ev.Event, version: int, value: Raw) -> ev.Event:
    match event:
        case ev.ActionSettled() | ev.ChildSettled():
            return structs.replace(event, result=value, error=None)
        case ev.EventReceived():
            return structs.replace(event, payload=value)
        case ev.Marked():
            return structs.replace(event, kind="record", value=value)
        case ev.Started() | ev.Restarted():
            return structs.replace(event, input=value)
        case _:
            raise UsageError(
                f"version {version} is a {type(event).__name__}: only results, payloads, recorded values and inputs can"
                " be edited"
            )


def as_start(key: str, rows: Sequence[Row], queue: str) -> Start:
    """A log as a new execution; one that had ended stays ended."""
    if not rows or not isinstance(first := ev.read(rows[0]), ev.Started):
        raise InvalidValue("a log begins with Started")
    if [row.version for row in rows] != list(range(1, len(rows) + 1)):
        raise InvalidValue("the versions of a log are 1, 2, 3, … without a gap")
    state = view.final(rows, key)
    ended = state.status in ENDED
    result = summary.ended(ev.read(rows[-1]))[1] if ended else None
    return Start(
        key=key,
        workflow=first.workflow,
        definition=definition_of(first.workflow, first.version, first.hash),
        queue=queue,
        sha=digest("log", *(row.data for row in rows)),
        rows=tuple(rows),
        status=state.status if ended else "open",  # type: ignore[arg-type]
        result=result,
        state=msgspec.json.encode(state.published) if state.published else None,
        base=state.base,
        correlation=first.correlation or None,
        tags=first.tags,
    )


def export(key: str, queue: str, rows: Sequence[Row]) -> dict[str, Any]:
    """A log as plain JSON."""
    return {
        "format": FORMAT,
        "key": key,
        "queue": queue,
        "rows": [
            {
                "version": row.version,
                "type": type(ev.read(row)).__name__,
                "number": row.type,
                "at": row.at,
                "fence": row.fence,
                "message_id": row.message_id,
                "data": msgspec.json.decode(row.data),
            }
            for row in rows
        ],
    }


def restore(document: Any) -> tuple[str, list[Row]]:
    """Queue and rows of an exported log, or InvalidValue."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidValue(f"this is not an exported log: its format is not {FORMAT!r}")
    try:
        rows = [
            Row(r["version"], r["number"], msgspec.json.encode(r["data"]), r["at"], r["fence"], r["message_id"])
            for r in document["rows"]
        ]
    except (KeyError, TypeError) as error:
        raise InvalidValue(f"the exported log is damaged: {error!r}") from error
    return str(document.get("queue", "default")), rows
