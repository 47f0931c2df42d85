"""Everything at once: random programs, clients that repeat themselves, and faults of every kind at real processes.

The invariants are those of the simulation, and so are the programs and the clients. PERDURE_TEST_CHAOS is for how many
seconds faults strike, PERDURE_TEST_CHAOS_SEED which ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import ValkeyServer
from tests.acceptance.chaos import Field, Nemesis, endure
from tests.acceptance.conftest import Make

SECONDS = float(os.environ.get("PERDURE_TEST_CHAOS", "12"))
SEED = int(os.environ.get("PERDURE_TEST_CHAOS_SEED", "1"))
FLOWS = Path(__file__).parent / "chaos_flows.py"
#: Every case that was promised to be survived, and the faults that bring it about.
CASES = {
    "a rolling restart": ["drain"],
    "all at once": ["kill", "stop", "drain", "flush", "redis", "postgres", "cut"],
}


def suffer(make: Make, kinds: Sequence[str], seconds: float, every: float) -> None:
    with PostgresServer(private=True) as postgres, ValkeyServer() as redis:
        cluster = make(redis.url, store=postgres.address(schema="chaos"), flows=FLOWS, lapses=10)
        crew = cluster.grow(3)

        async def main() -> Field:
            async with Field(cluster, SEED).open() as field:
                try:
                    async with asyncio.timeout(seconds + 120):
                        await endure(field, Nemesis(field, crew, postgres, redis), kinds, seconds, every)
                except BaseException as error:
                    error.add_note(f"seed {SEED}; what struck: {'; '.join(field.lines)}")
                    raise
                return field

        field = asyncio.run(main())
        assert sum(field.struck.values()) >= len(kinds)


@pytest.mark.parametrize("case", CASES)
def test_every_promise_is_kept_under(make: Make, case: str) -> None:
    kinds = CASES[case]
    suffer(make, kinds, SECONDS if len(kinds) > 1 else SECONDS / 2, every=0.5)
