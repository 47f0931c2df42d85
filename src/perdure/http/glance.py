"""What an observer sees: that things run and how they stand, but none of the data.

Rules kept here: every answer is made anew of what is known to be no data, so a field that somebody adds is not shown
before it is named here; free text, of people as of errors, is data. Ids, names (of workflows, actions, events, states,
nodes, queues, lanes, workers and users), numbers of the engine and times are none, and of an error its class stays.
What is taken away is marked, or left out where no mark would fit. Only answers are changed: the log is as it was.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core import entries, events as ev, reasons
from perdure.core.moments import to_micros
from perdure.core.records import ENDED
from perdure.http.forms import ExecutionOut, ExecutionsOut
from perdure.runtime.callers.paging import LogPage
from perdure.runtime.definitions.definitions import Listing, Version
from perdure.runtime.managing.dead import Dead, DeadPage
from perdure.runtime.managing.scheduled import Fired, Schedule

#: Stands where data is.
REDACTED = "redacted"
_RAW = Raw(msgspec.json.encode(REDACTED))
_NAMES = frozenset(
    {"by", "event", "from_state", "holder", "name", "node", "parent_queue", "queue", "to_state", "worker", "workflow"}
)
_IDS = frozenset({"asked", "forked", "hash", "id", "parent", "ref", "version"})
_TIMES = frozenset({"began", "deadline", "due", "until"})
_COUNTS = frozenset({"attempt", "attempts", "draws", "free", "lapses", "put_off", "since", "tries"})
_SORTS = frozenset({"cause", "forced", "inner", "kind", "now", "place", "spent", "status", "type"})
#: The fields of events that are no data, if they are words or numbers.
KEPT = _NAMES | _IDS | _TIMES | _COUNTS | _SORTS
_EVENTS = {kind.__name__: kind for kind in ev.NUMBERS}
#: Of what an execution can wait for, that whose text quotes no event, no error and nobody.
_PLAIN = frozenset({"child", "lane", "quota", "tenant", "timer", "worker"})
#: What is said of the rest.
_SAYS = {
    "action": "its actions run, or are to run",
    "event": "waits for an event",
    "nothing": "it has ended",
    "pause": "it is paused",
    "person": "it is stuck; mend it, then retry the execution",
}
S = TypeVar("S", bound=Struct)


def execution(one: ExecutionOut) -> ExecutionOut:
    return ExecutionOut(
        one.id,
        one.workflow,
        one.definition,
        one.status,
        one.version,
        one.queue,
        one.started_at,
        one.changed_at,
        None if one.state is None else REDACTED,
        REDACTED if one.status in ENDED else None,  # also for one that has none
        one.parent,
        one.lane,
        one.mail,
        began_as=one.began_as,
        rests=one.rests,
    )


def executions(found: ExecutionsOut) -> ExecutionsOut:
    return ExecutionsOut([execution(one) for one in found.executions], found.next)


def log(page: LogPage) -> LogPage:
    return LogPage([entry(one) for one in page.events], page.next)


def entry(one: entries.Entry) -> entries.Entry:
    """The event without its data, told in the same words as the whole one."""
    try:
        event = msgspec.json.decode(msgspec.json.encode(one.data), type=_EVENTS[one.type])
    except (KeyError, msgspec.MsgspecError):  # of a release that this one does not know
        return entries.Entry(one.version, one.at, one.type, REDACTED, {}, one.fence, one.message_id)
    worker = str(one.data.get("worker", ""))
    return entries.entry(
        ev.row(_without_data(event), one.version, to_micros(one.at), one.fence, one.message_id, worker)
    )


def _without_data(event: S) -> S:
    return structs.replace(event, **{name: _seen(name, getattr(event, name)) for name in event.__struct_fields__})


def _seen(name: str, value: object) -> object:
    match value:
        case None:
            return None
        case ev.Error() | ev.CancelRequested():
            return _without_data(value)
        case Struct():
            return None
        case Raw():
            return _RAW  # also for null, which would be an answer
        case str() | int() if name in KEPT:
            return value
        case str():
            return REDACTED if value else ""
        case _:
            return type(value)()  # no mark would fit: a list, a table or a number with nothing in it


def why(told: reasons.Why) -> reasons.Why:
    return reasons.Why(told.id, told.status, [_reason(one) for one in told.reasons], told.holder)


def _reason(one: reasons.Reason) -> reasons.Reason:
    text = one.text if one.kind in _PLAIN else _SAYS.get(one.kind, REDACTED)
    return reasons.Reason(one.kind, text, one.since, one.until)


def dead(page: DeadPage) -> DeadPage:
    return DeadPage([_dead(one) for one in page.dead], page.next)


def _dead(one: Dead) -> Dead:
    return Dead(
        id=one.id,
        tenant=one.tenant,
        workflow=one.workflow,
        definition=one.definition,
        queue=one.queue,
        cause=one.cause,
        reason=REDACTED,
        since=one.since,
        version=one.version,
        started_at=one.started_at,
        lapses=one.lapses,
        tries=one.tries,
        mail=one.mail,
    )


def listing(one: Listing) -> Listing:
    return Listing(one.name, one.kind, one.newest, [_version(version) for version in one.versions], one.draft)


def _version(one: Version) -> Version:
    deprecated = None if one.deprecated is None else REDACTED
    return Version(one.version, one.hash, one.published_at, one.by, deprecated)


def schedule(one: Schedule) -> Schedule:
    return Schedule(
        name=one.name,
        workflow=one.workflow,
        args=[REDACTED],  # however many there are
        version=one.version,
        cron=one.cron,
        every=one.every,
        at=one.at,
        timezone=one.timezone,
        start=one.start,
        end=one.end,
        overlap=one.overlap,
        catch_up=one.catch_up,
        jitter=one.jitter,
        note=REDACTED if one.note else "",
        paused=one.paused,
        ended=one.ended,
        next=one.next,
        started=one.started,
        skipped=one.skipped,
        failed=one.failed,
        recent=[Fired(fire.id, fire.at, fire.fate, REDACTED if fire.reason else "") for fire in one.recent],
        pending=one.pending,
        created_at=one.created_at,
    )
