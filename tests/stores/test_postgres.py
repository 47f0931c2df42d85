from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from perdure.core import events
from perdure.core.events import PROGRESS, ActionSettled, Started
from perdure.core.records import Commit, End, Held, Hint, Park, Query, Row
from perdure.errors import SettingsError, StoreError, StoreOutdated, StoreUnavailable
from perdure.ports import Joining, Store
from perdure.runtime.backends import connect
from perdure.stores.postgres import PostgresStore, columns, migrations, search
from perdure.stores.postgres.address import read_address
from perdure.stores.postgres.columns import numbers
from perdure.stores.postgres.connections import BY_INDEX
from perdure.streams.postgres import PostgresStream
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    TWO,
    StoreContract,
    accepted,
    begin,
    begun,
    kinds,
    letter,
    log,
    settled,
    take,
)
from tests.stores.edited import Edited
from tests.stores.test_postgres_faults import opened


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _schema(self, emptied_postgres: str) -> None:
        self.url = emptied_postgres + "&synchronous_commit=off&unsafe=yes"  # what it does is the same, and sooner

    async def make_store(self) -> Store:
        return PostgresStore(self.url, clock=self.clock)


@asynccontextmanager
async def session(url: str, **settings: str) -> AsyncIterator[Any]:
    """A plain connection whose search path is the test's schema."""
    address = read_address(url)
    connection = await asyncpg.connect(address.dsn, server_settings={"search_path": address.schema, **settings})
    try:
        yield connection
    finally:
        await connection.close()


# Addresses and opening


def test_an_address_is_taken_apart() -> None:
    address = read_address("postgresql://ada:s3cret@db:5433/shop?schema=orders&lock_timeout=0.5&sslmode=require")
    assert address.dsn == "postgresql://ada:s3cret@db:5433/shop?sslmode=require"
    assert address.shown == "postgresql://ada:***@db:5433/shop?sslmode=require"
    assert (address.schema, address.lock_timeout, address.migrate) == ("orders", 0.5, True)


@pytest.mark.parametrize("url", ["postgresql://ada:s3c/r@et@db/shop", "postgresql://ada@db/shop?sslpassword=s3c%20ret"])
def test_no_password_is_shown(url: str) -> None:
    assert "s3c" not in read_address(url).shown
    assert "ret" not in read_address(url).shown


@pytest.mark.parametrize(
    "query",
    ["schema=Orders", 'schema=a"b', "migrate=maybe", "lock_timeout=soon", "statement_timeout=0", "readers=none"],
)
def test_an_address_that_makes_no_sense_is_refused(query: str) -> None:
    with pytest.raises(SettingsError, match=query.partition("=")[0]):
        read_address(f"postgresql://db/shop?{query}")


@pytest.mark.parametrize("rest", ["ada:s3@cret:s3cret@127.0.0.1/shop", "127.0.0.1:s3cret/shop"])
def test_an_address_that_the_driver_cannot_read_is_explained(rest: str) -> None:
    with pytest.raises(SettingsError, match="the driver cannot read this address") as refusal:
        asyncio.run(PostgresStore(f"postgresql://{rest}").open())
    if "@" in rest:
        assert "s3cret" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize("option", ["shcema=orders", "work_mem=much", "sslmode=perhaps", "data_directory=here"])
def test_an_option_that_cannot_be_had_is_explained_at_once(postgres: str, option: str) -> None:
    with pytest.raises(StoreError, match=option.partition("=")[0]) as refusal:
        asyncio.run(PostgresStore(f"{postgres}&{option}").open())
    assert "the address asks for what cannot be had" in str(refusal.value)
    assert not isinstance(refusal.value, StoreUnavailable)


def test_an_address_names_the_store_and_its_stream(postgres: str) -> None:
    store, stream = connect(postgres)
    assert isinstance(store, PostgresStore)
    assert isinstance(store, Joining)
    assert isinstance(stream, PostgresStream)


def test_many_that_open_at_once_migrate_once(postgres: str) -> None:
    async def scenario() -> None:
        stores = [PostgresStore(postgres) for _ in range(20)]
        await asyncio.gather(*(store.open() for store in stores))
        async with session(postgres) as connection:
            numbers = [row[0] for row in await connection.fetch("select number from migrations order by number")]
        assert numbers == sorted(migrations.known())
        for store in stores:
            await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("number", range(3, max(migrations.known())))  # the first three are one schema
def test_a_schema_of_before_is_brought_up_with_its_data(
    number: int, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = migrations.known()

    async def scenario() -> None:
        with monkeypatch.context() as before:
            before.setattr(migrations, "known", lambda: {one: scripts[one] for one in range(1, number + 1)})
            async with opened(postgres):
                pass
        async with session(postgres) as connection:
            await connection.execute(
                "insert into heads"
                " (key, tenant, workflow, definition, queue, status, sha, base, started_at, changed_at)"
                " values ('acme/one', 'acme', 'order', 'order@1', 'default', 'open', 'sha', 1, 0, 0);"
                "insert into wakes (key, queue, definition, due, token, born)"
                " values ('acme/one', 'default', 'order@1', 0, 1, 0);"
                "insert into events (key, version, type, data, at, fence) values ('acme/one', 1, 1, '{}', 0, 0)"
            )
        async with opened(postgres) as store:
            assert await store.start([begin(sha="sha")], GRACE) == ["same"]
            assert await (await take(store)).end() == "ok"

    asyncio.run(scenario())


def test_a_migration_that_waits_for_a_table_lets_workers_pass(
    postgres: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scripts = {**migrations.known()}
    scripts[max(scripts) + 1] = "alter table events add column more int; alter table heads add column more int"
    monkeypatch.setattr(migrations, "PAUSE", 0.1)

    def tries() -> int:
        return caplog.text.count("the migration waits for a lock")

    async def scenario() -> float:
        slowest = 0.0
        async with opened(postgres) as store, session(postgres) as reader:
            hand = await begun(store)
            newer = PostgresStore(postgres)
            async with reader.transaction():
                await reader.fetch("select count(*) from events")  # as a backup does, for as long as it likes
                monkeypatch.setattr(migrations, "known", lambda: scripts)
                migrating = asyncio.create_task(newer.open())
                while tries() < 2 and not migrating.done():
                    began = time.monotonic()
                    await hand.commit(settled())
                    slowest = max(slowest, time.monotonic() - began)
            await migrating
            assert await hand.end() == "ok"
            assert await newer.head(ONE) is not None
            await newer.close()
        return slowest

    with caplog.at_level(logging.WARNING, "perdure.stores"):
        assert asyncio.run(scenario()) < 2
    assert tries() >= 2


def test_a_migration_that_never_gets_its_lock_says_so_and_changes_nothing(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = {**migrations.known()}
    scripts[max(scripts) + 1] = "create table more (id int); alter table heads add column more int"
    monkeypatch.setattr(migrations, "TRIES", 2)
    monkeypatch.setattr(migrations, "MOMENT", 0.05)

    async def scenario() -> None:
        async with opened(postgres), session(postgres) as reader:
            monkeypatch.setattr(migrations, "known", lambda: scripts)
            async with reader.transaction():
                await reader.fetch("select count(*) from heads")
                with pytest.raises(StoreError, match=r"somebody keeps a table locked .* nothing was changed"):
                    await PostgresStore(postgres).open()
            assert await reader.fetchval("select to_regclass('more')") is None

    asyncio.run(scenario())


def test_what_has_failed_or_waits_is_found_after_its_schema_was_brought_up(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = migrations.known()
    made = "(key, tenant, workflow, definition, queue, status, sha, base, started_at, changed_at)"

    async def scenario() -> None:
        with monkeypatch.context() as before:
            before.setattr(migrations, "known", lambda: {one: scripts[one] for one in range(1, 11)})
            async with opened(postgres):
                pass
        async with session(postgres) as connection:
            for number, status in enumerate(("open", "failed", "stuck", "completed")):
                head = f"'acme/{status}', 'acme', 'order', 'order@1', 'default', '{status}', 'sha', 1, {number}, 0"
                await connection.execute(f"insert into heads {made} values ({head})")
            await connection.execute(
                "insert into wakes (key, queue, definition, token, born)"
                " select key, queue, definition, 1, 0 from heads where status in ('open', 'stuck')"
            )
        async with opened(postgres) as store:
            for shown, key in (
                ("waiting", "open"),
                ("failed", "failed"),
                ("stuck", "stuck"),
                ("completed", "completed"),
            ):
                assert [one.key for one in await store.find(Query("acme", status=shown))] == [f"acme/{key}"]

    asyncio.run(scenario())


def test_an_execution_that_completes_changes_its_head_in_place(postgres: str) -> None:
    """Else every end would write every index of the heads again."""
    keys = [f"acme/{number}" for number in range(300)]

    async def scenario() -> tuple[int, int]:
        async with opened(postgres) as store:
            await store.start([begin(key) for key in keys], GRACE)
            hands = [await take(store, key) for key in keys]
            group = [
                await hand.prepare(settled(1), settle=End("completed", b'{"total": 1234567890}')) for hand in hands
            ]
            assert set(await store.commit(group, GRACE)) == {"ok"}
        # Whoever has left has told its numbers.
        question = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'heads'::regclass"
        async with session(postgres) as connection, asyncio.timeout(10):
            while (told := await connection.fetchrow(question))[0] < len(keys):
                await asyncio.sleep(0.02)
        return told[0], told[1]

    changed, in_place = asyncio.run(scenario())
    assert changed == 300
    assert in_place > 280, "but for the last page of the heads, perhaps"


def test_a_migration_that_meets_others_crosswise_tries_again(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has one table and waits for another may be what its worker waits for, too."""
    scripts = {**migrations.known()}
    scripts[max(scripts) + 1] = (
        "do $$ begin if nextval('tries') < 3 then raise exception 'met' using errcode = '40P01'; end if; end $$"
    )
    monkeypatch.setattr(migrations, "PAUSE", 0.01)

    async def scenario() -> None:
        async with opened(postgres), session(postgres) as connection:
            await connection.execute("create sequence tries")
            monkeypatch.setattr(migrations, "known", lambda: scripts)
            async with opened(postgres) as newer:
                assert await newer.schema_number() == max(scripts)

    asyncio.run(scenario())


def test_two_schemas_are_two_deployments(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as one, opened(postgres + "_b") as two:
            await one.start([begin()], GRACE)
            assert await two.head(ONE) is None
            assert await two.claim(QUEUES, DEFINITIONS, 10, 0) == []

    asyncio.run(scenario())


def test_a_store_opens_again_on_another_loop(postgres: str) -> None:
    store = PostgresStore(postgres)

    async def once() -> list[str]:
        await store.open()
        answers = await asyncio.gather(*(store.start([begin(f"acme/{n}")], GRACE) for n in range(10)))
        await store.close()
        return [answer for [answer] in answers]

    assert asyncio.run(once()) == ["created"] * 10
    assert asyncio.run(once()) == ["same"] * 10


def test_a_store_that_is_closed_says_so(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store:
            await store.start([begin()], GRACE)
        with pytest.raises(StoreError, match="not open"):
            await store.head(ONE)

    asyncio.run(scenario())


def test_a_schema_that_is_not_there_is_not_made_where_the_address_says_so(postgres: str) -> None:
    async def scenario() -> None:
        with pytest.raises(StoreOutdated, match="perdure migrate"):
            async with opened(postgres + "&migrate=no"):
                pass
        async with opened(postgres):
            pass
        async with opened(postgres + "&migrate=no") as store:
            assert await store.schema_number() == max(migrations.known())

    asyncio.run(scenario())


def test_a_newer_schema_is_refused(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres), session(postgres) as connection:
            await connection.execute("insert into migrations (number) values (999)")
        with pytest.raises(StoreOutdated, match="has number 999"):
            async with opened(postgres):
                pass

    asyncio.run(scenario())


def test_a_database_that_may_lose_what_it_confirmed_is_refused(postgres: str, caplog: Any) -> None:
    async def scenario() -> None:
        with pytest.raises(SettingsError, match="synchronous_commit off"):
            async with opened(postgres + "&synchronous_commit=off"):
                pass
        async with opened(postgres + "&synchronous_commit=off&unsafe=yes"):
            pass

    with caplog.at_level(logging.WARNING, "perdure.stores"):
        asyncio.run(scenario())
    assert "synchronous_commit off: a crash of the server loses" in caplog.text


def test_a_password_that_is_wrong_and_a_database_that_is_not_there(postgres: str) -> None:
    async def scenario() -> None:
        address = re.sub(r"/\w+\?", "/nowhere?", postgres)
        with pytest.raises(StoreError, match="no such database"):
            async with opened(address):
                pass

    asyncio.run(scenario())


# Rights


@asynccontextmanager
async def application(url: str) -> AsyncIterator[str]:
    """The address of a role that was granted what workers need, and nothing else."""
    role = f"app_{read_address(url).schema}"
    async with opened(url) as store, session(url) as connection:
        await connection.execute(f"create role {role} login password 'secret'")
        await store.grant_application(role)
        try:
            yield re.sub(r"//[^@]*@", f"//{role}:secret@", url)
        finally:
            await connection.execute(f"drop owned by {role}; drop role {role}")


def test_the_application_role_can_do_all_that_workers_do(postgres: str, caplog: Any) -> None:
    async def scenario() -> None:
        async with application(postgres) as url:
            caplog.clear()
            async with opened(url) as store:
                hand = await begun(store, topics=("a",))
                await accepted(store, letter())
                await hand.commit(settled(), letter(), children=[begin(TWO, topics=("a",))], mail=[letter("m2", TWO)])
                assert await store.listening("acme", ["a"], 10) == {"a": [ONE, TWO]}
                assert await store.message(ONE, "m1")
                await hand.park(due=0)
                assert len(await store.claim(QUEUES, DEFINITIONS, 10, GRACE)) == 1
                hand = await take(store)
                assert await store.renew([(ONE, hand.token)], LEASE) == {ONE}
                assert await hand.end() == "ok"
                assert await store.find(Query("acme"))
                await store.release([(TWO, (await take(store, TWO)).token)])
                await store.backlog()
                await store.next_due(QUEUES, DEFINITIONS)

    asyncio.run(scenario())
    assert "superuser" not in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "update events set fence = 0",
        "delete from events",
        "truncate events",
        "delete from heads",
        "delete from labels",
        "drop table wakes",
    ],
)
def test_the_application_role_cannot_touch_a_log(postgres: str, statement: str) -> None:
    async def scenario() -> None:
        async with application(postgres) as url, session(url) as connection:
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied|must be owner"):
                await connection.execute(statement)

    asyncio.run(scenario())


@pytest.mark.parametrize("statement", ["update events set fence = 0", "delete from events", "truncate events"])
def test_nobody_changes_a_log_unless_the_owner_means_to(postgres: str, statement: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store, session(postgres) as connection:
            await begun(store)
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="never changed"):
                await connection.execute(statement)
            async with connection.transaction():
                await connection.execute("alter table events disable trigger events_only_grow")
                await connection.execute(statement)
                await connection.execute("alter table events enable trigger events_only_grow")

    asyncio.run(scenario())


def test_a_role_that_may_not_migrate_is_told_who_may(postgres: str) -> None:
    async def scenario() -> None:
        async with application(postgres) as url:
            with pytest.raises(StoreOutdated, match="as its owner"):
                async with opened(url.replace("schema=", "schema=new_")):
                    pass

    asyncio.run(scenario())


def test_a_superuser_is_warned_once(postgres: str, caplog: Any) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store:
            twin = store.twin()
            await twin.open()
            await twin.now()
            await twin.close()

    with caplog.at_level(logging.WARNING, "perdure.stores"):
        asyncio.run(scenario())
    assert caplog.text.count("this role is a superuser") == 1


def test_a_role_of_before_may_use_what_a_migration_adds(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = migrations.known()
    role = f"old_{read_address(postgres).schema}"

    async def scenario() -> None:
        with monkeypatch.context() as before:
            before.setattr(migrations, "known", lambda: {number: scripts[number] for number in (1, 2, 3)})
            async with opened(postgres):
                pass
        schema = read_address(postgres).schema
        async with session(postgres) as connection:
            await connection.execute(f"create role {role} login password 'secret'")
            try:
                await connection.execute(f'grant usage on schema "{schema}" to {role}')
                await connection.execute(f"grant select on migrations to {role}")
                await connection.execute(f"grant select, insert, update, delete on heads, wakes, messages to {role}")
                await connection.execute(f"grant select, insert on events to {role}")
                async with opened(postgres):
                    pass
                async with opened(re.sub(r"//[^@]*@", f"//{role}:secret@", postgres)) as store:
                    hand = await begun(store, topics=("a",), correlation="x")
                    assert await store.listening("acme", ["a"], 10) == {"a": [ONE]}
                    assert [head.key for head in await store.find(Query("acme", correlation="x"))] == [ONE]
                    assert await hand.end() == "ok"
                    assert await store.listening("acme", ["a"], 10) == {}
            finally:
                await connection.execute(f"drop owned by {role}; drop role {role}")

    asyncio.run(scenario())


def test_the_name_of_a_role_is_not_taken_for_sql(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store:
            with pytest.raises(SettingsError):
                await store.grant_application('x"; drop table events; --')
            with pytest.raises(StoreError, match="does not exist"):
                await store.grant_application("nobody_knows")

    asyncio.run(scenario())


# Holders and what waits


def test_a_holder_without_a_name_is_one_as_well(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store:
            await store.start([begin(ONE), begin(TWO)], GRACE)
            one, two = await store.hold([ONE, TWO], "", LEASE)
            assert isinstance(one, Held) and isinstance(two, Held)
            assert await store.renew([(ONE, one.token)], LEASE) == {ONE}
            ends = [Commit(held.key, held.token, [], End("completed", None)) for held in (one, two)]
            assert await store.commit(ends, GRACE) == ["ok", "ok"]

    asyncio.run(scenario())


def test_the_backlog_is_of_all_definitions_and_queues_however_many_wait_for_later(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store:
            for number, (queue, definition) in enumerate(itertools.product("abc", ("x@1", "y@1", "z@1"))):
                starts = [begin(f"acme/{number}-{n}", queue=queue, definition=definition) for n in range(number)]
                await store.start(starts, 0)
            await store.start([begin(f"acme/later-{n}", queue="a", definition="w@1") for n in range(5)], LEASE)
            await accepted(store, letter(key="acme/8-1"))
            await store.send([letter(key="acme/later-1")], 0)
            found = {one.queue: one.due for one in await store.backlog()}
            assert found == {"a": 0 + 1 + 2 + 1, "b": 3 + 4 + 5, "c": 6 + 7 + 8}

    asyncio.run(scenario())


def test_a_role_that_sees_all_tenants_can_ask_for_the_backlog(postgres: str) -> None:
    """As the page about queues tells whoever scales by it."""

    async def scenario() -> None:
        async with application(postgres) as url, opened(postgres) as store:
            await store.start([begin("acme/1"), begin("other/1")], 0)
            address = read_address(url)
            ask = f"select waiting from {address.schema}.backlog()"
            async with session(url) as connection:
                assert await connection.fetchval(ask) is None
                role = await connection.fetchval("select current_user")
            async with session(postgres) as connection:
                await connection.execute(f"alter role {role} set perdure.tenant = '*'")
            async with session(url) as connection:
                assert await connection.fetchval(ask) == 2

    asyncio.run(scenario())


# Plans


#: What a vacuum leaves that comes when all has ended, and could not shorten the files: no rows, says the catalogue.
HOLLOW = (
    "update pg_class set reltuples = 0, relpages = greatest(relpages, 1)"
    " where relnamespace = current_schema()::regnamespace and relkind = 'r' and relname ~ $1"
)
#: The first column of each index, by which it has to be searched. Of the tables whose rows stay, any column will do
#: where even they count as empty: they have lists that end with the key, and a list of nothing is as good as another.
LEADS = (
    "select c.relname, case when c.relname ~ $1 then a.attname else '[a-z]+' end from pg_class c"
    " join pg_attribute a on a.attrelid = c.oid and a.attnum = 1"
    " where c.relnamespace = current_schema()::regnamespace and c.relkind = 'i'"
)
PASSING = "^(wakes|messages|topics)"


@pytest.mark.parametrize("known", ["young", "analyzed", "hollow", "hollow throughout", "empty"])
def test_the_hot_verbs_go_by_indexes(postgres: str, known: str) -> None:
    async def scenario() -> tuple[list[str], dict[str, str]]:
        plans: list[str] = []
        keys = [f"acme/{number:03}" for number in range(300)]
        # Nearly all have a lane of their own; the last two share one with two that are played.
        lanes = [*keys[:-2], *keys[3:5]]
        starts = [
            begin(key, topics=("a", key), correlation="a", tags=("t",), lane=lane)
            for key, lane in zip(keys, lanes, strict=True)
        ]
        mail = [letter(key=key) for key in keys]
        async with opened(postgres) as store, session(postgres, jit="off") as connection:
            if known == "empty":  # plans that were made while nothing was there
                await connection.execute("vacuum analyze")
                before = connection.transaction()
                await before.start()
                await store._start(connection, starts[:5], 0)
                await store._send(connection, mail[:5], 0)
                await play_all(store, connection, keys[:5])
                await before.rollback()
            await store.start(starts, 0)
            await accepted(store, *mail)
            if known not in ("young", "empty"):
                await connection.execute("vacuum analyze")
            if known.startswith("hollow"):
                await connection.fetch(HOLLOW, PASSING if known == "hollow" else "")
            await connection.execute("load 'auto_explain'")
            for name, value in (("log_min_duration", "0"), ("log_nested_statements", "on"), ("log_level", "notice")):
                await connection.execute(f"set auto_explain.{name} = '{value}'")
            leads = dict(await connection.fetch(LEADS, PASSING if known == "hollow throughout" else ""))
            connection.add_log_listener(lambda _, message: plans.append(message.message))
            await play_all(store, connection, keys[:5])
        return [plan for plan in plans if "typeinfo_tree" not in plan], leads  # the driver's own question

    plans, leads = asyncio.run(scenario())
    assert len(plans) > 100
    wholesale = [
        plan
        for plan in plans
        if re.search(r"Seq Scan on (wakes|messages|heads|events|topics|labels)\b|Hash Join|Bitmap", plan)
    ]
    assert wholesale == []
    assert [plan for plan in plans if reads_a_whole_index(plan, leads)] == []
    turns = [plan for plan in plans if "with recursive lots" in plan]
    assert turns and not re.search(r"using (wakes|messages)_(?!turns|pkey)", "".join(turns))
    for index in ("wakes_due", "messages_due", "events_message", "messages_pkey", "topics_pkey", "topics_key"):
        assert any(index in plan for plan in plans), index


def reads_a_whole_index(plan: str, leads: dict[str, str]) -> bool:
    """Whether a scan of an index has no condition for its first column. Conditions stand on the line below."""
    for line, below in itertools.pairwise([*plan.splitlines(), ""]):
        found = re.search(r"Index (?:Only )?Scan (?:Backward )?(?:using|on) (\w+)", line)
        if found and not re.search(rf"Index Cond: .*(?<![\w.]){leads[found[1]]}(?: [=<>]|, )", below):
            return True
    return False


def test_a_scan_of_a_whole_index_is_told_from_a_look_up() -> None:
    leads = {"wakes_pkey": "key", "wakes_lane": "lane"}
    look_up = "Nested Loop\n  ->  Index Scan using wakes_pkey on wakes w\n        Index Cond: (key = u.k)"
    assert not reads_a_whole_index(look_up, leads)
    assert not reads_a_whole_index(look_up.replace("(key = u.k)", "(ROW(key, due) <= ROW(u.k, 1))"), leads)
    assert reads_a_whole_index(look_up.replace("Index Cond", "Filter"), leads)
    assert reads_a_whole_index("Index Only Scan using wakes_pkey on wakes w", leads)
    assert reads_a_whole_index("Bitmap Index Scan on wakes_pkey", leads)
    assert reads_a_whole_index(look_up.replace("wakes_pkey", "wakes_lane"), leads), "not its first column"


@pytest.mark.parametrize("analyzed", [False, True], ids=["young", "analyzed"])
def test_a_log_is_read_off_its_index_and_no_row_of_another_is_touched(postgres: str, analyzed: bool) -> None:
    async def scenario() -> str:
        rows = tuple(Row(version, 26, b"{}", 0) for version in range(1, 101))
        async with opened(postgres) as store, session(postgres) as connection:
            await store.start([begin(f"acme/{number}", rows=rows) for number in range(100)], GRACE)
            if analyzed:
                await connection.execute("analyze")
            assert [row.version for row in await store.read("acme/7", 3, 9, 4)] == [4, 5, 6, 7]
            question = f"explain (analyze, costs off, timing off, summary off) {store._sql.read}"
            return "\n".join(row[0] for row in await connection.fetch(question, "acme/7", 3, 9, 4))

    plan = asyncio.run(scenario())
    assert re.search(r"Index Scan using events_pkey on events \(actual rows=4(\.00)? ", plan), plan
    assert re.search(r"Index Cond: .*key = .*version > .*version <= ", plan), plan
    assert "Removed" not in plan and "Heap Fetches" not in plan and "Sort" not in plan, plan


async def play_all(store: PostgresStore, connection: Any, keys: list[str]) -> None:
    sql = store._sql
    await connection.fetch(sql.claim, QUEUES, DEFINITIONS, 5, GRACE)
    await connection.fetch(sql.next_due, QUEUES, DEFINITIONS)
    await connection.fetch(sql.backlog)
    await connection.fetch(sql.listening, ["acme/a", f"acme/{keys[0]}"], 3, "")
    await connection.execute(sql.listen, *columns.topics_columns([begin(key, topics=("b",)) for key in keys]))
    await store._start(connection, [begin(keys[0]), begin("acme/new", lane="new")], GRACE)
    await connection.fetch(sql.send, *columns.mail_columns([letter("m2", key) for key in keys]), GRACE)
    await connection.fetch(sql.send, *columns.mail_columns([letter("m2", key) for key in keys]), GRACE)

    async def hold(held: list[str], me: str = "w1") -> dict[str, int]:
        nothing = numbers([None] * len(held))
        taken = await connection.fetch(sql.hold, held, nothing, nothing, me, LEASE, 8, sorted(PROGRESS))
        return {row["key"]: row["n"] for row in taken if row["what"] == 0}

    tokens = await hold([*keys, "acme/298"])
    assert await hold(keys, "w2") == {}
    await connection.fetch(sql.renew, list(tokens), list(tokens.values()), LEASE)
    await connection.fetch(sql.mail, keys)
    await play_reads(store, connection, keys)
    await connection.fetch(sql.release, [keys[0]], [tokens[keys[0]]])
    tokens = await hold(keys)

    def commit(key: str, settle: Park | End, version: int) -> Commit:
        row = events.row(settled(), version, at=0, fence=tokens[key])
        return Commit(key, tokens[key], [row], settle, done=["m1", "m2"] if version == 3 else [])

    paused = [Commit(key, tokens[key], [], status="paused") for key in keys]
    await store._write(connection, paused, GRACE, careful=True)
    group = [commit(key, Park("open", None, base=2), 3) for key in keys]
    group[0].children, group[0].mail = [begin("acme/child", correlation="a")], [letter("x", keys[1])]
    await store._write(connection, group, GRACE, careful=True)
    refused = [commit(key, settle, 4) for key, settle in zip(keys, (End("completed", None), Park("open", None)))]
    assert len(await store._write(connection, refused, GRACE, careful=True)) == 2
    tokens = await hold(keys)
    await store._write(connection, [commit(key, End("completed", None), 4) for key in keys[2:]], GRACE, careful=False)


async def play_reads(store: PostgresStore, connection: Any, keys: list[str]) -> None:
    """As sessions of the store's own do, and often enough that a plan is made which is kept."""
    sql = store._sql
    queries = (
        *(Query("acme", status=status) for status in ("waiting", "running", "stuck", "failed", None)),
        Query("acme", workflow="order"),
        Query("acme", parent=keys[0]),
        Query("acme", tags=("t",), correlation="a", workflow="order", status="waiting"),
        Query("acme", status="waiting", workflow="order", cursor=(1, keys[0])),
    )
    for name, value in BY_INDEX.items():
        await connection.execute(f"set {name} = {value}")
    for _ in range(6):
        await connection.fetch(sql.head, keys[0])
        await connection.fetch(sql.message, keys[0], "m1")
        await connection.fetch(sql.waiting, keys[0], "m1")
        await connection.fetch(sql.read, keys[0], 0, None, 10)
        await connection.fetch(sql.fresh, keys)
        await connection.fetch(sql.begun, "acme", 3)
        await connection.fetch(sql.extent, "acme", "order")
        for query in queries:
            statement, values = search.statement(query, sql.schema)
            await connection.fetch(statement, *values)
    for name in BY_INDEX:
        await connection.execute(f"reset {name}")


# In the caller's transaction


def test_what_is_best_for_the_callers_statements_is_left_to_the_planner(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store, store.transaction() as mine:
            for name in BY_INDEX:
                assert await mine.fetchval(f"show {name}") == "on"

    asyncio.run(scenario())


def test_a_start_in_a_transaction_exists_if_it_commits(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store, session(postgres, search_path="public") as mine:
            transaction = mine.transaction()
            await transaction.start()
            assert await store.start_in(mine, [begin()], 0) == ["created"]
            await transaction.rollback()
            assert await store.head(ONE) is None
            async with mine.transaction():
                assert await store.start_in(mine, [begin()], 0) == ["created"]
                assert await store.send_in(mine, [letter()], 0)
                assert await store.head(ONE) is None
            hand = await take(store)
            assert [mail.id for mail in hand.held.mail] == ["m1"]

    asyncio.run(scenario())


def test_listeners_learn_of_it_at_the_callers_commit(postgres: str) -> None:
    async def scenario() -> None:
        address = read_address(postgres)
        stream = PostgresStream(address.dsn, address.channel)
        await stream.open("w1", ["default"])
        async with opened(postgres) as store, session(postgres) as mine:
            async with mine.transaction():
                await store.start_in(mine, [begin()], 0)
            assert await asyncio.wait_for(stream.receive(10), 20) == [Hint("", "default")]
        await stream.close()

    asyncio.run(scenario())


def test_an_effect_and_its_record_are_one_transaction(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store, session(postgres) as connection:
            await connection.execute("create table effects (n int)")
            hand = await begun(store)
            async with store.transaction() as mine:
                await mine.execute(f"insert into {store._sql.schema}.effects values (1)")
                assert await store.commit_in(mine, [await hand.prepare(settled())], GRACE) == ["ok"]
            assert kinds(await log(store)) == [Started, ActionSettled]
            assert await connection.fetchval("select count(*) from effects") == 1

    asyncio.run(scenario())


def test_a_stale_commit_leaves_the_callers_transaction_usable(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store:
            hand = await begun(store)
            late = await hand.prepare(settled(1))
            await hand.commit(settled(1))
            async with store.transaction() as mine:
                assert await store.commit_in(mine, [late], GRACE) == ["stale"]
                assert await mine.fetchval("select 1") == 1
            assert await hand.commit(settled(2)) == "ok"

    asyncio.run(scenario())


def test_a_commit_that_meets_a_take_over_in_flight_is_stale_in_the_callers_transaction(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store, opened(postgres) as other:
            hand = await begun(store)
            late = await hand.prepare(settled(1))
            async with other.transaction() as theirs, store.transaction() as mine:
                await other.commit_in(theirs, [late], GRACE)
                waiting = asyncio.create_task(store.commit_in(mine, [late], GRACE))
                await asyncio.wait([waiting], timeout=0.1)
                assert not waiting.done()
                await theirs.execute("commit and chain")
                assert await waiting == ["stale"]

    asyncio.run(scenario())


# Each safeguard is taken away, and a test must notice


UNREAD = (
    "and not exists (\n                          "
    "select 1 from events e where e.key = m.key and e.message_id = m.id offset 0)"
)
FREE = "w.holder is null or w.holder = me or w.due <= now"
KNOWN = StoreContract.test_what_is_known_counts_for_nothing_if_another_held_it_since
MISSED: list[tuple[str, str, str, Callable[[StoreContract], None]]] = [
    ("take_over", "  loop\n", "  return lapsed; loop\n", StoreContract.test_a_take_over_writes_a_barrier),
    ("take_over", "least(lapsed, 1)", "lapsed", StoreContract.test_progress_takes_the_lapses_back_to_one),
    ("hold", FREE, "true", StoreContract.test_what_another_holds_is_busy),
    ("hold", UNREAD, "", StoreContract.test_mail_that_is_in_the_log_is_not_read),
    ("hold", "when w.token = u.t then", "when true then", KNOWN),
    ("hold", "w.lane is null or not", "true or not", StoreContract.test_one_execution_of_a_lane_is_held_at_a_time),
    ("renew", "w.token = u.t and", "", StoreContract.test_a_renewal_leaves_out_what_is_lost),
    ("release", "w.token = u.t and", "", StoreContract.test_a_release_with_an_old_token_changes_nothing),
    ("commit_group", "w.token = u.t and", "", StoreContract.test_a_park_of_what_is_not_held_any_more_is_stale),
    ("commit_group", "where due > now", "where false", StoreContract.test_a_timer_that_is_not_due_is_early),
    ("commit_group", "if maybe is not null", "if false", StoreContract.test_an_end_is_refused_while_mail_waits),
    ("commit_group", "found_ids < ", "false and 1 < ", StoreContract.test_done_mail_that_is_not_there_is_stale),
    ("send", "where e.key = u.k", "where false", StoreContract.test_mail_that_was_folded_is_a_duplicate),
    ("claim", "turns.turn, random()", "turns.key", StoreContract.test_a_claim_serves_the_tenants_in_turn),
    ("claim", ", random()", ", turns.key", StoreContract.test_who_has_no_turn_in_one_claim_has_it_in_one_of_the_next),
    (
        "claim",
        "having count(*) = near",
        "having false",
        StoreContract.test_who_comes_to_a_flood_is_claimed_before_its_end,
    ),
    (
        "claim",
        "having count(*) = near",
        "having false",
        StoreContract.test_mail_that_comes_to_a_flood_is_claimed_before_its_end,
    ),
]


@pytest.mark.parametrize(("function", "old", "new", "test"), MISSED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_safeguard_is_missed(
    postgres: str, function: str, old: str, new: str, test: Callable[[StoreContract], None]
) -> None:
    class Contract(StoreContract):
        async def make_store(self) -> Store:
            store = Edited(postgres, clock=self.clock)
            store.edits = ((function, old, new),)
            return store

    with pytest.raises((AssertionError, StoreError)):
        test(Contract())
