"""The contract of the ports as tests: what every store and every stream must do.

A backend's test module inherits from StoreContract or StreamContract and says how to make one; nothing else is needed,
no plugin and no fixture. Rules kept here: a test has one idea and its name says it; only the port is used, so a new
backend passes or fails for what it does; every log that a test leaves behind is checked against the invariants.

    class TestMemoryStore(StoreContract):
        async def make_store(self) -> Store:
            return MemoryStore(self.clock)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Raw

from perdure.core import events
from perdure.core.events import (
    ActionSettled,
    Cancelled,
    Completed,
    Event,
    EventReceived,
    Marked,
    Paused,
    Restarted,
    TakenOver,
    TimerFired,
)
from perdure.core.records import (
    Backlog,
    Busy,
    Commit,
    Due,
    End,
    Gone,
    Head,
    Held,
    Hint,
    Mail,
    Outcome,
    Park,
    Query,
    Queued,
    Row,
    Sent,
    ShownStatus,
    Start,
)
from perdure.ports import Locks, Store, Stream, Twinned
from perdure.testing.invariants import check_log

SECOND = 1_000_000
GRACE = 2 * SECOND
LEASE = 30 * SECOND
ONE, TWO, THREE = "acme/one", "acme/two", "acme/three"
QUEUES = ["default"]
DEFINITIONS = ["order@1"]

#: What a test of a stream is given: opens the next stream under a worker's name, for these queues.
Opened: TypeAlias = Callable[..., Awaitable[Stream]]


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, at: int = 1_700_000_000 * SECOND) -> None:
        self.at = at

    def __call__(self) -> int:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += round(seconds * SECOND)


def scenario(body: Callable[[Any, Any], Awaitable[None]]) -> Callable[[Any], None]:
    """Turn `async def test(self, subject)` into a test that every runner can call."""

    def test(self: Any) -> None:
        asyncio.run(self.play(body))

    # Not functools.wraps: pytest would look through it and take `subject` for a fixture.
    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


class Hand:
    """A worker's memory of an execution that it holds: the token and the version that comes next."""

    def __init__(self, store: Store, held: Held, version: int) -> None:
        self.store = store
        self.held = held
        self.key = held.key
        self.token = held.token
        self.version = version

    async def prepare(self, *what: Event | Mail, **parts: Any) -> Commit:
        """A commit with these events in the next versions; mail is folded."""
        now = await self.store.now()
        rows: list[Row] = []
        for one in what:
            version = self.version + len(rows) + 1
            if isinstance(one, Mail):
                rows.append(events.row(EventReceived(one.id, Raw(one.data)), version, now, self.token, one.id))
            else:
                rows.append(events.row(one, version, now, self.token))
        parts.setdefault("done", [one.id for one in what if isinstance(one, Mail)])
        return Commit(self.key, self.token, rows, **parts)

    async def commit(self, *what: Event | Mail, **parts: Any) -> Outcome:
        commit = await self.prepare(*what, **parts)
        [answer] = await self.store.commit([commit], GRACE)
        if answer == "ok" or (answer == "mail" and isinstance(commit.settle, Park)):
            self.version += len(commit.rows)
        return answer

    async def park(self, *what: Event | Mail, due: int | None = None, **parts: Any) -> Outcome:
        return await self.commit(*what, settle=Park("open", due), **parts)

    async def end(self, *what: Event | Mail, **parts: Any) -> Outcome:
        return await self.commit(*what, Completed(Raw(b"7")), settle=End("completed", b"7"), **parts)


def begin(key: str = ONE, **parts: Any) -> Start:
    """A start of the workflow `order`; the parts replace what it usually has."""
    usual: dict[str, Any] = {
        "workflow": "order",
        "definition": "order@1",
        "queue": "default",
        "sha": "sha",
        "rows": (first_row(),),
    }
    return Start(key, **{**usual, **parts})


def first_row() -> Row:
    return events.row(events.Started("order", 1, Raw(b"{}")), 1, at=0)


def letter(id: str = "m1", key: str = ONE, sha: str = "sha") -> Mail:
    return Mail(key, id, b'{"n":1}', sha)


def settled(ref: int = 1) -> ActionSettled:
    return ActionSettled(ref, "charge", Raw(b"{}"))


def marked(ref: int = 1) -> Marked:
    """A row that is no progress."""
    return Marked(ref, "record")


async def take(store: Store, key: str = ONE, me: str = "w1", **parts: Any) -> Hand:
    """Hold an execution that must be free."""
    [answer] = await store.hold([key], me, LEASE, **parts)
    assert isinstance(answer, Held), answer
    rows = await log(store, key)
    return Hand(store, answer, rows[-1].version)


async def begun(store: Store, key: str = ONE, **parts: Any) -> Hand:
    """Start an execution and hold it."""
    assert await store.start([begin(key, **parts)], GRACE) == ["created"]
    return await take(store, key)


async def log(store: Store, key: str = ONE) -> list[Row]:
    return await store.read(key, limit=1_000_000)


async def head_of(store: Store, key: str = ONE) -> Head:
    head = await store.head(key)
    assert head is not None
    return head


async def accepted(store: Store, *mail: Mail) -> None:
    assert [sent.answer for sent in await store.send(mail, GRACE)] == ["accepted"] * len(mail)


async def claimed(store: Store, limit: int = 100, grace: int = GRACE) -> list[str]:
    return [due.key for due in await store.claim(QUEUES, DEFINITIONS, limit, grace)]


def kinds(rows: Sequence[Row]) -> list[type[Event]]:
    return [events.TYPES[row.type % 1000] for row in rows]


def ids(mail: Sequence[Mail]) -> list[str]:
    return [one.id for one in mail]


class _StoreTests:
    """What the parts of the contract share: a fresh store and a clock for each test."""

    clock: ManualClock  # a new one for each test

    async def make_store(self) -> Store:
        """A new, empty store on `self.clock`; it is opened and closed by the contract."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let time pass for the store."""
        self.clock.advance(seconds)

    async def play(self, body: Callable[[Any, Store], Awaitable[None]]) -> None:
        self.clock = ManualClock()
        store = await self.make_store()
        await store.open()
        try:
            await body(self, store)
            for key in (ONE, TWO, THREE):
                check_log(await log(store, key), key)
        finally:
            await store.close()


class _Starting(_StoreTests):
    @scenario
    async def test_the_clock_moves_on(self, store: Store) -> None:
        before = await store.now()
        self.advance(1)
        assert await store.now() >= before + SECOND

    @scenario
    async def test_a_start_creates_head_and_log(self, store: Store) -> None:
        before = await store.now()
        start = begin(parent="acme/mother", parent_ref=3, state=b'{"a":1}')
        assert await store.start([start], GRACE) == ["created"]
        head = await head_of(store)
        assert await log(store) == list(start.rows)
        assert (head.workflow, head.definition, head.queue, head.sha) == ("order", "order@1", "default", "sha")
        assert (head.status, head.version, head.parent, head.parent_ref) == ("open", 1, "acme/mother", 3)
        assert (head.state, head.result, head.waits) == (b'{"a":1}', None, None)
        assert before <= head.started_at <= await store.now()

    @scenario
    async def test_a_start_is_due_after_the_grace_time(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        assert await claimed(store) == []
        self.advance(2)
        assert await claimed(store) == [ONE]

    @scenario
    async def test_a_second_start_is_the_same(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        assert await store.start([begin()], GRACE) == ["same"]
        assert len(await log(store)) == 1

    @scenario
    async def test_a_start_with_another_sha_is_a_conflict(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        assert await store.start([begin(sha="other", workflow="else")], GRACE) == ["conflict"]
        assert (await head_of(store)).workflow == "order"

    @scenario
    async def test_duplicates_in_one_call_are_told_apart(self, store: Store) -> None:
        starts = [begin(), begin(), begin(sha="other"), begin(TWO)]
        assert await store.start(starts, GRACE) == ["created", "same", "conflict", "created"]

    @scenario
    async def test_a_start_of_an_ended_execution_is_the_same(self, store: Store) -> None:
        await (await begun(store)).end()
        assert await store.start([begin()], GRACE) == ["same"]
        assert await store.hold([ONE], "w1", LEASE) == [Gone(ONE)]

    @scenario
    async def test_a_fork_starts_with_the_rows_of_another(self, store: Store) -> None:
        origin = await begun(store)
        await accepted(store, letter())
        await origin.commit(settled(1), letter())
        prefix = tuple(await log(store))
        await store.start([begin(TWO, rows=prefix)], GRACE)
        assert (await take(store, TWO)).held.rows == list(prefix)

    @scenario
    async def test_a_fork_has_a_token_above_the_fences_it_inherits(self, store: Store) -> None:
        far = await store.now() + 10**12
        await store.start([begin(rows=(first_row(), events.row(settled(), 2, at=0, fence=far)))], GRACE)
        assert (await take(store)).token > far

    @scenario
    async def test_messages_of_a_fork_are_recognised(self, store: Store) -> None:
        received = events.row(EventReceived("paid"), 2, at=0, message_id="m1")
        await store.start([begin(rows=(first_row(), received))], GRACE)
        [sent] = await store.send([letter("m1")], GRACE)
        assert sent.answer == "duplicate"

    @scenario
    async def test_a_fork_may_begin_at_a_checkpoint(self, store: Store) -> None:
        rows = (first_row(), events.row(Restarted(Raw(b"1"), ref=2), 2, at=0))
        await store.start([begin(rows=rows, base=2)], GRACE)
        assert (await take(store)).held.rows == [rows[1]]

    @scenario
    async def test_an_import_that_has_ended_never_wakes(self, store: Store) -> None:
        rows = (first_row(), events.row(Completed(Raw(b"7")), 2, at=0))
        await store.start([begin(rows=rows, status="completed", result=b"7")], GRACE)
        head = await head_of(store)
        assert (head.shown, head.result, head.version, head.due) == ("completed", b"7", 2, None)
        assert await store.next_due(QUEUES, DEFINITIONS) is None
        assert await store.hold([ONE], "w1", LEASE) == [Gone(ONE)]


class _Sending(_StoreTests):
    @scenario
    async def test_mail_is_accepted_into_the_mailbox(self, store: Store) -> None:
        await store.start([begin(queue="slow")], GRACE)
        assert await store.send([letter()], GRACE) == [Sent("accepted", "slow", None)]
        assert (await store.mail([ONE]))[ONE] == [letter()]

    @scenario
    async def test_mail_keeps_its_order(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        await accepted(store, letter("z"), letter("a"))
        await accepted(store, letter("m"))
        assert ids((await store.mail([ONE]))[ONE]) == ["z", "a", "m"]

    @scenario
    async def test_mail_keeps_its_order_when_older_mail_is_gone(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter("a"), letter("b"))
        await hand.commit(letter("b"))
        await accepted(store, letter("c"))
        assert ids((await store.mail([ONE]))[ONE]) == ["a", "c"]

    @scenario
    async def test_the_answer_names_the_holder(self, store: Store) -> None:
        await begun(store)
        assert await store.send([letter()], GRACE) == [Sent("accepted", "default", "w1")]

    @scenario
    async def test_the_answer_names_no_holder_whose_lease_is_over(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        assert await store.send([letter()], GRACE) == [Sent("accepted", "default", None)]

    @scenario
    async def test_mail_that_waits_is_a_duplicate(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        await accepted(store, letter())
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["duplicate"]
        assert ids((await store.mail([ONE]))[ONE]) == ["m1"]

    @scenario
    async def test_mail_that_was_folded_is_a_duplicate(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.commit(letter())
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["duplicate"]
        assert (await store.mail([ONE]))[ONE] == []

    @scenario
    async def test_a_duplicate_names_its_version_once_it_is_in_the_log(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        assert await store.send([letter()], GRACE) == [Sent("duplicate", "default", "w1", version=0)]
        await hand.commit(settled(), letter())
        assert await store.send([letter(sha="other")], GRACE) == [Sent("duplicate", "default", "w1", version=3)]

    @scenario
    async def test_mail_that_was_folded_is_a_duplicate_after_the_end(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.end(letter())
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["duplicate"]

    @scenario
    async def test_mail_with_another_sha_is_a_conflict(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        await accepted(store, letter())
        assert [sent.answer for sent in await store.send([letter(sha="other")], GRACE)] == ["conflict"]

    @scenario
    async def test_mail_after_the_end_is_refused(self, store: Store) -> None:
        await (await begun(store)).end()
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["ended"]

    @scenario
    async def test_mail_for_nobody_is_missing(self, store: Store) -> None:
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["missing"]

    @scenario
    async def test_every_mail_of_a_call_has_its_own_answer(self, store: Store) -> None:
        await store.start([begin(), begin(TWO)], GRACE)
        mail = [letter(), letter(), letter(key=TWO), letter(key=THREE), letter(sha="other"), letter("m2")]
        answers = [sent.answer for sent in await store.send(mail, GRACE)]
        assert answers == ["accepted", "duplicate", "accepted", "missing", "conflict", "accepted"]

    @scenario
    async def test_mail_is_due_by_itself(self, store: Store) -> None:
        await (await begun(store)).park()
        await accepted(store, letter())
        assert await claimed(store) == []
        self.advance(2)
        assert await claimed(store) == [ONE]

    @scenario
    async def test_a_message_sent_again_around_its_fold_is_folded_once(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.commit(letter())
        await store.send([letter()], GRACE)
        for mail in (await store.mail([ONE]))[ONE]:
            await hand.commit(mail)
        check_log(await log(store), ONE)


class _Holding(_StoreTests):
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


class _Committing(_StoreTests):
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


class _Waking(_StoreTests):
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
    async def test_a_claim_serves_the_tenants_in_turn(self, store: Store) -> None:
        flood = [begin(f"flood/{number:02}") for number in range(10)]
        await store.start(flood, 0)
        self.advance(1)
        await store.start([begin("small/one"), begin("third/one"), begin("small/two")], 0)
        self.advance(1)
        found = await claimed(store, limit=4)
        assert sorted(key.partition("/")[0] for key in found) == ["flood", "flood", "small", "third"]

    @scenario
    async def test_a_claim_of_mail_serves_the_tenants_in_turn(self, store: Store) -> None:
        keys = [*(f"flood/{number}" for number in range(6)), "small/one"]
        await store.start([begin(key) for key in keys], 100 * GRACE)
        await store.send([letter(key=key) for key in keys], 0)
        self.advance(1)
        assert "small/one" in await claimed(store, limit=2)

    @scenario
    async def test_who_comes_late_to_a_flood_is_claimed_before_its_end(self, store: Store) -> None:
        await store.start([begin(f"flood/{number:02}") for number in range(50)], 0)
        self.advance(1)
        await store.start([begin("small/one")], 0)
        self.advance(1)
        assert await claimed(store, limit=2) == ["flood/00", "small/one"]
        assert await claimed(store, limit=2) == ["flood/01", "flood/02"]

    @scenario
    async def test_mail_that_comes_late_to_a_flood_is_claimed_before_its_end(self, store: Store) -> None:
        keys = [*(f"flood/{number:02}" for number in range(50)), "small/one"]
        await store.start([begin(key) for key in keys], 100 * GRACE)
        await store.send([letter(key=key) for key in keys[:-1]], 0)
        self.advance(1)
        await store.send([letter(key=keys[-1])], 0)
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


class _Reading(_StoreTests):
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

    async def found(self, store: Store, **parts: Any) -> list[str]:
        return [head.key for head in await store.find(Query("acme", **parts))]

    @scenario
    async def test_a_search_answers_heads(self, store: Store) -> None:
        await begun(store)
        assert await store.find(Query("acme")) == [await head_of(store)]

    @scenario
    async def test_a_search_shows_the_newest_first(self, store: Store) -> None:
        for key in (TWO, ONE, THREE):
            await store.start([begin(key)], GRACE)
            self.advance(1)
        assert await self.found(store) == [THREE, ONE, TWO]

    @scenario
    async def test_a_search_never_leaves_its_tenant(self, store: Store) -> None:
        await store.start([begin(ONE), begin("acme2/one"), begin("ac/me"), begin("zeta/one", parent=ONE)], GRACE)
        assert await self.found(store) == [ONE]
        assert await self.found(store, parent=ONE) == []
        assert await store.find(Query("")) == []

    @scenario
    async def test_a_search_by_status(self, store: Store) -> None:
        await (await begun(store, "acme/parked")).park()
        await begun(store, "acme/held")
        await (await begun(store, "acme/paused")).commit(Paused(), settle=Park("paused", None))
        await (await begun(store, "acme/stuck")).commit(settle=Park("stuck", None))
        await (await begun(store, "acme/done")).end()
        expected: dict[ShownStatus, list[str]] = {
            "waiting": ["acme/parked"],
            "running": ["acme/held"],
            "paused": ["acme/paused"],
            "stuck": ["acme/stuck"],
            "completed": ["acme/done"],
            "failed": [],
        }
        assert {status: await self.found(store, status=status) for status in expected} == expected

    @scenario
    async def test_a_search_shows_a_lapsed_hold_as_waiting(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        assert await self.found(store, status="running") == []
        assert await self.found(store, status="waiting") == [ONE]

    @scenario
    async def test_a_search_by_workflow(self, store: Store) -> None:
        await store.start([begin(ONE), begin(TWO, workflow="refund")], GRACE)
        assert await self.found(store, workflow="refund") == [TWO]

    @scenario
    async def test_a_search_may_leave_out_what_is_the_engines_own(self, store: Store) -> None:
        await store.start([begin(ONE), begin(TWO, workflow="action:charge")], GRACE)
        assert await self.found(store, inner=False) == [ONE]
        assert await self.found(store, workflow="action:charge") == [TWO]

    @scenario
    async def test_a_search_by_parent(self, store: Store) -> None:
        await store.start([begin(ONE), begin(TWO, parent=ONE), begin(THREE, parent=TWO)], GRACE)
        assert await self.found(store, parent=ONE) == [TWO]

    @scenario
    async def test_a_search_by_time(self, store: Store) -> None:
        for key in (ONE, TWO, THREE):
            await store.start([begin(key)], GRACE)
            self.advance(1)
        times = [(await head_of(store, key)).started_at for key in (ONE, TWO, THREE)]
        assert await self.found(store, after=times[1]) == [THREE, TWO]
        assert await self.found(store, before=times[1]) == [ONE]
        assert await self.found(store, after=times[1], before=times[2]) == [TWO]

    @scenario
    async def test_a_search_by_published_fields(self, store: Store) -> None:
        state = b'{"city":"Graz","n":1,"rate":0.5,"paid":true,"note":null,"one":"1"}'
        await store.start([begin(ONE, state=state), begin(TWO, state=b'{"city":"Linz"}'), begin(THREE)], GRACE)
        for fields in ({"city": "Graz"}, {"n": 1}, {"rate": 0.5}, {"paid": True}, {"note": None}, {"n": 1, "one": "1"}):
            assert await self.found(store, fields=fields) == [ONE], fields
        assert await self.found(store, fields={"city": "Linz"}) == [TWO]

    @scenario
    async def test_a_search_keeps_the_types_of_json_apart(self, store: Store) -> None:
        await store.start([begin(state=b'{"n":1,"paid":true,"one":"1","note":null}')], GRACE)
        for fields in ({"n": True}, {"n": "1"}, {"paid": 1}, {"one": 1}, {"note": False}, {"none": None}):
            assert await self.found(store, fields=fields) == [], fields

    @scenario
    async def test_a_search_takes_any_name_of_a_field(self, store: Store) -> None:
        await store.start([begin(state=b'{"a.b":1,"it\'s":2,"say \\"x\\"":3}')], GRACE)
        for fields in ({"a.b": 1}, {"it's": 2}, {'say "x"': 3}):
            assert await self.found(store, fields=fields) == [ONE], fields

    @scenario
    async def test_a_state_that_is_no_object_has_no_fields(self, store: Store) -> None:
        await store.start([begin(ONE, state=b"[1,2]"), begin(TWO, state=b'"x"')], GRACE)
        assert await self.found(store, fields={"0": 1}) == []

    @scenario
    async def test_a_search_is_paged_without_gaps_or_doubles(self, store: Store) -> None:
        for batch in range(3):
            await store.start([begin(f"acme/{batch}-{number}") for number in range(4)], GRACE)
            self.advance(1)
        expected = await self.found(store)
        pages: list[list[str]] = []
        cursor: tuple[int, str] | None = None
        while heads := await store.find(Query("acme", limit=5, cursor=cursor)):
            pages.append([head.key for head in heads])
            cursor = (heads[-1].started_at, heads[-1].key)
        assert [len(page) for page in pages] == [5, 5, 2]
        assert [key for page in pages for key in page] == expected
        assert len(set(expected)) == 12

    @scenario
    async def test_filters_of_a_search_work_together(self, store: Store) -> None:
        await store.start([begin(ONE, state=b'{"n":1}'), begin(TWO, state=b'{"n":1}', workflow="refund")], GRACE)
        await take(store, TWO)
        assert await self.found(store, status="running", workflow="refund", fields={"n": 1}) == [TWO]
        assert await self.found(store, status="running", workflow="order", fields={"n": 1}) == []


class _Lanes(_StoreTests):
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


class StoreContract(_Starting, _Sending, _Holding, _Committing, _Waking, _Reading, _Lanes):
    """Every sentence of the port Store; a subclass says how to make one.

    `self.clock` is a ManualClock for stores that take a clock; others override `advance` as well.
    """


class StreamContract:
    """Every sentence of the port Stream; a subclass says how to make streams that are connected.

    A stream may lose hints; in the calm of these tests it must not. That something is *not* delivered is seen by what
    comes next, never by waiting.
    """

    #: Whether work arrives elsewhere with its keys; if not, others are only told to look at the queue.
    carries = True

    async def make_streams(self, count: int) -> Sequence[Stream]:
        """So many streams that reach each other, not opened yet."""
        raise NotImplementedError

    def elsewhere(self, *hints: Hint) -> list[Hint]:
        """What work that was published here is to those who serve its queue elsewhere."""
        return list(hints) if self.carries else list(dict.fromkeys(Hint("", hint.queue) for hint in hints))

    async def play(self, body: Callable[[Any, Any], Awaitable[None]]) -> None:
        self.opened: list[Stream] = []
        streams = await self.make_streams(5)
        waiting = iter(streams)

        async def opened(me: str, *queues: str) -> Stream:
            stream = next(waiting)
            await stream.open(me, queues)
            self.opened.append(stream)
            return stream

        try:
            await body(self, opened)
        finally:
            for stream in self.opened:
                await stream.close()

    async def got(self, stream: Stream, limit: int = 100) -> list[Hint]:
        hints = await asyncio.wait_for(stream.receive(limit), 5)
        await stream.ack(hints)
        return list(hints)

    @scenario
    async def test_a_stream_says_whether_it_carries_keys(self, opened: Opened) -> None:
        assert (await opened("w1")).carries is self.carries

    @scenario
    async def test_a_hint_is_received(self, opened: Opened) -> None:
        stream = await opened("w1", "default")
        await stream.publish([Hint(ONE, "default")])
        assert await self.got(stream) == [Hint(ONE, "default")]

    @scenario
    async def test_a_hint_wakes_who_waits(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2")
        waiting = asyncio.create_task(self.got(here))
        await asyncio.sleep(0)
        await there.publish([Hint(ONE, "default")])
        assert await waiting == self.elsewhere(Hint(ONE, "default"))

    @scenario
    async def test_no_more_than_the_limit_is_received(self, opened: Opened) -> None:
        stream = await opened("w1", "default")
        hints = [Hint(f"acme/{number}", "default") for number in range(5)]
        await stream.publish(hints)
        parts = [await self.got(stream, 2) for _ in range(3)]
        assert [len(part) for part in parts] == [2, 2, 1]
        assert [hint for part in parts for hint in part] == hints

    @scenario
    async def test_work_of_other_queues_is_not_received(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2", "other")
        await there.publish([Hint(ONE, "slow"), Hint(TWO, "default")])
        assert await self.got(here) == self.elsewhere(Hint(TWO, "default"))

    @scenario
    async def test_several_queues_are_served(self, opened: Opened) -> None:
        here, there = await opened("w1", "slow", "fast"), await opened("w2")
        await there.publish([Hint(ONE, "slow"), Hint(TWO, "fast")])
        received = await self.got(here)
        while len(received) < 2:
            received += await self.got(here)
        assert sorted(received, key=str) == sorted(self.elsewhere(Hint(ONE, "slow"), Hint(TWO, "fast")), key=str)

    @scenario
    async def test_a_hint_for_a_worker_reaches_that_worker(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2")
        await here.publish([Hint(ONE, "default", to="w2")])
        assert await self.got(there) == [Hint(ONE, "default", to="w2")]

    @scenario
    async def test_a_hint_for_oneself_is_received(self, opened: Opened) -> None:
        here = await opened("w1")
        await here.publish([Hint(ONE, "default", to="w1")])
        assert await self.got(here) == [Hint(ONE, "default", to="w1")]

    @scenario
    async def test_a_hint_for_another_worker_is_not_received(self, opened: Opened) -> None:
        here, _ = await opened("w1", "default"), await opened("w2", "default")
        await here.publish([Hint(ONE, "default", to="w2"), Hint(TWO, "default")])
        assert await self.got(here) == [Hint(TWO, "default")]

    @scenario
    async def test_a_hint_for_a_worker_that_left_is_lost(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2")
        await there.close()
        await here.publish([Hint(ONE, "default", to="w2"), Hint(TWO, "default")])
        assert await self.got(here) == [Hint(TWO, "default")]

    @scenario
    async def test_work_goes_to_somebody_who_serves_the_queue(self, opened: Opened) -> None:
        client, idle = await opened("client"), await opened("w2", "other")
        await idle.listen(TWO)
        here = await opened("w1", "default")
        await client.publish([Hint(ONE, "default")])
        assert await self.got(here) == self.elsewhere(Hint(ONE, "default"))
        await client.publish([Hint(TWO, ended=True)])
        assert await self.got(idle) == [Hint(TWO, ended=True)]

    @scenario
    async def test_work_stays_here_if_we_serve_the_queue(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2", "default")
        hints = [Hint(f"acme/{number}", "default") for number in range(4)]
        await here.listen(ONE)
        await there.publish(hints)
        assert await self.got(there) == hints
        await there.publish([Hint(ONE, ended=True)])
        assert await self.got(here) == [Hint(ONE, ended=True)]

    @scenario
    async def test_news_of_an_end_reaches_everybody_who_listens(self, opened: Opened) -> None:
        streams = [await opened("w1", "default"), await opened("w2", "other"), await opened("client")]
        for stream in streams:
            await stream.listen(ONE)
        await streams[0].publish([Hint(ONE, "default", ended=True)])
        for stream in streams:
            assert await self.got(stream) == [Hint(ONE, "default", ended=True)]

    @scenario
    async def test_other_news_reaches_every_worker_and_nobody_else(self, opened: Opened) -> None:
        here, there, client = await opened("w1", "default"), await opened("w2", "other"), await opened("client")
        await client.listen(ONE)
        await here.publish([Hint("", news="breaker:charge:open:1"), Hint(ONE, ended=True)])
        assert (await self.got(there))[0] == Hint("", news="breaker:charge:open:1")
        assert (await self.got(client))[0] == Hint(ONE, ended=True)

    @scenario
    async def test_publishing_nothing_is_fine(self, opened: Opened) -> None:
        await (await opened("w1")).publish([])

    @scenario
    async def test_publishing_after_close_raises_nothing(self, opened: Opened) -> None:
        stream = await opened("w1", "default")
        await stream.close()
        await stream.publish([Hint(ONE, "default"), Hint(TWO, to="w2"), Hint(THREE, ended=True)])

    @scenario
    async def test_closing_twice_is_fine(self, opened: Opened) -> None:
        stream = await opened("w1", "default")
        await stream.close()
        await stream.close()

    @scenario
    async def test_a_cancelled_receive_loses_nothing(self, opened: Opened) -> None:
        here, there = await opened("w1", "default"), await opened("w2")
        waiting = asyncio.create_task(here.receive(10))
        await asyncio.sleep(0)
        await there.publish([Hint(ONE, "default")])
        waiting.cancel()
        received = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(received[0], BaseException):
            assert await self.got(here) == self.elsewhere(Hint(ONE, "default"))

    @scenario
    async def test_many_may_publish_at_once(self, opened: Opened) -> None:
        here = await opened("w1", "default")
        others = [await opened(f"client-{number}") for number in range(4)]
        # To a worker, for that arrives with its key on every stream.
        hints = {number: [Hint(f"acme/{number}-{n}", "default", to="w1") for n in range(50)] for number in range(4)}

        async def publish(number: int) -> None:
            for hint in hints[number]:
                await others[number].publish([hint])
                await asyncio.sleep(0)

        async def receive() -> set[str]:
            received: set[str] = set()
            while len(received) < 200:
                received.update(hint.key for hint in await self.got(here))
            return received

        received, *_ = await asyncio.gather(receive(), *(publish(number) for number in range(4)))
        assert received == {hint.key for each in hints.values() for hint in each}


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
        assert not await locks.extend("stock", "me", old, LEASE)
        found = await locks.look("stock")
        assert found is not None
        assert found[:2] == ("you", new)

    @scenario
    async def test_a_lock_ends_with_its_time_unless_it_is_extended(self, locks: Locks) -> None:
        kept, left = await locks.take("kept", "me", 50_000), await locks.take("left", "me", 50_000)
        assert kept is not None
        assert left is not None
        assert await locks.extend("kept", "me", kept, LEASE)
        await asyncio.sleep(0.1)
        assert await locks.take("kept", "you", LEASE) is None
        assert await locks.look("left") is None
        assert await locks.take("left", "you", LEASE) is not None
        assert not await locks.extend("left", "me", left, LEASE)

    @scenario
    async def test_the_fence_rises_with_every_holder(self, locks: Locks) -> None:
        fences: list[int] = []
        for number in range(10):
            fence = await locks.take("stock", f"holder-{number}", LEASE)
            assert fence is not None
            fences.append(fence)
            await locks.drop("stock", f"holder-{number}", fence)
        assert fences == sorted(set(fences))
