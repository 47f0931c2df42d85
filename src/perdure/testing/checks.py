"""What must be true of an execution besides its log: its summary row, and what its code makes of the log.

`invariants.check_log` looks at rows alone; here a head is compared with the fold of its log, and the log is replayed
with the code at hand. Each complaint is an AssertionError that names the broken invariant.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core import events as ev, view
from perdure.core.records import ENDED, Head, Row
from perdure.core.replay import Replay
from perdure.errors import PerdureError
from perdure.flows.registry import registry

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
    if head.due is not None:
        late = now - head.due
        assert late < FORGOTTEN, f"I17, {head.key}: due since {late / 1e6:.0f} s, and nobody takes it"
    elif head.status == "open":
        waits = msgspec.json.decode(head.waits or b"{}")
        outside = waits.get("events") or waits.get("children")
        assert outside, f"I17, {head.key}: open, held by nobody, not due, and it waits for nothing: {waits}"


def check_replay(head: Head, rows: Sequence[Row]) -> None:
    """The code at hand, given the log, comes to the outcome and the published state that were stored."""
    workflow = registry.find(head.definition)
    if workflow is None or head.status == "stuck":
        return
    base = max((index for index, row in enumerate(rows) if row.type % 1000 == _RESTARTED), default=0)
    last = ev.read(rows[-1])
    ended = isinstance(last, _TERMINAL)
    replay = Replay(head.key, workflow)
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
