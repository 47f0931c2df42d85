"""Workers on PostgreSQL are killed with SIGKILL at every step of the protocol; another one finishes what they began."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict

import pytest

from perdure import ExecutionEnded, Perdure
from perdure.core import events as ev
from perdure.core.records import ENDED, Query, Row
from perdure.testing.checks import check_children, check_head, check_replay
from perdure.testing.invariants import check_log, check_who
from tests.acceptance.cluster import ROOT, Cluster
from tests.acceptance.conftest import Make
from tests.acceptance.dying_process import SETTINGS, declared

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


async def logs(app: Perdure) -> dict[str, list[Row]]:
    """All that there is."""
    heads = await app.store.find(Query(tenant=None, limit=1000))
    return {head.key: await app.store.read(head.key) for head in heads}


async def check_all(app: Perdure, before: dict[str, list[Row]]) -> None:
    """What must be true of every execution, whoever wrote which part of it."""
    after, now = await logs(app), await app.store.now()
    for key, rows in after.items():
        assert rows[: len(before.get(key, []))] == before.get(key, []), f"I7, {key}: what was written has changed"
        head = await app.store.head(key)
        assert head is not None
        check_log(rows, key)
        check_who(rows, key)
        check_head(head, rows, now)
        check_replay(head, rows)
        check_children(key, rows, after)
        ids = [row.message_id for row in rows if row.type == ev.NUMBERS[ev.EventReceived]]
        assert ids == (["address", "name"] if head.parent is None else []), f"I1, I2, I16, {key}: {ids}"
    assert len(after) == 2 * len(POINTS), "every errand has one parcel"


@pytest.mark.parametrize("stream", ["redis", "postgres"])
def test_killed_at_every_step_the_errand_is_still_run_right(make: Make, redis_url: str, stream: str) -> None:
    run_right(make(redis_url if stream == "redis" else "", **SETTINGS))


def run_right(cluster: Cluster) -> None:
    """Kill a worker at every point, and finish what each has left."""
    die(cluster)
    errands = declared()

    async def finish(point: str) -> str:
        # A client that got no answer repeats its calls with the same ids.
        run = await app.start(errands, "book", id=point)
        for name, what in (("address", "Berlin"), ("name", "Ada")):
            try:
                await run.send(name, what, id=name)
            except ExecutionEnded:
                assert (await run.head()).status in ENDED
        return await run.result(timeout=30)

    async def main() -> None:
        async with app:
            before = await logs(app)  # nobody works
            async with app.working(queues=["default", *POINTS]):
                assert await asyncio.gather(*map(finish, POINTS)) == ["ship wrap book Ada Berlin"] * len(POINTS)
            await check_all(app, before)

    app = cluster.app()
    asyncio.run(main())
    cluster.ledger.check()
    steps: dict[str, set[str]] = defaultdict(set)
    for call in cluster.ledger.calls():
        steps[call["execution"]].add(call["step"])
    of_errands = [steps.pop(point) for point in POINTS]
    assert of_errands == [{"charge", "reserve", "pack", "ship"}] * len(POINTS)
    assert list(steps.values()) == [{"wrap"}] * len(POINTS)
