"""The contract of the port Locks: one holder at a time, leases that end, fences that rise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.ports import Locks
from perdure.testing.contract.stage import LEASE, SECOND, scenario


class LocksContract:
    """Every sentence of the port Locks; a subclass says how to make them. Leases are short: time is the server's."""

    async def make_locks(self) -> Locks:
        raise NotImplementedError

    async def play(self, body: Callable[[Any, Any], Awaitable[None]]) -> None:
        await body(self, await self.make_locks())

    @scenario
    async def test_a_lock_has_one_holder(self, locks: Locks) -> None:
        assert await locks.take("stock", "me", LEASE) is not None
        assert await locks.take("stock", "you", LEASE) is None
        assert await locks.take("other", "you", LEASE) is not None

    @scenario
    async def test_of_many_who_want_it_at_once_one_gets_it(self, locks: Locks) -> None:
        await locks.take("stock", "first", 1)  # so that it exists
        await asyncio.sleep(0.01)
        fences = await asyncio.gather(*(locks.take("stock", f"holder-{number}", LEASE) for number in range(20)))
        assert len([fence for fence in fences if fence is not None]) == 1

    @scenario
    async def test_a_lock_that_was_dropped_is_free(self, locks: Locks) -> None:
        fence = await locks.take("stock", "me", LEASE)
        assert fence is not None
        assert await locks.drop("stock", "me", fence)
        assert not await locks.drop("stock", "me", fence)
        assert await locks.look("stock") is None
        assert await locks.take("stock", "you", LEASE) is not None

    @scenario
    async def test_an_older_fence_drops_and_extends_nothing(self, locks: Locks) -> None:
        old = await locks.take("stock", "me", LEASE)
        assert old is not None
        await locks.drop("stock", "me", old)
        new = await locks.take("stock", "you", LEASE)
        assert new is not None
        assert not await locks.drop("stock", "me", old)
        assert await locks.extend([("stock", "me", old)], LEASE) == [False]
        found = await locks.look("stock")
        assert found is not None
        assert (found.token, found.fence) == ("you", new)

    @scenario
    async def test_a_lock_ends_with_its_time_unless_it_is_extended(self, locks: Locks) -> None:
        kept, left = await locks.take("kept", "me", 50_000), await locks.take("left", "me", 50_000)
        assert kept is not None
        assert left is not None
        assert await locks.extend([("kept", "me", kept)], LEASE) == [True]
        await asyncio.sleep(0.1)
        assert await locks.take("kept", "you", LEASE) is None
        assert await locks.look("left") is None
        assert await locks.take("left", "you", LEASE) is not None
        assert await locks.extend([("left", "me", left)], LEASE) == [False]

    @scenario
    async def test_many_are_extended_at_once_and_each_is_answered_for_itself(self, locks: Locks) -> None:
        held = [(name, "me", await locks.take(name, "me", LEASE)) for name in ("a", "b", "c")]
        holds = [(name, token, fence) for name, token, fence in held if fence is not None]
        assert len(holds) == 3
        assert await locks.drop(*holds[1])
        assert await locks.extend([*holds, ("none", "me", 1)], LEASE) == [True, False, True, False]
        assert await locks.extend([], LEASE) == []

    @scenario
    async def test_a_lock_tells_since_when_it_is_held_however_often_it_is_extended(self, locks: Locks) -> None:
        fence = await locks.take("stock", "me", LEASE)
        assert fence is not None
        first = await locks.look("stock")
        assert first is not None
        assert first.since is not None
        assert first.now - SECOND < first.since <= first.now < first.until
        await asyncio.sleep(0.05)
        assert await locks.extend([("stock", "me", fence)], 2 * LEASE) == [True]
        again = await locks.look("stock")
        assert again is not None
        assert again.since == first.since
        assert again.now >= first.now + 50_000
        assert again.until > first.until

    @scenario
    async def test_each_holder_has_it_since_it_took_it(self, locks: Locks) -> None:
        fence = await locks.take("stock", "me", LEASE)
        mine = await locks.look("stock")
        assert fence is not None
        assert await locks.drop("stock", "me", fence)
        await asyncio.sleep(0.05)
        assert await locks.take("stock", "you", LEASE) is not None
        yours = await locks.look("stock")
        assert mine is not None
        assert yours is not None
        assert mine.since is not None
        assert yours.since is not None
        assert yours.since >= mine.since + 50_000

    @scenario
    async def test_who_asks_twice_has_it_since_the_first_time(self, locks: Locks) -> None:
        assert await locks.take("stock", "me", LEASE) is not None
        first = await locks.look("stock")
        await asyncio.sleep(0.01)
        assert await locks.take("stock", "me", LEASE) is not None
        again = await locks.look("stock")
        assert first is not None
        assert again is not None
        assert (again.token, again.since) == ("me", first.since)

    @scenario
    async def test_the_fence_rises_with_every_holder(self, locks: Locks) -> None:
        fences: list[int] = []
        for number in range(10):
            fence = await locks.take("stock", f"holder-{number}", LEASE)
            assert fence is not None
            fences.append(fence)
            await locks.drop("stock", f"holder-{number}", fence)
        assert fences == sorted(set(fences))

    @scenario
    async def test_who_was_stopped_past_its_lease_does_harm_unless_the_resource_compares_fences(
        self, locks: Locks
    ) -> None:
        trusting: list[str] = []
        careful: list[str] = []
        newest = 0

        def write(what: str, fence: int) -> None:
            nonlocal newest
            trusting.append(what)
            if fence >= newest:
                newest = fence
                careful.append(what)

        old = await locks.take("stock", "stopped", 50_000)
        await asyncio.sleep(0.1)
        new = await locks.take("stock", "next", LEASE)
        assert old is not None
        assert new is not None
        write("next", new)
        write("stopped", old)  # it wakes up, and believes that it still has the lock
        assert trusting == ["next", "stopped"]
        assert careful == ["next"]
