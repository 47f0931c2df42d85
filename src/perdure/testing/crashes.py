"""Crash everywhere: one run of a workflow for every store call of its worker, with a crash at that call.

Nothing is drawn here: virtual time makes the runs equal up to the crash, so every point is met, before and after the
call takes effect. What must not change is how the execution ends and what its log says went in.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from perdure.core import events as ev
from perdure.core.records import Head, Row
from perdure.errors import ExecutionError
from perdure.runtime.run import Run
from perdure.testing.faults import CrashPoints

if TYPE_CHECKING:
    from perdure.testing.world import World

Send: TypeAlias = Sequence[tuple[str, Any]] | Callable[[Run[Any]], Awaitable[Any]]
Check: TypeAlias = Callable[[Run[Any]], Awaitable[None] | None]


class CrashReport(Struct, frozen=True):
    """What `crash_everywhere` did: the calls of the worker in order, the runs, and the most often an action was run."""

    status: str
    calls: list[str]
    runs: int
    attempts: dict[str, int]  # by the action's key: the most in any run

    @property
    def points(self) -> int:
        """Two for every call: before it takes effect, and after."""
        return 2 * len(self.calls)


class _Seen(Struct):
    """One run: how it ended, what went in, what was run."""

    status: str
    result: Any
    inputs: Counter[tuple[str, ...]]
    attempts: Counter[str]


async def crash_everywhere(
    make: Callable[[], World],
    workflow: Callable[..., Any],
    args: tuple[Any, ...],
    send: Send,
    check: Check | None,
    id: str,
    same_inputs: bool,
) -> CrashReport:
    """See `World.crash_everywhere`. `make` makes a world without workers."""

    async def one(points: CrashPoints) -> _Seen:
        async with make() as world:
            world.add_worker(points).process.on_kill.append(world.add_worker)
            await world.settle()
            run = await world.app.start(workflow, *args, id=id)
            await drive(run, send)
            seen = await _ended(world, run)
            points.counting = False
            await world.check()
            if check is not None and inspect.isawaitable(answer := check(run)):
                await answer
            return seen

    count = CrashPoints()
    first = await one(count)
    most = Counter(first.attempts)
    for at, verb in enumerate(count.calls):
        for after in (False, True):
            try:
                seen = await one(CrashPoints(at, after=after))
                _compare(first, seen, same_inputs)
            except BaseException as error:
                error.add_note(
                    f"the worker crashed {'after' if after else 'before'} its store call {at + 1} of"
                    f" {len(count.calls)} ({verb}); calls so far: {', '.join(count.calls[: at + 1])}"
                )
                raise
            for key, times in seen.attempts.items():
                most[key] = max(most[key], times)
    return CrashReport(first.status, count.calls, 1 + 2 * len(count.calls), dict(most))


async def drive(run: Run[Any], send: Send) -> None:
    """Do to a run what comes from outside; ids are fixed, so it may be done again."""
    if callable(send):
        await send(run)
        return
    for number, (name, payload) in enumerate(send, 1):
        await run.send(name, payload, id=f"sent-{number}")


async def _ended(world: World, run: Run[Any]) -> _Seen:
    try:
        await run.result()
    except ExecutionError:
        pass
    status, result = end_of(await run.head())
    return _Seen(status, result, _inputs(await world.rows(run.key)), Counter(world.attempts))


def end_of(head: Head) -> tuple[str, Any]:
    """How an execution ended: what must be the same with and without faults."""
    result = msgspec.json.decode(head.result) if head.result else msgspec.json.decode(head.waits or b"null")
    if head.status == "failed":
        result = [result["type"], result["message"]]
    return head.status, result


def _inputs(rows: Sequence[Row]) -> Counter[tuple[str, ...]]:
    """What went into a log, without the order and the numbers, which depend on who was faster."""
    inputs: list[tuple[str, ...]] = []
    for row in rows:
        match ev.read(row):
            case ev.ActionSettled(name=name, args=args, result=result, error=error):
                failure = "" if error is None else error.type
                inputs.append(("action", name, bytes(args).decode(), bytes(result).decode(), failure))
            case ev.EventReceived(name=name, payload=payload):
                inputs.append(("event", name, bytes(payload).decode()))
            case ev.ChildSettled(status=status, result=result) if status != "cancelled":  # or the end may be quicker
                inputs.append(("child", status, bytes(result).decode()))
            case _:
                pass
    return Counter(inputs)


def _compare(first: _Seen, seen: _Seen, same_inputs: bool) -> None:
    ends, end = (first.status, first.result), (seen.status, seen.result)
    assert end == ends, f"without a crash it ended as {ends}, with one as {end}"
    if same_inputs:
        missing, new = first.inputs - seen.inputs, seen.inputs - first.inputs
        assert not missing and not new, f"the log of the crashed run misses {dict(missing)} and has {dict(new)} besides"
