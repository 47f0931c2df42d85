"""A store that seals what goes into another store, and opens what comes out.

Rules kept here: the port's promises stay those of the store inside; one execution whose key is gone never fails its
neighbours. To hold such an execution makes it stuck, with a reason in the clear, so that no worker comes back to it; a
commit of it is answered `stale`, so that the worker drops it; a search shows it without what cannot be opened; whoever
reads it gets the error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from msgspec import structs

from perdure.core import events as ev, tracing
from perdure.core.records import (
    PERSON,
    Backlog,
    Commit,
    Due,
    End,
    Gone,
    Head,
    Held,
    HoldAnswer,
    Mail,
    Outcome,
    Park,
    Query,
    Row,
    Sent,
    Start,
    Started,
    tenant_of,
)
from perdure.errors import KeyringError, StoreError
from perdure.ports import Joining, Standing, Store, Twinned
from perdure.runtime.sealing.seals import Seals

log = logging.getLogger("perdure.sealing")


def sealed_store(store: Store, seals: Seals) -> Store:
    """The store behind seals, with the optional ports that it has itself."""
    joining, twinned = isinstance(store, Joining), isinstance(store, Twinned)
    kinds: dict[tuple[bool, bool], type[SealedStore]] = {
        (False, False): SealedStore,
        (True, False): SealedJoining,
        (False, True): SealedTwinned,
        (True, True): SealedBoth,
    }
    return kinds[joining, twinned](store, seals)


class SealedStore:
    """A Store; see the module."""

    def __init__(self, inside: Any, seals: Seals) -> None:
        self.inside = inside
        self.seals = seals

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)  # what a store has beyond the port: its path, its schema

    # Nothing to seal.

    async def open(self) -> None:
        await self.inside.open()

    async def close(self) -> None:
        await self.inside.close()

    async def now(self) -> int:
        now: int = await self.inside.now()
        return now

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        kept: set[str] = await self.inside.renew(holds, lease)
        return kept

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        await self.inside.release(holds)

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        due: list[Due] = await self.inside.claim(queues, definitions, limit, grace)
        return due

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        due: int | None = await self.inside.next_due(queues, definitions)
        return due

    async def backlog(self) -> list[Backlog]:
        found: list[Backlog] = await self.inside.backlog()
        return found

    async def begun(self, tenant: str, most: int) -> int:
        found: int = await self.inside.begun(tenant, most)
        return found

    async def fresh(self, keys: Sequence[str]) -> set[str]:
        found: set[str] = await self.inside.fresh(keys)
        return found

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        found: tuple[int, int] = await self.inside.extent(tenant, workflow)
        return found

    # In.

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        answers: list[Started] = await self.inside.start([self._start(one) for one in starts], grace)
        for index, (start, answer) in enumerate(zip(starts, answers, strict=True)):
            if answer == "conflict" and self.seals.covers(start.key) and await self._was_clear(start):
                answers[index] = "same"
        return answers

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        answers: list[Sent] = await self.inside.send([self._letter(one) for one in mail], grace)
        return answers

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        outcomes: list[Outcome] = ["stale"] * len(group)
        ready: list[tuple[int, Commit]] = []
        for index, commit in enumerate(group):
            try:
                ready.append((index, self._commit(commit)))
            except KeyringError as error:
                version = commit.rows[0].version - 1 if commit.rows else 0
                log.warning("%s: %s", commit.key, error, extra=_about(commit.key, version))
        if ready:
            answers = await self.inside.commit([commit for _, commit in ready], grace)
            for (index, _), answer in zip(ready, answers, strict=True):
                outcomes[index] = answer
        return outcomes

    # Out.

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        answers: list[HoldAnswer] = await self.inside.hold(keys, me, lease, known)
        lost: list[tuple[Held, KeyringError]] = []
        for index, answer in enumerate(answers):
            if isinstance(answer, Held):
                try:
                    answers[index] = self._held(answer)
                except KeyringError as error:
                    answers[index] = Gone(answer.key)
                    lost.append((answer, error))
        if lost:
            try:
                await self._give_up(lost, known or {}, me)
            except StoreError as error:  # the others are held, and have to be told; these lapse, and are held again
                log.warning("%d executions without a key could not be made stuck: %s", len(lost), error)
        return answers

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        boxes: dict[str, list[Mail]] = await self.inside.mail(keys)
        opened: dict[str, list[Mail]] = {}
        for key, letters in boxes.items():
            try:
                opened[key] = [self._opened_letter(one) for one in letters]
            except KeyringError as error:  # its next commit will be refused
                head = await self.inside.head(key)
                log.warning("%s: %s", key, error, extra=_about(key, 0 if head is None else head.version))
        return opened

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        rows = await self.inside.read(key, after, until, limit)
        if not rows and after > 0:
            self.seals.check(key)  # whoever knows what comes before has it from a cache
        return [self._opened_row(key, row) for row in rows]

    async def head(self, key: str) -> Head | None:
        head: Head | None = await self.inside.head(key)
        return None if head is None else self._opened_head(head)

    async def message(self, key: str, id: str) -> Mail | Row | None:
        found: Mail | Row | None = await self.inside.message(key, id)
        if isinstance(found, Mail):
            return self._opened_letter(found)
        return None if found is None else self._opened_row(key, found)

    async def listening(self, tenant: str, topics: Sequence[str], limit: int, after: str = "") -> dict[str, list[str]]:
        names = {self._topic(tenant, topic): topic for topic in topics}
        found = await self.inside.listening(tenant, list(names), limit, after)
        return {names[name]: keys for name, keys in found.items()}

    def _topic(self, tenant: str, topic: str) -> str:
        """A topic is made of a value of the input, which could be guessed if its digest had no key."""
        return topic if ":" in tenant else self.seals.fingerprint(tenant, "topic", topic)

    async def find(self, query: Query) -> list[Head]:
        wanted = self.seals.fields(query.tenant, query.fields, query.workflow == PERSON)
        heads = await self.inside.find(structs.replace(query, fields=wanted) if wanted else query)
        return [self._shown(head) for head in heads]

    # An execution whose key is gone.

    async def _give_up(
        self, lost: Sequence[tuple[Held, KeyringError]], known: Mapping[str, tuple[int, int]], me: str
    ) -> None:
        """Let them be stuck. Their mail is folded unread: nobody could read it any more, and it would wake them."""
        now = await self.now()
        commits = []
        for held, error in lost:
            version = (held.rows[-1].version if held.rows else known[held.key][0]) + 1
            stuck = ev.Stuck("sealed", str(error), "", held.lapses)
            waits = {"stuck": stuck, "version": version, "since": now}
            row = ev.row(stuck, version, max(now, held.rows[-1].at if held.rows else 0), held.token, worker=me)
            settle = Park("stuck", None, None, msgspec.json.encode(waits))
            commits.append(Commit(held.key, held.token, [row], settle, done=[one.id for one in held.mail]))
            own = tracing.of_execution("", held.key, await self._began(held))
            log.warning("%s is stuck: %s", held.key, error, extra=_about(held.key, row.version - 1, own))
        await self.inside.commit(commits, 0)

    async def _began(self, held: Held) -> int:
        """When it was started, which is in the clear; whether it was given a trace then cannot be read any more."""
        if held.rows and held.rows[0].version == 1:
            return held.rows[0].at
        began: int = (await self.inside.read(held.key, 0, 1, 1))[0].at
        return began

    # Sealing.

    def _start(self, start: Start) -> Start:
        seals, key = self.seals, start.key
        if not seals.covers(key):
            return start
        return structs.replace(
            start,
            sha=seals.fingerprint(tenant_of(key), "start", start.sha),
            rows=tuple(self._row(key, row) for row in start.rows),
            result=None if start.result is None else seals.seal(key, b"result", start.result),
            state=None if start.state is None else seals.seal_state(key, start.state),
            topics=tuple(self._topic(tenant_of(key), topic) for topic in start.topics),
        )

    async def _was_clear(self, start: Start) -> bool:
        """The same start, from before there was a key ring."""
        head: Head | None = await self.inside.head(start.key)
        return head is not None and head.sha == start.sha

    def _letter(self, mail: Mail) -> Mail:
        if not self.seals.covers(mail.key):
            return mail
        sha = self.seals.fingerprint(tenant_of(mail.key), "mail", mail.sha) if mail.sha else ""
        return Mail(mail.key, mail.id, self.seals.seal(mail.key, _of_letter(mail.id), mail.data), sha)

    def _commit(self, commit: Commit) -> Commit:
        if not self.seals.covers(commit.key):
            return commit
        return structs.replace(
            commit,
            rows=[self._row(commit.key, row) for row in commit.rows],
            settle=None if commit.settle is None else self._settle(commit.key, commit.settle),
            children=[self._start(one) for one in commit.children],
            mail=[self._letter(one) for one in commit.mail],
        )

    def _settle(self, key: str, settle: Park | End) -> Park | End:
        seals = self.seals
        state = None if settle.state is None else seals.seal_state(key, settle.state)
        if isinstance(settle, End):
            result = None if settle.result is None else seals.seal(key, b"result", settle.result)
            return structs.replace(settle, state=state, result=result)
        waits = None if settle.waits is None else seals.seal(key, b"waits", settle.waits)
        return structs.replace(settle, state=state, waits=waits)

    def _row(self, key: str, row: Row) -> Row:
        data = self.seals.seal(key, _of_row(row), row.data)
        return Row(row.version, row.type, data, row.at, row.fence, row.message_id)

    # Opening.

    def _opened_row(self, key: str, row: Row) -> Row:
        data = self.seals.open(key, _of_row(row), row.data)
        return row if data is row.data else Row(row.version, row.type, data, row.at, row.fence, row.message_id)

    def _opened_letter(self, mail: Mail) -> Mail:
        return Mail(mail.key, mail.id, self.seals.open(mail.key, _of_letter(mail.id), mail.data), mail.sha)

    def _held(self, held: Held) -> Held:
        if not held.rows:
            self.seals.check(held.key)  # nothing to open, but the worker will want to write
        rows = [self._opened_row(held.key, row) for row in held.rows]
        return structs.replace(held, rows=rows, mail=[self._opened_letter(one) for one in held.mail])

    def _opened_head(self, head: Head) -> Head:
        seals, key = self.seals, head.key
        return structs.replace(
            head,
            state=None if head.state is None else seals.open_state(key, head.state),
            waits=None if head.waits is None else seals.open(key, b"waits", head.waits),
            result=None if head.result is None else seals.open(key, b"result", head.result),
        )

    def _shown(self, head: Head) -> Head:
        try:
            return self._opened_head(head)
        except KeyringError:
            clear = structs.replace(head, state=None, result=None)
            try:
                return self._opened_head(clear)
            except KeyringError:
                return structs.replace(clear, waits=None)


class SealedJoining(SealedStore):
    """On a store that can write in a transaction of the caller's."""

    async def start_in(self, connection: Any, starts: Sequence[Start], grace: int) -> list[Started]:
        answers: list[Started] = await self.inside.start_in(connection, [self._start(one) for one in starts], grace)
        return answers

    async def send_in(self, connection: Any, mail: Sequence[Mail], grace: int) -> list[Sent]:
        answers: list[Sent] = await self.inside.send_in(connection, [self._letter(one) for one in mail], grace)
        return answers

    async def commit_in(self, connection: Any, group: Sequence[Commit], grace: int) -> list[Outcome]:
        outcomes: list[Outcome] = await self.inside.commit_in(connection, [self._commit(one) for one in group], grace)
        return outcomes

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        opened: AbstractAsyncContextManager[Any] = self.inside.transaction()
        return opened

    async def standing(self, connection: Any) -> Standing:
        found: Standing = await self.inside.standing(connection)
        return found


class SealedTwinned(SealedStore):
    """On a store that can be used from a second thread."""

    def twin(self) -> Store:
        return sealed_store(self.inside.twin(), self.seals)


class SealedBoth(SealedJoining, SealedTwinned):
    """On a store that can do both."""


def _about(key: str, version: int, own: tracing.Trace | None = None) -> dict[str, object]:
    """What a line says about an execution whose log is at this version: its worker knows the trace, and nothing else
    may be able to read it."""
    trace = tracing.known(key) or own
    return {"execution": key, "version": version, "trace": None if trace is None else trace.id}


def _of_row(row: Row) -> bytes:
    return b"row %d of type %d" % (row.version, row.type)


def _of_letter(id: str) -> bytes:
    return b"letter " + id.encode()
