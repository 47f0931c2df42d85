"""Documents and the values that they stand for.

A document of the log holds the rows of one commit: `versions` and `rows` side by side. Where messages entered the log
with it, `ids` names them and `places` their versions. A commit that does not fit into one document becomes several,
which only a transaction can write together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perdure.core.records import (
    Head,
    Mail,
    Row,
    Start,
    id_of,
    labels_of,
    lane_of,
    served_as,
    tenant_of,
    topics_of,
)
from perdure.errors import InvalidValue
from perdure.stores.mongodb.layout import Document

#: A document has at most 16 MB; what rows have beside their data is short.
FULL = 12_000_000
#: The data of one row, and what a head or a message may hold.
LARGEST = 15_000_000
#: What a row has beside its data, in the most.
_BESIDE = 100


def log_documents(key: str, rows: Sequence[Row]) -> list[Document]:
    """The documents of a commit: nearly always one."""
    return [_log_document(key, part) for part in _parts(key, rows)]


def _parts(key: str, rows: Sequence[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    size = 0
    for row in rows:
        fits(key, row.data)
        size += len(row.data) + _BESIDE + len(row.message_id or "")
        if part and size > FULL:
            yield part
            part, size = [], len(row.data)
        part.append(row)
    if part:
        yield part


def _log_document(key: str, rows: Sequence[Row]) -> Document:
    made: Document = {
        "key": key,
        "versions": [row.version for row in rows],
        "rows": [[row.type, row.data, row.at, row.fence, row.message_id] for row in rows],
    }
    if folded := [row for row in rows if row.message_id is not None]:
        made["ids"] = [row.message_id for row in folded]
        made["places"] = [row.version for row in folded]
    return made


def fits(key: str, *values: bytes | None) -> None:
    size = sum(len(value) for value in values if value is not None)
    if size > LARGEST:
        raise InvalidValue(
            f"{key}: {size} bytes cannot be stored together, a document of MongoDB has 16 MB; nothing was written; keep"
            " large values elsewhere and pass on where they are"
        )


def rows_of(documents: Iterable[Mapping[str, Any]], after: int = 0) -> list[Row]:
    """The rows behind a version, in order."""
    rows = [
        Row(version, type, data, at, fence, id)
        for document in documents
        for version, (type, data, at, fence, id) in zip(document["versions"], document["rows"], strict=True)
        if version > after
    ]
    rows.sort(key=_version)
    return rows


def _version(row: Row) -> int:
    return row.version


def head_document(start: Start, now: int) -> Document:
    fits(start.key, start.state, start.result)
    made: Document = {
        "_id": start.key,
        "tenant": tenant_of(start.key),
        "workflow": start.workflow,
        "inner": ":" in start.workflow,
        "definition": start.definition,
        "queue": start.queue,
        "status": start.status,
        "sha": start.sha,
        "parent": start.parent,
        "parent_ref": start.parent_ref,
        "base": start.base,
        "state": start.state,
        "waits": None,
        "result": start.result,
        "started_at": now,
        "changed_at": now,
        "correlation": start.correlation,
        "tags": list(start.tags),
    }
    if labels := labels_of(start.key, start.correlation, start.tags):
        made["labels"] = list(labels)
    return made


def wake_document(start: Start, now: int, due: int) -> Document:
    # The first token is the time, so it exceeds every token of an execution that had this key long ago, and every
    # fence that a fork or an import brings along.
    made: Document = {
        "_id": start.key,
        "tenant": tenant_of(start.key),
        "queue": start.queue,
        "definition": served_as(start.definition),
        "due": due,
        "token": max([now, *(row.fence for row in start.rows)]),
        "holder": None,
        "held": False,
        "lapses": 0,
        "hints": 0,
        "turn": 0,
    }
    if (lane := lane_of(start)) is not None:
        made["lane"] = lane
    if start.topics:
        made["topics"] = list(topics_of(start))
    return made


def box_document(start: Start) -> Document:
    return {"_id": start.key, "queue": start.queue, "definition": served_as(start.definition), "place": 0}


def mail_id(key: str, id: str) -> Document:
    return {"key": key, "id": id}


def mail_document(mail: Mail, box: Document, due: int, place: int) -> Document:
    fits(mail.key, mail.data)
    return {
        "_id": mail_id(mail.key, mail.id),
        "key": mail.key,
        "tenant": tenant_of(mail.key),
        "queue": box["queue"],
        "definition": box["definition"],
        "due": due,
        "place": place,
        "sha": mail.sha,
        "data": mail.data,
    }


def read_mail(found: Mapping[str, Any]) -> Mail:
    return Mail(found["key"], found["_id"]["id"], found["data"], found["sha"])


def live_holder(wake: Mapping[str, Any] | None, now: int) -> str | None:
    """Who holds it, if the lease runs."""
    if wake is None or wake["holder"] is None or wake["due"] <= now:
        return None
    holder: str = wake["holder"]
    return holder


def read_head(found: Mapping[str, Any], now: int) -> Head:
    """A head that was joined with its wake, its newest rows and the number of its mail."""
    wake = found["wake"][0] if found["wake"] else None
    return Head(
        key=found["_id"],
        workflow=found["workflow"],
        definition=found["definition"],
        queue=found["queue"],
        status=found["status"],
        version=found["newest"][0]["versions"][-1],
        sha=found["sha"],
        parent=found["parent"],
        parent_ref=found["parent_ref"],
        state=found["state"],
        waits=found["waits"],
        result=found["result"],
        started_at=found["started_at"],
        changed_at=found["changed_at"],
        holder=live_holder(wake, now),
        due=wake["due"] if wake else None,
        lapses=wake["lapses"] if wake else 0,
        mail=found["mail"][0]["count"] if found["mail"] else 0,
        lane=id_of(wake["lane"]) if wake and "lane" in wake else None,
        token=wake["token"] if wake else 0,
        base=found["base"],
        correlation=found["correlation"],
        tags=tuple(found["tags"]),
    )
