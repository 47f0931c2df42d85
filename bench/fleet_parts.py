"""The parts of the measurement of a fleet, each with the fleets that it compares."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import msgspec

from bench.fleet import WORKFLOWS, Figures, Scale, Tell, bare, compare, engine, warm_up
from bench.load import Job, percentile
from bench.servers import Servers
from bench.stored import fill

SLOW = 10  # executions a second
#: Executions in the store beside which many are measured.
FEW = 1_000


def throughput(servers: Servers, profiles: list[str], scale: Scale, tell: Tell) -> dict[str, Any]:
    """Executions a second at full load, on each profile and by hand, and what that costs whom."""
    with ExitStack() as stack:
        fleets = {name: stack.enter_context(engine(servers, name, f"full_{name}")) for name in profiles}
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


def workers(servers: Servers, scale: Scale, tell: Tell) -> dict[str, Any]:
    """Two worker processes against one."""
    with engine(servers, "cluster", "one") as one, engine(servers, "cluster", "two", workers=2) as two:
        fleets = {"one worker": one, "two workers": two}
        for fleet in fleets.values():
            warm_up(fleet, scale)
        return _beside(compare(servers, fleets, "W5", scale, tell))


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
