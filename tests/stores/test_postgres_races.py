"""Races between workers, on a real server: what must hold whoever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import Raw

from perdure.core import events
from perdure.core.events import PROGRESS, ActionSettled, Completed, Started, TakenOver
from perdure.core.records import Busy, Commit, End, Gone, Held, Park, Queued
from perdure.errors import StoreError
from perdure.stores.postgres import PostgresStore
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    TWO,
    Hand,
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
from tests.stores.edited import Edited

STORE: type[PostgresStore] = PostgresStore


def play(url: str, count: int, body: Callable[..., Awaitable[None]]) -> None:
    """Run a test's body with so many stores on one schema, as so many processes would have."""

    async def run() -> None:
        stores = [STORE(url) for _ in range(count)]
        try:
            for store in stores:
                await store.open()
            await body(*stores)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(run())


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


def test_what_was_accepted_while_an_execution_ended_is_in_its_log_once(postgres: str) -> None:
    async def body(worker: PostgresStore, *clients: PostgresStore) -> None:
        for number in range(30):
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

    play(postgres, 3, body)


def test_a_duplicate_that_meets_its_own_fold_is_not_read_again(postgres: str) -> None:
    async def body(worker: PostgresStore, client: PostgresStore) -> None:
        for number in range(30):
            key = f"acme/{number}"
            hand = await begun(worker, key)
            await accepted(client, letter(key=key))
            outcome, [sent] = await asyncio.gather(hand.commit(letter(key=key)), client.send([letter(key=key)], GRACE))
            assert outcome == "ok"
            assert sent.answer in ("duplicate", "accepted")
            assert (await worker.mail([key]))[key] == []
            assert await hand.end() == "ok"
            check_log(await log(worker, key), key)

    play(postgres, 2, body)


def step(held: Held, version: int, count: int = 1) -> Commit:
    rows = [events.row(settled(version + n), version + n, at=0, fence=held.token) for n in range(count)]
    return Commit(held.key, held.token, rows)


def test_a_zombies_group_and_a_take_over_leave_dense_logs(postgres: str) -> None:
    async def body(zombie: PostgresStore, other: PostgresStore) -> None:
        for number in range(30):
            keys = [f"acme/{number}-{n}" for n in range(5)]
            await zombie.start([begin(key) for key in keys], GRACE)
            helds = await zombie.hold(keys, "w1", 1)
            group = [step(held, 2, 2) for held in helds if isinstance(held, Held)]
            answers, taken = await asyncio.gather(zombie.commit(group, GRACE), other.hold(keys[::-1], "w2", LEASE))
            assert all(isinstance(answer, Held) for answer in taken)
            for key, answer in zip(keys, answers):
                rows = await log(other, key)
                check_log(rows, key)
                written = [Started, ActionSettled, ActionSettled] if answer == "ok" else [Started]
                assert kinds(rows) == [*written, TakenOver]

    play(postgres, 2, body)


def test_a_barrier_goes_behind_a_commit_in_flight(postgres: str) -> None:
    async def body(zombie: PostgresStore, other: PostgresStore) -> None:
        await zombie.start([begin()], GRACE)
        [held] = await zombie.hold([ONE], "w1", 1)
        assert isinstance(held, Held)
        async with zombie.transaction() as connection:
            assert await zombie.commit_in(connection, [step(held, 2)], GRACE) == ["ok"]
            taking = asyncio.create_task(other.hold([ONE], "w2", LEASE))
            await asyncio.wait([taking], timeout=0.2)
        [taken] = await taking
        assert isinstance(taken, Held)
        assert kinds(taken.rows) == [Started, ActionSettled, TakenOver]

    play(postgres, 2, body)


def test_a_zombie_that_goes_on_writing_holds_up_nobody_else(postgres: str) -> None:
    async def body(zombie: PostgresStore, other: PostgresStore) -> None:
        await zombie.start([begin(ONE), begin(TWO)], GRACE)
        [held] = await zombie.hold([ONE], "w1", 1)
        assert isinstance(held, Held)
        async with zombie.transaction() as connection:
            assert await zombie.commit_in(connection, [step(held, 2)], GRACE) == ["ok"]
            left, taken = await other.hold([ONE, TWO], "w2", LEASE)
            assert left == Queued(ONE)
            assert isinstance(taken, Held)
        head = await other.head(ONE)
        assert head is not None
        assert (head.holder, head.lapses) == (None, 1)
        assert head.due is not None
        assert head.due <= await other.now() + 1_000_000
        assert kinds((await take(other, ONE)).held.rows) == [Started, ActionSettled, TakenOver]

    play(postgres, 2, body)


def test_what_was_given_back_without_a_barrier_gets_one_later(postgres: str) -> None:
    async def body(store: PostgresStore, again: PostgresStore) -> None:
        hand = await begun(store)
        async with store.transaction() as connection:
            assert await store.commit_in(connection, [step(hand.held, 2)], GRACE) == ["ok"]
            assert await again.hold([ONE], "w1", LEASE) == [Queued(ONE)]
        assert kinds((await take(again)).held.rows) == [Started, ActionSettled, TakenOver]

    play(postgres, 2, body)


def test_a_hold_that_waits_holds_up_no_park_of_another_worker(postgres: str) -> None:
    async def body(here: PostgresStore, there: PostgresStore) -> None:
        busy = await begun(here, ONE)
        await here.start([begin(TWO)], GRACE)
        async with here.transaction() as connection:
            await connection.execute(f"select 1 from {here._sql.schema}.wakes where key = $1 for update", TWO)
            waiting = asyncio.create_task(there.hold([ONE, TWO], "w2", LEASE))
            await asyncio.wait([waiting], timeout=0.1)
            assert await asyncio.wait_for(busy.park(settled()), 20) == "ok"
            assert not waiting.done()
        # What was given back while it waited is asked for again.
        assert all(isinstance(answer, Held) for answer in await waiting)

    play(postgres, 2, body)


def test_whoever_holds_again_knows_what_became_of_the_commit_in_flight(postgres: str) -> None:
    async def body(store: PostgresStore) -> None:
        for number in range(30):
            key = f"acme/{number}"
            hand = await begun(store, key)
            [outcome], [held] = await asyncio.gather(
                store.commit([step(hand.held, 2)], GRACE), store.hold([key], "w1", LEASE)
            )
            assert isinstance(held, Held)
            written = [Started, ActionSettled] if outcome == "ok" else [Started]
            assert kinds(held.rows) == [*written, TakenOver]

    play(postgres, 1, body)


def test_groups_that_meet_in_any_order_do_not_wait_for_each_other_for_ever(postgres: str) -> None:
    async def body(*stores: PostgresStore) -> None:
        keys = [f"acme/{number}" for number in range(20)]
        await stores[0].start([begin(key) for key in keys], GRACE)

        async def work(store: PostgresStore, me: str, turn: int) -> None:
            for _ in range(15):
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
            await asyncio.gather(*(work(store, f"w{n}", 6 * n) for n, store in enumerate(stores)))
        for key in keys:
            check_log(await log(stores[0], key), key)

    play(postgres, 3, body)


def test_starts_of_the_same_keys_in_any_order_create_each_once(postgres: str) -> None:
    async def body(one: PostgresStore, two: PostgresStore) -> None:
        for number in range(20):
            keys = [f"acme/{number}-{n}" for n in range(5)]
            here, there = await asyncio.gather(
                one.start([begin(key) for key in keys], GRACE),
                two.start([begin(key, sha="other") for key in reversed(keys)], GRACE),
            )
            assert sorted([*here, *there]) == ["conflict"] * 5 + ["created"] * 5
            for key, mine, theirs in zip(keys, here, reversed(there)):
                assert {mine, theirs} == {"created", "conflict"}
                assert kinds(await log(one, key)) == [Started]

    play(postgres, 2, body)


def test_two_claims_at_once_share_out_what_is_due(postgres: str) -> None:
    async def body(one: PostgresStore, two: PostgresStore) -> None:
        keys = [f"acme/{number}" for number in range(40)]
        await one.start([begin(key) for key in keys], 0)
        found: list[str] = []
        while len(found) < 40:
            parts = await asyncio.gather(*(store.claim(QUEUES, DEFINITIONS, 7, LEASE) for store in (one, two)))
            found += [due.key for part in parts for due in part]
        assert sorted(found) == sorted(keys)

    play(postgres, 2, body)


def test_a_claim_waits_for_no_row_that_somebody_has_locked(postgres: str) -> None:
    async def body(one: PostgresStore, two: PostgresStore) -> None:
        await one.start([begin(ONE), begin(TWO)], 0)
        async with one.transaction() as connection:
            await hold_in(one, connection, ONE)
            async with asyncio.timeout(5):
                assert [due.key for due in await two.claim(QUEUES, DEFINITIONS, 10, GRACE)] == [TWO]

    play(postgres, 2, body)


def test_what_has_changed_while_a_verb_waited_for_its_lock_is_looked_at_again(postgres: str) -> None:
    async def body(one: PostgresStore, two: PostgresStore, three: PostgresStore) -> None:
        await one.start([begin(ONE)], GRACE)
        [held] = await two.hold([ONE], "w2", 1)  # which is over at once
        assert isinstance(held, Held)
        park = step(held, 2)
        park.settle = Park("open", None)
        async with one.transaction() as connection:
            await hold_in(one, connection, ONE)
            verbs = two.renew([(ONE, held.token)], LEASE), two.release([(ONE, held.token)]), three.hold([ONE], "w3", 1)
            waiting = [asyncio.create_task(verb) for verb in (*verbs, two.commit([park], GRACE))]
            await asyncio.wait(waiting, timeout=0.3)
            assert not any(task.done() for task in waiting)
        renewed, _, taken, parked = await asyncio.gather(*waiting)
        assert (renewed, taken, parked) == (set(), [Busy(ONE, "w1")], ["stale"])

    play(postgres, 3, body)


# Lanes


def test_an_end_never_leaves_the_next_of_its_lane_asleep(postgres: str) -> None:
    async def body(one: PostgresStore, two: PostgresStore) -> None:
        for number in range(40):
            first, second = f"acme/{number}-a", f"acme/{number}-b"
            await one.start([begin(key, lane=f"lane-{number}") for key in (first, second)], LEASE)
            hand = await take(one, first)
            outcome, [answer] = await asyncio.gather(hand.end(), two.hold([second], "w2", LEASE))
            assert outcome == "ok"
            if isinstance(answer, Queued):
                assert [due.key for due in await two.claim(QUEUES, DEFINITIONS, 10, LEASE)] == [second]
            else:
                assert isinstance(answer, Held)

    play(postgres, 2, body)


def test_a_lane_is_never_held_twice_although_the_older_start_commits_later(postgres: str) -> None:
    async def body(one: PostgresStore, two: PostgresStore) -> None:
        async with one.transaction() as connection:
            await one.start_in(connection, [begin(ONE, lane="a")], GRACE)
            await two.start([begin(TWO, lane="a")], GRACE)
            hand = await take(two, TWO)
        assert await one.hold([ONE], "w2", LEASE) == [Queued(ONE)]
        assert await hand.end() == "ok"
        assert isinstance((await one.hold([ONE], "w2", LEASE))[0], Held)

    play(postgres, 2, body)


async def hold_in(store: PostgresStore, connection: Any, key: str) -> None:
    """Hold inside a transaction that stays open."""
    taken = await connection.fetch(store._sql.hold, [key], "{NULL}", "{NULL}", "w1", LEASE, 8, sorted(PROGRESS))
    assert next(what for what, *_ in taken) == 0


def test_a_lane_is_not_held_twice_while_the_first_hold_is_being_written(postgres: str) -> None:
    async def body(one: PostgresStore, two: PostgresStore) -> None:
        async with two.transaction() as holding:
            async with one.transaction() as starting:
                await one.start_in(starting, [begin(ONE, lane="a")], GRACE)
                await two.start([begin(TWO, lane="a")], GRACE)
                await hold_in(two, holding, TWO)
            second = asyncio.create_task(one.hold([ONE], "w2", LEASE))
            await asyncio.wait([second], timeout=0.2)
        assert await second == [Queued(ONE)]

    play(postgres, 2, body)


def test_a_hold_that_meets_an_end_in_its_lane_waits_for_it(postgres: str) -> None:
    async def body(one: PostgresStore, two: PostgresStore) -> None:
        await one.start([begin(key, lane="a") for key in (ONE, TWO)], GRACE)
        hand = await take(one, ONE)
        end = await hand.prepare(Completed(Raw(b"7")), settle=End("completed", b"7"))
        async with one.transaction() as connection:
            assert await one.commit_in(connection, [end], GRACE) == ["ok"]
            waiting = asyncio.create_task(two.hold([TWO], "w2", LEASE))
            await asyncio.wait([waiting], timeout=0.2)
        assert isinstance((await waiting)[0], Held)

    play(postgres, 2, body)


# Senders with transactions of their own


def test_an_end_does_not_wait_for_a_sender_whose_transaction_stays_open(postgres: str) -> None:
    async def body(worker: PostgresStore, client: PostgresStore) -> None:
        hand, neighbour = await begun(worker, ONE), await begun(worker, TWO)
        async with client.transaction() as connection:
            await client.send_in(connection, [letter()], GRACE)
            group = [
                await hand.prepare(Completed(Raw(b"7")), settle=End("completed", b"7")),
                await neighbour.prepare(settled()),
            ]
            assert await worker.commit(group, GRACE) == ["mail", "ok"]
            assert (await worker.mail([ONE]))[ONE] == []
        assert await hand.end() == "mail"
        await ended_with(hand)
        assert "m1" in [row.message_id for row in await log(worker)]

    play(postgres, 2, body)


def test_an_execution_ends_when_the_senders_transaction_is_rolled_back(postgres: str) -> None:
    class Changed(Exception):
        pass

    async def body(worker: PostgresStore, client: PostgresStore) -> None:
        hand = await begun(worker)
        try:
            async with client.transaction() as connection:
                await client.send_in(connection, [letter()], GRACE)
                raise Changed
        except Changed:
            pass
        assert await hand.end() == "ok"
        assert await worker.hold([ONE], "w1", LEASE) == [Gone(ONE)]

    play(postgres, 2, body)


# Each safeguard is taken away, and a test must notice


MISSED: list[tuple[str, str, str, Callable[[str], None]]] = [
    ("send", "for key share", "", test_an_end_does_not_wait_for_a_sender_whose_transaction_stays_open),
    ("take_over", "exit when found", "exit", test_a_barrier_goes_behind_a_commit_in_flight),
    (
        "take_over",
        "lock_timeout TO '500ms'",
        "lock_timeout TO 0",
        test_a_zombie_that_goes_on_writing_holds_up_nobody_else,
    ),
    ("hold", "greatest(w.lapses, 1)", "w.lapses", test_what_was_given_back_without_a_barrier_gets_one_later),
    ("hold", "pg_advisory_xact_lock", "", test_a_lane_is_not_held_twice_while_the_first_hold_is_being_written),
    (
        "hold",
        "else 0 end",
        "else w.born end",
        test_a_lane_is_never_held_twice_although_the_older_start_commits_later,
    ),
    ("commit_group", "skip locked", "", test_an_end_does_not_wait_for_a_sender_whose_transaction_stays_open),
]


@pytest.mark.parametrize(("function", "old", "new", "test"), MISSED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_safeguard_is_missed(
    postgres: str, monkeypatch: pytest.MonkeyPatch, function: str, old: str, new: str, test: Callable[[str], None]
) -> None:
    class Without(Edited):
        edits = ((function, old, new),)

    monkeypatch.setitem(globals(), "STORE", Without)
    with pytest.raises((AssertionError, StoreError)):
        test(postgres + "&lock_timeout=0.1&idle_timeout=2&statement_timeout=2")
