"""The ports: what the runtime needs from a database and from a stream.

The contract is written here, once, and tested by `perdure.testing.contract` on every backend. Every verb takes many
executions and answers for each, so one bad execution never fails its neighbours. Every write is atomic. A write whose
outcome cannot be known raises OutcomeUnknown; a write that certainly did not happen raises another StoreError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from perdure.core.records import (
    Backlog,
    Commit,
    Due,
    Head,
    Hint,
    HoldAnswer,
    Lease,
    Mail,
    Outcome,
    Query,
    Row,
    Sent,
    Start,
    Started,
)


class Store(Protocol):
    """The only truth: heads, logs, wake rows and mailboxes."""

    async def open(self) -> None:
        """Connect and migrate; safe when many processes open at once."""

    async def close(self) -> None: ...

    async def now(self) -> int:
        """The clock that decides what is due, in microseconds; never runs backwards."""
        ...

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        """Create head, rows and wake row (due `grace` from now); idempotent by key: compares `sha`.

        An execution that has `topics` is found by them, from this write on until its end; by its correlation id and
        its tags it is found for ever.
        """
        ...

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        """Put mail into mailboxes, due `grace` from now by itself.

        Idempotent by message id, before and after it was folded into the log. Serialised against the end of the
        execution: what was accepted is folded, what comes later is answered `ended`.
        """
        ...

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        """Take executions that nobody holds (or whose lease is over), and read log and mailbox.

        Every hold raises the token. If the last holder did not release cleanly, a TakenOver row is appended first:
        it occupies the next version of a former holder. Rows begin at the newest Restarted; `known` maps keys to
        (version, token) of a replay in memory: if nobody held it since, only later rows come back. An execution that
        is not the oldest open one of its lane is Queued: it sleeps until the end of the one before makes it due.
        """
        ...

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        """Extend leases by (key, token); the keys that are not answered are lost."""
        ...

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        """Give holds back with no progress to write; they are due at once and lapses stay as they are."""

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        """The mail of executions that the caller holds, in order, without what is in the log already."""
        ...

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        """The one write of holders: all that `ok` answers stand for becomes durable together.

        Children and mail are due `grace` from now by themselves. If the store will never take what one of them writes,
        it raises one of REFUSALS and has written nothing of any; a store that has written others by then answers
        `refused` for that one.
        """
        ...

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        """Rows that are due, for hinting. A lapsed hold is freed and counted; a row is due again `grace` later,
        doubling with every unanswered hint up to 32 times.

        Tenants are served in turn, one row of each at a time, wherever their rows lie in a flood of another, and what
        is left out of one claim has its turn in one of the next. Where very many tenants wait, a few hundred are looked
        at by each claim.
        """
        ...

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        """The earliest due time of any wake row or mail."""
        ...

    async def backlog(self) -> list[Backlog]:
        """What is due and held by nobody, per queue."""
        ...

    async def begun(self, tenant: str, most: int) -> int:
        """How many open executions of a tenant have begun, counted up to `most`: somebody holds it, or it was parked,
        or its log has more than its first row. Children are left out, and so are those of the engine's own."""
        ...

    async def fresh(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that would be counted by `begun` if they had begun, and have not."""
        ...

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]: ...

    async def message(self, key: str, id: str) -> Mail | Row | None:
        """Where a message is: in the mailbox, in the log (which counts if it is in both), or nowhere.

        By an index: the length of the log does not matter.
        """
        ...

    async def listening(self, tenant: str, topics: Sequence[str], limit: int, after: str = "") -> dict[str, list[str]]:
        """The open executions of each of these topics, in the order of their keys: at most `limit` of each, after
        this key."""
        ...

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        """How many executions of a workflow a tenant has, and how many rows their logs have together.

        Both only rise: the same answer twice says that nothing was written to any of them in between.
        """
        ...

    async def head(self, key: str) -> Head | None:
        """All of it is of one moment: who decides by the state what to write next goes by the version beside it."""
        ...

    async def find(self, query: Query) -> list[Head]:
        """Heads, newest first. By correlation id and tags they are found by an index, in this order."""
        ...


class Locks(Protocol):
    """Leases by name. The token tells one acquisition from another; the fence rises with each."""

    async def take(self, name: str, token: str, lease: int) -> int | None:
        """The fence, or None while another token's lease runs."""
        ...

    async def extend(self, holds: Sequence[tuple[str, str, int]], lease: int) -> list[bool]:
        """Begin the leases of these names anew, each if it is still of this token and fence."""
        ...

    async def drop(self, name: str, token: str, fence: int) -> bool:
        """Give it back, if it is still this token's."""
        ...

    async def look(self, name: str) -> Lease | None:
        """The lease, if one runs: whose, under which fence, since when and until when. Extending keeps its begin."""
        ...

    async def close(self) -> None: ...


#: A transaction that takes further statements, one in which a statement has failed, and one that is over.
Standing: TypeAlias = Literal["open", "failed", "ended"]


@runtime_checkable
class Joining(Protocol):
    """A store whose writes can be part of a transaction of the caller's, on a connection of the store's driver."""

    async def start_in(self, connection: Any, starts: Sequence[Start], grace: int) -> list[Started]:
        """Like `start`; the executions exist if, and only if, the caller's transaction commits."""
        ...

    async def send_in(self, connection: Any, mail: Sequence[Mail], grace: int) -> list[Sent]:
        """Like `send`; the executions cannot end before the caller's transaction does."""
        ...

    async def commit_in(self, connection: Any, group: Sequence[Commit], grace: int) -> list[Outcome]:
        """Like `commit`; after an answer other than `ok` the caller should roll back."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A connection with an open transaction that commits at the end of the block."""
        ...

    async def standing(self, connection: Any) -> Standing:
        """What whoever was given it has made of its transaction; raises what they put off until its end."""
        ...


@runtime_checkable
class Twinned(Protocol):
    """A store that can be used from a second thread as well."""

    def twin(self) -> Store:
        """Another Store on the same data, with connections of its own, to be opened and closed by itself.

        Only while this one is open. It belongs to the event loop that opens it, so a thread with a loop of its own can
        go on when this one cannot.
        """
        ...


class KeyRing(Protocol):
    """The keys that seal what a tenant stores, 32 bytes each. Asked for every row, so it keeps them in memory.

    Raises KeyShredded when the keys of the tenant were destroyed, KeyMissing when they should be there and are not.
    """

    def current(self, tenant: str) -> tuple[bytes, bytes]:
        """The id, 8 bytes, and the key for what is written now; made, and kept for good, for a tenant that is new."""
        ...

    def get(self, tenant: str, id: bytes) -> bytes:
        """The key of this id, however old."""
        ...

    def index(self, tenant: str) -> bytes:
        """A key that never changes, for comparing what cannot be read."""
        ...


class Stream(Protocol):
    """Carries hints. It may lose, double and reorder them; the store's due times make up for it."""

    async def open(self, me: str, queues: Sequence[str]) -> None:
        """Begin to receive; `queues` may be empty for a process that only sends and listens for news."""

    async def close(self) -> None: ...

    @property
    def carries(self) -> bool:
        """Whether hints arrive with their keys. If not, new work must be due at once: a hint only says to look."""
        ...

    @property
    def trouble(self) -> str:
        """Why hints do not get through at present; empty when they do."""
        ...

    async def listen(self, key: str) -> None:
        """From now on the news of this execution's end will be received."""

    async def publish(self, hints: Sequence[Hint]) -> None:
        """Never raises for a lost hint. Hints with `news` go to everybody who serves any queue."""

    async def receive(self, limit: int) -> Sequence[Hint]:
        """Wait for at least one hint, take at most `limit`."""
        ...

    async def ack(self, hints: Sequence[Hint]) -> None:
        """After the hold's reply: from then on the lease's end is a due time."""
