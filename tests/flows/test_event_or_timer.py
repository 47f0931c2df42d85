"""An event and a timer for the same thing: whichever is first in the log is the outcome, once and for good.

The same wait as code, as a graph, as a document and as a state of a machine: for an event `go`, for a minute. Whoever
lost is in the log as what it is: a timer as cancelled, an event as received. Then it waits for `end`, so that what
comes late has somewhere to go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perdure import Machine, Perdure, Run, State, To, event, workflow
from perdure.core import events as ev
from perdure.core.records import Commit, Outcome
from perdure.flows.document import Document
from perdure.testing import World, run as in_virtual_time
from perdure.testing.invariants import check_log
from perdure.testing.swarm import RandomFaults, Rates
from tests.flows.documenting import body as document_of, listed
from tests.flows.making import graph

MINUTE = 60_000_000


@workflow(name="either.code")
async def code() -> str:
    await asyncio.sleep(10)
    try:
        async with asyncio.timeout(60):
            outcome: str = await event("go", str)
    except TimeoutError:
        outcome = "timeout"
    workflow.publish(outcome=outcome)
    await event("end")
    return outcome


GRAPH = graph(
    "either-graph",
    {
        "start": "trigger",
        "nap": ("delay", {"duration": 10, "unit": "seconds"}),
        "go": ("wait", {"events": [{"name": "go"}], "timeout": "1m"}),
        "heard": ("set", {"variables": {"outcome": "${ .outputs.go[0] }"}}),
        "late": ("set", {"variables": {"outcome": "timeout"}}),
        "end": ("wait", {"events": [{"name": "end"}]}),
        "over": ("end", {"result": "${ .variables.outcome }"}),
    },
    "start > nap > go > heard > end > over",
    "go:timeout > late > end",
)
_LISTEN = {"listen": {"to": {"one": {"with": {"type": "go"}}}}, "output": {"as": ".[0]"}, "timeout": {"after": "PT1M"}}
DOCUMENT = Document(
    document_of(
        "either",
        {
            "nap": {"wait": "PT10S"},
            "go": {
                "try": listed(hear=_LISTEN),
                "catch": {"errors": {"with": {"status": 408}}, "do": listed(late={"set": "${ \"timeout\" }"})},
                "export": {"as": "${ {outcome: .} }"},
            },
            "over": {"listen": {"to": {"one": {"with": {"type": "end"}}}}},
        },
        output={"as": "$context.outcome"},
    )
)  # fmt: skip
MACHINE: Machine[Any] = Machine(
    "either-machine",
    initial="nap",
    output=lambda data: data["outcome"],
    states={
        "nap": State(after={"10s": To("wait")}),
        "wait": State(
            after={"1m": To("late", set=lambda data, event: {"outcome": "timeout"})},
            on={"go": To("heard", set=lambda data, event: {"outcome": event.payload})},
        ),
        "late": State(on={"end": "over"}),
        "heard": State(on={"end": "over"}),
        "over": State(final=True),
    },
)
ALL = {"code": code, "graph": GRAPH, "document": DOCUMENT, "machine": MACHINE}


async def events_of(world: World, run: Run[Any]) -> list[ev.Event]:
    return [ev.read(row) for row in await world.rows(run.key)]


async def due_of(world: World, run: Run[Any]) -> int:
    """When the minute is over."""
    return max(one.due for one in await events_of(world, run) if isinstance(one, ev.TimerStarted))


async def check_one_outcome(world: World, run: Run[Any], went: Any) -> None:
    """The log agrees with the outcome: of each timer one end at most, and of the minute the one that fits."""
    log = await events_of(world, run)
    ends = Counter(one.ref for one in log if isinstance(one, ev.TimerFired | ev.TimerCancelled))
    assert set(ends.values()) == {1}
    began = (await world.rows(run.key))[0].at
    minutes = {one.ref for one in log if isinstance(one, ev.TimerStarted) and one.due - began > MINUTE}
    fired = [one for one in log if isinstance(one, ev.TimerFired) and one.ref in minutes]
    assert len(fired) == (went == "timeout"), f"{went}, but the log has {fired}"
    assert minutes <= ends.keys(), "none is left open"
    received = [one for one in log if isinstance(one, ev.EventReceived)]
    assert Counter(one.name for one in received) == {"go": 1, "end": 1}


@pytest.mark.parametrize("crash", [False, True], ids=["", "with crashes"])
@pytest.mark.parametrize(("at", "outcome"), [(5, "heard"), (40, "heard"), (100, "timeout")], ids=str)
@pytest.mark.parametrize("kind", ALL)
async def test_an_event_before_during_or_after_the_wait(
    world: World, kind: str, at: int, outcome: str, crash: bool
) -> None:
    if kind == "machine" and at < 10:
        outcome = "timeout"  # its state does not take the event, which is rejected
    run = await world.start(ALL[kind])
    await world.advance(float(at))
    if crash:
        await world.crash()
    await run.send("go", "heard")
    await world.advance("1s")
    if crash:
        await world.crash()
    await world.advance("3m")
    await run.send("end")
    assert await run.result() == outcome
    await check_one_outcome(world, run, outcome)


@pytest.mark.parametrize("late", [-1, 0, 1], ids=["just before", "at once", "just after"])
@pytest.mark.parametrize("kind", ALL)
async def test_an_event_in_the_microsecond_of_the_timer(world: World, kind: str, late: int) -> None:
    run = await world.start(ALL[kind])
    await world.advance("30s")
    await asyncio.sleep((await due_of(world, run) + late - world.micros()) / 1e6)
    await run.send("go", "heard")
    await run.until("waiting")
    before = [one for one in await events_of(world, run) if isinstance(one, ev.TimerFired | ev.TimerCancelled)]
    await world.crash()
    await run.send("end")
    went = await run.result()
    assert went in (["heard"] if late < 0 else ["timeout"] if late > 0 else ["heard", "timeout"])
    await check_one_outcome(world, run, went)
    assert (await events_of(world, run)).count(before[-1]) == 1, "what was decided before the crash stands"


def test_in_any_order_of_calls_an_event_and_its_timer_have_one_winner() -> None:
    """Calls of the store take a while, workers die: around the moment at which the timer is due."""
    won: Counter[str] = Counter()

    async def one(seed: int) -> None:
        dice = Random(f"either {seed}")

        def faults(name: str) -> RandomFaults:
            return RandomFaults(Random(f"{seed} {name}"), Rates(latency=0.003))

        async with World(workers=2, faults=faults, lease="3s") as world:
            sender = world.client("sender", faults("sender"))
            runs = [await world.start(ALL[kind]) for kind in ALL for _ in range(3)]
            await world.advance("30s")
            due = [await due_of(world, run) for run in runs]

            async def send(run: Run[Any], at: int) -> None:
                await asyncio.sleep((at + dice.randrange(-10_000, 10_000) - world.micros()) / 1e6)
                await sender.send(run.id, "go", "heard", event_id="go")

            async def kill() -> None:
                await asyncio.sleep((min(due) + dice.randrange(-10_000, 20_000) - world.micros()) / 1e6)
                await world.crash(dice.choice(world.workers))

            await asyncio.gather(kill(), *map(send, runs, due))
            await world.advance("30s")
            for worker in world.workers:
                await world.crash(worker)
            for run in runs:
                await run.send("end")
                went = await run.result()
                await check_one_outcome(world, run, went)
                won[went] += 1
            await sender.close()

    for seed in range(12):
        in_virtual_time(one(seed), seed=seed)
    assert min(won["heard"], won["timeout"]) > 20, won


async def test_leaving_a_state_ends_its_timers_in_the_very_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[list[ev.Event]] = []
    commit = world.store.commit

    async def noting(group: Sequence[Commit], grace: int) -> list[Outcome]:
        commits.extend([ev.read(row) for row in one.rows] for one in group)
        return await commit(group, grace)

    monkeypatch.setattr(world.store, "commit", noting)
    run = await world.start(MACHINE)
    await world.advance("20s")
    await run.send("go", "heard")
    await run.until("waiting")
    [written] = [one for one in commits if any(isinstance(it, ev.EventReceived) for it in one)]
    kinds = [type(one).__name__ for one in written]
    assert {"EventReceived", "StateChanged", "TimerCancelled"} <= set(kinds), kinds
    started = [one.ref for events in commits for one in events if isinstance(one, ev.TimerStarted)]
    assert [one.ref for one in written if isinstance(one, ev.TimerCancelled)] == started[-1:]


def test_what_came_while_everything_was_down_has_one_outcome_that_stands(tmp_path: Path) -> None:
    """On SQLite, each time a new application: the event is accepted, and its minute is over, with no worker there."""
    url = f"sqlite:///{tmp_path / 'either.db'}"

    @workflow(name="either.short")
    async def short() -> str:
        try:
            async with asyncio.timeout(0.6):
                return await event("go", str)
        except TimeoutError:
            return "timeout"

    async def begin() -> None:
        async with Perdure(url, linger=0) as app, app.working():
            for id in ("told", "late"):
                run = await app.start(short, id=id)
                await run.until("waiting", timeout="10s")

    async def meanwhile() -> None:
        async with Perdure(url) as app:
            await app.get("told").send("go", "heard", id="go")
            await asyncio.sleep(0.7)
            await app.get("late").send("go", "heard", id="go")

    async def finish() -> dict[str, Any]:
        async with Perdure(url) as app, app.working():
            ends = {id: await app.get(id).result("10s") for id in ("told", "late")}
            for id, end in ends.items():
                rows = [row async for row in app.get(id).rows()]
                check_log(rows, id)
                fired = [row for row in rows if isinstance(ev.read(row), ev.TimerFired)]
                assert len(fired) == (end == "timeout")
            return ends

    asyncio.run(begin())
    asyncio.run(meanwhile())
    ends = asyncio.run(finish())
    assert set(ends.values()) <= {"heard", "timeout"}
    assert asyncio.run(finish()) == ends
