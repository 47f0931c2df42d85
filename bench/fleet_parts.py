"""The parts of the measurement of a fleet, each with the fleets that it compares."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import msgspec

from bench.cores import slowed
from bench.fleet import WORKFLOWS, Figures, Fleet, Scale, Tell, bare, compare, engine, warm_up
from bench.load import Job, percentile
from bench.servers import Servers
from bench.stored import fill

SLOW = 10  # executions a second
#: Executions in the store beside which many are measured.
FEW = 1_000
#: Sizes of a fleet, and the part of a core that each of its workers has.
GROWN = (1, 2, 4)
SLOW_CORE = 0.1


def throughput(servers: Servers, profiles: list[str], scale: Scale, tell: Tell) -> dict[str, Any]:
    """Executions a second at full load, on each profile with one worker and two, and by hand; what that costs whom."""
    with ExitStack() as stack:
        fleets = {
            f"{name}, {count}": stack.enter_context(engine(servers, name, f"full_{name}_{count}", count))
            for name in profiles
            for count in (1, 2)
        }
        fleets["by hand"] = stack.enter_context(bare(servers, "full_bare"))
        for fleet in fleets.values():
            warm_up(fleet, scale)
        found = {program: compare(servers, fleets, program, scale, tell) for program in WORKFLOWS}
    return {
        program: {name: _with_share(one, best["by hand"]) for name, one in best.items()}
        for program, best in found.items()
    }


def _with_share(one: Figures, limit: Figures) -> dict[str, Any]:
    figures: dict[str, Any] = msgspec.to_builtins(one)
    return {**figures, "share": one.rate / limit.rate}


def latency(servers: Servers, profiles: list[str], scale: Scale, tell: Tell) -> dict[str, Any]:
    """With next to no load: from start to result, and how late timers fire."""
    found: dict[str, Any] = {}
    for profile in profiles:
        with engine(servers, profile, f"slow_{profile}") as fleet:
            warm_up(fleet, scale)
            found[profile] = {}
            for program in ("W1", "W5"):
                tell(f"{program}, {profile}, {SLOW} executions a second")
                done, _ = fleet.run(Job(program, scale.slow, per_second=SLOW))
                found[profile][program] = _percentiles(done.times)
            tell(f"timers, {profile}")
            done, _ = fleet.run(Job("sleeps", scale.timers, per_second=2 * SLOW))
            found[profile]["timers"] = _percentiles(done.times)
    return found


def _percentiles(times: list[float]) -> dict[str, float]:
    return {"count": len(times), "p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}


def growth(servers: Servers, scale: Scale, tell: Tell) -> dict[str, Any] | None:
    """One worker, two and four, each with a tenth of a core; None where that cannot be arranged."""
    with ExitStack() as stack:
        fleets = {count: stack.enter_context(engine(servers, "cluster", f"grow_{count}", count)) for count in GROWN}
        for fleet in fleets.values():
            warm_up(fleet, scale)
        pids = [pid for fleet in fleets.values() for pid in fleet.worker_pids]
        if not stack.enter_context(slowed(pids, SLOW_CORE)):
            return None
        return {program: _grown(servers, fleets, program, scale, tell) for program in WORKFLOWS}


def _grown(servers: Servers, fleets: dict[int, Fleet], program: str, scale: Scale, tell: Tell) -> dict[str, Any]:
    servers.tidy_up()
    rates: dict[int, float] = {}
    for count, fleet in fleets.items():
        tell(f"{program}, {count} workers with a tenth of a core each")
        # As much for each worker, in all and at once: what comes last, when not all of them have something to do,
        # weighs the same, and so does what is shared by those that are in flight together.
        rates[count] = fleet.do(Job(program, scale.grown * count, scale.at_once * count)).rate
    return {str(count): {"rate": rate, "ratio": rate / rates[GROWN[0]]} for count, rate in rates.items()}


def stored(servers: Servers, scale: Scale, tell: Tell) -> dict[str, Any]:
    """A store with many finished executions against one with few."""
    names = {f"{count:,} stored": (f"stored_{count}", count) for count in (FEW, scale.stored)}
    with ExitStack() as stack:
        fleets = {name: stack.enter_context(engine(servers, "postgres", schema)) for name, (schema, _) in names.items()}
        for name, (schema, count) in names.items():
            warm_up(fleets[name], scale)
            tell(f"filling a store with {count:,} finished executions")
            asyncio.run(fill(servers, schema, count))
        return _beside(compare(servers, fleets, "W5", scale, tell))


def _beside(best: dict[str, Figures]) -> dict[str, Any]:
    """Two fleets, and the second's rate against the first's."""
    first, second = best.values()
    figures = {name: msgspec.to_builtins(one) for name, one in best.items()}
    return {"figures": figures, "ratio": second.rate / first.rate}
