"""The statements that the store sends. Each has the schema's name in it, so the search path does not matter."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.stores.postgres import search
from perdure.stores.postgres.columns import HEADS, ROWS, SETTLED

_START = (*HEADS, *ROWS)
_COMMIT = (*ROWS, *SETTLED, "")
_FAMILY = (*_COMMIT, *_START, "", "", "", "", "")
_LABELS = ("", "", "")


class Statements:
    """Every statement of one schema."""

    def __init__(self, schema: str) -> None:
        def call(name: str, parameters: int | Sequence[str]) -> str:
            """With the types of parameters that come as text, or with how many there are."""
            types = [""] * parameters if isinstance(parameters, int) else parameters
            return f"select * from {schema}.{name}({', '.join(_parameters(types))})"

        self.schema = schema
        self.now = f"select {schema}.now_us()"
        self.notify = "select pg_notify($1, '')"
        self.test_clock = (
            f"create or replace function {schema}.now_us() returns bigint language sql volatile as"
            " $$ select current_setting('perdure.now')::bigint $$"
        )
        self.start = call("start", (*_START, ""))
        self.start_labelled = call("start_labelled", (*_START, "", *_LABELS))
        self.listen = f"select {schema}.listen($1, $2, $3)"
        self.listening = call("listening", 3)
        self.send = call("send", 5)
        self.hold = call("hold", ("", "bigint[]", "bigint[]", "", "", "", ""))
        self.renew = call("renew", 3)
        self.release = f"select {schema}.release($1, $2)"
        self.commit_group = call("commit_group", _COMMIT)
        self.commit_family = call("commit_family", _FAMILY)
        self.commit_labelled = call("commit_labelled", (*_FAMILY, *_LABELS))
        self.claim = call("claim", 4)
        self.next_due = f"select due, {schema}.now_us() from {schema}.next_due($1, $2)"
        self.backlog = call("backlog", 0)
        self.begun = search.begun_statement(schema)
        self.fresh = search.fresh_statement(schema)
        self.extent = search.extent_statement(schema)
        self.steps = (
            f"insert into {schema}.events (key, version, type, data, at, fence, message_id) select * from"
            " unnest($1::text[], $2::text::bigint[], $3::text::smallint[], $4::bytea[], $5::text::bigint[],"
            " $6::text::bigint[], $7::text[])"
        )
        self.mail = call("unread", 1)
        self.read = (
            f"select version, type, data, at, fence, message_id from {schema}.events"
            " where key = $1 and version > $2 and version <= coalesce($3, 9223372036854775807)"
            " order by version limit $4"
        )
        self.message = (
            f"select version, type, data, at, fence, message_id from {schema}.events where key = $1 and message_id = $2"
        )
        self.waiting = f"select key, id, data, sha from {schema}.messages where key = $1 and id = $2"
        self.head = search.head_statement(schema)


def _parameters(types: Sequence[str]) -> list[str]:
    return [f"${place}::text::{type}" if type else f"${place}" for place, type in enumerate(types, 1)]
