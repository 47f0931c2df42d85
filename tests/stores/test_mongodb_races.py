"""Races between workers on MongoDB, on a real server: what must hold whoever comes first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec import Raw
from pymongo.asynchronous.client_session import AsyncClientSession

from perdure.core import events
from perdure.core.events import ActionSettled, Completed, Started, TakenOver
from perdure.core.records import Commit, End, Gone, Held, Outcome, Park, Queued
from perdure.stores.mongodb import MongoStore
from perdure.stores.mongodb.committing import Committing
from perdure.stores.mongodb.documents import log_documents
from perdure.stores.mongodb.writing import Writing
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    TWO,
    Hand,
    ManualClock,
    accepted,
    begin,
    begun,
    kinds,
    letter,
    log,
    settled,
    take,
)
from perdure.testing.invariants import check_log

SHORT = 1_000  # a lease that is over at once, in microseconds


def play(url: str, count: int, body: Callable[..., Awaitable[None]]) -> None:
    """Run a test's body with so many stores on one database, as so many processes would have.

    Only that each would have an idea of its own of the server's time, a little behind it; here they have one.
    """

    async def run() -> None:
        stores = [MongoStore(url) for _ in range(count)]
        try:
            for store in stores:
                await store.open()
                store._link.now = stores[0]._link.now  # type: ignore[method-assign]
            await body(*stores)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(run())


@asynccontextmanager
async def transaction(store: MongoStore) -> AsyncIterator[AsyncClientSession]:
    """One that stays open for as long as the block, and commits then."""
    async with store._link.client.start_session() as session, await session.start_transaction():
        yield session


async def in_the_middle(
    store: MongoStore, group: list[Commit], meanwhile: Callable[[], Awaitable[None]]
) -> dict[str, Outcome]:
    """Commit; when the transaction has read everything, and sees nothing of what comes after, something happens."""
    told = False

    class Slow(Committing):
        async def _write(self, group: Sequence[Commit], waiting: set[str]) -> None:
            nonlocal told
            if not told:
                told = True
                await meanwhile()
            await super()._write(group, waiting)

    now = await store.now()
    return await store._link.transact_holding(
        lambda session: Slow(store._link.tables, session, now).commit(group, GRACE, False)
    )


async def ended_with(hand: Hand) -> None:
    """End an execution as a worker does: what came meanwhile is folded first."""
    while True:
        mail = (await hand.store.mail([hand.key]))[hand.key]
        match await hand.end(*mail):
            case "ok":
                return
            case "mail":
                continue
            case other:
                raise AssertionError(other)


def step(held: Held, version: int, count: int = 1) -> Commit:
    rows = [events.row(settled(version + n), version + n, at=0, fence=held.token) for n in range(count)]
    return Commit(held.key, held.token, rows)


def test_what_was_accepted_while_an_execution_ended_is_in_its_log_once(emptied_mongodb: str) -> None:
    async def body(worker: MongoStore, *clients: MongoStore) -> None:
        for number in range(12):
            key = f"acme/{number}"
            hand = await begun(worker, key)
            _, *answers = await asyncio.gather(
                ended_with(hand), *(client.send([letter(key=key)], GRACE) for client in clients)
            )
            sent = [answer.answer for [answer] in answers]
            rows = await log(worker, key)
            check_log(rows, key)
            assert [row.message_id for row in rows].count("m1") == ("accepted" in sent)
            assert set(sent) <= ({"accepted", "duplicate"} if "accepted" in sent else {"ended"})
            assert (await worker.mail([key]))[key] == []

    play(emptied_mongodb, 3, body)


def test_an_end_meets_a_sender_whose_transaction_is_open_and_its_neighbour_does_not(emptied_mongodb: str) -> None:
    async def body(worker: MongoStore, client: MongoStore) -> None:
        hand, neighbour = await begun(worker, ONE), await begun(worker, TWO)
        async with transaction(client) as session:
            sent = await Writing(client._link.tables, session, await client.now()).send([letter()], GRACE)
            assert [one.answer for one in sent] == ["accepted"]
            group = [
                await hand.prepare(Completed(Raw(b"7")), settle=End("completed", b"7")),
                await neighbour.prepare(settled()),
            ]
            assert await worker.commit(group, GRACE) == ["mail", "ok"]
        assert await hand.end() == "mail"
        await ended_with(hand)
        assert "m1" in [row.message_id for row in await log(worker)]

    play(emptied_mongodb, 2, body)


@pytest.mark.parametrize("settle", [Park("open", None), End("completed", b"7")], ids=["park", "end"])
def test_mail_that_is_accepted_while_an_execution_settles_is_seen(emptied_mongodb: str, settle: Park | End) -> None:
    async def body(worker: MongoStore, client: MongoStore) -> None:
        hand = await begun(worker)

        async def send() -> None:
            await accepted(client, letter())
            assert [mail.id for mail in (await worker.mail([ONE]))[ONE]] == ["m1"]

        rest = await hand.prepare(settled(), settle=settle)
        assert await in_the_middle(worker, [rest], send) == {ONE: "mail"}

    play(emptied_mongodb, 2, body)


def test_a_duplicate_that_meets_its_own_fold_is_not_read_again(emptied_mongodb: str) -> None:
    async def body(worker: MongoStore, client: MongoStore) -> None:
        for number in range(10):
            key = f"acme/{number}"
            hand = await begun(worker, key)
            await accepted(client, letter(key=key))
            outcome, [sent] = await asyncio.gather(hand.commit(letter(key=key)), client.send([letter(key=key)], GRACE))
            assert outcome == "ok"
            assert sent.answer in ("duplicate", "accepted")
            assert (await worker.mail([key]))[key] == []
            assert await hand.end() == "ok"
            check_log(await log(worker, key), key)

    play(emptied_mongodb, 2, body)


def test_many_who_send_to_one_execution_at_once_all_get_through(emptied_mongodb: str) -> None:
    async def body(worker: MongoStore, *clients: MongoStore) -> None:
        hand = await begun(worker)

        async def send(number: int, client: MongoStore) -> None:
            for n in range(10):
                await accepted(client, letter(f"{number}-{n}"))

        await asyncio.gather(*(send(number, client) for number, client in enumerate(clients)))
        there = [mail.id for mail in (await worker.mail([ONE]))[ONE]]
        assert len(there) == 30
        for number in range(3):
            own = [id for id in there if id.startswith(f"{number}-")]
            assert own == [f"{number}-{n}" for n in range(10)]
        await ended_with(hand)

    play(emptied_mongodb, 4, body)


def test_a_zombies_group_and_a_take_over_leave_dense_logs(emptied_mongodb: str) -> None:
    async def body(zombie: MongoStore, other: MongoStore) -> None:
        for number in range(10):
            keys = [f"acme/{number}-{n}" for n in range(5)]
            await zombie.start([begin(key) for key in keys], GRACE)
            helds = await zombie.hold(keys, "w1", SHORT)
            await asyncio.sleep(0.002)
            group = [step(held, 2, 2) for held in helds if isinstance(held, Held)]
            answers, taken = await asyncio.gather(zombie.commit(group, GRACE), other.hold(keys[::-1], "w2", LEASE))
            assert all(isinstance(answer, Held) for answer in taken), taken
            for key, answer in zip(keys, answers):
                rows = await log(other, key)
                check_log(rows, key)
                written = [Started, ActionSettled, ActionSettled] if answer == "ok" else [Started]
                assert kinds(rows) == [*written, TakenOver]

    play(emptied_mongodb, 2, body)


def test_a_barrier_goes_behind_a_commit_in_flight(emptied_mongodb: str) -> None:
    async def body(zombie: MongoStore, other: MongoStore) -> None:
        await zombie.start([begin()], GRACE)
        [held] = await zombie.hold([ONE], "w1", SHORT)
        assert isinstance(held, Held)
        async with transaction(zombie) as session:
            rows = log_documents(ONE, step(held, 2).rows)
            await zombie._link.tables.events.insert_many(rows, session=session)
            taking = asyncio.create_task(other.hold([ONE], "w2", LEASE))
            await asyncio.wait([taking], timeout=0.02)
        [taken] = await taking
        assert isinstance(taken, Held)
        assert kinds(taken.rows) == [Started, ActionSettled, TakenOver]

    play(emptied_mongodb, 2, body)


def test_a_zombie_that_goes_on_writing_holds_up_nobody_else(emptied_mongodb: str) -> None:
    async def body(zombie: MongoStore, other: MongoStore) -> None:
        await zombie.start([begin(ONE), begin(TWO)], GRACE)
        helds = await zombie.hold([ONE, TWO], "w1", SHORT)
        assert isinstance(helds[0], Held)
        async with transaction(zombie) as session:
            rows = log_documents(ONE, step(helds[0], 2).rows)
            await zombie._link.tables.events.insert_many(rows, session=session)
            left, taken = await other.hold([ONE, TWO], "w2", LEASE)
            assert left == Queued(ONE)
            assert isinstance(taken, Held)
        head = await other.head(ONE)
        assert head is not None and head.due is not None
        assert (head.holder, head.lapses) == (None, 1)
        assert head.due <= await other.now() + 1_000_000
        # What was given back without a barrier gets one now.
        assert kinds((await take(other, ONE)).held.rows) == [Started, ActionSettled, TakenOver]

    play(emptied_mongodb, 2, body)


def test_a_hold_that_is_given_back_without_a_barrier_gets_one_later(emptied_mongodb: str) -> None:
    async def body(store: MongoStore, again: MongoStore) -> None:
        hand = await begun(store)
        async with transaction(store) as session:
            await store._link.tables.events.insert_many(log_documents(ONE, step(hand.held, 2).rows), session=session)
            assert await again.hold([ONE], "w1", LEASE) == [Queued(ONE)]  # the same worker: no lapse is counted
        assert kinds((await take(again)).held.rows) == [Started, ActionSettled, TakenOver]

    play(emptied_mongodb, 2, body)


def test_whoever_holds_again_knows_what_became_of_the_commit_in_flight(emptied_mongodb: str) -> None:
    async def body(store: MongoStore) -> None:
        for number in range(10):
            key = f"acme/{number}"
            hand = await begun(store, key)
            [outcome], [held] = await asyncio.gather(
                store.commit([step(hand.held, 2)], GRACE), store.hold([key], "w1", LEASE)
            )
            assert isinstance(held, Held)
            written = [Started, ActionSettled] if outcome == "ok" else [Started]
            assert kinds(held.rows) == [*written, TakenOver]

    play(emptied_mongodb, 1, body)


def test_two_who_hold_at_once_do_not_both_have_it(emptied_mongodb: str) -> None:
    async def body(*stores: MongoStore) -> None:
        for number in range(10):
            keys = [f"acme/{number}-{n}" for n in range(4)]
            await stores[0].start([begin(key) for key in keys], GRACE)
            answers = await asyncio.gather(*(store.hold(keys, f"w{n}", LEASE) for n, store in enumerate(stores)))
            for each in zip(*answers):
                assert [type(answer) for answer in each].count(Held) == 1, each

    play(emptied_mongodb, 3, body)


def test_what_was_given_back_is_not_settled(emptied_mongodb: str) -> None:
    async def body(store: MongoStore) -> None:
        hand = await begun(store)
        await store.release([(ONE, hand.token)])
        assert await hand.park(settled()) == await hand.end() == "stale"
        assert await store.renew([(ONE, hand.token)], LEASE) == set()
        assert kinds(await log(store)) == [Started]

    play(emptied_mongodb, 1, body)


def test_a_claim_without_grace_finds_nothing_twice_in_one_moment(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        store = MongoStore(emptied_mongodb, clock=ManualClock())
        await store.open()
        try:
            await store.start([begin()], 0)
            assert [len(await store.claim(QUEUES, DEFINITIONS, 10, 0)) for _ in range(3)] == [1, 0, 0]
        finally:
            await store.close()

    asyncio.run(scenario())


def test_what_was_parked_is_not_given_back_once_more(emptied_mongodb: str) -> None:
    async def body(store: MongoStore) -> None:
        hand = await begun(store)
        assert await hand.park(settled()) == "ok"
        await store.release([(ONE, hand.token)])
        assert await store.next_due(QUEUES, DEFINITIONS) is None

    play(emptied_mongodb, 1, body)


@pytest.mark.parametrize("done", [[], ["m1"]], ids=["step", "transaction"])
def test_a_message_is_folded_once_in_one_commit_too(emptied_mongodb: str, done: list[str]) -> None:
    """The index of messages sees what is in other documents."""

    async def body(store: MongoStore) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        assert await hand.commit(letter(), letter(), done=done) == "stale"
        assert await hand.commit(letter(), done=done) == "ok"
        assert await hand.commit(letter(), done=[]) == "stale"

    play(emptied_mongodb, 1, body)


def test_a_hold_that_was_lost_before_its_barrier_gets_none(emptied_mongodb: str) -> None:
    async def body(store: MongoStore) -> None:
        lost = await begun(store)
        hand = await take(store)
        now = await store.now()
        for key, token in ((ONE, lost.token), (ONE, hand.token), ("acme/none", 1)):
            counted = await store._link.transact_holding(
                lambda session, held={key: token}: Committing(store._link.tables, session, now).barriers(held, "w1")  # type: ignore[misc]
            )
            assert counted == ({ONE: 0} if token == hand.token else {})
        await store.release([(ONE, hand.token)])
        assert (
            await store._link.transact_holding(
                lambda session: Committing(store._link.tables, session, now).barriers({ONE: hand.token}, "w1")
            )
            == {}
        )
        assert kinds(await log(store)) == [Started, TakenOver, TakenOver]

    play(emptied_mongodb, 1, body)


@pytest.mark.parametrize("claims", [True, False])
def test_a_dead_worker_leaves_nothing_closed_to_others(emptied_mongodb: str, claims: bool) -> None:
    """It was killed in the middle of a transaction, which the server would keep open for a minute."""

    async def body(dead: MongoStore, other: MongoStore) -> None:
        lease = 300_000
        await dead.start([begin(ONE), begin(TWO)], GRACE)
        one, two = await dead.hold([ONE, TWO], "w1", lease)
        assert isinstance(one, Held) and isinstance(two, Held)
        session = dead._link._session
        assert session is not None
        await session.start_transaction()
        parks = [Commit(held.key, held.token, step(held, 2).rows, Park("open", None)) for held in (one, two)]
        assert await Committing(dead._link.tables, session, await dead.now()).commit(parks, GRACE, False) == {}
        await asyncio.sleep(0.4)
        began = time.monotonic()
        async with asyncio.timeout(10):
            if claims:
                assert [due.key for due in await other.claim(QUEUES, DEFINITIONS, 1, LEASE)] == [ONE]
            taken = await other.hold([ONE, TWO], "w2", LEASE)
        assert all(isinstance(answer, Held) for answer in taken), taken
        assert time.monotonic() - began < 5
        await session.abort_transaction()
        assert kinds(await log(other, ONE)) == kinds(await log(other, TWO)) == [Started, TakenOver]

    play(emptied_mongodb, 2, body)


def test_mail_that_a_dead_worker_was_folding_holds_up_no_claim(emptied_mongodb: str) -> None:
    """Its lease is not over, so nobody may end its session; the mail is closed to others, and is due before all."""

    async def body(dead: MongoStore, other: MongoStore) -> None:
        await dead.start([begin(ONE)], 0)
        hand = await take(dead)
        assert [sent.answer for sent in await dead.send([letter()], 0)] == ["accepted"]
        session = dead._link._session
        assert session is not None
        await session.start_transaction()
        fold = await hand.prepare(settled(), letter())
        assert await Committing(dead._link.tables, session, await dead.now()).commit([fold], GRACE, False) == {}
        keys = [f"acme/{n}" for n in range(3)]
        await other.start([begin(key) for key in keys], LEASE)
        await other.send([letter(key=key) for key in keys], 0)
        began = time.monotonic()
        found = [due.key for due in await other.claim(QUEUES, DEFINITIONS, 10, LEASE)]
        assert sorted(found) == keys
        assert time.monotonic() - began < 8
        await session.abort_transaction()
        assert [due.key for due in await other.claim(QUEUES, DEFINITIONS, 10, LEASE)] == [ONE]

    play(emptied_mongodb, 2, body)


def test_a_park_that_stands_still_in_the_middle_takes_no_other_lease_away(emptied_mongodb: str) -> None:
    """The event loop of a worker may be blocked there, and that is when another thread renews what it holds."""

    async def body(store: MongoStore, twin: MongoStore) -> None:
        one, two = await begun(store, ONE), await begun(store, TWO)
        session = store._link._session
        assert session is not None
        await session.start_transaction()
        parks = [await one.prepare(settled(), settle=Park("open", None))]
        assert await Committing(store._link.tables, session, await store.now()).commit(parks, GRACE, False) == {}
        began = time.monotonic()
        assert await twin.renew([(ONE, one.token), (TWO, two.token)], 3 * LEASE) == {TWO}
        assert time.monotonic() - began < 8
        head = await store.head(TWO)
        assert head is not None and head.due is not None and head.due > await store.now() + 2 * LEASE
        await session.abort_transaction()
        assert await twin.renew([(ONE, one.token), (TWO, two.token)], LEASE) == {ONE, TWO}

    play(emptied_mongodb, 2, body)


def test_groups_that_meet_in_any_order_do_not_hinder_each_other_for_ever(emptied_mongodb: str) -> None:
    async def body(*stores: MongoStore) -> None:
        keys = [f"acme/{number}" for number in range(12)]
        await stores[0].start([begin(key) for key in keys], GRACE)

        async def work(store: MongoStore, me: str, turn: int) -> None:
            for _ in range(8):
                mine = keys[turn:] + keys[:turn]
                helds = [held for held in await store.hold(mine, me, LEASE) if isinstance(held, Held)]
                last = {held.key: held.rows[-1].version for held in helds}
                group = [step(held, last[held.key] + 1) for held in helds]
                for number, commit in enumerate(group):
                    commit.settle = Park("open", None) if number % 2 else None
                    commit.mail = [letter(f"{me}-{last[commit.key]}", key) for key in mine[:3]]
                await store.commit(group, GRACE)
                await store.claim(QUEUES, DEFINITIONS, 10, 1)
                await store.release([(held.key, held.token) for held in helds])
                await store.send([letter(f"s-{me}-{turn}", key) for key in reversed(mine)], GRACE)

        async with asyncio.timeout(30):
            await asyncio.gather(*(work(store, f"w{n}", 4 * n) for n, store in enumerate(stores)))
        for key in keys:
            check_log(await log(stores[0], key), key)

    play(emptied_mongodb, 3, body)


def test_starts_of_the_same_keys_in_any_order_create_each_once(emptied_mongodb: str) -> None:
    async def body(one: MongoStore, two: MongoStore) -> None:
        for number in range(8):
            keys = [f"acme/{number}-{n}" for n in range(5)]
            here, there = await asyncio.gather(
                one.start([begin(key) for key in keys], GRACE),
                two.start([begin(key, sha="other") for key in reversed(keys)], GRACE),
            )
            assert sorted([*here, *there]) == ["conflict"] * 5 + ["created"] * 5
            for key, mine, theirs in zip(keys, here, reversed(there)):
                assert {mine, theirs} == {"created", "conflict"}
                assert kinds(await log(one, key)) == [Started]

    play(emptied_mongodb, 2, body)


def test_two_claims_at_once_share_out_what_is_due(emptied_mongodb: str) -> None:
    async def body(one: MongoStore, two: MongoStore) -> None:
        keys = [f"acme/{number}" for number in range(40)]
        await one.start([begin(key) for key in keys], 0)
        found: list[str] = []
        async with asyncio.timeout(20):
            while len(found) < 40:
                parts = await asyncio.gather(*(store.claim(QUEUES, DEFINITIONS, 7, LEASE) for store in (one, two)))
                found += [due.key for part in parts for due in part]
        assert sorted(found) == sorted(keys)

    play(emptied_mongodb, 2, body)


# Lanes


def test_an_end_never_leaves_the_next_of_its_lane_asleep(emptied_mongodb: str) -> None:
    async def body(one: MongoStore, two: MongoStore) -> None:
        for number in range(10):
            first, second = f"acme/{number}-a", f"acme/{number}-b"
            await one.start([begin(key, lane=f"lane-{number}") for key in (first, second)], LEASE)
            hand = await take(one, first)
            outcome, [answer] = await asyncio.gather(hand.end(), two.hold([second], "w2", LEASE))
            assert outcome == "ok"
            if isinstance(answer, Queued):
                assert [due.key for due in await two.claim(QUEUES, DEFINITIONS, 10, LEASE)] == [second]
            else:
                assert isinstance(answer, Held)

    play(emptied_mongodb, 2, body)


def test_an_end_that_cannot_see_a_start_in_its_lane_does_not_leave_it_asleep(emptied_mongodb: str) -> None:
    async def body(worker: MongoStore, other: MongoStore) -> None:
        await worker.start([begin(ONE, lane="a")], GRACE)
        hand = await take(worker, ONE)
        end = await hand.prepare(Completed(Raw(b"7")), settle=End("completed", b"7"))

        async def meanwhile() -> None:
            """What happens while the transaction of the end is open, but sees nothing of it."""
            await other.start([begin(TWO, lane="a")], LEASE)
            assert await other.hold([TWO], "w2", LEASE) == [Queued(TWO)]

        assert await in_the_middle(worker, [end], meanwhile) == {}
        assert await other.hold([ONE], "w2", LEASE) == [Gone(ONE)]
        assert [due.key for due in await other.claim(QUEUES, DEFINITIONS, 10, LEASE)] == [TWO]

    play(emptied_mongodb, 2, body)


def test_a_lane_is_held_in_the_order_in_which_its_starts_became_visible(emptied_mongodb: str) -> None:
    async def body(*stores: MongoStore) -> None:
        for number in range(10):
            lane, keys = f"lane-{number}", [f"acme/{number}-{n}" for n in range(3)]
            await asyncio.gather(
                *(store.start([begin(key, lane=lane)], GRACE) for store, key in zip(stores, keys, strict=True))
            )
            answers = await stores[0].hold(keys, "w1", LEASE)
            assert [type(answer) for answer in answers].count(Held) == 1
            wakes = [await stores[0]._link.tables.wakes.find_one({"_id": key}) for key in keys]
            assert len({wake["born"] for wake in wakes if wake is not None}) == 3

    play(emptied_mongodb, 3, body)
