"""One loop renews all locks that a process holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from perdure import LockLost
from perdure.core.records import Lease
from perdure.errors import StoreUnavailable
from perdure.runtime.managing.keeping import Keeper
from perdure.runtime.managing.locks import Lock
from perdure.testing.world import World


class Shelf:
    """Locks that are always to be had; it notes what is extended, and forgets or refuses when it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.taken = 0
        self.gone: set[str] = set()
        self.broken = False
        self.during: Lock | None = None

    async def take(self, name: str, token: str, lease: int) -> int | None:
        self.taken += 1
        return self.taken

    async def extend(self, holds: Sequence[tuple[str, str, int]], lease: int) -> list[bool]:
        self.calls.append([name for name, _, _ in holds])
        if self.during is not None:
            await self.during.release()
        if self.broken:
            raise StoreUnavailable("it is away")
        return [name not in self.gone for name, _, _ in holds]

    async def drop(self, name: str, token: str, fence: int) -> bool:
        return name not in self.gone

    async def look(self, name: str) -> Lease | None:
        return None

    async def close(self) -> None:
        pass


def lock(shelf: Shelf, keeper: Keeper, name: str, lease: float = 30.0, most: float | None = None) -> Lock:
    return Lock(shelf, keeper, name, "me", lease, 0.0, most)


async def test_locks_that_were_taken_at_different_times_are_soon_renewed_by_one_call(world: World) -> None:
    shelf, keeper = Shelf(), Keeper()
    held = []
    for number in range(100):
        held.append(lock(shelf, keeper, f"l{number}"))
        await held[-1].acquire()
        await world.advance("0.1s")
    shelf.calls.clear()
    await world.advance("60s")
    assert {len(call) for call in shelf.calls} <= {50, 51, 100}
    assert [len(call) for call in shelf.calls[2:]] == [100] * (len(shelf.calls) - 2)
    assert len(shelf.calls) <= 9
    assert len([task for task in asyncio.all_tasks() if task.get_name() == "perdure-locks"]) == 1
    assert all(one.held for one in held)
    for one in held:
        assert await one.release()
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "perdure-locks"]


async def test_each_is_renewed_after_a_third_of_its_own_lease(world: World) -> None:
    shelf, keeper = Shelf(), Keeper()
    async with lock(shelf, keeper, "long", 90):
        await world.advance("1s")
        async with lock(shelf, keeper, "short", 9):
            await world.advance("60.5s")
    assert [call for call in shelf.calls if call == ["long"]] == [["long"]] * 2
    assert len([call for call in shelf.calls if call == ["short"]]) == 20


async def test_one_that_is_lost_or_hangs_leaves_the_others_alone(world: World) -> None:
    shelf, keeper = Shelf(), Keeper()
    kept = lock(shelf, keeper, "kept")
    await kept.acquire()

    async def use(name: str, most: float | None = None) -> None:
        async with lock(shelf, keeper, name, most=most):
            await asyncio.Event().wait()

    lost, hung = asyncio.create_task(use("lost")), asyncio.create_task(use("hung", 25))
    await world.advance("1s")
    shelf.gone.add("lost")
    await world.advance("20s")
    with pytest.raises(LockLost, match="'lost' was lost: its lease ran out"):
        await lost
    assert not hung.done()
    await world.advance("20s")
    with pytest.raises(LockLost, match="'hung' was held for longer than 25 s"):
        await hung
    await world.advance("5m")
    assert kept.held
    assert set(shelf.calls[-1]) == {"kept"}


async def test_a_store_that_is_away_costs_a_lock_only_when_its_lease_is_over(world: World) -> None:
    shelf, keeper = Shelf(), Keeper()
    one, two = lock(shelf, keeper, "one"), lock(shelf, keeper, "two")
    await one.acquire()
    await world.advance("1s")
    await two.acquire()
    shelf.broken = True
    await world.advance("25s")
    assert one.held and two.held
    shelf.broken = False
    await world.advance("20s")
    assert one.held and two.held
    assert await two.release()

    async def use() -> None:
        async with lock(shelf, keeper, "three"):
            await asyncio.Event().wait()

    using = asyncio.create_task(use())
    await world.advance("1s")
    shelf.broken = True
    await world.advance("60s")
    assert not one.held
    with pytest.raises(LockLost, match="'three' was lost: it could not be renewed in time .it is away."):
        await using


async def test_what_is_given_back_while_it_is_renewed_is_not_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    shelf, keeper = Shelf(), Keeper()
    one, two = lock(shelf, keeper, "one"), lock(shelf, keeper, "two")
    await one.acquire()
    await two.acquire()
    shelf.gone.add("one")
    shelf.during = one
    await world.advance("15s")
    assert shelf.calls == [["one", "two"]]
    shelf.during = None
    await world.advance("60s")
    assert two.held
    assert "was lost" not in caplog.text


async def test_what_is_given_back_just_before_it_is_renewed_is_not_renewed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    shelf, other, keeper = Shelf(), Shelf(), Keeper()
    one, two = lock(shelf, keeper, "one"), lock(other, keeper, "two")
    await one.acquire()
    await two.acquire()
    other.gone.add("two")
    shelf.during = two
    await world.advance("15s")
    assert (shelf.calls, other.calls) == ([["one"]], [])
    assert "was lost" not in caplog.text
