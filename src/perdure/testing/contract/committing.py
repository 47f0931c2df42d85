"""What holders write: `commit` with rows, mail that is done, timers, children, parks and ends; and what is refused."""

from __future__ import annotations

from perdure.core import events
from perdure.core.events import ActionSettled, Cancelled, Completed, Paused, TimerFired
from perdure.core.records import End, Park
from perdure.ports import Store
from perdure.testing.contract.stage import (
    DEFINITIONS,
    GRACE,
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
    ids,
    kinds,
    letter,
    log,
    marked,
    scenario,
    settled,
    take,
)


class Committing(StoreTests):
    @scenario
    async def test_a_step_is_written(self, store: Store) -> None:
        hand = await begun(store)
        commit = await hand.prepare(settled())
        assert await store.commit([commit], GRACE) == ["ok"]
        assert (await log(store))[1:] == commit.rows

    @scenario
    async def test_an_empty_group_is_fine(self, store: Store) -> None:
        assert await store.commit([], GRACE) == []

    @scenario
    async def test_a_version_that_exists_is_stale(self, store: Store) -> None:
        hand = await begun(store)
        commit = await hand.prepare(settled(1))
        await hand.commit(settled(1))
        assert await store.commit([commit], GRACE) == ["stale"]

    @scenario
    async def test_of_a_stale_commit_no_row_is_written(self, store: Store) -> None:
        hand = await begun(store)
        commit = await hand.prepare(settled(1), settled(2), settled(3))
        await hand.commit(settled(1))
        assert await store.commit([commit], GRACE) == ["stale"]
        assert len(await log(store)) == 2

    @scenario
    async def test_one_culprit_does_not_fail_the_steps_of_others(self, store: Store) -> None:
        hands = [await begun(store, key) for key in (ONE, TWO, THREE)]
        group = [await hand.prepare(settled(1), marked(2)) for hand in hands]
        await hands[1].commit(settled(1))
        assert await store.commit(group, GRACE) == ["ok", "stale", "ok"]
        assert [len(await log(store, key)) for key in (ONE, TWO, THREE)] == [3, 2, 3]

    @scenario
    async def test_every_refusal_in_a_group_is_its_own(self, store: Store) -> None:
        keys = [f"acme/{number}" for number in range(6)]
        hands = [await begun(store, key) for key in keys]
        await accepted(store, letter(key=keys[2]), letter(key=keys[3]))
        later = await store.now() + SECOND
        group = [
            await hands[0].prepare(settled(), settle=Park("open", None)),
            await hands[1].prepare(TimerFired(1, later), fired=later),
            await hands[2].prepare(Completed(), settle=End("completed", None)),
            await hands[3].prepare(settled(), settle=Park("open", None)),
            await hands[4].prepare(marked(), done=["nothing"]),
            await hands[5].prepare(settled()),
        ]
        assert await store.commit(group, GRACE) == ["ok", "early", "mail", "mail", "stale", "ok"]
        assert [len(await log(store, key)) for key in keys] == [2, 1, 1, 2, 1, 2]

    @scenario
    async def test_a_park_gives_the_hold_back(self, store: Store) -> None:
        hand = await begun(store)
        due = await store.now() + 5 * SECOND
        assert await hand.park(settled(), due=due) == "ok"
        head = await head_of(store)
        assert (head.holder, head.due, head.shown, head.version) == (None, due, "waiting", 2)

    @scenario
    async def test_a_park_writes_what_people_see(self, store: Store) -> None:
        hand = await begun(store)
        self.advance(1)
        await hand.commit(Paused(), settle=Park("paused", None, state=b'{"a":1}', waits=b'["x"]'))
        head = await head_of(store)
        assert (head.shown, head.state, head.waits) == ("paused", b'{"a":1}', b'["x"]')
        assert head.changed_at >= head.started_at + SECOND

    @scenario
    async def test_a_park_needs_no_rows(self, store: Store) -> None:
        assert await (await begun(store)).park() == "ok"

    @scenario
    async def test_a_park_with_an_old_token_is_stale(self, store: Store) -> None:
        old = await begun(store)
        self.advance(31)
        await claimed(store)
        assert await old.park(settled()) == "stale"
        assert len(await log(store)) == 1

    @scenario
    async def test_a_park_of_what_is_not_held_any_more_is_stale(self, store: Store) -> None:
        hand = await begun(store)
        await store.release([(ONE, hand.token)])
        await take(store, me="w2")
        assert await hand.park() == "stale"
        assert (await head_of(store)).holder == "w2"

    @scenario
    async def test_an_end_with_an_old_token_is_stale(self, store: Store) -> None:
        old = await begun(store)
        self.advance(31)
        await claimed(store)
        assert await old.end() == "stale"
        assert (await head_of(store)).status == "open"

    @scenario
    async def test_a_park_is_refused_while_mail_waits(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        assert await hand.park(settled()) == "mail"
        assert (await head_of(store)).holder == "w1"
        assert kinds(await log(store)) == [events.Started, ActionSettled]

    @scenario
    async def test_after_a_refused_park_the_holder_goes_on(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.park(settled())
        assert await hand.park(letter()) == "ok"

    @scenario
    async def test_an_end_is_refused_while_mail_waits(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        assert await hand.end() == "mail"
        head = await head_of(store)
        assert (head.holder, head.status, head.version) == ("w1", "open", 1)

    @scenario
    async def test_after_a_refused_end_the_holder_folds_and_ends(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.end()
        assert await hand.end(letter()) == "ok"

    @scenario
    async def test_mail_that_is_in_the_log_refuses_no_end(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.commit(letter(), done=())
        assert await hand.end() == "ok"

    @scenario
    async def test_accepted_mail_is_never_lost_in_an_end(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        if await hand.end() == "mail":
            await hand.end(letter())
        assert "m1" in [row.message_id for row in await log(store)]

    @scenario
    async def test_an_end_writes_result_and_status(self, store: Store) -> None:
        hand = await begun(store)
        rows = [Cancelled("enough")]
        assert await hand.commit(*rows, settle=End("cancelled", b"9", state=b'{"a":1}')) == "ok"
        head = await head_of(store)
        assert (head.shown, head.result, head.state, head.version) == ("cancelled", b"9", b'{"a":1}', 2)

    @scenario
    async def test_an_end_leaves_nothing_that_is_due(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.end(letter())
        head = await head_of(store)
        assert (head.due, head.holder, head.mail) == (None, None, 0)
        assert await store.next_due(QUEUES, DEFINITIONS) is None

    @scenario
    async def test_after_an_end_a_commit_is_stale(self, store: Store) -> None:
        hand = await begun(store)
        late = await hand.prepare(settled())
        await hand.end()
        assert await store.commit([late], GRACE) == ["stale"]

    @scenario
    async def test_done_mail_leaves_the_mailbox(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter("m1"), letter("m2"))
        assert await hand.commit(letter("m1")) == "ok"
        assert ids((await store.mail([ONE]))[ONE]) == ["m2"]

    @scenario
    async def test_mail_may_be_done_without_a_row(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        assert await hand.commit(done=["m1"]) == "ok"
        assert (await store.mail([ONE]))[ONE] == []

    @scenario
    async def test_done_mail_that_is_not_there_is_stale(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter("m1"))
        assert await hand.commit(settled(), done=["m1", "m2"]) == "stale"
        assert len(await log(store)) == 1
        assert ids((await store.mail([ONE]))[ONE]) == ["m1"]

    @scenario
    async def test_a_second_fold_of_a_message_is_stale(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.commit(letter())
        assert await hand.commit(letter(), done=()) == "stale"

    @scenario
    async def test_a_timer_that_is_not_due_is_early(self, store: Store) -> None:
        hand = await begun(store)
        due = await store.now() + SECOND
        assert await hand.commit(TimerFired(1, due), fired=due) == "early"
        assert len(await log(store)) == 1
        assert (await head_of(store)).holder == "w1"

    @scenario
    async def test_a_timer_that_is_due_fires(self, store: Store) -> None:
        hand = await begun(store)
        due = await store.now() + SECOND
        self.advance(1)
        assert await hand.commit(TimerFired(1, due), fired=due) == "ok"

    @scenario
    async def test_children_are_created_with_the_commit(self, store: Store) -> None:
        hand = await begun(store)
        child = begin(TWO, parent=ONE, parent_ref=1)
        assert await hand.park(marked(), children=[child]) == "ok"
        head = await head_of(store, TWO)
        assert (head.parent, head.parent_ref, head.shown) == (ONE, 1, "waiting")
        assert await log(store, TWO) == list(child.rows)
        assert (await take(store, TWO)).held.parent == ONE

    @scenario
    async def test_a_child_is_due_by_itself(self, store: Store) -> None:
        await (await begun(store)).park(children=[begin(TWO)])
        self.advance(60)
        assert await claimed(store) == [TWO]

    @scenario
    async def test_a_child_whose_key_is_taken_is_left_alone(self, store: Store) -> None:
        await store.start([begin(TWO, sha="first")], GRACE)
        hand = await begun(store)
        assert await hand.commit(marked(), children=[begin(TWO, parent=ONE)]) == "ok"
        head = await head_of(store, TWO)
        assert (head.parent, head.sha, head.version) == (None, "first", 1)

    @scenario
    async def test_a_refused_commit_creates_no_child_and_sends_no_mail(self, store: Store) -> None:
        await store.start([begin(THREE)], GRACE)
        hand = await begun(store)
        await hand.commit(done=["nothing"], children=[begin(TWO)], mail=[letter(key=THREE)])
        assert await store.head(TWO) is None
        assert (await store.mail([THREE]))[THREE] == []

    @scenario
    async def test_mail_of_a_commit_is_delivered(self, store: Store) -> None:
        await (await begun(store, TWO)).park()
        await (await begun(store)).end(mail=[letter(key=TWO)])
        assert (await store.mail([TWO]))[TWO] == [letter(key=TWO)]
        self.advance(60)
        assert await claimed(store) == [TWO]

    @scenario
    async def test_mail_of_a_commit_is_delivered_once(self, store: Store) -> None:
        other = await begun(store, TWO)
        hand = await begun(store)
        await hand.commit(marked(1), mail=[letter(key=TWO)])
        await hand.commit(marked(2), mail=[letter(key=TWO)])
        assert ids((await store.mail([TWO]))[TWO]) == ["m1"]
        await other.commit(letter(key=TWO))
        await hand.commit(marked(3), mail=[letter(key=TWO)])
        assert (await store.mail([TWO]))[TWO] == []

    @scenario
    async def test_mail_of_a_commit_to_an_ended_execution_is_dropped(self, store: Store) -> None:
        await (await begun(store, TWO)).end()
        hand = await begun(store)
        assert await hand.commit(marked(), mail=[letter(key=TWO), letter(key=THREE)]) == "ok"
        assert (await head_of(store, TWO)).mail == 0

    @scenario
    async def test_mail_of_a_commit_reaches_its_own_child(self, store: Store) -> None:
        hand = await begun(store)
        await hand.commit(marked(), children=[begin(TWO)], mail=[letter(key=TWO)])
        assert ids((await take(store, TWO)).held.mail) == ["m1"]
