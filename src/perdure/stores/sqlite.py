"""The embedded store: one SQLite file, shared by any number of processes on one host.

Rules kept here: every verb that writes is one BEGIN IMMEDIATE transaction, and since the write lock is ours, a check is
a plain read; what was answered is on the disk (WAL, synchronous=FULL); one thread writes and another reads, each with a
connection of its own, so that a long read never delays a commit; every error of SQLite leaves as a StoreError that says
whether something was written.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from itertools import starmap
from typing import Any, TypeVar

from msgspec.structs import astuple

from perdure.core import events
from perdure.core.events import PROGRESS, TakenOver
from perdure.core.fairness import WINDOW, share_out
from perdure.core.records import (
    ENDED,
    Backlog,
    Busy,
    Commit,
    Due,
    End,
    Gone,
    Head,
    Held,
    HoldAnswer,
    Mail,
    Outcome,
    Park,
    Query,
    Queued,
    Row,
    Sent,
    Start,
    Started,
    lane_of,
    served_as,
    tenant_of,
)
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
from perdure.stores.ticker import DOUBLINGS, NEVER, RESTARTED, TAKEN_OVER, Ticker, is_step

T = TypeVar("T")

#: Pages of the write-ahead log between checkpoints: 16 MB. A group of 200 steps dirties about 100 pages.
CHECKPOINT_PAGES = 4000
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
        self._writer = _Desk("perdure-sqlite-writer", self._connect)
        self._reader = _Desk("perdure-sqlite-reader", self._connect)

    async def open(self) -> None:
        try:
            await self._writer.open()
            await self._run(self._writer, lambda db: _migrate(db, self.path))
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
        return await self._run(self._writer, lambda db: {key: _unread(db, key) for key in keys})

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        return await self._write(lambda tx: tx.commit(group, tx.now + grace))

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        return await self._write(lambda tx: tx.claim(queues, definitions, limit, grace))

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        return await self._run(self._writer, lambda db: _next_due(db, queues, definitions))

    async def backlog(self) -> list[Backlog]:
        return await self._run(
            self._reader, lambda db: list(starmap(Backlog, db.execute(_BACKLOG, {"now": self._now()})))
        )

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        return await self._run(self._reader, lambda db: _rows(db, key, after, until, limit))

    async def head(self, key: str) -> Head | None:
        heads = await self._run(self._reader, lambda db: _heads(db, "h.key = :key", {"key": key, "now": self._now()}))
        return heads[0] if heads else None

    async def find(self, query: Query) -> list[Head]:
        condition, values = _condition(query, self._now())
        return await self._run(self._reader, lambda db: _heads(db, condition, values))

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
            _prepare(db, self.path, self._busy_timeout, self._synchronous)
        except BaseException as error:
            db.close()
            raise self._wrapped(error) if isinstance(error, sqlite3.Error) else error from error
        return db

    async def _run(self, desk: _Desk, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await desk.run(work)
        except sqlite3.Error as error:
            raise self._wrapped(error) from error
        except (OverflowError, UnicodeError) as error:
            raise InvalidValue(f"{self.path}: a value cannot be stored ({error}); nothing was written") from error

    async def _write(self, work: Callable[[_Transaction], T]) -> T:
        """Run the work in one transaction: it is written completely or not at all."""
        return await self._run(self._writer, lambda db: self._transact(db, work))

    def _transact(self, db: sqlite3.Connection, work: Callable[[_Transaction], T]) -> T:
        try:
            db.execute("begin immediate")
            # The time is taken under the lock: what waited for the lock must not be written into the past.
            answer = work(_Transaction(db, self._ticker))
        except BaseException:
            _roll_back(db)
            raise
        try:
            db.execute("commit")
        except sqlite3.Error as error:
            if db.in_transaction:
                _roll_back(db)
                raise
            raise OutcomeUnknown(
                f"{self.path}: the commit failed with {_name(error)} ({error}) and SQLite does not say whether it was"
                " written; repeat the call with the same ids"
            ) from error
        return answer

    def _wrapped(self, error: sqlite3.Error) -> StoreError:
        kind, text = _meaning(error)
        return kind(f"{self.path}: {text} ({_name(error)}: {error})")


class _Desk:
    """A thread with a connection of its own; what it is given runs one after the other.

    A caller that is cancelled leaves its work on the desk: it is done completely, or, if its turn has not come, not at
    all.
    """

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._name = name
        self._connect = connect
        self._pool: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None

    async def open(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
            await asyncio.get_running_loop().run_in_executor(self._pool, self._begin)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.get_running_loop().run_in_executor(pool, self._finish)
            pool.shutdown()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._pool is None:
            raise StoreError("the store is not open: await store.open() first, and do not use it after close()")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._work, work)

    def _begin(self) -> None:
        self._db = self._connect()

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        assert self._db is not None
        return work(self._db)

    def _finish(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


class _Transaction:
    """The verbs that write, one execution at a time, inside a transaction that holds the write lock."""

    def __init__(self, db: sqlite3.Connection, ticker: Ticker) -> None:
        self._db = db
        self._ticker = ticker
        self.now = ticker.now()

    def _first(self, sql: str, *values: object) -> Any:
        return self._db.execute(sql, values).fetchone()

    def _changed(self, sql: str, *values: object) -> bool:
        return self._db.execute(sql, values).rowcount > 0

    # Start and send

    def start(self, start: Start, due: int) -> Started:
        created = self._changed(
            "insert into heads (key, tenant, workflow, definition, queue, status, sha, parent, parent_ref, base, state,"
            " result, started_at, changed_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing",
            start.key,
            tenant_of(start.key),
            start.workflow,
            start.definition,
            start.queue,
            start.status,
            start.sha,
            start.parent,
            start.parent_ref,
            start.base,
            start.state,
            start.result,
            self.now,
            self.now,
        )
        if not created:
            (sha,) = self._first("select sha from heads where key = ?", start.key)
            return "same" if sha == start.sha else "conflict"
        self._append(start.key, start.rows)
        if start.status not in ENDED:
            # The first token is the time, so it exceeds every token of an execution that had this key long ago,
            # and every fence that a fork or an import brings along.
            token = max([self.now, *(row.fence for row in start.rows)])
            self._changed(
                "insert into wakes (key, queue, definition, due, token, lane, born) values (?, ?, ?, ?, ?, ?, ?)",
                start.key,
                start.queue,
                served_as(start.definition),
                due,
                token,
                lane := lane_of(start),
                token if lane is None else max(token, self._first(_LAST_IN_LANE, lane)[0] + 1),
            )
        return "created"

    def send(self, mail: Mail, due: int) -> Sent:
        wake = self._first("select queue, iif(due > ?, holder, null) from wakes where key = ?", self.now, mail.key)
        queue, holder = wake or ("", None)
        waiting = self._first("select sha from messages where key = ? and id = ?", mail.key, mail.id)
        if waiting is not None:
            return Sent("duplicate" if waiting[0] == mail.sha else "conflict", queue, holder)
        if (version := self._folded_at(mail.key, mail.id)) is not None:
            return Sent("duplicate", queue, holder, version)
        if wake is None:
            head = self._first("select queue from heads where key = ?", mail.key)
            return Sent("missing") if head is None else Sent("ended", head[0])
        self._changed(
            "insert into messages (key, id, queue, due, sha, data) values (?, ?, ?, ?, ?, ?)",
            mail.key,
            mail.id,
            queue,
            due,
            mail.sha,
            mail.data,
        )
        return Sent("accepted", queue, holder)

    def _folded_at(self, key: str, id: str) -> int | None:
        """The version at which a message entered the log, if it did."""
        found = self._first("select version from events where key = ? and message_id = ?", key, id)
        return None if found is None else found[0]

    # Holds

    def hold(self, key: str, me: str, lease: int, known: tuple[int, int] | None) -> HoldAnswer:
        wake = self._first(
            "select w.token, w.holder, w.due, w.lapses, h.definition, w.queue,"
            " h.status, h.base, h.parent, h.parent_ref, h.changed_at, w.lane"
            " from wakes w join heads h on h.key = w.key where w.key = ?",
            key,
        )
        if wake is None:
            return Gone(key)
        token, holder, due, lapses, definition, queue, status, base, parent, parent_ref, changed_at, lane = wake
        self.now = self._ticker.seen(changed_at)
        if holder is not None and holder != me and due > self.now:
            return Busy(key, holder)
        if lane is not None and self._first(_FIRST_IN_LANE, lane)[0] != key:
            self._changed("update wakes set due = null, hints = 0 where key = ?", key)
            self._changed("update messages set due = ? where key = ?", NEVER, key)
            return Queued(key)
        clean = holder is None and lapses == 0
        after = known[0] if known is not None and known[1] == token else base - 1
        token += 1
        if holder is not None and holder != me:
            lapses += 1
        if not clean:
            lapses = self._barrier(key, me, token, lapses)
        self._changed(
            "update wakes set holder = ?, token = ?, due = ?, lapses = ?, hints = 0 where key = ?",
            me,
            token,
            self.now + lease,
            lapses,
            key,
        )
        rows, mail = _rows(self._db, key, after), _unread(self._db, key)
        return Held(key, token, definition, queue, lapses, status, rows, mail, parent, parent_ref, lane is not None)

    def _barrier(self, key: str, me: str, token: int, lapses: int) -> int:
        """Occupy the next version of a former holder, who may still be writing; answers the lapses that count."""
        newest = self._first(
            f"select type % 1000 from events where key = ? and type % 1000 in ({_LANDMARKS})"
            " order by version desc limit 1",
            key,
        )
        if newest is not None and newest[0] in PROGRESS:
            lapses = min(lapses, 1)
        event = TakenOver(holder=me, lapses=lapses)
        self._append(key, [events.row(event, self._version(key) + 1, at=self.now, fence=token)])
        return lapses

    def renew(self, key: str, token: int, lease: int) -> bool:
        due = self.now + lease
        return self._changed(
            "update wakes set due = ? where key = ? and token = ? and holder is not null", due, key, token
        )

    def release(self, key: str, token: int) -> bool:
        return self._changed(
            "update wakes set holder = null, due = ? where key = ? and token = ? and holder is not null",
            self.now,
            key,
            token,
        )

    # Commit

    def commit(self, group: Sequence[Commit], due: int) -> list[Outcome]:
        """Steps go in with one statement; only if that meets an occupied version is each of them looked at."""
        steps = [is_step(commit) for commit in group]
        inserted = self._insert_steps([commit for commit, step in zip(group, steps, strict=True) if step])
        return [
            "ok" if step and inserted else self._commit(commit, due) for commit, step in zip(group, steps, strict=True)
        ]

    def _insert_steps(self, group: Sequence[Commit]) -> bool:
        try:
            self._db.executemany(_INSERT_EVENT, [(c.key, *astuple(row)) for c in group for row in c.rows])
        except sqlite3.IntegrityError:
            # Begin again: nothing was decided yet, and a savepoint would copy every page that the usual case touches.
            self._db.execute("rollback")
            self._db.execute("begin immediate")
            return False
        return True

    def _commit(self, commit: Commit, due: int) -> Outcome:
        """Decide first, then write: what is refused leaves no trace."""
        if commit.fired is not None and commit.fired > self.now:
            return "early"
        version, token, mailbox = self._first(_STANDING, *(commit.key,) * 3)
        if commit.rows and commit.rows[0].version != version + 1:
            return "stale"
        if commit.settle is not None and commit.token != token:
            return "stale"
        if not self._folds_once(commit):
            return "stale"
        mail_waits = mailbox and commit.settle is not None and self._mail_waits(commit)
        if mail_waits and isinstance(commit.settle, End):
            return "mail"
        self._append(commit.key, commit.rows)
        for id in commit.done:
            self._changed("delete from messages where key = ? and id = ?", commit.key, id)
        self._move_base(commit)
        match commit.settle:
            case Park() as park:
                self._park(commit.key, park, refused=mail_waits)
            case End() as end:
                self._end(commit.key, end)
            case None if commit.status is not None:
                self._changed("update heads set status = ? where key = ?", commit.status, commit.key)
            case None:
                pass
        for child in commit.children:
            self.start(child, due)
        for mail in commit.mail:
            self.send(mail, due)
        return "mail" if mail_waits else "ok"

    def _folds_once(self, commit: Commit) -> bool:
        """Whether every mail that is done is still there and no message enters the log a second time."""
        ids = [row.message_id for row in commit.rows if row.message_id is not None]
        there = "select 1 from messages where key = ? and id = ?"
        return (
            all(self._first(there, commit.key, id) is not None for id in commit.done)
            and all(self._folded_at(commit.key, id) is None for id in ids)
            and len(ids) == len(set(ids))
        )

    def _mail_waits(self, commit: Commit) -> bool:
        """Whether mail is left that this commit does not fold."""
        folds = {row.message_id for row in commit.rows}.union(commit.done)
        return any(mail.id not in folds for mail in _unread(self._db, commit.key))

    def _version(self, key: str) -> int:
        version: int = self._first("select coalesce(max(version), 0) from events where key = ?", key)[0]
        return version

    def _append(self, key: str, rows: Sequence[Row]) -> None:
        self._db.executemany(_INSERT_EVENT, [(key, *astuple(row)) for row in rows])

    def _move_base(self, commit: Commit) -> None:
        """Replay begins at the newest checkpoint; it never moves back."""
        base = max((row.version for row in commit.rows if row.type % 1000 == RESTARTED), default=0)
        if commit.settle is not None:
            base = max(base, commit.settle.base)
        if base > 1:
            self._changed("update heads set base = ? where key = ? and base < ?", base, commit.key, base)

    def _park(self, key: str, park: Park, refused: bool) -> None:
        self._changed(
            "update heads set status = ?, state = coalesce(?, state), waits = ?, changed_at = ? where key = ?",
            park.status,
            park.state,
            park.waits,
            self.now,
            key,
        )
        if not refused:
            self._changed("update wakes set holder = null, lapses = 0, due = ? where key = ?", park.due, key)

    def _end(self, key: str, end: End) -> None:
        self._changed(
            "update heads set status = ?, state = coalesce(?, state), waits = null, result = ?, changed_at = ?"
            " where key = ?",
            end.status,
            end.state,
            end.result,
            self.now,
            key,
        )
        (lane,) = self._first("delete from wakes where key = ? returning lane", key)
        self._changed("delete from messages where key = ?", key)
        if lane is not None and (following := self._first(_FIRST_IN_LANE, lane)) is not None:
            self._changed("update wakes set due = ? where key = ? and holder is null", self.now, following[0])

    # What is due

    def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        """The earliest and the latest of both kinds, each execution once, the tenants in turn."""
        window = limit * WINDOW
        due = [(at, key, "wake") for at, key in self._due_wakes(queues, definitions, window)]
        due += [(at, key, "mail") for at, key in self._due_mail(queues, definitions, window)]
        kinds: dict[str, set[str]] = {}
        for _, key, kind in sorted(due):
            kinds.setdefault(key, set()).add(kind)
        chosen = share_out(kinds, limit)
        for key in chosen:
            if "wake" in kinds[key]:
                self._hint_wake(key, grace)
            if "mail" in kinds[key]:
                again = "update messages set due = ? where key = ? and due <= ?"
                self._changed(again, self.now + grace, key, self.now)
        live = "select key, queue, iif(due > ?, holder, null) from wakes where key = ?"
        return [Due(*self._first(live, self.now, key)) for key in chosen]

    def _due_wakes(self, queues: Sequence[str], definitions: Sequence[str], limit: int) -> Iterator[tuple[int, str]]:
        # One look into the index per pair stays short however many rows of others are due.
        sql = "select due, key from wakes where queue = ? and definition = ? and due <= ? order by due"
        for queue in queues:
            for definition in definitions:
                yield from self._both_ends(sql, (queue, definition, self.now), limit)

    def _both_ends(self, sql: str, values: tuple[Any, ...], limit: int) -> list[Any]:
        """So many rows from the front and, if there may be more, from the back: whoever came last to a flood."""
        front = self._db.execute(f"{sql} limit ?", (*values, limit)).fetchall()
        if len(front) < limit:
            return front
        return front + self._db.execute(f"{sql} desc limit ?", (*values, limit)).fetchall()

    def _due_mail(self, queues: Sequence[str], definitions: Sequence[str], limit: int) -> Iterator[tuple[int, str]]:
        sql = (
            "select m.due, m.key, w.key is null from messages m left join wakes w on w.key = m.key"
            " where m.queue = ? and m.due <= ? and (w.key is null or w.definition in (select value from json_each(?)))"
            " order by m.due"
        )
        for queue in queues:
            for due, key, orphan in self._both_ends(sql, (queue, self.now, json.dumps(definitions)), limit):
                if orphan:
                    # Nobody will ever fold it: its execution has ended.
                    self._changed("delete from messages where key = ?", key)
                else:
                    yield due, key

    def _hint_wake(self, key: str, grace: int) -> None:
        """Free a lapsed hold and count it; hint again later and later while nobody answers."""
        self._changed(
            "update wakes set lapses = lapses + (holder is not null), token = token + (holder is not null),"
            " holder = null, due = ? + ? * (1 << min(hints, ?)), hints = hints + 1 where key = ?",
            self.now,
            grace,
            DOUBLINGS,
            key,
        )


_LAST_IN_LANE = "select coalesce(max(born), 0) from wakes where lane = ?"
_FIRST_IN_LANE = "select key from wakes where lane = ? order by born, key limit 1"
_LANDMARKS = ", ".join(str(number) for number in sorted({*PROGRESS, TAKEN_OVER}))
_INSERT_EVENT = "insert into events (key, version, type, data, at, fence, message_id) values (?, ?, ?, ?, ?, ?, ?)"

#: What decides over a commit: the version of the log, the token of a hold that stands, whether there is mail.
_STANDING = """
select (select coalesce(max(version), 0) from events where key = ?),
  (select token from wakes where key = ? and holder is not null),
  exists (select 1 from messages where key = ?)
"""


# Reading


def _rows(db: sqlite3.Connection, key: str, after: int, until: int | None = None, limit: int = -1) -> list[Row]:
    last = 2**63 - 1 if until is None else until
    return list(
        starmap(
            Row,
            db.execute(
                "select version, type, data, at, fence, message_id from events"
                " where key = ? and version > ? and version <= ? order by version limit ?",
                (key, after, last, limit),
            ),
        )
    )


def _unread(db: sqlite3.Connection, key: str) -> list[Mail]:
    """The mailbox in order, without what is in the log."""
    return list(
        starmap(
            Mail,
            db.execute(
                "select m.key, m.id, m.data, m.sha from messages m where m.key = ? and not exists"
                " (select 1 from events e where e.key = m.key and e.message_id = m.id) order by m.seq",
                (key,),
            ),
        )
    )


def _next_due(db: sqlite3.Connection, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
    wake = "select due from wakes where queue = ? and definition = ? and due is not null order by due limit 1"
    mail = (
        "select m.due from messages m cross join wakes w on w.key = m.key"
        " where m.queue = ? and w.definition in (select value from json_each(?)) order by m.due limit 1"
    )
    found = [db.execute(wake, (queue, definition)).fetchone() for queue in queues for definition in definitions]
    found += [db.execute(mail, (queue, json.dumps(definitions))).fetchone() for queue in queues]
    return min((row[0] for row in found if row is not None), default=None)


#: Counted up to a limit: what is needed is whether there is much to do, not how much exactly.
_BACKLOG = """
select queue, count(*), min(due) from (
  select queue, due from wakes where due <= :now and queue <> ''
  union all
  select m.queue, m.due from messages m where m.due <= :now
  limit 10000
) group by queue order by queue"""

_HEAD = """
select h.key, h.workflow, h.definition, h.queue, h.status,
  (select max(version) from events e where e.key = h.key), h.sha, h.parent, h.parent_ref, h.state, h.waits, h.result,
  h.started_at, h.changed_at, iif(w.due > :now, w.holder, null), w.due, coalesce(w.lapses, 0),
  (select count(*) from messages m where m.key = h.key), substr(w.lane, length(h.tenant) + 2),
  coalesce(w.token, 0)
from heads h left join wakes w on w.key = h.key
where """


def _heads(db: sqlite3.Connection, condition: str, values: Mapping[str, object]) -> list[Head]:
    return list(starmap(Head, db.execute(_HEAD + condition, values)))


def _condition(query: Query, now: int) -> tuple[str, dict[str, object]]:
    """The where clause of a search and its values; only fixed text enters the statement."""
    values: dict[str, object] = {"now": now, "tenant": query.tenant, "limit": query.limit}
    parts = ["h.tenant = :tenant" if query.tenant is not None else "true"]
    if query.status in ("running", "waiting"):
        held = "(w.holder is not null and w.due > :now)"
        parts.append(f"h.status = 'open' and {held if query.status == 'running' else 'not ' + held}")
    elif query.status is not None:
        parts.append("h.status = :status")
        values["status"] = query.status
    if query.cursor is not None:
        parts.append("(h.started_at, h.key) < (:cursor_at, :cursor_key)")
        values["cursor_at"], values["cursor_key"] = query.cursor
    if not query.inner:
        parts.append("instr(h.workflow, ':') = 0")
    for name, value, part in (
        ("workflow", query.workflow, "h.workflow = :workflow"),
        ("parent", query.parent, "h.parent = :parent"),
        ("after", query.after, "h.started_at >= :after"),
        ("before", query.before, "h.started_at < :before"),
    ):
        if value is not None:
            parts.append(part)
            values[name] = value
    for number, (field, wanted) in enumerate(query.fields.items()):
        parts.append(_field(f"field{number}", wanted))
        values[f"field{number}"] = field
        values[f"field{number}_value"] = wanted
    return " and ".join(parts) + " order by h.started_at desc, h.key desc limit :limit", values


def _field(name: str, wanted: str | int | float | bool | None) -> str:
    """A published field equals a value; types of JSON are kept apart, so True is not 1."""
    match wanted:
        case None | True | False:
            fits = f"j.type = '{json.dumps(wanted)}'"
        case str():
            fits = f"j.type = 'text' and j.value = :{name}_value"
        case _:
            fits = f"j.type in ('integer', 'real') and j.value = :{name}_value"
    state = "cast(h.state as text)"
    return f"json_valid({state}) and exists (select 1 from json_each({state}) j where j.key = :{name} and {fits})"


# Opening


def _prepare(db: sqlite3.Connection, path: str, patience: float, synchronous: str) -> None:
    mode = _write_ahead(db, patience)
    if mode != "wal":
        raise StoreError(
            f"{path}: the journal mode is {mode!r} and cannot be set to 'wal'; put the file on a local disk"
            " (network file systems have no shared memory) and close every other program that uses it"
        )
    db.execute(f"pragma synchronous = {synchronous}")
    db.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
    db.execute("pragma journal_size_limit = 67108864")
    db.execute("pragma cache_size = -65536")


def _write_ahead(db: sqlite3.Connection, patience: float) -> str:
    """Switch to WAL; when many open a new file at once SQLite answers busy without waiting, so wait here."""
    deadline = time.monotonic() + patience
    while True:
        mode: str = db.execute("pragma journal_mode").fetchone()[0]
        if mode == "wal":
            return mode
        try:
            return str(db.execute("pragma journal_mode = wal").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _migrate(db: sqlite3.Connection, path: str) -> None:
    migrations = _migrations()
    newest = max(migrations)
    if _schema(db, path, newest) == newest:
        return
    db.execute("begin immediate")
    try:
        # Another process may have migrated while this one waited for the lock.
        for number in range(_schema(db, path, newest) + 1, newest + 1):
            for statement in _statements(migrations[number]):
                db.execute(statement)
        db.execute(f"pragma user_version = {newest}")
        db.execute("commit")
    except BaseException:
        _roll_back(db)
        raise


def _schema(db: sqlite3.Connection, path: str, newest: int) -> int:
    there: int = db.execute("pragma user_version").fetchone()[0]
    if there > newest:
        raise StoreOutdated(
            f"{path}: its schema has number {there}, this release of Perdure knows {newest} at most;"
            " install the release that wrote it, or a newer one"
        )
    return there


def _migrations() -> dict[int, str]:
    folder = files("perdure.stores") / "sqlite_migrations"
    return {int(file.name[:4]): file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".sql")}


def _statements(script: str) -> Iterator[str]:
    """One by one: executescript would commit the transaction that all of them share."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# Errors


def _roll_back(db: sqlite3.Connection) -> None:
    # Some errors (a full disk among them) have rolled back already.
    if db.in_transaction:
        with suppress(sqlite3.Error):
            db.execute("rollback")


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or type(error).__name__


_WRITING = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMOPEN,
    }
)


def _meaning(error: sqlite3.Error) -> tuple[type[StoreError], str]:
    """What an error of SQLite is to the caller, and what to do about it."""
    code: int = getattr(error, "sqlite_errorcode", None) or 0
    if code in _WRITING:
        return StoreFull, "the disk did not take the write; nothing was written; make room, then try again"
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable, (
                "another process kept the write lock for longer than busy_timeout; nothing was written; try again"
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull, "no space is left; nothing was written; make room, then try again"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreReadOnly, (
                "the file cannot be written; give this process write access to the file and to its directory"
            )
        case sqlite3.SQLITE_NOTADB:
            return StoreError, "this file is not a SQLite database; name another file, or move this one away"
        case sqlite3.SQLITE_CORRUPT:
            return StoreError, "the database is damaged; stop all workers and restore it from a backup"
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError, "the file cannot be opened; check that its directory exists and may be written"
        case _:
            return StoreError, "SQLite refused; nothing was written"
