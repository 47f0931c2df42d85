"""Drives one workflow without a store or a worker, and looks at it from all sides.

`Drive` plays the outside: in an order that only a seed decides it settles actions and children, lets timers fire, sends
events, cancels, pauses, and writes the rows that a worker would write. `law` then replays every prefix of that log and
compares it with what the live run looked like at that point.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.core import copies, events as ev, loop as loops
from perdure.core.codec import encode
from perdure.core.commands import Asked, Limits
from perdure.core.places import where
from perdure.core.records import PERSON, Row
from perdure.core.replay import Definition, Replay
from tests.corpus import documents, graphs, machines, workflows  # noqa: F401 - they add to the corpus
from tests.corpus.workflows import CORPUS, Member

KEY = "corpus/run"
BEGAN = 1_700_000_000_000_000
#: Multiplies the number of random orders that every law is tried with.
SEEDS = int(os.environ.get("PERDURE_TEST_SEEDS", "1"))


class Case(Struct, frozen=True, omit_defaults=True):
    """One random run of one member."""

    member: str
    seed: int
    failing: bool = False
    cancel_at: int = -1  # the number of inputs after which the first cancel request comes
    noise: bool = True  # attempts, pauses, take-overs and parks in between

    def __str__(self) -> str:
        return (
            f"{self.member}-{self.seed}{'-failing' * self.failing}{f'-cancel{self.cancel_at}' * (self.cancel_at >= 0)}"
        )


class Point(Struct, frozen=True):
    """What the live run looked like after one input: the rows up to `first` are before it, up to `last` with it."""

    first: int
    last: int
    state: dict[str, Any]


class Broken(AssertionError):
    """A law does not hold; the message says where."""


def text(raw: Raw | bytes) -> str:
    return bytes(raw).decode()


def look(replay: Replay) -> dict[str, Any]:
    """All that can be seen of an execution in memory."""
    return {
        "actions": {ref: (asked.spec.name, text(asked.args), asked.at) for ref, asked in replay.actions.items()},
        "attempts": {
            ref: (asked.attempts, asked.free, asked.spent, asked.timed, asked.unwanted)
            for ref, asked in replay.actions.items()
        },
        "children": {ref: (asked.spec.name, text(asked.args)) for ref, asked in replay.children.items()},
        "lasting": sorted(replay.lasting),
        "timers": {ref: replay.due_of(handle) for ref, handle in replay.loop.timers.items()},
        "waiters": [(list(waiter.wanted), dict(waiter.match), waiter.since) for waiter in replay.waiters],
        "buffer": [(one.id, one.name) for one in replay.buffer],
        "outcome": None if replay.outcome is None else outcome_of(replay.outcome),
        "ref": replay.loop.ref,
        "draws": replay.draws,
        "published": dict(replay.published),
        "cancel": replay.cancel is not None,
        "paused": replay.paused is not None,
        "stuck": replay.stuck is not None,
        "undos": [(undo.spec.name, text(undo.args), text(undo.result), undo.version) for undo in replay.undos],
        "orphans": list(replay.orphans),
        "kept": replay.kept,
        "places": [where(task) for task in replay.loop.tasks.values()],
        "began": replay.began,
        "now": replay.loop.now,
        "due": replay.next_due(),
    }


def outcome_of(outcome: Any) -> tuple[str, str]:
    return type(outcome).__name__, text(msgspec.json.encode(outcome))


def replay_of(definition: Definition, rows: Iterable[Row], key: str = KEY, limits: Limits | None = None) -> Replay:
    replay = Replay(key, definition, limits)
    replay.load(rows)
    return replay


def settle_outputs(replay: Replay, version: int, at: int) -> list[ev.Event]:
    """What comes out of a turn, as the worker writes it: a checkpoint is fed back, and the next round runs."""
    outputs = replay.take()
    while isinstance(replay.outcome, ev.Restarted):
        checkpoint = replay.outcome
        outputs.append(checkpoint)
        replay.feed(checkpoint, version + len(outputs), at)
        outputs += replay.take()
    return outputs


def started(member: Member) -> ev.Started:
    return ev.Started(member.workflow.name, member.workflow.version, Raw(member.workflow.signature.encode(member.args)))


class Drive:
    """A live run. After `run`, `rows` is its log and `points` what it looked like on the way."""

    def __init__(self, case: Case, relive: bool = False) -> None:
        self.case = case
        self.member = CORPUS[case.member]
        self.random = random.Random(f"{case.member} {case.seed} {case.failing}")
        self.noise = random.Random(f"noise {case}")
        self.relive = relive  # a new replay from the log after every input
        self.replay = Replay(KEY, self.member.workflow)
        self.rows: list[Row] = []
        self.points: list[Point] = []
        self.at = BEGAN
        self.events = list(self.member.events)
        self.settled: set[int] = set()
        self.dropped: dict[int, ev.ActionCancelled] = {}
        self.inputs = 0
        self.cancels = 0

    # The outside.

    def run(self, most: int = 150) -> Drive:
        with trackless():
            self.drive(started(self.member))
            while self.replay.outcome is None and self.inputs < most:
                self.step()
            if self.replay.outcome is not None:
                self.write(self.replay.outcome)
                self.points.append(Point(len(self.rows) - 1, len(self.rows), look(self.replay)))
        return self

    def step(self) -> None:
        """Let one thing happen."""
        self.at += self.below(1_200_000)
        if self.case.noise:
            self.bookkeeping()
        if self.case.cancel_at >= 0 and self.case.cancel_at + 3 * self.cancels <= self.inputs and self.cancels < 2:
            self.cancel()
            return
        choices = self.choices()
        if choices:
            self.happen(choices[self.below(len(choices))])
        elif not self.go_on():
            self.cancel()  # nothing else can wake it

    def go_on(self) -> bool:
        """Let through what was kept back; False if nothing is."""
        if self.replay.stuck is not None:
            self.drive(ev.Redriven())
        elif self.replay.paused is not None:
            self.drive(ev.Resumed())
        else:
            return False
        return True

    def choices(self) -> list[tuple[str, Any]]:
        replay = self.replay
        choices: list[tuple[str, Any]] = [("action", ref) for ref in replay.actions if ref not in self.settled]
        choices += [("child", ref) for ref in replay.children if ref not in self.settled]
        choices += [("task", ref) for ref in sorted(replay.lasting) if ref not in self.settled]
        choices += [("late", ref) for ref in self.dropped if ref not in self.settled][:1]
        if self.events:
            choices.append(("event", self.events[0]))
        if replay.paused is None and replay.stuck is None and replay.loop.timers:
            choices.append(("timer", min((replay.due_of(timer), ref) for ref, timer in replay.loop.timers.items())))
        return choices

    def happen(self, choice: tuple[str, Any]) -> None:
        kind, what = choice
        if kind == "action":
            self.drive(self.result(self.replay.actions[what]))
        elif kind == "child":
            self.drive(self.child_result(self.replay.children[what]))
        elif kind == "task":
            self.drive(self.task_result(what))
        elif kind == "late":  # the attempt was told to stop, and finished all the same
            dropped = self.dropped[what]
            self.drive(ev.ActionSettled(what, dropped.name, dropped.args, Raw(b"1")))
        elif kind == "event":
            name, payload, *sender = self.events.pop(0)
            by, roles = sender or ("", ())
            self.drive(ev.EventReceived(name, Raw(encode(payload)), f"event-{self.inputs}", by, roles=roles))
        else:
            due, ref = what
            self.at = max(self.at, due)
            self.drive(ev.TimerFired(ref, due))

    def result(self, asked: Asked) -> ev.ActionSettled:
        if self.case.failing and self.below(3) == 0:
            kind = ("Declined", "ValueError", "Unheard", "TimeoutError")[self.below(4)]
            error = ev.Error(kind, f"{kind} of {asked.ref}")
            return ev.ActionSettled(asked.ref, asked.spec.name, asked.args, error=error)
        args, kwargs = asked.spec.signature.decode(asked.args)
        if asked.spec.name == "perdure.emit":  # what lets events out needs a worker
            event = {"id": f"emitted-{asked.ref}", "source": "/", "type": args[0], "time": "2030-01-01T00:00:00Z"}
            return ev.ActionSettled(asked.ref, asked.spec.name, asked.args, Raw(encode(event)))
        try:
            value = asked.spec.signature.returns.encode(asked.spec.fn(*args, **kwargs))
        except (workflows.Declined, ValueError) as failure:
            error = ev.Error(type(failure).__name__, str(failure))
            return ev.ActionSettled(asked.ref, asked.spec.name, asked.args, error=error)
        return ev.ActionSettled(asked.ref, asked.spec.name, asked.args, Raw(value))

    def child_result(self, asked: Asked) -> ev.ChildSettled:
        id = f"run.{asked.ref}"
        if self.case.failing and self.below(3) == 0:
            kinds = ("TaskExpired" if asked.spec.name == PERSON else "Declined", "Cancelled")
            kind = kinds[self.below(2)]
            return ev.ChildSettled(asked.ref, id, error=ev.Error(kind, "of the child"), status="failed")
        return ev.ChildSettled(asked.ref, id, Raw(b"%d" % (10 * asked.ref)))

    def task_result(self, ref: int) -> ev.ChildSettled:
        """What a person says who is asked by a graph: something, or nothing in time."""
        if self.case.failing and self.below(2) == 0:
            error = ev.Error("TaskExpired", "nobody did it")
            return ev.ChildSettled(ref, f"run.{ref}", error=error, status="failed")
        return ev.ChildSettled(ref, f"run.{ref}", Raw(b"7"))

    def cancel(self) -> None:
        self.cancels += 1
        while self.go_on():
            pass
        if self.replay.outcome is None:
            self.drive(ev.CancelRequested(f"cancel {self.cancels}", deadline=self.at + 10**12))

    def bookkeeping(self) -> None:
        """What the engine writes for itself; it must not matter to the code."""
        dice = self.noise.randrange(100)
        waiting = [asked for ref, asked in self.replay.actions.items() if ref not in self.settled]
        one = waiting[dice % len(waiting)] if waiting else None
        if dice < 25:
            for timer in self.replay.unlogged_timers():  # as when it parks
                self.note(timer)
        elif dice < 32:
            self.note(ev.TakenOver("another worker", 1))
        elif dice < 40 and one:
            error = ev.Error("OSError", "try again")
            self.note(ev.ActionAttempted(one.ref, one.spec.name, one.args, 1, error, self.at + 10**6))
        elif dice < 46 and one:
            self.note(ev.ActionScheduled(one.ref, one.spec.name, one.args, "elsewhere"))
        elif dice < 52 and one:
            self.note(ev.ActionStarted(one.ref, one.spec.name, one.args))
            self.note(ev.ActionProgressed(one.ref, 1, Raw(b"[50]")))
        elif dice < 57 and self.replay.paused is None:
            self.note(ev.Paused(0, "lunch"))
        elif dice < 60 and self.replay.stuck is None:
            self.note(ev.Stuck("limit", "to see whether it matters"))
        elif dice < 72:
            self.go_on()

    # The log.

    def drive(self, event: ev.Event) -> None:
        """One input with its turn, and the rows that come out of it."""
        before = len(self.rows)
        self.inputs += 1
        ref = getattr(event, "ref", 0)
        if isinstance(event, ev.ActionSettled | ev.ChildSettled):
            assert ref not in self.settled
            self.settled.add(ref)
        self.write(event)
        self.replay.feed(event, len(self.rows), self.at)
        for output in settle_outputs(self.replay, len(self.rows), self.at):
            self.write(output)
            if isinstance(output, ev.ActionCancelled):
                self.dropped[output.ref] = output
        self.replay.child_stops.clear()
        self.mark(before)

    def note(self, event: ev.Event) -> None:
        before = len(self.rows)
        self.write(event)
        if not isinstance(event, ev.TimerStarted):  # the replay has already noted that it gave it out
            self.replay.feed(event, len(self.rows), self.at)
        self.mark(before)

    def write(self, event: ev.Event) -> None:
        self.rows.append(ev.row(event, len(self.rows) + 1, self.at))

    def mark(self, before: int) -> None:
        self.points.append(Point(before, len(self.rows), look(self.replay)))
        if self.relive and self.replay.outcome is None:
            live, self.replay = self.replay, replay_of(self.member.workflow, self.rows)
            evict(live)
            same(self.points[-1].state, look(self.replay), f"{self.case}, again after row {len(self.rows)}")

    def below(self, limit: int) -> int:
        return int(self.random.random() * limit)  # the most stable of all draws across Pythons


class Spending(Drive):
    """A run whose attempts are spent now and then: it is stuck, until somebody redrives it or wants it cancelled."""

    def bookkeeping(self) -> None:
        waiting = [asked for ref, asked in self.replay.actions.items() if ref not in self.settled]
        dice = self.noise.randrange(6)
        if dice < 3 and waiting:
            one, error = waiting[dice % len(waiting)], ev.Error("OSError", "ill")
            number = one.attempts + 1
            self.note(ev.ActionAttempted(one.ref, one.spec.name, one.args, number, error, self.at, spent=dice < 2))
            if dice < 2 and self.replay.stuck is None:
                self.note(ev.Stuck("attempts", "spent", place=f"/actions/{one.ref}/{one.spec.name}"))
        elif dice == 3:
            self.go_on()


# --- the laws --------------------------------------------------------------------------------------------------------


def same(expected: Any, found: Any, place: str) -> None:
    if expected != found:
        if isinstance(expected, dict) and isinstance(found, dict):
            keys = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
            expected, found = {key: expected.get(key) for key in keys}, {key: found.get(key) for key in keys}
        raise Broken(f"{place}:\n live   {expected}\n replay {found}")


def event_rows(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What they say, whoever wrote them."""
    return [(type(event).__name__, text(ev.write(event)[1])) for event in map(ev.read, rows)]


def ends(rows: Sequence[Row]) -> list[int]:
    """Where to cut a log: after every row. A log of hundreds is that of a circle, which goes the same way again and
    again: between its beginning and its end one cut in seven tells as much."""
    count = len(rows)
    return [end for end in range(1, count + 1) if count <= 150 or end <= 60 or end > count - 30 or end % 7 == 0]


def law(live: Drive, base: bool = True) -> None:
    """Every prefix of the log, replayed, stands where the live run stood, and gives out exactly what is missing."""
    definition, chosen = live.member.workflow, set(ends(live.rows))
    for point in live.points:
        for end in range(max(1, point.first + 1), point.last + 1):
            if end in chosen:
                check_prefix(definition, live, point, 0, end)
        checkpoint = newest_checkpoint(live.rows[: point.last])
        if base and checkpoint and point.last in chosen:
            check_prefix(definition, live, point, checkpoint, point.last)


def check_prefix(definition: Definition, live: Drive, point: Point, begin: int, end: int) -> None:
    place = f"{live.case}, rows {begin + 1} to {end}"
    rows = live.rows[begin:end]
    try:
        replay = replay_of(definition, rows)
        outputs = settle_outputs(replay, end, rows[-1].at)
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"{place}: {type(error).__name__}: {error}") from error
    missing = event_rows(live.rows[end : point.last])
    given = [(type(event).__name__, text(msgspec.json.encode(event))) for event in outputs]
    same(missing, given, f"{place}, outputs")
    same(point.state, look(replay), place)
    evict(replay)


def newest_checkpoint(rows: Sequence[Row]) -> int:
    """The index of the newest Restarted row, from which a replay may begin; 0 if there is none."""
    number = ev.NUMBERS[ev.Restarted]
    return next((index for index in reversed(range(len(rows))) if rows[index].type == number), 0)


def settled_once(rows: Sequence[Row]) -> None:
    """Each command is settled, fired or cancelled at most once, and never both fired and cancelled."""
    ends: dict[tuple[str, int], str] = {}
    for row in rows:
        event = ev.read(row)
        kind = {
            ev.ActionSettled: "settled",
            ev.ChildSettled: "settled",
            ev.TimerFired: "timer",
            ev.TimerCancelled: "timer",
            ev.ActionCancelled: "cancelled",
            ev.ChildStarted: "child",
            ev.Marked: "mark",
        }.get(type(event))
        ref = getattr(event, "ref", 0)
        if kind and ref:
            if (kind, ref) in ends:
                raise Broken(f"command {ref} has {ends[kind, ref]} and {type(event).__name__} at version {row.version}")
            ends[kind, ref] = type(event).__name__


# --- eviction --------------------------------------------------------------------------------------------------------


def evict(replay: Replay) -> None:
    """Take it out of memory, and check that it went without a sound."""
    loop = replay.loop
    agens, tasks = list(loop.agens), list(loop.tasks.values())
    timers, actions, ref = dict(loop.timers), list(replay.actions), loop.ref
    undead = len(loops._undead)
    replay.evict()
    left = [agen for agen in agens if agen.ag_frame is not None]
    if left or any(task.get_coro().cr_frame is not None for task in tasks):
        raise Broken(f"still suspended after an eviction: {left or tasks}")
    if replay.take() or replay.loop.ref != ref or list(replay.actions) != actions or loop.timers or loop.unset:
        raise Broken(f"commands came out of an eviction: {replay.loop.ref} {timers}")
    if len(loops._undead) != undead:
        raise Broken("an eviction did not come to an end")
    if trouble := list(workflows.trouble):
        workflows.trouble.clear()
        raise Broken(f"clean-up went wrong: {trouble}")


@contextmanager
def trackless() -> Iterator[None]:
    """Nothing may be raised where nobody sees it, and no task may be destroyed while it is pending."""
    unraisable: list[Any] = []
    problems: list[str] = []
    before, report = sys.unraisablehook, loops.Loop.call_exception_handler

    def reported(self: loops.Loop, context: dict[str, Any]) -> None:
        report(self, context)
        if "never retrieved" not in context["message"] and "could not be closed" not in context["message"]:
            problems.append(f"{context['message']} {context.get('exception')!r}")

    sys.unraisablehook = unraisable.append
    loops.Loop.call_exception_handler = reported  # type: ignore[method-assign]
    try:
        yield
    finally:
        gc.collect(1)
        sys.unraisablehook = before
        loops.Loop.call_exception_handler = report  # type: ignore[method-assign]
    if unraisable or problems:
        raise Broken(f"left tracks: {[(one.exc_value, one.object) for one in unraisable]} {problems}")


# --- what comes out of the code, in order ----------------------------------------------------------------------------


class Listening(Replay):
    """Keeps every command that the code asks for, in order."""

    def __init__(self, key: str, definition: Definition, limits: Limits | None = None) -> None:
        super().__init__(key, definition, limits)
        self.commands: list[tuple[int, str, str, str]] = []

    def _expect(self, ref: int, kind: str, name: str, args: Raw | None, *more: Any) -> None:
        self.commands.append((ref, kind, name, text(args) if args is not None else ""))
        super()._expect(ref, kind, name, args, *more)


def commands_of(definition: Definition, rows: Sequence[Row]) -> list[tuple[int, str, str, str]]:
    replay = Listening(KEY, definition)
    replay.load(rows)
    replay.take()
    evict(replay)
    return replay.commands


# --- signatures and recorded logs ------------------------------------------------------------------------------------

SIGNED = 4  # random orders per member
SIGNATURES = Path(__file__).with_name("signatures.json")
LOGS = Path(__file__).parents[1] / "logs"
#: Logs that are kept for ever. What they record must stay replayable, so their workflows can only change compatibly.
RECORDED = (
    Case("sequence", 1),
    Case("caught_failures", 2, failing=True),
    Case("sleeping_in_turns", 1),
    Case("nested_timeouts", 3),
    Case("waiting_for", 2, failing=True),
    Case("wait_first_completed", 4),
    Case("as_completed_helpers", 3, failing=True),
    Case("task_group", 1),
    Case("queues", 2),
    Case("abandoned_generators", 1),
    Case("children", 4, failing=True),
    Case("matched_events", 2),
    Case("rejected_events", 1),
    Case("record_that_fails", 1),
    Case("patched", 3),
    Case("publishing", 1),
    Case("restarting", 2),
    Case("saga_in_parallel", 5, failing=True),
    Case("clean_up_with_actions", 1, cancel_at=2),
    Case("waits_for_all_kinds", 6, failing=True),
    Case("machine_of_actions", 3, failing=True),
    Case("machine_of_timers", 1),
    Case("machine_of_undos", 2, cancel_at=4),
    Case("machine_of_nests", 2),
    Case("machine_of_errors", 3, failing=True),
    Case("machine_that_undoes", 1),
    Case("machine_of_senders", 2),
    Case("machine_of_rejections", 1),
    Case("machine_of_parts", 4),
    Case("machine_of_a_document", 2),
    Case("graph_of_splits", 2),
    Case("graph_of_waits", 3),
    Case("graph_of_loops", 1, failing=True),
    Case("graph_of_undos", 2, cancel_at=4),
    Case("graph_of_circles", 1),
    Case("graph_with_children", 2, failing=True),
    Case("graph_that_stops", 3),
    Case("graph_of_choices", 1),
    Case("graph_of_numbers", 5),
    Case("graph_of_people", 2),
    Case("graph_of_errors", 1),
    Case("graph_that_undoes", 4),
    Case("asks_persons", 3, failing=True),
    Case("graph_that_asks", 1, failing=True),
    Case("machine_that_asks", 1),
    Case("machine_that_asks", 2, failing=True),
    Case("machine_that_asks", 3, cancel_at=4),
    Case("graph_of_waits", 1),
    Case("graph_of_waits", 2),
    Case("graph_of_waits", 3, failing=True),
    Case("graph_of_waits", 2, cancel_at=4),
    Case("document_of_tasks", 1),
    Case("document_of_forks", 2, failing=True),
    Case("document_of_loops", 3, failing=True),
    Case("document_of_tries", 1),
    Case("document_of_events", 4),
    Case("document_of_children", 3, failing=True),
    Case("document_that_undoes", 2, cancel_at=4),
    Case("document_of_circles", 1),
)


def signature(live: Drive) -> str:
    """A hash over all rows of a log, without what may differ between releases: lines and words of errors."""
    facts = []
    for row in live.rows:
        event = ev.read(row)
        data = event.error.type if isinstance(event, ev.Failed) else _without_words(json.loads(row.data))
        for waiting in data.get("buffered", ()) if isinstance(event, ev.Restarted) else ():
            waiting.pop("version", None)  # where an event came in is noted since a later release; nothing depends on it
        facts.append([row.type, data, row.at])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _without_words(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_words(value) for key, value in data.items() if key not in ("where", "reason")}
    return [_without_words(one) for one in data] if isinstance(data, list) else data


def signature_of(member: str) -> str:
    """One hash for many runs of a member."""
    with trackless():
        signed = [signature(Drive(case).run()) for case in cases(SIGNED, [member])]
    return hashlib.sha256("".join(signed).encode()).hexdigest()[:16]


def digest_of(member: str) -> str:
    """A hash over every byte that many runs of a member write, words and lines and all."""
    digest = hashlib.sha256()
    for case in cases(1, [member]):
        for row in Drive(case).run().rows:
            digest.update(b"%d %d %d %b\n" % (row.version, row.type, row.at, row.data))
    return digest.hexdigest()[:16]


def signed_as(member: Member) -> str:
    """The name under which a member's signature is stored for this Python."""
    differs = sys.version_info >= member.differs_from
    return f"{member.name} from {'.'.join(map(str, member.differs_from))}" if differs else member.name


def write_signatures() -> None:
    """Only when what a member does was changed on purpose, and then on the oldest and the newest Python."""
    known = json.loads(SIGNATURES.read_text()) if SIGNATURES.exists() else {}
    known |= {signed_as(member): signature_of(member.name) for member in CORPUS.values()}
    SIGNATURES.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")


def write_logs() -> None:
    """Adds logs that are not there yet; one that is there is never written again."""
    LOGS.mkdir(exist_ok=True)
    for case in RECORDED:
        path = LOGS / f"{case}.json"
        if not path.exists():
            live = Drive(case).run()
            path.write_text(json.dumps(copies.export(KEY, "default", live.rows), indent=1, ensure_ascii=False) + "\n")


def cases(
    seeds: int, members: Iterable[str] | None = None, cancels: Sequence[int] = (-1, 1, 2, 4), noise: bool = True
) -> list[Case]:
    return [
        Case(name, seed, failing, cancel_at, noise)
        for name in (CORPUS if members is None else members)
        for seed in range(seeds)
        for failing in (False, True)
        for cancel_at in cancels
    ]
