"""The statements that the store sends. Each has the schema's name in it, so the search path does not matter."""

from __future__ import annotations

from perdure.stores.postgres import search


class Statements:
    """Every statement of one schema."""

    def __init__(self, schema: str) -> None:
        def call(name: str, count: int) -> str:
            return f"select * from {schema}.{name}({', '.join(f'${n + 1}' for n in range(count))})"

        self.schema = schema
        self.now = f"select {schema}.now_us()"
        self.notify = "select pg_notify($1, '')"
        self.test_clock = (
            f"create or replace function {schema}.now_us() returns bigint language sql volatile as"
            " $$ select current_setting('perdure.now')::bigint $$"
        )
        self.start = call("start", 23)
        self.start_labelled = call("start_labelled", 26)
        self.listen = f"select {schema}.listen($1, $2, $3)"
        self.listening = call("listening", 3)
        self.send = call("send", 5)
        self.hold = call("hold", 7)
        self.renew = call("renew", 3)
        self.release = f"select {schema}.release($1, $2)"
        self.commit_group = call("commit_group", 29)
        self.commit_family = call("commit_family", 56)
        self.commit_labelled = call("commit_labelled", 59)
        self.claim = call("claim", 4)
        self.next_due = call("next_due", 2)
        self.backlog = call("backlog", 0)
        self.begun = search.begun_statement(schema)
        self.fresh = search.fresh_statement(schema)
        self.extent = search.extent_statement(schema)
        self.steps = (
            f"insert into {schema}.events (key, version, type, data, at, fence, message_id) select * from"
            " unnest($1::text[], $2::bigint[], $3::smallint[], $4::bytea[], $5::bigint[], $6::bigint[], $7::text[])"
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
