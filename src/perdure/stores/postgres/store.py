"""The verbs of the Store port on PostgreSQL.

Rules kept here: a verb is one round trip wherever nothing is in the way; holds, leases and commits have connections of
their own, so that no search and no burst of starts delays them; the database's clock decides what is due. A group that
holds a refusal is not written: what is refused gets its answer, and the rest is sent again. Groups are of many tenants,
so what is written is written by sessions that see all of them; what is read for one tenant is read by one that does
not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from itertools import starmap
from typing import Any, Literal, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from perdure.core import events
from perdure.core.behalf import seen_by
from perdure.core.events import PROGRESS, TakenOver
from perdure.core.records import (
    Backlog,
    Commit,
    Due,
    Gone,
    Head,
    HoldAnswer,
    Mail,
    Outcome,
    Query,
    Row,
    Sent,
    Start,
    Started,
    key_of,
    tenant_of,
)
from perdure.errors import StoreError, StoreUnavailable, UsageError
from perdure.ports import Standing
from perdure.stores.postgres import columns, migrations, search, trouble
from perdure.stores.postgres.address import read_address
from perdure.stores.postgres.answers import AGAIN, hold_answers, sent
from perdure.stores.postgres.connections import EVERYBODY, Connection, Line, Lines, PlainLine, Share, whole
from perdure.stores.postgres.joining import as_tenants
from perdure.stores.postgres.readers import Readers
from perdure.stores.postgres.statements import Statements
from perdure.stores.ticker import is_step

#: How often a group is sent again because somebody else wrote in one of its logs meanwhile.
ROUNDS = 8
#: Seconds before an end that met a sender in flight is answered, if there is nothing else to do.
PAUSE = 0.02
#: For so many seconds the answer of the database's clock is good enough to guess when something is due. What is due is
#: always decided by the database.
CLOCK = 5.0
_TAKEN_OVER = events.write(TakenOver(holder="", lapses=0))[0]


class PostgresStore:
    """A Store in one schema of a PostgreSQL database.

    `clock` is for tests only: `open` then replaces the clock of the schema by one that this process sets.
    """

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None) -> None:
        self._url = url
        self.address = read_address(url)
        self._clock = clock
        self._last = self._told = 0
        self._asked = float("-inf")
        self._sql = Statements(f'"{self.address.schema}"')
        self._prepared = False  # by the store of which this is a twin
        self._make_lines()

    def _make_lines(self) -> None:
        prepare = self._tell_time if self._clock is not None else None
        # At quiet times a commit goes the way that the hold has just gone, where everything is still at hand.
        self._work = Lines(self.address, "perdure work", 3, prepare)
        self._commits = Share(self._work, 1)
        # Two, because a hold may have to wait for a commit in flight, and leases must be renewed meanwhile.
        self._holds = Share(self._work, 2)
        self._calls = Lines(self.address, "perdure calls", self.address.readers, prepare)
        self._reads = Readers(self.address, "perdure reads", self.address.readers, prepare)
        self._guests = Lines(self.address, "perdure transactions", self.address.readers, prepare, PlainLine)
        self._lent: set[int] = set()  # connections of ours in the hands of others

    async def open(self) -> None:
        self._make_lines()  # a store may be opened again, on another event loop
        if not self._prepared:
            await self._apart(self._prepare)

    async def close(self) -> None:
        for lines in (self._work, self._calls, self._reads, self._guests):
            await lines.close()

    def twin(self) -> PostgresStore:
        other = PostgresStore(self._url, clock=self._clock)
        other._prepared = True
        return other

    async def _prepare(self, connection: Connection) -> None:
        await migrations.inspect(connection, self.address)
        await migrations.migrate(connection, self.address)
        if self._clock is not None:
            await connection.execute(self._sql.test_clock)

    async def _apart(self, work: Callable[[Connection], Awaitable[None]]) -> None:
        """Work on a connection of its own that nothing else waits for."""
        line = PlainLine(self.address, "perdure migrations")
        try:
            connection = await line.connected()
            try:
                await work(connection)
            except trouble.FAILURES as error:
                raise trouble.meaning(error, self.address.shown, writes=False) from error
        finally:
            await line.close()

    async def _tell_time(self, connection: Connection) -> None:
        assert self._clock is not None
        await connection.execute("select set_config('perdure.now', $1, false)", str(self._clock()))

    async def schema_number(self) -> int:
        """The number of the newest migration that the schema has; 0 for none."""
        found: list[int] = []

        async def ask(connection: Connection) -> None:
            found.append(await migrations.number(connection, self.address.schema))

        await self._apart(ask)
        return found[0]

    async def grant_application(self, role: str) -> None:
        """Give a role what workers and clients need: of a log they may read and append, nothing else."""
        await self._apart(lambda connection: migrations.grant(connection, self.address.schema, role))

    async def now(self) -> int:
        """Asked for once in a while: in between, what has passed here since has passed there too.

        It is never ahead, for it is counted from when the answer was here: to be asked may take long.
        """
        here = time.monotonic()
        if self._clock is not None or here - self._asked > CLOCK:
            self._told = await self._calls.run(lambda connection: connection.fetchval(self._sql.now), writes=False)
            here = self._asked = time.monotonic()
        self._last = max(self._last, self._told + int((here - self._asked) * 1e6))
        return self._last

    # Start and send

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        listen = any(start.topics for start in starts)
        begin = self._start_listening if listen else self._start
        return await self._calls.run(lambda connection: begin(connection, starts, grace), writes=True)

    async def _start_listening(self, connection: Connection, starts: Sequence[Start], grace: int) -> list[Started]:
        async with whole(connection):
            return await self._start(connection, starts, grace)

    async def _start(self, connection: Connection, starts: Sequence[Start], grace: int) -> list[Started]:
        if not starts:
            return []
        made, labels = columns.starts_columns(starts), columns.labels_columns(starts)
        statement = self._sql.start_labelled if labels else self._sql.start
        there = dict(await connection.fetch(statement, *made, grace, *labels))
        answers: list[Started] = []
        for start in starts:
            sha = there.get(start.key)
            if sha is None:
                answers.append("created")
                there[start.key] = start.sha  # another one of this key in the same call is a second start
            else:
                answers.append("same" if sha == start.sha else "conflict")
        created = [start for start, answer in zip(starts, answers, strict=True) if answer == "created"]
        await self._listen(connection, created)
        return answers

    async def _listen(self, connection: Connection, starts: Sequence[Start]) -> None:
        """In the transaction of the starts: whoever can be seen is found by its topics."""
        if any(start.topics for start in starts):
            await connection.execute(self._sql.listen, *columns.topics_columns(starts))

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        return await self._calls.run(lambda connection: self._send(connection, mail, grace), writes=True)

    async def _send(self, connection: Connection, mail: Sequence[Mail], grace: int) -> list[Sent]:
        if not mail:
            return []
        answers = [Sent("missing")] * len(mail)
        seen: set[tuple[str, str]] = set()
        for place, fresh, queue, holder, sha, version in sorted(
            await connection.fetch(self._sql.send, *columns.mail_columns(mail), grace)
        ):
            one = mail[place - 1]
            answers[place - 1] = sent(one, fresh and (one.key, one.id) not in seen, queue, holder, sha, version)
            seen.add((one.key, one.id))
        return answers

    # Holds

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        if not keys:
            return []
        # A key named twice is held once: a second hold by the same worker would write a barrier.
        once = sorted(set(keys))
        answers: dict[str, HoldAnswer] = {}
        for _ in range(ROUNDS):
            try:
                records = await self._hold(once, me, lease, known or {})
            except StoreError:
                if not answers:
                    raise
                break  # what is held already must be told; the rest will be due again
            answers |= hold_answers(records)
            once = [key for what, key, *_ in records if what == AGAIN]
            if not once:
                break
        return [answers.get(key) or Gone(key) for key in keys]

    async def _hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]]
    ) -> Sequence[Any]:
        remembered = [known.get(key, (None, None)) for key in keys]
        parameters = (
            keys,
            columns.numbers([version for version, _ in remembered]),
            columns.numbers([token for _, token in remembered]),
            me,
            lease,
            _TAKEN_OVER,
            sorted(PROGRESS),
        )
        records: Sequence[Any] = await self._holds.run(lambda c: c.fetch(self._sql.hold, *parameters), writes=True)
        return records

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        if not holds:
            return set()
        keys, tokens = zip(*sorted(holds), strict=True)
        kept = await self._holds.run(lambda c: c.fetch(self._sql.renew, keys, tokens, lease), writes=True)
        return {key for (key,) in kept}

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        if holds:
            keys, tokens = zip(*sorted(holds), strict=True)
            await self._holds.run(lambda c: c.execute(self._sql.release, keys, tokens), writes=True)

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        boxes: dict[str, list[Mail]] = {key: [] for key in keys}
        for key, id, data, sha in await self._holds.run(lambda c: c.fetch(self._sql.mail, list(boxes)), writes=False):
            boxes[key].append(Mail(key, id, data, sha))
        return boxes

    # Commit

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        return await self._commits.run(lambda connection: self._commit(connection, group, grace), writes=True)

    async def _commit(
        self, connection: Connection, group: Sequence[Commit], grace: int, within: _Within | None = None
    ) -> list[Outcome]:
        """Send the group; take out what is refused, or was written by somebody else meanwhile, and send the rest."""
        answers: dict[str, Outcome] = {}
        rest = sorted(group, key=_key)
        assert len({commit.key for commit in rest}) == len(rest), "an execution has one commit in flight"
        careful = within is not None
        if any(child.topics for commit in rest for child in commit.children):
            within = within or whole
        for _ in range(ROUNDS):
            if not rest:
                break
            try:
                async with (within or _nothing)(connection):
                    refusals = await self._write(connection, rest, grace, careful)
            except asyncpg.UniqueViolationError:
                # An occupied version, or a message that is in the log already: look before writing, from now on.
                careful = True
                answers.update((commit.key, "stale") for commit in rest if columns.folds_twice(commit))
            else:
                answers.update((key, _OUTCOMES[answer]) for key, answer in refusals)
                if all(answer == "park" for _, answer in refusals):
                    break
                if len(refusals) == len(rest) and all(answer == "busy" for _, answer in refusals):
                    await asyncio.sleep(PAUSE)  # whoever asks again at once would ask all the time
            rest = [commit for commit in rest if commit.key not in answers]
        else:
            raise StoreUnavailable(
                f"{self.address.shown}: others wrote in the same logs, again and again; nothing was written; try again"
            )
        return [answers.get(commit.key, "ok") for commit in group]

    async def _write(
        self, connection: Connection, group: Sequence[Commit], grace: int, careful: bool
    ) -> list[tuple[str, _Refusal]]:
        if not careful and all(map(is_step, group)):
            rows = columns.rows_columns((commit.key, row) for commit in group for row in commit.rows)
            await connection.execute(self._sql.steps, *rows)
            return []
        parameters = columns.group_columns(group)
        children = [child for commit in group for child in commit.children]
        mail = [letter for commit in group for letter in commit.mail]
        if not children and not mail:
            return cast("list[Any]", await connection.fetch(self._sql.commit_group, *parameters, careful))
        starts, labels = columns.starts_columns(children), columns.labels_columns(children)
        family = *parameters, careful, *starts, *columns.mail_columns(mail), grace
        statement = self._sql.commit_labelled if labels else self._sql.commit_family
        refusals = await connection.fetch(statement, *family, *labels)
        await self._listen(connection, children)
        return cast("list[Any]", refusals)

    # What is due

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        grace = max(grace, 1)  # a row that stayed due would be found for ever
        parameters = list(queues), list(definitions), limit, grace
        return list(starmap(Due, await self._holds.run(lambda c: c.fetch(self._sql.claim, *parameters), writes=True)))

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        """Brings the time along, so that whoever looks what is due need not ask for it."""
        parameters = list(queues), list(definitions)
        due: int | None
        due, now = await self._holds.run(lambda c: c.fetchrow(self._sql.next_due, *parameters), writes=False)
        self._asked, self._told = time.monotonic(), now
        return due

    async def backlog(self) -> list[Backlog]:
        return list(starmap(Backlog, await self._calls.run(lambda c: c.fetch(self._sql.backlog), writes=False)))

    async def begun(self, tenant: str, most: int) -> int:
        found: int = await self._look(tenant, lambda c: c.fetchval(self._sql.begun, tenant, most))
        return found

    async def fresh(self, keys: Sequence[str]) -> set[str]:
        rows = await self._holds.run(lambda c: c.fetch(self._sql.fresh, list(keys)), writes=False)
        return {key for (key,) in rows}

    # Reading

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        rows = await self._look(tenant_of(key), lambda c: c.fetch(self._sql.read, key, after, until, limit))
        return list(starmap(Row, rows))

    async def message(self, key: str, id: str) -> Mail | Row | None:
        found: Mail | Row | None = await self._look(tenant_of(key), lambda c: self._message(c, key, id))
        return found

    async def _message(self, connection: Connection, key: str, id: str) -> Mail | Row | None:
        # The mailbox first: what is taken out of it meanwhile is in the log by then.
        waiting = await connection.fetchrow(self._sql.waiting, key, id)
        folded = await connection.fetchrow(self._sql.message, key, id)
        if folded is not None:
            return Row(*folded)
        return None if waiting is None else Mail(*waiting)

    async def listening(self, tenant: str, topics: Sequence[str], limit: int, after: str = "") -> dict[str, list[str]]:
        names = {key_of(tenant, topic): topic for topic in topics}
        found: dict[str, list[str]] = {}
        for name, key in await self._look(tenant, lambda c: c.fetch(self._sql.listening, list(names), limit, after)):
            found.setdefault(names[name], []).append(key)
        return found

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        count, rows = await self._look(tenant, lambda c: c.fetchrow(self._sql.extent, tenant, workflow))
        return count, rows

    async def head(self, key: str) -> Head | None:
        found = await self._look(tenant_of(key), lambda c: c.fetchrow(self._sql.head, key))
        return None if found is None else search.read_head(found)

    async def find(self, query: Query) -> list[Head]:
        statement, values = search.statement(query, self._sql.schema)
        return [search.read_head(row) for row in await self._look(query.tenant, lambda c: c.fetch(statement, *values))]

    async def _look(self, home: str | None, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        """Read with the eyes of one tenant, if there is one."""
        tenant = seen_by(home)
        if tenant is None:
            return await self._calls.run(work, writes=False)
        return await self._reads.read(tenant, work)

    # In a transaction of the caller's

    async def start_in(self, connection: Any, starts: Sequence[Start], grace: int) -> list[Started]:
        async with self._joined(connection, {tenant_of(start.key) for start in starts}):
            answers = await self._start(connection, starts, grace)
            await connection.execute(self._sql.notify, self.address.channel)
        return answers

    async def send_in(self, connection: Any, mail: Sequence[Mail], grace: int) -> list[Sent]:
        async with self._joined(connection, {tenant_of(letter.key) for letter in mail}):
            answers = await self._send(connection, mail, grace)
            await connection.execute(self._sql.notify, self.address.channel)
        return answers

    async def commit_in(self, connection: Any, group: Sequence[Commit], grace: int) -> list[Outcome]:
        async with self._joined(connection, {EVERYBODY}):
            return await self._commit(connection, group, grace, within=_savepoint)

    @asynccontextmanager
    async def _joined(self, connection: Any, tenants: set[str]) -> AsyncIterator[None]:
        """Errors inside the caller's transaction: it has not been committed, so nothing was written."""
        if not isinstance(connection, (asyncpg.Connection, PoolConnectionProxy)):
            raise UsageError(f"connection= takes a connection of asyncpg, not a {type(connection).__qualname__}")
        try:
            # A connection that we have lent out ourselves sees everybody as it is.
            async with nullcontext() if id(connection) in self._lent else as_tenants(connection, tenants):
                yield
        except trouble.FAILURES as error:
            raise trouble.meaning(error, self.address.shown, writes=False) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection with an open transaction, which commits at the end of the block."""
        async with self._guests.borrow() as line:
            connection, transaction = await line.run(_begin, writes=False)
            self._lent.add(id(connection))
            try:
                yield connection
            except BaseException:
                await _roll_back(line, transaction)
                raise
            finally:
                self._lent.discard(id(connection))
            try:
                async with asyncio.timeout(line.patience):
                    await transaction.commit()
            except trouble.FAILURES as error:
                if trouble.lost(error):
                    line.drop()
                raise trouble.meaning(error, self.address.shown, writes=True) from error

    async def standing(self, connection: Any) -> Standing:
        if not connection.is_in_transaction():
            return "ended"
        try:
            # A constraint that waits for the end of the transaction is theirs, and so is the error if it does not hold.
            await connection.execute("set constraints all immediate")
        except asyncpg.InFailedSQLTransactionError:
            return "failed"
        except trouble.FAILURES as error:
            if not trouble.lost(error):
                raise
            raise trouble.meaning(error, self.address.shown, writes=False) from error
        return "open"


_Refusal = Literal["mail", "early", "stale", "park", "busy"]
_OUTCOMES: dict[_Refusal, Outcome] = {
    "park": "mail",
    "busy": "mail",
    "mail": "mail",
    "early": "early",
    "stale": "stale",
}
_Within = Callable[[Connection], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def _nothing(connection: Connection) -> AsyncIterator[None]:
    yield


def _savepoint(connection: Connection) -> AbstractAsyncContextManager[Any]:
    return cast("AbstractAsyncContextManager[Any]", connection.transaction())


async def _begin(connection: Connection) -> tuple[Connection, Any]:
    transaction = connection.transaction()
    try:
        await transaction.start()
    except asyncio.CancelledError:
        connection.terminate()  # it may have begun, and the next one would be a part of it
        raise
    return connection, transaction


async def _roll_back(line: Line, transaction: Any) -> None:
    try:
        async with asyncio.timeout(line.patience):
            await transaction.rollback()
    except trouble.FAILURES:
        line.drop()  # the server rolls back what has lost its connection
    except asyncio.CancelledError:
        line.drop()
        raise


def _key(commit: Commit) -> str:
    return commit.key
