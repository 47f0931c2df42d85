"""What goes wrong between a worker and PostgreSQL, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from perdure.core.events import ActionSettled, Started, TakenOver
from perdure.core.records import Held, Outcome, Park
from perdure.errors import (
    InvalidValue,
    OutcomeUnknown,
    SettingsError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from perdure.stores.postgres import PostgresStore, connections
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    TWO,
    Hand,
    begin,
    begun,
    kinds,
    letter,
    log,
    settled,
    take,
)
from perdure.testing.invariants import check_log
from perdure.testing.proxy import Proxy
from perdure.testing.servers.postgres import PostgresServer


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    for name, value in options.items():
        url += f"&{name}={value}"
    store = PostgresStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def through(url: str, **options: Any) -> AsyncIterator[tuple[PostgresStore, Proxy, PostgresStore]]:
    """A store behind a proxy, the proxy, and a store with a wire of its own."""
    host, _, port = url.partition("@")[2].partition("/")[0].partition(":")
    async with Proxy(host or "127.0.0.1", int(port or 5432)) as proxy, opened(url) as direct:
        async with opened(url.replace(f"@{host}:{port}/", f"@127.0.0.1:{proxy.port}/"), **options) as store:
            yield store, proxy, direct


@asynccontextmanager
async def owner(url: str) -> AsyncIterator[Any]:
    """A connection that others can be disturbed with; its search path is the test's schema."""
    schema = url.partition("schema=")[2].partition("&")[0]
    connection = await asyncpg.connect(url.partition("?")[0], server_settings={"search_path": schema})
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A server that a test may do anything to."""
    with PostgresServer(private=True) as server:
        yield server


# Lost connections


def test_a_commit_whose_reply_is_lost_is_unknown_and_was_written(postgres: str) -> None:
    async def scenario() -> None:
        async with through(postgres) as (store, proxy, direct):
            hand = await begun(store)
            await hand.commit(settled(1))
            commit = await hand.prepare(settled(2))
            proxy.cut("reply")
            with pytest.raises(OutcomeUnknown, match="may or may not"):
                await store.commit([commit], GRACE)
            again = await take(store)
            assert kinds(again.held.rows) == [Started, ActionSettled, ActionSettled, TakenOver]
            assert await again.commit(settled(3)) == "ok"
            check_log(await log(direct), ONE)

    asyncio.run(scenario())


def test_a_commit_whose_request_is_lost_is_unknown_and_was_not_written(postgres: str) -> None:
    async def scenario() -> None:
        async with through(postgres) as (store, proxy, _):
            hand = await begun(store)
            await hand.commit(settled(1))
            commit = await hand.prepare(settled(2))
            proxy.cut("request")
            with pytest.raises(OutcomeUnknown):
                await store.commit([commit], GRACE)
            again = await take(store)
            assert kinds(again.held.rows) == [Started, ActionSettled, TakenOver]

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["request", "reply"])
def test_a_transaction_whose_commit_is_lost_is_unknown(postgres: str, where: Any) -> None:
    async def scenario() -> None:
        async with through(postgres) as (store, proxy, direct):
            hand = await begun(direct)
            commit = await hand.prepare(settled())
            with pytest.raises(OutcomeUnknown):
                async with store.transaction() as connection:
                    assert await store.commit_in(connection, [commit], GRACE) == ["ok"]
                    proxy.cut(where)
            written = [Started, ActionSettled] if where == "reply" else [Started]
            assert kinds((await take(direct)).held.rows) == [*written, TakenOver]
            async with store.transaction() as connection:
                assert await connection.fetchval("select 1") == 1

    asyncio.run(scenario())


def test_a_start_repeated_after_a_lost_reply_is_the_same(postgres: str) -> None:
    async def scenario() -> None:
        async with through(postgres) as (store, proxy, _):
            await store.start([begin(TWO)], GRACE)
            proxy.cut("reply")
            with pytest.raises(OutcomeUnknown):
                await store.start([begin()], GRACE)
            assert await store.start([begin()], GRACE) == ["same"]

    asyncio.run(scenario())


def test_a_lost_read_is_unavailable_and_the_next_one_connects_again(postgres: str) -> None:
    async def scenario() -> None:
        async with through(postgres) as (store, proxy, _):
            await store.start([begin()], GRACE)
            assert await store.head(ONE)
            proxy.cut("reply")
            with pytest.raises(StoreUnavailable):
                await store.head(ONE)
            assert await store.head(ONE)

    asyncio.run(scenario())


def test_silence_is_a_lost_connection(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENCE", 0.1)

    async def scenario() -> None:
        async with through(postgres, statement_timeout=1) as (store, proxy, _):
            hand = await begun(store)
            await hand.commit(settled(1))
            commit = await hand.prepare(settled(2))
            proxy.swallow()
            with pytest.raises(OutcomeUnknown):
                await store.commit([commit], GRACE)
            proxy.heal()
            assert isinstance((await store.hold([ONE], "w1", LEASE))[0], Held)

    asyncio.run(scenario())


def test_a_slow_wire_is_only_slow(postgres: str) -> None:
    async def scenario() -> None:
        async with through(postgres) as (store, proxy, _):
            proxy.delay = 0.02
            hand = await begun(store)
            assert await hand.commit(settled(1)) == "ok"

    asyncio.run(scenario())


def test_without_a_server_nothing_was_written(postgres: str) -> None:
    async def scenario() -> None:
        async with through(postgres, connect_timeout=1) as (store, proxy, _):
            await store.start([begin()], GRACE)
            proxy.sever()
            assert proxy._server is not None
            proxy._server.close()
            with pytest.raises(StoreUnavailable):
                await store.head(ONE)
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await store.start([begin(TWO)], GRACE)

    asyncio.run(scenario())


def test_work_goes_on_while_backends_are_killed(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store, owner(postgres) as connection:
            keys = [f"acme/{number}" for number in range(10)]
            await store.start([begin(key) for key in keys], GRACE)
            lost = commits = 0

            async def work(key: str) -> None:
                nonlocal lost, commits
                hand, done = None, 0
                while done < 20:
                    try:
                        hand = hand or await take(store, key)
                        assert await hand.commit(settled(done)) == "ok"
                        done += 1
                        commits += 1
                    except StoreError:
                        lost += 1
                        hand = None  # it may have been written: the log tells
                        done = sum(kind is ActionSettled for kind in kinds(await patient(lambda: log(store, key))))

            async def kill() -> None:
                before = -1
                while True:
                    await asyncio.sleep(0.005)
                    if commits == before:  # however slow the machine is, something gets done between two deaths
                        continue
                    before = commits
                    await connection.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity"
                        " where datname = current_database()"
                        " and application_name = 'perdure work' order by random() limit 1"
                    )

            killer = asyncio.create_task(kill())
            await asyncio.gather(*(work(key) for key in keys))
            killer.cancel()
            assert lost > 0
            for key in keys:
                check_log(await log(store, key), key)

    asyncio.run(scenario())


async def patient(call: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await call()
        except StoreUnavailable:
            pass


def test_a_crash_of_the_server_in_mid_load_loses_nothing(own_postgres: PostgresServer) -> None:
    async def scenario() -> None:
        async with opened(own_postgres.address(schema="crash")) as store:
            keys = [f"acme/{number}" for number in range(20)]
            await store.start([begin(key) for key in keys], GRACE)
            confirmed = dict.fromkeys(keys, 1)
            going = True

            async def work(key: str) -> None:
                hand = None
                while going or hand is None:
                    try:
                        hand = hand or await take(store, key)
                        if await hand.commit(settled(hand.version)) == "ok":
                            confirmed[key] = hand.version
                    except StoreError:
                        hand = None

            working = [asyncio.create_task(work(key)) for key in keys]
            for _ in range(2):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(own_postgres.restart, "immediate")
            await asyncio.sleep(0.3)
            going = False
            await asyncio.gather(*working)
            for key in keys:
                rows = await log(store, key)
                check_log(rows, key)
                assert rows[-1].version >= confirmed[key] > 1

    asyncio.run(scenario())


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_does_not_write_to_its_disk_in_time_is_refused(
    own_postgres: PostgresServer, setting: str
) -> None:
    async def switch(connection: Any, to: str) -> None:
        await connection.execute(f"alter system set {setting} = {to}")
        await connection.execute("select pg_reload_conf()")
        while await connection.fetchval(f"show {setting}") != to:
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        connection = await asyncpg.connect(own_postgres.address())
        try:
            await switch(connection, "off")
            with pytest.raises(SettingsError, match=f"{setting} off: a crash of the server loses"):
                async with opened(own_postgres.address(schema="careless")):
                    pass
        finally:
            await switch(connection, "on")
            await connection.close()
        async with opened(own_postgres.address(schema="careless")):
            pass

    asyncio.run(scenario())


# Locks, limits and values


def test_the_time_is_not_ahead_of_the_servers_though_it_took_long_to_ask_for_it(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store, owner(postgres) as other:
            async with other.transaction():
                await other.execute("lock table wakes in access exclusive mode")
                asking = asyncio.create_task(store.next_due(QUEUES, DEFINITIONS))
                await asyncio.sleep(0.5)
            await asking
            told = await store.now()
            assert told <= await other.fetchval("select now_us()")

    asyncio.run(scenario())


def test_a_lock_that_is_not_given_is_asked_for_again(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres, lock_timeout=0.05) as store, owner(postgres) as other:
            hand = await begun(store)
            transaction = other.transaction()
            await transaction.start()
            await other.execute("select 1 from wakes for update")
            parking = asyncio.create_task(hand.park(settled()))
            await asyncio.wait([parking], timeout=0.1)
            await transaction.rollback()
            assert await parking == "ok"

    asyncio.run(scenario())


def test_a_lock_that_is_never_given_leaves_nothing_written(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres, lock_timeout=0.02) as store, owner(postgres) as other:
            hand = await begun(store)
            async with other.transaction():
                await other.execute("select 1 from wakes for update")
                with pytest.raises(StoreUnavailable, match="lock_timeout"):
                    await hand.park(settled())
            assert await hand.park(settled()) == "ok"

    asyncio.run(scenario())


def test_a_statement_that_takes_too_long_leaves_nothing_written(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres, statement_timeout=1, lock_timeout=5) as store, owner(postgres) as other:
            hand = await begun(store)
            async with other.transaction():
                await other.execute("select 1 from wakes for update")
                with pytest.raises(StoreUnavailable, match="statement_timeout"):
                    await hand.park(settled())
            assert await hand.park(settled()) == "ok"

    asyncio.run(scenario())


def test_a_transaction_whose_connection_the_driver_finds_in_disorder_may_have_been_committed(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def commit(self: Any) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    async def scenario() -> None:
        async with opened(postgres) as store:
            with pytest.raises(OutcomeUnknown):
                async with store.transaction():
                    monkeypatch.setattr("asyncpg.transaction.Transaction.commit", commit)
            monkeypatch.undo()
            async with store.transaction() as connection:  # another one
                assert await connection.fetchval("select 1") == 1

    asyncio.run(scenario())


def test_a_connection_that_is_in_disorder_from_the_start_is_made_again(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")

    async def scenario() -> None:
        monkeypatch.setattr(asyncpg, "connect", fail)
        async with opened(postgres) as store:
            monkeypatch.setattr(asyncpg, "connect", fail)
            assert await store.head(ONE) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", [1, 2, 3, 20])
def test_whoever_is_cancelled_while_a_transaction_begins_leaves_none_to_the_next(postgres: str, turns: int) -> None:
    async def given_up(work: Awaitable[Any]) -> None:
        working = asyncio.ensure_future(work)
        for _ in range(turns):
            await asyncio.sleep(0)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    async def guest(store: PostgresStore, key: str) -> None:
        async with store.transaction() as connection:
            assert await store.start_in(connection, [begin(key)], GRACE) == ["created"]

    async def parent(store: PostgresStore, hand: Hand) -> None:
        await hand.commit(settled(), children=[begin("acme/child", topics=("x",))])

    async def scenario() -> None:
        async with opened(postgres, readers=1) as store, opened(postgres) as other:
            await guest(store, "acme/first")
            await given_up(guest(store, "acme/second"))
            await guest(store, "acme/third")
            assert await other.head("acme/third") is not None
            await given_up(store.start([begin("acme/fourth", topics=("x",))], GRACE))
            assert await store.start([begin("acme/fifth")], GRACE) == ["created"]
            assert await other.head("acme/fifth") is not None
            hand, later = await begun(store, ONE), await begun(store, TWO)
            await given_up(parent(store, hand))
            assert await later.commit(settled()) == "ok"
            assert settled_rows(await log(other, TWO)) == 1

    def settled_rows(rows: list[Any]) -> int:
        return kinds(rows).count(ActionSettled)

    asyncio.run(scenario())


def test_a_transaction_in_which_nothing_happens_is_ended_and_what_it_wrote_with_it(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres, idle_timeout=0.2) as stopped, opened(postgres) as other:
            hand = await begun(stopped)
            with pytest.raises(StoreError):
                async with stopped.transaction() as connection:
                    assert await stopped.commit_in(connection, [await hand.prepare(settled())], GRACE) == ["ok"]
                    # The process is stopped here: somebody who takes over waits for it, but not for ever.
                    async with asyncio.timeout(10):
                        taken = await take(other, me="w1")
            assert kinds(taken.held.rows) == [Started, TakenOver]
            assert await taken.commit(settled()) == "ok"

    asyncio.run(scenario())


def test_every_session_has_limits(postgres: str) -> None:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")

    async def scenario() -> None:
        async with opened(postgres, statement_timeout=7, lock_timeout=1.5, idle_timeout=20) as store:
            hand = await begun(store)
            await hand.commit(settled())
            lines = [*store._work._lines, *store._calls._lines]
            async with store.transaction() as guest:
                sessions = [guest, *(line._connection for line in lines if line._connection is not None)]
                for session in sessions:
                    assert [await session.fetchval(f"show {name}") for name in names] == ["7s", "1500ms", "20s"]
            assert len(sessions) >= 3

    asyncio.run(scenario())


async def fail(connection: Any, state: str, times: int) -> None:
    """Let the clock of the schema fail so many times. A sequence counts, for it is not rolled back."""
    schema = await connection.fetchval("select current_schema()")
    await connection.execute("create sequence failures")
    await connection.execute(
        "create or replace function now_us() returns bigint language plpgsql as $$ begin"
        f" if nextval('{schema}.failures') <= {times} then raise exception 'no' using errcode = '{state}'; end if;"
        " return (extract(epoch from clock_timestamp()) * 1000000)::bigint; end $$"
    )


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_call_that_met_others_is_repeated(postgres: str, state: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store, owner(postgres) as other:
            hand = await begun(store)
            commit = await hand.prepare(settled(), settle=Park("open", None))
            await fail(other, state, times=4)
            assert await store.commit([commit], GRACE) == ["ok"]
            check_log(await log(store), ONE)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("state", "kind"),
    [("40001", StoreUnavailable), ("53100", StoreFull), ("XX000", StoreError), ("22003", InvalidValue)],
)
def test_every_error_says_what_it_means(postgres: str, state: str, kind: type[Exception]) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store, owner(postgres) as other:
            hand = await begun(store)
            commit = await hand.prepare(settled(), settle=Park("open", None))
            await fail(other, state, times=5)
            with pytest.raises(kind, match="nothing was written"):
                await store.commit([commit], GRACE)
            assert kinds(await log(store)) == [Started]

    asyncio.run(scenario())


def test_a_real_deadlock_is_repeated(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres, lock_timeout=10) as store, owner(postgres) as other:
            one, two = await begun(store, ONE), await begun(store, TWO)
            await other.execute("set deadlock_timeout = '10s'")  # so that the store's side is the victim
            async with other.transaction():
                await other.execute("select 1 from wakes where key = $1 for update", TWO)
                parking = asyncio.create_task(park_both(store, one, two))
                await waiting(other, "perdure work")
                await other.execute("select 1 from wakes where key = $1 for update", ONE)
            assert await parking == ["ok", "ok"]

    asyncio.run(scenario())


async def park_both(store: PostgresStore, *hands: Hand) -> list[Outcome]:
    return await store.commit([await hand.prepare(settled(), settle=Park("open", None)) for hand in hands], GRACE)


async def waiting(connection: Any, name: str) -> None:
    """Return when a session of this name waits for a lock."""
    looking = "select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'"
    while not await connection.fetchval(looking, name):
        await connection.execute("select pg_stat_clear_snapshot()")  # a transaction sees what it saw first


def test_a_database_that_takes_no_writes(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres):
            pass
        async with opened(postgres, default_transaction_read_only="on") as store:
            with pytest.raises(StoreReadOnly):
                await store.start([begin()], GRACE)
            assert await store.head(ONE) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["nul\0", "lone \ud800"])
def test_text_that_cannot_be_stored(postgres: str, text: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store:
            with pytest.raises(InvalidValue):
                await store.start([begin(workflow=text)], GRACE)
            await store.start([begin()], GRACE)
            with pytest.raises(InvalidValue):
                await store.send([letter(text)], GRACE)
            assert len(await store.claim(QUEUES, DEFINITIONS, 10, 0)) == 0

    asyncio.run(scenario())
