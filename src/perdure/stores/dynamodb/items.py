"""What is in the table, and how it is written down.

| pk | sk | what |
|---|---|---|
| E#key | head | the execution: its summary, its wake row and hold, how much mail waits |
| E#key | e#VERSION | rows of its log that were written together, by the last version of them; never changed |
| E#key | m#ID | a message: in the mailbox while it has `seq`, in the log once it has `v`; so each is known for ever |
| E#key | o#ID | children and mail of a commit until they are delivered |
| W#…, L#…, P#… | TIME#key | executions of a workflow, a label, a parent, by the time of their start |
| T#topic | key | open executions that listen |
| Q#lane | n, #PLACE | the places of a lane: how many were given out, and the open executions that have one |
| B#ID | number | a value too long for its item, piece by piece |
| R#… | name | what lists there are, so that a claim and a search know where to look; the layout |

Two indexes: `due` by (`dp`, `due`) has wake rows, mail and undelivered commits by the time at which somebody should
look; `state` by (`sp`, `ss`) has executions that have begun or that did not end well. The local index `mail` has
mailboxes in the order of arrival. What is asked of an index is always decided by the item itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from zlib import crc32

import msgspec
from msgspec import Struct, structs

from perdure.core.records import ENDED, Row, Start, lane_of, served_as, tenant_of, topics_of
from perdure.errors import InvalidValue

Value: TypeAlias = Any
Item: TypeAlias = dict[str, Any]
Condition: TypeAlias = "tuple[str, str] | tuple[str, str, Value]"

HEAD = "head"
DUE, STATE, MAIL = "due", "state", "mail"
#: Of an item at most 400 KB are stored, names and all. Values longer than these are kept beside it: little of a head,
#: which is written often and paid for by its size.
IN_HEAD, IN_LETTER, IN_ROWS = 8_000, 24_000, 250_000
#: A sort key has 1,024 bytes, with the time of a start in front of a key.
KEY_BYTES, ID_BYTES = 900, 1000

_encode = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[tuple[int, int, bytes, int, int, str | None]]).decode


def written(value: Value) -> dict[str, Any]:
    """A value as DynamoDB has it."""
    match value:
        case bool():
            return {"BOOL": value}
        case int():
            return {"N": str(value)}
        case str():
            return {"S": value}
        case bytes():
            return {"B": value}
        case list() | tuple():
            return {"L": [written(one) for one in value]}
        case _:
            raise TypeError(f"{type(value).__name__} is never stored")


def plain(item: Mapping[str, Any]) -> Item:
    """An item as Python has it."""
    return {name: _plain(value) for name, value in item.items()}


def _plain(value: Mapping[str, Any]) -> Value:
    [(kind, content)] = value.items()
    if kind == "N":
        return int(content)
    return [_plain(one) for one in content] if kind == "L" else content


def at(pk: str, sk: str) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": sk}}


def put(table: str, item: Mapping[str, Value], *, new: bool = True) -> dict[str, Any]:
    """Write an item; `new` refuses one that is there, and answers it. Nothing and an empty text are left out."""
    op: dict[str, Any] = {"TableName": table}
    op["Item"] = {name: written(value) for name, value in item.items() if value not in (None, "")}
    if new:
        op["ConditionExpression"] = "attribute_not_exists(pk)"
        op["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    return {"Put": op}


def change(
    table: str,
    pk: str,
    sk: str,
    values: Mapping[str, Value] | None = None,
    *,
    add: Mapping[str, int] | None = None,
    when: Iterable[Condition] = (),
) -> dict[str, Any]:
    """Change an item if all conditions hold; a value of None is taken out."""
    speech = _Speech()
    sets = [f"{speech.name(n)} = {speech.value(v)}" for n, v in (values or {}).items() if v is not None]
    gone = [speech.name(n) for n, v in (values or {}).items() if v is None]
    adds = [f"{speech.name(n)} {speech.value(v)}" for n, v in (add or {}).items() if v]
    parts = (("SET", sets), ("REMOVE", gone), ("ADD", adds))
    conditions = speech.conditions(when)
    text = " ".join(f"{word} {', '.join(some)}" for word, some in parts if some)
    op = {"TableName": table, "Key": at(pk, sk), **speech.said(conditions)}
    return {"Update": {**op, "UpdateExpression": text}} if text else {"ConditionCheck": op}


def check(table: str, pk: str, sk: str, when: Iterable[Condition]) -> dict[str, Any]:
    speech = _Speech()
    conditions = speech.conditions(when)
    return {"ConditionCheck": {"TableName": table, "Key": at(pk, sk), **speech.said(conditions)}}


def delete(table: str, pk: str, sk: str, when: Iterable[Condition] = ()) -> dict[str, Any]:
    speech = _Speech()
    conditions = speech.conditions(when)
    return {"Delete": {"TableName": table, "Key": at(pk, sk), **speech.said(conditions)}}


class _Speech:
    """Names and values of one expression: every name is given a sign, for many words are reserved."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Any] = {}

    def name(self, name: str) -> str:
        self._names[f"#{name}"] = name
        return f"#{name}"

    def value(self, value: Value) -> str:
        sign = f":{len(self._values)}"
        self._values[sign] = written(value)
        return sign

    def conditions(self, when: Iterable[Condition]) -> str:
        return " AND ".join(self._condition(one) for one in when)

    def _condition(self, condition: Condition) -> str:
        match condition:
            case (name, "there"):
                return f"attribute_exists({self.name(name)})"
            case (name, "absent"):
                return f"attribute_not_exists({self.name(name)})"
            case (name, sign, value):
                return f"{self.name(name)} {sign} {self.value(value)}"
            case _:
                raise TypeError(condition)

    def said(self, conditions: str) -> dict[str, Any]:
        op: dict[str, Any] = {}
        if conditions:
            op["ConditionExpression"] = conditions
            op["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if self._names:
            op["ExpressionAttributeNames"] = self._names
        if self._values:
            op["ExpressionAttributeValues"] = self._values
        return op


# Rows


def written_rows(rows: Sequence[Row]) -> bytes:
    return _encode([structs.astuple(row) for row in rows])


def read_rows(data: bytes) -> list[Row]:
    return [Row(*row) for row in _decode_rows(data)]


def version_key(version: int) -> str:
    return f"e#{version:016d}"


# Names


def checked(key: str, id: str = "") -> str:
    """A key that fits, or an error that says why it does not."""
    try:
        too_long = len(key.encode()) > KEY_BYTES or len(id.encode()) > ID_BYTES
    except UnicodeError as error:
        raise InvalidValue(f"{key[:80]!r}: a name cannot be stored: {error}") from error
    if too_long:
        what = f"its message id has more than {ID_BYTES}" if len(id.encode()) > ID_BYTES else f"more than {KEY_BYTES}"
        raise InvalidValue(f"{key[:80]!r}: {what} bytes, which DynamoDB cannot keep as a key; nothing was written")
    return key


def home(key: str) -> str:
    """The partition of an execution."""
    return f"E#{key}"


def key_at(pk: str) -> str:
    return pk[2:]


def place(started_at: int, key: str) -> str:
    return f"{started_at:020d}#{key}"


def shard(key: str, shards: int) -> int:
    return crc32(key.encode()) % shards


def agenda(queue: str, served: str, tenant: str) -> str:
    """The name of a list of what is due; its shards are its partitions."""
    return json.dumps([queue, served, tenant], ensure_ascii=False)


def listing(tenant: str, workflow: str) -> str:
    """The name of a list of executions."""
    return json.dumps([tenant, workflow], ensure_ascii=False)


def names(text: str) -> list[str]:
    found: list[str] = json.loads(text)
    return found


class Facts(Struct, frozen=True):
    """What never changes about an execution."""

    key: str
    queue: str
    definition: str
    workflow: str
    started_at: int
    parent: str | None = None
    parent_ref: int | None = None
    lane: str | None = None
    seat: int = 0  # its place in the lane
    topics: tuple[str, ...] = ()

    @property
    def tenant(self) -> str:
        return tenant_of(self.key)

    @property
    def counts(self) -> bool:
        """Whether it is nobody's child and not of the engine's own."""
        return self.parent is None and ":" not in self.workflow

    def partition(self, shards: int) -> str:
        """Where its due times are listed."""
        return f"{agenda(self.queue, served_as(self.definition), self.tenant)}{shard(self.key, shards)}"

    def mark(self, status: str, begun: bool) -> str | None:
        """Where it is listed by its state, if it is."""
        if status == "open":
            return f"{self.tenant}/begun" if begun and self.counts else None
        return None if status == "completed" else f"{self.tenant}/{status}"


def facts_of_start(start: Start, started_at: int, seat: int = 0) -> Facts:
    open_ = start.status not in ENDED
    return Facts(
        start.key,
        start.queue,
        start.definition,
        start.workflow,
        started_at,
        start.parent,
        start.parent_ref,
        lane_of(start) if open_ else None,
        seat,
        topics_of(start) if open_ else (),
    )


def facts_of(head: Item) -> Facts:
    return Facts(
        key_at(head["pk"]),
        head.get("queue", ""),
        head["definition"],
        head["workflow"],
        head["at"],
        head.get("parent"),
        head.get("ref"),
        head.get("lane"),
        head.get("seat", 0),
        tuple(head.get("topics", ())),
    )


def begun(head: Item) -> bool:
    return "waits" in head or head["v"] > 1 or "holder" in head


def live_holder(head: Item, now: int) -> str | None:
    holder: str | None = head.get("holder")
    return holder if head.get("due", 0) > now else None
