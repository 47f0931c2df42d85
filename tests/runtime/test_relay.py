"""When a worker looks at what is due: as soon as it is told, and otherwise seldom."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import asyncpg
import pytest

from perdure import Perdure, workflow
from perdure.core.records import Due
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres.address import read_address
from perdure.streams.memory import MemoryStream


@workflow
async def relayed_nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


class Asked(MemoryStore):
    """Counts questions; the answer to when something is due may take its time on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.late = 0.0
        self.under_way = asyncio.Event()

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        self.count["next_due"] += 1
        answer = await super().next_due(queues, definitions)
        self.under_way.set()
        await asyncio.sleep(self.late)
        return answer

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        self.count["claim"] += 1
        return await super().claim(queues, definitions, limit, grace)


def test_a_timer_that_is_set_while_the_store_is_asked_is_not_forgotten() -> None:
    async def scenario() -> float:
        store = Asked()
        async with Perdure(store, stream=MemoryStream(), linger=0, probe="30s", lease="60s") as app:
            store.late = 0.3
            async with app.working():
                await store.under_way.wait()  # the answer knows nothing of what comes now
                began = time.monotonic()
                run = await app.start(relayed_nap, 0.5)
                await run.result(timeout=20)
                return time.monotonic() - began

    took = asyncio.run(scenario())
    assert 0.5 <= took < 5, f"it woke up after {took:.2f} s"


def test_a_worker_at_rest_asks_when_and_not_what() -> None:
    async def scenario() -> Counter[str]:
        store = Asked()
        async with Perdure(store, stream=MemoryStream(), linger=0, probe="100ms") as app, app.working():
            run = await app.start(relayed_nap, 0.1)
            await run.result(timeout=20)
            nap = await app.start(relayed_nap, 60)
            await nap.until("waiting", timeout=20)
            await asyncio.sleep(0.2)
            store.count.clear()
            await asyncio.sleep(1)
            return store.count

    count = asyncio.run(scenario())
    assert count["claim"] == 0
    assert 5 <= count["next_due"] <= 11, "the pause between two looks is a setting"


@pytest.mark.parametrize("hours", [-24, 1])
def test_the_clock_of_the_database_decides_and_that_of_the_worker_does_not_matter(postgres: str, hours: int) -> None:
    address = read_address(postgres)

    async def scenario() -> None:
        async with Perdure(postgres):
            connection = await asyncpg.connect(address.dsn)
            await connection.execute(
                f'create or replace function "{address.schema}".now_us() returns bigint language sql volatile as'
                f" $$ select ((extract(epoch from clock_timestamp()) + {hours * 3600}) * 1000000)::bigint $$"
            )
            await connection.close()
        async with Perdure(postgres, linger=0, lease="1s", grace=0.2) as app, app.working():
            began = time.monotonic()
            run = await app.start(relayed_nap, 1.2)  # longer than a lease
            await run.result(timeout=20)
            took = time.monotonic() - began
            assert 1.2 <= took < 5, f"it slept for {took:.2f} s"
            log = await run.log()
            assert "TakenOver" not in [entry.type for entry in log]
            for entry in log:
                assert abs(entry.at.timestamp() - time.time() - hours * 3600) < 30, "the log has the database's time"

    asyncio.run(scenario())
