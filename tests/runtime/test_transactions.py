"""Executions and actions in transactions of a PostgreSQL database: both happen or neither."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any, Literal
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure import (
    Breaker,
    ExecutionFailed,
    ExecutionNotFound,
    External,
    Perdure,
    Retry,
    action,
    event,
    workflow,
)
from perdure.core.records import Outcome
from perdure.errors import REFUSALS, ExecutionStuck, PerdureError, UsageError
from perdure.stores.postgres.address import read_address
from perdure.testing import check_log
from perdure.testing.proxy import Proxy

Body = Callable[[Perdure, asyncpg.Connection], Awaitable[None]]
tries: list[str] = []


@pytest.fixture
def database(postgres: str) -> Callable[[Body], None]:
    """Runs a body with an application with a worker, and a connection of its own to a table `entries`."""

    def use(body: Body) -> None:
        async def main() -> None:
            schema = postgres.partition("schema=")[2].partition("&")[0]
            connection = await asyncpg.connect(postgres.partition("?")[0])
            async with Perdure(postgres, lease=2, grace=0.2) as app:
                await connection.execute(f'set search_path = "{schema}"')
                await connection.execute("create table entries (what text)")
                app_table = f'"{schema}".entries'
                async with app.working():
                    place[0] = app_table
                    await body(app, connection)
            await connection.close()

        tries.clear()
        asyncio.run(main())

    return use


place = [""]


async def entries(connection: asyncpg.Connection) -> list[str]:
    return [row[0] for row in await connection.fetch(f"select what from {place[0]} order by 1")]


@action(transactional=True, retries=Retry(attempts=4, first=0.01))
async def book(what: str, fail: int = 0) -> str:
    tries.append(action.key)
    await action.connection.execute(f"insert into {place[0]} values ($1)", what)
    if len(tries) <= fail:
        raise ConnectionError("after the insert")
    return f"booked {what}"


@workflow
async def booking(what: str, fail: int) -> str:
    return await book(what, fail)


def test_an_execution_starts_with_the_callers_transaction_or_not_at_all(database: Callable[[Body], None]) -> None:
    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f"insert into {place[0]} values ('mine')")
        gone = await app.start(booking, "gone", 0, id="gone", connection=connection)
        await transaction.rollback()
        async with connection.transaction():
            await connection.execute(f"insert into {place[0]} values ('mine')")
            run = await app.start(booking, "theirs", 0, id="here", connection=connection)
        assert await run.result(timeout=10) == "booked theirs"
        with pytest.raises(ExecutionNotFound):
            await gone.head()
        assert await entries(connection) == ["mine", "theirs"]

    database(body)


def test_a_connection_is_one_of_asyncpg_also_from_a_pool(postgres: str, database: Callable[[Body], None]) -> None:
    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        with pytest.raises(UsageError, match="takes a connection of asyncpg, not a str"):
            await app.start(booking, "room", 0, connection=postgres)
        async with asyncpg.create_pool(postgres.partition("?")[0], min_size=1, max_size=1) as pool:
            async with pool.acquire() as lent, lent.transaction():
                run = await app.start(booking, "room", 0, connection=lent)
        assert await run.result(timeout=10) == "booked room"

    database(body)


def test_an_event_is_sent_with_the_callers_transaction_or_not_at_all(database: Callable[[Body], None]) -> None:
    @workflow
    async def listens() -> list[str]:
        return [await event("say", str), await event("say", str)]

    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        run = await app.start(listens)
        for word, kept in (("one", True), ("lost", False), ("two", True)):
            transaction = connection.transaction()
            await transaction.start()
            await app.send(run.id, "say", word, connection=connection)
            await (transaction.commit() if kept else transaction.rollback())
        assert await run.result(timeout=10) == ["one", "two"]

    database(body)


@pytest.mark.parametrize("error", REFUSALS)
def test_a_result_that_the_store_does_not_take_is_rolled_back_and_not_written_later(
    error: type[PerdureError], database: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> list[Outcome]:
        raise error("not this")

    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        with monkeypatch.context() as refusing:
            refusing.setattr(app.store, "commit_in", refuse)
            run = await app.start(booking, "room", 0, id="b")
            with pytest.raises(ExecutionStuck, match="not this"):
                await run.result(timeout=10)
            assert await entries(connection) == []
            assert len(tries) == 1
        await run.retry()
        assert await run.result(timeout=10) == "booked room"
        assert await entries(connection) == ["room"]

    database(body)


def test_the_writes_and_the_result_of_a_transactional_action_are_one(database: Callable[[Body], None]) -> None:
    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        run = await app.start(booking, "room", 0, id="b")
        assert await run.result(timeout=10) == "booked room"
        assert await entries(connection) == ["room"]
        check_log([row async for row in run.rows()], run.key)

    database(body)


def test_a_failed_try_leaves_nothing_behind(database: Callable[[Body], None]) -> None:
    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        assert await (await app.start(booking, "room", 2)).result(timeout=20) == "booked room"
        assert len(tries) == 3
        assert await entries(connection) == ["room"]
        with pytest.raises(ExecutionFailed, match="after the insert"):
            await (await app.start(booking, "never", 99)).result(timeout=30)
        assert await entries(connection) == ["room"]

    database(body)


@action(name="book-or-wait", transactional=True, retries=Retry(attempts=2, first=0.01, spent="stuck"))
async def book_or_wait(what: str) -> int:
    await action.connection.execute(f"insert into {place[0]} values ($1)", what)
    if action.attempt < 3:
        raise ConnectionError("after the insert")
    return action.attempt


def test_one_whose_attempts_are_spent_is_stuck_and_leaves_nothing_behind(database: Callable[[Body], None]) -> None:
    @workflow(name="books-or-waits")
    async def books() -> int:
        return await book_or_wait("room")

    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        run = await app.start(books, id="b")
        await run.until("stuck", timeout=20)
        assert await entries(connection) == []
        assert [one.id for one in (await app.dead(cause="attempts")).dead] == ["b"]
        await run.retry()
        assert await run.result(timeout=20) == 3
        assert await entries(connection) == ["room"]
        check_log([row async for row in run.rows()], run.key)

    database(body)


@action(transactional=True, retries=3)
async def ends_it(how: str) -> None:
    tries.append(how)
    await action.connection.execute(f"insert into {place[0]} values ($1)", how)
    await action.connection.execute(how)


@workflow
async def ending(how: str) -> None:
    await ends_it(how)


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_one_that_ends_its_transaction_fails_and_does_not_run_again(database: Callable[[Body], None], how: str) -> None:
    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        run = await app.start(ending, how)
        with pytest.raises(ExecutionFailed, match="it ended the transaction that it ran in"):
            await run.result(timeout=20)
        assert tries == [how]
        assert await entries(connection) == (["commit"] if how == "commit" else [])
        assert await (await app.start(booking, "room", 0)).result(timeout=10) == "booked room"
        check_log([row async for row in run.rows()], run.key)

    database(body)


@action(transactional=True, retries=Retry(attempts=2, first=0.01))
async def put_off(rows: str) -> str:
    tries.append("put_off")
    await action.connection.execute(f"insert into {place[0]} values {rows}")
    return "fine"


@workflow
async def puts_off(rows: str) -> str:
    return await put_off(rows)


@pytest.mark.parametrize("constraint", ["unique (what)", "foreign key (other) references {} (key)"])
def test_a_constraint_that_is_checked_at_the_end_fails_the_action(
    database: Callable[[Body], None], constraint: str
) -> None:
    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        rule = constraint.format(place[0])
        await connection.execute(f"alter table {place[0]} add key text unique, add other text")
        await connection.execute(f"alter table {place[0]} add {rule} deferrable initially deferred")
        with pytest.raises(ExecutionFailed, match="ViolationError"):
            await (await app.start(puts_off, "('a', 'k', 'none'), ('a', 'l', 'k')")).result(timeout=20)
        assert len(tries) == 2
        assert await entries(connection) == []
        assert await (await app.start(puts_off, "('b', 'k', 'l'), ('c', 'l', 'k')")).result(timeout=20) == "fine"
        assert await entries(connection) == ["b", "c"]

    database(body)


@action(transactional=True, retries=Retry(attempts=2, first=0.01))
async def careless(nested: bool) -> str:
    tries.append("careless")
    await action.connection.execute(f"insert into {place[0]} values ('careless')")
    with suppress(asyncpg.PostgresError):
        async with action.connection.transaction() if nested else nullcontext():
            await action.connection.execute("select 1 / 0")
    return "fine"


@workflow
async def carelessly(nested: bool) -> str:
    return await careless(nested)


def test_one_that_goes_on_after_an_error_of_the_database_has_failed(database: Callable[[Body], None]) -> None:
    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        with pytest.raises(ExecutionFailed, match="a statement over action.connection failed and the action went on"):
            await (await app.start(carelessly, False)).result(timeout=20)
        assert len(tries) == 2
        assert await entries(connection) == []
        assert await (await app.start(carelessly, True)).result(timeout=10) == "fine"
        assert await entries(connection) == ["careless"]

    database(body)


def test_many_transactional_actions_at_once_take_effect_once_each(database: Callable[[Body], None]) -> None:
    @workflow
    async def several(n: int) -> int:
        return len(await asyncio.gather(*(book(f"{n}-{part}") for part in range(3))))

    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        runs = [await app.start(several, n) for n in range(30)]
        assert [await run.result(timeout=30) for run in runs] == [3] * 30
        written = await entries(connection)
        assert len(written) == len(set(written)) == 90

    database(body)


def test_a_worker_that_was_overtaken_cannot_commit_its_writes(database: Callable[[Body], None]) -> None:
    """The zombie is inside its transaction while another worker takes the execution over and finishes it."""

    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        @action(transactional=True)
        async def slow(what: str) -> str:
            tries.append(action.key)
            number = len(tries)
            await action.connection.execute(f"insert into {place[0]} values ($1)", f"{what} {number}")
            if number == 1:
                inside.set()
                await go_on.wait()
            return f"try {number}"

        @workflow
        async def once() -> str:
            return await slow("entry")

        run = await app.start(once, id="z")
        await asyncio.wait_for(inside.wait(), 30)
        worker: Any = app.worker
        worker.residents[run.key].lease_until = float("inf")  # it does not notice that its lease is over
        worker.draining = True  # nor does it take it up again
        await connection.execute(
            "update wakes set due = 0 where key = $1", run.key
        )  # as if it had been stopped for longer than its lease
        schema = await connection.fetchval("select current_schema()")
        base = app.settings.store.partition("?")[0]
        async with Perdure(f"{base}?schema={schema}", lease=5) as other, other.working():
            await asyncio.wait_for(_taken_over(other, run.key), 30)
            go_on.set()
            assert await other.get("z").result(timeout=20) == "try 2"
        assert await entries(connection) == ["entry 2"]
        counted = worker.metrics
        assert (counted.errors.counts["stale"], counted.actions.counts["ok"]) == (1, 0)
        check_log([row async for row in run.rows()], run.key)

    database(body)


async def _taken_over(app: Perdure, key: str) -> None:
    while len(tries) < 2:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("lost", "times"), [("request", 2), ("reply", 1)])
def test_a_commit_that_nobody_knows_the_outcome_of_takes_effect_once(
    postgres: str, lost: Literal["request", "reply"], times: int
) -> None:
    """The connection ends with the COMMIT on its way: before the server has it, or with its answer."""
    wires: list[Proxy] = []

    @action(transactional=True)
    async def cut_off(what: str) -> str:
        tries.append(action.key)
        await action.connection.execute(f"insert into {place[0]} values ($1)", what)
        if len(tries) == 1:
            wires[0].cut(lost, at=b"COMMIT")
        return what

    @workflow
    async def books_once() -> str:
        return await cut_off("room")

    async def main() -> None:
        address = read_address(postgres)
        server = urlsplit(address.dsn)
        place[0] = f'"{address.schema}".entries'
        connection = await asyncpg.connect(address.dsn)
        async with Proxy(server.hostname or "127.0.0.1", server.port or 5432) as wire:
            wires.append(wire)
            there = postgres.replace(f"@{server.hostname}:{server.port}/", f"@127.0.0.1:{wire.port}/")
            async with Perdure(there, lease=2, grace=0.2) as app, app.working():
                await connection.execute(f"create table {place[0]} (what text)")
                run = await app.start(books_once)
                assert await run.result(timeout=20) == "room"
                check_log([row async for row in run.rows()], run.key)
            assert wire.cuts == 1
        assert (len(tries), len(set(tries))) == (times, 1), "it runs again if nothing was written, and only then"
        assert await entries(connection) == ["room"]
        await connection.close()

    tries.clear()
    asyncio.run(main())


def test_a_success_closes_the_circuit_of_a_transactional_action(database: Callable[[Body], None]) -> None:
    async def body(app: Perdure, connection: asyncpg.Connection) -> None:
        @action(transactional=True, breaker=Breaker(failures=1, pause=0.1))
        async def ill_once() -> int:
            tries.append(action.key)
            if len(tries) == 1:
                raise External("503")
            return len(tries)

        @workflow
        async def asks() -> int:
            return await ill_once()

        await (await app.start(asks)).until("failed", timeout=10)
        assert await (await app.start(asks)).result(timeout=10) == 2
        worker: Any = app.worker
        assert worker.attempts.circuits.known["ill_once"].state == "closed"

    database(body)


def test_where_there_are_no_such_transactions_it_says_so() -> None:
    async def body() -> None:
        async with Perdure("memory://") as app, app.working():
            with pytest.raises(UsageError, match="needs a store on PostgreSQL"):
                await app.start(booking, "room", 0, connection=object())
            with pytest.raises(ExecutionFailed, match="transactional action needs"):
                await (await app.start(booking, "room", 0)).result(timeout=10)

    asyncio.run(body())


def test_declarations_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="async def"):

        @action(transactional=True)
        def plain() -> None: ...

    with pytest.raises(UsageError, match="exactly once"):

        @action(transactional=True, at_most_once=True)
        async def twice() -> None: ...
