"""The verbs that write. The write lock is ours, so a check is a plain read and what it found stays true.

Rules kept here: a commit is decided first and written then, so what is refused leaves no trace; each execution of a
group is answered for itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple

from perdure.core import events
from perdure.core.events import PROGRESS, TakenOver
from perdure.core.records import (
    ENDED,
    Busy,
    Commit,
    Due,
    End,
    Gone,
    Held,
    HoldAnswer,
    Mail,
    Outcome,
    Park,
    Queued,
    Row,
    Sent,
    Start,
    Started,
    labels_of,
    lane_of,
    served_as,
    tenant_of,
    topics_of,
)
from perdure.stores.sqlite.claiming import Claiming, Turns
from perdure.stores.sqlite.reading import rows_of, unread
from perdure.stores.ticker import NEVER, RESTARTED, TAKEN_OVER, Ticker, is_step

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


class Transaction:
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
                "insert into wakes (key, queue, definition, due, token, lane, listens, born)"
                " values (?, ?, ?, ?, ?, ?, ?, ?)",
                start.key,
                start.queue,
                served_as(start.definition),
                due,
                token,
                lane := lane_of(start),
                bool(start.topics),
                token if lane is None else max(token, self._first(_LAST_IN_LANE, lane)[0] + 1),
            )
            if start.topics:
                rows = [(topic, start.key) for topic in topics_of(start)]
                self._db.executemany("insert into topics (topic, key) values (?, ?)", rows)
        if labels := labels_of(start.key, start.correlation, start.tags):
            found_by = [(label, self.now, start.key) for label in labels]
            self._db.executemany("insert into labels (label, started_at, key) values (?, ?, ?)", found_by)
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
        rows, mail = rows_of(self._db, key, after), unread(self._db, key)
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
        return any(mail.id not in folds for mail in unread(self._db, commit.key))

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
        lane, listens = self._first("delete from wakes where key = ? returning lane, listens", key)
        if listens:
            self._changed("delete from topics where key = ?", key)
        self._changed("delete from messages where key = ?", key)
        if lane is not None and (following := self._first(_FIRST_IN_LANE, lane)) is not None:
            self._changed("update wakes set due = ? where key = ? and holder is null", self.now, following[0])

    # What is due

    def claim(
        self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int, turns: Turns
    ) -> list[Due]:
        return Claiming(self._db, self.now, turns, limit).claim(queues, definitions, grace)
