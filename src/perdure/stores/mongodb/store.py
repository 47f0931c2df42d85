"""The verbs of the Store port on MongoDB.

Rules kept here: what is answered is in the journals of a majority, and what is read cannot be taken back; a group of
plain steps is one insert, whose documents are refused one by one; any other group is one transaction, and where others
are in the way again and again each commit of it goes alone, so that nobody fails for a neighbour; the server's clock
decides what is due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from pymongo import UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import BulkWriteError

from perdure.core.records import (
    Backlog,
    Commit,
    Due,
    End,
    Head,
    HoldAnswer,
    Mail,
    Outcome,
    Query,
    Row,
    Sent,
    Start,
    Started,
)
from perdure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from perdure.stores.mongodb import layout, reading, search, trouble
from perdure.stores.mongodb.address import read_address
from perdure.stores.mongodb.claiming import Claiming, Turns
from perdure.stores.mongodb.committing import Committing, folds_twice
from perdure.stores.mongodb.documents import log_documents
from perdure.stores.mongodb.holding import NEWEST, Holding, unhindered
from perdure.stores.mongodb.layout import Document
from perdure.stores.mongodb.link import InTheWay, Link, Occupied, collect
from perdure.stores.mongodb.writing import Writing
from perdure.stores.ticker import is_step

T = TypeVar("T")
A = TypeVar("A")

#: How often a call is tried whose documents others create meanwhile.
ROUNDS = 8


class MongoStore:
    """A Store in one database of a replica set; `clock` answers microseconds and is for tests only."""

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None) -> None:
        self._url = url
        self._clock = clock
        self.address = read_address(url)
        self._link = Link(self.address, clock)
        self._turns = Turns()

    async def open(self) -> None:
        self._link = Link(self.address, self._clock)  # a store may be opened again, on another event loop
        try:
            async with self._link.asking():
                await self._link.open()
                await layout.inspect(self._link.database, self.address)
                await layout.prepare(self._link.database, self._link.tables, self.address)
        except BaseException:
            await self._link.close()
            raise

    async def close(self) -> None:
        await self._link.close()

    def twin(self) -> MongoStore:
        return MongoStore(self._url, clock=self._clock)

    async def schema_number(self) -> int:
        """The number of the layout that the database has; 0 for none."""
        link = Link(self.address, None)
        try:
            async with link.asking():
                await link.open()
                return await layout.number(link.tables)
        finally:
            await link.close()

    async def now(self) -> int:
        async with self._link.asking():
            return await self._link.now()

    # Start and send

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        async def work(session: AsyncClientSession, now: int, some: Sequence[Start]) -> list[Started]:
            return await Writing(self._link.tables, session, now).start(some, now + grace)

        return await self._together(starts, work)

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        async def work(session: AsyncClientSession, now: int, some: Sequence[Mail]) -> list[Sent]:
            return await Writing(self._link.tables, session, now).send(some, now + grace)

        return await self._together(mail, work)

    async def _together(
        self, every: Sequence[T], work: Callable[[AsyncClientSession, int, Sequence[T]], Awaitable[list[A]]]
    ) -> list[A]:
        """In one transaction; where others are in the way again and again, one after the other."""
        if not every:
            return []
        groups = [every]
        answers: list[A] = []
        while groups:
            some = groups.pop(0)
            try:
                answers += await self._apart(some, work)
            except InTheWay as error:
                if len(some) > 1:
                    groups = [[one] for one in some]
                    continue
                raise self._half_done(len(answers), len(every)) from error
            except StoreError as error:
                if not answers:
                    raise
                raise self._half_done(len(answers), len(every)) from error
        return answers

    async def _apart(
        self, some: Sequence[T], work: Callable[[AsyncClientSession, int, Sequence[T]], Awaitable[list[A]]]
    ) -> list[A]:
        """In a transaction of its own. What somebody else has created meanwhile is seen by the next one."""
        for left in reversed(range(ROUNDS)):
            now = await self.now()
            try:
                return await self._link.transact(lambda session, now=now: work(session, now, some))  # type: ignore[misc]
            except Occupied:
                if not left:
                    raise
        raise AssertionError("not reached")

    def _half_done(self, done: int, of: int) -> StoreError:
        if not done:
            return StoreUnavailable(
                f"{self.address.shown}: others wrote the same documents, again and again; nothing was written; try"
                " again"
            )
        return OutcomeUnknown(
            f"{self.address.shown}: {done} of {of} writes were done when one could not be; repeat the call with the"
            " same ids"
        )

    # Holds

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        if not keys:
            return []
        async with self._link.asking(writes=True):
            # A key named twice is held once: a second hold by the same worker would write a barrier.
            answers = await Holding(self._link, me, lease, known or {}).hold(sorted(set(keys)))
        return [answers[key] for key in keys]

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        if not holds:
            return set()
        async with self._link.asking(writes=True):
            # Not for long behind a park of this very worker, whose event loop may stand still in the middle of it.
            due = await self._link.now() + lease
            wakes = self._link.tables.wakes.with_options(read_concern=NEWEST)
            if await unhindered(wakes, _held(holds, {"due": due})) == len(holds):
                return {key for key, _ in holds}
            # Who has the token and the hold now has had both all the time.
            query = {"_id": {"$in": [key for key, _ in holds]}, "held": True, "due": {"$gte": due}}
            kept = {(one["_id"], one["token"]) for one in await collect(wakes.find(query, ["token"]))}
            return {key for key, token in holds if (key, token) in kept}

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        if not holds:
            return
        async with self._link.asking(writes=True):
            free = {"holder": None, "held": False, "due": await self._link.now()}
            await self._link.tables.wakes.bulk_write(_held(holds, free), ordered=False)

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        async with self._link.asking():
            return await reading.unread(self._link.tables, keys)

    # Commit

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        if not group:
            return []
        assert len({commit.key for commit in group}) == len(group), "an execution has one commit in flight"
        documents = [log_documents(commit.key, commit.rows) for commit in group]
        if all(len(one) == 1 for one in documents) and all(map(is_step, group)) and not any(map(folds_twice, group)):
            return await self._insert([one for [one] in documents])
        answers = await self._commit(group, grace)
        return [answers.get(commit.key, "ok") for commit in group]

    async def _insert(self, documents: Sequence[Document]) -> list[Outcome]:
        """One document for each commit, so each is written whole or not at all; the index of versions decides."""
        answers: list[Outcome] = ["ok"] * len(documents)
        async with self._link.asking(writes=True):
            try:
                await self._link.tables.events.insert_many(documents, ordered=False)
            except BulkWriteError as error:
                if trouble.lost(error) or not trouble.occupied(error):
                    if done := error.details["nInserted"]:
                        raise self._half_done(done, len(documents)) from error
                    raise
                for refusal in error.details["writeErrors"]:
                    answers[refusal["index"]] = "stale"
        return answers

    async def _commit(self, group: Sequence[Commit], grace: int) -> dict[str, Outcome]:
        """Together; or each alone, where somebody keeps on writing what one of them has to write."""
        try:
            return await self._in_transaction(group, grace)
        except InTheWay:
            pass
        answers: dict[str, Outcome] = {}
        for number, commit in enumerate(group):
            try:
                answers |= await self._in_transaction([commit], grace)
            except InTheWay:
                # Nothing was written. An end that meets senders again and again has mail, or will have; of anything
                # else the memory is dropped, and whoever holds it next knows more.
                answers[commit.key] = "mail" if isinstance(commit.settle, End) else "stale"
            except StoreError as error:
                if not number:
                    raise
                raise OutcomeUnknown(
                    f"{self.address.shown}: a part of a group was written when the rest could not be; repeat the call"
                    " with the same ids"
                ) from error
        return answers

    async def _in_transaction(self, group: Sequence[Commit], grace: int) -> dict[str, Outcome]:
        careful = False
        for left in reversed(range(ROUNDS)):
            async with self._link.asking():
                now = await self._link.now(exactly=any(commit.fired is not None for commit in group))

            async def work(session: AsyncClientSession, now: int = now, careful: bool = careful) -> dict[str, Outcome]:
                return await Committing(self._link.tables, session, now).commit(group, now + grace, careful)

            try:
                return await self._link.transact_holding(work)
            except Occupied:
                # An occupied version, a message that is in the log already, or a child that another has started: look
                # before writing, from now on.
                careful = True
                if not left:
                    raise
        raise AssertionError("not reached")

    # What is due

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        grace = max(grace, 1)  # a row that stayed due would be found for ever
        async with self._link.asking(writes=True):
            now = await self._link.now()
            return await Claiming(self._link, self._turns, now, limit, grace).claim(queues, definitions)

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        async with self._link.asking():
            return await reading.next_due(self._link.tables, queues, definitions)

    async def backlog(self) -> list[Backlog]:
        async with self._link.asking():
            return await reading.backlog(self._link.tables, await self._link.now())

    async def begun(self, tenant: str, most: int) -> int:
        async with self._link.asking():
            return await search.begun(self._link.tables, tenant, most)

    async def fresh(self, keys: Sequence[str]) -> set[str]:
        async with self._link.asking():
            return await search.fresh(self._link.tables, keys)

    # Reading

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        async with self._link.asking():
            return await reading.log(self._link.tables, key, after, until, limit)

    async def message(self, key: str, id: str) -> Mail | Row | None:
        async with self._link.asking():
            return await reading.message(self._link.tables, key, id)

    async def listening(self, tenant: str, topics: Sequence[str], limit: int, after: str = "") -> dict[str, list[str]]:
        async with self._link.asking():
            return await reading.listening(self._link.tables, tenant, topics, limit, after)

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        async with self._link.asking():
            return await search.extent(self._link.tables, tenant, workflow)

    async def head(self, key: str) -> Head | None:
        async with self._link.asking():
            return await search.head(self._link.tables, key, await self._link.now())

    async def find(self, query: Query) -> list[Head]:
        async with self._link.asking():
            return await search.find(self._link.tables, query, await self._link.now())


def _held(holds: Sequence[tuple[str, int]], change: Document) -> list[UpdateOne]:
    """Changes of holds that still stand."""
    return [UpdateOne({"_id": key, "token": token, "held": True}, {"$set": change}) for key, token in holds]
