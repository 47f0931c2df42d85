from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, get_args

import pytest

from perdure.core.records import Commit, Gone, Held, Query, Row, ShownStatus
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
from perdure.ports import Store
from perdure.stores.sqlite import SqliteStore, claiming, search
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    TWO,
    ManualClock,
    StoreContract,
    accepted,
    begin,
    begun,
    letter,
    log,
    settled,
    take,
)
from perdure.testing.invariants import check_log

T = TypeVar("T")

MIGRATIONS = sorted((files("perdure.stores.sqlite") / "migrations").iterdir(), key=lambda file: file.name)


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    async def make_store(self) -> Store:
        return SqliteStore(str(self.folder / "store.db"), clock=self.clock)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def using(path: str, body: Callable[[SqliteStore], Awaitable[T]], **options: Any) -> T:
    """Run a test's body with an open store."""

    async def run() -> T:
        store = SqliteStore(path, **options)
        await store.open()
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def on_writer(store: SqliteStore, sql: str) -> Any:
    return await store._writer.run(lambda db: db.execute(sql).fetchone())


@contextmanager
def process(code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that shares the file; it prints and reads lines."""
    command = [sys.executable, "-W", "error", "-c", code, *args]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def tell(child: subprocess.Popen[str], text: str = "go") -> None:
    assert child.stdin is not None
    child.stdin.write(text + "\n")
    child.stdin.flush()


# Several processes


APPEND = """
import asyncio, sys
from perdure.core.records import Commit, Row
from perdure.stores.sqlite import SqliteStore

async def main(path, me, times):
    store = SqliteStore(path)
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    version, mine = 1, 0
    for n in range(times):
        while True:
            row = Row(version + 1, 26, b'{"ref":1,"kind":"%s-%d"}' % (me.encode(), n), at=0)
            own = Row(mine + 2, 26, b'{"ref":1,"kind":"x"}', at=0)
            shared, alone = await store.commit([Commit("acme/shared", 0, [row]), Commit("acme/" + me, 0, [own])], 0)
            # A neighbour that was refused never takes this execution's own step with it.
            assert alone == "ok"
            mine += 1
            if shared == "ok":
                break
            version = (await store.read("acme/shared", after=version, limit=10_000))[-1].version
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
print("done", flush=True)
"""


def test_two_processes_append_to_one_log_and_lose_nothing(path: str) -> None:
    times = 100

    async def prepare(store: SqliteStore) -> None:
        await store.start([begin("acme/shared"), begin("acme/left"), begin("acme/right")], GRACE)

    async def look(store: SqliteStore) -> list[list[Row]]:
        return [await log(store, key) for key in ("acme/shared", "acme/left", "acme/right")]

    using(path, prepare)
    with process(APPEND, path, "left", str(times)) as left, process(APPEND, path, "right", str(times)) as right:
        assert [line(left), line(right)] == ["ready", "ready"]
        tell(left)
        tell(right)
        assert [line(left), line(right)] == ["done", "done"]
    shared, *own = using(path, look)
    check_log(shared)
    assert len(shared) == 2 * times + 1
    for name in (b"left", b"right"):
        written = [row.data for row in shared if name in row.data]
        assert written == [b'{"ref":1,"kind":"%s-%d"}' % (name, n) for n in range(times)]
    for rows in own:
        check_log(rows)
        assert len(rows) > times  # one more for every attempt at the shared log that came second


LOCK = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("begin immediate")
print("locked", flush=True)
sys.stdin.readline()
db.execute("rollback")
print("free", flush=True)
"""


def test_a_lock_held_too_long_is_unavailable_and_loses_nothing(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        hand = await begun(store)
        with process(LOCK, path) as other:
            assert line(other) == "locked"
            with pytest.raises(StoreUnavailable, match=r"store\.db: another process kept the write lock"):
                await hand.commit(settled(1))
            assert len(await log(store)) == 1  # reading needs no lock
            tell(other)
            assert line(other) == "free"
        assert await hand.commit(settled(1)) == "ok"
        check_log(await log(store))

    using(path, body, busy_timeout=0.1)


COMMIT_FOR_EVER = """
import asyncio, sys
from perdure.core.records import Commit, Row
from perdure.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    version = 1
    while True:
        rows = [Row(version + n, 26, b'{"ref":1,"kind":"x"}', at=0) for n in (1, 2, 3)]
        assert await store.commit([Commit("acme/one", 0, rows)], 2_000_000) == ["ok"]
        version += 3
        print(version, flush=True)

asyncio.run(main())
"""


def test_what_a_killed_process_was_told_is_there(path: str) -> None:
    async def prepare(store: SqliteStore) -> None:
        await store.start([begin()], GRACE)

    using(path, prepare)
    for _ in range(3):
        version = len(using(path, log))
        code = COMMIT_FOR_EVER.replace("version = 1", f"version = {version}")
        with process(code, path) as victim:
            acknowledged = [int(line(victim)) for _ in range(50)]
            os.kill(victim.pid, signal.SIGKILL)
            assert victim.stdout is not None
            acknowledged += [int(text) for text in victim.stdout.read().split("\n")[:-1]]
        rows = using(path, log)
        check_log(rows)
        assert len(rows) >= acknowledged[-1]
        assert len(rows) % 3 == 1  # no part of a commit


OPEN = """
import asyncio, sys
from perdure.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await store.open()
    await store.close()
    print("opened", flush=True)

asyncio.run(main())
"""


def test_processes_that_open_a_new_file_at_once_migrate_it_once(path: str) -> None:
    with process(OPEN, path) as a, process(OPEN, path) as b, process(OPEN, path) as c:
        children = (a, b, c)
        assert [line(child) for child in children] == ["ready"] * 3
        for child in children:
            tell(child)
        assert [line(child) for child in children] == ["opened"] * 3
    db = sqlite3.connect(path)
    assert db.execute("pragma user_version").fetchone() == (len(MIGRATIONS),)
    assert db.execute("pragma journal_mode").fetchone() == ("wal",)
    db.close()


def test_threads_that_open_a_new_file_at_once_migrate_it_once(path: str) -> None:
    async def open_many() -> None:
        stores = [SqliteStore(path) for _ in range(8)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(open_many())


def test_stores_on_one_file_see_each_other(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        other = SqliteStore(path)
        await other.open()
        hand = await begun(store)
        await hand.commit(settled())
        assert len(await log(other)) == 2
        await accepted(other, letter())
        assert await hand.park() == "mail"
        await other.close()

    using(path, body)


# Faults


def test_a_full_disk_fails_cleanly_and_heals(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        hand = await begun(store)
        other = await begun(store, TWO)
        await on_writer(store, "pragma max_page_count = 1")  # that is: no more than there are now
        big = Row(2, 26, b'{"ref":1,"kind":"%s"}' % (b"x" * 50_000), at=0)
        group = [await other.prepare(settled()), Commit(ONE, hand.token, [big])]
        with pytest.raises(StoreFull, match=r"store\.db: no space is left; nothing was written"):
            await store.commit(group, GRACE)
        assert [len(await log(store, key)) for key in (ONE, TWO)] == [1, 1]
        await on_writer(store, "pragma max_page_count = 1000000")
        assert await store.commit(group, GRACE) == ["ok", "ok"]
        assert [len(await log(store, key)) for key in (ONE, TWO)] == [2, 2]

    using(path, body)


def test_a_full_disk_stops_no_reader(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        await begun(store)
        await on_writer(store, "pragma max_page_count = 1")
        for number in range(3):
            starts = [begin(f"acme/{number}-{n}", state=b"x" * 5000) for n in range(20)]
            with pytest.raises(StoreFull):
                await store.start(starts, GRACE)
            assert (await store.head(ONE)) is not None
        assert await store.hold(["acme/0-0"], "w1", LEASE) == [Gone("acme/0-0")]

    using(path, body)


def test_a_file_that_may_only_be_read_says_so(path: str) -> None:
    async def prepare(store: SqliteStore) -> None:
        await begun(store)

    async def body(store: SqliteStore) -> None:
        assert len(await log(store)) == 1
        with pytest.raises(StoreReadOnly, match=r"store\.db.*the file cannot be written"):
            await store.start([begin(TWO)], GRACE)
        assert await store.head(TWO) is None

    using(path, prepare)
    using(f"file:{path}?mode=ro", body)


def test_a_store_that_becomes_read_only_heals(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        hand = await begun(store)
        await on_writer(store, "pragma query_only = on")
        with pytest.raises(StoreReadOnly):
            await hand.commit(settled())
        await on_writer(store, "pragma query_only = off")
        assert await hand.commit(settled()) == "ok"

    using(path, body)


def test_a_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look like one" * 100)
    with pytest.raises(StoreError, match=r"notes\.txt: this file is not a SQLite database"):
        using(str(path), log)
    assert path.read_text().startswith("not a database")


def test_a_damaged_file_says_so(path: str) -> None:
    async def prepare(store: SqliteStore) -> None:
        await store.start([begin(f"acme/{number}") for number in range(500)], GRACE)

    async def body(store: SqliteStore) -> None:
        with pytest.raises(StoreError, match=r"store\.db: the database is damaged"):
            for number in range(500):
                await take(store, f"acme/{number}")

    using(path, prepare)
    with Path(path).open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * (40 * 4096))
    using(path, body)


def test_a_missing_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/store\.db: the file cannot be opened; check that its directory"):
        using(str(tmp_path / "nowhere" / "store.db"), log)


def test_a_file_of_a_newer_release_is_refused(path: str) -> None:
    using(path, log)
    db = sqlite3.connect(path)
    db.execute("pragma user_version = 999")
    db.close()
    with pytest.raises(
        StoreOutdated, match=rf"store\.db: its schema has number 999, this release .* knows {len(MIGRATIONS)} at most"
    ):
        using(path, log)


@pytest.mark.parametrize("number", range(1, len(MIGRATIONS)))
def test_a_file_of_before_is_brought_up_with_its_data(number: int, path: str) -> None:
    db = sqlite3.connect(path)
    for file in MIGRATIONS[:number]:
        db.executescript(file.read_text())
    db.execute(f"pragma user_version = {number}")
    db.execute(
        "insert into heads (key, tenant, workflow, definition, queue, status, sha, base, started_at, changed_at)"
        " values ('acme/one', 'acme', 'order', 'order@1', 'default', 'open', 'sha', 1, 0, 0)"
    )
    db.execute("insert into wakes (key, queue, definition, due, token) values ('acme/one', 'default', 'order@1', 0, 1)")
    db.execute("insert into events values ('acme/one', 1, 1, '{}', 0, 0, null)")
    db.commit()
    db.close()

    async def body(store: SqliteStore) -> None:
        assert await store.start([begin(lane="a", sha="sha")], GRACE) == ["same"]
        assert await (await take(store)).end() == "ok"

    using(path, body)


def test_a_file_system_without_shared_memory_is_refused(path: str) -> None:
    with pytest.raises(StoreError, match=r"journal mode is 'delete' .* put the file on a local disk"):
        using(f"file:{path}?vfs=unix-dotfile", log)


@pytest.mark.parametrize("path", [":memory:", "", "file::memory:?cache=shared", "file:x?mode=memory"])
def test_a_store_in_memory_is_refused(path: str) -> None:
    with pytest.raises(SettingsError, match=r"memory://"):
        SqliteStore(path)


def test_an_unknown_synchronous_is_refused(path: str) -> None:
    with pytest.raises(SettingsError, match="FULL"):
        SqliteStore(path, synchronous="MAYBE")


def test_a_store_that_is_not_open_says_so(path: str) -> None:
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="not open"):
        asyncio.run(store.head(ONE))


def test_a_closed_store_says_so(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        await store.close()
        with pytest.raises(StoreError, match="not open"):
            await store.start([begin()], GRACE)

    using(path, body)


def test_a_value_that_cannot_be_stored_is_refused(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        hand = await begun(store)
        for row in (Row(2, 26, b"{}", at=2**70), Row(2, 26, b"{}", at=0, message_id="\ud800")):
            with pytest.raises(InvalidValue, match="nothing was written"):
                await store.commit([Commit(ONE, hand.token, [row])], GRACE)
        assert await hand.commit(settled()) == "ok"

    using(path, body)


class BrokenCommit:
    """A connection whose COMMIT fails, once; `settles` says whether the transaction is over nevertheless."""

    def __init__(self, db: sqlite3.Connection, settles: bool) -> None:
        self._db = db
        self._settles = settles
        self._armed = True

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "commit" and self._armed:
            self._armed = False
            if self._settles:
                self._db.execute(sql)
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


@pytest.mark.parametrize("settles", [True, False])
def test_a_failed_commit_is_unknown_only_if_the_transaction_is_over(path: str, settles: bool) -> None:
    async def body(store: SqliteStore) -> None:
        hand = await begun(store)
        commit = await hand.prepare(settled())
        real = store._writer._db
        assert real is not None
        store._writer._db = BrokenCommit(real, settles)  # type: ignore[assignment]
        with pytest.raises(StoreError) as raised:
            await store.commit([commit], GRACE)
        assert isinstance(raised.value, OutcomeUnknown) == settles
        assert len(await log(store)) == (2 if settles else 1)
        assert await store.commit([commit], GRACE) == (["stale"] if settles else ["ok"])
        store._writer._db = real

    using(path, body)


# Threads


async def blocked(
    run: Callable[[Callable[[Any], bool]], Awaitable[bool]],
) -> tuple[threading.Event, asyncio.Task[bool]]:
    """Occupy a thread of the store until the event is set."""
    began, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(_: Any) -> bool:
        loop.call_soon_threadsafe(began.set)
        return gate.wait(10)

    async def occupy() -> bool:
        return await run(wait)

    task = asyncio.create_task(occupy())
    await began.wait()
    return gate, task


def test_a_long_read_delays_no_commit(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        hand = await begun(store)
        commit = await hand.prepare(settled())
        gate, task = await blocked(store._reader.run)
        assert await store.commit([commit], GRACE) == ["ok"]
        assert await store.mail([ONE]) == {ONE: []}
        gate.set()
        assert await task

    using(path, body)


def test_a_commit_cancelled_before_its_turn_is_not_written(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        hand = await begun(store)
        commit = await hand.prepare(settled())
        gate, task = await blocked(store._writer.run)
        waiting = asyncio.create_task(store.commit([commit], GRACE))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        gate.set()
        assert await task
        assert len(await log(store)) == 1
        assert await store.commit([commit], GRACE) == ["ok"]

    using(path, body)


def test_a_commit_cancelled_at_work_is_written(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        hand = await begun(store)
        commit = await hand.prepare(settled())

        async def slow(wait: Callable[[Any], bool]) -> bool:
            await store._write(lambda tx: (tx.commit([commit], tx.now), wait(tx)))
            return True

        gate, task = await blocked(slow)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gate.set()
        assert await store.commit([commit], GRACE) == ["stale"]
        assert len(await log(store)) == 2

    using(path, body)


# What the port cannot show


def test_mail_whose_execution_is_gone_is_deleted(path: str) -> None:
    clock = ManualClock()

    async def body(store: SqliteStore) -> None:
        orphan = f"values ('acme/gone', 'm1', 'default', {clock.at}, '', x'7b7d')"
        await on_writer(store, f"insert into messages (key, id, queue, due, sha, data) {orphan}")
        assert await store.claim(QUEUES, DEFINITIONS, 10, GRACE) == []
        assert await on_writer(store, "select count(*) from messages") == (0,)

    using(path, body, clock=clock)


def test_where_very_many_tenants_wait_each_has_its_turn_in_some_claim(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "VISITS", 3)
    clock = ManualClock()

    async def body(store: SqliteStore) -> None:
        await store.start([begin(f"{letter}/one") for letter in "abcdefghijk"], 100 * GRACE)
        await store.start([begin(f"flood/{number:02}") for number in range(40)], 0)
        clock.advance(1)
        await store.start([begin("small/one")], 0)
        clock.advance(1)
        claims = [[due.key for due in await store.claim(QUEUES, DEFINITIONS, 2, GRACE)] for _ in range(8)]
        assert "small/one" in [key for keys in claims for key in keys]
        assert all(len(keys) == 2 for keys in claims)

    using(path, body, clock=clock)


@pytest.mark.parametrize("begin_at", ["", "a", "b", "bb", "c", "d"])
def test_a_claim_visits_each_tenant_once(path: str, begin_at: str) -> None:
    async def body(store: SqliteStore) -> None:
        await store.start([begin(key) for key in ("a/1", "a/2", "b/1", "c/1", "c/2")], 0)
        turns = claiming.Turns()
        turns.visited = begin_at
        served = {"queue": QUEUES[0], "definition": DEFINITIONS[0]}
        visited = await store._writer.run(
            lambda db: list(claiming.Claiming(db, 0, turns, 1)._tenants(claiming._NEXT_OF_WAKES, served))
        )
        assert sorted(visited) == ["a", "b", "c"]
        assert visited[0] == next((tenant for tenant in "abc" if tenant > begin_at), "a")

    using(path, body)


def test_the_clock_does_not_fall_behind_what_was_written(path: str) -> None:
    clock = ManualClock()

    async def prepare(store: SqliteStore) -> int:
        await (await begun(store)).park()
        return await store.now()

    async def body(store: SqliteStore) -> int:
        await take(store)
        return await store.now()

    before = using(path, prepare, clock=clock)
    clock.advance(-60)
    assert using(path, body, clock=clock) == before


def test_the_clock_never_runs_backwards(path: str) -> None:
    clock = ManualClock()
    store = SqliteStore(path, clock=clock)
    before = asyncio.run(store.now())
    clock.advance(-60)
    assert asyncio.run(store.now()) == before


def test_a_long_log_is_read_in_bounded_memory(path: str) -> None:
    async def body(store: SqliteStore) -> tuple[int, int]:
        hand = await begun(store)
        for part in range(5):
            rows = [Row(2 + 10_000 * part + n, 26, b'{"ref":1,"kind":"x"}' + b" " * 80, 0) for n in range(10_000)]
            assert await store.commit([Commit(ONE, hand.token, rows)], GRACE) == ["ok"]
        tracemalloc.start()
        after = 0
        while page := await store.read(ONE, after=after, limit=500):
            after = page[-1].version
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return after, peak

    after, peak = using(path, body)
    assert after == 50_001
    assert peak < 1_000_000


def test_a_group_with_a_culprit_keeps_the_rows_of_all_others(path: str) -> None:
    async def body(store: SqliteStore) -> None:
        keys = [f"acme/{number}" for number in range(200)]
        await store.start([begin(key) for key in keys], GRACE)
        held = [answer for answer in await store.hold(keys, "w1", LEASE) if isinstance(answer, Held)]
        group = [Commit(one.key, one.token, [Row(2, 26, b"{}", 0, one.token)]) for one in held]
        await store.commit([group[17], group[199]], GRACE)
        outcomes = await store.commit(group, GRACE)
        assert [number for number, outcome in enumerate(outcomes) if outcome == "stale"] == [17, 199]
        assert [len(await log(store, key)) for key in keys] == [2] * 200

    using(path, body)


@pytest.mark.parametrize(
    "asked",
    [
        {"correlation": "a"},
        {"tags": ("t",)},
        {"correlation": "a", "tags": ("t", "u")},
        {"tags": ("t",), "status": "completed", "workflow": "order", "inner": False},
        {"correlation": "a", "after": 1, "before": 9, "cursor": (5, "acme/x")},
    ],
)
@pytest.mark.parametrize("analyzed", [False, True], ids=["young", "analyzed"])
def test_a_search_by_labels_reads_its_page_off_the_index(path: str, asked: dict[str, Any], analyzed: bool) -> None:
    async def body(store: SqliteStore) -> None:
        await store.start([begin(f"acme/{n}", correlation="a", tags=("t", "u")) for n in range(100)], GRACE)
        if analyzed:
            await store._writer.run(lambda db: db.execute("analyze"))
        condition, values = search.condition(Query("acme", **asked), 0)
        question = "explain query plan " + search.statement(condition, values)
        plan = await store._reader.run(lambda db: db.execute(question, values).fetchall())
        told = "\n".join(step[3] for step in plan)
        assert "SEARCH first USING PRIMARY KEY (label=?" in told
        assert not re.search(r"SCAN|TEMP B-TREE|AUTOMATIC", told), told

    using(path, body)


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ({}, "heads_time"),
        ({"after": 1, "before": 9}, "heads_time"),
        ({"cursor": (5, "acme/x")}, "heads_time"),
        ({"workflow": "order"}, "heads_find"),
        ({"workflow": "order", "after": 1, "cursor": (5, "acme/x")}, "heads_find"),
        *(({"status": status}, "heads_status") for status in get_args(ShownStatus) if status != "running"),
    ],
)
@pytest.mark.parametrize("analyzed", [False, True], ids=["young", "analyzed"])
def test_a_page_of_a_list_is_read_off_an_index(path: str, asked: dict[str, Any], index: str, analyzed: bool) -> None:
    async def body(store: SqliteStore) -> None:
        await store.start([begin(f"acme/{n}", workflow=f"w{n % 9}") for n in range(100)], GRACE)
        if analyzed:
            await store._writer.run(lambda db: db.execute("analyze"))
        condition, values = search.condition(Query("acme", inner=False, **asked), 0)
        question = "explain query plan " + search.statement(condition, values)
        plan = await store._reader.run(lambda db: db.execute(question, values).fetchall())
        told = "\n".join(step[3] for step in plan)
        assert f"SEARCH h USING INDEX {index} (tenant=?" in told
        assert not re.search(r"SCAN|TEMP B-TREE|AUTOMATIC", told), told

    using(path, body)


@pytest.mark.parametrize("analyzed", [False, True], ids=["young", "analyzed"])
def test_a_status_is_looked_for_in_all_tenants_off_an_index(path: str, analyzed: bool) -> None:
    """As every worker does when it begins: it must not cost a look at all that there ever was."""

    async def body(store: SqliteStore) -> None:
        keys = [f"{tenant}/{n}" for tenant in ("acme", "mill", "zoo") for n in range(100)]
        await store.start([begin(key) for key in keys], GRACE)
        await on_writer(store, "update heads set status = 'stuck' where key in ('acme/7', 'zoo/9')")
        if analyzed:
            await store._writer.run(lambda db: db.execute("analyze"))
        assert {head.key for head in await store.find(Query(None, status="stuck"))} == {"acme/7", "zoo/9"}
        condition, values = search.condition(Query(None, status="stuck", cursor=(5, "acme/x")), 0)
        question = "explain query plan " + search.statement(condition, values)
        plan = await store._reader.run(lambda db: db.execute(question, values).fetchall())
        told = "\n".join(step[3] for step in plan)
        assert "SEARCH h USING INDEX heads_status (tenant=? AND status=?" in told
        assert not re.search(r"SCAN (h|heads|w|e|m|l)\b", told), told

    using(path, body)


@pytest.mark.parametrize("more", [{}, {"workflow": "w1"}, {"after": 1, "cursor": (2**59, "acme/x")}])
@pytest.mark.parametrize("analyzed", [False, True], ids=["young", "analyzed"])
def test_what_runs_is_found_among_what_is_held_however_much_waits(
    path: str, more: dict[str, Any], analyzed: bool
) -> None:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    async def body(store: SqliteStore) -> None:
        query = Query("acme", status="running", inner=False, **more)

        async def took() -> int:
            before = steps
            assert [head.key for head in await store.find(query)] == ["acme/1"]
            return steps - before

        await store.start([begin("acme/1", workflow="w1"), begin("acmes/1", workflow="w1")], GRACE)
        await store.hold(["acme/1", "acmes/1"], "w1", LEASE)
        if analyzed:
            await store._writer.run(lambda db: db.execute("analyze"))
        condition, values = search.condition(query, 0)
        question = "explain query plan " + search.statement(condition, values)
        plan = await store._reader.run(lambda db: db.execute(question, values).fetchall())
        told = "\n".join(step[3] for step in plan)
        assert re.search(r"^SEARCH w USING INDEX wakes_held \(key>\? AND key<\?\)", told), told
        assert not re.search(r"SCAN|AUTOMATIC", told), told
        await store._reader.run(lambda db: db.set_progress_handler(step, 1))
        alone = await took()
        await store.start([begin(f"acme/waits-{n}", workflow="w1") for n in range(300)], GRACE)
        assert await took() <= alone + 20

    using(path, body)


async def planned(store: SqliteStore, sql: str, values: Any) -> list[str]:
    found = await store._writer.run(lambda db: db.execute("explain query plan " + sql, values).fetchall())
    return [step for _, _, _, step in found]


def test_statements_use_their_indexes(path: str) -> None:
    """The statements that run all the time never scan a table."""
    plans = {
        "select due, key from wakes where queue = ? and definition = ? and due <= ? order by due limit ?": "wakes_due",
        "select due from messages m where queue = ? and due <= ? order by due limit ?": "messages_due",
        "select version from events where key = ? and version > ? order by version": "sqlite_autoindex_events_1",
        "select 1 from events where key = ? and message_id = ?": "events_message",
        "select id from messages where key = ? and id = ?": "sqlite_autoindex_messages_1",
        "select key from topics where topic = ? and key > ? order by key limit ?": "PRIMARY KEY",
        "delete from topics where key = ?": "topics_key",
        "select key from heads where tenant = ? order by started_at desc, key desc": "heads_time",
        "select key from heads where tenant = ? and status = ? order by started_at desc, key desc": "heads_status",
        "select key from heads where tenant = ? and workflow = ? order by started_at desc, key desc": "heads_find",
    }

    async def body(store: SqliteStore) -> None:
        for sql, index in plans.items():
            plan = await planned(store, sql, (1,) * sql.count("?"))
            assert len(plan) == 1, plan
            assert index in plan[0], plan

    using(path, body)


def test_a_claim_finds_tenants_and_what_they_have_due_off_an_index(path: str) -> None:
    names = ("queue", "definition", "definitions", "now", "limit", "tenant")

    async def body(store: SqliteStore) -> None:
        for sql, seek in (
            (claiming._NEXT_OF_WAKES, "wakes_turns (queue=? AND definition=? AND <expr>>?)"),
            (claiming._WAKES_OF, "wakes_turns (queue=? AND definition=? AND <expr>=? AND due>? AND due<?)"),
            (claiming._NEXT_OF_MAIL, "messages_turns (queue=? AND <expr>>?)"),
            (claiming._MAIL_OF, "messages_turns (queue=? AND <expr>=? AND due<?)"),
        ):
            plan = await planned(store, sql, dict.fromkeys(names, "1"))
            assert seek in plan[0], plan
            assert not [step for step in plan if "TEMP B-TREE" in step], plan

    using(path, body)


def test_a_log_is_read_off_its_index_and_no_row_of_another_is_touched(path: str) -> None:
    """The statements are those that the store runs, seen as they run."""
    said: list[str] = []
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    async def took(store: SqliteStore) -> int:
        before = steps
        assert [row.version for row in await store.read(ONE, after=3, until=9, limit=4)] == [4, 5, 6, 7]
        return steps - before

    async def body(store: SqliteStore) -> None:
        rows = tuple(Row(version, 26, b"{}", 0) for version in range(1, 101))
        await store.start([begin(ONE, rows=rows)], GRACE)
        await store._reader.run(lambda db: db.set_progress_handler(step, 1))
        alone = await took(store)
        await store.start([begin(f"acme/{number}", rows=rows) for number in range(100)], GRACE)
        assert await took(store) <= alone + 5
        await store._reader.run(lambda db: db.set_trace_callback(said.append))
        await store.read(ONE, after=3, until=9, limit=4)
        await store.message(ONE, "m1")
        await store._reader.run(lambda db: db.set_trace_callback(None))
        questions = [one for one in said if "from events" in one]
        assert len(questions) == 2
        for question in questions:
            [plan] = await store._reader.run(lambda db, q=question: db.execute(f"explain query plan {q}").fetchall())
            assert re.match(r"SEARCH events USING INDEX \w+ \(key=\? AND (version|message_id)", plan[3]), plan

    using(path, body)
