"""Workers on PostgreSQL are killed with SIGKILL at every step of the protocol; another one finishes what they began."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict

import pytest

from perdure import ExecutionEnded, workflow
from perdure.core.records import ENDED
from perdure.testing.invariants import check_log
from tests.acceptance.cluster import ROOT, Cluster, rows_of
from tests.acceptance.conftest import Make
from tests.acceptance.dying_process import SETTINGS, errand

#: What is called, and how often at least in one run: each call is the last one once before and once after its effect.
CALLS = {
    "start": 1,
    "send": 1,
    "publish": 3,
    "claim": 2,
    "hold": 1,
    "ack": 1,
    "step": 2,
    "park": 1,
    "renew": 1,
    "release": 1,
    "end": 1,
}
POINTS = [
    f"{verb}-{when}-{n}" for verb, most in CALLS.items() for n in range(1, most + 1) for when in ("before", "after")
]


def die(cluster: Cluster) -> dict[str, int]:
    """Run all points; gives how each process ended."""
    wanted = ("store", "stream", "stream_prefix")
    program = [sys.executable, "-m", "tests.acceptance.dying_process"]
    arguments = [*(cluster.settings.get(name, "") for name in wanted), str(cluster.ledger.path), *POINTS]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PERDURE"))}
    done = subprocess.run(
        [*program, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    ended: dict[str, int] = json.loads(done.stdout)
    assert set(ended.values()) == {-9}, f"not all were killed: {ended} {done.stderr}"
    return ended


@pytest.mark.parametrize("stream", ["redis", "postgres"])
def test_killed_at_every_step_the_errand_is_still_run_right(make: Make, redis_url: str, stream: str) -> None:
    cluster = make(redis_url if stream == "redis" else "", **SETTINGS)
    die(cluster)
    errands = workflow(errand, name="dying_errand")

    async def finish(point: str) -> str:
        # A client that got no answer repeats its calls with the same ids.
        run = await app.start(errands, "book", id=point)
        try:
            await run.send("address", "Berlin", id="address")
        except ExecutionEnded:
            assert (await run.head()).status in ENDED
        return await run.result(timeout=30)

    async def main() -> None:
        async with app, app.working(queues=["default", *POINTS]):
            assert await asyncio.gather(*map(finish, POINTS)) == ["ship book Berlin"] * len(POINTS)
            for point in POINTS:
                check_log(await rows_of(app.get(point)), point)

    app = cluster.app()
    asyncio.run(main())
    cluster.ledger.check()
    steps: dict[str, set[str]] = defaultdict(set)
    for call in cluster.ledger.calls():
        steps[call["execution"]].add(call["step"])
    assert steps == {point: {"charge", "reserve", "pack", "ship"} for point in POINTS}
