"""How executions begin: `now` and `start`, also with the rows of another log."""

from __future__ import annotations

from msgspec import Raw

from perdure.core import events
from perdure.core.events import Completed, EventReceived, Restarted
from perdure.core.records import Gone
from perdure.ports import Store
from perdure.testing.contract.stage import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    SECOND,
    TWO,
    StoreTests,
    accepted,
    begin,
    begun,
    claimed,
    first_row,
    head_of,
    letter,
    log,
    scenario,
    settled,
    take,
)


class Starting(StoreTests):
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
