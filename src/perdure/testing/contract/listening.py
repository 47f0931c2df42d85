"""Where messages are, and who listens: `message`, and `listening` by the topics of a start."""

from __future__ import annotations

import asyncio

from perdure.core import events
from perdure.core.events import Completed, EventReceived
from perdure.core.records import Mail, Row
from perdure.ports import Store
from perdure.testing.contract.stage import (
    GRACE,
    ONE,
    THREE,
    TWO,
    StoreTests,
    accepted,
    begin,
    begun,
    first_row,
    letter,
    log,
    scenario,
    settled,
    take,
)


class Listening(StoreTests):
    # Where a message is

    @scenario
    async def test_a_message_that_nobody_sent_is_nowhere(self, store: Store) -> None:
        assert await store.message(ONE, "m1") is None
        await store.start([begin()], GRACE)
        assert await store.message(ONE, "m1") is None

    @scenario
    async def test_a_message_that_waits_is_in_the_mailbox(self, store: Store) -> None:
        await store.start([begin(), begin(TWO)], GRACE)
        await accepted(store, letter(), letter("m2"))
        assert await store.message(ONE, "m1") == letter()
        assert await store.message(TWO, "m1") is None

    @scenario
    async def test_a_message_that_was_folded_is_a_row_of_the_log(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.commit(settled(), letter())
        assert await store.message(ONE, "m1") == (await log(store))[2]

    @scenario
    async def test_a_message_is_never_nowhere_while_it_is_folded(self, store: Store) -> None:
        hand = await begun(store)
        for number in range(100):
            one = letter(f"m{number}")
            await accepted(store, one)
            folding = asyncio.create_task(hand.commit(one))
            while not folding.done():
                found = await asyncio.gather(*(store.message(ONE, one.id) for _ in range(4)))
                assert None not in found
            await folding

    @scenario
    async def test_a_message_stays_known_after_the_end(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.end(letter())
        found = await store.message(ONE, "m1")
        assert isinstance(found, Row) and found.version == 2

    @scenario
    async def test_a_message_of_a_fork_is_found_in_its_log(self, store: Store) -> None:
        received = events.row(EventReceived("paid"), 2, at=0, message_id="m1")
        await store.start([begin(rows=(first_row(), received))], GRACE)
        assert await store.message(ONE, "m1") == received

    @scenario
    async def test_a_message_that_is_sent_again_is_still_where_it_was(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await store.send([letter(sha="other")], GRACE)
        assert await store.message(ONE, "m1") == Mail(ONE, "m1", letter().data, "sha")
        await hand.commit(letter())
        await store.send([letter()], GRACE)
        assert isinstance(await store.message(ONE, "m1"), Row)

    # Who listens

    @scenario
    async def test_an_execution_is_found_by_its_topics(self, store: Store) -> None:
        await store.start([begin(topics=("a", "b")), begin(TWO, topics=("b",)), begin(THREE)], GRACE)
        found = await store.listening("acme", ["a", "b", "c"], 10)
        assert found == {"a": [ONE], "b": [ONE, TWO]}

    @scenario
    async def test_a_topic_is_of_its_tenant(self, store: Store) -> None:
        await store.start([begin(topics=("a",)), begin("other/one", topics=("a",))], GRACE)
        assert await store.listening("acme", ["a"], 10) == {"a": [ONE]}
        assert await store.listening("other", ["a"], 10) == {"a": ["other/one"]}
        assert await store.listening("nobody", ["a"], 10) == {}

    @scenario
    async def test_those_who_listen_come_page_by_page(self, store: Store) -> None:
        keys = [f"acme/{number:02}" for number in range(25)]
        await store.start([begin(key, topics=("a", "z")) for key in keys], GRACE)
        found: list[str] = []
        while page := (await store.listening("acme", ["a"], 10, found[-1] if found else "")).get("a"):
            assert len(page) <= 10
            found += page
        assert found == keys

    @scenario
    async def test_an_execution_listens_while_it_is_held_and_parked(self, store: Store) -> None:
        hand = await begun(store, topics=("a",))
        assert await store.listening("acme", ["a"], 10) == {"a": [ONE]}
        await hand.park(settled())
        await take(store)
        assert await store.listening("acme", ["a"], 10) == {"a": [ONE]}

    @scenario
    async def test_an_execution_that_has_ended_listens_no_more(self, store: Store) -> None:
        hand = await begun(store, topics=("a", "b"))
        await store.start([begin(TWO, topics=("b",))], GRACE)
        await hand.end()
        assert await store.listening("acme", ["a", "b"], 10) == {"b": [TWO]}

    @scenario
    async def test_an_import_that_has_ended_never_listens(self, store: Store) -> None:
        rows = (first_row(), events.row(Completed(), 2, at=0))
        await store.start([begin(rows=rows, status="completed", topics=("a",))], GRACE)
        assert await store.listening("acme", ["a"], 10) == {}

    @scenario
    async def test_a_child_listens_from_the_commit_that_starts_it(self, store: Store) -> None:
        hand = await begun(store)
        stale = await hand.prepare(settled(), children=[begin(THREE, topics=("a",))])
        assert await hand.commit(settled(), children=[begin(TWO, topics=("a",))]) == "ok"
        assert await store.commit([stale], GRACE) == ["stale"]
        assert await store.listening("acme", ["a"], 10) == {"a": [TWO]}

    @scenario
    async def test_a_child_whose_key_is_taken_adds_no_topics(self, store: Store) -> None:
        hand = await begun(store)
        await store.start([begin(TWO, sha="other")], GRACE)
        await hand.commit(settled(), children=[begin(TWO, topics=("a",))])
        assert await store.listening("acme", ["a"], 10) == {}

    @scenario
    async def test_a_second_start_adds_no_topics(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        assert await store.start([begin(sha="other", topics=("a",))], GRACE) == ["conflict"]
        assert await store.listening("acme", ["a"], 10) == {}
