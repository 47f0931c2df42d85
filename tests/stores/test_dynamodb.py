"""The store in DynamoDB: the whole contract, and what is its own."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from perdure import ExecutionStuck, Listen, Perdure, event, workflow
from perdure.core import events, letters
from perdure.core.events import EventReceived
from perdure.core.records import Commit, Due, End, Held, Mail, Park, Query
from perdure.errors import InvalidValue, SettingsError, StoreError, StoreOutdated, StoreUnavailable
from perdure.ports import Joining, Store, Twinned
from perdure.runtime.backends import connect
from perdure.stores.dynamodb import DynamoStore, layout, values
from perdure.stores.dynamodb.address import read_address
from perdure.stores.dynamodb.clock import Clock
from perdure.stores.dynamodb.items import home
from perdure.stores.dynamodb.table import Table
from perdure.stores.dynamodb.wire import Wire
from perdure.stores.dynamodb.writing import Unit, Writing
from perdure.stores.ticker import host_clock
from perdure.streams.memory import MemoryStream
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    SECOND,
    THREE,
    TWO,
    ManualClock,
    StoreContract,
    accepted,
    begin,
    begun,
    claimed,
    head_of,
    letter,
    log,
    marked,
    settled,
    take,
)
from perdure.testing.servers import dynamodb as servers


class TestDynamoStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _table(self, dynamodb: str) -> None:
        self.url = dynamodb

    async def make_store(self) -> Store:
        return DynamoStore(self.url, clock=self.clock)


def table_of(store: DynamoStore) -> Table:
    return store._table


@asynccontextmanager
async def opened(url: str, **parts: Any) -> AsyncIterator[DynamoStore]:
    store = DynamoStore(url, **parts)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def play(url: str, body: Callable[[DynamoStore, ManualClock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(url, clock=clock) as store:
            await body(store, clock)

    asyncio.run(main())


# Addresses


def test_an_address_is_taken_apart() -> None:
    address = read_address("dynamodb://eu-central-1/orders?endpoint=http://127.0.0.1:8000&items=25&create=no&shards=2")
    assert (address.region, address.table, address.endpoint) == ("eu-central-1", "orders", "http://127.0.0.1:8000")
    assert (address.items, address.create, address.shards) == (25, False, 2)
    assert address.shown == "dynamodb://eu-central-1/orders at http://127.0.0.1:8000"


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://eu-central-1",
        "dynamodb:///orders",
        "dynamodb://EU/orders",
        "dynamodb://eu-central-1/a",
        "dynamodb://eu-central-1/orders?endpoint=127.0.0.1:8000",
        "dynamodb://eu-central-1/orders?items=101",
        "dynamodb://eu-central-1/orders?items=many",
        "dynamodb://eu-central-1/orders?shards=0",
        "dynamodb://eu-central-1/orders?create=maybe",
        "dynamodb://eu-central-1/orders?timeout=soon",
        "dynamodb://eu-central-1/orders?speed=9",
    ],
)
def test_an_address_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        read_address(url)


@pytest.mark.parametrize(
    "url", ["dynamodb://AKIA:s3cret@eu-central-1/orders", "dynamodb://eu-central-1/orders?endpoint=http://a:s3cret@b"]
)
def test_an_address_has_no_credentials_and_shows_none(url: str) -> None:
    with pytest.raises(SettingsError, match="credentials") as caught:
        connect(url)
    assert "s3cret" not in str(caught.value)


def test_an_address_names_the_store_and_a_stream_of_this_process() -> None:
    store, stream = connect("dynamodb://eu-central-1/orders")
    assert isinstance(store, DynamoStore)
    assert isinstance(store, Twinned)
    assert not isinstance(store, Joining)
    assert isinstance(stream, MemoryStream)


def test_without_its_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("perdure.stores.dynamodb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    monkeypatch.setitem(sys.modules, "aiobotocore.config", None)
    with pytest.raises(SettingsError, match=r"perdure\[dynamodb\]"):
        connect("dynamodb://eu-central-1/orders")


# Opening


def test_many_that_open_at_once_make_one_table(dynamodb: str) -> None:
    async def main() -> None:
        stores = [DynamoStore(dynamodb) for _ in range(12)]
        await asyncio.gather(*(store.open() for store in stores))
        assert await asyncio.gather(*(store.start([begin()], GRACE) for store in stores)) != []
        assert len(await stores[0].find(Query("acme"))) == 1
        assert await stores[0].schema_number() == layout.LAYOUT
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(main())


def test_a_table_that_somebody_else_is_making_is_waited_for(dynamodb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DynamoDB takes seconds for it, and until then it knows the table but takes no call on it."""
    read, write, told = Wire.read, Wire.write, ["CREATING"] * 3

    async def slow(wire: Wire, verb: str, **parts: Any) -> Any:
        if verb != "describe_table":
            assert not told, "it is not there yet"
            return await read(wire, verb, **parts)
        answer = await read(wire, verb, **parts)
        return {"Table": {**answer["Table"], "TableStatus": told.pop()}} if told else answer

    async def early(wire: Wire, verb: str, **parts: Any) -> Any:
        assert not told, "it is not there yet"
        return await write(wire, verb, **parts)

    async def main() -> None:
        async with opened(dynamodb):
            pass
        monkeypatch.setattr(Wire, "read", slow)
        monkeypatch.setattr(Wire, "write", early)
        assert await DynamoStore(dynamodb).schema_number() == 0
        async with opened(dynamodb) as store:
            assert await store.start([begin()], GRACE) == ["created"]

    asyncio.run(main())


def test_a_newer_layout_is_refused(dynamodb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with monkeypatch.context() as newer:
            newer.setattr(layout, "LAYOUT", 9)
            async with opened(dynamodb):
                pass
        with pytest.raises(StoreOutdated, match="layout 9 and this release knows 1"):
            await DynamoStore(dynamodb).open()

    asyncio.run(main())


def test_a_table_that_is_not_there_is_not_made_if_the_address_says_so(dynamodb: str) -> None:
    async def main() -> None:
        assert await DynamoStore(dynamodb).schema_number() == 0
        with pytest.raises(StoreOutdated, match="perdure migrate"):
            await DynamoStore(dynamodb + "&create=no").open()

    asyncio.run(main())


def test_a_table_of_something_else_is_refused(dynamodb: str) -> None:
    async def main() -> None:
        table = Table(read_address(dynamodb), Clock())
        await table.wire.open()
        await table.wire.write(
            "create_table",
            TableName=table.name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )
        await table.wire.close()
        with pytest.raises(SettingsError, match="something else"):
            await DynamoStore(dynamodb).open()

    asyncio.run(main())


def test_a_table_that_forgets_is_refused_unless_one_insists(dynamodb: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with opened(dynamodb) as store:
            rule = {"Enabled": True, "AttributeName": "at"}
            await table_of(store).wire.write(
                "update_time_to_live", TableName=store.address.table, TimeToLiveSpecification=rule
            )
        with pytest.raises(SettingsError, match="time to live"):
            await DynamoStore(dynamodb + "&unsafe=no").open()
        with caplog.at_level(logging.WARNING):
            async with opened(dynamodb):
                pass
        assert "time to live" in caplog.text

    asyncio.run(main())


def test_a_server_for_tests_is_refused_unless_one_insists(dynamodb_server: servers.DynamoServer, dynamodb: str) -> None:
    [why] = layout.doubts({"TableArn": "arn:aws:dynamodb:ddblocal:000000000000:table/orders"})
    assert "DynamoDB Local" in why
    if not dynamodb_server.given:  # then it is one
        with pytest.raises(SettingsError, match=r"DynamoDB Local.*unsafe=yes"):
            asyncio.run(DynamoStore(dynamodb + "&unsafe=no").open())


def test_a_global_table_is_doubted() -> None:
    table = {"TableArn": "arn:aws:dynamodb:eu-central-1:123456789012:table/orders"}
    assert layout.doubts(table) == []
    [why] = layout.doubts({**table, "Replicas": [{"RegionName": "us-east-1"}]})
    assert "global table" in why


def test_the_shards_of_a_table_are_those_it_was_made_with(dynamodb: str) -> None:
    async def main() -> None:
        many = dynamodb.replace("shards=1", "shards=3")
        async with opened(many) as first, opened(dynamodb) as second:
            keys = sorted(f"acme/{number}" for number in range(9))
            await first.start([begin(key) for key in keys], 0)
            assert sorted(await claimed(second)) == keys
            assert sorted(head.key for head in await second.find(Query("acme"))) == keys

    asyncio.run(main())


def test_a_store_that_is_not_open_says_so(dynamodb: str) -> None:
    with pytest.raises(StoreError, match="not open"):
        asyncio.run(DynamoStore(dynamodb).head(ONE))


def test_a_server_that_is_not_there_is_unavailable_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.stores.dynamodb.wire.TRIES", 2)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9"):
        asyncio.run(DynamoStore("dynamodb://eu-central-1/orders?endpoint=http://127.0.0.1:9").open())


# The clock


def test_a_clock_that_is_far_off_is_moved_to_within_a_second() -> None:
    clock, here = Clock(), host_clock()
    date = "Tue, 14 Nov 2023 22:13:20 GMT"
    clock.observe(date, here, here + 1000)
    assert 0 <= clock.now() - (1_700_000_000 * SECOND) <= 3 * SECOND


def test_a_clock_that_agrees_is_left_alone() -> None:
    clock = Clock()
    for part in (0, 400_000, 999_000):
        sent = 1_700_000_000 * SECOND + part
        clock.observe("Tue, 14 Nov 2023 22:13:20 GMT", sent, sent + 900)
    assert clock.correction == 0


def test_a_clock_that_was_set_is_believed_again() -> None:
    clock, true = Clock(), 1_700_000_000 * SECOND
    clock.observe("Tue, 14 Nov 2023 22:13:20 GMT", true + 60 * SECOND, true + 60 * SECOND)
    assert clock.correction == -59 * SECOND
    clock.observe("Tue, 14 Nov 2023 22:13:21 GMT", true + SECOND, true + SECOND)
    assert clock.correction == 0


@pytest.mark.parametrize("date", [None, "", "yesterday", "Tue, 99 Nov 2023 22:13:20 GMT"])
def test_an_answer_without_a_date_says_nothing(date: str | None) -> None:
    clock = Clock()
    clock.observe(date, 0, 0)
    assert clock.correction == 0


# Sizes


def test_long_values_are_kept_in_pieces(dynamodb: str) -> None:
    long = b'"' + b"x" * 1_000_000 + b'"'

    async def body(store: DynamoStore, clock: ManualClock) -> None:
        rows = (events.row(events.Started("order", 1, Raw(long)), 1, at=0),)
        assert await store.start([begin(rows=rows, state=long)], GRACE) == ["created"]
        await accepted(store, Mail(ONE, "m1", long, "sha"))
        hand = await take(store)
        assert hand.held.rows == list(rows)
        assert hand.held.mail == [Mail(ONE, "m1", long, "sha")]
        many = [Mail(ONE, "m1", long), *(settled(ref) for ref in range(3))]
        children = [begin(TWO, rows=rows)]
        assert await hand.commit(*many, settle=Park("open", None, long, long), children=children) == "ok"
        assert await hand.store.read(TWO) == list(rows)
        hand = await take(store)
        assert await hand.commit(events.Completed(Raw(long)), settle=End("completed", long)) == "ok"
        head = await head_of(store)
        assert (head.state, head.result) == (long, long)
        assert (await store.find(Query("acme", status="completed")))[0].result == long
        assert [row.version for row in await log(store)] == [1, 2, 3, 4, 5, 6]

    play(dynamodb, body)


def test_a_turn_of_a_thousand_rows_is_one_commit(dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        assert await hand.commit(*(settled(ref) for ref in range(1000))) == "ok"
        assert [row.version for row in await store.read(ONE, after=500, limit=3)] == [501, 502, 503]

    play(dynamodb, body)


def test_a_commit_may_start_more_children_than_a_transaction_has_items(dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        children = [begin(f"acme/one.{number:02}", parent=ONE, parent_ref=number) for number in range(25)]
        mail = [letter(key=child.key) for child in children]
        assert await hand.park(marked(), children=children, mail=mail) == "ok"
        found = await store.find(Query("acme", parent=ONE))
        assert sorted(head.key for head in found) == [child.key for child in children]
        assert {head.mail for head in found} == {1}

    play(dynamodb, body)


def test_a_full_mailbox_is_folded_page_by_page(dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        wanted = [f"m{number:02}" for number in range(20)]
        await accepted(store, *(letter(id) for id in wanted))
        while await hand.end() == "mail":
            page = (await store.mail([ONE]))[ONE]
            assert 0 < len(page) <= table_of(store).mailbox_page
            assert await hand.commit(*page) == "ok"
        assert [row.message_id for row in await log(store) if row.message_id] == wanted

    play(dynamodb, body)


@workflow
async def heard() -> int:
    return await event("go", int)


@workflow
async def asks() -> int:
    return await heard()


def test_an_execution_ends_though_more_mail_waits_than_one_commit_takes(
    dynamodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    commit = DynamoStore.commit

    async def noting(store: DynamoStore, group: Sequence[Commit], grace: int) -> Any:
        told.extend(one.settle for one in group for letter in one.mail if letter.id == "/child:1")
        return await commit(store, group, grace)

    async def main() -> None:
        async with Perdure(dynamodb) as app, asyncio.timeout(30):
            many = range(3 * table_of(DynamoStore(dynamodb)).mailbox_page + 2)
            run = await app.start(heard)
            for number in many:
                await run.send("go", number, id=str(number))
            async with app.working():
                assert await run.result() == 0
                parent = await app.start(asks)
                child = f"{parent.key}.1"
                while await app.store.head(child) is None:
                    await asyncio.sleep(0.01)
                await app.store.send(sent(child, many), 0)
                assert await parent.result() == 0
            for key in (run.key, child):
                rows = await app.store.read(key)
                assert [row.message_id for row in rows if row.message_id] == [str(number) for number in many]
            assert [row.message_id for row in await app.store.read(parent.key) if row.message_id] == ["/child:1"]

    monkeypatch.setattr(DynamoStore, "commit", noting)
    asyncio.run(main())
    assert told
    assert all(isinstance(settle, End) for settle in told), "its parent was told before it had ended"


def sent(key: str, numbers: range) -> list[Mail]:
    payloads = ((number, Raw(str(number).encode())) for number in numbers)
    return [Mail(key, str(n), letters.seal(letters.EventLetter("go", payload, by="test"))) for n, payload in payloads]


@pytest.mark.parametrize("start", [begin("acme/" + "x" * 1000), begin("acme/\ud800")])
def test_a_key_that_cannot_be_stored_is_refused(start: Any, dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        with pytest.raises(InvalidValue):
            await store.start([start], GRACE)
        await store.start([begin()], GRACE)
        with pytest.raises(InvalidValue, match="message id"):
            await store.send([letter("m" * 1001)], GRACE)

    play(dynamodb, body)


def test_a_start_with_too_many_labels_is_refused_and_writes_nothing(dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        with pytest.raises(InvalidValue, match="acme/one: it would write 13 items at once, and DynamoDB takes 10"):
            await store.start([begin(tags=tuple(f"t{number}" for number in range(10)))], GRACE)
        with pytest.raises(InvalidValue, match="4 topics"):
            await store.start([begin(topics=("a", "b", "c", "d"))], GRACE)
        assert await store.head(ONE) is None
        assert await store.find(Query("acme", tags=("t1",))) == []

    play(dynamodb, body)


def test_a_start_that_cannot_be_stored_fails_no_neighbour(dynamodb: str) -> None:
    async def main() -> None:
        async with Perdure(dynamodb) as app:
            starts = app.writes.starts
            good, bad = begin(), begin(TWO, topics=("a", "b", "c", "d"))
            answers = await asyncio.gather(starts.put(good), starts.put(bad), return_exceptions=True)
            assert answers[0] == "created"
            assert isinstance(answers[1], InvalidValue)

    asyncio.run(main())


def test_pieces_of_what_was_refused_are_gone(dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        rows = (events.row(events.Started("order", 1, Raw(b'"' + b"x" * 300_000 + b'"')), 1, at=0),)
        pieces = []
        keep = values.Values.stored

        async def noting(self: Any, data: Any, room: int, names: list[str]) -> Any:
            found = await keep(self, data, room, names)
            pieces.extend(names)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(values.Values, "stored", noting)
            await store.start([begin(rows=rows)], GRACE)
            [kept] = set(pieces)
            assert await store.start([begin(rows=rows)], GRACE) == ["same"]
        [dropped] = set(pieces) - {kept}
        assert await table_of(store).wire.all(f"B#{dropped}") == []
        assert len(await table_of(store).wire.all(f"B#{kept}")) == 1

    play(dynamodb, body)


# What is its own


def test_a_parcel_that_nobody_delivered_is_delivered_by_any_claim(
    dynamodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        """Like a process that dies here."""

    async def body(store: DynamoStore, clock: ManualClock) -> None:
        await store.start([begin(TWO)], 1000 * GRACE)
        hand = await begun(store, queue="external:acme/q")  # no worker serves it
        with monkeypatch.context() as dying:
            dying.setattr("perdure.stores.dynamodb.committing._deliver_now", nothing)
            child = begin(THREE, definition="other@1")
            assert await hand.end(children=[child], mail=[letter(key=TWO), letter(key=THREE)]) == "ok"
        assert await store.head(THREE) is None
        due = await store.next_due(QUEUES, DEFINITIONS)
        assert due == clock.at + GRACE
        clock.advance(2)
        await store.claim(QUEUES, DEFINITIONS, 10, GRACE)
        assert (await store.mail([TWO, THREE])) == {TWO: [letter(key=TWO)], THREE: [letter(key=THREE)]}
        clock.advance(2)
        assert await store.claim(QUEUES, ["other@1"], 10, GRACE) == [Due(THREE, "default")]
        assert [item["sk"] for item in await table_of(store).wire.all(home(ONE), low="o#", high="o#~")] == []

    play(dynamodb, body)


def test_a_long_parcel_that_is_delivered_while_a_claim_looks_at_it_hinders_no_claim(
    dynamodb: str, caplog: pytest.LogCaptureFixture
) -> None:
    long = b'"' + b"x" * 300_000 + b'"'

    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        await store.start([begin(TWO)], 0)
        table = table_of(store)
        drop = table.values.drop

        async def looked_at(pieces: Sequence[str]) -> None:
            """The parcel and its pieces go while another process has just found it in the index."""
            get = table.wire.get

            async def gone(pk: str, sk: str) -> Any:
                if sk == found["sk"]:
                    await drop(pieces)
                    return found
                return await get(pk, sk)

            async def entries(lists: Any, limit: int, until: Any) -> Any:
                return [found] if lists == ["parcels"] else await look(lists, limit, until)

            look, found = store._claiming._entries, {"pk": home(ONE), "sk": "o#1", "due": 1, "data": [pieces[0], 1]}
            with pytest.MonkeyPatch.context() as racing:
                racing.setattr(table.wire, "get", gone)
                racing.setattr(store._claiming, "_entries", entries)
                assert await claimed(store) == [TWO]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table.values, "drop", looked_at)
            assert await hand.commit(settled(), mail=[Mail(TWO, "m1", long)]) == "ok"
        assert (await store.mail([TWO]))[TWO] == [Mail(TWO, "m1", long)]
        assert "not delivered" not in caplog.text

    play(dynamodb, body)


@pytest.mark.parametrize(
    ("child", "text"),
    [
        (begin(THREE, topics=("a", "b", "c", "d")), "acme/three: it listens for 4 topics, and this store takes 3"),
        (begin("acme/" + "x" * 1000), "more than 900 bytes"),
    ],
)
def test_a_child_that_could_never_begin_is_refused_with_the_commit_of_its_parent(
    child: Any, text: str, dynamodb: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        with pytest.raises(InvalidValue, match=text):
            await hand.commit(settled(), children=[child])
        assert [row.version for row in await store.read(ONE)] == [1]
        assert await table_of(store).wire.all(home(ONE), low="o#", high="o#~") == []

    play(dynamodb, body)


@workflow(listens=[Listen(f"told.{number}", event=".data", own=".[0]") for number in range(4)])
async def hears_all(what: int) -> int:
    return what


@workflow
async def asks_all() -> int:
    await event("go", int)
    return await hears_all(1)


def test_who_starts_a_child_that_could_never_begin_gets_stuck_and_nobody_beside_it(dynamodb: str) -> None:
    async def main() -> None:
        async with Perdure(dynamodb) as app, app.working():
            bad = await app.start(asks_all)
            good = [await app.start(heard) for _ in range(5)]
            for run in (bad, *good):
                await run.until("waiting", timeout=10)
            await asyncio.gather(*(run.send("go", 7) for run in (bad, *good)))
            assert [await run.result(timeout=20) for run in good] == [7] * 5
            with pytest.raises(
                ExecutionStuck, match=r"\(refused\): .*: it listens for 4 topics, and this store takes 3"
            ):
                await bad.result(timeout=20)
            await bad.cancel()
            await bad.until("cancelled", timeout=10)

    asyncio.run(main())


def test_a_parcel_that_cannot_be_delivered_hinders_no_claim(
    dynamodb: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        await store.start([begin(TWO)], GRACE)
        bad = begin(THREE, topics=("a", "b", "c", "d"))  # more than this store takes
        monkeypatch.setattr("perdure.stores.dynamodb.committing.takes", lambda table, start: start)
        with caplog.at_level(logging.WARNING):
            assert await hand.commit(settled(), children=[bad]) == "ok"
            clock.advance(3)
            assert await claimed(store) == [TWO]
        assert "acme/one: what its commit has for others is not delivered" in caplog.text
        clock.advance(3)
        caplog.clear()
        await claimed(store)
        assert "not delivered" not in caplog.text  # it is tried again later and later, not every time

    play(dynamodb, body)


@pytest.mark.parametrize("held_by", ["w1", "w2", None])
def test_what_a_commit_has_for_others_comes_after_what_an_earlier_one_has(
    held_by: str | None, dynamodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that was not delivered must not miss the letter that cancels it, whoever writes that."""

    async def away(*_: Any) -> None:
        raise StoreUnavailable("away")

    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        with monkeypatch.context() as broken:
            broken.setattr("perdure.stores.dynamodb.committing._deliver", away)
            assert await hand.commit(settled(1), children=[begin(TWO)]) == "ok"
            clock.advance(1)
            assert await hand.commit(settled(2), mail=[letter(key=TWO)], settle=held_by and Park("open", None)) == "ok"
        if held_by is not None:
            clock.advance(1)
            async with opened(dynamodb, clock=clock) as other:
                hand = await take(other, me=held_by)
                assert (await store.mail([TWO]))[TWO] == [letter(key=TWO)]
                assert await hand.park(marked(), mail=[letter("m2", key=TWO)]) == "ok"
        else:
            clock.advance(1)
            assert await hand.commit(marked(), mail=[letter("m2", key=TWO)]) == "ok"
        assert (await store.mail([TWO]))[TWO] == [letter(key=TWO), letter("m2", key=TWO)]
        assert await table_of(store).wire.all(home(ONE), low="o#", high="o#~") == []
        assert not table_of(store).owing or held_by is not None

    play(dynamodb, body)


def test_the_end_of_the_first_of_a_lane_wakes_the_next_even_if_its_process_dies(
    dynamodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        """Like a process that dies here."""

    async def body(store: DynamoStore, clock: ManualClock) -> None:
        await store.start([begin(ONE, lane="a"), begin(TWO, lane="a")], GRACE)
        hand = await take(store)
        await store.hold([TWO], "w1", LEASE)
        with monkeypatch.context() as dying:
            dying.setattr("perdure.stores.dynamodb.committing._deliver_now", nothing)
            await hand.end()
        assert await claimed(store) == []
        clock.advance(3)
        assert await claimed(store) == [TWO]

    play(dynamodb, body)


def test_a_start_that_is_repeated_changes_nothing_of_what_is_known(dynamodb: str) -> None:
    """What the second one asked for is not what the execution has: its place in the lane, what it listens for."""

    async def body(store: DynamoStore, clock: ManualClock) -> None:
        one = begin(lane="a", topics=("paid",))
        await store.start([one, begin(TWO, lane="a")], GRACE)
        hand = await take(store)
        assert await store.start([one], GRACE) == ["same"]
        assert await store.start([begin(sha="another", queue="slow")], GRACE) == ["conflict"]
        assert await hand.end() == "ok"
        assert await store.listening("acme", ["paid"], 10) == {}
        await take(store, TWO)

    play(dynamodb, body)


def test_a_message_stays_known_though_its_letter_is_gone(dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.commit(letter(), done=())
        assert await hand.commit(done=["m1"]) == "ok"
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["duplicate"]
        assert await hand.end() == "ok"
        clock.advance(1000)
        assert await claimed(store) == []

    play(dynamodb, body)


def test_a_fold_of_what_is_not_in_the_mailbox_is_stale(dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        assert await hand.commit(letter()) == "stale"
        await accepted(store, letter())
        assert await hand.commit(letter()) == "ok"
        assert (await head_of(store)).mail == 0

    play(dynamodb, body)


def test_a_row_may_bring_a_message_that_was_never_sent(dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        hand = await begun(store)
        row = events.row(EventReceived("paid"), 2, at=0, fence=hand.token, message_id="m1")
        assert await store.commit([Commit(ONE, hand.token, [row])], GRACE) == ["ok"]
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["duplicate"]
        assert (await head_of(store)).mail == 0

    play(dynamodb, body)


def test_what_is_decided_is_never_decided_by_an_index(dynamodb: str) -> None:
    """An index may be behind: what it says is due was claimed, held or ended long ago."""

    async def body(store: DynamoStore, clock: ManualClock) -> None:
        await store.start([begin(), begin(TWO)], 0)
        clock.advance(1)
        claiming = store._claiming
        entries = await claiming._entries(
            [name for _, name in await claiming._lists(QUEUES, DEFINITIONS)], 10, clock.at
        )

        async def behind(lists: Any, limit: int, until: Any) -> Any:
            return [] if lists == ["parcels"] else entries

        [held, ended] = await store.hold([ONE, TWO], "w1", LEASE)
        assert isinstance(held, Held)
        assert isinstance(ended, Held)
        await store.commit(
            [Commit(TWO, ended.token, [events.row(events.Completed(), 2, 0)], End("completed", None))], 0
        )
        claiming._entries = behind  # type: ignore[method-assign]
        assert await claimed(store) == []
        head = await head_of(store)
        assert (head.holder, head.token, head.lapses) == ("w1", held.token, 0)

    play(dynamodb, body)


def test_groups_are_few_transactions(dynamodb: str) -> None:
    async def body(store: DynamoStore, clock: ManualClock) -> None:
        calls = []
        wire = table_of(store).wire
        send = wire.transact

        async def counted(ops: Any) -> None:
            calls.append(len(ops))
            await send(ops)

        keys = [f"acme/{number}" for number in range(20)]
        await store.start([begin(key) for key in keys], GRACE)
        held = [one for one in await store.hold(keys, "w1", LEASE) if isinstance(one, Held)]
        group = [Commit(one.key, one.token, [events.row(settled(), 2, 0, one.token)]) for one in held]
        wire.transact = counted  # type: ignore[method-assign]
        assert await store.commit(group, GRACE) == ["ok"] * 20
        assert calls == [10] * 4

    play(dynamodb, body)


def test_a_unit_is_whole_in_one_transaction(dynamodb: str) -> None:
    async def main() -> None:
        writing = Writing(Table(read_address(dynamodb), Clock()).wire)
        units = [Unit(str(number), [{"Put": {}}] * size) for number, size in enumerate((6, 3, 2, 10, 1))]
        loads = [[unit.key for unit in load] for load in writing._loads(units)]
        assert loads == [["0", "1"], ["2"], ["3"], ["4"]]
        heavy = [Unit(str(number), [{"Put": {"data": b"x" * 2_000_000}}]) for number in range(2)]
        assert [len(load) for load in writing._loads(heavy)] == [1, 1]

    asyncio.run(main())


# The server of these tests


def test_no_server_at_all_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(servers.VARIABLE, raising=False)
    with pytest.raises(servers.NoServer, match=f"{servers.VARIABLE}.*java and npm"):
        servers.DynamoServer().__enter__()
    assert list(tmp_path.iterdir()) == []
