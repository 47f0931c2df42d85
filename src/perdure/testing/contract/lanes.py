"""Executions of one lane are held one at a time, in the order of their starts."""

from __future__ import annotations

from perdure.core.records import Held, Queued
from perdure.ports import Store
from perdure.testing.contract.stage import (
    GRACE,
    LEASE,
    ONE,
    THREE,
    TWO,
    Hand,
    StoreTests,
    accepted,
    begin,
    begun,
    claimed,
    head_of,
    letter,
    scenario,
    take,
)


class Lanes(StoreTests):
    @scenario
    async def test_one_execution_of_a_lane_is_held_at_a_time(self, store: Store) -> None:
        await store.start([begin(ONE, lane="a"), begin(TWO, lane="a")], GRACE)
        first, second = await store.hold([ONE, TWO], "w1", LEASE)
        assert isinstance(first, Held)
        assert first.lane
        assert second == Queued(TWO)

    @scenario
    async def test_lanes_and_tenants_do_not_wait_for_each_other(self, store: Store) -> None:
        await store.start([begin(ONE, lane="a"), begin(TWO, lane="b"), begin("zeta/one", lane="a")], GRACE)
        answers = await store.hold([ONE, TWO, "zeta/one"], "w1", LEASE)
        assert all(isinstance(answer, Held) for answer in answers)

    @scenario
    async def test_a_queued_execution_is_not_due(self, store: Store) -> None:
        await store.start([begin(ONE, lane="a"), begin(TWO, lane="a")], GRACE)
        await store.hold([ONE, TWO], "w1", LEASE)
        self.advance(5)
        assert await claimed(store) == []

    @scenario
    async def test_mail_does_not_keep_waking_a_queued_execution(self, store: Store) -> None:
        await store.start([begin(ONE, lane="a"), begin(TWO, lane="a")], GRACE)
        await store.hold([ONE], "w1", LEASE)
        await accepted(store, letter(key=TWO))
        assert await store.hold([TWO], "w1", LEASE) == [Queued(TWO)]
        self.advance(5)
        assert await claimed(store) == []

    @scenario
    async def test_the_end_of_one_makes_the_next_due_with_its_mail(self, store: Store) -> None:
        await store.start([begin(key, lane="a") for key in (ONE, TWO, THREE)], GRACE)
        [held, *_] = await store.hold([ONE, TWO, THREE], "w1", LEASE)
        assert isinstance(held, Held)
        await accepted(store, letter(key=TWO))
        await store.hold([TWO], "w1", LEASE)
        await Hand(store, held, 1).end()
        assert await claimed(store) == [TWO]
        [then, still] = await store.hold([TWO, THREE], "w1", LEASE)
        assert isinstance(then, Held)
        assert [mail.id for mail in then.mail] == [letter().id]
        assert still == Queued(THREE)

    @scenario
    async def test_a_parked_execution_keeps_its_lane(self, store: Store) -> None:
        await store.start([begin(ONE, lane="a"), begin(TWO, lane="a")], GRACE)
        await (await take(store)).park()
        assert await store.hold([TWO], "w1", LEASE) == [Queued(TWO)]

    @scenario
    async def test_the_head_names_the_token_of_a_hold(self, store: Store) -> None:
        hand = await begun(store)
        assert (await head_of(store)).token == hand.token
        await hand.end()
        assert (await head_of(store)).token == 0

    @scenario
    async def test_the_head_names_the_lane_of_an_open_execution(self, store: Store) -> None:
        await store.start([begin(lane="a")], GRACE)
        assert (await head_of(store)).lane == "a"
        await (await take(store)).end()
        assert (await head_of(store)).lane is None
