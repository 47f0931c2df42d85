"""Races between workers on DynamoDB, and what a lost connection, a crash or a busy server does."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from perdure.core import events
from perdure.core.events import ActionSettled, Started, TakenOver
from perdure.core.records import Busy, Commit, Gone, Held, Park, Query, Queued
from perdure.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from perdure.stores.dynamodb import DynamoStore, wire
from perdure.stores.dynamodb.items import home
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    THREE,
    TWO,
    Hand,
    ManualClock,
    accepted,
    begin,
    begun,
    kinds,
    letter,
    log,
    marked,
    settled,
    take,
)
from perdure.testing.invariants import check_log
from perdure.testing.proxy import Cut, Proxy
from perdure.testing.servers.dynamodb import DynamoServer

#: How often each race is run.
TIMES = 5


def play(url: str, count: int, body: Callable[..., Awaitable[None]], clock: ManualClock | None = None) -> None:
    """Run a test's body with so many stores on one table, as so many processes would have."""

    async def run() -> None:
        stores = [DynamoStore(url, clock=clock) for _ in range(count)]
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


def step(held: Held, version: int, count: int = 1) -> Commit:
    rows = [events.row(settled(version + n), version + n, at=0, fence=held.token) for n in range(count)]
    return Commit(held.key, held.token, rows)


def test_what_was_accepted_while_an_execution_ended_is_in_its_log_once(dynamodb: str) -> None:
    async def body(worker: DynamoStore, *clients: DynamoStore) -> None:
        for number in range(TIMES):
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
            assert sent.count("accepted") <= 1
            assert (await worker.mail([key]))[key] == []

    play(dynamodb, 3, body)


def test_a_duplicate_that_meets_its_own_fold_is_a_duplicate(dynamodb: str) -> None:
    async def body(worker: DynamoStore, client: DynamoStore) -> None:
        for number in range(TIMES):
            key = f"acme/{number}"
            hand = await begun(worker, key)
            await accepted(client, letter(key=key))
            outcome, [sent] = await asyncio.gather(hand.commit(letter(key=key)), client.send([letter(key=key)], GRACE))
            assert (outcome, sent.answer) == ("ok", "duplicate")
            assert (await worker.mail([key]))[key] == []
            assert await hand.end() == "ok"
            check_log(await log(worker, key), key)

    play(dynamodb, 2, body)


def test_a_zombies_group_and_a_take_over_leave_dense_logs(dynamodb: str) -> None:
    async def body(zombie: DynamoStore, other: DynamoStore) -> None:
        for number in range(TIMES):
            keys = [f"acme/{number}-{n}" for n in range(5)]
            await zombie.start([begin(key) for key in keys], GRACE)
            helds = await zombie.hold(keys, "w1", 1)
            group = [step(held, 2, 2) for held in helds if isinstance(held, Held)]
            answers, taken = await asyncio.gather(zombie.commit(group, GRACE), other.hold(keys[::-1], "w2", LEASE))
            assert all(isinstance(answer, Held) for answer in taken)
            for key, answer in zip(keys, answers, strict=True):
                rows = await log(other, key)
                check_log(rows, key)
                written = [Started, ActionSettled, ActionSettled] if answer == "ok" else [Started]
                assert kinds(rows) == [*written, TakenOver]

    play(dynamodb, 2, body)


def test_of_many_who_want_an_execution_one_gets_it(dynamodb: str) -> None:
    async def body(*stores: DynamoStore) -> None:
        for number in range(TIMES):
            key = f"acme/{number}"
            await stores[0].start([begin(key)], GRACE)
            tries = (store.hold([key], f"w{place}", LEASE) for place, store in enumerate(stores))
            held = [answer for [answer] in await asyncio.gather(*tries) if isinstance(answer, Held)]
            assert len(held) == 1
            assert kinds(held[0].rows) == [Started]

    play(dynamodb, 4, body)


def test_claims_of_many_are_disjoint(dynamodb: str) -> None:
    async def body(*stores: DynamoStore) -> None:
        keys = sorted(f"acme/{number:02}" for number in range(24))
        await stores[0].start([begin(key) for key in keys], 0)
        claims = (store.claim(QUEUES, DEFINITIONS, 24, 100 * GRACE) for store in stores)
        found = [due.key for part in await asyncio.gather(*claims) for due in part]
        assert sorted(found) == keys

    play(dynamodb, 3, body)


def test_a_letter_that_somebody_else_has_just_claimed_is_not_hinted_again(dynamodb: str) -> None:
    async def body(one: DynamoStore, two: DynamoStore) -> None:
        await (await begun(one)).park()
        await one.send([letter()], 0)
        meanwhile(two._table, "update_each", lambda: one.claim(QUEUES, DEFINITIONS, 10, 100 * GRACE))
        assert await two.claim(QUEUES, DEFINITIONS, 10, GRACE) == []

    play(dynamodb, 2, body)


def test_of_many_starts_with_one_key_one_creates_it(dynamodb: str) -> None:
    async def body(*stores: DynamoStore) -> None:
        for number in range(TIMES):
            starts = (store.start([begin(f"acme/{number}")], GRACE) for store in stores)
            answers = sorted(answer for [answer] in await asyncio.gather(*starts))
            assert answers == ["created", "same", "same", "same"]
        assert len(await stores[0].find(Query("acme"))) == TIMES

    play(dynamodb, 4, body)


def test_mail_of_many_senders_is_all_there_in_the_order_of_each(dynamodb: str) -> None:
    async def body(*stores: DynamoStore) -> None:
        await stores[0].start([begin()], GRACE)

        async def sender(name: str, store: DynamoStore) -> None:
            for number in range(6):
                await accepted(store, letter(f"{name}{number}"))

        await asyncio.gather(*(sender(name, store) for name, store in zip("abc", stores, strict=True)))
        hand, got = await take(stores[0]), []
        while mail := (await stores[0].mail([ONE]))[ONE]:
            got += [one.id for one in mail]
            assert await hand.commit(*mail) == "ok"
        for name in "abc":
            assert [id for id in got if id.startswith(name)] == [f"{name}{number}" for number in range(6)]

    play(dynamodb, 3, body)


def test_a_busy_mailbox_does_not_hold_up_its_holder(dynamodb: str) -> None:
    async def body(worker: DynamoStore, client: DynamoStore) -> None:
        hand = await begun(worker)

        async def flood() -> None:
            for number in range(20):
                await accepted(client, letter(f"m{number}"))

        async def work() -> None:
            for number in range(20):
                assert await hand.commit(settled(number)) == "ok"

        await asyncio.gather(flood(), work())
        assert (await worker.head(ONE)).mail == 20  # type: ignore[union-attr]

    play(dynamodb, 2, body)


def test_a_lane_has_one_holder_and_loses_nobody_whoever_ends_and_comes(dynamodb: str) -> None:
    async def body(one: DynamoStore, two: DynamoStore) -> None:
        for number in range(TIMES):
            keys = [f"acme/{number}-{n}" for n in range(3)]
            await one.start([begin(key, lane=f"l{number}") for key in keys], GRACE)
            hand = await take(one, keys[0])
            outcome, [answer] = await asyncio.gather(hand.end(), two.hold([keys[1]], "w2", LEASE))
            assert outcome == "ok"
            head = await one.head(keys[1])
            assert head is not None
            if isinstance(answer, Queued):
                assert head.due is not None, "nobody will ever wake it"
                assert head.due <= await one.now()
            else:
                assert head.holder == "w2"
            assert await two.hold([keys[2]], "w2", LEASE) == [Queued(keys[2])]

    play(dynamodb, 2, body)


def meanwhile(thing: Any, name: str, what: Callable[[], Awaitable[Any]]) -> None:
    """Let something happen once, just before a method of this thing goes on."""
    method, happened = getattr(thing, name), []

    async def after(*args: Any, **parts: Any) -> Any:
        if not happened:
            happened.append(True)
            await what()
        return await method(*args, **parts)

    setattr(thing, name, after)


def test_who_goes_to_sleep_when_the_first_of_its_lane_has_just_ended_has_its_turn(dynamodb: str) -> None:
    async def body(one: DynamoStore, two: DynamoStore) -> None:
        await one.start([begin(ONE, lane="a"), begin(TWO, lane="a")], 0)
        first = await take(one)
        meanwhile(two._table, "write", first.end)
        [answer] = await two.hold([TWO], "w2", LEASE)
        assert isinstance(answer, Held)

    # Time stands still: that it was made due again cannot be seen by its due time.
    play(dynamodb, 2, body, ManualClock())


def test_a_letter_that_comes_when_its_execution_has_just_ended_is_not_accepted(dynamodb: str) -> None:
    async def body(worker: DynamoStore, client: DynamoStore) -> None:
        hand = await begun(worker)
        meanwhile(client._table, "write", hand.end)
        [sent] = await client.send([letter()], GRACE)
        assert sent.answer == "ended"
        assert await worker.message(ONE, "m1") is None

    play(dynamodb, 2, body)


def test_letters_keep_their_order_though_another_sender_was_slow(dynamodb: str) -> None:
    async def body(slow: DynamoStore, quick: DynamoStore) -> None:
        await slow.start([begin()], GRACE)

        async def overtake() -> None:
            await accepted(quick, letter("b0"))
            await accepted(quick, letter("b1"))

        meanwhile(slow._table, "write", overtake)
        await accepted(slow, letter("a0"))
        await accepted(quick, letter("b2"))
        items = await slow._table.wire.all(home(ONE), IndexName="mail", by="seq")
        assert [(item["sk"], item["seq"]) for item in items] == [("m#b0", 1), ("m#b1", 2), ("m#a0", 3), ("m#b2", 4)]

    play(dynamodb, 2, body)


def test_who_was_slow_to_start_stands_behind_those_who_were_sooner(dynamodb: str) -> None:
    async def body(slow: DynamoStore, quick: DynamoStore) -> None:
        async def overtake() -> None:
            await (await begun(quick, ONE, lane="a")).end()
            await quick.start([begin(TWO, lane="a")], GRACE)

        meanwhile(slow._table, "write", overtake)
        assert await slow.start([begin(THREE, lane="a")], GRACE) == ["created"]
        [last, first] = await slow.hold([THREE, TWO], "w1", LEASE)
        assert last == Queued(THREE)
        assert isinstance(first, Held)

    play(dynamodb, 2, body)


def test_an_end_that_comes_when_a_letter_has_just_been_accepted_folds_it(dynamodb: str) -> None:
    async def body(worker: DynamoStore, client: DynamoStore) -> None:
        hand = await begun(worker)
        meanwhile(worker._table, "write", lambda: accepted(client, letter()))
        assert await hand.end() == "mail"
        assert await hand.end(letter()) == "ok"
        assert [row.message_id for row in await log(worker)][1] == "m1"

    play(dynamodb, 2, body)


def test_a_row_that_brings_a_message_which_has_just_been_sent_is_stale(dynamodb: str) -> None:
    async def body(worker: DynamoStore, client: DynamoStore) -> None:
        hand = await begun(worker)
        meanwhile(worker._table, "write", lambda: accepted(client, letter()))
        assert await hand.commit(letter(), done=()) == "stale"
        assert await hand.end(letter()) == "ok"

    play(dynamodb, 2, body)


@pytest.mark.parametrize("count", [1, 2])
def test_a_barrier_goes_behind_a_commit_that_was_sooner(count: int, dynamodb: str) -> None:
    async def body(zombie: DynamoStore, other: DynamoStore) -> None:
        await zombie.start([begin()], GRACE)
        [held] = await zombie.hold([ONE], "w1", 1)
        assert isinstance(held, Held)
        meanwhile(other._table, "write", lambda: zombie.commit([step(held, 2, count)], GRACE))
        [taken] = await other.hold([ONE], "w2", LEASE)
        assert isinstance(taken, Held)
        assert kinds(taken.rows) == [Started, *[ActionSettled] * count, TakenOver]

    play(dynamodb, 2, body)


def test_a_lease_that_was_renewed_just_now_is_not_taken(dynamodb: str) -> None:
    async def body(worker: DynamoStore, other: DynamoStore) -> None:
        await worker.start([begin()], GRACE)
        [held] = await worker.hold([ONE], "w1", 1)
        assert isinstance(held, Held)
        meanwhile(other._table, "write", lambda: worker.renew([(ONE, held.token)], LEASE))
        assert await other.hold([ONE], "w2", LEASE) == [Busy(ONE, "w1")]
        [due] = await worker.hold([ONE], "w1", 1)
        assert isinstance(due, Held)
        meanwhile(other._table, "update_each", lambda: worker.renew([(ONE, due.token)], LEASE))
        assert await other.claim(QUEUES, DEFINITIONS, 10, GRACE) == []
        assert await worker.renew([(ONE, due.token)], LEASE) == {ONE}

    play(dynamodb, 2, body)


def test_what_was_taken_over_just_now_is_not_given_back(dynamodb: str) -> None:
    async def body(late: DynamoStore, other: DynamoStore) -> None:
        await late.start([begin()], GRACE)
        [held] = await late.hold([ONE], "w1", 1)
        assert isinstance(held, Held)
        meanwhile(late._table, "update_each", lambda: other.hold([ONE], "w2", LEASE))
        await late.release([(ONE, held.token)])
        assert (await other.head(ONE)).holder == "w2"  # type: ignore[union-attr]

    play(dynamodb, 2, body)


def test_places_in_a_lane_are_given_out_once(dynamodb: str) -> None:
    async def body(*stores: DynamoStore) -> None:
        keys = [f"acme/{number}" for number in range(9)]
        starts = (stores[number % 3].start([begin(key, lane="a")], GRACE) for number, key in enumerate(keys))
        assert await asyncio.gather(*starts) == [["created"]] * 9
        random.shuffle(keys)
        answers = await stores[0].hold(keys, "w1", LEASE)
        assert sorted(type(answer).__name__ for answer in answers) == ["Held", *["Queued"] * 8]

    play(dynamodb, 3, body)


def test_a_park_that_meets_a_letter_leaves_it_due(dynamodb: str) -> None:
    async def body(worker: DynamoStore, client: DynamoStore) -> None:
        for number in range(TIMES):
            key = f"acme/{number}"
            hand = await begun(worker, key)
            outcome, _ = await asyncio.gather(hand.park(settled()), accepted(client, letter(key=key)))
            head = await worker.head(key)
            assert head is not None
            assert (outcome, head.holder) in (("ok", None), ("mail", "w1"))
            assert head.mail == 1
            assert await worker.next_due(QUEUES, DEFINITIONS) is not None

    play(dynamodb, 2, body)


# A wire that is cut


def through(server: DynamoServer, url: str, body: Callable[[DynamoStore, DynamoStore, Proxy], Awaitable[None]]) -> None:
    """A store that is reached through a proxy, one that is not, and the proxy."""

    async def main() -> None:
        async with Proxy("127.0.0.1", server.port) as proxy:
            near = DynamoStore(url.replace(f":{server.port}", f":{proxy.port}") + "&timeout=1")
            far = DynamoStore(url)
            await far.open()
            await near.open()
            try:
                await body(near, far, proxy)
            finally:
                await near.close()
                await far.close()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["request", "reply"])
def test_a_commit_whose_connection_is_cut_is_written_once(
    where: Cut, dynamodb_server: DynamoServer, dynamodb: str
) -> None:
    async def body(near: DynamoStore, far: DynamoStore, proxy: Proxy) -> None:
        hand = await begun(near)
        proxy.cut(where, b"TransactWriteItems")
        assert await hand.commit(settled()) == "ok"
        assert proxy.cuts == 1
        assert kinds(await log(far)) == [Started, ActionSettled]

    through(dynamodb_server, dynamodb, body)


@pytest.mark.parametrize("where", ["request", "reply"])
def test_a_start_and_a_letter_whose_connection_is_cut_are_there_once(
    where: Cut, dynamodb_server: DynamoServer, dynamodb: str
) -> None:
    async def body(near: DynamoStore, far: DynamoStore, proxy: Proxy) -> None:
        proxy.cut(where, b"TransactWriteItems")
        assert await near.start([begin()], GRACE) == ["created"]
        proxy.cut(where, b"TransactWriteItems")
        await accepted(near, letter())
        assert proxy.cuts == 2
        assert (await far.mail([ONE]))[ONE] == [letter()]

    through(dynamodb_server, dynamodb, body)


def test_a_write_that_gets_no_answer_is_unknown_and_one_that_is_not_sent_is_not(
    dynamodb_server: DynamoServer, dynamodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LOST_TRIES", 0)

    async def body(near: DynamoStore, far: DynamoStore, proxy: Proxy) -> None:
        hand = await begun(near)
        proxy.cut("reply", b"TransactWriteItems")
        with pytest.raises(OutcomeUnknown, match="repeat the call with the same ids"):
            await hand.commit(settled())
        # Whoever holds it again reads what became of it, behind a barrier.
        again = await take(near)
        assert kinds(again.held.rows) == [Started, ActionSettled, TakenOver]
        assert (await far.head(ONE)).lapses == 0  # type: ignore[union-attr]
        proxy.swallow()
        with pytest.raises(StoreUnavailable):
            await near.head(ONE)

    through(dynamodb_server, dynamodb, body)


def test_a_write_whose_connection_is_reset_is_unknown(
    dynamodb_server: DynamoServer, dynamodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset is not a connection that could not be made: what was sent before it may have been done."""
    monkeypatch.setattr(wire, "TRIES", 2)

    async def body(near: DynamoStore, far: DynamoStore, proxy: Proxy) -> None:
        hand = await begun(near)
        proxy.delay = 0.3  # between the server's answer and its arrival
        writing = asyncio.create_task(hand.commit(settled()))
        while len(await log(far)) == 1:
            await asyncio.sleep(0.01)
        assert proxy._server is not None
        proxy._server.close()  # nobody can ask again
        reset(proxy)
        with pytest.raises(OutcomeUnknown):
            await writing

    through(dynamodb_server, dynamodb, body)


def reset(proxy: Proxy) -> None:
    """End all connections in a way that tells the other side that something went wrong."""
    for writer in proxy._writers:
        line = writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    proxy.sever()


def test_a_repeated_write_that_is_refused_is_unknown(
    dynamodb_server: DynamoServer, dynamodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that forgot the token would refuse what it has done itself: that is no answer."""

    class Forgotten:
        def __init__(self) -> None:
            self.count = 0

        @property
        def hex(self) -> str:
            self.count += 1
            return f"token-{self.count}-{id(self)}"

    async def body(near: DynamoStore, far: DynamoStore, proxy: Proxy) -> None:
        hand = await begun(near)
        once = near._table.wire._once

        async def with_new_tokens(verb: str, parameters: dict[str, Any]) -> Any:
            if "ClientRequestToken" in parameters:
                parameters["ClientRequestToken"] = tokens.hex
            return await once(verb, parameters)

        tokens = Forgotten()
        near._table.wire._once = with_new_tokens  # type: ignore[method-assign]
        proxy.cut("reply", b"TransactWriteItems")
        with pytest.raises(OutcomeUnknown):
            await hand.commit(settled())
        assert kinds(await log(far)) == [Started, ActionSettled]

    through(dynamodb_server, dynamodb, body)


def test_a_part_that_was_written_is_not_said_to_be_nothing(dynamodb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(store: DynamoStore) -> None:
        keys = [f"acme/{number}" for number in range(9)]
        await store.start([begin(key) for key in keys], GRACE)
        held = [one for one in await store.hold(keys, "w1", LEASE) if isinstance(one, Held)]
        transact, calls = store._table.wire.transact, []

        async def failing(ops: Any) -> None:
            calls.append(ops)
            if len(calls) == 2:
                raise StoreUnavailable("away; nothing was written")
            await transact(ops)

        store._table.wire.transact = failing  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown, match="a part of this was written"):
            await store.commit([step(one, 2) for one in held], GRACE)

    play(dynamodb, 1, body)


def test_a_group_of_which_a_part_was_written_in_an_earlier_round_is_unknown(dynamodb: str) -> None:
    async def body(store: DynamoStore) -> None:
        one, two = await begun(store), await begun(store, TWO)
        await accepted(store, letter(key=TWO))
        group = [await one.prepare(settled()), await two.prepare(settled(), settle=Park("open", None))]
        transact, calls = store._table.wire.transact, []

        async def failing(ops: Any) -> None:
            calls.append(ops)
            if len(calls) == 3:  # the first is refused for the mail, the second is the rest, the third the park
                raise StoreUnavailable("away; nothing was written")
            await transact(ops)

        store._table.wire.transact = failing  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown, match="a part of this was written"):
            await store.commit(group, GRACE)
        assert kinds(await log(store)) == [Started, ActionSettled]
        assert kinds(await log(store, TWO)) == [Started]

    play(dynamodb, 1, body)


# A server that is busy, or gone


def answer(code: str, status: int = 400, reasons: list[dict[str, str]] | None = None) -> ClientError:
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    if reasons is not None:
        response["CancellationReasons"] = reasons
    return ClientError(response, "TransactWriteItems")


def busy(store: DynamoStore, *errors: ClientError) -> list[str]:
    """Let the next transactions fail so; gives what was called."""
    once, left, calls = store._table.wire._once, list(errors), []

    async def sometimes(verb: str, parameters: dict[str, Any]) -> Any:
        calls.append(verb)
        if verb == "transact_write_items" and left:
            raise left.pop(0)
        return await once(verb, parameters)

    store._table.wire._once = sometimes  # type: ignore[method-assign]
    return calls


@pytest.mark.parametrize(
    "error",
    [
        answer("ProvisionedThroughputExceededException"),
        answer("ThrottlingException"),
        answer("TransactionInProgressException"),
        answer("InternalServerError", 500),
        answer("TransactionCanceledException", reasons=[{"Code": "TransactionConflict"}, {"Code": "None"}]),
        answer("TransactionCanceledException", reasons=[{"Code": "None"}, {"Code": "ThrottlingError"}]),
    ],
)
def test_what_is_throttled_or_in_the_way_is_tried_again(error: ClientError, dynamodb: str) -> None:
    async def body(store: DynamoStore) -> None:
        hand = await begun(store)
        calls = busy(store, error, error)
        assert await hand.commit(settled()) == "ok"
        assert calls == ["transact_write_items"] * 3
        assert kinds(await log(store)) == [Started, ActionSettled]

    play(dynamodb, 1, body)


def test_nothing_is_overlooked_where_the_server_answers_in_small_parts(dynamodb: str) -> None:
    """A page has at most 1 MB, and a read of many items leaves out what there is no capacity for."""

    async def body(store: DynamoStore) -> None:
        once, table = store._table.wire._once, store.address.table

        async def sparing(verb: str, parameters: dict[str, Any]) -> Any:
            if verb == "query":
                return await once(verb, {**parameters, "Limit": 1})
            if verb == "batch_get_item":
                keys = parameters["RequestItems"][table]["Keys"]
                some = {table: {**parameters["RequestItems"][table], "Keys": keys[:1]}}
                left = {table: {**parameters["RequestItems"][table], "Keys": keys[1:]}} if keys[1:] else {}
                return {**await once(verb, {"RequestItems": some}), "UnprocessedKeys": left}
            return await once(verb, parameters)

        keys = [f"acme/{number}" for number in range(3)]
        store._table.wire._once = sparing  # type: ignore[method-assign]
        await store.start([begin(key, topics=("paid",), tags=("t",)) for key in keys], 0)
        await accepted(store, *(letter(id, key=keys[0]) for id in ("m1", "m2", "m3")))
        assert sorted(due.key for due in await store.claim(QUEUES, DEFINITIONS, 10, GRACE)) == keys
        held = [one for one in await store.hold(keys, "w1", LEASE) if isinstance(one, Held)]
        assert [len(one.mail) for one in held] == [3, 0, 0]
        for version in (2, 3):
            assert await store.commit([step(one, version) for one in held], GRACE) == ["ok"] * 3
        assert [row.version for row in await log(store, keys[2])] == [1, 2, 3]
        assert await store.listening("acme", ["paid"], 10) == {"paid": keys}
        assert sorted(head.key for head in await store.find(Query("acme", tags=("t",)))) == keys
        assert sorted(head.key for head in await store.find(Query("acme"))) == keys
        assert await store.extent("acme", "order") == (3, 9)
        assert await store.begun("acme", 10) == 3

    play(dynamodb, 1, body)


def test_who_met_somebody_goes_alone_and_the_others_are_not_held_up(dynamodb: str) -> None:
    async def body(store: DynamoStore) -> None:
        keys = [f"acme/{number}" for number in range(3)]
        await store.start([begin(key) for key in keys], GRACE)
        held = [one for one in await store.hold(keys, "w1", LEASE) if isinstance(one, Held)]
        none, conflict = {"Code": "None"}, {"Code": "TransactionConflict"}
        calls = busy(store, answer("TransactionCanceledException", reasons=[none, none, conflict, none, none, none]))
        assert await store.commit([step(one, 2) for one in held], GRACE) == ["ok"] * 3
        assert calls == ["transact_write_items"] * 3

    play(dynamodb, 1, body)


def test_a_table_without_capacity_is_unavailable_and_nothing_is_written(
    dynamodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "TRIES", 3)

    async def body(store: DynamoStore) -> None:
        hand = await begun(store)
        busy(store, *[answer("ThrottlingException")] * 3)
        with pytest.raises(StoreUnavailable, match="more capacity"):
            await hand.commit(settled())
        assert await hand.commit(settled()) == "ok"

    play(dynamodb, 1, body)


@pytest.mark.parametrize(
    ("code", "text"), [("AccessDeniedException", "rights"), ("UnrecognizedClientException", "credentials")]
)
def test_what_trying_again_cannot_mend_is_said_at_once(code: str, text: str, dynamodb: str) -> None:
    async def body(store: DynamoStore) -> None:
        hand = await begun(store)
        calls = busy(store, answer(code))
        with pytest.raises(StoreError, match=text):
            await hand.commit(settled())
        assert len(calls) == 1

    play(dynamodb, 1, body)


def full(store: DynamoStore, key: str, whole: bool) -> None:
    """Let DynamoDB say that this execution has 10 GB: of the one item that grows it, or of the whole call."""
    once = store._table.wire._once

    async def refusing(verb: str, parameters: dict[str, Any]) -> Any:
        ops = parameters.get("TransactItems", ())
        grows = [op.get("Put", {}).get("Item", {}).get("pk") == {"S": home(key)} for op in ops]
        if not any(grows):
            return await once(verb, parameters)
        if whole:
            raise answer("ItemCollectionSizeLimitExceededException")
        reasons = [{"Code": "ItemCollectionSizeLimitExceeded" if one else "None"} for one in grows]
        raise answer("TransactionCanceledException", reasons=reasons)

    store._table.wire._once = refusing  # type: ignore[method-assign]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("count", [3, 30])
def test_an_execution_that_is_full_fails_nobody_beside_it(count: int, whole: bool, dynamodb: str) -> None:
    keys = [f"acme/{n}" for n in range(count)]

    async def body(store: DynamoStore) -> None:
        await store.start([begin(key) for key in keys], GRACE)
        group = [step(held, 2, 2) for held in await store.hold(keys, "w1", LEASE) if isinstance(held, Held)]
        full(store, keys[1], whole)
        others = ["refused" if key == keys[1] else "ok" for key in keys]
        assert await store.commit(group, GRACE) == others
        with pytest.raises(StoreRefused, match="ItemCollectionSizeLimitExceeded"):
            await store.commit(group[1:2], GRACE)
        assert kinds(await log(store, keys[1])) == [Started]
        assert kinds(await log(store, keys[2])) == [Started, ActionSettled, ActionSettled]

    play(dynamodb, 1, body)


def test_an_execution_that_is_full_cannot_be_taken_over_and_those_beside_it_are(
    dynamodb: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [f"acme/{n}" for n in range(8)]

    async def body(store: DynamoStore) -> None:
        await store.start([begin(key) for key in keys], GRACE)
        await store.hold(keys, "w1", 1)
        full(store, keys[1], whole=True)
        taken = await store.hold(keys, "w2", LEASE)
        assert [type(one) for one in taken] == [Gone if key == keys[1] else Held for key in keys]
        assert "acme/1 cannot be held" in caplog.text
        assert await store.hold(keys[1:2], "w2", LEASE) == [Gone(keys[1])]

    play(dynamodb, 1, body)


def test_after_a_server_was_killed_everything_goes_on_from_whole_commits() -> None:
    """DynamoDB writes to three places before it answers. This server answers a transaction shortly before it is in its
    file, also to the bare SDK: the newest one may be gone. Whatever it has is whole, and is gone on with.
    """
    with DynamoServer(durable=True) as server:

        async def body(store: DynamoStore) -> None:
            hand = await begun(store)
            await store.start([begin(TWO)], GRACE)
            written = 0

            async def work() -> None:
                nonlocal written
                while True:
                    assert await hand.commit(settled(written), marked(written)) == "ok"
                    written += 1

            working = asyncio.create_task(work())
            while written < 5:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(server.kill)
            with pytest.raises((OutcomeUnknown, StoreUnavailable)):
                await working
            await asyncio.to_thread(server.start)
            rows = await log(store)
            check_log(rows, ONE)
            commits, half = divmod(len(rows) - 1, 2)
            assert half == 0
            assert written - 1 <= commits <= written + 1
            again = await take(store)
            assert again.held.rows[: len(rows)] == rows
            assert await again.commit(settle=Park("open", None)) == "ok"
            [held, gone] = await store.hold([TWO, "acme/none"], "w1", LEASE)
            assert isinstance(held, Held)
            assert gone == Gone("acme/none")

        play(server.address("killed"), 1, body)
