"""The loop itself: what it refuses, what it leaves alone, and how code goes out of memory."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future as ThreadFuture
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure import ActionFailed, Forbidden, action
from perdure.core import events as ev, loop as loops, patches
from perdure.core.codec import encode
from perdure.core.commands import Limits
from perdure.core.loop import Evicted, Loop
from perdure.core.replay import Replay
from perdure.errors import NeverWakes

ROOT = Path(__file__).parents[2]
Main = Callable[[], Coroutine[Any, Any, Any]]
host = contextvars.ContextVar("host", default="nothing")


@action(name="test_loop.step")
def step(name: str) -> int:
    raise AssertionError("the body of an action ran inside a workflow")


class Plain:
    """A workflow that nobody looked at before it runs."""

    name = "plain"
    version = 1

    def __init__(self, main: Main) -> None:
        self.main = main

    async def begin(self, execution: Replay, input: Raw) -> Raw:
        return Raw(encode(await self.main()))


def begin(main: Main, limits: Limits | None = None) -> Replay:
    replay = Replay("test/loop", Plain(main), limits)
    replay.feed(ev.Started("plain", 1, Raw(b"[]")), 1, 1_000_000)
    return replay


def result_of(main: Main) -> Any:
    """What the workflow returns, or raises as it reached the end."""
    outcome = begin(main).outcome
    assert isinstance(outcome, ev.Completed), outcome
    return msgspec.json.decode(outcome.result)


def settle(replay: Replay, ref: int, result: object = None, error: ev.Error | None = None, version: int = 2) -> None:
    asked = replay.actions[ref]
    event = ev.ActionSettled(ref, asked.spec.name, asked.args, Raw(encode(result)), error)
    replay.feed(event, version, 2_000_000)


def asked(replay: Replay) -> list[str]:
    return [bytes(one.args).decode() for one in replay.actions.values()]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(loops._live)
    yield
    for loop in loops._live - before:
        loop.evict()
    assert asyncio._get_running_loop() is None
    assert gc.isenabled()


# --- what a workflow cannot do ---------------------------------------------------------------------------------------

ALLOWED = {
    "call_at",
    "call_exception_handler",
    "call_later",
    "call_soon",
    "create_future",
    "create_task",
    "get_debug",
    "is_closed",
    "is_running",
    "time",
}
REFUSED = sorted(name for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_") and name not in ALLOWED)


@pytest.mark.parametrize("name", REFUSED)
def test_what_else_a_loop_can_do_is_refused_at_the_call(name: str) -> None:
    async def main() -> str:
        with pytest.raises(Forbidden) as refused:
            getattr(asyncio.get_running_loop(), name)()
        return str(refused.value)

    place = f"{main.__qualname__} (test_loop.py:{main.__code__.co_firstlineno + 2})"
    assert result_of(main) == (
        f"{place} calls loop.{name}(), which cannot be replayed: put what needs it into an action"
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: asyncio.to_thread(len, "abc"),
        lambda: asyncio.get_running_loop().run_in_executor(None, len, "abc"),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.create_subprocess_shell("true"),
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.start_server(print, "localhost", 1),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
        lambda: asyncio.get_running_loop().sock_recv(None, 1),
    ],
    ids=lambda call: " ".join(call.__code__.co_names),
)
def test_io_of_asyncio_is_refused(call: Callable[[], Any]) -> None:
    async def main() -> str:
        with pytest.raises(Forbidden, match="put what needs it into an action") as refused:
            await call()
        return str(refused.value)

    assert re.match(rf".*({main.__qualname__}|<lambda>) \(test_loop.py:\d+\) calls loop\.", result_of(main))


def test_a_refused_coroutine_is_closed() -> None:
    async def never() -> None: ...

    async def main() -> None:
        with pytest.raises(Forbidden):
            asyncio.get_running_loop().run_until_complete(never())

    result_of(main)  # a warning that it was never awaited would be an error here


@pytest.mark.parametrize("run", [asyncio.run, lambda coro: asyncio.Runner().run(coro)], ids=["run", "Runner"])
def test_a_second_loop_inside_a_workflow_is_refused_by_asyncio(run: Callable[[Any], Any]) -> None:
    async def inner() -> None: ...

    async def main() -> None:
        coro = inner()
        try:
            with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
                run(coro)
        finally:
            coro.close()

    result_of(main)


def test_task_factories_and_eager_tasks_are_refused() -> None:
    async def inner() -> None: ...

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(Forbidden, match="set_task_factory"):
            loop.set_task_factory(None)
        with pytest.raises(
            Forbidden, match=r"main \(test_loop.py:\d+\) makes an eager .*: use a plain create_task\(\)"
        ):
            loop.create_task(inner(), eager_start=True)

    result_of(main)


@pytest.mark.parametrize("when", [float("inf"), float("nan")])
def test_a_timer_needs_a_finite_time(when: float) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="finite"):
            asyncio.get_running_loop().call_at(when, print)

    result_of(main)


def test_awaiting_something_of_the_host_is_an_error_of_asyncio() -> None:
    async def worker() -> str:
        future = asyncio.get_running_loop().create_future()

        async def main() -> str:
            try:
                return await future
            except RuntimeError as error:
                return str(error)

        return result_of(main)

    assert "attached to a different loop" in asyncio.run(worker())


# --- code that never wakes -------------------------------------------------------------------------------------------


def test_a_loop_that_never_rests_is_reported_with_its_place() -> None:
    async def spinning() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(NeverWakes, match=r"1,000 steps in one turn, at .*spinning, line \d+.*asyncio.sleep\(\)"):
        begin(spinning, Limits(steps_per_turn=1000))


def test_time_does_not_pass_inside_a_turn() -> None:
    async def impatient() -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < 1:
            await asyncio.sleep(0)

    with pytest.raises(NeverWakes, match="time stands still between events"):
        begin(impatient, Limits(steps_per_turn=1000))


@pytest.mark.parametrize(
    "wait",
    [
        lambda: asyncio.Future(),
        lambda: asyncio.Event().wait(),
        lambda: asyncio.Queue().get(),
        lambda: asyncio.wrap_future(ThreadFuture()),
    ],
    ids=["Future", "Event", "Queue", "thread"],
)
def test_waiting_for_what_nobody_brings_is_reported_with_its_place(wait: Callable[[], Any]) -> None:
    async def forgotten() -> None:
        await step("first")
        await wait()

    replay = begin(forgotten)
    with pytest.raises(NeverWakes, match=r"waits at .*forgotten, line \d+ for something that no action, timer, event"):
        settle(replay, 1, 5)


def test_nested_tasks_that_can_never_wake_are_reported_with_their_places() -> None:
    async def outer() -> None:
        gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(first(gate))
            group.create_task(second(gate))

    async def first(gate: asyncio.Event) -> None:
        await step("first")
        await gate.wait()

    async def second(gate: asyncio.Event) -> None:
        async with asyncio.Lock():
            await gate.wait()

    replay = begin(outer)
    with pytest.raises(NeverWakes) as stuck:
        settle(replay, 1, 5)
    for code, line in ((first.__code__, 2), (second.__code__, 2)):
        assert f"{code.co_qualname}, line {code.co_firstlineno + line}" in str(stuck.value)


def test_the_place_is_the_authors_line_not_the_librarys() -> None:
    async def outer() -> None:
        await asyncio.wait_for(inner(), 10)

    async def inner() -> None:
        async with asyncio.timeout(5):
            await step("deep")

    replay = begin(outer)
    place = inner.__code__.co_firstlineno + 2
    assert f"{inner.__qualname__}, line {place}" in replay.places()


# --- the host --------------------------------------------------------------------------------------------------------


async def two_turns() -> tuple[bool, bool]:
    """What a worker sees around turns, and what the workflow sees in them."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    inside: list[bool] = []

    async def main() -> int:
        mine = asyncio.current_task()
        inside.append(mine is not task and mine is not None and asyncio.get_running_loop() is not loop)
        inside.append(asyncio.all_tasks() == {mine})
        return await step("a")

    replay = begin(main)
    between = asyncio.current_task() is task and asyncio.get_running_loop() is loop
    await asyncio.sleep(0)
    settle(replay, 1, 5)
    after = asyncio.current_task() is task and asyncio.get_running_loop() is loop
    assert isinstance(replay.outcome, ev.Completed)
    return between and after, all(inside)


def test_the_hosts_task_and_loop_are_untouched() -> None:
    assert asyncio.run(two_turns()) == (True, True)


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop has no Windows")
def test_the_hosts_task_and_loop_are_untouched_under_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(two_turns()) == (True, True)


def test_a_turn_needs_no_outer_loop() -> None:
    async def main() -> str:
        return asyncio.current_task().get_name()  # type: ignore[union-attr]

    assert result_of(main) == "main"
    assert asyncio._get_running_loop() is None


def test_context_variables_of_the_host_stay_outside() -> None:
    host.set("the worker's")

    async def main() -> str:
        return host.get()

    assert result_of(main) == "nothing"


def test_threads_drive_different_executions_at_once() -> None:
    async def main() -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step(str(n))) for n in range(5)]
        return sum(task.result() for task in tasks)

    ends: list[Any] = []

    def drive() -> None:
        for _ in range(30):
            replay = begin(main)
            for ref in range(1, 6):
                settle(replay, ref, ref, version=ref + 1)
            ends.append(replay.outcome)

    threads = [threading.Thread(target=drive) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # they meet inside of turns
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert [bytes(end.result) for end in ends] == [b"15"] * 90


def test_patched_functions_are_the_old_ones_outside_of_workflows() -> None:
    async def one(n: int) -> int:
        return n

    async def main() -> None:
        tasks = [asyncio.create_task(one(n)) for n in range(3)]
        done, pending = await asyncio.wait(tasks)
        assert (type(done), type(pending)) == (set, set)
        assert sorted([await each for each in asyncio.as_completed([one(1), one(2)])]) == [1, 2]
        both = asyncio.gather(one(1), one(2))
        assert hash(both) == object.__hash__(both)
        await both

    asyncio.run(main())


def test_what_wait_returns_is_a_set_in_the_order_of_the_argument() -> None:
    names = patches.OrderedSet(["c", "a", "b"])
    assert (list(names), names, len(names)) == (["c", "a", "b"], {"a", "b", "c"}, 3)
    names.discard("a")
    names.add("z")
    assert list(names) == ["c", "b", "z"]
    assert [names.pop(), names.pop(), names.pop()] == ["c", "b", "z"]
    with pytest.raises(KeyError):
        names.pop()
    assert type(patches.OrderedSet([1, 2]) | {3}) is set


# --- garbage and the end ---------------------------------------------------------------------------------------------


async def with_clean_up() -> None:
    try:
        await step("own")
    finally:
        await step("leaked")


def test_a_collection_inside_a_workflow_does_not_touch_another_execution() -> None:
    dropped: list[Any] = [begin(with_clean_up)]
    dropped.append(dropped)
    del dropped

    async def collects() -> None:
        gc.collect()
        await step("mine")

    replay = begin(collects)
    gc.collect()
    assert asked(replay) == ['["mine"]']
    assert replay.loop.ref == 1


def test_an_execution_that_nobody_evicts_is_kept() -> None:
    before = set(loops._live)
    begin(with_clean_up)
    gc.collect()
    (kept,) = loops._live - before
    kept.evict()
    assert loops._live == before


def test_the_collector_is_off_in_a_turn_and_as_before_after_it() -> None:
    async def main() -> bool:
        return gc.isenabled()

    assert result_of(main) is False
    assert gc.isenabled()
    gc.disable()
    try:
        assert result_of(main) is False
        assert not gc.isenabled()
    finally:
        gc.enable()


LEAVING = """
import asyncio
from msgspec import Raw
from perdure import action, workflow
from perdure.core import events as ev
from perdure.core.replay import Replay

@action
def charge(n: int) -> int:
    print("the body ran")
    return n

@workflow
async def cleans_up() -> None:
    async def ticks():
        try:
            while True:
                yield await charge(1)
        finally:
            await charge(2)
    try:
        async for _ in ticks():
            pass
    finally:
        await asyncio.gather(charge(3), charge(4))

@workflow
async def never_gives_up() -> None:
    while True:
        try:
            await charge(5)
            await asyncio.sleep(1)
        except BaseException:
            pass

replays = []
for n in range(20):
    for definition in (cleans_up, never_gives_up):
        replay = Replay(f"test/{n}", definition)
        replay.feed(ev.Started(definition.name, 1, Raw(b"[]")), 1, 1_000_000)
        replay.feed(ev.ActionSettled(1, "charge", Raw(b"[1]" if definition is cleans_up else b"[5]"), Raw(b"1")), 2, 1)
        replays.append(replay)
        if n % 2:
            replay.evict()
print("left")
"""


def test_no_action_starts_when_the_interpreter_exits_with_live_executions() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEAVING], env=env, timeout=60, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there is no process-wide set of tasks any more")
def test_starting_costs_the_same_however_many_live() -> None:
    """asyncio keeps all tasks of the process in one set."""

    async def main() -> None:
        await step("x")

    replays, times = [], []
    for _ in range(2000):
        began = time.perf_counter()
        replays.append(begin(main))
        times.append(time.perf_counter() - began)
    assert min(times[-200:]) < 2 * min(times[:200])  # three times, if main tasks hashed by number in there


# --- eviction --------------------------------------------------------------------------------------------------------


def test_eviction_takes_the_code_out_without_a_command() -> None:
    seen: list[str] = []

    async def main() -> None:
        try:
            await step("a")
        except BaseException as error:
            seen.append(type(error).__name__)
            try:
                await step("b")
            except Evicted:
                seen.append("refused")
            raise

    replay = begin(main)
    replay.evict()
    assert seen == ["Evicted", "refused"]
    assert (asked(replay), replay.take(), replay.loop.ref) == (['["a"]'], [], 1)
    assert replay.loop.is_closed()


def test_a_second_eviction_does_nothing() -> None:
    replay = begin(with_clean_up)
    replay.evict()
    replay.evict()


@pytest.mark.parametrize(
    "again",
    [
        lambda: step("again"),
        lambda: asyncio.sleep(1),
        lambda: asyncio.sleep(0),
        lambda: asyncio.gather(step("x"), step("y")),
        lambda: asyncio.Event().wait(),
        lambda: asyncio.wait_for(step("x"), 1),
        lambda: asyncio.Future(),
    ],
    ids=["action", "sleep", "yield", "gather", "event", "wait_for", "future"],
)
def test_eviction_ends_also_when_the_code_does_not(again: Callable[[], Any]) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await step("a")
                await again()
            except BaseException:
                await_again = again()
                try:
                    await await_again
                except BaseException:
                    pass

    replay = begin(stubborn)
    buried = len(loops._undead)
    replay.evict()
    assert len(loops._undead) == buried + 1
    assert replay.loop.ref == 1


def test_eviction_reaches_a_generator_that_is_being_closed() -> None:
    closed: list[str] = []

    async def slow(name: str) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            try:
                await step(name)
            finally:
                await asyncio.sleep(0)
                closed.append(name)

    async def main() -> None:
        for generator in kept:
            async for _ in generator:
                break

    kept = [slow("a"), slow("b"), slow("c")]
    replay = begin(main)
    assert asked(replay) == ['["a"]']  # closed one after the other, in their order of creation
    replay.evict()
    assert all(generator.ag_frame is None for generator in kept)
    assert closed == []  # sleep(0) gives control back, and then comes Evicted again


def test_a_generator_that_cannot_be_closed_does_not_keep_the_others_open() -> None:
    async def stubborn() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise OSError("not now")

    async def good() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await step("closed")

    kept = [stubborn(), good()]

    async def main() -> None:
        for generator in kept:
            async for _ in generator:
                break

    replay = begin(main)
    assert asked(replay) == ['["closed"]']
    settle(replay, 1, 0)
    assert isinstance(replay.outcome, ev.Completed)
    assert ["could not be closed" in problem["message"] for problem in replay.loop.problems] == [True]


# --- exceptions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["StopIteration", "StopAsyncIteration", "CancelledError", "KeyboardInterrupt", "Odd"])
def test_errors_that_would_be_misread_arrive_as_failures_of_the_action(kind: str) -> None:
    async def main() -> list[str]:
        try:
            await step("a")
        except ActionFailed as error:
            return [type(error).__name__, error.type, str(error)]
        return []

    replay = begin(main)
    settle(replay, 1, error=ev.Error(kind, "so it goes"))
    assert isinstance(replay.outcome, ev.Completed)
    assert msgspec.json.decode(replay.outcome.result) == [
        "ActionFailed",
        kind,
        f"test_loop.step failed: {kind}: so it goes",
    ]


def test_a_failure_has_no_context_from_the_engine() -> None:
    async def main() -> bool:
        try:
            await step("a")
        except ActionFailed as error:
            return error.__context__ is None and error.__cause__ is None
        return False

    replay = begin(main)
    settle(replay, 1, error=ev.Error("ValueError", "bad"))
    assert isinstance(replay.outcome, ev.Completed)
    assert bytes(replay.outcome.result) == b"true"


def test_every_failure_is_a_new_exception() -> None:
    errors: list[BaseException] = []

    async def main() -> None:
        for name in ("a", "b"):
            try:
                await step(name)
            except ActionFailed as error:
                errors.append(error)

    replay = begin(main)
    for ref in (1, 2):
        settle(replay, ref, error=ev.Error("ValueError", "same"), version=ref + 1)
    assert errors[0] is not errors[1]


def test_leaving_the_process_is_not_an_outcome() -> None:
    async def main() -> None:
        await step("a")
        sys.exit(3)

    replay = begin(main)
    with pytest.raises(NeverWakes, match=r"test/loop called sys.exit\(\): raise an error or return instead"):
        settle(replay, 1, 0)


def test_an_interrupt_goes_through_and_everything_is_put_back() -> None:
    hooks = sys.get_asyncgen_hooks()

    async def main() -> None:
        asyncio.get_running_loop().call_soon(print, "must not run in another turn")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(main)
    assert sys.get_asyncgen_hooks() == hooks
    assert gc.isenabled()
    assert asyncio._get_running_loop() is None
    assert not loops._here.thread.ready
    assert loops._here.thread.depth == 0


@pytest.mark.parametrize("error", [ValueError, NeverWakes], ids=lambda kind: kind.__name__)
def test_hooks_and_collector_are_put_back_after_an_error(error: type[Exception]) -> None:
    def first(agen: Any) -> None: ...

    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(first, None)
    try:

        async def main() -> None:
            if error is ValueError:
                raise ValueError("the workflow's own")
            await asyncio.Future()

        if error is NeverWakes:
            with pytest.raises(NeverWakes):
                begin(main)
        else:
            assert isinstance(begin(main).outcome, ev.Failed)
        assert sys.get_asyncgen_hooks() == (first, None)
        assert gc.isenabled()
    finally:
        sys.set_asyncgen_hooks(*hooks)


def test_an_error_in_a_callback_is_kept_and_changes_nothing() -> None:
    async def main() -> int:
        asyncio.get_running_loop().call_soon(int, "not a number")
        await asyncio.sleep(0)
        return await step("goes on")

    replay = begin(main)
    assert asked(replay) == ['["goes on"]']
    assert [type(problem["exception"]) for problem in replay.loop.problems] == [ValueError]


def test_an_error_of_a_task_that_nobody_looks_at_is_kept_and_changes_nothing() -> None:
    async def fails() -> None:
        raise ValueError("unseen")

    async def main() -> int:
        asyncio.create_task(fails())
        return await step("goes on")

    replay = begin(main)
    settle(replay, 1, 7)
    assert isinstance(replay.outcome, ev.Completed)


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_tasks_are_named_and_hashed_by_their_order() -> None:
    async def main() -> list[Any]:
        tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(3)]
        return [[task.get_name(), hash(task)] for task in (asyncio.current_task(), *tasks)]  # type: ignore[misc]

    assert result_of(main) == [["main", 1], ["task-2", 2], ["task-3", 3], ["task-4", 4]]


def test_gathers_hash_by_the_order_in_which_they_are_asked() -> None:
    async def main() -> list[int]:
        groups = [asyncio.gather(asyncio.sleep(0)) for _ in range(3)]
        order = [groups.index(group) for group in {groups[2], groups[0], groups[1]}]
        await asyncio.gather(*groups)
        return [*order, hash(groups[2])]

    assert result_of(main) == [2, 0, 1, 1]


def test_a_loop_is_marked_for_the_guards() -> None:
    async def main() -> bool:
        return type(asyncio.get_running_loop()) is Loop and Loop.__perdure_loop__

    assert result_of(main) is True
