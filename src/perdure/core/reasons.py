"""Reasons: what an execution waits for, in sentences, from its summary row and what its log tells."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core import events as ev
from perdure.core.durations import show
from perdure.core.moments import moment
from perdure.core.records import ENDED, Head, id_of
from perdure.core.view import ActionState, State

_decode = msgspec.json.decode


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
    waits = _decode(head.waits) if head.waits else {"through": 0}
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
