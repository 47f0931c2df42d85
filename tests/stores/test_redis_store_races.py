"""Races between workers on one store in Redis: what must hold whoever comes first, and what each safeguard is for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure.core import events
from perdure.core.events import ActionSettled, Started, TakenOver
from perdure.core.records import Commit, Due, Held, Park, Queued
from perdure.errors import StoreError
from perdure.stores.redis import RedisStore, wires
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    SECOND,
    TWO,
    Hand,
    ManualClock,
    accepted,
    begin,
    begun,
    head_of,
    ids,
    kinds,
    letter,
    log,
    marked,
    settled,
    take,
)
from perdure.testing.invariants import check_log
from tests.stores.test_redis_store import fresh


def play(url: str, count: int, body: Callable[..., Awaitable[None]]) -> None:
    """Run a test's body with so many stores on one prefix, as so many processes would have."""
    address = fresh(url)

    async def run() -> None:
        stores = [RedisStore(address) for _ in range(count)]
        try:
            for store in stores:
                await store.open()
            async with asyncio.timeout(30):
                await body(*stores)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(run())


def with_clock(url: str, body: Callable[[RedisStore, ManualClock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = ManualClock()
        store = RedisStore(fresh(url), clock=clock)
        await store.open()
        try:
            await body(store, clock)
        finally:
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


def test_what_was_accepted_while_an_execution_ended_is_in_its_log_once(redis_url: str) -> None:
    async def body(worker: RedisStore, *clients: RedisStore) -> None:
        for number in range(50):
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

    play(redis_url, 3, body)


def test_a_duplicate_that_meets_its_own_fold_is_not_read_again(redis_url: str) -> None:
    async def body(worker: RedisStore, client: RedisStore) -> None:
        for number in range(50):
            key = f"acme/{number}"
            hand = await begun(worker, key)
            await accepted(client, letter(key=key))
            outcome, [sent] = await asyncio.gather(hand.commit(letter(key=key)), client.send([letter(key=key)], GRACE))
            assert (outcome, sent.answer) == ("ok", "duplicate")
            assert (await worker.mail([key]))[key] == []
            assert await hand.end() == "ok"

    play(redis_url, 2, body)


def step(held: Held, version: int, count: int = 1) -> Commit:
    rows = [events.row(settled(version + n), version + n, at=0, fence=held.token) for n in range(count)]
    return Commit(held.key, held.token, rows)


def test_a_zombies_group_and_a_take_over_leave_dense_logs(redis_url: str) -> None:
    async def body(zombie: RedisStore, other: RedisStore) -> None:
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

    play(redis_url, 2, body)


def test_whoever_holds_again_knows_what_became_of_the_commit_in_flight(redis_url: str) -> None:
    async def body(store: RedisStore) -> None:
        for number in range(50):
            key = f"acme/{number}"
            hand = await begun(store, key)
            [outcome], [held] = await asyncio.gather(
                store.commit([step(hand.held, 2)], GRACE), store.hold([key], "w1", LEASE)
            )
            assert isinstance(held, Held)
            written = [Started, ActionSettled] if outcome == "ok" else [Started]
            assert kinds(held.rows) == [*written, TakenOver]

    play(redis_url, 1, body)


def test_groups_of_many_workers_leave_every_log_whole(redis_url: str) -> None:
    async def body(*stores: RedisStore) -> None:
        keys = [f"acme/{number}" for number in range(20)]
        await stores[0].start([begin(key) for key in keys], GRACE)

        async def work(store: RedisStore, me: str, turn: int) -> None:
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

        await asyncio.gather(*(work(store, f"w{n}", 6 * n) for n, store in enumerate(stores)))
        for key in keys:
            check_log(await log(stores[0], key), key)

    play(redis_url, 3, body)


def test_starts_of_the_same_keys_in_any_order_create_each_once(redis_url: str) -> None:
    async def body(one: RedisStore, two: RedisStore) -> None:
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

    play(redis_url, 2, body)


def test_two_claims_at_once_share_out_what_is_due(redis_url: str) -> None:
    async def body(one: RedisStore, two: RedisStore) -> None:
        keys = [f"acme/{number}" for number in range(40)]
        await one.start([begin(key) for key in keys], 0)
        found: list[str] = []
        while len(found) < 40:
            parts = await asyncio.gather(*(store.claim(QUEUES, DEFINITIONS, 7, LEASE) for store in (one, two)))
            found += [due.key for part in parts for due in part]
        assert sorted(found) == sorted(keys)

    play(redis_url, 2, body)


def test_an_end_never_leaves_the_next_of_its_lane_asleep(redis_url: str) -> None:
    async def body(one: RedisStore, two: RedisStore) -> None:
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

    play(redis_url, 2, body)


def test_a_lane_that_was_asleep_with_its_mail_wakes_with_it(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        await store.start([begin(key, lane="a") for key in (ONE, TWO)], GRACE)
        hand = await take(store, ONE)
        await accepted(store, letter(key=TWO))
        assert await store.hold([TWO], "w2", LEASE) == [Queued(TWO)]
        clock.advance(10)
        assert await store.claim(QUEUES, DEFINITIONS, 10, GRACE) == []
        assert await hand.end() == "ok"
        assert await store.claim(QUEUES, DEFINITIONS, 10, GRACE) == [Due(TWO, "default")]

    with_clock(redis_url, body)


# What a step and a settlement compare


def test_a_zombie_writes_nothing_over_a_gap_or_over_another(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        assert await store.commit([step(hand.held, 5)], GRACE) == ["stale"]  # ahead of the log: a failover lost some
        assert await store.commit([step(hand.held, 2)], GRACE) == ["ok"]
        assert await store.commit([step(hand.held, 2)], GRACE) == ["stale"]
        check_log(await log(store), ONE)

    with_clock(redis_url, body)


def test_a_settlement_needs_the_token_of_a_hold_that_stands(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        old = await begun(store)
        clock.advance(31)
        await store.claim(QUEUES, DEFINITIONS, 10, GRACE)
        assert await old.park() == "stale"
        new = await take(store, me="w2")
        old.version = new.version
        assert await old.park() == "stale"
        assert (await head_of(store)).holder == "w2"

    with_clock(redis_url, body)


def test_a_message_is_folded_once_in_one_commit_too(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        assert await hand.commit(letter(), letter(), done=["m1"]) == "stale"
        assert await hand.commit(letter(), done=[]) == "ok"
        assert await hand.commit(letter(), done=[]) == "stale"
        assert ids((await store.mail([ONE]))[ONE]) == []
        check_log(await log(store), ONE)

    with_clock(redis_url, body)


def test_an_end_that_leaves_mail_is_refused(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        await accepted(store, letter("m1"), letter("m2"))
        assert await hand.end(letter("m1")) == "mail"
        assert await hand.commit(settled(), done=["m1", "m3"]) == "stale"
        assert (await head_of(store)).status == "open"
        assert await hand.end(letter("m1"), letter("m2")) == "ok"
        assert [row.message_id for row in await log(store)] == [None, "m1", "m2", None]

    with_clock(redis_url, body)


def test_what_was_given_back_is_not_settled(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        await store.release([(ONE, hand.token)])
        assert await hand.end() == "stale"
        assert await store.renew([(ONE, hand.token)], LEASE) == set()

    with_clock(redis_url, body)


def test_what_was_parked_is_not_given_back_once_more(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        assert await hand.park(settled()) == "ok"
        await store.release([(ONE, hand.token)])
        assert await store.next_due(QUEUES, DEFINITIONS) is None

    with_clock(redis_url, body)


def test_an_end_empties_the_mailbox_of_what_is_in_the_log(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        assert await hand.commit(letter(), done=[]) == "ok"
        assert await hand.end() == "ok"
        assert (await head_of(store)).mail == 0
        assert (await store.send([letter()], GRACE))[0].version == 2

    with_clock(redis_url, body)


def test_a_claim_without_grace_finds_nothing_twice_in_one_moment(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        await store.start([begin()], 0)
        assert [len(await store.claim(QUEUES, DEFINITIONS, 10, 0)) for _ in range(3)] == [1, 0, 0]

    with_clock(redis_url, body)


def test_a_claim_delays_no_mail_that_is_not_due(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        await store.start([begin()], 0)
        await accepted(store, letter())
        assert [due.key for due in await store.claim(QUEUES, DEFINITIONS, 10, LEASE)] == [ONE]
        assert await store.next_due(QUEUES, DEFINITIONS) == clock() + GRACE

    with_clock(redis_url, body)


def test_a_hold_begins_the_hints_anew(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        await store.start([begin()], 0)
        for _ in range(3):
            assert len(await store.claim(QUEUES, DEFINITIONS, 10, GRACE)) == 1
            clock.advance(60)
        await take(store)
        clock.advance(31)
        assert len(await store.claim(QUEUES, DEFINITIONS, 10, GRACE)) == 1
        assert await store.next_due(QUEUES, DEFINITIONS) == clock() + GRACE

    with_clock(redis_url, body)


def test_a_lapse_is_counted_and_ends_the_token(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        clock.advance(31)
        await store.claim(QUEUES, DEFINITIONS, 10, GRACE)
        head = await head_of(store)
        assert (head.lapses, head.token) == (1, hand.token + 1)

    with_clock(redis_url, body)


def test_mail_that_comes_later_delays_no_mail(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        await hand.park()
        await accepted(store, letter("m1"))
        clock.advance(1)
        await accepted(store, letter("m2"))
        assert await store.next_due(QUEUES, DEFINITIONS) == clock() + GRACE - SECOND

    with_clock(redis_url, body)


def test_a_timer_does_not_fire_before_the_servers_time(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        due = clock() + SECOND
        assert await hand.commit(marked(), fired=due) == "early"
        clock.advance(1)
        assert await hand.commit(marked(), fired=due) == "ok"

    with_clock(redis_url, body)


def test_what_was_lost_by_its_holder_has_a_barrier_before_anything_else(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        zombie = await begun(store)
        clock.advance(31)
        await store.claim(QUEUES, DEFINITIONS, 10, GRACE)
        await take(store, me="w2")
        assert await zombie.commit(settled()) == "stale"

    with_clock(redis_url, body)


def test_mail_wakes_what_waits_for_nothing_else(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        hand = await begun(store)
        assert await hand.park() == "ok"
        await accepted(store, letter())
        clock.advance(3)
        assert await store.claim(QUEUES, DEFINITIONS, 10, GRACE) == [Due(ONE, "default")]

    with_clock(redis_url, body)


def test_tenants_go_on_where_the_last_claim_ended(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        keys = [f"{tenant}/{number}" for tenant in "abc" for number in range(4)]
        await store.start([begin(key) for key in keys], 0)
        clock.advance(1)
        found = [due.key[0] for _ in range(6) for due in await store.claim(QUEUES, DEFINITIONS, 1, LEASE)]
        assert found == ["a", "b", "c", "a", "b", "c"]

    with_clock(redis_url, body)


def test_a_step_that_is_lost_leaves_the_rest_of_its_group_alone(redis_url: str) -> None:
    async def body(store: RedisStore, clock: ManualClock) -> None:
        one, two = await begun(store, ONE), await begun(store, TWO)
        group = [await one.prepare(settled()), await two.prepare(settled(), children=[begin("acme/child")])]
        await one.commit(settled())
        assert await store.commit(group, GRACE) == ["stale", "ok"]
        assert await store.head("acme/child") is not None

    with_clock(redis_url, body)


# Each safeguard is taken away, and a test must notice

MISSED: list[tuple[str, str, Callable[[str], None]]] = [
    (
        "version > 0 and version ~= x.n + 1",
        "version > 0 and version <= x.n",
        test_a_zombie_writes_nothing_over_a_gap_or_over_another,
    ),
    (
        "version > 0 and version ~= x.n + 1",
        "version > x.n + 1",
        test_a_zombie_writes_nothing_over_a_gap_or_over_another,
    ),
    ("if not clean then", "if false then", test_what_was_lost_by_its_holder_has_a_barrier_before_anything_else),
    (
        "if kind and not (x.hold and x.tok == token) then",
        "if false then",
        test_a_settlement_needs_the_token_of_a_hold_that_stands,
    ),
    ("(x.hold and x.tok == token)", "x.hold", test_a_settlement_needs_the_token_of_a_hold_that_stands),
    ("(x.hold and x.tok == token)", "(x.tok == token)", test_what_was_given_back_is_not_settled),
    ("if refused and kind == 'end' then", "if false then", test_an_end_that_leaves_mail_is_refused),
    ("seen[one[1]] or", "", test_a_message_is_folded_once_in_one_commit_too),
    ("or call('HEXISTS', P .. 'f:' .. key, one[1]) == 1", "", test_a_message_is_folded_once_in_one_commit_too),
    (
        "not folded or call('HEXISTS', P .. 'f:' .. key, box[n]) == 0",
        "true",
        test_a_message_is_folded_once_in_one_commit_too,
    ),
    ("if call('HEXISTS', P .. 'm:' .. key, id) == 0 then", "if false then", test_an_end_that_leaves_mail_is_refused),
    ("if fired and fired > now then", "if false then", test_a_timer_does_not_fire_before_the_servers_time),
    ("x.mdue = math.min(x.mdue or due, due)", "", test_mail_wakes_what_waits_for_nothing_else),
    ("x.mdue = math.min(x.mdue or due, due)", "x.mdue = due", test_mail_that_comes_later_delays_no_mail),
    ("following.due = now", "", test_a_lane_that_was_asleep_with_its_mail_wakes_with_it),
    ("x.due, x.mdue, x.hints = nil, nil, 0", "", test_a_lane_that_was_asleep_with_its_mail_wakes_with_it),
    ("if not first_in_lane(x) then", "if false then", test_a_lane_that_was_asleep_with_its_mail_wakes_with_it),
    ("order[begin] <= (turn[1] or '')", "false", test_tenants_go_on_where_the_last_claim_ended),
    ("x.hold, x.lap, x.tok = nil, x.lap + 1, x.tok + 1", "x.hold = nil", test_a_lapse_is_counted_and_ends_the_token),
    ("if there then", "if false then", test_starts_of_the_same_keys_in_any_order_create_each_once),
]


@pytest.mark.parametrize(("old", "new", "test"), MISSED)
def test_a_safeguard_is_missed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, old: str, new: str, test: Callable[[str], None]
) -> None:
    whole = wires.script
    assert any(old in whole(name) for name in wires.WRITERS)
    monkeypatch.setattr(wires, "script", lambda name: whole(name).replace(old, new))
    with pytest.raises((AssertionError, StoreError)):
        test(redis_url)
