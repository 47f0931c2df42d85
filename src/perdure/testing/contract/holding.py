"""Who has an execution: `hold`, `renew` and `release`, barriers against former holders, lapses, what is read anew."""

from __future__ import annotations

import asyncio

from msgspec import Raw

from perdure.core import events
from perdure.core.events import ActionSettled, Marked, Restarted, TakenOver
from perdure.core.records import Busy, Gone, Held, Park
from perdure.ports import Store, Twinned
from perdure.testing.contract.stage import (
    GRACE,
    LEASE,
    ONE,
    SECOND,
    THREE,
    TWO,
    StoreTests,
    accepted,
    begin,
    begun,
    claimed,
    head_of,
    ids,
    kinds,
    letter,
    log,
    marked,
    scenario,
    settled,
    take,
)


class Holding(StoreTests):
    @scenario
    async def test_a_first_hold_reads_log_and_mail(self, store: Store) -> None:
        await store.start([begin(parent="acme/mother", parent_ref=3)], GRACE)
        await accepted(store, letter("b"), letter("a"))
        held = (await take(store)).held
        assert kinds(held.rows) == [events.Started]
        assert ids(held.mail) == ["b", "a"]
        assert (held.definition, held.queue, held.status, held.lapses) == ("order@1", "default", "open", 0)
        assert (held.parent, held.parent_ref) == ("acme/mother", 3)

    @scenario
    async def test_every_hold_raises_the_token(self, store: Store) -> None:
        hand = await begun(store)
        await hand.park()
        assert (await take(store)).token > hand.token

    @scenario
    async def test_what_another_holds_is_busy(self, store: Store) -> None:
        await begun(store)
        assert await store.hold([ONE], "w2", LEASE) == [Busy(ONE, "w1")]

    @scenario
    async def test_a_busy_answer_changes_nothing(self, store: Store) -> None:
        hand = await begun(store)
        await store.hold([ONE], "w2", LEASE)
        assert await hand.park(settled()) == "ok"

    @scenario
    async def test_what_never_was_is_gone(self, store: Store) -> None:
        assert await store.hold([ONE], "w1", LEASE) == [Gone(ONE)]

    @scenario
    async def test_what_has_ended_is_gone(self, store: Store) -> None:
        await (await begun(store)).end()
        assert await store.hold([ONE], "w1", LEASE) == [Gone(ONE)]

    @scenario
    async def test_answers_come_in_the_order_of_the_keys(self, store: Store) -> None:
        await begun(store)
        await store.start([begin(TWO)], GRACE)
        answers = await store.hold([THREE, ONE, TWO], "w2", LEASE)
        assert [type(answer) for answer in answers] == [Gone, Busy, Held]

    @scenario
    async def test_a_key_named_twice_is_held_once(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        one, two = await store.hold([ONE, ONE], "w1", LEASE)
        assert one == two
        assert kinds(await log(store)) == [events.Started]

    @scenario
    async def test_a_lease_that_is_over_can_be_taken(self, store: Store) -> None:
        hand = await begun(store)
        self.advance(31)
        assert (await take(store, me="w2")).token > hand.token

    @scenario
    async def test_after_a_park_there_is_no_barrier(self, store: Store) -> None:
        await (await begun(store)).park(settled())
        assert TakenOver not in kinds((await take(store, me="w2")).held.rows)

    @scenario
    async def test_after_a_release_there_is_no_barrier(self, store: Store) -> None:
        hand = await begun(store)
        await store.release([(ONE, hand.token)])
        assert TakenOver not in kinds((await take(store, me="w2")).held.rows)

    @scenario
    async def test_a_take_over_writes_a_barrier(self, store: Store) -> None:
        await (await begun(store)).commit(settled())
        self.advance(31)
        held = (await take(store, me="w2")).held
        barrier = held.rows[-1]
        assert kinds(held.rows) == [events.Started, ActionSettled, TakenOver]
        assert (barrier.version, barrier.fence) == (3, held.token)
        assert events.read(barrier) == TakenOver("w2", lapses=1)

    @scenario
    async def test_a_lapse_found_by_a_claim_ends_in_a_barrier_too(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        await claimed(store)
        held = (await take(store, me="w2")).held
        assert (kinds(held.rows), held.lapses) == ([events.Started, TakenOver], 1)

    @scenario
    async def test_a_zombie_is_stale_after_a_take_over(self, store: Store) -> None:
        zombie = await begun(store)
        self.advance(31)
        await take(store, me="w2")
        assert await zombie.commit(settled()) == "stale"
        assert kinds(await log(store)) == [events.Started, TakenOver]

    @scenario
    async def test_a_zombie_that_writes_before_the_barrier_is_read(self, store: Store) -> None:
        zombie = await begun(store)
        self.advance(31)
        await claimed(store)
        await zombie.commit(settled())
        assert kinds((await take(store, me="w2")).held.rows) == [events.Started, ActionSettled, TakenOver]

    @scenario
    async def test_holding_again_what_is_mine_writes_a_barrier_and_counts_no_lapse(self, store: Store) -> None:
        first = await begun(store)
        again = await take(store)
        assert (kinds(again.held.rows), again.held.lapses) == ([events.Started, TakenOver], 0)
        assert await first.commit(settled()) == "stale"

    @scenario
    async def test_lapses_are_counted(self, store: Store) -> None:
        await begun(store)
        lapses = []
        for worker in ("w2", "w3", "w4"):
            self.advance(31)
            hand = await take(store, me=worker)
            await hand.commit(marked())
            lapses.append(hand.held.lapses)
        assert lapses == [1, 2, 3]

    @scenario
    async def test_progress_takes_the_lapses_back_to_one(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        await take(store, me="w2")
        self.advance(31)
        await (await take(store, me="w3")).commit(settled(), marked())
        self.advance(31)
        assert (await take(store, me="w4")).held.lapses == 1

    @scenario
    async def test_a_park_takes_the_lapses_back_to_none(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        await (await take(store, me="w2")).park()
        assert (await take(store, me="w3")).held.lapses == 0

    @scenario
    async def test_a_release_leaves_the_lapses(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        hand = await take(store, me="w2")
        await store.release([(ONE, hand.token)])
        assert (await take(store, me="w3")).held.lapses == 1

    @scenario
    async def test_rows_begin_at_the_newest_checkpoint(self, store: Store) -> None:
        hand = await begun(store)
        await hand.commit(settled(1), Restarted(Raw(b"1"), ref=2), marked(2), settle=Park("open", None, base=3))
        assert kinds((await take(store)).held.rows) == [Restarted, Marked]
        assert len(await log(store)) == 4

    @scenario
    async def test_rows_begin_at_a_checkpoint_whose_holder_died(self, store: Store) -> None:
        await (await begun(store)).commit(settled(1), Restarted(Raw(b"1"), ref=2))
        self.advance(31)
        assert kinds((await take(store, me="w2")).held.rows) == [Restarted, TakenOver]

    @scenario
    async def test_what_is_known_is_not_read_again(self, store: Store) -> None:
        hand = await begun(store)
        await hand.park(settled())
        again = await take(store, known={ONE: (2, hand.token)})
        assert again.held.rows == []

    @scenario
    async def test_only_the_tail_behind_what_is_known_is_read(self, store: Store) -> None:
        hand = await begun(store)
        await hand.park(settled())
        again = await take(store, known={ONE: (1, hand.token)})
        assert kinds(again.held.rows) == [ActionSettled]

    @scenario
    async def test_what_is_known_counts_for_nothing_if_another_held_it_since(self, store: Store) -> None:
        hand = await begun(store)
        await hand.park()
        await (await take(store, me="w2")).park(settled())
        again = await take(store, known={ONE: (1, hand.token)})
        assert kinds(again.held.rows) == [events.Started, ActionSettled]

    @scenario
    async def test_mail_that_is_in_the_log_is_not_read(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter("m1"), letter("m2"))
        assert await hand.commit(letter("m1"), done=()) == "ok"
        assert ids((await store.mail([ONE]))[ONE]) == ["m2"]
        self.advance(31)
        assert ids((await take(store, me="w2")).held.mail) == ["m2"]

    @scenario
    async def test_an_empty_mailbox_is_an_empty_list(self, store: Store) -> None:
        await begun(store)
        assert await store.mail([ONE]) == {ONE: []}

    @scenario
    async def test_a_renewal_extends_the_lease(self, store: Store) -> None:
        hand = await begun(store)
        self.advance(20)
        assert await store.renew([(ONE, hand.token)], LEASE) == {ONE}
        self.advance(20)
        assert await store.hold([ONE], "w2", LEASE) == [Busy(ONE, "w1")]

    @scenario
    async def test_a_renewal_leaves_out_what_is_lost(self, store: Store) -> None:
        lost, kept = await begun(store), await begun(store, TWO)
        self.advance(31)
        taken = await take(store, me="w2")
        holds = [(ONE, lost.token), (TWO, kept.token), (THREE, 1)]
        assert await store.renew(holds, LEASE) == {TWO}
        assert await store.renew([(ONE, taken.token)], LEASE) == {ONE}

    @scenario
    async def test_a_renewal_that_comes_late_does_not_move_a_parked_timer(self, store: Store) -> None:
        hand = await begun(store)
        due = await store.now() + SECOND
        await hand.park(due=due)
        assert await store.renew([(ONE, hand.token)], LEASE) == set()
        assert (await head_of(store)).due == due

    @scenario
    async def test_a_twin_renews_from_another_thread(self, store: Store) -> None:
        if not isinstance(store, Twinned):
            return
        hand, twin = await begun(store), store.twin()

        async def elsewhere() -> set[str]:
            await twin.open()
            try:
                return await twin.renew([(ONE, hand.token), (TWO, 1)], LEASE)
            finally:
                await twin.close()

        self.advance(20)
        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == {ONE}
        self.advance(20)
        assert await store.hold([ONE], "w2", LEASE) == [Busy(ONE, "w1")]

    @scenario
    async def test_a_release_is_due_at_once(self, store: Store) -> None:
        hand = await begun(store)
        await store.release([(ONE, hand.token)])
        assert await claimed(store) == [ONE]

    @scenario
    async def test_a_release_with_an_old_token_changes_nothing(self, store: Store) -> None:
        old = await begun(store)
        self.advance(31)
        await take(store, me="w2")
        await store.release([(ONE, old.token)])
        assert (await head_of(store)).holder == "w2"
