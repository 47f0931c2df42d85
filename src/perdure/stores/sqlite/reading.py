"""What is read of one execution, and what is due: by the threads of the store and inside its transactions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from itertools import starmap

from perdure.core.records import Backlog, Mail, Row, key_of


def rows_of(db: sqlite3.Connection, key: str, after: int, until: int | None = None, limit: int = -1) -> list[Row]:
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


def unread(db: sqlite3.Connection, key: str) -> list[Mail]:
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


def message(db: sqlite3.Connection, key: str, id: str) -> Mail | Row | None:
    """A message in the log, or else in the mailbox."""
    # The mailbox first: what is taken out of it meanwhile is in the log by then.
    waiting = db.execute("select key, id, data, sha from messages where key = ? and id = ?", (key, id)).fetchone()
    folded = (
        "select version, type, data, at, fence, message_id from events indexed by events_message"
        " where key = ? and message_id = ?"
    )
    if (row := db.execute(folded, (key, id)).fetchone()) is not None:
        return Row(*row)
    return None if waiting is None else Mail(*waiting)


def listening(
    db: sqlite3.Connection, tenant: str, topics: Sequence[str], limit: int, after: str
) -> dict[str, list[str]]:
    one = "select key from topics where topic = ? and key > ? order by key limit ?"
    found = {
        topic: [key for (key,) in db.execute(one, (key_of(tenant, topic), after, limit))]
        for topic in dict.fromkeys(topics)
    }
    return {topic: keys for topic, keys in found.items() if keys}


def extent(db: sqlite3.Connection, tenant: str, workflow: str) -> tuple[int, int]:
    longest = "(select max(version) from events e where e.key = h.key)"
    both = f"select count(*), coalesce(sum({longest}), 0) from heads h where h.tenant = ? and h.workflow = ?"
    count, rows = db.execute(both, (tenant, workflow)).fetchone()
    return count, rows


def next_due(db: sqlite3.Connection, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
    wake = "select due from wakes where queue = ? and definition = ? and due is not null order by due limit 1"
    mail = (
        "select m.due from messages m cross join wakes w on w.key = m.key"
        " where m.queue = ? and w.definition in (select value from json_each(?)) order by m.due limit 1"
    )
    found = [db.execute(wake, (queue, definition)).fetchone() for queue in queues for definition in definitions]
    found += [db.execute(mail, (queue, json.dumps(definitions))).fetchone() for queue in queues]
    return min((row[0] for row in found if row is not None), default=None)


def backlog(db: sqlite3.Connection, now: int) -> list[Backlog]:
    return list(starmap(Backlog, db.execute(_BACKLOG, {"now": now})))


def begun(db: sqlite3.Connection, tenant: str, most: int) -> int:
    few = f"select 1 from heads h join wakes w on w.key = h.key where h.tenant = ? and {_COUNTS} and {_BEGUN} limit ?"
    found: int = db.execute(f"select count(*) from ({few})", (tenant, most)).fetchone()[0]
    return found


def fresh(db: sqlite3.Connection, keys: Sequence[str]) -> set[str]:
    statement = (
        "select h.key from json_each(?) u cross join heads h on h.key = u.value join wakes w on w.key = h.key"
        f" where {_COUNTS} and not {_BEGUN}"
    )
    return {key for (key,) in db.execute(statement, (json.dumps(list(keys)),))}


_COUNTS = "h.status = 'open' and h.parent is null and instr(h.workflow, ':') = 0"
_BEGUN = (
    "(w.holder is not null or h.waits is not null"
    " or exists (select 1 from events e where e.key = h.key and e.version > 1))"
)
#: Counted up to a limit: what is needed is whether there is much to do, not how much exactly.
_BACKLOG = """
select queue, count(*), min(due) from (
  select queue, due from wakes where due <= :now and queue <> ''
  union all
  select m.queue, m.due from messages m where m.due <= :now
  limit 10000
) group by queue order by queue"""
