"""What crosses the ports: rows of the log, mail, holds, commits and their answers.

Rules kept here: values only, no behaviour; times are integer microseconds since the epoch by the store's clock;
`data` is JSON that no store ever looks into. A key is `tenant/id`, so every row carries its tenant by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, structs

Status: TypeAlias = Literal["open", "paused", "stuck", "completed", "failed", "cancelled"]
#: What people see: an open execution is `running` while somebody holds it and `waiting` otherwise.
ShownStatus: TypeAlias = Literal["running", "waiting", "paused", "stuck", "completed", "failed", "cancelled"]
ENDED: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


#: A workflow's name has no colon, except for the engine's own: an action that runs apart from the execution that asked
#: for it is an execution of `action:NAME`, a lock one of `lock:`, a task for a person one of `person:`.
ACTION = "action:"
PERSON = "person:"
#: What was published at run time is named `published:NAME@VERSION`, and found in the store by whoever serves any of it.
PUBLISHED = "published:"
#: What an action waits in whose code is not Python's: a queue `external:TENANT/QUEUE`, which no worker serves.
EXTERNAL = "external:"
#: What the name of a tenant may be. No slash, for it ends where the first slash is; no colon, for that is the engine's.
TENANT = r"[A-Za-z0-9_-]{1,64}"


def key_of(tenant: str, id: str) -> str:
    return f"{tenant}/{id}"


def tenant_of(key: str) -> str:
    return key.partition("/")[0]


def lane_of(start: Start) -> str | None:
    """A lane is its tenant's own, like everything else."""
    return None if start.lane is None else key_of(tenant_of(start.key), start.lane)


def topics_of(start: Start) -> tuple[str, ...]:
    """A topic is its tenant's own, too."""
    return tuple(key_of(tenant_of(start.key), topic) for topic in dict.fromkeys(start.topics))


def labels_of(key: str, correlation: str | None, tags: Sequence[str]) -> tuple[str, ...]:
    """What an execution is found by, as stores keep it: its correlation id and its tags, and whose they are."""
    tenant = tenant_of(key)
    own = () if correlation is None else (key_of(tenant, f"c:{correlation}"),)
    return *own, *(key_of(tenant, f"t:{tag}") for tag in dict.fromkeys(tags))


def labels_wanted(query: Query) -> tuple[str, ...]:
    return labels_of(key_of(query.tenant or "", ""), query.correlation, query.tags)


def labelled(head: Head, labels: Iterable[str]) -> Head:
    """A head with the correlation id and the tags that these labels say."""
    told = sorted(id_of(label) for label in labels)
    correlation = next((one[2:] for one in told if one.startswith("c:")), None)
    return structs.replace(head, correlation=correlation, tags=tuple(one[2:] for one in told if one.startswith("t:")))


def external_queue(tenant: str, queue: str) -> str:
    """The queue of external tasks is its tenant's own: whoever asks for tasks must not even count those of others."""
    return EXTERNAL + key_of(tenant, queue)


def is_external(queue: str) -> bool:
    return queue.startswith(EXTERNAL)


def queue_of_all(queue: str) -> str:
    """What a queue is called where no tenant may be named: those of external tasks have the same name for all."""
    return EXTERNAL + id_of(queue) if is_external(queue) else queue


def id_of(key: str) -> str:
    return key.partition("/")[2]


def definition_of(workflow: str, version: int, hash: str = "") -> str:
    """How heads name a definition; one that has a hash was published."""
    return f"{PUBLISHED if hash else ''}{workflow}@{version}"


def served_as(definition: str) -> str:
    """What a worker has to serve to be given an execution of this definition: what was published, all of it."""
    return PUBLISHED if definition.startswith(PUBLISHED) else definition


class Row(Struct, frozen=True, gc=False):
    """One event of a log as it is stored: dense versions 1..n, never changed."""

    version: int
    type: int
    data: bytes
    at: int
    fence: int = 0
    message_id: str | None = None


class Start(Struct, frozen=True):
    """A new execution: its head, its first rows (one, or the prefix of a fork or an import), its wake row."""

    key: str
    workflow: str
    definition: str  # name@version
    queue: str
    sha: str  # of workflow and input: what makes a second start the same start
    rows: tuple[Row, ...]
    parent: str | None = None
    parent_ref: int | None = None
    lane: str | None = None  # executions of one lane run one at a time, in the order of their starts
    status: Status = "open"  # anything else only for an import of an ended log
    result: bytes | None = None
    state: bytes | None = None
    base: int = 1
    topics: tuple[str, ...] = ()  # what it listens for, for as long as it is open
    correlation: str | None = None  # what it is about; others may be about the same
    tags: tuple[str, ...] = ()  # each once, sorted


Started: TypeAlias = Literal["created", "same", "conflict"]


class Mail(Struct, frozen=True, gc=False):
    """A message for an execution. `id` is unique per execution and stays recognisable in the log."""

    key: str
    id: str
    data: bytes
    sha: str = ""


class Sent(Struct, frozen=True, gc=False):
    """The answer to one mail; `holder` is the worker that holds the execution now, to be hinted directly.

    A duplicate that is in the log already names its version there, so that the caller can compare the content.
    """

    answer: Literal["accepted", "duplicate", "conflict", "ended", "missing"]
    queue: str = ""
    holder: str | None = None
    version: int = 0


class Held(Struct, frozen=True):
    """The execution is ours: its token, the rows after what we knew, its mail in order."""

    key: str
    token: int
    definition: str
    queue: str
    lapses: int
    status: Status
    rows: Sequence[Row]
    mail: Sequence[Mail]
    parent: str | None = None
    parent_ref: int | None = None
    lane: bool = False  # others may wait for its end


class Busy(Struct, frozen=True, gc=False):
    """Another worker holds it: forward the hint."""

    key: str
    holder: str


class Gone(Struct, frozen=True, gc=False):
    """It has ended, or never was."""

    key: str


class Queued(Struct, frozen=True, gc=False):
    """Another execution of its lane comes first; its end will wake this one."""

    key: str


HoldAnswer: TypeAlias = Held | Busy | Gone | Queued


class Park(Struct, frozen=True, gc=False):
    """Give the hold back cleanly; wake at `due`, or only by mail. No state means that it has not changed."""

    status: Status
    due: int | None
    state: bytes | None = None
    waits: bytes | None = None
    base: int = 1


class End(Struct, frozen=True, gc=False):
    """The last commit of an execution."""

    status: Status
    result: bytes | None
    state: bytes | None = None
    base: int = 1


class Commit(Struct):
    """All that one execution writes in one atomic step."""

    key: str
    token: int
    rows: list[Row]
    settle: Park | End | None = None
    status: Status | None = None  # for the head to show at once, where nothing settles
    fired: int | None = None  # latest due time among the timers fired here: the store refuses it early
    done: Sequence[str] = ()  # ids of mail folded here: each must still be there
    children: Sequence[Start] = ()
    mail: Sequence[Mail] = ()  # to other executions; dropped where they have ended


#: ok: written. mail: written, but the park was refused because mail waits (the hold stands); for an End: refused,
#: nothing written, the hold stands. early: a timer is not due by the store's clock, nothing written, the hold stands.
#: stale: somebody else has moved on, nothing written: drop the memory. refused: the store will never take it, nothing
#: written, the hold stands; whoever commits it by itself is told why, by one of REFUSALS.
Outcome: TypeAlias = Literal["ok", "mail", "early", "stale", "refused"]


class Due(Struct, frozen=True, gc=False):
    """A wake row or mail whose time has come; `holder` is set when a live worker holds the execution."""

    key: str
    queue: str
    holder: str | None = None


class Backlog(Struct, frozen=True, gc=False):
    """What waits in a queue for a worker: how many rows are due (counted up to a limit), and since when the oldest."""

    queue: str
    due: int
    oldest: int


class Head(Struct, frozen=True):
    """The summary row of an execution, joined with its wake row."""

    key: str
    workflow: str
    definition: str
    queue: str
    status: Status
    version: int
    sha: str
    parent: str | None
    parent_ref: int | None
    state: bytes | None
    waits: bytes | None
    result: bytes | None
    started_at: int
    changed_at: int
    holder: str | None = None  # of a live lease
    due: int | None = None
    lapses: int = 0
    mail: int = 0
    lane: str | None = None  # while it is open
    token: int = 0  # of its latest hold, while it is open
    base: int = 1  # the version of its newest checkpoint: replay begins there
    correlation: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def shown(self) -> ShownStatus:
        if self.status == "open":
            return "running" if self.holder else "waiting"
        return self.status


class Lease(Struct, frozen=True, gc=False):
    """A lock that somebody has, as it is at the moment `now`."""

    token: str  # of the acquisition
    fence: int
    until: int
    now: int
    since: int | None = None  # not known of one that was taken by a version which did not keep it


class Query(Struct, frozen=True):
    """What `find` looks for, newest first. `fields` are equalities on published state, which no index knows of;
    correlation id and tags are found by one.

    No tenant means all of them: for the engine's own loops, never for an answer to somebody. Executions of the
    engine's own, such as actions that run apart, are left out unless they are `inner`.
    """

    tenant: str | None
    status: ShownStatus | None = None
    workflow: str | None = None
    parent: str | None = None
    inner: bool = True
    after: int | None = None  # started at or after
    before: int | None = None  # started before
    fields: dict[str, str | int | float | bool | None] = {}
    correlation: str | None = None  # like tags only together with a tenant
    tags: tuple[str, ...] = ()  # all of them
    limit: int = 50
    cursor: tuple[int, str] | None = None  # (started_at, key) of the last one seen


#: A result of at most so many bytes travels with the news of the end.
SHORT = 500


class Hint(Struct, frozen=True, gc=False):
    """What travels on a stream: a reference that may be lost, doubled or reordered.

    Without a key it says only that something is due in the queue: whoever serves it should look. With `news` it is no
    work at all but a word for every worker, whatever queues it serves.
    """

    key: str
    queue: str = ""
    to: str | None = None  # the worker that holds it
    ended: bool = False  # not work but news: the execution has ended
    status: str = ""  # how it has ended, and its result if that is short: this may get lost, too
    result: str = ""
    away: bool = False  # there is no room where it comes from: rather for another worker of the queue
    news: str = ""  # for all workers, as "breaker:charge:open:1700000000000000"
