"""The one read model: the state of an execution, at any version, from its log alone and without its code.

The API, the command line and whoever else looks read this; `entries` has the log itself for people, and `reasons` says
what an execution waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core import events as ev
from perdure.core.records import ENDED, Row, definition_of
from perdure.core.tracing import of_execution
from perdure.errors import Undecodable

_decode = msgspec.json.decode


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


def final(rows: Sequence[Row], key: str) -> State:
    state = State(key)
    for row in rows:
        fold(state, row)
    return state
