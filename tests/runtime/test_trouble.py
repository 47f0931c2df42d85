"""A store in trouble: full, busy, silent about the outcome. Nothing is lost, nothing is written twice."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from perdure import Perdure, Run, action, event, workflow
from perdure.core.records import Commit, Due, Outcome
from perdure.errors import OutcomeUnknown, StoreFull, StoreUnavailable
from perdure.stores.sqlite import SqliteStore
from perdure.streams.local import LocalStream
from perdure.testing.invariants import check_log

effects: Counter[str] = Counter()
Trouble = Callable[[int, Callable[[], Awaitable[list[Outcome]]]], Awaitable[list[Outcome]]]


@pytest.fixture(autouse=True)
def forget() -> None:
    effects.clear()


class TroubledStore(SqliteStore):
    """Asks the test what to do with each commit."""

    def __init__(self, path: str, trouble: Trouble) -> None:
        super().__init__(path)
        self.trouble = trouble
        self.commits = 0
        self.claimed = 0

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        self.commits += 1
        return await self.trouble(self.commits, lambda: SqliteStore.commit(self, group, grace))

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        dues = await super().claim(queues, definitions, limit, grace)
        self.claimed += len(dues)
        return dues


@action
async def effect(n: int) -> int:
    effects[action.key] += 1
    return n + 1


@workflow
async def five_effects() -> int:
    n = 0
    for _ in range(5):
        n = await effect(n)
    return n


async def run_with(path: Path, trouble: Trouble, **options: float) -> tuple[Run[int], Perdure]:
    app = Perdure(TroubledStore(str(path), trouble), stream=LocalStream(str(path)), **options)
    async with app, app.working():
        run = await app.start(five_effects)
        assert await run.result(timeout=30) == 5
        check_log([row async for row in run.rows()], run.key)
    return run, app


@pytest.mark.real_time
@pytest.mark.parametrize("kind", [StoreFull, StoreUnavailable])
async def test_a_commit_that_certainly_failed_is_repeated_and_nothing_runs_twice(
    tmp_path: Path, kind: type[Exception]
) -> None:
    async def trouble(n: int, write: Callable[[], Awaitable[list[Outcome]]]) -> list[Outcome]:
        if n in (2, 3, 5):
            raise kind("no room")
        return await write()

    await run_with(tmp_path / "full.db", trouble)
    assert sorted(effects.values()) == [1] * 5


@pytest.mark.real_time
@pytest.mark.parametrize("written", [True, False])
async def test_after_an_unknown_outcome_the_log_decides(tmp_path: Path, written: bool) -> None:
    async def trouble(n: int, write: Callable[[], Awaitable[list[Outcome]]]) -> list[Outcome]:
        if n == 3:
            if written:
                await write()
            raise OutcomeUnknown("the connection broke")
        return await write()

    await run_with(tmp_path / "unknown.db", trouble)
    assert sorted(effects.values()) == ([1] * 5 if written else [1] * 4 + [2])


@pytest.mark.real_time
async def test_a_worker_that_could_not_renew_gives_up_before_somebody_else_takes_over(tmp_path: Path) -> None:
    """Its store hangs longer than the lease: what it has in memory is not written later."""
    hang = asyncio.Event()

    async def trouble(n: int, write: Callable[[], Awaitable[list[Outcome]]]) -> list[Outcome]:
        if n == 2:
            await hang.wait()
        return await write()

    path = tmp_path / "slow.db"
    store = TroubledStore(str(path), trouble)
    slow = Perdure(store, stream=LocalStream(str(path)), lease=0.4, grace=0.1)
    quick = Perdure(f"sqlite:///{path}", lease=0.4, grace=0.1, probe=0.2)
    async with slow, slow.working() as worker:
        run = await slow.start(five_effects)
        async with asyncio.timeout(10):
            while store.commits < 2:
                await asyncio.sleep(0.005)
        worker._tasks[-1].cancel()  # no renewal from now on
        await asyncio.sleep(3)  # several times as long as it would take to claim what it has lost once more
        assert store.claimed <= 1  # that once perhaps, when it was too early to say that the write hangs
        late = await slow.start(five_effects)  # whose hint arrives where it was started
        async with quick, quick.working():
            assert await quick.get(run.id).result(timeout=20) == 5
            assert await quick.get(late.id).result(timeout=20) == 5
        assert late.key not in worker.residents
        hang.set()
        assert await (await slow.start(five_effects)).result(timeout=20) == 5
    async with quick:
        rows = [row async for row in quick.get(run.id).rows()]
        check_log(rows, run.key)
        assert max(effects.values()) <= 2


@pytest.mark.real_time
async def test_a_full_disk_stops_nothing_for_good(tmp_path: Path) -> None:
    path = tmp_path / "small.db"
    app = Perdure(f"sqlite:///{path}")

    @workflow
    async def waits_for_word() -> str:
        return await event("word", str)

    async with app, app.working():
        store = app.store
        assert isinstance(store, SqliteStore)
        await store._write(lambda t: t._db.execute("pragma max_page_count = 1"))
        with pytest.raises(StoreFull, match="small.db"):
            for n in range(1000):
                await app.start(waits_for_word, id=f"w{n}")
        await store._write(lambda t: t._db.execute("pragma max_page_count = 1000000"))
        run = await app.start(waits_for_word, id="later")
        await run.send("word", "fits")
        assert await run.result(timeout=10) == "fits"


def test_an_application_that_could_not_be_opened_leaves_nothing_behind_and_can_be_opened_later(tmp_path: Path) -> None:
    class AwayStore(SqliteStore):
        away = True

        async def now(self) -> int:
            if self.away:
                raise StoreUnavailable("the store is away")
            return await super().now()

    async def main() -> int:
        store = AwayStore(str(tmp_path / "app.db"))
        app = Perdure(store, stream=LocalStream(str(tmp_path / "app.db")))
        threads = set(threading.enumerate())
        with pytest.raises(StoreUnavailable, match="is away"):
            await app.open()
        assert set(threading.enumerate()) == threads
        store.away = False
        async with app, app.working():
            return await (await app.start(five_effects)).result(timeout=10)

    assert asyncio.run(main()) == 5
