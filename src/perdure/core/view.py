"""The one read model: what a log says, for the API, the command line and whoever else looks.

`fold` derives the state of an execution from its rows, at any version, without its code. `why` turns the summary row
and that state into sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core import events as ev
from perdure.core.commands import short
from perdure.core.durations import show
from perdure.core.records import ENDED, Head, Row, definition_of, id_of
from perdure.core.tracing import of_execution
from perdure.errors import Undecodable

_decode = msgspec.json.decode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


class Entry(Struct, frozen=True):
    """One event of a log, readable."""

    version: int
    at: datetime
    type: str
    text: str
    data: dict[str, Any]
    fence: int = 0
    message_id: str | None = None


class ActionState(Struct):
    """What the log knows of one action."""

    ref: int
    name: str
    args: Any = None
    status: str = "open"  # open, retrying, spent, completed, failed, cancelled
    attempts: int = 0
    began: int | None = None
    ended: int | None = None
    next: int | None = None
    error: ev.Error | None = None
    progress: Any = None
    result: Any = None
    worker: str = ""  # that made the last attempt


class NodeState(Struct):
    """What the log knows of one node of a graph, or one task of a document; in a loop, of one round of it."""

    node: str
    status: str = "open"  # open, completed, failed, skipped, cancelled
    input: Any = None
    output: Any = None
    error: ev.Error | None = None
    attempts: int = 0
    began: int = 0
    ended: int | None = None


class State(Struct):
    """An execution as its log tells it, up to `version`."""

    key: str
    version: int = 0
    at: int = 0
    status: str = "open"
    workflow: str = ""
    definition: str = ""
    input: Any = None
    started_at: int = 0
    published: dict[str, Any] = {}
    current: str = ""  # the state of a machine
    nodes: dict[str, NodeState] = {}
    actions: dict[int, ActionState] = {}
    timers: dict[int, int] = {}
    children: dict[int, str] = {}
    events: int = 0
    result: Any = None
    error: ev.Error | None = None
    paused: ev.Paused | None = None
    cancel: ev.CancelRequested | None = None
    stuck: ev.Stuck | None = None
    base: int = 1
    trace: str = ""  # the id of its trace


def fold(state: State, row: Row) -> State:
    """Apply one row. The state is changed in place and returned; what cannot be read changes nothing."""
    state.version, state.at = row.version, row.at
    try:
        event = ev.read(row)
    except Undecodable:
        return state
    match event:
        case ev.Started():
            state.workflow = event.workflow
            state.definition = definition_of(event.workflow, event.version, event.hash)
            state.input, state.started_at = _decode(event.input), row.at
            state.trace = of_execution(event.trace, state.key, row.at).id
        case ev.Restarted():
            state.base, state.input = row.version, _decode(event.input)
            state.published = _decode(event.published) or {}
            if event.workflow:
                state.definition = definition_of(event.workflow, event.version, event.hash)
            state.timers = {}
            state.children = {ref: id for ref, id in state.children.items() if ref in event.lasting}
            state.actions = {ref: a for ref, a in state.actions.items() if a.status != "open"}
        case ev.Completed():
            state.status, state.result = "completed", _decode(event.result)
        case ev.Failed():
            state.status, state.error = "failed", event.error
        case ev.Cancelled():
            state.status = "cancelled"
        case ev.CancelRequested():
            state.cancel = event
        case ev.Paused():
            state.status, state.paused = "paused", event
        case ev.Resumed():
            state.status, state.paused = "open", None
        case ev.Stuck():
            state.status, state.stuck = "stuck", event
        case ev.Redriven():
            state.status, state.stuck = "open" if state.paused is None else "paused", None
            for action in state.actions.values():
                action.status = "retrying" if action.status == "spent" else action.status
        case ev.Published():
            state.published = _decode(event.state)
        case ev.EventReceived():
            state.events += 1
        case ev.TimerStarted():
            state.timers[event.ref] = event.due
        case ev.TimerFired() | ev.TimerCancelled():
            state.timers.pop(event.ref, None)
        case ev.ChildStarted():
            state.children[event.ref] = event.id
        case ev.ChildSettled():
            state.children.pop(event.ref, None)
        case ev.StateChanged():
            state.current = state.published["state"] = event.to_state
        case ev.NodeStarted():
            state.nodes[event.node] = NodeState(event.node, input=_decode(event.input), began=row.at)
        case ev.NodeSettled():
            _fold_node(state, event, row.at)
        case ev.TakenOver() | ev.Marked() | ev.EventRejected():
            pass
        case _:
            _fold_action(state, event, row.at)
    if state.status in ENDED:
        state.timers, state.children = {}, {}
    return state


def _fold_node(state: State, event: ev.NodeSettled, at: int) -> None:
    known = state.nodes.setdefault(event.node, NodeState(event.node, began=at))
    known.status, known.output, known.error = event.status, _decode(event.output), event.error
    known.attempts, known.ended = event.attempts, at


def _fold_action(
    state: State,
    event: ev.ActionScheduled
    | ev.ActionStarted
    | ev.ActionProgressed
    | ev.ActionAttempted
    | ev.ActionSettled
    | ev.ActionCancelled,
    at: int,
) -> None:
    known = state.actions.setdefault(event.ref, ActionState(event.ref, ""))
    if not isinstance(event, ev.ActionProgressed):
        known.name, known.args = event.name, _decode(event.args)
    match event:
        case ev.ActionScheduled():
            known.began = at
        case ev.ActionStarted():
            known.began, known.worker = at, event.worker
        case ev.ActionProgressed():
            known.attempts, known.progress = event.attempt, _decode(event.details)
        case ev.ActionAttempted():
            known.attempts, known.error = event.attempt, event.error
            known.status, known.next = ("spent", None) if event.spent else ("retrying", event.due)
            known.began, known.worker = event.began, event.worker or known.worker
        case ev.ActionSettled():
            known.status = "completed" if event.error is None else "failed"
            known.attempts, known.error, known.result = event.attempts, event.error, _decode(event.result)
            known.began, known.ended, known.next = event.began, at, None
            known.worker = event.worker or known.worker
        case ev.ActionCancelled():
            known.status, known.ended = "cancelled", at


def entry(row: Row) -> Entry:
    """A row as people read it, also one that this release cannot."""
    try:
        event = ev.read(row)
    except Undecodable as error:
        text = str(error)
        return Entry(row.version, moment(row.at), f"Unknown{row.type}", text, {}, row.fence, row.message_id)
    data = _decode(row.data)
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


class Reason(Struct, frozen=True):
    """One thing that an execution waits for."""

    kind: str  # event, timer, child, action, lane, worker, person, pause, tenant, quota, nothing
    text: str
    since: datetime | None = None
    until: datetime | None = None


class Why(Struct, frozen=True):
    """What an execution waits for, since when, and who holds it."""

    id: str
    status: str
    reasons: list[Reason]
    holder: str | None = None
    at: list[str] = []  # lines of the workflow

    def __str__(self) -> str:
        held = f", held by {self.holder}" if self.holder else ""
        return f"{self.id} is {self.status}{held}: " + "; ".join(reason.text for reason in self.reasons)


def rests(head: Head) -> bool:
    """Whether nothing is left to be done about what has come so far; of one that waits, also by a worker that died."""
    if head.status in ENDED:
        return True
    if head.mail or head.shown == "running":
        return False
    if head.shown != "waiting":
        return True
    waits = msgspec.json.decode(head.waits) if head.waits else {"through": 0}
    return head.version <= int(waits.get("through", head.version))


def awaited(head: Head, stands: dict[str, Any] | None = None) -> list[str]:
    """The ids of the executions that it waits for, as far as `why` shows them: children, and actions that run apart."""
    waits: dict[str, Any] = stands or (_decode(head.waits) if head.waits else {})
    actions = (one.get("apart") for one in waits.get("actions", ()))
    return [id for id in (*actions, *(child["id"] for child in waits.get("children", ()))) if id]


def why(
    head: Head,
    state: State,
    now: int,
    kept: Reason | None = None,
    stands: dict[str, Any] | None = None,
    stuck: Mapping[str, str] | None = None,
) -> Why:
    """A causal answer, from the summary row and the log, and from what keeps workers from taking it up, if anything.

    `stands` is what one that is held waits for, where that is known; `stuck` has the causes why others are that it
    waits for.
    """
    waits: dict[str, Any] = _decode(head.waits) if head.waits else {}
    reasons: list[Reason] = []
    if head.status in ENDED:
        text = f"it has {head.status}" if head.status != "cancelled" else "it was cancelled"
        if state.error is not None:
            text += f": {state.error.type}: {state.error.message}"
        reasons.append(Reason("nothing", text, moment(head.changed_at)))
    elif head.status == "stuck":
        told = waits.get("stuck") or {}
        text = f"{told.get('cause')}: {told.get('reason')}; mend it, then retry the execution"
        reasons.append(Reason("person", text, moment(waits.get("since") or head.changed_at)))
    elif head.holder is not None and state.stuck is not None:
        text = f"{state.stuck.cause}: {state.stuck.reason}; it will be stuck as soon as what still runs is over"
        reasons.append(Reason("person", text, moment(state.at)))
    elif head.holder is not None:
        waits = stands or {}  # what the summary has is of before it was held
        reasons += _at_work(waits, state, now, stuck or {})
    else:
        reasons += _waiting(waits, state, stuck or {})
        if kept is not None:
            reasons.append(kept)
        elif head.due is not None and head.due <= now and head.status == "open":
            text = (
                f"due since {show(now - head.due)}: no worker has taken it; it needs one that serves queue"
                f" {head.queue!r} and has {head.definition}"
            )
            reasons.append(Reason("worker", text, moment(head.due)))
        elif not reasons and state.version <= 1 and head.lane is not None and head.due is None:
            text = f"it waits for its turn: another execution of lane {head.lane} has not ended"
            reasons.append(Reason("lane", text, moment(head.started_at)))
        elif not reasons and state.version <= 1:
            text = f"no worker has begun it yet; it needs one with {head.definition}"
            reasons.append(Reason("worker", text, moment(head.started_at)))
    if head.mail and head.status not in ENDED:
        reasons.append(Reason("worker", f"{head.mail} message(s) wait to be folded into its log"))
    return Why(id_of(head.key), head.shown, reasons, head.holder, waits.get("at", []))


def _at_work(waits: dict[str, Any], state: State, now: int, stuck: Mapping[str, str]) -> list[Reason]:
    running = [a for a in waits.get("actions", ()) if a["due"] <= now and not a["apart"]]
    reasons = [
        Reason("action", _running(a["name"], a["attempts"], state.actions.get(a["ref"])), moment(a["since"]))
        for a in running
    ]
    reasons += _waiting({**waits, "actions": [a for a in waits.get("actions", ()) if a not in running]}, state, stuck)
    reasons = reasons or [
        Reason(
            "action",
            _retrying(a.name, a.attempts, a.next, a.error),
            moment(a.began) if a.began else None,
            moment(a.next) if a.next else None,
        )
        for a in state.actions.values()
        if a.status == "retrying"
    ]
    return reasons or [Reason("action", "its worker runs its code or its actions", moment(state.at))]


def _waiting(waits: dict[str, Any], state: State, stuck: Mapping[str, str]) -> list[Reason]:
    reasons = []
    if (paused := waits.get("paused")) is not None:
        until = paused.get("until") or 0
        text = "paused" + (f" until {moment(until):%Y-%m-%d %H:%M:%S} UTC" if until else " until somebody resumes it")
        text += f" ({paused['reason']})" if paused.get("reason") else ""
        since = moment(waits.get("paused_at") or state.at)
        return [Reason("pause", text, since, moment(until) if until else None)]
    for event in waits.get("events", ()):
        names = " or ".join(event["names"])
        match = f" with {event['match']}" if event.get("match") else ""
        reasons.append(Reason("event", f"waits for the event {names}{match}", moment(event["since"])))
    for action in waits.get("actions", ()):
        known = state.actions.get(action["ref"])
        error = known.error if known is not None else None
        text = _retrying(action["name"], action["attempts"], action["due"] or None, error)
        if apart := action.get("apart"):
            text = f"{action['name']} runs apart, as execution {apart}{_needs(stuck, apart)}"
        reasons.append(
            Reason("action", text, moment(action["since"]), moment(action["due"]) if action["due"] else None)
        )
    for child in waits.get("children", ()):
        text = f"waits for the child {child['id']}{_needs(stuck, child['id'])}"
        reasons.append(Reason("child", text, moment(child["since"])))
    for due, since in zip_longest(waits.get("timers", ()), waits.get("timers_set", ())):
        text = f"a timer is due at {moment(due):%Y-%m-%d %H:%M:%S} UTC"
        reasons.append(Reason("timer", text, None if since is None else moment(since), moment(due)))
    return reasons


def _needs(stuck: Mapping[str, str], id: str) -> str:
    """Nobody looks at the one that is stuck before somebody has looked at the one that waits for it."""
    return f", which is stuck ({stuck[id]}): mend it, then retry {id}" if id in stuck else ""


def _running(name: str, attempts: int, known: ActionState | None) -> str:
    text = f"{name} runs"
    if attempts:
        text += f", attempt {attempts + 1}"
    if known is not None and known.error is not None:
        text += f"; it failed with {known.error.type}: {known.error.message}"
    return text


def _retrying(name: str, attempts: int, due: int | None, error: ev.Error | None) -> str:
    text = f"{name} failed {attempts} time(s)" if attempts else f"{name} is to run"
    if error is not None:
        text += f", last with {error.type}: {error.message}"
    return text + (f"; next try at {moment(due):%H:%M:%S} UTC" if due else "")


def final(rows: Sequence[Row], key: str) -> State:
    state = State(key)
    for row in rows:
        fold(state, row)
    return state
