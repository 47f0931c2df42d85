"""The laws of replay, over the whole corpus: many random orders, with and without failures and cancels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from perdure.core import events as ev
from perdure.core.records import Row
from perdure.core.replay import Replay
from tests.corpus.drive import (
    KEY,
    SEEDS,
    SIGNATURES,
    Broken,
    Case,
    Drive,
    Spending,
    cases,
    commands_of,
    digest_of,
    ends,
    evict,
    law,
    look,
    newest_checkpoint,
    replay_of,
    same,
    settle_outputs,
    settled_once,
    signature_of,
    signed_as,
    text,
    trackless,
)
from tests.corpus.workflows import CORPUS

ROOT = Path(__file__).parents[2]
each_member = pytest.mark.parametrize("member", list(CORPUS))
#: Those in which a cancel meets something that has an opinion about it.
CANCELLED = (
    "cancel_becomes_restart",
    "cancelled_gather",
    "child_dropped",
    "clean_up_with_actions",
    "document_of_forks",
    "document_of_tries",
    "document_that_undoes",
    "failing_clean_up",
    "graph_of_errors",
    "graph_that_undoes",
    "machine_of_actions",
    "machine_of_undos",
    "machine_that_undoes",
    "nested_timeouts",
    "saga_in_parallel",
    "shielded",
    "shielded_clean_up",
    "swallowed_cancel",
    "task_group_in_timeout",
    "task_group_with_clean_up",
    "timeout_rescheduled",
    "waiting_for",
)
OUTPUTS = (
    ev.TimerCancelled,
    ev.ActionCancelled,
    ev.ChildStarted,
    ev.Marked,
    ev.Published,
    ev.EventRejected,
    ev.StateChanged,
    ev.NodeStarted,
    ev.NodeSettled,
    ev.Restarted,
)
#: What the engine writes for itself. Leaving it out must not change what the code does.
BOOKKEEPING = (
    ev.TakenOver,
    ev.ActionScheduled,
    ev.ActionStarted,
    ev.ActionAttempted,
    ev.ActionProgressed,
    ev.TimerStarted,
    ev.TimerCancelled,
)


def runs(member: str, seeds: int = 2, first: int = 0) -> Iterator[Drive]:
    for case in cases(seeds * SEEDS, [member]):
        yield Drive(msgspec.structs.replace(case, seed=first + case.seed)).run()


@each_member
def test_every_prefix_stands_where_the_live_run_stood(member: str) -> None:
    """Every Python tries an order of its own."""
    with trackless():
        for live in runs(member, 1, first=1000 * (sys.version_info.minor - 11)):
            law(live)


@each_member
def test_a_run_that_is_replayed_after_every_input_writes_the_same_log(member: str) -> None:
    with trackless():
        for live in runs(member, 1):
            again = Drive(live.case, relive=True).run()
            same(live.rows, again.rows, str(live.case))


@each_member
def test_attempts_that_are_spent_are_nothing_to_the_code(member: str) -> None:
    """It stands where it stood, with all attempts anew; and the same inputs bring it as far as without that."""
    with trackless():
        for case in cases(SEEDS, [member]):
            live = Spending(case).run()
            law(live)
            same(live.rows, Spending(case, relive=True).run().rows, str(case))
            bare = [row for row in live.rows if not isinstance(ev.read(row), ev.ActionAttempted)]
            definition = live.member.workflow
            same(commands_of(definition, live.rows), commands_of(definition, bare), str(case))


@each_member
def test_the_whole_log_gives_out_nothing_new(member: str) -> None:
    for live in runs(member, 1):
        replay = replay_of(live.member.workflow, live.rows)
        assert replay.take() == []
        assert replay.unlogged_timers() == []
        assert replay.outcome is not None


@each_member
def test_a_longer_prefix_never_takes_a_command_back(member: str) -> None:
    for live in runs(member, 1):
        longer = commands_of(live.member.workflow, live.rows)
        for end in reversed(ends(live.rows[:-1])):
            shorter = commands_of(live.member.workflow, live.rows[:end])
            assert longer[: len(shorter)] == shorter, f"{live.case}, rows up to {end}"
            longer = shorter


@each_member
def test_each_command_is_settled_at_most_once(member: str) -> None:
    for live in runs(member):
        settled_once(live.rows)


@each_member
def test_two_inputs_in_one_commit_are_two_inputs(member: str) -> None:
    """What comes out does not depend on how often somebody looks."""
    for live in runs(member, 1):
        written = [ev.read(row) for row in live.rows]
        if any(isinstance(event, ev.Restarted) for event in written):
            continue  # a checkpoint is written and fed back at once, whatever else is waiting
        replay = Replay(KEY, live.member.workflow)
        for row, event in zip(live.rows, written, strict=True):
            if isinstance(event, ev.TimerStarted):
                replay.unlogged_timers()
            elif not isinstance(event, OUTPUTS):
                replay.feed(event, row.version, row.at)
        outputs = [event for event in written if isinstance(event, OUTPUTS)]
        same(list(map(msgspec.json.encode, outputs)), list(map(msgspec.json.encode, replay.take())), str(live.case))


@each_member
def test_a_log_can_be_read_in_portions(member: str) -> None:
    """As a worker does that kept an execution in memory while another one went on with it."""
    for live in runs(member, 1):
        whole = replay_of(live.member.workflow, live.rows)
        for point in live.points[1::3]:
            replay = replay_of(live.member.workflow, live.rows[: point.first])
            settle_outputs(replay, point.first, live.rows[point.first - 1].at)
            replay.load(live.rows[point.first :])
            assert replay.take() == [], f"{live.case}, after row {point.first}"
            same(look(whole), look(replay), f"{live.case}, after row {point.first}")


@each_member
def test_bookkeeping_does_not_matter_to_the_code(member: str) -> None:
    for live in runs(member, 1):
        bare = [row for row in live.rows if not isinstance(ev.read(row), BOOKKEEPING)]
        with_all, without = commands_of(live.member.workflow, live.rows), commands_of(live.member.workflow, bare)
        same(with_all, without, str(live.case))


@pytest.mark.parametrize("member", CANCELLED)
def test_cancel_at_every_input(member: str) -> None:
    with trackless():
        for seed in range(2 * SEEDS):
            for failing in (False, True):
                inputs = Drive(Case(member, seed, failing)).run().inputs
                for cancel_at in range(inputs):
                    live = Drive(Case(member, seed, failing, cancel_at)).run()
                    law(live)
                    assert live.replay.outcome is not None, live.case


@each_member
def test_an_eviction_leaves_no_tracks(member: str) -> None:
    """No command, no unraisable error, no destroyed task, no open generator, at any row."""
    with trackless():
        for live in runs(member, 1):
            for end in ends(live.rows):
                replay = replay_of(live.member.workflow, live.rows[:end])
                replay.take()
                if replay.outcome is None:
                    evict(replay)


def test_a_replay_from_the_newest_checkpoint_is_a_replay_of_the_whole_log() -> None:
    for live in runs("restarting", 4):
        end = len(live.rows) - 1  # without the outcome
        begin = newest_checkpoint(live.rows[:end])
        whole, tail = (replay_of(live.member.workflow, live.rows[start:end]) for start in (0, begin))
        same(look(whole), look(tail), str(live.case))
        assert begin == 0 or whole.base == tail.base == live.rows[begin].version


def test_events_kept_back_while_paused_survive_a_checkpoint() -> None:
    """They are older than the checkpoint, and a replay that begins there does not see their rows."""
    definition = CORPUS["restarting"].workflow
    replay = Replay(KEY, definition)
    rows: list[Row] = []

    def write(event: ev.Event) -> None:
        rows.append(ev.row(event, len(rows) + 1, 1_000_000))
        replay.feed(event, len(rows), 1_000_000)
        for output in replay.take():
            rows.append(ev.row(output, len(rows) + 1, 1_000_000))
        if isinstance(replay.outcome, ev.Restarted):
            write(replay.outcome)

    write(ev.Started("corpus.restarting", 1, msgspec.Raw(b"[2,0]")))
    write(ev.ActionSettled(1, "corpus.step", msgspec.Raw(b'["round 2",0]'), msgspec.Raw(b"1")))
    write(ev.Paused())
    write(ev.EventReceived("more", msgspec.Raw(b"10"), "first"))
    write(ev.EventReceived("more", msgspec.Raw(b"20"), "second"))
    write(ev.Resumed())
    assert [one.id for one in replay.buffer] == ["second"]
    tail = replay_of(definition, rows[newest_checkpoint(rows) :])
    assert [one.id for one in tail.buffer] == ["second"]


# --- the same commands everywhere ------------------------------------------------------------------------------------


def test_signatures_are_the_same_on_every_python() -> None:
    """Also the test that a release does not change what recorded executions do; see write_signatures."""
    known = json.loads(SIGNATURES.read_text())
    for member in CORPUS.values():
        assert signature_of(member.name) == known[signed_as(member)], member.name


def test_every_byte_is_the_same_in_every_process() -> None:
    """Strings hash differently in each of them. All kinds of workflows, and all that they write: also words."""
    code = "from tests.corpus.drive import CORPUS, digest_of; print(*map(digest_of, sorted(CORPUS)))"
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    names = sorted(CORPUS)  # their own order is that in which the modules were imported
    here = dict(zip(names, map(digest_of, names), strict=True))
    assert dict(zip(names, printed[0], strict=True)) == dict(zip(names, printed[1], strict=True)) == here


# --- the tests can fail ----------------------------------------------------------------------------------------------


def test_a_law_that_does_not_hold_is_reported_with_its_place() -> None:
    live = Drive(Case("sequence", 1)).run()
    live.points[2].state["ref"] += 1
    with pytest.raises(Broken, match=r"sequence-1, rows 1 to \d+:\n live +{'ref': \d}"):
        law(live)


def test_random_orders_are_not_all_the_same() -> None:
    logs = {tuple(text(row.data) for row in Drive(Case("two_sequences", seed)).run().rows) for seed in range(20)}
    assert len(logs) > 5
