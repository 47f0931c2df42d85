"""Replay: code against a log. What differs is named, what is kept back is driven in order, what is recorded stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest
from msgspec import Raw, structs

from perdure import ActionFailed, LimitReached, Nondeterminism, Workflow, action, event, workflow
from perdure.core import copies, events as ev, loop as loops
from perdure.core.codec import encode
from perdure.core.commands import Limits
from perdure.core.records import Row
from perdure.core.replay import Replay
from perdure.errors import NeverWakes, PerdureError, Undecodable
from tests.corpus.drive import RECORDED, Case, Drive, look, replay_of
from tests.corpus.workflows import CORPUS

Main = Callable[..., Coroutine[Any, Any, Any]]
KEY = "test/replay"
SECOND = 1_000_000


@action(name="test_replay.step")
def step(name: str) -> int: ...  # type: ignore[empty-body]


@action(name="test_replay.other")
def other(name: str) -> int: ...  # type: ignore[empty-body]


@workflow(name="test_replay.child")
async def child(n: int) -> int:
    return n


@workflow(name="test_replay.nephew")
async def nephew(n: int) -> int:
    return n


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(loops._live)
    yield
    for loop in loops._live - before:
        loop.evict()


def definition(main: Main) -> Workflow[..., Any]:
    return Workflow(main, "test_replay.main")


class Log:
    """A live run, written row by row as a worker would; one second passes with each."""

    def __init__(self, main: Main, *args: object, limits: Limits | None = None) -> None:
        self.replay = Replay(KEY, definition(main), limits)
        self.rows: list[Row] = []
        self.write(ev.Started("test_replay.main", 1, Raw(encode(args))))

    def write(self, event: ev.Event, feed: bool = True) -> Log:
        version = len(self.rows) + 1
        self.rows.append(ev.row(event, version, version * SECOND))
        if feed:
            self.replay.feed(event, version, version * SECOND)
            for output in self.replay.take():
                self.write(output, feed=False)
            if isinstance(self.replay.outcome, ev.Restarted):
                self.write(self.replay.outcome)
        return self

    def settle(self, ref: int, result: object = 0, error: str = "") -> Log:
        asked = self.replay.actions[ref]
        failure = ev.Error(error, "of the test") if error else None
        return self.write(ev.ActionSettled(ref, asked.spec.name, asked.args, Raw(encode(result)), failure))

    def fire(self, ref: int) -> Log:
        return self.write(ev.TimerFired(ref, self.replay.due_of(self.replay.loop.timers[ref])))

    def send(self, name: str, payload: object = None) -> Log:
        return self.write(ev.EventReceived(name, Raw(encode(payload)), f"event-{len(self.rows)}"))

    def park(self) -> Log:
        for timer in self.replay.unlogged_timers():
            self.write(timer, feed=False)
        return self

    def end(self) -> Log:
        assert self.replay.outcome is not None
        return self.write(self.replay.outcome)

    @property
    def kinds(self) -> list[str]:
        return [type(ev.read(row)).__name__ for row in self.rows]


def replayed(main: Main, rows: list[Row], limits: Limits | None = None) -> Replay:
    return replay_of(definition(main), rows, KEY, limits)


def result(replay: Replay) -> Any:
    assert isinstance(replay.outcome, ev.Completed), replay.outcome
    return msgspec.json.decode(replay.outcome.result)


def asked(replay: Replay) -> list[str]:
    return [f"{one.spec.name.rpartition('.')[2]} {bytes(one.args).decode()}" for one in replay.actions.values()]


async def two_steps() -> int:
    return await step("a") + await step("b")


# --- code that differs from its log ----------------------------------------------------------------------------------


def differs(main: Main, rows: list[Row]) -> str:
    with pytest.raises(Nondeterminism) as found:
        replayed(main, rows)
    return str(found.value)


def test_another_action_is_named_with_the_recorded_one() -> None:
    async def changed() -> int:
        return await step("a") + await other("b")

    assert differs(changed, Log(two_steps).settle(1).settle(2).rows) == (
        "test/replay: the code asks for action test_replay.other as command 2, but version 3 of the log records"
        " action test_replay.step: run the code that this execution began with, or guard the change with"
        " workflow.patched()"
    )


def test_other_arguments_are_shown_with_the_recorded_ones() -> None:
    async def changed() -> int:
        return await step("a") + await step("c")

    assert differs(changed, Log(two_steps).settle(1).settle(2).rows) == (
        'test/replay: the code calls test_replay.step (command 2) with ["c"], but version 3 of the log records ["b"]'
    )


def test_the_first_difference_is_the_one_that_is_named() -> None:
    async def changed() -> int:
        return await other("x") + await other("y")

    assert "command 1" in differs(changed, Log(two_steps).settle(1).settle(2).rows)


def test_a_command_in_between_is_named() -> None:
    async def changed() -> int:
        first = await step("a")
        await asyncio.sleep(5)
        return first + await step("b")

    assert "the code asks for timer as command 2, but version 3 of the log records action test_replay.step" in differs(
        changed, Log(two_steps).settle(1).settle(2).rows
    )


def test_a_command_that_is_gone_is_named() -> None:
    async def changed() -> int:
        return await step("a")

    assert differs(changed, Log(two_steps).settle(1).settle(2).rows).startswith(
        "test/replay: version 3 of the log records action test_replay.step as command 2, but the code ends with"
        " Completed before it"
    )


def test_a_command_that_does_not_come_yet_is_named() -> None:
    async def changed() -> int:
        first = await step("a")
        await event("never sent")
        return first + await step("b")

    assert "as command 2, but the code does not ask for it" in differs(changed, Log(two_steps).settle(1).settle(2).rows)


def test_bookkeeping_of_an_action_that_is_gone_is_noticed_too() -> None:
    log = Log(two_steps).settle(1)
    log.write(ev.ActionScheduled(2, "test_replay.step", Raw(b'["b"]'), "elsewhere"))

    async def changed() -> int:
        first = await step("a")
        await event("never sent")
        return first

    assert "as command 2, but the code does not ask for it" in differs(changed, log.rows)


async def naps() -> None:
    await asyncio.sleep(10)
    await step("b")


def test_a_timer_that_is_gone_is_named() -> None:
    async def changed() -> None:
        await event("instead")

    async def shorter() -> None:
        await step("instead")

    rows = Log(naps).fire(1).rows
    assert "version 2 of the log records timer as command 1, but the code has no such timer" in differs(changed, rows)
    assert "the code asks for action test_replay.step as command 1, but version 2 of the log records timer" in differs(
        shorter, rows
    )


def test_a_timer_with_another_time_is_named_with_both() -> None:
    async def changed() -> None:
        await asyncio.sleep(20)

    message = differs(changed, Log(naps).park().rows)
    assert "version 2 of the log records timer as command 1, but the code sets it to 21000000" in message


def test_a_timer_that_is_kept_is_named() -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await step("a")
        await step("b")

    async def changed() -> None:
        async with asyncio.timeout(10):
            await step("a")
            await step("b")

    rows = Log(main).park().settle(2).rows
    assert "as command 1, but the code keeps the timer" in differs(changed, rows)


def test_a_cancelled_action_that_the_code_still_wants_is_named() -> None:
    async def main() -> None:
        try:
            await asyncio.wait_for(step("slow"), 5)
        except TimeoutError:
            await event("later")

    async def changed() -> None:
        asyncio.get_running_loop().call_later(5, print)
        await step("slow")

    log = Log(main)
    assert [one.args for one in log.replay.actions.values()] == [Raw(b'["slow"]')]
    rows = log.fire(1).rows
    assert log.kinds == ["Started", "TimerFired", "ActionCancelled"]
    assert "action test_replay.step as command 2, but the code does not cancel it" in differs(changed, rows)


def test_another_child_or_its_input_is_named() -> None:
    async def main() -> int:
        return await child(1)

    async def renamed() -> int:
        return await nephew(1)

    async def rewritten() -> int:
        return await child(2)

    rows = Log(main).rows
    assert "the code asks for child test_replay.nephew as command 1, but version 2" in differs(renamed, rows)
    assert "calls test_replay.child (command 1) with [2], but version 2 of the log records [1]" in differs(
        rewritten, rows
    )


def test_a_recorded_value_that_the_log_does_not_have_is_named() -> None:
    async def main() -> None:
        await step("a")
        await event("x")
        await event("y")

    async def changed() -> None:
        await step("a")
        workflow.record(lambda: 1)
        await event("x")
        await event("y")

    rows = Log(main).settle(1).send("x").rows
    assert differs(changed, rows) == (
        "test/replay: the code records a value as command 2, but the log went on without one (version 2)"
    )


def test_a_recorded_value_that_the_code_does_not_ask_for_is_named() -> None:
    async def main() -> None:
        workflow.record(lambda: 1)
        await event("x")

    async def changed() -> None:
        await event("x")

    assert "version 2 of the log records record as command 1, but the code does not ask for it" in differs(
        changed, Log(main).rows
    )


def test_another_end_is_named() -> None:
    async def fails() -> int:
        raise ValueError(await step("a"))

    async def longer() -> int:
        return await step("a") + await step("b")

    async def main() -> int:
        return await step("a")

    rows = Log(main).settle(1).end().rows
    assert "version 3 of the log records Completed as command 0, but the code ends with Failed" in differs(fails, rows)
    assert "longer, line" in differs(longer, rows)


def test_a_forced_end_is_not_the_codes() -> None:
    rows = Log(two_steps).settle(1).write(ev.Cancelled("too late", forced=True), feed=False).rows
    replay = replayed(two_steps, rows)
    assert isinstance(replay.outcome, ev.Cancelled)
    assert replay.loop.is_closed()


@pytest.mark.parametrize("kind", [Exception, BaseException])
def test_no_handler_of_the_workflow_can_swallow_it(kind: type[BaseException]) -> None:
    async def changed() -> int:
        try:
            await other("a")
        except kind:
            return 1
        finally:
            await step("clean up")
        return 2

    assert "command 1" in differs(changed, Log(two_steps).settle(1).settle(2).rows)


@pytest.mark.parametrize("wait", [lambda: step("again"), lambda: asyncio.sleep(1), lambda: event("x")])
def test_code_that_tries_for_ever_cannot_hide_it(wait: Callable[[], Any]) -> None:
    async def changed() -> None:
        while True:
            try:
                await other("a")
                await wait()
            except BaseException:
                try:
                    await wait()
                except BaseException:
                    pass

    assert "command 1" in differs(changed, Log(two_steps).settle(1).settle(2).rows)


def test_a_task_that_fails_so_takes_the_whole_replay_with_it() -> None:
    async def main() -> None:
        await asyncio.gather(step("a"), step("b"))

    async def changed() -> None:
        await asyncio.gather(step("a"), other("b"), return_exceptions=True)

    assert "command 2" in differs(changed, Log(main).settle(2).rows)


def test_a_late_result_of_a_cancelled_action_is_no_difference() -> None:
    async def main() -> None:
        try:
            await asyncio.wait_for(step("slow"), 5)
        except TimeoutError:
            await step("after")

    log = Log(main).fire(1)
    log.write(ev.ActionSettled(2, "test_replay.step", Raw(b'["slow"]'), Raw(b"7")))
    assert asked(replayed(main, log.rows)) == ['step ["after"]']


def test_what_nobody_recorded_may_change() -> None:
    async def changed() -> int:
        return await step("a") + await other("instead")

    assert asked(replayed(changed, Log(two_steps).settle(1).rows)) == ['other ["instead"]']


# --- pauses and stuck windows ----------------------------------------------------------------------------------------


async def notes() -> list[Any]:
    return [f"{await event('note')} at {asyncio.get_running_loop().time():.0f}" for _ in range(3)]


@pytest.mark.parametrize(
    "closed, opened",
    [(ev.Paused(), ev.Resumed()), (ev.Stuck("nondeterminism", "why"), ev.Redriven())],
    ids=["paused", "stuck"],
)
def test_inputs_are_kept_back_and_driven_in_order(closed: ev.Event, opened: ev.Event) -> None:
    log = Log(notes).write(closed)
    log.send("note", "a").send("note", "b").send("note", "c")
    assert log.replay.outcome is None
    assert log.replay.buffer == []
    log.write(opened)
    assert result(log.replay) == ["a at 5", "b at 5", "c at 5"]  # the time of the row that let them through
    assert result(replayed(notes, log.rows)) == ["a at 5", "b at 5", "c at 5"]


def test_a_log_that_ends_inside_a_pause_replays_to_the_pause() -> None:
    log = Log(two_steps).write(ev.Paused(0, "lunch")).settle(1, 5)
    replay = replayed(two_steps, log.rows)
    assert replay.paused == ev.Paused(0, "lunch")
    assert asked(replay) == ['step ["a"]']
    replay.feed(ev.Resumed(), 4, 4 * SECOND)
    assert asked(replay) == ['step ["b"]']


def test_a_second_pause_in_the_backlog_is_not_possible_but_two_windows_are() -> None:
    log = Log(notes).write(ev.Paused()).send("note", "a").write(ev.Resumed())
    log.write(ev.Paused()).send("note", "b").write(ev.Resumed()).send("note", "c")
    assert result(log.replay) == ["a at 3", "b at 6", "c at 7"]
    assert result(replayed(notes, log.rows)) == ["a at 3", "b at 6", "c at 7"]


def test_a_stuck_execution_goes_on_with_code_that_fits_again() -> None:
    async def broken() -> int:
        first = await step("a")
        await asyncio.Future()
        return first

    log = Log(broken)
    with pytest.raises(NeverWakes):
        log.settle(1, 20)
    log.replay = Replay(KEY, definition(two_steps))  # the row is written, the turn is lost
    log.write(ev.Stuck("never-wakes", "a bare future"), feed=False)
    log.write(ev.EventReceived("unasked", Raw(b"1")), feed=False)
    log.write(ev.Redriven("new code"), feed=False)
    replay = replayed(two_steps, log.rows)
    assert asked(replay) == ['step ["b"]']
    assert len(replay.buffer) == 1


def test_new_code_of_a_stuck_execution_may_record_and_patch_where_the_old_one_stopped() -> None:
    async def broken() -> int:
        await step("a")
        await asyncio.Future()
        return 0

    async def repaired() -> list[Any]:
        await step("a")
        return [workflow.patched("repair"), workflow.record(lambda: 3), await event("x")]

    log = Log(broken)
    with pytest.raises(NeverWakes):
        log.settle(1)
    log.write(ev.Stuck("never-wakes", "why"), feed=False)
    log.write(ev.EventReceived("x", Raw(b"1")), feed=False)
    log.write(ev.Redriven(), feed=False)
    assert result(replayed(repaired, log.rows)) == [True, 3, 1]


def test_cancel_without_clean_up_ends_at_once_even_in_a_pause() -> None:
    log = Log(two_steps).write(ev.Paused()).write(ev.CancelRequested("now", now=True))
    assert log.replay.outcome == ev.Cancelled("now", forced=True, since=2)
    assert log.replay.loop.is_closed()


# --- cancel ----------------------------------------------------------------------------------------------------------


def test_a_second_cancel_is_recorded_but_does_not_hit_the_clean_up() -> None:
    async def main() -> None:
        try:
            await step("work")
        except asyncio.CancelledError as error:
            await step(f"undo after {error}")
            raise

    log = Log(main).write(ev.CancelRequested("first")).write(ev.CancelRequested("second"))
    assert asked(log.replay) == ['step ["undo after first"]']
    log.settle(2)
    assert isinstance(log.replay.outcome, ev.Cancelled)
    assert log.replay.outcome.reason == "first"


def test_a_swallowed_cancel_is_noted() -> None:
    async def main() -> str:
        try:
            await step("work")
        except asyncio.CancelledError:
            pass
        return "anyway"

    log = Log(main).write(ev.CancelRequested())
    assert log.replay.outcome == ev.Completed(Raw(b'"anyway"'), "a cancel request was ignored")


def test_an_event_that_its_waiter_could_not_take_goes_to_the_front() -> None:
    async def main() -> None:
        await event("x")

    log = Log(main)
    replay, waiting = log.replay, log.replay.loop.main
    assert waiting is not None
    replay.buffer.append(ev.Received("older", "y"))
    replay._turn(lambda: (replay._deliver(ev.Received("taken", "x")), waiting.cancel()))
    assert [one.id for one in replay.buffer] == ["taken", "older"]


# --- time ------------------------------------------------------------------------------------------------------------


def test_timers_are_due_by_time_and_then_by_number() -> None:
    async def main() -> None:
        await asyncio.gather(*(asyncio.sleep(delay) for delay in (3, 2, 2, 1)))

    replay = Log(main).replay
    order = []
    while (due := replay.due_timers(100 * SECOND)) is not None:
        order.append(due[1])
        replay.feed(ev.TimerFired(due[1], due[0]), 2, 100 * SECOND)
    assert order == [4, 2, 3, 1]


def test_a_timer_is_never_early() -> None:
    async def main() -> None:
        await asyncio.sleep(0.0000015)

    replay = Log(main).replay
    assert replay.next_due() == SECOND + 2
    assert replay.due_timers(SECOND + 1) is None


def test_a_timer_that_was_set_and_cancelled_in_one_turn_leaves_no_row() -> None:
    async def main() -> int:
        async with asyncio.timeout(60):
            pass
        return await step("a")

    log = Log(main).park()
    assert log.kinds == ["Started"]
    assert list(log.replay.actions) == [2]  # its number stays used


def test_time_never_runs_backwards() -> None:
    async def main() -> list[float]:
        loop, seen = asyncio.get_running_loop(), []
        for name in ("a", "b"):
            await step(name)
            seen.append(loop.time())
        return seen

    replay = Log(main).replay
    for ref, name, at in ((1, b'["a"]', 9), (2, b'["b"]', 4)):
        replay.feed(ev.ActionSettled(ref, "test_replay.step", Raw(name), Raw(b"1")), ref + 1, at * SECOND)
    assert result(replay) == [8.0, 8.0]


# --- patched ---------------------------------------------------------------------------------------------------------


async def before_the_patch() -> list[int]:
    first = await step("a")
    await event("go")
    return [first, await step("b")]


async def after_the_patch() -> list[int]:
    first = await step("a")
    await event("go")
    if workflow.patched("double-check"):
        await other("check")
    return [first, await step("b")]


def test_a_new_run_takes_the_new_path_at_every_prefix() -> None:
    log = Log(after_the_patch).settle(1, 5).send("go").settle(2, 6).settle(3, 7)
    assert log.kinds == ["Started", "ActionSettled", "EventReceived", "Marked", "ActionSettled", "ActionSettled"]
    assert result(log.replay) == [5, 7]
    for end in range(3, len(log.rows)):
        replay = replayed(after_the_patch, log.rows[:end])
        assert asked(replay)[0] == ('other ["check"]' if end < 5 else 'step ["b"]')
        assert [type(output) for output in replay.take()] == ([ev.Marked] if end == 3 else [])


def test_an_old_run_that_passed_keeps_the_old_path_at_every_later_prefix() -> None:
    log = Log(before_the_patch).settle(1, 5).send("go").settle(2, 7)
    log.write(ev.EventReceived("late", id="x"), feed=False)
    for end in range(4, len(log.rows) + 1):
        replay = replayed(after_the_patch, log.rows[:end])
        assert result(replay) == [5, 7]
        assert replay.take() == []


def test_an_old_run_that_has_not_passed_takes_the_new_path() -> None:
    replay = replayed(after_the_patch, Log(before_the_patch).settle(1, 5).rows)
    replay.feed(ev.EventReceived("go", id="x"), 3, 3 * SECOND)
    assert asked(replay) == ['other ["check"]']
    assert replay.take() == [ev.Marked(0, "patch", "double-check")]


def test_an_old_run_keeps_its_path_while_it_goes_on() -> None:
    async def old(n: int) -> None:
        for name in range(n):
            await step(str(name))

    async def new(n: int) -> None:
        for name in range(n):
            if workflow.patched("loud"):
                await other("ping")
            await step(str(name))

    log = Log(old, 3).settle(1)
    replay = replayed(new, log.rows)
    assert asked(replay) == ['step ["1"]']
    replay.feed(ev.ActionSettled(2, "test_replay.step", Raw(b'["1"]'), Raw(b"1")), 3, 3 * SECOND)
    assert asked(replay) == ['step ["2"]']  # decided at the first call, for ever


async def old_round(left: int) -> int:
    await step(f"round {left}")
    if left:
        workflow.restart_with(left - 1)
    return await step("end")


async def new_round(left: int) -> int:
    if workflow.patched("rounds"):
        await other("new")
    await step(f"round {left}")
    if left:
        workflow.restart_with(left - 1)
    return await step("end")


def test_a_later_round_may_take_a_patch_that_an_earlier_one_passed() -> None:
    log = Log(old_round, 1)
    log.replay = replayed(new_round, log.settle(1).rows[:2])
    log.rows = log.rows[:2]
    assert log.replay.outcome is not None  # the checkpoint is due
    log.write(log.replay.outcome)
    assert asked(log.replay) == ['other ["new"]']
    assert log.kinds == ["Started", "ActionSettled", "Restarted", "Marked"]
    for rows in (log.rows, log.rows[:3], log.rows[2:], log.rows[2:3]):
        assert asked(replayed(new_round, rows)) == ['other ["new"]'], len(rows)


def test_a_patch_taken_stays_taken_in_later_rounds() -> None:
    log = Log(new_round, 1).settle(1).settle(2)
    assert log.kinds.count("Marked") == 1
    assert asked(log.replay) == ['other ["new"]']
    assert asked(replayed(new_round, log.rows[log.kinds.index("Restarted") :])) == ['other ["new"]']


async def napping_round(left: int) -> None:
    await step(f"round {left}")
    if left:
        workflow.restart_with(left - 1)
    await asyncio.sleep(60)


def test_a_round_begins_when_its_checkpoint_was_written_also_by_a_clock_behind_that_of_the_round_before() -> None:
    log = Log(napping_round, 1)
    log.replay.feed(ev.ActionSettled(1, "test_replay.step", Raw(b'["round 1"]'), Raw(b"1")), 2, 100 * SECOND)
    checkpoint = log.replay.outcome
    assert isinstance(checkpoint, ev.Restarted)
    log.replay.feed(checkpoint, 3, 98 * SECOND)
    settled = ev.ActionSettled(2, "test_replay.step", Raw(b'["round 0"]'), Raw(b"1"))
    log.replay.feed(settled, 4, 99 * SECOND)
    [timer] = log.replay.unlogged_timers()
    rows = [ev.row(checkpoint, 3, 98 * SECOND), ev.row(settled, 4, 99 * SECOND), ev.row(timer, 5, 99 * SECOND)]
    assert replayed(napping_round, rows).next_due() == 159 * SECOND


# --- record ----------------------------------------------------------------------------------------------------------


def test_a_recorded_value_is_computed_once() -> None:
    calls: list[int] = []

    def compute() -> int:
        calls.append(1)
        return len(calls)

    async def main() -> list[int]:
        seen = [workflow.record(compute)]
        await step("a")
        seen.append(workflow.record(compute))
        await step("b")
        return seen

    log = Log(main).settle(2).settle(4)
    assert result(log.replay) == [1, 2]
    rests = [2, 4, 5]  # a commit is never cut in two, so a value that was computed is there
    assert [replayed(main, log.rows[:end]).outcome is not None for end in rests] == [False, False, True]
    assert result(replayed(main, log.rows)) == [1, 2]
    assert len(calls) == 2


def test_a_recorded_value_keeps_its_type() -> None:
    def compute() -> tuple[int, ...]:
        return (1, 2)

    async def main() -> bool:
        return workflow.record(compute) == (1, 2)

    assert result(Log(main).replay) is True


def test_a_recorded_failure_is_the_same_on_replay() -> None:
    calls: list[int] = []

    class Odd(Exception):
        pass

    def compute() -> int:
        calls.append(1)
        raise (KeyError("region") if len(calls) == 1 else Odd("of its own"))

    async def main() -> list[Any]:
        seen: list[Any] = []
        for _ in range(2):
            try:
                workflow.record(compute)
            except ActionFailed as error:
                seen.append([isinstance(error, KeyError), error.type, str(error), error.__context__ is None])
        return [*seen, await step("a")]

    log = Log(main).settle(3)
    assert result(log.replay) == result(replayed(main, log.rows))
    assert result(log.replay) == [
        [True, "KeyError", "'region'", True],
        [False, "Odd", "workflow.record() failed: Odd: of its own", True],
        0,
    ]
    assert len(calls) == 2


# --- what goes out ---------------------------------------------------------------------------------------------------


def test_a_publish_that_the_code_dropped_does_not_hide_the_next_one() -> None:
    async def main() -> None:
        workflow.publish(stage="begun")
        await step("a")

    async def quieter() -> None:
        await step("a")
        workflow.publish(stage="end")

    replay = replayed(quieter, Log(main).rows)
    replay.feed(ev.ActionSettled(1, "test_replay.step", Raw(b'["a"]'), Raw(b"1")), 3, 3 * SECOND)
    assert [type(output) for output in replay.take()] == [ev.Published]


def test_a_child_is_started_under_a_name_of_its_own() -> None:
    async def main() -> int:
        return await child(7)

    log = Log(main)
    assert ev.read(log.rows[1]) == ev.ChildStarted(1, "replay.1", "test_replay.child", 1, Raw(b"[7]"))


# --- copies ----------------------------------------------------------------------------------------------------------


#: A fork asks people anew, under refs of its own, so it does not stand where the original did.
UNLIKE = ("restarting", "graph_that_asks", "machine_that_asks")


@pytest.mark.parametrize("case", [case for case in RECORDED if case.member not in UNLIKE], ids=str)
def test_a_fork_at_any_point_replays_to_where_the_original_stood(case: Case) -> None:
    live = Drive(structs.replace(case, noise=False)).run()
    for point in live.points[:-1]:
        rows = copies.prefix(live.rows[: point.last], {}, "corpus/run@1")
        fork = replay_of(live.member.workflow, rows, "corpus/fork")
        assert set(map(type, fork.take())) <= {ev.ChildStarted}
        original, copy = dict(point.state), look(fork)
        for view in (original, copy):
            view["undos"] = [undo[:3] for undo in view["undos"]]
            del view["kept"]  # versions are new, and the outcome is not copied but found again
            if view["outcome"] is not None:
                view["outcome"] = view["outcome"][0]
        assert copy == original, point.last


def test_an_edited_fork_goes_another_way() -> None:
    async def main() -> int:
        return await step("high") if await step("a") > 5 else await step("low")

    log = Log(main).settle(1, 3)
    assert asked(log.replay) == ['step ["low"]']
    rows = copies.prefix(log.rows, {2: Raw(b"8")}, "test/replay@2")
    assert asked(replayed(main, rows)) == ['step ["high"]']


def test_a_retry_begins_before_everything_that_was_undone() -> None:
    live = Drive(Case("saga", 0)).run()
    saga = CORPUS["saga"].workflow
    replay, rows = Replay("test/saga", saga), live.rows[:1]
    replay.feed(ev.read(rows[0]), 1, rows[0].at)

    def settle(error: ev.Error | None = None) -> None:
        ((ref, one),) = replay.actions.items()
        value = Raw(b'"seat"' if one.spec.name == "corpus.book" else b"null" if one.spec.name == "unbook" else b"1")
        event = ev.ActionSettled(ref, one.spec.name, one.args, value, error)
        rows.append(ev.row(event, len(rows) + 1, rows[0].at))
        replay.feed(event, len(rows), rows[0].at)

    settle()  # hotel
    settle()  # flight
    settle(ev.Error("ValueError", "no money"))  # pay
    assert asked(replay) == ['unbook ["flight",2,"seat"]']
    settle()
    settle()
    assert isinstance(replay.outcome, ev.Failed)
    rows.append(ev.row(replay.outcome, len(rows) + 1, rows[0].at))
    assert copies.retry_point(rows) == 1
    again = replay_of(saga, copies.prefix(rows[:1], {}, "test/saga@1"))
    assert asked(again) == ['book ["hotel",1]']


def test_a_retry_of_what_had_nothing_to_undo_begins_before_the_failure() -> None:
    log = Log(two_steps).settle(1, 4).settle(2, error="ValueError").end()
    kept = copies.retry_point(log.rows)
    assert kept == 2
    assert asked(replayed(two_steps, copies.prefix(log.rows[:kept], {}, "test/replay@2"))) == ['step ["b"]']


# --- what cannot be read, and limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row, message",
    [
        (Row(2, 99, b"{}", 0), "event type 99 in format 1, which this code does not know"),
        (Row(2, 1015, b"{}", 0), "event type 15 in format 2, which this code does not know"),
        (Row(2, 15, b'{"ref":"one"}', 0), "version 2 of the log cannot be decoded"),
        (Row(2, 15, b"\xff", 0), "version 2 of the log cannot be decoded"),
    ],
    ids=["type", "format", "shape", "bytes"],
)
def test_a_row_of_another_world_is_an_error_never_a_guess(row: Row, message: str) -> None:
    with pytest.raises(Undecodable, match=message):
        replayed(two_steps, [*Log(two_steps).rows, row])


def test_an_input_that_does_not_fit_the_parameters_is_undecodable() -> None:
    async def main(n: int) -> None: ...

    with pytest.raises(Undecodable, match="the input does not fit the workflow's parameters"):
        Log(main, "not a number")


def test_a_result_that_does_not_fit_its_type_is_undecodable() -> None:
    with pytest.raises(Undecodable, match=r"the result of test_replay.step \(version 2 of the log\) does not fit"):
        Log(two_steps).settle(1, "not a number")


@pytest.mark.parametrize("handler", [(), Exception, BaseException], ids=["none", "Exception", "BaseException"])
def test_too_many_commands_in_one_turn_stop_the_replay(handler: Any) -> None:
    async def main() -> None:
        tasks = []
        for n in range(30):
            try:
                tasks.append(asyncio.create_task(step(str(n))))
                await asyncio.sleep(0)
            except handler:
                pass
        await asyncio.gather(*tasks, return_exceptions=True)

    with pytest.raises(LimitReached, match="test/replay: more than 20 commands in one turn; do the work in portions"):
        Log(main, limits=Limits(commands_per_turn=20))


def test_timers_count_as_commands_and_nobody_can_spin_on_the_limit() -> None:
    async def main() -> None:
        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.sleep(1)
                except BaseException:
                    pass

        await asyncio.gather(*(stubborn() for _ in range(30)))

    with pytest.raises(LimitReached, match="more than 20 commands"):
        Log(main, limits=Limits(commands_per_turn=20))


def test_commands_of_two_turns_do_not_add_up() -> None:
    async def main() -> None:
        for turn in range(3):
            await asyncio.gather(*(step(f"{turn} {n}") for n in range(15)))

    log = Log(main, limits=Limits(commands_per_turn=20))
    for ref in range(1, 46):
        log.settle(ref)
    assert isinstance(log.replay.outcome, ev.Completed)


def test_a_log_that_is_too_long_says_what_to_do() -> None:
    log = Log(two_steps).settle(1).settle(2)
    with pytest.raises(LimitReached, match=r"has 3 events to replay, more than 2: .*restart_with"):
        replayed(two_steps, log.rows, Limits(events_per_replay=2))


def test_faults_are_errors_of_the_engine() -> None:
    assert all(issubclass(kind, PerdureError) for kind in (Nondeterminism, NeverWakes, Undecodable, LimitReached))


# --- speed -----------------------------------------------------------------------------------------------------------


def test_ten_thousand_events_replay_in_a_moment() -> None:
    """About 0.1 s for ten thousand on the machine it was written on; what grows with their square takes minutes."""

    async def main(n: int) -> int:
        return sum([await step(str(number)) for number in range(n)])

    rows = [ev.row(ev.Started("test_replay.main", 1, Raw(b"[10000]")), 1, SECOND)]
    for n in range(10_000):
        settled = ev.ActionSettled(n + 1, "test_replay.step", Raw(b'["%d"]' % n), Raw(b"1"))
        rows.append(ev.row(settled, n + 2, SECOND + n))
    began = time.process_time()
    replay = replayed(main, rows)
    assert time.process_time() - began < 5
    assert result(replay) == 10_000
