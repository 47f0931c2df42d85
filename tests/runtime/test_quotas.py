"""Quotas of tenants: what is new waits until others end, what has begun goes on, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, action, event, workflow
from perdure.errors import StoreUnavailable, UsageError
from perdure.runtime.work.quotas import Quotas
from perdure.stores.memory import MemoryStore

running: set[str] = set()
most: list[int] = []


@action(name="quotas.work")
async def work(who: str) -> str:
    running.add(who)
    most.append(len(running))
    await asyncio.sleep(0.02)
    running.discard(who)
    return who


@workflow(name="quotas-works")
async def works(who: str) -> str:
    return await work(who)


@workflow(name="quotas-works-elsewhere", queue="elsewhere")
async def works_elsewhere(who: str) -> str:
    return await work(who)


@workflow(name="quotas-waits", events={"go": int})
async def waits() -> int:
    return await event("go", int)


@workflow(name="quotas-child")
async def child() -> str:
    return await work("child")


@workflow(name="quotas-parent")
async def parent() -> str:
    return await child()


@pytest.fixture(params=["memory", "sqlite", "postgres", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/quotas.db"
        case "mongodb":
            return str(request.getfixturevalue("mongodb"))
        case _:
            return str(request.getfixturevalue("postgres")) + "&synchronous_commit=off&unsafe=yes"


def play(test: Callable[[Perdure], Awaitable[None]], url: str = "memory://", **settings: Any) -> None:
    running.clear()
    most.clear()

    async def main() -> None:
        async with asyncio.timeout(60), Perdure(url, tenant="acme", **settings) as app:
            await test(app)

    asyncio.run(main())


def test_no_more_than_the_quota_run_at_once_and_all_of_them_end(url: str) -> None:
    async def main(app: Perdure) -> None:
        await app.tenants.limit("acme", running=3)
        runs = [await app.start(works, str(number)) for number in range(20)]
        async with app.working():
            yours = await app.start(works, "other", tenant="mill")
            assert await yours.result(20) == "other"
            assert [await run.result(40) for run in runs] == [str(number) for number in range(20)]
        assert max(most) <= 4  # three, and that of the other tenant

    play(main, url)


def test_a_worker_that_is_alone_keeps_a_quota_exactly() -> None:
    async def main(app: Perdure) -> None:
        await app.tenants.limit("acme", running=3)
        async with app.working():
            runs = [await app.start(works, str(number)) for number in range(30)]
            for run in runs:
                await run.result(20)
        assert max(most) == 3

    play(main)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_several_workers_keep_a_quota_together_also_when_very_many_start_at_once(count: int, url: str) -> None:
    async def main(app: Perdure) -> None:
        await app.tenants.limit("acme", running=3)
        runs = [await app.start(works, str(number)) for number in range(24)]
        async with AsyncExitStack() as stack:
            for _ in range(count):
                other = await stack.enter_async_context(Perdure(url, tenant="acme"))
                await stack.enter_async_context(other.working())
            for run in runs:
                await run.result(40)
        assert max(most) == 3

    play(main, url)


def test_one_that_waits_for_an_event_keeps_its_place_and_is_not_kept_from_going_on(url: str) -> None:
    async def main(app: Perdure) -> None:
        await app.tenants.limit("acme", running=1)
        async with app.working():
            first = await app.start(waits)
            await first.until("waiting")
            while not (await first.head()).waits:
                await asyncio.sleep(0.01)
            second = await app.start(works, "second")
            await app.worker._intake.take([second.key])  # type: ignore[union-attr]
            assert (await second.head()).version == 1
            assert (await app.tenants.quota("acme")).running == 1
            await first.send("go", 7)
            assert await first.result(20) == 7
            assert await second.result(20) == "second"

    play(main, url, linger=0)


def test_a_child_does_not_wait_for_the_quota_that_its_parent_fills() -> None:
    async def main(app: Perdure) -> None:
        await app.tenants.limit("acme", running=1)
        async with app.working():
            runs = [await app.start(parent) for _ in range(3)]
            assert [await run.result(20) for run in runs] == ["child"] * 3

    play(main)


def test_a_quota_that_is_raised_or_lifted_lets_go_on_what_waits() -> None:
    async def main(app: Perdure) -> None:
        await app.tenants.limit("acme", running=0)
        async with app.working():
            first, second = await app.start(waits), await app.start(waits)
            while app.worker._quotas.waiting < 2:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
            assert (await app.tenants.quota("acme")).running == 0
            await app.tenants.limit("acme", running=1)
            while (await app.tenants.quota("acme")).running < 1:
                await asyncio.sleep(0.01)
            await app.tenants.limit("acme", running=None)
            for run in (first, second):
                await run.send("go", 1)
                assert await run.result(20) == 1

    play(main)


def test_an_end_elsewhere_is_noticed_within_a_second_or_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/two.db"

    async def main(app: Perdure) -> None:
        async with app.working():
            first = await app.start(waits)
            while (await app.tenants.quota("acme")).running < 1:
                await asyncio.sleep(0.01)
        await app.tenants.limit("acme", running=1)
        async with Perdure(url, tenant="acme", queues="elsewhere", probe=60.0) as other, other.working() as worker:
            second = await app.start(works_elsewhere, "second")
            await worker._intake.take([second.key])
            assert worker._quotas.waiting == 1
            await first.send("go", 1)
            async with app.working():
                await first.result(20)
            assert await second.result(20) == "second"

    play(main, url)


def test_a_tenant_that_is_suspended_and_limited_is_both_until_each_is_taken_back() -> None:
    async def main(app: Perdure) -> None:
        await app.tenants.limit("acme", running=5, reason="the small plan", by="ada")
        await app.tenants.suspend("acme", "the invoice of May")
        for _ in range(2):  # the second time it is so already
            await app.tenants.limit("acme", running=5)
        [one] = await app.tenants.standings()
        assert (one.tenant, one.suspended, one.running, one.reason) == ("acme", True, 5, "the invoice of May")
        assert len(await app.store.read("tenants:/acme")) == 3
        await app.tenants.resume("acme")
        assert [(one.suspended, one.running) for one in await app.tenants.standings()] == [(False, 5)]
        assert await app.tenants.suspended() == []
        await app.tenants.limit("acme", running=None)
        assert await app.tenants.standings() == []
        with pytest.raises(UsageError, match="quota"):
            await app.tenants.limit("acme", running=-1)
        with pytest.raises(UsageError):
            await app.tenants.quota("a/b")

    play(main)


class Counted(MemoryStore):
    """A store that has `there` executions running, and counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.there = 0
        self.asked = 0

    async def begun(self, tenant: str, most: int) -> int:
        self.asked += 1
        return self.there

    async def fresh(self, keys: Any) -> set[str]:
        return set(keys)


class Fixed:
    limits = {"acme": 5}

    def rests(self, key: str) -> bool:
        return False


class Floor:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.looks = self.later = 0

    def now(self) -> int:
        return 0

    def look_at(self, due: int) -> None:
        if due > self.now():
            self.later += 1
        else:
            self.looks += 1

    def spawn(self, errand: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(errand))
        return self.tasks[-1]

    async def calm(self) -> None:
        while self.tasks:
            await self.tasks.pop()


def acme(numbers: range) -> list[str]:
    return [f"acme/{number}" for number in numbers]


def counting(
    test: Callable[[Quotas, Counted, Floor], Awaitable[None]], store: Counted | None = None, most: int = 100
) -> None:
    async def main() -> None:
        there, floor = store or Counted(), Floor()
        await test(Quotas(floor, there, Fixed(), most), there, floor)

    asyncio.run(main())


def test_the_store_is_asked_once_a_second_and_not_for_tenants_without_a_quota() -> None:
    async def main(quotas: Quotas, store: Counted, floor: Floor) -> None:
        mill = [f"mill/{number}" for number in range(9)]
        assert await quotas.admitted(mill) == mill
        assert (store.asked, floor.tasks) == (0, [])
        assert await quotas.admitted(acme(range(9))) == []  # nobody knows yet
        await floor.calm()
        assert (store.asked, floor.looks) == (1, 1)
        assert quotas.again(100) == acme(range(5)) == await quotas.admitted(acme(range(5)))
        for number in range(9, 100):
            assert await quotas.admitted([f"acme/{number}"]) == []
        assert quotas.again(100) == []
        assert quotas.ended("acme/0") and quotas.again(100) == ["acme/5"]
        await floor.calm()
        assert (store.asked, quotas.waiting) == (1, 10)

    counting(main, most=10)


def test_whoever_has_to_wait_is_looked_after_though_the_last_count_is_still_good() -> None:
    async def main(quotas: Quotas, store: Counted, floor: Floor) -> None:
        await quotas.admitted(["acme/0"])
        await floor.calm()
        assert await quotas.admitted(acme(range(5))) == acme(range(5))
        quotas.settled(acme(range(5)))
        assert (quotas.waiting, floor.looks, floor.later) == (0, 1, 1)
        assert await quotas.admitted(["acme/5"]) == []  # and those that run may end elsewhere
        assert (store.asked, quotas.waiting, floor.later) == (1, 1, 2)

    counting(main)


def test_what_begins_and_ends_during_a_count_is_added_to_it() -> None:
    async def main(quotas: Quotas, store: Counted, floor: Floor) -> None:
        await quotas.admitted(acme(range(9)))
        await floor.calm()
        await quotas.admitted(acme(range(3)))
        quotas.settled(acme(range(3)))
        store.there = 3
        quotas._counts["acme"].good_until = 0.0
        assert quotas.again(100) == []  # the next count is under way
        quotas.ended("acme/0")
        await floor.calm()
        assert quotas._counts["acme"].running == 2

    counting(main)


def test_those_on_their_way_to_a_hold_are_not_forgotten_by_the_next_count() -> None:
    async def main(quotas: Quotas, store: Counted, floor: Floor) -> None:
        async def counted_anew() -> list[str]:
            quotas._counts.clear()
            await quotas.admitted(["acme/late"])
            await floor.calm()
            return await quotas.admitted(["acme/late"])

        await counted_anew()
        assert len(await quotas.admitted(acme(range(9)))) == 4
        assert await counted_anew() == []
        quotas.settled(["acme/late", *acme(range(9))])
        assert await counted_anew() == ["acme/late"]

    counting(main)


class Slow(Counted):
    async def begun(self, tenant: str, most: int) -> int:
        await asyncio.sleep(0.1)
        return await super().begun(tenant, most)


def test_a_store_that_takes_long_to_count_is_asked_more_seldom_and_nobody_else_waits() -> None:
    async def main(quotas: Quotas, store: Counted, floor: Floor) -> None:
        assert await quotas.admitted(["acme/1", "mill/1"]) == ["mill/1"]
        assert store.asked == 0  # not yet answered
        await floor.calm()
        assert quotas._counts["acme"].good_until - asyncio.get_running_loop().time() > 1.5

    counting(main, Slow())


class Broken(Counted):
    async def begun(self, tenant: str, most: int) -> int:
        if self.asked:
            return await super().begun(tenant, most)
        self.asked += 1
        raise StoreUnavailable("away")


def test_a_count_that_fails_is_asked_for_again() -> None:
    async def main(quotas: Quotas, store: Counted, floor: Floor) -> None:
        for _ in range(2):
            assert await quotas.admitted(["acme/1"]) == []
            await floor.calm()
        assert quotas.again(1) == ["acme/1"]

    counting(main, Broken())
