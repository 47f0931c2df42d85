"""Small workflows, one per thing that asyncio or the engine can do; the laws are tried on all of them.

Each member names what the outside sends to it (`events`), so that a driver can bring it to its end. Bodies of actions
and children are pure: a driver computes results by calling them. A member must behave the same on every Python, except
those marked with the first Python that has what they use, or with the one from which they end differently.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from msgspec import Struct

from perdure import (
    ActionFailed,
    ChildFailed,
    Escalate,
    ExecutionFailed,
    TaskExpired,
    Workflow,
    action,
    event,
    person,
    role,
    workflow,
)

#: What is sent from outside: name and payload, and perhaps who sends it and with which roles.
Events = tuple[tuple[str, Any] | tuple[str, Any, str, tuple[str, ...]], ...]


class Member(Struct, frozen=True):
    """One workflow of the corpus and what it needs from outside."""

    name: str
    workflow: Workflow[..., Any]
    events: Events = ()
    args: tuple[Any, ...] = ()
    differs_from: tuple[int, int] = (9, 9)  # the Python from which the same log may end differently


CORPUS: dict[str, Member] = {}
#: What clean-up code found wrong while it was evicted; must stay empty.
trouble: list[str] = []
color: ContextVar[str] = ContextVar("color", default="none")
#: What else is to happen whenever an action is called, such as a failure; a test that runs them for real may set it.
happenings: list[Callable[[], None]] = []


def member(
    *events: tuple[str, Any],
    args: tuple[Any, ...] = (),
    since: tuple[int, int] = (3, 11),
    differs_from: tuple[int, int] = (9, 9),
) -> Callable[[Callable[..., Any]], Any]:
    def add(fn: Callable[..., Any]) -> Any:
        made = workflow(name=f"corpus.{fn.__name__}")(fn)
        if sys.version_info >= since:
            CORPUS[fn.__name__] = Member(fn.__name__, made, events, args, differs_from)
        return made

    return add


class Declined(Exception):
    """An error that the action declares, so that workflows can catch it by its class."""


@dataclass
class Parcel:
    code: str
    weight: int = 1


def happen() -> None:
    for happening in happenings:
        happening()


@action(name="corpus.step", raises=(Declined,))
def step(name: str, n: int = 0) -> int:
    happen()
    return crc32(name.encode()) % 50 + n


@action(name="corpus.pack", raises=(Declined,))
def pack(parcel: Parcel) -> Parcel:
    return Parcel(parcel.code.upper(), parcel.weight + 1)


@action(name="corpus.fails", raises=(Declined,))
def fails(kind: str) -> None:
    """Never succeeds."""
    happen()
    raise {"Declined": Declined, "ValueError": ValueError}[kind](f"no {kind}")


@action(name="corpus.book")
def book(what: str, seat: int) -> str:
    happen()
    return f"{what}-{seat}"


@book.undo
def unbook(what: str, seat: int, ticket: str) -> None:
    pass


@workflow(name="corpus.child")
async def child(n: int) -> int:
    return await step("child", n)


@workflow(name="corpus.lost_child")
async def lost_child(n: int) -> int:
    await step("lost", n)
    raise ExecutionFailed("it is lost", type="Lost")


async def tried(name: str, n: int = 0) -> str:
    """A step whose failure is a value."""
    try:
        return f"{name}={await step(name, n)}"
    except Declined as error:
        return f"{name} declined {error}"
    except ActionFailed as error:
        return f"{name} {error.type}"


async def twice(name: str) -> str:
    return f"{await tried(name, 1)},{await tried(name, 2)}"


# --- actions and time ------------------------------------------------------------------------------------------------


@member()
async def one_action() -> int:
    return await step("only")


@member()
async def sequence() -> list[int]:
    return [await step("s", n) for n in range(6)]


@member()
async def typed_values() -> Parcel:
    parcel = await pack(Parcel("a"))
    return await pack(parcel)


@member()
async def arguments_mutated_later() -> list[str]:
    parcel = Parcel("first")
    task = asyncio.create_task(pack(parcel))
    parcel.code = "changed before the task first runs"
    return [(await task).code, parcel.code]


@member()
async def caught_failures() -> list[str]:
    return [await tried("a"), await tried("b"), await tried("c"), await tried("d")]


@member()
async def two_sequences() -> list[str]:
    one, two = await asyncio.gather(twice("left"), twice("right"))
    return [one, two]


@member()
async def sleeping() -> float:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1.5)
    await step("between")
    await asyncio.sleep(0.1)
    return loop.time()


@member()
async def sleep_zero() -> list[int]:
    seen: list[int] = []

    async def count(n: int) -> None:
        for _ in range(3):
            seen.append(n)
            await asyncio.sleep(0)
        await asyncio.sleep(-5)
        seen.append(await step("count", n))

    await asyncio.gather(count(100), count(200))
    return seen


@member()
async def sleeping_in_turns() -> list[str]:
    seen: list[str] = []

    async def nap(name: str, *lengths: float) -> None:
        for length in lengths:
            await asyncio.sleep(length)
            seen.append(name)
            await tried(name)

    await asyncio.gather(nap("a", 1, 1, 1), nap("b", 2, 1), nap("c", 3))
    return seen


@member()
async def calling_later() -> list[str]:
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    done = asyncio.Event()
    loop.call_later(3, seen.append, "three")
    loop.call_at(loop.time() + 2, seen.append, "two")
    cancelled = loop.call_later(1, seen.append, "never")
    loop.call_soon(seen.append, "soon")
    loop.call_soon(seen.append, "dropped").cancel()
    loop.call_later(-1, seen.append, "past")
    loop.call_later(4, done.set)
    await tried("first")
    cancelled.cancel()
    await done.wait()
    return [*seen, f"{cancelled.cancelled()}"]


@member()
async def clock_values() -> list[str]:
    began = workflow.now()
    draws = [str(workflow.uuid()), f"{workflow.random().random():.9f}"]
    await step(str(workflow.uuid()), workflow.random().randrange(1000))
    await asyncio.sleep(60)
    return [*draws, str(workflow.uuid()), f"{workflow.random().random():.9f}", str(workflow.now() - began)]


# --- timeouts --------------------------------------------------------------------------------------------------------


@member()
async def timeout_around_action() -> str:
    try:
        async with asyncio.timeout(2):
            await tried("slow")
            await tried("slower")
    except TimeoutError:
        return f"late {await tried('after')}"
    return "in time"


@member()
async def timeout_at_a_time() -> str:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(loop.time() + 1.25) as limit:
            await tried("a")
            await asyncio.sleep(1)
            await tried("b")
    except TimeoutError:
        return f"late {limit.expired()} {limit.when()}"
    return "in time"


@member()
async def nested_timeouts() -> list[str]:
    seen = []
    try:
        async with asyncio.timeout(5):
            for n in range(3):
                try:
                    async with asyncio.timeout(2):
                        seen.append(await tried("inner", n))
                        await asyncio.sleep(1.5)
                except TimeoutError:
                    seen.append("inner late")
    except TimeoutError:
        seen.append("outer late")
    seen.append(await tried("end"))
    return seen


@member()
async def timeout_rescheduled() -> str:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as limit:
            await tried("a")
            limit.reschedule(loop.time() + 3)
            await tried("b")
            limit.reschedule(loop.time() + 2)
            await tried("c")
            limit.reschedule(None)
            await tried("d")
            limit.reschedule(loop.time() - 1)
            await tried("never settles in time")
    except TimeoutError:
        return "late"
    return "in time"


@member()
async def timeout_zero() -> list[str]:
    seen = []
    for limit in (0, None, -1):
        try:
            async with asyncio.timeout(limit):
                seen.append(await tried("x"))
        except TimeoutError:
            seen.append(f"late {limit}")
    return seen


@member()
async def timeout_unused() -> int:
    async with asyncio.timeout(60):
        cached = 1
    return cached + await step("after")


@member()
async def waiting_for() -> list[str]:
    seen = []
    for n in range(3):
        try:
            seen.append(await asyncio.wait_for(tried("w", n), 1 + n))
        except TimeoutError:
            seen.append(f"late {n}")
    try:
        seen.append(await asyncio.wait_for(twice("pair"), 2))
    except TimeoutError:
        seen.append("late pair")
    seen.append(await asyncio.wait_for(tried("no limit"), None))
    return seen


@member()
async def waiting_for_done_and_late() -> list[str]:
    done = asyncio.create_task(tried("early"))
    await done
    seen = [await asyncio.wait_for(done, 0)]
    try:
        seen.append(await asyncio.wait_for(tried("never asked"), 0))
    except TimeoutError:
        seen.append("late")
    seen.append(await tried("end"))
    return seen


# --- gather ----------------------------------------------------------------------------------------------------------


@member()
async def gathering() -> list[int]:
    return await asyncio.gather(*(step("g", n) for n in range(5)))


@member()
async def gathering_exceptions() -> list[str]:
    results = await asyncio.gather(*(step("g", n) for n in range(4)), return_exceptions=True)
    return [type(one).__name__ if isinstance(one, BaseException) else str(one) for one in results]


@member()
async def nested_gathers() -> list[Any]:
    return await asyncio.gather(
        asyncio.gather(tried("a"), tried("b")),
        asyncio.gather(tried("c"), asyncio.gather(twice("d"), tried("e"))),
        tried("f"),
    )


@member()
async def failing_gather() -> list[str]:
    tasks = [asyncio.create_task(step("risky", n), name=f"risky {n}") for n in range(4)]
    try:
        await asyncio.gather(*tasks)
        seen = ["all went well"]
    except ActionFailed as error:
        seen = [f"one failed: {error.type}"]
    rest = await asyncio.gather(*tasks, return_exceptions=True)  # a failed gather leaves the others running
    return [*seen, *(f"{task.get_name()} {type(one).__name__}" for task, one in zip(tasks, rest, strict=True))]


@member()
async def cancelled_gather() -> list[str]:
    both = asyncio.gather(tried("a"), tried("b"), tried("c"))
    first = asyncio.create_task(tried("first"))
    await asyncio.wait([both, first], return_when=asyncio.FIRST_COMPLETED)
    both.cancel()
    try:
        seen = list(await both)
    except asyncio.CancelledError:
        seen = ["gather cancelled"]
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
    return [*seen, await first, await tried("after")]


# --- wait ------------------------------------------------------------------------------------------------------------


@member()
async def wait_first_completed() -> list[str]:
    pending: set[asyncio.Task[str]] = {asyncio.create_task(tried("w", n)) for n in range(6)}
    seen = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            seen.append(f"{task.get_name()} {task.result()}")
            await tried("next", len(seen))
    return seen


@member()
async def wait_all_completed() -> list[str]:
    tasks = [asyncio.create_task(tried("w", n)) for n in range(9)]
    await tasks[4]
    done, pending = await asyncio.wait(tasks)
    return [await tried(task.result()) for task in done] + [str(len(pending))]


@member()
async def wait_first_exception() -> list[str]:
    tasks = {asyncio.create_task(step("w", n)) for n in range(5)}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    seen = []
    for task in pending:
        task.cancel()
        seen.append(await tried(f"dropped {task.get_name()}"))
    for task in done:
        seen.append(f"{task.get_name()} {'failed' if task.exception() else task.result()}")
        await tried("looked at", len(seen))
    await asyncio.gather(*pending, return_exceptions=True)
    return seen


@member()
async def wait_with_timeout() -> list[str]:
    tasks = [asyncio.create_task(tried("w", n)) for n in range(5)]
    done, pending = await asyncio.wait(tasks, timeout=1.5)
    seen = [await tried(f"done {task.get_name()}") for task in done]
    for task in pending:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        seen.append(await tried(f"gave up {task.get_name()}"))
    return seen


@member()
async def wait_for_gathers() -> list[Any]:
    pending: set[Any] = {asyncio.gather(tried(f"g{n}", 1), tried(f"g{n}", 2)) for n in range(5)}
    seen: list[Any] = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for group in done:
            seen.append(group.result()[0])
            await tried("group", len(seen))
        if len(seen) >= 2:
            for group in pending:
                group.cancel()
                await tried("dropped", len(seen))
            break
    return seen


@member()
async def wait_for_gathers_in_a_list() -> list[str]:
    """Futures that hash by address, all done at the same look."""
    groups = [asyncio.gather(tried(f"g{n}")) for n in range(6)]
    await asyncio.gather(*groups)
    done, _ = await asyncio.wait(groups)
    return [await tried(group.result()[0]) for group in done]


@member()
async def wait_for_bare_futures() -> list[str]:
    """Futures made by hand hash by address too; a list keeps their order."""
    futures: list[asyncio.Future[str]] = [asyncio.Future() for _ in range(6)]

    async def fulfil(n: int) -> None:
        futures[n].set_result(await tried("f", n))

    async with asyncio.TaskGroup() as group:
        for n in range(6):
            group.create_task(fulfil(n))
    done, _ = await asyncio.wait(futures)
    return [await tried(one.result()) for one in done]


@member()
async def sets_of_tasks() -> list[str]:
    """Sets that asyncio did not make: a task hashes by its number."""
    tasks = [asyncio.create_task(tried("s", n)) for n in range(40)]
    await tasks[3]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    seen = [await tried(task.get_name()) for task in list(done | pending)[::8]]
    return [*seen, *(task.get_name() for task in {*tasks[7:11], *tasks[30:34]})]


@member()
async def wait_and_pop() -> list[str]:
    pending: set[asyncio.Task[str]] = {asyncio.create_task(twice(f"p{n}")) for n in range(4)}
    seen = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        while done:
            seen.append(await tried(done.pop().result()))
        if len(seen) == 2 and pending:
            pending.pop().cancel()
            pending.add(asyncio.create_task(tried("added")))
    return seen


@member()
async def wait_many() -> list[str]:
    """Numbers that cross the sizes of small hash tables: 32 and 64."""
    seen = []
    for spare in (26, 20):
        for _ in range(spare):
            await asyncio.create_task(asyncio.sleep(0))
        tasks = [asyncio.create_task(tried("m", n)) for n in range(12)]
        await tasks[0]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        seen += [await tried(f"d {task.get_name()}") for task in done]
        for task in pending:
            seen.append(await tried(f"p {task.get_name()}"))
    return seen


# --- as_completed ----------------------------------------------------------------------------------------------------


@member()
async def as_completed_actions() -> list[int]:
    seen = []
    for one in asyncio.as_completed([step("c", n) for n in range(6)]):
        seen.append(await one)
    return seen


@member()
async def as_completed_helpers() -> list[str]:
    seen = []
    for one in asyncio.as_completed([twice(name) for name in ("a", "b", "c", "d", "e")]):
        seen.append(await one)
        await tried("next", len(seen))
    return seen


@member()
async def as_completed_many() -> int:
    total = 0
    for one in asyncio.as_completed([tried("many", n) for n in range(40)]):
        total = total * 31 % 1_000_003 + len(await one)
        if total % 3 == 0:
            break
    return total


@member()
async def as_completed_with_timeout() -> list[str]:
    seen = []
    try:
        for one in asyncio.as_completed([tried("t", n) for n in range(6)], timeout=2):
            seen.append(await one)
    except TimeoutError:
        seen.append("late")
    return [*seen, await tried("after")]


@member()
async def as_completed_mixed() -> list[str]:
    """Tasks, raw coroutines and gathers, some of them done before."""
    early = [asyncio.gather(tried(f"early{n}")) for n in range(4)]
    await asyncio.gather(*early)
    task = asyncio.create_task(tried("task"))
    seen = []
    for one in asyncio.as_completed([*early, task, twice("raw")]):
        result = await one
        seen.append(result if isinstance(result, str) else f"group {result[0]}")
        await tried(seen[-1])
    return seen


@member(since=(3, 13))
async def as_completed_async() -> list[str]:
    tasks = [asyncio.create_task(tried("t", n), name=f"name {n}") for n in range(4)]
    seen = []
    async for one in asyncio.as_completed([*tasks, twice("raw")]):
        known = isinstance(one, asyncio.Task) and one in tasks
        seen.append(f"{known} {await one}")
        await tried("next", len(seen))
    return seen


# --- TaskGroup and shield --------------------------------------------------------------------------------------------


@member(differs_from=(3, 13))
async def task_group() -> list[str]:
    seen = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step("t", n)) for n in range(4)]
        seen += [str(task.result()) for task in tasks]
    except* Declined as declined:
        seen += [f"declined {len(declined.exceptions)}", await tried("sorry")]
    except* ActionFailed as failed:
        seen += [*(str(error) for error in failed.exceptions), await tried("repair")]
    return seen


@member(differs_from=(3, 13))
async def task_group_with_clean_up() -> list[str]:
    seen = []

    async def careful(n: int) -> None:
        try:
            await step("careful", n)
            await asyncio.sleep(n + 1)
        finally:
            seen.append(f"{n} {await tried('clean', n)}")

    try:
        async with asyncio.TaskGroup() as group:
            for n in range(5):
                group.create_task(careful(n))
            await tried("body")
    except* ActionFailed:
        seen.append("failed")
    return seen


@member(differs_from=(3, 13))
async def large_task_group() -> list[str]:
    """Enough members for their set to be resized, aborted in the order of that set."""
    seen: list[str] = []

    async def noted(n: int) -> None:
        try:
            await step("n", n)
        except asyncio.CancelledError:
            seen.append(str(n))
            if n % 9 == 0:
                await tried("aborted", n)
            raise

    try:
        async with asyncio.TaskGroup() as group:
            for n in range(36):
                group.create_task(noted(n))
            await tried("one")
            raise ValueError("enough")
    except* (ValueError, ActionFailed):
        seen.append(await tried("end"))
    return seen


@member(differs_from=(3, 13))
async def nested_task_groups() -> list[str]:
    seen = []

    async def inner(name: str) -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(2):
                group.create_task(noted(f"{name}{n}"))

    async def noted(name: str) -> None:
        try:
            seen.append(f"{name} {await step(name)}")
        except asyncio.CancelledError:
            seen.append(f"{name} cancelled")
            raise

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner("a"))
            group.create_task(inner("b"))
            group.create_task(noted("c"))
    except* ActionFailed as failed:
        seen.append(f"{len(failed.exceptions)} failed")
    seen.append(await tried("end"))
    return seen


@member(differs_from=(3, 13))
async def task_group_in_timeout() -> list[str]:
    seen = []
    try:
        async with asyncio.timeout(2):
            async with asyncio.TaskGroup() as group:
                for n in range(3):
                    group.create_task(asyncio.sleep(n))
                    group.create_task(tried("t", n))
    except TimeoutError:
        seen.append("late")
    seen.append(await tried("after"))
    return seen


@member()
async def shielded() -> list[str]:
    seen = []
    inner = asyncio.create_task(tried("kept"))
    try:
        async with asyncio.timeout(1):
            seen.append(await asyncio.shield(inner))
    except TimeoutError:
        seen.append("late")
    seen.append(await inner)
    seen.append(await asyncio.shield(tried("again")))
    return seen


@member()
async def shielded_clean_up() -> str:
    try:
        await tried("work")
        await asyncio.sleep(30)
        return await tried("more work")
    finally:
        await asyncio.shield(asyncio.create_task(twice("clean")))


# --- synchronisation -------------------------------------------------------------------------------------------------


@member()
async def events_inside() -> list[str]:
    ready = asyncio.Event()
    seen = []

    async def waits(name: str) -> None:
        await ready.wait()
        seen.append(await tried(name))

    async with asyncio.TaskGroup() as group:
        group.create_task(waits("a"))
        group.create_task(waits("b"))
        seen.append(await tried("first"))
        ready.set()
    ready.clear()
    return [*seen, str(ready.is_set())]


@member()
async def locks() -> list[str]:
    lock = asyncio.Lock()
    seen = []

    async def critical(name: str) -> None:
        async with lock:
            seen.append(f"in {name}")
            await tried(name)
            seen.append(f"out {name}")

    await asyncio.gather(*(critical(name) for name in "abcd"))
    return seen


@member()
async def lock_given_up() -> list[str]:
    lock = asyncio.Lock()
    seen = []

    async def critical(name: str, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                async with lock:
                    seen.append(f"in {name}")
                    await tried(name)
        except TimeoutError:
            seen.append(f"gave up {name}")

    await asyncio.gather(critical("a", 9), critical("b", 1), critical("c", 2), critical("d", 9))
    return seen


@member()
async def semaphores() -> list[str]:
    room = asyncio.Semaphore(2)
    seen = []

    async def visit(n: int) -> None:
        async with room:
            seen.append(await tried("visit", n))

    await asyncio.gather(*(visit(n) for n in range(6)))
    return seen


@member()
async def bounded_semaphores() -> list[str]:
    room = asyncio.BoundedSemaphore(1)
    seen = []

    async def visit(n: int) -> None:
        async with room:
            await asyncio.sleep(n % 2)
            seen.append(await tried("visit", n))

    await asyncio.gather(*(visit(n) for n in range(3)))
    try:
        room.release()
    except ValueError:
        seen.append("bounded")
    return seen


@member()
async def conditions() -> list[str]:
    condition = asyncio.Condition()
    seen: list[str] = []

    async def waits(name: str, least: int) -> None:
        async with condition:
            await condition.wait_for(lambda: len(seen) >= least)
            seen.append(await tried(name))
            condition.notify_all()

    async def feeds() -> None:
        for n in range(2):
            fed = await tried("feed", n)
            async with condition:
                seen.append(fed)
                condition.notify()

    await asyncio.gather(waits("a", 2), waits("b", 1), waits("c", 3), feeds(), nudge(condition))
    return seen


async def nudge(condition: asyncio.Condition) -> None:
    await asyncio.sleep(5)
    async with condition:
        condition.notify_all()


@member()
async def queues() -> list[str]:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
    seen = []

    async def consume(name: str) -> None:
        while True:
            n = await queue.get()
            seen.append(f"{name} {await tried('item', n)}")
            queue.task_done()

    consumers = [asyncio.create_task(consume(name)) for name in "ab"]
    for n in range(5):
        await queue.put(n)
    await queue.join()
    for one in consumers:
        one.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    return seen


@member()
async def priority_queues() -> list[str]:
    queue: asyncio.PriorityQueue[tuple[int, str]] = asyncio.PriorityQueue()
    last: asyncio.LifoQueue[str] = asyncio.LifoQueue()
    seen = []

    async def fill(name: str) -> None:
        queue.put_nowait((len(await tried(name)), name))
        last.put_nowait(name)

    await asyncio.gather(fill("ccc"), fill("a"), fill("bb"))
    while not queue.empty():
        seen.append(await tried(queue.get_nowait()[1]))
    return [*seen, await last.get()]


@member()
async def barriers() -> list[str]:
    barrier = asyncio.Barrier(3)
    seen = []

    async def party(n: int) -> None:
        for lap in range(2):
            seen.append(await tried(f"round {lap}", n))
            try:
                place = await barrier.wait()
            except asyncio.BrokenBarrierError:
                seen.append(f"broken {n}")
                return
            seen.append(f"{n} was {place}")

    async def impatient() -> None:
        await asyncio.sleep(20)
        await barrier.abort()

    waiting = asyncio.create_task(impatient())
    await asyncio.gather(*(party(n) for n in range(3)))
    waiting.cancel()
    return seen


# --- generators and context managers ---------------------------------------------------------------------------------


async def numbers(name: str, count: int) -> AsyncIterator[str]:
    try:
        for n in range(count):
            yield await tried(name, n)
    finally:
        await tried(f"close {name}")


@member()
async def async_generators() -> list[str]:
    return [one async for one in numbers("g", 3)] + [await tried("after")]


@member()
async def abandoned_generator() -> list[str]:
    seen = []
    async for one in numbers("left", 5):
        seen.append(one)
        if len(seen) == 2:
            break
    seen.append(await tried("after"))
    return seen


@member()
async def abandoned_generators() -> list[str]:
    """Several, held in their order of creation; the second one fails while it is closed."""

    async def stubborn() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await tried("stubborn")
            raise RuntimeError("a generator that does not like to be closed")

    held = [numbers("first", 2), stubborn(), numbers("third", 2)]
    seen = []
    for generator in held:
        async for one in generator:
            seen.append(str(one))
            break
    return seen


@member()
async def generator_that_closes_slowly() -> list[str]:
    async def slow() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            await tried("slowly")
            await asyncio.sleep(1)

    seen = []
    kept = [slow(), slow()]
    for generator in kept:
        async for one in generator:
            seen.append(str(one))
            break
    await kept[0].aclose()
    return [*seen, await tried("after")]


@member()
async def closed_generator() -> list[str]:
    seen = []
    async with aclosing(numbers("closed", 5)) as generator:
        async for one in generator:
            seen.append(one)
            if len(seen) == 2:
                break
    seen.append(await tried("after"))
    return seen


@member()
async def generators_in_parallel() -> list[str]:
    seen = []

    async def walk(name: str) -> None:
        async for one in numbers(name, 3):
            seen.append(one)
            await asyncio.sleep(1)
            if len(seen) > 4:
                return

    await asyncio.gather(walk("a"), walk("b"))
    return seen


@asynccontextmanager
async def room(name: str) -> AsyncIterator[str]:
    entered = await tried(f"enter {name}")
    try:
        yield entered
    finally:
        await tried(f"leave {name}")


@member()
async def context_managers() -> list[str]:
    async with room("hall") as hall, room("kitchen") as kitchen:
        return [hall, kitchen, str(await step("inside"))]


@member()
async def exit_stack() -> list[str]:
    seen = []
    async with AsyncExitStack() as stack:
        for name in ("a", "b"):
            seen.append(await stack.enter_async_context(room(name)))
        stack.push_async_callback(tried, "callback")
        stack.callback(seen.append, "plain")
        seen.append(str(await step("inside")))
    return seen


@member()
async def context_variables() -> list[str]:
    seen = [color.get()]
    token = color.set("red")
    try:

        async def paint(name: str) -> None:
            mine = color.set(name)
            try:
                await tried(color.get())
                seen.append(color.get())
            finally:
                give_back(mine)

        await asyncio.gather(paint("green"), paint("blue"), tried(color.get()))
        await asyncio.sleep(1)
        seen.append(color.get())
    finally:
        give_back(token)
    seen.append(color.get())
    return seen


def give_back(token: Any) -> None:
    try:
        color.reset(token)
    except ValueError as error:
        trouble.append(str(error))


@member()
async def tasks_seen() -> list[str]:
    me = asyncio.current_task()
    assert me is not None
    task = asyncio.create_task(tried("t"), name="named")
    other = asyncio.create_task(tried("u"))
    names = sorted(one.get_name() for one in asyncio.all_tasks())
    await asyncio.wait([task, other])
    return [me.get_name(), *names, *sorted(one.get_name() for one in asyncio.all_tasks())]


@member()
async def background_task_left() -> str:
    async def forever() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                await tried("tick")
        finally:
            await tried("stopped")

    kept = [asyncio.create_task(forever()), asyncio.create_task(asyncio.sleep(1000))]
    return f"{await tried('main')} {len(kept)}"


@member()
async def background_task_fails() -> str:
    kept = asyncio.create_task(step("unwatched"))
    await asyncio.sleep(2)
    return f"{await tried('main')} {kept.done()}"


@member()
async def done_callbacks() -> list[str]:
    seen = []
    task = asyncio.create_task(tried("t"))
    task.add_done_callback(lambda done: seen.append(f"first {done.result() if not done.cancelled() else 'gone'}"))
    task.add_done_callback(lambda done: asyncio.get_running_loop().call_later(1, seen.append, "later"))
    await asyncio.sleep(2)
    await task
    await asyncio.sleep(2)
    return seen


# --- children --------------------------------------------------------------------------------------------------------


@member()
async def children() -> list[str]:
    seen = [str(await child(1))]
    for result in await asyncio.gather(child(2), child(3), return_exceptions=True):
        seen.append(result.type if isinstance(result, ChildFailed) else str(result))
    return seen


@member()
async def child_dropped() -> list[str]:
    seen = []
    try:
        async with asyncio.timeout(1):
            seen.append(str(await child(1)))
    except TimeoutError:
        seen.append("too slow")
    except ChildFailed as error:
        seen.append(error.type)
    return [*seen, await tried("after")]


@member()
async def child_and_action_race() -> str:
    racers = [asyncio.create_task(child(1)), asyncio.create_task(step("racer"))]
    done, pending = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return f"{[racers.index(task) for task in done]} {await tried('after')}"


# --- external events -------------------------------------------------------------------------------------------------


@member(("a", 1), ("b", 2), ("a", 3))
async def events_in_order() -> list[Any]:
    return [await event("a"), await event("b"), await event("a")]


@member(("late", 1), ("early", 2), ("late", 3))
async def events_buffered() -> list[Any]:
    await tried("first")
    early = await event("early", int)
    await tried("second")
    return [early, await event("late", int), await event("late", int)]


@member(("packed", {"code": "x"}), ("lost", 4))
async def any_of_events() -> list[str]:
    one = await event(("packed", Parcel), ("lost", int))
    await tried("between")
    other = await event.received("packed", "lost")
    return [str(one), other.name, str(other.payload)]


@member(("paid", {"order": 1, "n": 1}), ("paid", {"order": 2, "n": 2}), ("paid", 7), ("paid", {"order": 1, "n": 3}))
async def matched_events() -> list[Any]:
    second = await event("paid", match={"order": 2})
    first = await event("paid", match={"order": 1})
    await tried("between")
    return [second["n"], first["n"], (await event("paid", match={"order": 1}))["n"], await event("paid")]


@member(("parcel", "not a parcel"), ("parcel", {"code": 7}), ("parcel", {"code": "good", "weight": 3}))
async def rejected_events() -> Parcel:
    await tried("first")
    return await event("parcel", Parcel)


@member(("go", 1), ("go", 2))
async def event_or_timeout() -> list[Any]:
    seen: list[Any] = []
    for _ in range(2):
        try:
            async with asyncio.timeout(1.5):
                seen.append(await event("go"))
        except TimeoutError:
            seen.append("late")
    seen.append(await tried("after"))
    return seen


@member(("x", 1), ("y", 2), ("x", 3), ("y", 4))
async def event_waiters_race() -> list[Any]:
    seen: list[Any] = []
    for _ in range(2):
        waiting = [asyncio.create_task(event("x"), name="x"), asyncio.create_task(event("y"), name="y")]
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        seen += [f"{task.get_name()} {task.result()}" for task in done]
        seen.append(await tried("next", len(seen)))
    return seen


@member(("x", 1), ("x", 2), ("x", 3))
async def event_waiter_cancelled_by_another() -> list[Any]:
    """The event that wakes one task makes it cancel the other, which waits for the same name."""
    seen: list[Any] = []

    async def takes(name: str) -> None:
        seen.append(f"{name} {await event('x')}")
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()

    tasks = [asyncio.create_task(takes("one")), asyncio.create_task(takes("two"))]
    await asyncio.gather(*tasks, return_exceptions=True)
    await tried("between")
    return [*seen, await event("x"), await event("x")]


@member(("stop", None), ("note", "a"), ("note", "b"))
async def events_until_stopped() -> list[Any]:
    notes: list[Any] = []

    async def take_notes() -> None:
        while True:
            notes.append(await event("note"))
            await tried("noted", len(notes))

    task = asyncio.create_task(take_notes())
    await event("stop")
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
        raise AssertionError("the task was cancelled")
    return [*notes, await tried("bye")]


# --- what the engine adds --------------------------------------------------------------------------------------------


@member()
async def recorded() -> list[Any]:
    seen: list[Any] = [workflow.record(lambda: 41)]
    await tried("a")
    seen.append(workflow.record(lambda: {"region": "north"}))
    await asyncio.gather(tried("b"), tried("c"))
    seen.append(workflow.record(lambda: [1, 2]))
    return seen


def broken_record() -> int:
    raise KeyError("no such region")


@member()
async def record_that_fails() -> list[Any]:
    seen: list[Any] = []
    for n in range(2):
        try:
            seen.append(workflow.record(broken_record))
        except KeyError:
            seen.append(await tried("no region", n))
    seen.append(workflow.record(lambda: "fine"))
    seen.append(await tried("end"))
    return seen


@member()
async def patched() -> list[str]:
    seen = []
    if workflow.patched("before"):
        seen.append(await tried("new"))
    await tried("middle")
    if workflow.patched("between"):
        seen.append(await tried("newer"))
    if workflow.patched("before"):
        seen.append("again")
    return seen


@member()
async def publishing() -> str:
    workflow.publish(stage="begun", seen=[])
    first = await tried("a")
    workflow.publish(stage="middle")
    workflow.publish(seen=[first])
    await tried("b")
    workflow.publish(stage="middle")  # no change, no row
    await tried("c")
    workflow.publish(stage="end")
    return first


@member(("more", 1), ("more", 2), ("more", 3), ("other", 4), args=(3, 0))
async def restarting(left: int, total: int) -> str:
    workflow.publish(left=left)
    if workflow.patched("loud"):
        await tried(f"round {left}")
    total += await event("more", int)
    if left > 1:
        workflow.restart_with(left - 1, total)
    return f"{total} {await event('other')} {workflow.uuid()}"


@member(args=(2,))
async def restarting_with_open_work(left: int) -> str:
    asyncio.get_running_loop().call_later(50, len, "rings after the restart, or not at all")
    kept = asyncio.create_task(twice("abandoned"))
    await tried("awaited", left)
    if left:
        workflow.restart_with(left - 1)
    return await kept


@member()
async def saga() -> str:
    seats = [await book("hotel", 1), await book("flight", 2)]
    await step("pay")
    await step("confirm")
    return ",".join(seats)


@member()
async def saga_in_parallel() -> str:
    first, second, third = await asyncio.gather(book("hotel", 1), book("car", 2), twice("other"))
    await asyncio.sleep(10)
    await step("pay")
    return f"{first} {second} {third}"


@member(differs_from=(3, 13))
async def saga_with_abandoned_bookings() -> str:
    """Nobody waits for them any more, but they may have to be undone."""
    try:
        async with asyncio.timeout(1):
            async with asyncio.TaskGroup() as group:
                group.create_task(book("hotel", 1))
                group.create_task(book("flight", 2))
    except TimeoutError:
        await tried("too slow")
    rest = asyncio.create_task(book("car", 3))
    await asyncio.sleep(1)
    rest.cancel()
    await step("pay")
    await step("confirm")
    return "booked"


@member(args=(1,))
async def saga_that_restarts(left: int) -> str:
    with suppress(TimeoutError):
        await asyncio.wait_for(book("hotel", left), 1)
    ticket = await book("flight", left)
    await step("pay", left)
    if left:
        workflow.restart_with(left - 1)
    await step("confirm")
    return ticket


# --- cancelling ------------------------------------------------------------------------------------------------------


@member()
async def clean_up_with_actions() -> str:
    try:
        await tried("work")
        await asyncio.sleep(100)
        await tried("more")
        return "done"
    except asyncio.CancelledError:
        await tried("undo 1")
        await asyncio.sleep(1)
        await tried("undo 2")
        raise
    finally:
        await tried("finally")


@member(differs_from=(3, 13))
async def clean_up_in_parallel() -> str:
    try:
        await tried("work")
        async with asyncio.timeout(30):
            await asyncio.sleep(100)
        return "not reached"
    except TimeoutError:
        return await tried("late")
    finally:
        await asyncio.gather(tried("x"), twice("y"))
        async with asyncio.TaskGroup() as group:
            group.create_task(tried("z"))
            group.create_task(asyncio.sleep(1))
        async for one in numbers("last", 2):
            await asyncio.wait([asyncio.create_task(tried(one)), asyncio.create_task(tried("w"))])


@member()
async def swallowed_cancel() -> list[str]:
    seen = []
    for n in range(4):
        try:
            seen.append(await tried("try", n))
        except asyncio.CancelledError:
            seen.append(f"ignored, {workflow.cancelled}")
    return seen


@member()
async def cancel_becomes_failure() -> str:
    try:
        return await twice("work")
    except asyncio.CancelledError as error:
        await tried("look")
        raise ValueError("cancelled at a bad moment") from error


@member(args=(2,))
async def cancel_becomes_restart(left: int) -> str:
    try:
        await tried("work", left)
        await asyncio.sleep(5)
        return await tried("done")
    except asyncio.CancelledError:
        await tried("put away")
        if left:
            workflow.restart_with(left - 1)
        raise


@member()
async def cancelled_tasks() -> list[str]:
    seen = []

    async def careful(n: int) -> str:
        try:
            return await tried("careful", n)
        except asyncio.CancelledError as error:
            seen.append(f"{n} cancelled {error.args}")
            await tried("put away", n)
            raise

    tasks = [asyncio.create_task(careful(n)) for n in range(3)]
    await asyncio.sleep(1)
    tasks[1].cancel("no longer needed")
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return seen + [one if isinstance(one, str) else type(one).__name__ for one in results]


@member()
async def self_cancelled() -> str:
    task = asyncio.current_task()
    assert task is not None
    await tried("a")
    task.cancel()
    try:
        await tried("never asked")
    except asyncio.CancelledError:
        if task.uncancel() == 0:
            return await tried("recovered")
        raise
    return "not reached"


@member()
async def failing_clean_up() -> str:
    try:
        await step("work")
        await asyncio.sleep(3)
        return await tried("end")
    finally:
        await step("clean", 1)
        await step("clean", 2)


@member(("call", "hello"))
async def waits_for_all_kinds() -> list[str]:
    """An action, a timer, a child and an event at once."""

    async def one(name: str, coro: Any) -> str:
        try:
            return f"{name} {await coro}"
        except (ActionFailed, ChildFailed) as error:
            return f"{name} {error.type}"

    tasks = [
        asyncio.create_task(one("action", step("a"))),
        asyncio.create_task(one("timer", asyncio.sleep(2, "rang"))),
        asyncio.create_task(one("child", child(5))),
        asyncio.create_task(one("event", asyncio.wait_for(any_call(), 3))),
    ]
    seen = []
    for finished in asyncio.as_completed(tasks):
        seen.append(await finished)
        await tried("and", len(seen))
    return seen


async def any_call() -> str:
    try:
        async with asyncio.timeout(2.5):
            return str(await event("call"))
    except TimeoutError:
        return "nobody called"


@member(("call", "hello"))
async def asks_persons() -> list[Any]:
    """One after the other, two at once, and one against the clock."""

    async def ask(name: str, **more: Any) -> Any:
        try:
            return await person(name, form=int, **more)
        except TaskExpired:
            return "late"
        except ChildFailed as error:
            return error.type

    seen = [await ask("first", assign=role("heads"), due=60, escalate=[Escalate(30, to="ann")], data={"n": 1})]
    seen += await asyncio.gather(ask("left", title="Left?"), ask("right", due=5, default=-1))
    try:
        async with asyncio.timeout(1):
            seen.append(await ask("quick"))
    except TimeoutError:
        seen.append(await tried("nobody was quick"))
    return [*seen, await any_call()]
