"""How records travel to the scripts and back, and how rows and letters are kept.

Rules kept here: a script is given plain lists, in the order in which it takes them apart, and bytes beside them, of
which the lists say only the place; it never looks into a row or a letter, so whatever it has to know of them is told. A
row is kept as `TYPE AT FENCE LENGTH ` with the message's id of that length and the data behind it (`-` for no message),
a letter as `SEQ LENGTH ` with its sha and the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.core import events
from perdure.core.events import PROGRESS, TakenOver
from perdure.core.records import (
    Busy,
    Commit,
    End,
    Gone,
    Head,
    Held,
    HoldAnswer,
    Mail,
    Park,
    Queued,
    Row,
    Sent,
    Start,
    id_of,
    labelled,
    labels_of,
    lane_of,
    served_as,
    topics_of,
)
from perdure.errors import InvalidValue
from perdure.stores.ticker import RESTARTED, TAKEN_OVER

#: What a server takes as one value unless it is set otherwise (proto-max-bulk-len), and a little less.
LARGEST = 500_000_000
#: Stands where the script puts the number of lapses.
_LAPSES = 987_654_321

_encode = msgspec.msgpack.Encoder().encode


class Words:
    """What a script is given: values in lists, and bytes that it takes as they are."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []

    def put(self, data: bytes | None) -> int | None:
        """Where the script finds these bytes: the first three of its arguments are others."""
        if data is None:
            return None
        self.blobs.append(data)
        return len(self.blobs) + 3

    def put_all(self, many: Iterable[bytes]) -> tuple[int, int]:
        """The first and the last place; the last is below the first where there are none."""
        begin = len(self.blobs) + 4
        self.blobs.extend(many)
        return begin, len(self.blobs) + 3

    def packed(self, *values: object) -> bytes:
        """The lists; refused here if the server would hang up at the sight of them, or of the bytes."""
        try:
            text = _encode(values)
        except (UnicodeError, OverflowError) as error:
            raise InvalidValue(f"a value cannot be stored ({error}); nothing was written") from error
        largest = max(map(len, (text, *self.blobs)))
        if largest > LARGEST:
            raise InvalidValue(
                f"{largest} bytes are more than Redis takes as one value ({LARGEST}); nothing was written; keep large"
                " values elsewhere and pass references"
            )
        return text


# Rows


def row_text(row: Row) -> bytes:
    id = row.message_id
    if id is None:
        return b"%d %d %d - %b" % (row.type, row.at, row.fence, row.data)
    name = id.encode()
    return b"%d %d %d %d %b%b" % (row.type, row.at, row.fence, len(name), name, row.data)


def read_row(text: bytes, version: int) -> Row:
    """
    >>> read_row(b"9 5 0 2 m1{}", 3)
    Row(version=3, type=9, data=b'{}', at=5, fence=0, message_id='m1')
    """
    type, at, fence, length, rest = text.split(b" ", 4)
    if length == b"-":
        return Row(version, int(type), rest, int(at), int(fence))
    end = int(length)
    return Row(version, int(type), rest[end:], int(at), int(fence), rest[:end].decode())


def read_rows(texts: Iterable[bytes], after: int) -> list[Row]:
    return [read_row(text, after + number) for number, text in enumerate(texts, 1)]


def _told(rows: Sequence[Row], words: Words) -> tuple[tuple[int, int], list[tuple[str, int]], str | None]:
    """Where the rows are, the messages among them, and whether they are a landmark: progress, or a new holder."""
    ids = [(row.message_id, row.version) for row in rows if row.message_id is not None]
    landmark = None
    for row in rows:
        number = row.type % 1000
        if number in PROGRESS or number == TAKEN_OVER:
            landmark = "1" if number in PROGRESS else "0"
    return words.put_all(map(row_text, rows)), ids, landmark


def barrier(me: str) -> tuple[int, str, str]:
    """The row that takes an execution over, but for the number of lapses, which the script knows."""
    type, data = events.write(TakenOver(holder=me, lapses=_LAPSES))
    before, after = data.decode().rsplit(str(_LAPSES), 1)
    return type, before, after


# Starts, mail and commits


def start_words(start: Start, words: Words) -> tuple[object, ...]:
    rows, ids, landmark = _told(start.rows, words)
    labels = labels_of(start.key, start.correlation, start.tags)
    return (
        start.key,
        start.workflow,
        start.definition,
        served_as(start.definition),
        start.queue,
        start.status,
        start.sha,
        rows,
        ids,
        landmark,
        start.base,
        start.parent,
        start.parent_ref,
        lane_of(start),
        words.put(start.state),
        words.put(start.result),
        max(row.fence for row in start.rows),
        topics_of(start),
        labels,
        words.put(msgspec.json.encode(labels) if labels else None),
    )


def mail_words(mail: Mail, words: Words) -> tuple[object, ...]:
    sha = mail.sha.encode()
    return mail.key, mail.id, mail.sha, words.put(b"%d %b%b" % (len(sha), sha, mail.data))


def commit_words(commit: Commit, words: Words) -> tuple[object, ...]:
    rows, ids, landmark = _told(commit.rows, words)
    base = max((row.version for row in commit.rows if row.type % 1000 == RESTARTED), default=0)
    kind: str | None = None
    parts: tuple[object, ...] = ()
    match commit.settle:
        case Park(status, due, state, waits, newest):
            kind, parts = "park", (status, due, words.put(state), words.put(waits), None, newest)
        case End(status, result, state, newest):
            kind, parts = "end", (status, None, words.put(state), None, words.put(result), newest)
        case None:
            pass
    return (
        commit.key,
        commit.token,
        commit.rows[0].version if commit.rows else 0,
        rows,
        ids,
        landmark,
        base,
        kind,
        parts,
        commit.status,
        commit.fired,
        list(commit.done),
        [start_words(child, words) for child in commit.children],
        [mail_words(one, words) for one in commit.mail],
    )


# Answers


def read_sent(answer: Sequence[Any]) -> Sent:
    if answer[0] == b"missing":
        return Sent("missing")
    word, queue, holder, version = answer
    return Sent(word.decode(), queue.decode(), _text(holder), version)


def read_box(key: str, pairs: Sequence[bytes]) -> list[Mail]:
    """A mailbox in the order in which the mail came."""
    letters = [(int(text.partition(b" ")[0]), id, text) for id, text in zip(pairs[::2], pairs[1::2], strict=True)]
    return [read_letter(key, id.decode(), text) for _, id, text in sorted(letters)]


def read_letter(key: str, id: str, text: bytes) -> Mail:
    _, length, rest = text.split(b" ", 2)
    end = int(length)
    return Mail(key, id, rest[end:], rest[:end].decode())


def read_hold(key: str, answer: Sequence[Any]) -> HoldAnswer:
    match answer[0]:
        case b"gone":
            return Gone(key)
        case b"busy":
            return Busy(key, answer[1].decode())
        case b"queued":
            return Queued(key)
        case _:
            return _held(key, answer)


def _held(key: str, answer: Sequence[Any]) -> Held:
    _, token, definition, queue, lapses, status, parent, ref, lane, after, rows, box = answer
    return Held(
        key,
        int(token),
        definition.decode(),
        queue.decode(),
        lapses,
        status.decode(),
        read_rows(rows, after),
        read_box(key, box),
        _text(parent),
        _number(ref),
        bool(lane),
    )


def read_head(key: str, pairs: Sequence[bytes], version: int, mail: int, now: int) -> Head:
    x: Mapping[bytes, bytes] = dict(zip(pairs[::2], pairs[1::2], strict=True))
    due, lane = _number(x.get(b"due")), _text(x.get(b"lane"))
    head = Head(
        key=key,
        workflow=x[b"w"].decode(),
        definition=x[b"d"].decode(),
        queue=x[b"q"].decode(),
        status=x[b"st"].decode(),  # type: ignore[arg-type]
        version=version,
        sha=x[b"sha"].decode(),
        parent=_text(x.get(b"p")),
        parent_ref=_number(x.get(b"pr")),
        state=x.get(b"state"),
        waits=x.get(b"waits"),
        result=x.get(b"result"),
        started_at=int(x[b"at"]),
        changed_at=int(x[b"ch"]),
        holder=_text(x.get(b"hold")) if due is not None and due > now else None,
        due=due,
        lapses=int(x.get(b"lap", 0)),
        mail=mail,
        lane=None if lane is None else id_of(lane),
        token=int(x.get(b"tok", 0)),
        base=int(x[b"b"]),
    )
    return labelled(head, msgspec.json.decode(x[b"labels"])) if b"labels" in x else head


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)
