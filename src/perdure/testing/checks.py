"""What must be true besides each log alone: summaries, what the code makes of a log, other logs, the world outside.

`invariants.check_log` looks at the rows of one log. Here a head is compared with the fold of its log, the log is
replayed with the code at hand, logs of a simulation are compared with one another and with what reached its sink. Each
complaint is an AssertionError that names the broken invariant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core import events as ev, view
from perdure.core.commands import Limits
from perdure.core.records import ACTION, ENDED, Head, Row, key_of
from perdure.core.replay import Replay
from perdure.errors import PerdureError
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow

if TYPE_CHECKING:
    from perdure.testing.programs import Sink

#: Actions of random programs, and what undoes the first.
RESERVE, UNDO, ONCE = "perdure.program.reserve", "unreserve", "perdure.program.once"
#: An execution that is due and that nobody takes is forgotten after so many microseconds.
FORGOTTEN = 120_000_000
_TERMINAL = (ev.Completed, ev.Failed, ev.Cancelled)
_RESTARTED = ev.NUMBERS[ev.Restarted]


def check_head(head: Head, rows: Sequence[Row], now: int) -> None:
    """The summary agrees with the log, and somebody or something will wake the execution."""
    here = f", {head.key}"
    assert rows, f"I3{here}: the execution has no log"
    if head.holder is None or head.status in ENDED:
        assert head.version == rows[-1].version, f"I4{here}: the head is at {head.version} of {rows[-1].version}"
    folded = view.final(rows, head.key).status
    if head.holder is None and head.lapses == 0:
        assert folded == head.status, f"I12{here}: the head says {head.status}, its log {folded}"
    if head.status in ENDED:
        assert not head.mail, f"I11{here}: it has ended with {head.mail} message(s) in its mailbox"
    elif head.holder is None and not head.mail:
        _check_wakes(head, now)


def _check_wakes(head: Head, now: int) -> None:
    if not head.queue:
        return  # a lock or a definition: it has no code that could wait
    if head.due is not None:
        late = now - head.due
        assert late < FORGOTTEN, f"I17, {head.key}: due since {late / 1e6:.0f} s, and nobody takes it"
    elif head.status == "open" and head.lane is None:  # in a lane it may wait for its turn
        waits = msgspec.json.decode(head.waits or b"{}")
        apart = any(action.get("apart") for action in waits.get("actions", ()))
        outside = waits.get("events") or waits.get("children") or apart
        assert outside, f"I17, {head.key}: open, held by nobody, not due, and it waits for nothing: {waits}"


def check_replay(
    head: Head, rows: Sequence[Row], published: Workflow[..., Any] | None = None, limits: Limits | None = None
) -> None:
    """The code at hand, given the log, comes to the outcome and the published state that were stored."""
    workflow = published or registry.find(head.definition)
    if workflow is None or head.status == "stuck":
        return
    base = max((index for index, row in enumerate(rows) if row.type % 1000 == _RESTARTED), default=0)
    last = ev.read(rows[-1])
    ended = isinstance(last, _TERMINAL)
    replay = Replay(head.key, workflow, limits)
    try:
        replay.load(rows[base:-1] if ended else rows[base:])
    except PerdureError as error:
        raise AssertionError(f"I12, {head.key}: the log cannot be replayed: {error}") from error
    finally:
        replay.evict()
    if ended:
        forced = isinstance(last, ev.Cancelled) and last.forced
        assert forced or replay.outcome == last, (
            f"I12, {head.key}: the log ends with {last}, its replay {replay.outcome}"
        )
    if ended or (head.holder is None and head.lapses == 0 and head.waits is not None):
        stored = msgspec.json.decode(head.state or b"{}")
        assert stored == replay.published, f"I12, {head.key}: the head shows {stored}, its replay {replay.published}"


# Of random programs.


def check_saga(key: str, rows: Sequence[Row]) -> None:
    """Whatever was reserved is given back if the execution does not succeed."""
    last = ev.read(rows[-1])
    if isinstance(last, ev.Completed) or (isinstance(last, ev.Cancelled) and last.forced):
        return
    reserved: list[Any] = []
    given_back: list[Any] = []
    for row in rows:
        event = ev.read(row)
        if isinstance(event, ev.Restarted):
            reserved, given_back = [], []
        elif isinstance(event, ev.ActionSettled) and event.error is None:
            if event.name == RESERVE:
                reserved.append(msgspec.json.decode(event.args)[0])
            elif event.name == UNDO:
                given_back.append(msgspec.json.decode(event.args)[0])
    assert sorted(reserved) == sorted(given_back), f"saga, {key}: {reserved} reserved, {given_back} given back"


def check_children(key: str, rows: Sequence[Row], logs: Mapping[str, Sequence[Row]]) -> None:
    """I22: the end of every child that was waited for is in the parent's log, once, as it was."""
    events = [ev.read(row) for row in rows]
    settled = [event for event in events if isinstance(event, ev.ChildSettled)]
    started = {event.ref: event.id for event in events if isinstance(event, ev.ChildStarted)}
    for event in settled:
        child = logs[key_of("default", event.id)]
        end = ev.read(child[-1])
        assert started.get(event.ref) == event.id, f"I22, {key}: child {event.id} settled that was not started"
        status = type(end).__name__.lower()
        assert event.status == status, (
            f"I22, {key}: child {event.id} ended as {status}, its parent heard {event.status}"
        )
    if isinstance(events[-1], ev.Completed):
        missing = started.keys() - {event.ref for event in settled}
        assert not missing, f"I22, {key}: completed without the end of its children {sorted(missing)}"


def check_sent(key: str, rows: Sequence[Row], logs: Mapping[str, Sequence[Row]]) -> None:
    """I1 once more: what one execution sent to another, and was told that it arrived, is in the other's log."""
    first = ev.read(rows[0])
    if isinstance(first, ev.Started) and first.workflow.startswith(ACTION):
        return  # it ran apart, and whoever asked for it has the outcome as well
    for row in rows:
        event = ev.read(row)
        if isinstance(event, ev.ActionSettled) and event.name == "perdure.send" and event.error is None:
            to = key_of("default", msgspec.json.decode(event.args)[0])
            arrived = [other.message_id for other in logs[to]].count(f"{key}/{event.ref}/perdure.send")
            assert arrived == 1, f"I1, {to}: what command {event.ref} of {key} sent is there {arrived} times"


def check_effects(sink: Sink) -> None:
    """I20: one key per step and one step per key; at most once means at most once."""
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    steps: dict[str, set[str]] = defaultdict(set)
    for effect in sink.effects:
        execution = effect.key.rsplit("/", 2)[0]
        keys[execution, effect.step].add(effect.key)
        steps[effect.key].add(effect.step)
    for (execution, step), found in keys.items():
        assert len(found) == 1, f"I20, {execution}: step {step} reached the sink under {sorted(found)}"
    for key, found in steps.items():
        assert len(found) == 1, f"I20, {key}: stands for {sorted(found)}"
    for key, count in Counter(effect.key for effect in sink.effects).items():
        if key.endswith(ONCE):
            assert count == 1, f"I20, {key}: an at_most_once action ran {count} times"
