"""Logs that were recorded once and are replayed for ever: one that no longer fits is a breaking change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.core import copies, events as ev
from perdure.core.records import Row
from tests.corpus import workflows
from tests.corpus.drive import LOGS, evict, newest_checkpoint, replay_of, settle_outputs, trackless
from tests.corpus.workflows import CORPUS

PATHS = sorted(LOGS.glob("*.json"))
each_log = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def read(path: Path) -> tuple[Any, list[Row]]:
    """The workflow and the rows of a recorded log."""
    _, rows = copies.restore(json.loads(path.read_text()))
    first = ev.read(rows[0])
    assert isinstance(first, ev.Started)
    found = next(member for member in CORPUS.values() if member.workflow.name == first.workflow)
    return found.workflow, rows


@each_log
def test_a_recorded_log_replays_to_its_recorded_end(path: Path) -> None:
    definition, rows = read(path)
    replay = replay_of(definition, rows[:-1])
    assert replay.take() == []
    ended, recorded = replay.outcome, ev.read(rows[-1])
    if isinstance(recorded, ev.Failed):
        assert isinstance(ended, ev.Failed)
        assert (ended.error.type, ended.since) == (recorded.error.type, recorded.since)
    else:
        assert ended == recorded
    replay_of(definition, rows)


@each_log
def test_every_prefix_of_a_recorded_log_replays(path: Path) -> None:
    definition, rows = read(path)
    with trackless():
        for end in range(1, len(rows)):
            replay = replay_of(definition, rows[:end])
            settle_outputs(replay, end, rows[end - 1].at)
            evict(replay)


@each_log
def test_a_recorded_log_replays_from_its_newest_checkpoint(path: Path) -> None:
    definition, rows = read(path)
    begin = newest_checkpoint(rows)
    assert replay_of(definition, rows[begin:]).outcome == replay_of(definition, rows).outcome


@each_log
def test_a_recorded_log_is_exported_as_it_was(path: Path) -> None:
    document = json.loads(path.read_text())
    _, rows = copies.restore(document)
    assert copies.export(document["key"], document["queue"], rows) == document


def test_the_recorded_logs_show_every_kind_of_event() -> None:
    recorded = {type(ev.read(row)) for path in PATHS for row in read(path)[1]}
    assert set(ev.NUMBERS) - recorded == set()


def test_there_are_as_many_logs_as_were_recorded() -> None:
    assert len(PATHS) >= 20
    assert workflows.CORPUS.keys() >= {path.stem.partition("-")[0] for path in PATHS}
