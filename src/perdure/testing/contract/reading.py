"""What anybody may look at: `read` and `head`."""

from __future__ import annotations

import asyncio

from perdure.core.records import Commit, Park, Row
from perdure.ports import Store
from perdure.testing.contract.stage import (
    GRACE,
    ONE,
    StoreTests,
    accepted,
    begin,
    begun,
    head_of,
    letter,
    scenario,
    settled,
    take,
)


class Reading(StoreTests):
    @scenario
    async def test_a_log_is_read_in_pages(self, store: Store) -> None:
        await (await begun(store)).commit(*(settled(ref) for ref in range(9)))
        versions, after = [], 0
        while page := await store.read(ONE, after=after, limit=4):
            versions.append([row.version for row in page])
            after = page[-1].version
        assert versions == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]

    @scenario
    async def test_a_log_is_read_up_to_a_version(self, store: Store) -> None:
        await (await begun(store)).commit(*(settled(ref) for ref in range(9)))
        assert [row.version for row in await store.read(ONE, after=2, until=5)] == [3, 4, 5]

    @scenario
    async def test_a_log_that_never_was_is_empty(self, store: Store) -> None:
        assert await store.read(ONE) == []

    @scenario
    async def test_rows_come_back_as_they_were_written(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        data = '{"text":"ü\\u0000\U0001f600","n":1e3,"spaces" : [ ] }'.encode()
        row = Row(2, 1021, data, at=5, fence=hand.token, message_id="m1")
        assert await store.commit([Commit(ONE, hand.token, [row], done=["m1"])], GRACE) == ["ok"]
        assert await store.read(ONE, after=1) == [row]

    @scenario
    async def test_a_head_that_never_was_is_none(self, store: Store) -> None:
        assert await store.head(ONE) is None

    @scenario
    async def test_a_head_is_of_one_moment(self, store: Store) -> None:
        """Who writes what depends on the state goes by its version."""
        await store.start([begin()], GRACE)
        writing = asyncio.create_task(_write_versions(store, 60))
        while not writing.done():
            head = await head_of(store)
            assert (head.state or b"1") == b"%d" % head.version
            await asyncio.sleep(0)
        await writing

    @scenario
    async def test_an_open_execution_runs_while_it_is_held(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        assert (await head_of(store)).shown == "waiting"
        await take(store)
        head = await head_of(store)
        assert (head.shown, head.holder) == ("running", "w1")

    @scenario
    async def test_a_holder_whose_lease_is_over_is_not_shown(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        head = await head_of(store)
        assert (head.shown, head.holder) == ("waiting", None)

    @scenario
    async def test_a_head_counts_the_mail(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        await accepted(store, letter("a"), letter("b"))
        assert (await head_of(store)).mail == 2


async def _write_versions(store: Store, count: int) -> None:
    """The state is the version."""
    for ref in range(count):
        hand = await take(store)
        assert await hand.commit(settled(ref), settle=Park("open", None, b"%d" % (hand.version + 1))) == "ok"
        await asyncio.sleep(0)
