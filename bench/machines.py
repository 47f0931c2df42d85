"""State machines, embedded: against the same workflow in code, and with a long log against a short one."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct

from bench.load import closed, percentile
from bench.programs import increment
from perdure import Do, Machine, Perdure, Run, State, To, action, event, workflow
from perdure.core import events as ev
from perdure.core.records import Row
from perdure.core.replay import Replay

_STEPS = 5


class Scale(Struct, frozen=True):
    """How much is measured."""

    count: int = 2_000
    at_once: int = 500
    rounds: int = 3
    short: int = 10
    long: int = 100_000
    asked: int = 50  # events that each of the two machines takes


FULL = Scale()
QUICK = Scale(count=500, rounds=1)


@workflow
async def five_events(n: int) -> int:
    for _ in range(_STEPS):
        await event("next")
        n = await increment(n)
    return n


def _counted(data: dict[str, int], n: int) -> dict[str, int]:
    return {"n": n}


_next = Do(increment, lambda data, event: (data["n"],), set=_counted)
five_states = Machine(
    "five_states",
    initial="s0",
    output=lambda data: data["n"],
    states={
        **{f"s{n}": State(on={"next": To(f"s{n + 1}", do=[_next])}) for n in range(_STEPS)},
        f"s{_STEPS}": State(final=True),
    },
)

_answered: dict[str, asyncio.Future[float]] = {}


@action
async def answer(name: str) -> None:
    _answered[name].set_result(time.perf_counter())


endless = Machine(
    "endless_machine",
    initial="on",
    states={
        "on": State(on={"turn": To("off", set=lambda data, event: {"n": data["n"] + 1})}),
        "off": State(
            on={
                "turn": To("on", set=lambda data, event: {"n": data["n"] + 1}),
                "ask": To(do=[Do(answer, lambda data, event: (event.payload,))]),
            }
        ),
    },
)


def against_code(scale: Scale) -> dict[str, float]:
    """Executions a second, the best of each: five events with an action each, in code and as a machine."""
    best = {"code": 0.0, "machine": 0.0}
    for _ in range(scale.rounds):
        for name, start in (
            ("code", lambda app: app.start(five_events, 0)),
            ("machine", lambda app: app.start(five_states, {"n": 0})),
        ):
            with tempfile.TemporaryDirectory() as directory:
                rate = asyncio.run(_load(f"sqlite:///{directory}/m.db", start, scale))
            best[name] = max(best[name], rate)
    return {**best, "ratio": best["machine"] / best["code"]}


async def _load(url: str, start: Callable[[Perdure], Any], scale: Scale) -> float:
    app = Perdure(url)

    async def one(_: int) -> float:
        began = time.perf_counter()
        run: Run[int] = await start(app)
        for _ in range(_STEPS):
            await run.send("next")
        assert await run.result() == _STEPS
        return time.perf_counter() - began

    async with app, app.working():
        await closed(one, 50, 50)
        began = time.perf_counter()
        await closed(one, scale.count, scale.at_once)
        return scale.count / (time.perf_counter() - began)


def long_log(scale: Scale) -> dict[str, float]:
    """Milliseconds until the next event's action runs, nothing kept in memory: after few events and after many."""
    with tempfile.TemporaryDirectory() as directory:
        times = asyncio.run(_ask(f"sqlite:///{Path(directory, 'g.db')}", scale))
    short, long = (percentile(times[name], 0.5) * 1000 for name in ("short", "long"))
    return {"short": short, "long": long, "ratio": long / short, "events": scale.long}


async def _ask(url: str, scale: Scale) -> dict[str, list[float]]:
    app = Perdure(url, cache=0, events_per_replay=1_000)
    times: dict[str, list[float]] = {"short": [], "long": []}
    runs = {name: await app.adopt(log(getattr(scale, name)), name) for name in times}
    async with app, app.working():
        for number in range(scale.asked):
            for name, run in sorted(runs.items(), reverse=bool(number % 2)):  # neither is always the first
                _answered[name] = asyncio.get_running_loop().create_future()
                await run.until("waiting")
                began = time.perf_counter()
                await run.send("ask", name)
                times[name].append(await _answered[name] - began)
    return times


def log(events: int) -> list[Row]:
    """The log of a machine that has taken so many events, an odd number of them turns: it ends in `off`."""
    rows: list[Row] = []
    replay = Replay("bench/machine", endless)
    at = time.time_ns() // 1000 - 10 * events

    def feed(event: ev.Event) -> None:
        rows.append(ev.row(event, len(rows) + 1, at + len(rows)))
        replay.feed(event, len(rows), at + len(rows) - 1)
        for output in replay.take():
            rows.append(ev.row(output, len(rows) + 1, at + len(rows)))
        if isinstance(replay.outcome, ev.Restarted):
            feed(replay.outcome)

    feed(ev.Started(endless.name, endless.version, Raw(b'[{"n":0}]')))
    for number in range(events | 1):
        feed(ev.EventReceived("turn", id=f"turn-{number}"))
    replay.evict()
    return rows
