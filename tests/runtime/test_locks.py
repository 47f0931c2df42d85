"""Locks: leases by name, with a fence; here on stores without a server, elsewhere on those with one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import LockLost, LockTaken, Perdure, action, workflow
from perdure.core.records import Held, HoldAnswer
from perdure.errors import SettingsError
from perdure.ports import Locks
from perdure.runtime.managing import locks
from perdure.runtime.managing.locks import StoreLocks, key_of_lock
from perdure.stores.dynamodb import DynamoStore
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres import PostgresStore
from perdure.stores.sqlite import SqliteStore
from perdure.streams.memory import MemoryStream
from perdure.testing import World
from perdure.testing.contract import LocksContract
from perdure.testing.servers.valkey import new_prefix


class TestLocksInMemory(LocksContract):
    async def make_locks(self) -> Locks:
        return StoreLocks(MemoryStore(), "default")


class TestLocksOnSqlite(LocksContract):
    @pytest.fixture(autouse=True)
    def _given(self, tmp_path: Path) -> None:
        self.store = SqliteStore(f"{tmp_path}/locks.db")

    async def make_locks(self) -> Locks:
        await self.store.open()
        return StoreLocks(self.store, "default")

    async def play(self, body: Callable[[Any, Any], Awaitable[None]]) -> None:
        try:
            await super().play(body)
        finally:
            await self.store.close()


class TestLocksOnPostgres(LocksContract):
    @pytest.fixture(autouse=True)
    def _given(self, postgres: str) -> None:
        self.store = PostgresStore(postgres)

    async def make_locks(self) -> Locks:
        await self.store.open()
        return StoreLocks(self.store, "default")

    async def play(self, body: Callable[[Any, Any], Awaitable[None]]) -> None:
        try:
            await super().play(body)
        finally:
            await self.store.close()


class TestLocksOnDynamodb(LocksContract):
    @pytest.fixture(autouse=True)
    def _given(self, dynamodb: str) -> None:
        self.store = DynamoStore(dynamodb)

    async def make_locks(self) -> Locks:
        await self.store.open()
        return StoreLocks(self.store, "default")

    async def play(self, body: Callable[[Any, Any], Awaitable[None]]) -> None:
        try:
            await super().play(body)
        finally:
            await self.store.close()


def test_a_deployment_may_keep_its_locks_in_redis(redis_url: str) -> None:
    async def body() -> None:
        prefix = new_prefix()
        here, there = (Perdure("memory://", stream=redis_url, stream_prefix=prefix, locks="stream") for _ in range(2))
        async with here, there, here.lock("printer", lease="1m"):
            state = await there.lock("printer").look()
            assert state is not None
            assert state.holder.startswith(here.me)
            with pytest.raises(LockTaken):
                await there.lock("printer").acquire()

    asyncio.run(body())


@pytest.mark.parametrize("where", ["postgres", "redis"])
def test_two_applications_share_a_lock_with_all_that_it_can(where: str, request: pytest.FixtureRequest) -> None:
    if where == "redis":
        redis = {"stream": request.getfixturevalue("redis_url"), "stream_prefix": new_prefix()}
        here, there = (Perdure("memory://", locks="stream", **redis) for _ in range(2))
    else:
        here, there = (Perdure(request.getfixturevalue("postgres")) for _ in range(2))

    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20), here, there:
            mine, yours = here.lock("printer", lease=0.6), there.lock("printer", lease=0.6)
            before, token = await mine.acquire(), mine.token
            # It is kept for longer than its lease, and who waits does so for as long as was said.
            began = loop.time()
            with pytest.raises(LockTaken, match=rf"held by {token} \(fence {before}\); waited 1 s"):
                await yours.acquire(wait=1)
            assert 1 <= loop.time() - began < 5
            # Nobody else extends or releases it.
            assert [await yours.extend(), await yours.release()] == [False, False]
            state = await yours.look()
            assert state is not None
            assert (state.holder, state.fence, mine.held) == (token, before, True)
            assert await mine.extend("1h")
            state = await yours.look()
            assert state is not None
            assert (state.until - datetime.now(UTC)).total_seconds() > 3000
            # Once released it is another's, under a higher fence.
            assert [await mine.release(), await mine.release()] == [True, False]
            assert await yours.acquire() > before
            assert await yours.release()

    asyncio.run(body())


def test_locks_in_a_stream_need_one() -> None:
    with pytest.raises(SettingsError, match="locks"):
        Perdure("memory://", locks="stream")


def test_locks_on_sqlite_exclude_each_other_across_applications(tmp_path: Path) -> None:
    async def body() -> None:
        here, there = (Perdure(f"sqlite:///{tmp_path}/locks.db") for _ in range(2))
        async with here, there:
            async with here.lock("printer") as lock:
                with pytest.raises(LockTaken, match=r"lock 'printer' is held by .* \(fence"):
                    await there.lock("printer").acquire()
                first = lock.fence
            async with there.lock("printer") as lock:
                assert lock.fence > first

    asyncio.run(body())


def test_who_waits_gets_it_as_soon_as_it_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_LOOK", 600.0)  # so it is the news that tells

    async def body() -> None:
        here, there = (Perdure(f"sqlite:///{tmp_path}/locks.db") for _ in range(2))
        async with here, there:
            mine = here.lock("printer", lease="1h")
            await mine.acquire()
            waiting = asyncio.create_task(there.lock("printer", lease="1h", wait="5m").acquire())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert await mine.release()
            assert await asyncio.wait_for(waiting, 30) > 0

    asyncio.run(body())


async def test_a_lock_is_renewed_while_its_block_runs(world: World) -> None:
    async with world.app.lock("a", lease="10s"):
        await world.advance("1h")
        with pytest.raises(LockTaken):
            await world.app.lock("a").acquire()
    assert await world.app.lock("a").acquire()


async def test_a_lock_is_renewed_when_a_third_of_its_lease_is_over(world: World) -> None:
    left = []
    async with world.app.lock("a", lease="9s"), world.app.lock("b", lease="30s"):
        for _ in range(100):
            for name, lease in (("a", 9), ("b", 30)):
                state = await world.app.lock(name).look()
                assert state is not None
                left.append((state.until - world.now()).total_seconds() / lease)
            await world.advance("1s")
    assert 0.66 < min(left) < 0.78
    assert max(left) == 1


async def test_a_lock_whose_holder_is_gone_is_free_when_its_lease_is_over(world: World) -> None:
    gone = StoreLocks(world.store, "default")
    fence = await gone.take("a", "gone", 10_000_000)
    assert fence is not None
    assert await world.app.lock("a", wait="1m").acquire() > fence


async def test_only_the_own_acquisition_is_extended_and_released(world: World) -> None:
    locks = StoreLocks(world.store, "default")
    old = await locks.take("a", "one", 1_000_000)
    assert old is not None
    await world.advance("2s")
    new = await locks.take("a", "two", 1_000_000)
    assert new is not None
    assert new > old
    assert await locks.extend([("a", "one", old)], 1_000_000) == [False]
    assert not await locks.drop("a", "one", old)
    assert await locks.drop("a", "two", new)
    assert not await locks.drop("a", "two", new)


async def test_who_waits_gives_up_after_as_long_as_was_said(world: World) -> None:
    async with world.app.lock("a", lease="10s"):
        before = world.now()
        with pytest.raises(LockTaken, match="waited 90 s"):
            await world.app.lock("a", wait="90s").acquire()
        assert (world.now() - before).total_seconds() == 90
        with pytest.raises(LockTaken, match="waited 5 s"):
            await world.app.lock("a", wait="90s").acquire(wait="5s")
        assert (world.now() - before).total_seconds() == 95


async def test_every_acquisition_has_a_token_of_its_own(world: World) -> None:
    lock = world.app.lock("a")
    tokens, fences = [], []
    for _ in range(3):
        fences.append(await lock.acquire())
        tokens.append(lock.token)
        state = await world.app.lock("a").look()
        assert state is not None
        assert state.holder == lock.token
        assert await lock.release()
    assert len(set(tokens)) == 3
    assert fences == sorted(set(fences))


async def test_extending_lengthens_the_lease(world: World) -> None:
    lock = world.app.lock("a", lease="10s")
    await lock.acquire()
    assert await lock.extend("1h")
    state = await lock.look()
    assert state is not None
    assert (state.until - world.now()).total_seconds() == 3600
    assert state.fence == lock.fence


async def test_a_lock_tells_its_age_however_often_it_was_renewed(world: World) -> None:
    async with world.app.lock("a", lease="10s") as lock:
        began = world.now()
        await world.advance("1h")
        state = await world.app.lock("a").look()
        assert state is not None
        assert (state.holder, state.since, state.age) == (lock.token, began, 3600)


async def test_a_lock_of_before_its_begin_was_kept_is_read(world: World) -> None:
    locks = StoreLocks(world.store, "default")
    fence = await locks.take("a", "somebody", 1)  # so that it exists
    await world.advance("1s")
    [held] = await world.store.hold([key_of_lock("default", "a")], "worker@3/1f2e", 60_000_000)
    assert isinstance(held, Held)
    state = await world.app.lock("a").look()
    assert state is not None
    assert (state.holder, state.since, state.age) == ("worker@3/1f2e", None, None)
    with pytest.raises(LockTaken, match="worker@3/1f2e"):
        await world.app.lock("a").acquire()
    assert await locks.drop("a", "worker@3/1f2e", held.token)
    assert await world.app.lock("a").acquire() > held.token > (fence or 0)


async def test_a_hung_holder_is_not_renewed_for_ever(world: World) -> None:
    with pytest.raises(LockLost, match="longer than 60 s"):
        async with world.app.lock("a", lease="10s", most="60s"):
            await asyncio.sleep(3600)
    assert await world.app.lock("a").acquire()


async def test_a_block_that_raises_gives_it_back_and_raises_the_same(world: World) -> None:
    with pytest.raises(ZeroDivisionError):
        async with world.app.lock("a", lease="1h"):
            raise ZeroDivisionError
    assert await world.app.lock("a").look() is None
    assert await world.app.lock("a").acquire()


async def test_losing_it_cancels_the_block_and_raises(world: World) -> None:
    reached = False
    with pytest.raises(LockLost, match="another took it"):
        async with world.app.lock("a", lease="9s") as lock:
            thief = StoreLocks(world.store, "default")
            assert await thief.drop("a", lock.token, lock.fence)
            assert await thief.take("a", "thief", 1_000_000_000)
            await asyncio.sleep(3600)
            reached = True
    assert not reached


async def test_locks_are_a_tenants_own(world: World) -> None:
    async with world.app.lock("a"), world.app.lock("a", tenant="other"):
        pass


async def test_locks_are_not_listed_as_executions(world: World) -> None:
    async with world.app.lock("a"):
        assert (await world.app.find()).heads == []


class Account:
    """A resource that others write to; with a fence it refuses what comes too late."""

    def __init__(self, fenced: bool) -> None:
        self.fenced = fenced
        self.newest = 0
        self.written: list[str] = []

    def write(self, what: str, fence: int) -> None:
        if self.fenced and fence < self.newest:
            raise PermissionError(f"fence {fence} is older than {self.newest}")
        self.newest = max(self.newest, fence)
        self.written.append(what)


@pytest.mark.parametrize(("fenced", "written"), [(False, ["second", "first"]), (True, ["second"])])
async def test_a_holder_that_was_stopped_does_harm_unless_the_resource_compares_fences(
    world: World, fenced: bool, written: list[str]
) -> None:
    account = Account(fenced)
    stopped = StoreLocks(world.store, "default")  # no renewal: as a process that is stopped
    old = await stopped.take("account", "first", 10_000_000)
    assert old is not None
    await world.advance("11s")
    async with world.app.lock("account") as lock:
        account.write("second", lock.fence)
    try:
        account.write("first", old)  # it wakes up and believes that it still has the lock
    except PermissionError:
        assert fenced
    assert account.written == written


@pytest.mark.parametrize("place", ["postgres", "redis"])
@pytest.mark.parametrize(("fenced", "written"), [(False, ["second", "first"]), (True, ["second"])])
def test_on_servers_too_it_is_the_fence_that_keeps_a_stopped_holder_from_doing_harm(
    postgres: str, redis_url: str, place: str, fenced: bool, written: list[str]
) -> None:
    options = {"stream": redis_url, "stream_prefix": new_prefix(), "locks": "stream"} if place == "redis" else {}

    def app() -> Perdure:
        return Perdure(postgres, **options)

    async def main() -> None:
        account = Account(fenced)
        async with app() as here, app() as there:
            stopped = here.lock("account", lease=0.2)
            old = await stopped.acquire()
            assert stopped._holding is not None
            here._keeper.leave(stopped._holding)  # as a process that is stopped
            async with there.lock("account", wait=10) as lock:
                account.write("second", lock.fence)
            try:
                account.write("first", old)  # it wakes up and believes that it still has the lock
            except PermissionError:
                assert fenced
            assert not await stopped.release()

        assert account.written == written

    asyncio.run(main())


async def test_an_action_takes_a_lock(world: World) -> None:
    most = now = 0

    @action
    async def alone(n: int) -> int:
        nonlocal most, now
        async with world.app.lock("shared", wait="1h"):
            now += 1
            most = max(most, now)
            await asyncio.sleep(5)
            now -= 1
        return n

    @workflow
    async def many() -> int:
        return sum(await asyncio.gather(*(alone(n) for n in range(4))))

    assert await world.run(many) == 6
    assert most == 1


def test_whoever_waited_for_a_lock_leaves_nothing_behind() -> None:
    async def body() -> None:
        async with Perdure("memory://") as app:
            for _ in range(3):
                async with app.lock("a"):
                    with pytest.raises(LockTaken, match="waited 0 s"):
                        await app.lock("a").acquire()
            assert app._ends._futures == {}

    asyncio.run(body())


class Granting(MemoryStore):
    """Who gets a lock is told so when that is let."""

    def __init__(self) -> None:
        super().__init__()
        self.granted, self.goes_on = asyncio.Event(), asyncio.Event()

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        answers = await super().hold(keys, me, lease, known)
        if isinstance(answers[0], Held):
            self.granted.set()
            await self.goes_on.wait()
        return answers


@pytest.mark.parametrize("closed", [False, True])
def test_whoever_is_cancelled_while_a_lock_is_being_taken_does_not_keep_it(closed: bool) -> None:
    async def body() -> None:
        store = Granting()
        async with Perdure(store, stream=MemoryStream()) as app:
            lock = app.lock("a", lease=60)
            taking = asyncio.create_task(lock.acquire())
            await store.granted.wait()
            taking.cancel()
            await asyncio.wait([taking])
            assert taking.cancelled() and not lock.held
            store.goes_on.set()
            if not closed:
                await app.lock("a").acquire(wait=20)
                with pytest.raises(LockTaken):  # nor is it taken for the one who has it
                    await lock.acquire()
        async with Perdure(store, stream=MemoryStream()) as app:
            if closed:
                await app.lock("a").acquire()

    asyncio.run(body())
