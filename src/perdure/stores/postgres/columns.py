"""From records to the arrays that the functions in the database take: one list per parameter, in their order.

Everything is sorted by key here, because the database locks what it writes in the order in which it comes. Numbers go
as the text of an array: the driver looks at each element of a list for quite some time, and this is most of what it has
to do for a commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from perdure.core.records import Commit, End, Mail, Park, Row, Start, labels_of, lane_of, tenant_of, topics_of
from perdure.stores.ticker import RESTARTED

Column: TypeAlias = list[Any] | str
Columns: TypeAlias = Sequence[Column]
_Lists: TypeAlias = list[list[Any]]
#: Where the columns of rows have numbers, and where those of the heads of starts have them.
ROWS = ("", "bigint[]", "smallint[]", "", "bigint[]", "bigint[]", "")
_NUMBER = "bigint[]"
HEADS = ("", "", "", "", "", "", "", "", _NUMBER, "", _NUMBER, "", "", _NUMBER, _NUMBER)
#: The same of what else is in a commit: parks, ends, fired timers, mail that is done, statuses, bases.
SETTLED = (
    *("", _NUMBER, "int[]", "", _NUMBER, "", ""),
    *("", _NUMBER, "int[]", "", "", ""),
    *("", _NUMBER),
    *("", ""),
    *("", ""),
    *("", _NUMBER),
)


def numbers(column: Sequence[int | None]) -> str:
    """The text of an array.

    >>> numbers([1, None, -3])
    '{1, NULL, -3}'
    """
    return f"{{{str(list(column))[1:-1].replace('None', 'NULL')}}}"


def _sent(columns: _Lists, types: Sequence[str]) -> Columns:
    return [numbers(column) if type else column for column, type in zip(columns, types, strict=True)]


def rows_columns(rows: Iterable[tuple[str, Row]]) -> Columns:
    """Keys, versions, types, datas, ats, fences, message ids."""
    columns: _Lists = [[], [], [], [], [], [], []]
    keys, versions, types, datas, ats, fences, ids = (column.append for column in columns)
    for key, row in rows:
        keys(key)
        versions(row.version)
        types(row.type)
        datas(row.data)
        ats(row.at)
        fences(row.fence)
        ids(row.message_id)
    return _sent(columns, ROWS)


def starts_columns(starts: Iterable[Start]) -> Columns:
    """The parameters of `start` without the grace; the first of several starts of one key counts."""
    once: dict[str, tuple[int, Start]] = {}
    for place, start in enumerate(starts):
        once.setdefault(start.key, (place, start))
    ordered = [once[key] for key in sorted(once)]
    heads = [
        (
            start.key,
            tenant_of(start.key),
            start.workflow,
            start.definition,
            start.queue,
            start.status,
            start.sha,
            start.parent,
            start.parent_ref,
            lane_of(start),
            start.base,
            start.state,
            start.result,
            max(row.fence for row in start.rows),
            place,
        )
        for place, start in ordered
    ]
    columns = [list(column) for column in zip(*heads, strict=True)] if heads else [[] for _ in HEADS]
    rows = rows_columns((start.key, row) for _, start in ordered for row in start.rows)
    return [*_sent(columns, HEADS), *rows]


def topics_columns(starts: Iterable[Start]) -> Columns:
    """The parameters of `listen`: keys, shas, topics."""
    columns: _Lists = [[], [], []]
    for start in sorted(starts, key=lambda one: one.key):
        for topic in topics_of(start):
            _append(columns, start.key, start.sha, topic)
    return columns


def labels_columns(starts: Iterable[Start]) -> Columns:
    """What comes after the parameters of starts of which some have labels: keys, shas, labels. Nothing for others."""
    labelled = [start for start in starts if start.correlation is not None or start.tags]
    if not labelled:
        return []
    columns: _Lists = [[], [], []]
    for start in sorted(labelled, key=lambda one: one.key):
        for label in labels_of(start.key, start.correlation, start.tags):
            _append(columns, start.key, start.sha, label)
    return columns


def mail_columns(mail: Iterable[Mail]) -> Columns:
    columns: _Lists = [[], [], [], []]
    keys, ids, shas, datas = (column.append for column in columns)
    for one in mail:
        keys(one.key)
        ids(one.id)
        shas(one.sha)
        datas(one.data)
    return columns


def group_columns(group: Sequence[Commit]) -> Columns:
    """The parameters of `commit_group`, except whether to be careful."""
    parks: _Lists = [[], [], [], [], [], [], []]
    ends: _Lists = [[], [], [], [], [], []]
    fired: _Lists = [[], []]
    done: _Lists = [[], []]
    statuses: _Lists = [[], []]
    bases: _Lists = [[], []]
    for commit in group:
        match commit.settle:
            case Park() as park:
                values = (
                    commit.key,
                    commit.token,
                    len(commit.done),
                    park.status,
                    park.due,
                    park.state,
                    park.waits,
                )
                _append(parks, *values)
            case End() as end:
                _append(ends, commit.key, commit.token, len(commit.done), end.status, end.state, end.result)
            case None:
                if commit.status is not None:
                    _append(statuses, commit.key, commit.status)
        if commit.fired is not None:
            _append(fired, commit.key, commit.fired)
        for id in commit.done:
            _append(done, commit.key, id)
        base = _base(commit)
        if base > 1:
            _append(bases, commit.key, base)
    rows = rows_columns((commit.key, row) for commit in group for row in commit.rows)
    return [*rows, *_sent(parks + ends + fired + done + statuses + bases, SETTLED)]


def _append(columns: _Lists, *values: Any) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def _base(commit: Commit) -> int:
    """Where a replay begins after this commit, as far as the commit says so."""
    base = commit.settle.base if commit.settle is not None else 1
    for row in commit.rows:
        if row.type % 1000 == RESTARTED:
            base = max(base, row.version)
    return base


def folds_twice(commit: Commit) -> bool:
    """Whether one message enters the log twice in this very commit."""
    ids = Counter(row.message_id for row in commit.rows if row.message_id is not None)
    return any(count > 1 for count in ids.values())
