"""What is due, for whom and when: `claim`, `next_due` and `backlog`; tenants in turn, hints that are repeated."""

from __future__ import annotations

from perdure.core.records import Backlog, Due, Park
from perdure.ports import Store
from perdure.testing.contract.stage import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    SECOND,
    THREE,
    TWO,
    StoreTests,
    accepted,
    begin,
    begun,
    claimed,
    head_of,
    letter,
    marked,
    scenario,
    take,
)


class Waking(StoreTests):
    @scenario
    async def test_a_claim_finds_only_what_is_due(self, store: Store) -> None:
        now = await store.now()
        for key, due in ((ONE, now + SECOND), (TWO, now + 9 * SECOND), (THREE, None)):
            await (await begun(store, key)).park(due=due)
        self.advance(2)
        assert await store.claim(QUEUES, DEFINITIONS, 10, GRACE) == [Due(ONE, "default")]

    @scenario
    async def test_what_waits_for_nothing_is_never_claimed(self, store: Store) -> None:
        await (await begun(store)).park()
        self.advance(10**7)
        assert await claimed(store) == []
        assert await store.next_due(QUEUES, DEFINITIONS) is None

    @scenario
    async def test_a_claim_finds_the_earliest_first(self, store: Store) -> None:
        now = await store.now()
        for key, seconds in ((ONE, 3), (TWO, 1), (THREE, 2)):
            await (await begun(store, key)).park(due=now + seconds * SECOND)
        self.advance(5)
        assert await claimed(store, limit=1) == [TWO]

    @scenario
    async def test_claims_share_out_what_is_due(self, store: Store) -> None:
        keys = [f"acme/{number}" for number in range(10)]
        await store.start([begin(key) for key in keys], GRACE)
        self.advance(3)
        found = [await claimed(store, limit=4) for _ in range(4)]
        assert [len(part) for part in found] == [4, 4, 2, 0]
        assert sorted(key for part in found for key in part) == keys

    @scenario
    async def test_the_backlog_counts_what_is_due_per_queue(self, store: Store) -> None:
        now = await store.now()
        await store.start([begin(ONE), begin(TWO, queue="slow"), begin(THREE, queue="slow")], GRACE)
        await store.start([begin("acme/lock/a", queue="")], GRACE)  # on no queue: nobody is to take it
        assert await store.backlog() == []
        self.advance(3)
        due = now + GRACE
        assert await store.backlog() == [Backlog("default", 1, due), Backlog("slow", 2, due)]

    @scenario
    async def test_what_is_held_is_no_backlog(self, store: Store) -> None:
        await begun(store)
        self.advance(3)
        assert await store.backlog() == []

    @scenario
    async def test_what_has_begun_is_counted_and_what_has_not_is_fresh(self, store: Store) -> None:
        keys = [f"acme/{number}" for number in range(4)]
        await store.start([begin(key) for key in keys], GRACE)
        assert (await store.begun("acme", 10), await store.fresh([*keys, "acme/none"])) == (0, set(keys))
        held = await take(store, keys[0])
        assert await store.begun("acme", 10) == 1
        await held.park(marked())
        second = await take(store, keys[1])
        await second.commit(settle=Park("open", None, waits=b"{}"))  # it waits, and its log has nothing to say
        assert (await store.begun("acme", 10), await store.fresh(keys)) == (2, {keys[2], keys[3]})
        assert (await store.begun("acme", 1), await store.begun("mill", 10)) == (1, 0)
        third = await take(store, keys[2])
        await store.release([(third.key, third.token)])
        assert await store.fresh(keys) == {keys[2], keys[3]}
        await (await take(store, keys[0])).end()
        assert await store.begun("acme", 10) == 1

    @scenario
    async def test_children_and_inner_executions_and_those_at_rest_are_neither_begun_nor_fresh(
        self, store: Store
    ) -> None:
        await store.start([begin(ONE, parent=TWO, parent_ref=1), begin(THREE, workflow="action:charge")], GRACE)
        await (await begun(store, TWO)).commit(settle=Park("stuck", None, waits=b"{}"))
        assert await store.fresh([ONE, TWO, THREE]) == set()
        for key in (ONE, THREE):
            await take(store, key)
        assert await store.begun("acme", 10) == 0

    @scenario
    async def test_a_claim_serves_the_tenants_in_turn(self, store: Store) -> None:
        flood = [begin(f"flood/{number:02}") for number in range(10)]
        await store.start(flood, 0)
        self.advance(1)
        await store.start([begin("small/one"), begin("third/one"), begin("small/two")], 0)
        self.advance(1)
        found = [key.partition("/")[0] for key in await claimed(store, limit=4)]
        assert sorted(found[:3]) == ["flood", "small", "third"]

    @scenario
    async def test_a_claim_of_mail_serves_the_tenants_in_turn(self, store: Store) -> None:
        keys = [*(f"flood/{number}" for number in range(6)), "small/one"]
        await store.start([begin(key) for key in keys], 100 * GRACE)
        await store.send([letter(key=key) for key in keys], 0)
        self.advance(1)
        assert "small/one" in await claimed(store, limit=2)

    @scenario
    async def test_who_comes_to_a_flood_is_claimed_before_its_end(self, store: Store) -> None:
        for tenant, many in (("flood", 50), ("small", 1), ("flood", 50), ("third", 1)):
            number = (await store.now()) % 10**9
            await store.start([begin(f"{tenant}/{number + n}") for n in range(many)], 0)
            self.advance(1)
        found = await claimed(store, limit=3)
        assert sorted(key.partition("/")[0] for key in found) == ["flood", "small", "third"]
        assert all(key.startswith("flood/") for key in await claimed(store, limit=3))

    @scenario
    async def test_timers_of_the_same_moment_serve_the_tenants_in_turn(self, store: Store) -> None:
        due = await store.now() + SECOND
        for key in [*(f"flood/a{n:02}" for n in range(15)), "small/one", *(f"flood/b{n:02}" for n in range(15))]:
            await (await begun(store, key)).park(due=due)
        self.advance(2)
        assert "small/one" in await claimed(store, limit=2)

    @scenario
    async def test_who_has_no_turn_in_one_claim_has_it_in_one_of_the_next(self, store: Store) -> None:
        await store.start([begin(f"flood/{number:02}") for number in range(60)], 0)
        self.advance(1)
        await store.start([begin("small/one")], 0)
        self.advance(1)
        # With two tenants one of them has every second turn, or each with an even chance.
        assert "small/one" in [key for _ in range(50) for key in await claimed(store, limit=1)]

    @scenario
    async def test_in_a_flood_no_tenant_is_visited_for_what_is_not_due(self, store: Store) -> None:
        await store.start([begin(f"flood/{number:02}") for number in range(20)], 0)
        later = [f"later{number}/one" for number in range(5)]
        await store.start([begin(key) for key in later], 100 * GRACE)
        self.advance(1)
        await take(store, "flood/19", me="w1")
        found = [key for _ in range(12) for key in await claimed(store, limit=2, grace=1000 * SECOND)]
        assert sorted(found) == [f"flood/{number:02}" for number in range(19)]

    @scenario
    async def test_mail_that_comes_to_a_flood_is_claimed_before_its_end(self, store: Store) -> None:
        keys = [f"flood/{number:02}" for number in range(60)]
        await store.start([begin(key) for key in [*keys, "small/one"]], 100 * GRACE)
        for some in (keys[:30], ["small/one"], keys[30:]):
            await store.send([letter(key=key) for key in some], 0)
            self.advance(1)
        assert "small/one" in await claimed(store, limit=2)

    @scenario
    async def test_what_a_claim_leaves_out_is_due_for_the_next(self, store: Store) -> None:
        keys = [f"{tenant}/{number}" for tenant in ("a", "b") for number in range(6)]
        await store.start([begin(key) for key in keys], 0)
        self.advance(1)
        found = [key for _ in range(6) for key in await claimed(store, limit=2)]
        assert sorted(found) == keys
        assert [key.partition("/")[0] for key in found[:4]].count("a") == 2

    @scenario
    async def test_the_limit_of_a_claim_counts_mail_too(self, store: Store) -> None:
        quiet = [f"acme/{number}" for number in range(3)]
        for key in quiet:
            await (await begun(store, key)).park()
        await store.start([begin(key) for key in (ONE, TWO, THREE)], GRACE)
        await accepted(store, *(letter(key=key) for key in quiet))
        self.advance(3)
        found = [await claimed(store, limit=4) for _ in range(2)]
        assert [len(part) for part in found] == [4, 2]
        assert sorted(key for part in found for key in part) == sorted([*quiet, ONE, TWO, THREE])

    @scenario
    async def test_a_claim_keeps_to_its_queues(self, store: Store) -> None:
        await store.start([begin(ONE, queue="slow"), begin(TWO)], GRACE)
        self.advance(3)
        assert await store.claim(["slow", "other"], DEFINITIONS, 10, GRACE) == [Due(ONE, "slow")]

    @scenario
    async def test_a_claim_keeps_to_its_definitions(self, store: Store) -> None:
        await store.start([begin(ONE, definition="order@2"), begin(TWO)], GRACE)
        self.advance(3)
        assert [due.key for due in await store.claim(QUEUES, ["order@2"], 10, GRACE)] == [ONE]
        assert [due.key for due in await store.claim(QUEUES, ["order@1", "order@3"], 10, GRACE)] == [TWO]

    @scenario
    async def test_a_claim_of_mail_keeps_to_its_definitions(self, store: Store) -> None:
        await (await begun(store, definition="order@2")).park()
        await accepted(store, letter())
        self.advance(3)
        assert await claimed(store) == []
        assert await store.next_due(QUEUES, DEFINITIONS) is None
        assert await store.claim(QUEUES, ["order@2"], 10, GRACE) == [Due(ONE, "default")]

    @scenario
    async def test_what_was_published_is_served_under_one_word(self, store: Store) -> None:
        await store.start([begin(ONE, definition="published:order@2"), begin(TWO)], GRACE)
        assert await store.next_due(QUEUES, ["published:"]) == (await head_of(store, ONE)).due
        self.advance(3)
        assert await store.claim(QUEUES, ["published:order@2"], 10, GRACE) == []
        assert await store.claim(QUEUES, ["published:"], 10, GRACE) == [Due(ONE, "default")]

    @scenario
    async def test_a_hold_and_a_head_name_what_was_published_in_full(self, store: Store) -> None:
        hand = await begun(store, definition="published:order@2")
        assert hand.held.definition == "published:order@2"
        assert (await head_of(store)).definition == "published:order@2"
        await hand.park()
        assert (await take(store)).held.definition == "published:order@2"

    @scenario
    async def test_mail_for_what_was_published_is_claimed_under_one_word(self, store: Store) -> None:
        await (await begun(store, definition="published:order@2")).park()
        await accepted(store, letter())
        self.advance(3)
        assert await store.claim(QUEUES, ["published:"], 10, GRACE) == [Due(ONE, "default")]

    @scenario
    async def test_a_published_child_is_served_under_one_word(self, store: Store) -> None:
        hand = await begun(store)
        await hand.park(children=[begin(TWO, definition="published:parcel@1")])
        self.advance(3)
        assert await store.claim(QUEUES, ["published:"], 10, GRACE) == [Due(TWO, "default")]
        assert (await take(store, TWO)).held.definition == "published:parcel@1"

    @scenario
    async def test_a_claim_frees_a_lapsed_hold(self, store: Store) -> None:
        hand = await begun(store)
        self.advance(31)
        assert await store.claim(QUEUES, DEFINITIONS, 10, GRACE) == [Due(ONE, "default", None)]
        head = await head_of(store)
        assert (head.holder, head.lapses) == (None, 1)
        assert await store.renew([(ONE, hand.token)], LEASE) == set()

    @scenario
    async def test_a_lapse_is_counted_once(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        await claimed(store)
        self.advance(1000)
        await claimed(store)
        assert (await take(store, me="w2")).held.lapses == 1

    @scenario
    async def test_a_live_hold_is_not_claimed(self, store: Store) -> None:
        await begun(store)
        self.advance(29)
        assert await claimed(store) == []

    @scenario
    async def test_hints_double_up_to_32_times(self, store: Store) -> None:
        await store.start([begin()], 0)
        waits = []
        for _ in range(8):
            self.advance(0.001)
            before = await store.now()
            assert await claimed(store, grace=GRACE) == [ONE]
            due = (await head_of(store)).due
            assert due is not None
            waits.append(round((due - before) / GRACE))
            self.advance((due - before) / SECOND)
        assert waits == [1, 2, 4, 8, 16, 32, 32, 32]

    @scenario
    async def test_a_hold_answers_the_hints(self, store: Store) -> None:
        await store.start([begin()], 0)
        for _ in range(3):
            self.advance(100)
            assert await claimed(store) == [ONE]
        hand = await take(store)
        await hand.park(due=await store.now())
        self.advance(1)
        await claimed(store)
        self.advance(2)
        assert await claimed(store) == [ONE]

    @scenario
    async def test_mail_of_a_held_execution_names_the_holder(self, store: Store) -> None:
        await begun(store)
        await accepted(store, letter())
        self.advance(3)
        assert await store.claim(QUEUES, DEFINITIONS, 10, GRACE) == [Due(ONE, "default", "w1")]

    @scenario
    async def test_mail_is_hinted_again_while_nobody_folds_it(self, store: Store) -> None:
        await (await begun(store)).park()
        await accepted(store, letter())
        for _ in range(3):
            self.advance(100)
            assert await claimed(store) == [ONE]
            assert await claimed(store) == []

    @scenario
    async def test_the_next_due_is_the_earliest_of_all(self, store: Store) -> None:
        now = await store.now()
        await (await begun(store, ONE)).park(due=now + 60 * SECOND)
        await (await begun(store, TWO)).park(due=now + 50 * SECOND)
        assert await store.next_due(QUEUES, DEFINITIONS) == now + 50 * SECOND

    @scenario
    async def test_the_next_due_counts_leases(self, store: Store) -> None:
        before = await store.now()
        await begun(store)
        due = await store.next_due(QUEUES, DEFINITIONS)
        assert due is not None
        assert before + LEASE <= due <= await store.now() + LEASE

    @scenario
    async def test_the_next_due_counts_mail(self, store: Store) -> None:
        await (await begun(store)).park()
        before = await store.now()
        await accepted(store, letter())
        due = await store.next_due(QUEUES, DEFINITIONS)
        assert due is not None
        assert before + GRACE <= due <= await store.now() + GRACE

    @scenario
    async def test_folded_mail_leaves_the_next_due_to_the_lease(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.commit(letter())
        assert await store.next_due(QUEUES, DEFINITIONS) == (await head_of(store)).due

    @scenario
    async def test_the_next_due_keeps_to_queues_and_definitions(self, store: Store) -> None:
        await store.start([begin(ONE, queue="slow"), begin(TWO, definition="order@2")], GRACE)
        assert await store.next_due(QUEUES, DEFINITIONS) is None
        assert await store.next_due(["slow"], DEFINITIONS) == (await head_of(store, ONE)).due
        assert await store.next_due(QUEUES, ["order@2"]) == (await head_of(store, TWO)).due
