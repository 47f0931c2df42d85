"""What goes wrong between a worker and MongoDB, on a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from pymongo import MongoClient, ReadPreference
from pymongo.errors import OperationFailure

from perdure.core import events
from perdure.core.events import ActionSettled, Marked, Started, TakenOver, TimerFired
from perdure.core.records import Commit, Head, Held, Outcome, Park, Query
from perdure.errors import (
    InvalidValue,
    OutcomeUnknown,
    SettingsError,
    StoreError,
    StoreFull,
    StoreOutdated,
    StoreReadOnly,
    StoreUnavailable,
)
from perdure.stores.mongodb import MongoStore, documents, layout, link, trouble
from perdure.stores.mongodb.address import read_address
from perdure.stores.ticker import Ticker
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
from perdure.testing.proxy import Cut, Proxy
from perdure.testing.servers.mongodb import MongoServer

pytestmark = [
    pytest.mark.usefixtures("unreachable_mongodb"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[MongoStore]:
    given = "&".join(f"{name}={value}" for name, value in options.items())
    store = MongoStore(url + (f"&{given}" if given else ""))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def through(url: str, **options: Any) -> AsyncIterator[tuple[MongoStore, Proxy, MongoStore]]:
    """A store behind a proxy, the proxy, and a store with a wire of its own."""
    host, _, rest = url.removeprefix("mongodb://").partition("/")
    name, _, port = host.rpartition(":")
    async with Proxy(name, int(port)) as proxy, opened(url) as direct:
        async with opened(f"mongodb://127.0.0.1:{proxy.port}/{rest}", **options) as store:
            yield store, proxy, direct


# A wire that is cut


@pytest.mark.parametrize("where", ["request", "reply"])
def test_a_step_whose_wire_is_cut_once_is_written_once(emptied_mongodb: str, where: Cut) -> None:
    async def scenario() -> None:
        async with through(emptied_mongodb) as (store, proxy, direct):
            hand = await begun(store)
            proxy.cut(where, at=b"ordered")
            assert await hand.commit(settled()) == "ok"
            assert proxy.cuts == 1
            assert kinds(await log(direct)) == [Started, ActionSettled]

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["request", "reply"])
def test_a_transaction_whose_commit_is_cut_off_once_has_one_outcome(emptied_mongodb: str, where: Cut) -> None:
    async def scenario() -> None:
        async with through(emptied_mongodb) as (store, proxy, direct):
            hand = await begun(store)
            proxy.cut(where, at=b"commitTransaction")
            assert await hand.park(settled()) == "ok"
            assert proxy.cuts == 1
            assert kinds(await log(direct)) == [Started, ActionSettled]
            proxy.cut(where, at=b"commitTransaction")
            assert await store.start([begin(TWO)], GRACE) == ["created"]
            assert kinds(await log(direct, TWO)) == [Started]

    asyncio.run(scenario())


class Stubborn(Proxy):
    """A wire that is cut at the same place several times in a row."""

    left = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "cuts" and self.left:
            self.left -= 1
            self.cut("reply", at=b"commitTransaction")


def test_a_commit_is_asked_for_again_until_the_server_says_what_became_of_it(
    emptied_mongodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "Proxy", Stubborn)

    async def scenario() -> None:
        async with through(emptied_mongodb) as (store, proxy, direct):
            hand = await begun(store)
            assert isinstance(proxy, Stubborn)
            proxy.left = 3
            proxy.cut("reply", at=b"commitTransaction")
            assert await hand.park(settled()) == "ok"
            assert proxy.cuts == 4
            assert kinds(await log(direct)) == [Started, ActionSettled]

    asyncio.run(scenario())


def test_silence_after_a_commit_was_sent_is_an_unknown_outcome(
    emptied_mongodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with through(emptied_mongodb) as (store, proxy, _):
            await begun(store, TWO)
            real = store._link._settle

            async def silent(session: Any, doubt: Any) -> None:
                proxy.swallow()
                await real(session, doubt)

            monkeypatch.setattr(store._link, "_settle", silent)
            monkeypatch.setattr(link, "SILENCE", 0.5)
            with pytest.raises(OutcomeUnknown):
                await store.start([begin()], GRACE)
            proxy.heal()

    asyncio.run(scenario())


def test_a_transaction_that_is_cut_off_in_the_middle_is_repeated(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        async with through(emptied_mongodb) as (store, proxy, direct):
            hand = await begun(store)
            await accepted(store, letter())
            proxy.cut("reply", at=b"startTransaction")
            assert await hand.park(letter()) == "ok"
            assert proxy.cuts == 1
            check_log(await log(direct), ONE)

    asyncio.run(scenario())


class Gone(Proxy):
    """A wire that goes at the first cut, until it is mended."""

    mended = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cuts and not self.mended:
            writer.transport.abort()
        else:
            await super()._accept(reader, writer)


@pytest.fixture
def wire_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Proxy", Gone)


@pytest.mark.usefixtures("wire_that_goes")
@pytest.mark.parametrize(("at", "parts"), [(b"ordered", {}), (b"commitTransaction", {"settle": Park("open", None)})])
@pytest.mark.parametrize("where", ["request", "reply"])
def test_a_write_whose_wire_is_cut_for_good_is_unknown_and_whoever_holds_next_knows(
    emptied_mongodb: str, where: Cut, at: bytes, parts: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with through(emptied_mongodb, serverSelectionTimeoutMS=100) as (store, proxy, direct):
            await store.start([begin()], GRACE)
            [held] = await store.hold([ONE], "w1", 200_000)
            assert isinstance(held, Held)
            hand = Hand(store, held, 1)
            proxy.cut(where, at=at)
            with pytest.raises(OutcomeUnknown, match="repeat the call"):
                await hand.commit(settled(), **parts)
            await asyncio.sleep(0.2)
            async with asyncio.timeout(10):
                taken = await take(direct, me="w2")
            written = [Started, ActionSettled] if where == "reply" else [Started]
            barrier = [] if parts and where == "reply" else [TakenOver]  # what was parked was given back cleanly
            assert kinds(taken.held.rows) == [*written, *barrier]

    asyncio.run(scenario())


@pytest.mark.usefixtures("wire_that_goes")
def test_a_start_whose_commit_got_lost_is_not_in_its_own_way(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        async with through(emptied_mongodb, serverSelectionTimeoutMS=100) as (store, proxy, direct):
            await store.start([begin(TWO)], GRACE)
            proxy.cut("request", at=b"commitTransaction")
            with pytest.raises(OutcomeUnknown):
                await store.start([begin()], GRACE)
            assert isinstance(proxy, Gone)
            proxy.mended = True
            async with asyncio.timeout(10):
                while True:
                    with suppress(StoreUnavailable):
                        assert await store.start([begin()], GRACE) == ["created"]
                        break
            assert kinds(await log(direct)) == [Started]

    asyncio.run(scenario())


def test_silence_is_a_lost_connection(emptied_mongodb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with through(emptied_mongodb) as (store, proxy, _):
            hand = await begun(store)
            monkeypatch.setattr(link, "SILENCE", 0.3)
            proxy.swallow()
            with pytest.raises(OutcomeUnknown):
                await hand.commit(settled())
            with pytest.raises(StoreUnavailable):
                await store.read(ONE)
            with pytest.raises(StoreUnavailable, match="nothing was written"):
                await hand.store.send([letter()], GRACE)
            proxy.heal()

    asyncio.run(scenario())


def test_without_a_server_nothing_was_written(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        async with through(emptied_mongodb, serverSelectionTimeoutMS=100) as (store, proxy, direct):
            await begun(store)
            await proxy.__aexit__()
            for call in (store.start([begin(TWO)], GRACE), store.send([letter()], GRACE), store.read(ONE)):
                with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
                    await call
            assert await direct.head(TWO) is None

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    async def scenario() -> None:
        store = MongoStore("mongodb://ada:s3cret@127.0.0.1:1/shop?serverSelectionTimeoutMS=200")
        with pytest.raises(StoreUnavailable, match=r"ada:\*\*\*@127") as told:
            await store.open()
        assert "s3cret" not in str(told.value)

    asyncio.run(scenario())


def test_a_cancellation_that_the_driver_has_lost_is_not_forgotten(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        async with opened(emptied_mongodb) as store:
            begun, went_on = asyncio.Event(), asyncio.Event()

            async def call() -> None:
                async with store._link.asking():
                    with suppress(asyncio.CancelledError):
                        begun.set()
                        await asyncio.Event().wait()
                went_on.set()

            task = asyncio.create_task(call())
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() and not went_on.is_set()

    asyncio.run(scenario())


def test_the_server_is_asked_for_its_time_before_a_timer_fires(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        async with opened(emptied_mongodb) as store:
            hand = await begun(store)
            due = await store.now() + 1_000_000
            store._link._asked -= 2.0  # as if the clock here went ahead of the server's
            fired = await hand.prepare(TimerFired(1, due), fired=due)
            store._link._seen = Ticker(lambda: 0)
            assert await store.commit([fired], GRACE) == ["early"]

    asyncio.run(scenario())


# A server that dies


def test_a_crash_of_the_server_in_mid_load_loses_nothing() -> None:
    answered: dict[str, int] = {}

    async def work(store: MongoStore, key: str) -> None:
        hand = await begun(store, key)
        answered[key] = hand.version
        while True:
            if await hand.commit(settled(hand.version)) != "ok":
                raise AssertionError("somebody else wrote")
            answered[key] = hand.version

    async def scenario(server: MongoServer) -> None:
        url = server.address("crash")
        async with opened(url) as store:
            tasks = [asyncio.create_task(work(store, f"acme/{n}")) for n in range(8)]
            async with asyncio.timeout(20):
                while len(answered) < 8 or min(answered.values()) < 20:
                    await asyncio.sleep(0.01)
            server.kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(server.resume)
        async with opened(url) as store:
            for key, version in answered.items():
                rows = await log(store, key)
                check_log(rows, key)
                assert version <= len(rows) <= version + 1
                assert isinstance((await store.hold([key], "w1", LEASE))[0], Held)

    with MongoServer(private=True) as server:
        asyncio.run(scenario(server))


# Servers that will not do


def test_whatever_the_address_says_a_majority_has_it(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        async with opened(emptied_mongodb, w="1", journal="false", readConcernLevel="local") as store:
            for one in store._link.tables:
                assert {**one.write_concern.document, "wtimeout": 0} == {"w": "majority", "j": True, "wtimeout": 0}
                assert (one.read_concern.level, one.read_preference) == ("majority", ReadPreference.PRIMARY)

    asyncio.run(scenario())


def test_a_server_that_is_no_replica_set_is_refused() -> None:
    async def scenario(url: str) -> None:
        with pytest.raises(SettingsError, match="no member of a replica set"):
            await MongoStore(url).open()

    with MongoServer(private=True, alone=True) as server:
        asyncio.run(scenario(server.address("shop")))


def test_a_server_that_may_lose_what_it_confirmed_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: MongoServer) -> None:
        with pytest.raises(SettingsError, match="writeConcernMajorityJournalDefault is false.*unsafe=yes"):
            await MongoStore(server.address("shop")).open()
        with caplog.at_level(logging.WARNING):
            async with opened(server.address("shop", unsafe="yes")) as store:
                assert await store.start([begin()], GRACE) == ["created"]
        assert "loses what they have confirmed" in caplog.text

    with MongoServer(private=True, configuration={"writeConcernMajorityJournalDefault": False}) as server:
        asyncio.run(scenario(server))


def test_every_verb_goes_by_an_index() -> None:
    """The server refuses to read whole collections."""

    async def scenario(url: str, client: MongoClient[dict[str, Any]]) -> None:
        async with opened(url) as store:
            client.admin.command("setParameter", 1, notablescan=True)
            await store.start([begin(ONE, lane="a", topics=("t",), tags=("x",), correlation="c", parent=TWO)], 0)
            await store.start([begin(f"flood/{n}") for n in range(10)], 0)
            await accepted(store, letter("m1"), letter("m2"))
            await store.send([letter(key=f"flood/{n}") for n in range(10)], 0)
            hand = await take(store)
            assert await hand.commit(settled(), letter("m1")) == "ok"
            stale = await hand.prepare(settled())
            assert await hand.commit(settled()) == "ok"
            stale.children = [begin(TWO)]
            assert await store.commit([stale], GRACE) == ["stale"]
            assert await store.hold([ONE], "w1", LEASE) != []
            await store.renew([(ONE, 1)], LEASE)
            await store.release([(ONE, 1)])
            assert len(await store.claim(QUEUES, DEFINITIONS, 2, GRACE)) == 2
            await store.next_due(QUEUES, DEFINITIONS)
            await store.backlog()
            await store.begun("acme", 10)
            await store.fresh([ONE])
            await store.message(ONE, "m1")
            await store.listening("acme", ["t"], 10)
            await store.extent("acme", "order")
            await store.head(ONE)
            for parts in ({}, {"status": "running"}, {"status": "waiting"}, {"status": "stuck"}, {"workflow": "order"}):
                await store.find(Query("acme", **parts))
                await store.find(Query(None, **parts))
            for parts in ({"tags": ("x",)}, {"correlation": "c"}, {"parent": TWO}, {"fields": {"n": 1}}):
                await store.find(Query("acme", **parts))
            held = await take(store)
            assert await held.end(*(await store.mail([ONE]))[ONE]) == "ok"

    with MongoServer(private=True) as server, MongoClient[dict[str, Any]](server.address("index")) as client:
        asyncio.run(scenario(server.address("index"), client))


def test_a_claim_reads_little_of_a_flood(mongodb: str) -> None:
    """To find who else waits, the server goes from tenant to tenant."""

    async def scenario(client: MongoClient[dict[str, Any]]) -> None:
        database = client.get_default_database()
        async with opened(mongodb) as store:
            keys = [f"flood/{n}" for n in range(1000)]
            await store.start([begin(key) for key in keys], 0)
            await store.start([begin("small/one")], 0)
            await store.send([letter(key=key) for key in keys], 0)
            database.command("profile", 2)
            assert "small/one" in [due.key for due in await store.claim(QUEUES, DEFINITIONS, 2, GRACE)]
            database.command("profile", 0)
        reads = list(database["system.profile"].find({"keysExamined": {"$exists": True}}))
        assert reads and max(one["keysExamined"] for one in reads) < 100, reads

    with MongoClient[dict[str, Any]](mongodb) as client:
        asyncio.run(scenario(client))


def test_who_has_begun_is_looked_up_many_at_once(mongodb: str) -> None:
    """A tenant whose quota is full has a long queue of those that have not, and is asked about again and again."""

    async def scenario(client: MongoClient[dict[str, Any]]) -> None:
        database = client.get_default_database()
        async with opened(mongodb) as store:
            await store.start([begin(f"acme/{n}") for n in range(90)], 0)
            hands = [await take(store, f"acme/{n}") for n in range(4)]
            assert await hands[0].commit(settled(), settle=Park("open", None, waits=b"{}")) == "ok"
            assert await hands[1].park(settled()) == "ok"
            await store.release([(hands[2].key, hands[2].token)])
            database.command("profile", 2)
            assert await store.begun("acme", 50) == 3
            database.command("profile", 0)
        reads = [one["ns"].rpartition(".")[2] for one in database["system.profile"].find({"op": {"$ne": "update"}})]
        assert sorted(reads) == ["events", "heads", "wakes"]

    with MongoClient[dict[str, Any]](mongodb) as client:
        asyncio.run(scenario(client))


# The layout


def test_many_that_open_at_once_make_one_layout(mongodb: str) -> None:
    async def scenario() -> None:
        stores = [MongoStore(mongodb) for _ in range(8)]
        await asyncio.gather(*(store.open() for store in stores))
        assert await stores[0].schema_number() == layout.NUMBER
        assert await stores[0].start([begin()], GRACE) == ["created"]
        assert await stores[7].start([begin()], GRACE) == ["same"]
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_a_newer_layout_is_refused(mongodb: str) -> None:
    async def scenario() -> None:
        assert await MongoStore(mongodb).schema_number() == 0
        async with opened(mongodb) as store:
            await store._link.tables.layout.update_one({"_id": "perdure"}, {"$set": {"number": layout.NUMBER + 1}})
        with pytest.raises(StoreOutdated, match=f"number {layout.NUMBER + 1}.*a newer one"):
            await MongoStore(mongodb).open()

    asyncio.run(scenario())


def test_a_log_is_only_ever_inserted_into(mongodb: str) -> None:
    async def scenario(client: MongoClient[dict[str, Any]]) -> None:
        async with opened(mongodb) as store:
            client.get_default_database().command("profile", 2)
            hand = await begun(store)
            await accepted(store, letter())
            await hand.park(settled(), letter())
            hand = await take(store)
            await store.hold([ONE], "w1", LEASE)
            hand = await take(store)
            assert await hand.end() == "ok"
            client.get_default_database().command("profile", 0)
        ours = client.get_default_database()
        of_log = {"ns": f"{ours.name}.events"}
        ops = {one["op"] for one in ours["system.profile"].find(of_log)}
        assert "insert" in ops and not ops & {"update", "remove"}

    with MongoClient[dict[str, Any]](mongodb) as client:
        asyncio.run(scenario(client))


def test_a_store_opens_again_on_another_loop_and_says_when_it_is_closed(emptied_mongodb: str) -> None:
    store = MongoStore(emptied_mongodb)

    async def use() -> list[str]:
        await store.open()
        try:
            return list(await store.start([begin()], GRACE))
        finally:
            await store.close()

    assert asyncio.run(use()) == ["created"]
    assert asyncio.run(use()) == ["same"]
    for one in (store, MongoStore(emptied_mongodb)):
        for call in (one.start([begin()], GRACE), one.head(ONE), one.hold([ONE], "w1", LEASE), one.mail([ONE])):
            with pytest.raises(StoreError, match="not open"):
                asyncio.run(call)


# Values


def test_a_row_that_is_too_large_is_refused_and_nothing_is_written(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        async with opened(emptied_mongodb) as store:
            hand = await begun(store)
            row = events.row(settled(), 2, at=0)
            large = [type(row)(2, row.type, b"1" * 16_000_000, 0, hand.token)]
            with pytest.raises(InvalidValue, match="acme/one: 16000000 bytes"):
                await store.commit([Commit(ONE, hand.token, large)], GRACE)
            assert len(await log(store)) == 1

    asyncio.run(scenario())


def test_a_group_of_which_the_server_took_a_part_is_unknown(mongodb: str) -> None:
    """As when the disk is full in the middle of it: whoever were told that nothing was written would write it again."""

    async def scenario(client: MongoClient[dict[str, Any]]) -> None:
        async with opened(mongodb) as store:
            hands = [await begun(store, key) for key in (ONE, TWO)]
            client.get_default_database().command("collMod", "events", validator={"key": {"$ne": TWO}})
            group = [await hand.prepare(settled()) for hand in hands]
            with pytest.raises(OutcomeUnknown, match="1 of 2"):
                await store.commit(group, GRACE)
            assert [len(await log(store, key)) for key in (ONE, TWO)] == [2, 1]
            with pytest.raises(StoreError, match="nothing was written") as refused:
                await store.commit(group[1:], GRACE)
            assert not isinstance(refused.value, OutcomeUnknown)

    with MongoClient[dict[str, Any]](mongodb) as client:
        asyncio.run(scenario(client))


def test_a_commit_that_needs_several_documents_is_written_whole_or_not_at_all(
    emptied_mongodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "FULL", 12_000)

    async def scenario() -> None:
        async with opened(emptied_mongodb) as store:
            hand = await begun(store)
            row = events.row(Marked(1, "record"), 2, at=0)
            rows = [type(row)(version, row.type, b"1" * 5_000, 0, hand.token) for version in range(2, 6)]
            stale = Commit(ONE, hand.token, rows)
            await hand.commit(settled())
            assert await store.commit([stale], GRACE) == ["stale"]
            assert len(await log(store)) == 2
            later = [type(row)(one.version + 1, one.type, one.data, 0, hand.token) for one in rows]
            answer: list[Outcome] = await store.commit([Commit(ONE, hand.token, later)], GRACE)
            assert answer == ["ok"]
            assert (await log(store))[2:] == later
            head = await store.head(ONE)
            assert isinstance(head, Head) and head.version == 6
            assert await store.read(ONE, after=2, until=4) == later[:2]

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["\ud800", "x\udfff"])
def test_text_that_cannot_be_stored(emptied_mongodb: str, text: str) -> None:
    async def scenario() -> None:
        async with opened(emptied_mongodb) as store:
            with pytest.raises(InvalidValue, match="nothing was written"):
                await store.start([begin(f"acme/{text}")], GRACE)
            with pytest.raises(InvalidValue, match="nothing was written"):
                await store.start([begin(ONE, correlation=text)], GRACE)
            assert await store.head(ONE) is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "kind"),
    [(13, StoreError), (18, StoreError), (50, StoreUnavailable), (14031, StoreFull), (10107, StoreReadOnly)],
)
def test_every_error_says_what_it_means(code: int, kind: type[Exception]) -> None:
    told = trouble.meaning(OperationFailure("no", code), "mongodb://db/shop", writes=True)
    assert type(told) is kind
    assert str(told).startswith("mongodb://db/shop: ")


# Addresses


def test_an_address_is_taken_apart() -> None:
    address = read_address("mongodb+srv://ada:s3cret@db.example/shop?unsafe=yes&authSource=admin")
    assert address.dsn == "mongodb+srv://ada:s3cret@db.example/shop?authSource=admin"
    assert address.shown == "mongodb+srv://ada:***@db.example/shop?authSource=admin"
    assert (address.database, address.unsafe) == ("shop", True)


@pytest.mark.parametrize("url", ["mongodb://db", "mongodb://db/", "mongodb://db/a.b", "mongodb://ada:s3c@db/a/b"])
def test_an_address_without_a_database_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="names no database") as told:
        read_address(url)
    assert "s3c" not in str(told.value)


def test_an_option_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(SettingsError, match="unsafe='perhaps'"):
        read_address("mongodb://db/shop?unsafe=perhaps")
