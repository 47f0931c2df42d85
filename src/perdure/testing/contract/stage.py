"""What the tests of the contract share: a clock that a test moves, a worker's hand on an execution, and short words for
what nearly every test does.

Rules kept here: each test gets a fresh store and a fresh clock, and every log that it leaves behind is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Raw

from perdure.core import events
from perdure.core.events import ActionSettled, Completed, Event, EventReceived, Marked
from perdure.core.records import Commit, End, Head, Held, Mail, Outcome, Park, Row, Start
from perdure.ports import Store
from perdure.testing.invariants import check_log

SECOND = 1_000_000
GRACE = 2 * SECOND
LEASE = 30 * SECOND
ONE, TWO, THREE = "acme/one", "acme/two", "acme/three"
QUEUES = ["default"]
DEFINITIONS = ["order@1"]


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, at: int = 1_700_000_000 * SECOND) -> None:
        self.at = at

    def __call__(self) -> int:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += round(seconds * SECOND)


def scenario(body: Callable[[Any, Any], Awaitable[None]]) -> Callable[[Any], None]:
    """Turn `async def test(self, subject)` into a test that every runner can call."""

    def test(self: Any) -> None:
        asyncio.run(self.play(body))

    # Not functools.wraps: pytest would look through it and take `subject` for a fixture.
    test.__name__, test.__qualname__, test.__doc__ = body.__name__, body.__qualname__, body.__doc__
    return test


class Hand:
    """A worker's memory of an execution that it holds: the token and the version that comes next."""

    def __init__(self, store: Store, held: Held, version: int) -> None:
        self.store = store
        self.held = held
        self.key = held.key
        self.token = held.token
        self.version = version

    async def prepare(self, *what: Event | Mail, **parts: Any) -> Commit:
        """A commit with these events in the next versions; mail is folded."""
        now = await self.store.now()
        rows: list[Row] = []
        for one in what:
            version = self.version + len(rows) + 1
            if isinstance(one, Mail):
                rows.append(events.row(EventReceived(one.id, Raw(one.data)), version, now, self.token, one.id))
            else:
                rows.append(events.row(one, version, now, self.token))
        parts.setdefault("done", [one.id for one in what if isinstance(one, Mail)])
        return Commit(self.key, self.token, rows, **parts)

    async def commit(self, *what: Event | Mail, **parts: Any) -> Outcome:
        commit = await self.prepare(*what, **parts)
        [answer] = await self.store.commit([commit], GRACE)
        if answer == "ok" or (answer == "mail" and isinstance(commit.settle, Park)):
            self.version += len(commit.rows)
        return answer

    async def park(self, *what: Event | Mail, due: int | None = None, **parts: Any) -> Outcome:
        return await self.commit(*what, settle=Park("open", due), **parts)

    async def end(self, *what: Event | Mail, **parts: Any) -> Outcome:
        return await self.commit(*what, Completed(Raw(b"7")), settle=End("completed", b"7"), **parts)


def begin(key: str = ONE, **parts: Any) -> Start:
    """A start of the workflow `order`; the parts replace what it usually has."""
    usual: dict[str, Any] = {
        "workflow": "order",
        "definition": "order@1",
        "queue": "default",
        "sha": "sha",
        "rows": (first_row(),),
    }
    return Start(key, **{**usual, **parts})


def first_row() -> Row:
    return events.row(events.Started("order", 1, Raw(b"{}")), 1, at=0)


def letter(id: str = "m1", key: str = ONE, sha: str = "sha") -> Mail:
    return Mail(key, id, b'{"n":1}', sha)


def settled(ref: int = 1) -> ActionSettled:
    return ActionSettled(ref, "charge", Raw(b"{}"))


def marked(ref: int = 1) -> Marked:
    """A row that is no progress."""
    return Marked(ref, "record")


async def take(store: Store, key: str = ONE, me: str = "w1", **parts: Any) -> Hand:
    """Hold an execution that must be free."""
    [answer] = await store.hold([key], me, LEASE, **parts)
    assert isinstance(answer, Held), answer
    rows = await log(store, key)
    return Hand(store, answer, rows[-1].version)


async def begun(store: Store, key: str = ONE, **parts: Any) -> Hand:
    """Start an execution and hold it."""
    assert await store.start([begin(key, **parts)], GRACE) == ["created"]
    return await take(store, key)


async def log(store: Store, key: str = ONE) -> list[Row]:
    return await store.read(key, limit=1_000_000)


async def head_of(store: Store, key: str = ONE) -> Head:
    head = await store.head(key)
    assert head is not None
    return head


async def accepted(store: Store, *mail: Mail) -> None:
    assert [sent.answer for sent in await store.send(mail, GRACE)] == ["accepted"] * len(mail)


async def claimed(store: Store, limit: int = 100, grace: int = GRACE) -> list[str]:
    return [due.key for due in await store.claim(QUEUES, DEFINITIONS, limit, grace)]


def kinds(rows: Sequence[Row]) -> list[type[Event]]:
    return [events.TYPES[row.type % 1000] for row in rows]


def ids(mail: Sequence[Mail]) -> list[str]:
    return [one.id for one in mail]


class StoreTests:
    """What the parts of the contract share: a fresh store and a clock for each test."""

    clock: ManualClock  # a new one for each test

    async def make_store(self) -> Store:
        """A new, empty store on `self.clock`; it is opened and closed by the contract."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let time pass for the store."""
        self.clock.advance(seconds)

    async def play(self, body: Callable[[Any, Store], Awaitable[None]]) -> None:
        self.clock = ManualClock()
        store = await self.make_store()
        await store.open()
        try:
            await body(self, store)
            for key in (ONE, TWO, THREE):
                check_log(await log(store, key), key)
        finally:
            await store.close()
