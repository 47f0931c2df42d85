"""PostgreSQL keeps tenants apart by itself. All of it under the application's role: a superuser sees everything."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import asyncpg
import pytest

from perdure import Act, Perdure, workflow
from perdure.core.behalf import on_behalf_of
from perdure.core.records import Query
from perdure.ports import Store
from perdure.stores.postgres import PostgresStore, migrations, search
from perdure.stores.postgres.address import read_address
from perdure.stores.postgres.connections import Connection
from perdure.testing.contract import DEFINITIONS, GRACE, QUEUES, StoreContract, accepted, begin, begun, letter
from perdure.testing.contract.stage import ManualClock
from tests.stores.test_postgres import application, opened, play_all, session

MINE, YOURS = "acme/1", "evil/1"
TABLES = ("heads", "events", "wakes", "messages", "topics", "labels")


class Granted(PostgresStore):
    """A store whose role owns nothing: its schema, and the clock of the test, are there already."""

    async def _prepare(self, connection: Connection) -> None:
        await migrations.migrate(connection, self.address)

    def twin(self) -> Granted:
        return Granted(self._url, clock=self._clock)


class TestAsTheApplication(StoreContract):
    """The whole contract for a role that the policies hold for."""

    @pytest.fixture(scope="class")
    @classmethod
    def application_url(cls, class_postgres: str) -> Iterator[str]:
        """The address of the schema for a role of its own."""
        url = class_postgres + "&synchronous_commit=off&unsafe=yes"
        role = f"app_{read_address(url).schema}"
        asyncio.run(cls._admit(url, role))
        yield re.sub(r"//[^@]*@", f"//{role}:secret@", url)
        asyncio.run(cls._drop(url, role))

    @pytest.fixture(autouse=True)
    def _role(self, application_url: str, emptied_postgres: str) -> None:
        self.url = application_url

    async def make_store(self) -> Store:
        return Granted(self.url, clock=self.clock)

    @staticmethod
    async def _admit(url: str, role: str) -> None:
        owner = PostgresStore(url, clock=ManualClock())
        await owner.open()
        async with session(url) as connection:
            await connection.execute(f"create role {role} login password 'secret'")
        await owner.grant_application(role)
        await owner.close()

    @staticmethod
    async def _drop(url: str, role: str) -> None:
        async with session(url) as connection:
            await connection.execute(f"drop owned by {role}; drop role {role}")


@asynccontextmanager
async def two_tenants(url: str) -> AsyncIterator[tuple[str, PostgresStore]]:
    """An execution with mail of each of two tenants; the address of the application and its store."""
    async with application(url) as granted, opened(granted) as store:
        for key in (MINE, YOURS):
            await store.start([begin(key, correlation="order-7", topics=("paid",))], GRACE)
            await accepted(store, letter(key=key))
        yield granted, store


async def keys(connection: Any, table: str) -> list[str]:
    return [key for (key,) in await connection.fetch(f"select key from {table} order by key")]


def test_every_table_with_keys_forces_its_policy(postgres: str) -> None:
    async def scenario() -> None:
        async with opened(postgres), session(postgres) as connection:
            schema = read_address(postgres).schema
            found = await connection.fetch(
                "select c.relname, c.relrowsecurity, c.relforcerowsecurity, p.cmd, p.permissive, p.roles,"
                " p.qual is not null and p.qual = p.with_check as checked"
                " from pg_class c left join pg_policies p on p.tablename = c.relname and p.schemaname = $1"
                " and p.policyname = 'one_tenant'"
                " where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'p') and exists (select 1"
                " from pg_attribute a where a.attrelid = c.oid and a.attname in ('key', 'tenant', 'execution'))"
                " order by 1",
                schema,
            )
            assert {row["relname"] for row in found} >= set(TABLES)
            for name, enabled, forced, *policy in found:
                assert (enabled, forced, policy) == (True, True, ["ALL", "PERMISSIVE", ["public"], True]), name

    asyncio.run(scenario())


@pytest.mark.parametrize("table", TABLES)
def test_a_session_without_a_tenant_sees_nothing(postgres: str, table: str) -> None:
    async def scenario() -> None:
        async with two_tenants(postgres) as (url, _), session(url) as connection:
            assert await keys(connection, table) == []
            await connection.execute("set perdure.tenant = ''")
            assert await keys(connection, table) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("table", TABLES)
def test_a_session_of_a_tenant_sees_its_rows(postgres: str, table: str) -> None:
    async def scenario() -> None:
        async with two_tenants(postgres) as (url, _), session(url) as connection:
            async with connection.transaction():
                await connection.execute("set local perdure.tenant = 'acme'")
                assert await keys(connection, table) == [MINE]
            assert await keys(connection, table) == []
            await connection.execute("set perdure.tenant = 'acm'")
            assert await keys(connection, table) == []
            await connection.execute("set perdure.tenant = '*'")
            assert await keys(connection, table) == [MINE, YOURS]

    asyncio.run(scenario())


@pytest.mark.parametrize("tenant", ["", "acme"])
@pytest.mark.parametrize(
    "statement",
    [
        "insert into events (key, version, fence, at, type, data) values ('evil/1', 9, 0, 0, 1, '')",
        "insert into heads values (null, 1, 0, 0, 'evil/2', 'acme', 'w', 'w@1', 'q', 'open', '')",
        "insert into wakes (key, token, born, queue, definition) values ('evil/2', 0, 0, 'q', 'w@1')",
        "insert into messages (key, id, queue, sha, data) values ('evil/1', 'm9', 'q', '', '')",
        "update wakes set key = 'evil/3' where key = 'acme/1'",
    ],
    ids=["events", "heads", "wakes", "messages", "moved"],
)
def test_no_row_of_another_tenant_can_be_written(postgres: str, tenant: str, statement: str) -> None:
    async def scenario() -> None:
        async with two_tenants(postgres) as (url, _), session(url) as connection:
            await connection.execute(f"set perdure.tenant = '{tenant}'")
            if statement.startswith("update") and not tenant:
                assert await connection.execute(statement) == "UPDATE 0"
                return
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
                await connection.execute(statement)

    asyncio.run(scenario())


def test_rows_of_others_are_neither_changed_nor_deleted(postgres: str) -> None:
    async def scenario() -> None:
        async with two_tenants(postgres) as (url, _), session(url) as connection:
            await connection.execute("set perdure.tenant = 'acme'")
            assert await connection.execute("update heads set status = 'failed'") == "UPDATE 1"
            assert await connection.execute("delete from messages") == "DELETE 1"
            assert await connection.execute("delete from wakes where key = 'evil/1'") == "DELETE 0"

    asyncio.run(scenario())


def test_nobody_under_the_policies_changes_a_note_of_the_audit(postgres: str) -> None:
    async def scenario() -> None:
        async with application(postgres) as url, Perdure(url) as app, session(url) as connection:
            run = await app.start(hello, id="one", tenant="acme")
            await app.audit.note(Act("eve", "executions.cancel", "one", "because"), tenant="acme")
            before = await app.audit.find(tenant="acme")
            for tenant in ("*", "audit:acme", "acme"):
                await connection.execute(f"set perdure.tenant = '{tenant}'")
                for change in ("state = null", "workflow = 'x'", "tenant = 'y'", "started_at = 0", "status = 'open'"):
                    told = await connection.execute(f"update heads set {change} where key like 'audit:%'")
                    assert told == "UPDATE 0"
            assert await connection.execute("update heads set changed_at = 0") == "UPDATE 1"  # its own it may
            assert await app.audit.find(tenant="acme") == before and before.acts[0].actor == "eve"
            assert await run.status() == "waiting"

    asyncio.run(scenario())


def test_the_owner_of_the_tables_is_held_as_well(postgres: str) -> None:
    async def scenario() -> None:
        schema = read_address(postgres).schema
        owner = f"owner_{schema}"
        async with session(postgres) as admin:
            await admin.execute(f"create role {owner} login password 'secret'")
            await admin.execute(f"create schema {schema} authorization {owner}")
            url = re.sub(r"//[^@]*@", f"//{owner}:secret@", postgres)
            try:
                async with opened(url) as store, session(url) as connection:
                    await begun(store, MINE)
                    assert await keys(connection, "heads") == []
            finally:
                await admin.execute(f"drop owned by {owner} cascade; drop role {owner}")

    asyncio.run(scenario())


# What is read for a tenant


def test_a_search_that_lost_its_condition_finds_only_the_tenants_own(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.stores.postgres import search

    careful = search.statement

    def careless(query: Query, schema: str) -> tuple[str, list[Any]]:
        statement, values = careful(query, schema)
        return statement.replace("h.tenant = $1", "$1::text is not null"), values

    async def scenario() -> None:
        async with two_tenants(postgres) as (_, store):
            monkeypatch.setattr(search, "statement", careless)
            assert [head.key for head in await store.find(Query("acme"))] == [MINE]
            assert [head.key for head in await store.find(Query("evil"))] == [YOURS]
            store._sql.head = store._sql.head.replace("h.key = $1", "$1::text is not null")
            found = await store.head(MINE)
            assert found is not None and found.key == MINE

    asyncio.run(scenario())


def test_on_behalf_of_a_caller_no_key_of_another_tenant_can_be_read(postgres: str) -> None:
    async def scenario() -> None:
        async with two_tenants(postgres) as (_, store):
            for key in ("acme/2", "evil/2"):
                await store.start([begin(key, topics=("a",))], GRACE)
            assert await store.listening("evil", ["a"], 10) == {"a": ["evil/2"]}
            with on_behalf_of("acme"):
                assert await store.listening("evil", ["a"], 10) == {}
                assert await store.listening("acme", ["a"], 10) == {"a": ["acme/2"]}
                assert await store.message(YOURS, "m1") is None
                assert await store.message(MINE, "m1") is not None
                assert await store.head(YOURS) is None
                assert await store.read(YOURS) == []
                assert await store.find(Query("evil")) == []
                assert sorted(head.key for head in await store.find(Query(None))) == [MINE, "acme/2"]
                assert await store.head(MINE) is not None
                assert len(await store.read(MINE)) == 1
            assert len(await store.find(Query(None))) == 4
            assert await store.head(YOURS) is not None

    asyncio.run(scenario())


def test_a_key_that_names_everybody_as_its_tenant_finds_nobody(postgres: str) -> None:
    async def scenario() -> None:
        async with two_tenants(postgres) as (_, store):
            store._sql.head = store._sql.head.replace("h.key = $1", "$1::text is not null")
            assert await store.head("*/1") is None

    asyncio.run(scenario())


def test_what_the_engine_keeps_for_itself_can_be_read_on_behalf_of_anybody(postgres: str) -> None:
    async def scenario() -> None:
        async with two_tenants(postgres) as (_, store):
            await store.start([begin("keys:/k1")], GRACE)
            with on_behalf_of("acme"):
                assert await store.head("keys:/k1") is not None

    asyncio.run(scenario())


def test_many_that_read_at_once_each_see_their_own(postgres: str) -> None:
    async def scenario() -> None:
        async with application(postgres) as granted, opened(granted + "&readers=3") as store:
            tenants = [f"t{number}" for number in range(10)]
            await store.start([begin(f"{tenant}/1") for tenant in tenants], GRACE)
            store._sql.head = store._sql.head.replace("h.key = $1", "$1::text is not null")

            async def look(tenant: str) -> None:
                found = await store.head(f"{tenant}/1")
                assert found is not None and found.key == f"{tenant}/1"

            hasty = [asyncio.create_task(look(tenants[n % 10])) for n in range(300)]
            await asyncio.sleep(0.005)
            for task in hasty[::7]:
                task.cancel()  # also while a tenant is being set
            done = await asyncio.gather(*hasty, return_exceptions=True)
            assert all(one is None or isinstance(one, asyncio.CancelledError) for one in done), done
            await asyncio.gather(*(look(tenant) for tenant in tenants))

    asyncio.run(scenario())


def test_a_reader_that_lost_its_connection_sets_the_tenant_again(postgres: str) -> None:
    async def scenario() -> None:
        async with two_tenants(postgres) as (_, store), session(postgres) as admin:
            assert await store.head(MINE) is not None
            await admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'perdure reads'"
            )
            for _ in range(2):
                try:
                    found = await store.head(MINE)
                except Exception:
                    continue  # the one that finds the connection gone
                assert found is not None
                break
            assert await store.head(YOURS) is not None

    asyncio.run(scenario())


# In transactions of others


def test_a_start_in_the_callers_transaction_leaves_the_callers_tenant_alone(postgres: str) -> None:
    async def scenario() -> None:
        async with two_tenants(postgres) as (url, store), session(url) as mine:
            for before in ("", "evil"):
                async with mine.transaction():
                    await mine.execute(f"set local perdure.tenant = '{before}'")
                    assert await store.start_in(mine, [begin(f"acme/in{before}")], 0) == ["created"]
                    await store.send_in(mine, [letter(key=f"acme/in{before}")], 0)
                    assert await mine.fetchval("select current_setting('perdure.tenant')") == before
            assert await store.start_in(mine, [begin("acme/alone")], 0) == ["created"]
            assert await mine.fetchval("select current_setting('perdure.tenant', true)") == ""
            assert {head.key for head in await store.find(Query("acme"))} >= {"acme/in", "acme/inevil", "acme/alone"}

    asyncio.run(scenario())


# Changing over


def test_a_worker_from_before_goes_on(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sets no tenant, has a name for each sort of work, and reads on the connections for calls."""
    from perdure.stores.postgres import connections

    connect = asyncpg.connect

    async def older(dsn: str, server_settings: dict[str, str]) -> Any:
        server_settings.pop("perdure.tenant")
        if server_settings["application_name"] == "perdure work":
            server_settings["application_name"] = "perdure holds"
        return await connect(dsn, server_settings=server_settings)

    async def scenario() -> None:
        async with application(postgres) as granted:
            monkeypatch.setattr(connections.asyncpg, "connect", older)
            async with opened(granted) as store:
                await store.start([begin(MINE)], 0)
                await accepted(store, letter(key=MINE))
                assert len(await store.claim(QUEUES, DEFINITIONS, 10, 0)) == 1
                [held] = await store.hold([MINE], "w1", 1_000_000)
                assert len(held.mail) == 1  # type: ignore[union-attr]
                assert len(await store._calls.run(lambda c: c.fetch(store._sql.read, MINE, 0, None, 9), writes=False))

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["0004_tenants_apart.sql", "0012_one_way_to_a_row.sql"])
def test_the_migration_can_run_again(postgres: str, name: str) -> None:
    async def scenario() -> None:
        script = (files("perdure.stores.postgres") / "migrations" / name).read_text()
        async with two_tenants(postgres) as (url, _), session(postgres) as owner, session(url) as connection:
            await owner.execute(script)
            assert await keys(connection, "heads") == []

    asyncio.run(scenario())


def test_the_hot_verbs_go_by_indexes_under_the_policies(postgres: str) -> None:
    async def scenario() -> list[str]:
        plans: list[str] = []
        async with application(postgres) as granted, opened(granted) as store:
            executions = [f"acme/{number}" for number in range(300)]
            await store.start([begin(key) for key in executions], 0)
            await accepted(store, *(letter(key=key) for key in executions))
            async with session(postgres) as owner:
                role = read_address(granted).dsn.partition("//")[2].partition(":")[0]
                await owner.execute("load 'auto_explain'")
                for name, value in (
                    ("log_min_duration", "0"),
                    ("log_nested_statements", "on"),
                    ("log_level", "notice"),
                ):
                    await owner.execute(f"set auto_explain.{name} = '{value}'")
                await owner.execute("set jit = off")
                await owner.execute(f"set role {role}")
                await owner.execute("set perdure.tenant = '*'")
                owner.add_log_listener(lambda _, message: plans.append(message.message))
                await play_all(store, owner, executions[:5])
                await owner.fetch(store._sql.head, executions[0])
                await owner.fetch(store._sql.read, executions[0], 0, None, 10)
        return [plan for plan in plans if "typeinfo_tree" not in plan]

    plans = asyncio.run(scenario())
    assert len(plans) > 30 and any("starts_with(" in plan for plan in plans)
    inside = [plan for plan in plans if re.search(r"Seq Scan on (wakes|messages|heads|events)\b|Hash Join", plan)]
    assert inside == []


@pytest.mark.parametrize("analyzed", [False, True], ids=["young", "analyzed"])
def test_a_search_by_labels_reads_its_page_off_the_index(postgres: str, analyzed: bool) -> None:
    """With the rights and the eyes of a caller, whatever else is asked for."""
    questions = [
        Query("acme", correlation="order-7"),
        Query("acme", tags=("eu",)),
        Query("acme", correlation="order-7", tags=("eu", "vip")),
        Query("acme", tags=("eu",), status="waiting", workflow="order", inner=False),
        Query("acme", tags=("eu",), after=1, before=2**60, cursor=(2**59, "acme/x")),
    ]

    async def scenario() -> list[str]:
        plans = []
        async with application(postgres) as granted, opened(granted) as store, session(postgres) as owner:
            for part in range(20):
                about = {"correlation": f"order-{part}", "tags": ("eu", "vip")}
                await store.start([begin(f"acme/{part}-{number}", **about) for number in range(100)], 0)
                await store.start([begin(f"acme/{part}-{number}") for number in range(100, 300)], 0)
            if analyzed:
                await owner.execute("analyze")
            role = read_address(granted).dsn.partition("//")[2].partition(":")[0]
            await owner.execute(f"set role {role}")
            await owner.execute("set perdure.tenant = 'acme'")
            for query in questions:
                statement, values = search.statement(query, store._sql.schema)
                assert len(await owner.fetch(statement, *values)) > 0
                plans.append("\n".join(row[0] for row in await owner.fetch("explain " + statement, *values)))
        return plans

    for query, plan in zip(questions, asyncio.run(scenario()), strict=True):
        assert "labels_pkey" in plan, plan
        assert not re.search(r"Seq Scan on (labels|heads|events|wakes)\b|Hash Join|Merge Join", plan), plan
        if analyzed and query.correlation is None:  # of rows that it takes for few it may read all
            assert re.search(r"Scan Backward using labels_pkey on labels l\b", plan), plan
            assert "Sort" not in plan, plan


#: What a caller asks for, and the index that the answer is read off.
LISTS: list[tuple[Query, str]] = [
    (Query("acme", inner=False), "time"),
    (Query("acme", inner=False, after=1, before=2**60), "time"),
    (Query("acme", inner=False, cursor=(2**59, "acme/x")), "time"),
    (Query("acme", inner=False, workflow="w7"), "find"),
    (Query("acme", inner=False, workflow="w7", after=1, cursor=(2**59, "acme/x")), "find"),
    (Query("acme", inner=False, status="completed"), "time"),
    (Query("acme", inner=False, status="failed"), "mark"),
    (Query("acme", inner=False, status="paused"), "mark"),
    (Query("acme", inner=False, status="stuck"), "mark"),
    (Query("acme", inner=False, status="cancelled"), "mark"),
]


def test_a_page_of_a_list_is_read_off_an_index(postgres: str) -> None:
    """With the rights and the eyes of a caller, of a tenant that has nearly all there is."""
    made = (
        "insert into heads (base, started_at, changed_at, key, tenant, workflow, definition, queue, status, sha)"
        " select 1, n, n, 'acme/' || n, 'acme', 'w' || n % 20, 'w@1', 'q',"
        " case n % 10 when 0 then 'failed' when 1 then 'open' else 'completed' end, 'sha'"
        " from generate_series(1, 20000) n"
    )

    async def scenario() -> list[str]:
        plans = []
        async with application(postgres) as granted, opened(granted) as store, session(postgres) as owner:
            await owner.execute(made)
            await owner.execute("analyze")
            role = read_address(granted).dsn.partition("//")[2].partition(":")[0]
            await owner.execute(f"set role {role}")
            await owner.execute("set perdure.tenant = 'acme'")
            for query, _ in LISTS:
                statement, values = search.statement(query, store._sql.schema)
                plans.append("\n".join(row[0] for row in await owner.fetch("explain " + statement, *values)))
        return plans

    for (query, index), plan in zip(LISTS, asyncio.run(scenario()), strict=True):
        assert re.search(rf"Index Scan Backward using heads_{index} on heads h\b", plan), (query, plan)
        assert not re.search(r"Seq Scan on heads\b|Sort", plan), (query, plan)


def test_what_runs_is_found_among_what_is_held_however_much_waits(postgres: str) -> None:
    """With the rights and the eyes of a caller, of a tenant that has nearly all there is."""
    heads = (
        "insert into heads (base, started_at, changed_at, key, tenant, workflow, definition, queue, status, sha)"
        " select 1, n, n, 'acme/' || n, 'acme', 'w' || n % 20, 'w@1', 'q', 'open', 'sha'"
        " from generate_series(1, 20000) n"
    )
    wakes = (
        "insert into wakes (due, token, born, key, queue, definition, holder) select case when n % 1000 = 0"
        " then now_us() + 60000000 end, 1, n, 'acme/' || n, 'q', 'w@1', case when n % 1000 = 0 then 'me' end"
        " from generate_series(1, 20000) n"
    )
    questions = [
        Query("acme", status="running", inner=False),
        Query("acme", status="running", inner=False, workflow="w0"),
        Query("acme", status="running", inner=False, after=1, cursor=(2**59, "acme/x")),
        Query(None, status="running"),
    ]

    async def scenario() -> list[str]:
        plans = []
        async with application(postgres) as granted, opened(granted) as store, session(postgres) as owner:
            await owner.execute(heads)
            await owner.execute(wakes)
            await owner.execute("analyze")
            found = await store.find(questions[0])
            assert [head.started_at for head in found] == list(range(20_000, 0, -1000))
            role = read_address(granted).dsn.partition("//")[2].partition(":")[0]
            await owner.execute(f"set role {role}")
            for query in questions:
                await owner.execute(f"set perdure.tenant = '{query.tenant or '*'}'")
                statement, values = search.statement(query, store._sql.schema)
                told = await owner.fetch("explain (analyze, costs off, timing off, summary off) " + statement, *values)
                plans.append("\n".join(row[0] for row in told))
        return plans

    for query, plan in zip(questions, asyncio.run(scenario()), strict=True):
        read = re.search(r"Index (Only )?Scan (using|on) wakes_held[\w ]* \(actual rows=20(\.00)? ", plan)
        assert read, f"{query}\n{plan}"
        assert not re.search(r"Seq Scan on (heads|wakes)\b|Hash Join|Merge Join", plan), (query, plan)


def test_what_waits_is_read_off_its_index_however_much_has_ended(postgres: str) -> None:
    """With the rights and the eyes of a caller. A hold whose lease is over has a place in the same order."""
    heads = (
        "insert into heads (base, started_at, changed_at, key, tenant, workflow, definition, queue, status, sha)"
        " select 1, n, n, 'acme/' || n, 'acme', 'w' || n % 20, 'w@1', 'q',"
        " case n % 10 when 0 then 'open' else 'completed' end, 'sha' from generate_series(1, 20000) n"
    )
    wakes = (
        "insert into wakes (due, token, born, key, queue, definition, holder, started_at)"
        " select case when n = 19000 then 1 when n % 1000 = 0 then now_us() + 60000000 end, 1, n, 'acme/' || n, 'q',"
        " 'w@1',"
        " case when n % 1000 = 0 then 'me' end, n from generate_series(10, 20000, 10) n"
    )
    questions = [
        (Query("acme", status="waiting", inner=False, limit=20), range(19_990, 19_790, -10)),
        (
            Query("acme", status="waiting", inner=False, limit=3, cursor=(19_020, "acme/19020")),
            (19_010, 19_000, 18_990),
        ),
        (Query("acme", status="waiting", inner=False, limit=9, after=18_990, before=19_020), (19_010, 19_000, 18_990)),
    ]

    async def scenario() -> list[str]:
        plans = []
        async with application(postgres) as granted, opened(granted) as store, session(postgres) as owner:
            await owner.execute(heads)
            await owner.execute(wakes)
            await owner.execute("analyze")
            for query, expected in questions:
                assert [head.started_at for head in await store.find(query)] == list(expected)
            role = read_address(granted).dsn.partition("//")[2].partition(":")[0]
            await owner.execute(f"set role {role}")
            await owner.execute("set perdure.tenant = 'acme'")
            for query, _ in questions:
                statement, values = search.statement(query, store._sql.schema)
                told = await owner.fetch("explain (analyze, costs off, timing off, summary off) " + statement, *values)
                plans.append("\n".join(row[0] for row in told))
        return plans

    for (query, _), plan in zip(questions, asyncio.run(scenario()), strict=True):
        read = re.search(r"Index (?:Only )?Scan Backward using wakes_waiting on wakes o \(actual rows=(\d+)", plan)
        assert read, f"{query}\n{plan}"
        assert int(read[1]) <= query.limit, f"{query}\n{plan}"
        assert not re.search(r"Seq Scan on (heads|wakes)\b|Hash Join|Merge Join", plan), (query, plan)


# For people who look into the tables


def test_a_role_for_reports_sees_one_tenant_whatever_it_sets(postgres: str) -> None:
    """What the page on PostgreSQL says."""

    async def scenario() -> None:
        schema = read_address(postgres).schema
        role = f"report_{schema}"
        async with two_tenants(postgres), session(postgres) as owner:
            await owner.execute(f"create role {role} login password 'secret'")
            await owner.execute(f"grant usage on schema {schema} to {role}")
            await owner.execute(f"grant select on {schema}.heads, {schema}.events to {role}")
            await owner.execute(f"alter role {role} set perdure.tenant = 'acme'")
            for table in ("heads", "events"):
                await owner.execute(
                    f"create policy {role} on {schema}.{table} as restrictive to {role}"
                    " using (starts_with(key, 'acme/'))"
                )
            try:
                url = re.sub(r"//[^@]*@", f"//{role}:secret@", postgres)
                async with session(url) as connection:
                    assert await keys(connection, "heads") == [MINE]
                    await connection.execute("set perdure.tenant = '*'")
                    assert await keys(connection, "events") == [MINE]
                    await connection.execute("set perdure.tenant = 'evil'")
                    assert await keys(connection, "heads") == []
            finally:
                await owner.execute(f"drop owned by {role}; drop role {role}")

    asyncio.run(scenario())


@workflow(name="tenants-hello")
async def hello() -> str:
    return "hello"


def test_an_application_works_under_the_policies(postgres: str) -> None:
    async def scenario() -> None:
        async with application(postgres) as granted:
            app = Perdure(granted)
            async with app, app.working():
                assert await (await app.start(hello, tenant="acme")).result(10) == "hello"
                assert len((await app.find(tenant="acme")).heads) == 1
                assert (await app.find(tenant="evil")).heads == []

    asyncio.run(scenario())
