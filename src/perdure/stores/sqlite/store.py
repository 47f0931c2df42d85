"""The port: every verb is handed to one of two threads, and what comes back is an answer or a StoreError.

Rules kept here: every verb that writes is one BEGIN IMMEDIATE transaction, and the time of a transaction is taken under
its lock; one thread writes and another reads, so that a long read never delays a commit; every error of SQLite leaves
as a StoreError that says whether something was written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from perdure.core.records import Backlog, Commit, Due, Head, HoldAnswer, Mail, Outcome, Query, Row, Sent, Start, Started
from perdure.errors import InvalidValue, OutcomeUnknown, SettingsError, StoreError
from perdure.stores.sqlite import migrations, reading, search
from perdure.stores.sqlite.claiming import Turns
from perdure.stores.sqlite.desk import Desk
from perdure.stores.sqlite.opening import prepare
from perdure.stores.sqlite.transaction import Transaction
from perdure.stores.sqlite.trouble import meaning, name_of, roll_back
from perdure.stores.ticker import Ticker

T = TypeVar("T")

SYNCHRONOUS = frozenset({"OFF", "NORMAL", "FULL", "EXTRA"})


class SqliteStore:
    """A Store in a file; `clock` answers microseconds and may be a test's, `busy_timeout` is in seconds."""

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], int] | None = None,
        busy_timeout: float = 10.0,
        synchronous: str = "FULL",
    ) -> None:
        if not path or ":memory:" in path or "mode=memory" in path:
            raise SettingsError(f"SqliteStore needs a file, not {path!r}; for a store in memory use memory://")
        if synchronous.upper() not in SYNCHRONOUS:
            raise SettingsError(f"synchronous is one of {', '.join(sorted(SYNCHRONOUS))}, not {synchronous!r}")
        self.path = path
        self._ticker = Ticker(clock)
        self._busy_timeout = busy_timeout
        self._synchronous = synchronous.upper()
        self._turns = Turns()
        self._writer = Desk("perdure-sqlite-writer", self._connect)
        self._reader = Desk("perdure-sqlite-reader", self._connect)

    async def open(self) -> None:
        try:
            await self._writer.open()
            await self._run(self._writer, lambda db: migrations.migrate(db, self.path))
            await self._reader.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()

    def twin(self) -> SqliteStore:
        other = SqliteStore(self.path, busy_timeout=self._busy_timeout, synchronous=self._synchronous)
        other._ticker = self._ticker  # one clock for both, or a time of one could lie before a time of the other
        return other

    async def now(self) -> int:
        return self._ticker.now()

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        return await self._write(lambda tx: [tx.start(one, tx.now + grace) for one in starts])

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        return await self._write(lambda tx: [tx.send(one, tx.now + grace) for one in mail])

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        # A key named twice is held once: a second hold by the same worker would write a barrier.
        once = dict.fromkeys(keys)
        remembered = known or {}
        answers = await self._write(lambda tx: {key: tx.hold(key, me, lease, remembered.get(key)) for key in once})
        return [answers[key] for key in keys]

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        return await self._write(lambda tx: {key for key, token in holds if tx.renew(key, token, lease)})

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        await self._write(lambda tx: [tx.release(key, token) for key, token in holds])

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        # Asked by holders between commits, so it must not queue behind a search on the reader's side.
        return await self._run(self._writer, lambda db: {key: reading.unread(db, key) for key in keys})

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        return await self._write(lambda tx: tx.commit(group, tx.now + grace))

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        return await self._write(lambda tx: tx.claim(queues, definitions, limit, grace, self._turns))

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        return await self._run(self._writer, lambda db: reading.next_due(db, queues, definitions))

    async def backlog(self) -> list[Backlog]:
        return await self._run(self._reader, lambda db: reading.backlog(db, self._now()))

    async def begun(self, tenant: str, most: int) -> int:
        return await self._run(self._reader, lambda db: reading.begun(db, tenant, most))

    async def fresh(self, keys: Sequence[str]) -> set[str]:
        # On the way to a hold, so it must not queue behind a search either.
        return await self._run(self._writer, lambda db: reading.fresh(db, keys))

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        return await self._run(self._reader, lambda db: reading.rows_of(db, key, after, until, limit))

    async def message(self, key: str, id: str) -> Mail | Row | None:
        return await self._run(self._reader, lambda db: reading.message(db, key, id))

    async def listening(self, tenant: str, topics: Sequence[str], limit: int, after: str = "") -> dict[str, list[str]]:
        return await self._run(self._reader, lambda db: reading.listening(db, tenant, topics, limit, after))

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        return await self._run(self._reader, lambda db: reading.extent(db, tenant, workflow))

    async def head(self, key: str) -> Head | None:
        heads = await self._run(
            self._reader, lambda db: search.heads(db, "h.key = :key", {"key": key, "now": self._now()})
        )
        return heads[0] if heads else None

    async def find(self, query: Query) -> list[Head]:
        condition, values = search.condition(query, self._now())
        return await self._run(self._reader, lambda db: search.heads(db, condition, values))

    def _now(self) -> int:
        return self._ticker.now()

    # Threads, transactions and errors

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(
                self.path,
                timeout=self._busy_timeout,
                isolation_level=None,
                cached_statements=256,
                uri=self.path.startswith("file:"),
            )
        except sqlite3.Error as error:
            raise self._wrapped(error) from error
        try:
            prepare(db, self.path, self._busy_timeout, self._synchronous)
        except BaseException as error:
            db.close()
            raise self._wrapped(error) if isinstance(error, sqlite3.Error) else error from error
        return db

    async def _run(self, desk: Desk, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await desk.run(work)
        except sqlite3.Error as error:
            raise self._wrapped(error) from error
        except (OverflowError, UnicodeError) as error:
            raise InvalidValue(f"a value cannot be stored ({error}); nothing was written") from error

    async def _write(self, work: Callable[[Transaction], T]) -> T:
        """Run the work in one transaction: it is written completely or not at all."""
        return await self._run(self._writer, lambda db: self._transact(db, work))

    def _transact(self, db: sqlite3.Connection, work: Callable[[Transaction], T]) -> T:
        try:
            db.execute("begin immediate")
            # The time is taken under the lock: what waited for the lock must not be written into the past.
            answer = work(Transaction(db, self._ticker))
        except BaseException:
            roll_back(db)
            raise
        try:
            db.execute("commit")
        except sqlite3.Error as error:
            if db.in_transaction:
                roll_back(db)
                raise
            raise OutcomeUnknown(
                f"{self.path}: the commit failed with {name_of(error)} ({error}) and SQLite does not say whether it was"
                " written; repeat the call with the same ids"
            ) from error
        return answer

    def _wrapped(self, error: sqlite3.Error) -> StoreError:
        kind, text = meaning(error)
        return kind(f"{self.path}: {text} ({name_of(error)}: {error})")
