"""The store of tests and first steps: everything in dicts, gone with the process.

It is the reference that the other stores are read against. Rules kept here: a verb never awaits while it changes
something, so each is atomic; a commit is checked completely before anything of it is applied; the log only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from perdure.core import events
from perdure.core.events import PROGRESS, TakenOver
from perdure.core.fairness import share_out
from perdure.core.records import (
    ENDED,
    Backlog,
    Busy,
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
    Queued,
    Row,
    Sent,
    Start,
    Started,
    Status,
    key_of,
    labels_of,
    labels_wanted,
    lane_of,
    served_as,
    tenant_of,
    topics_of,
)
from perdure.stores.fitting import fits, place
from perdure.stores.ticker import DOUBLINGS, NEVER, RESTARTED, TAKEN_OVER, Ticker


class _Wake(Struct):
    """When to look at an execution next, and who holds it. Held: `due` is the end of the lease."""

    due: int | None
    token: int
    holder: str | None = None
    lapses: int = 0
    hints: int = 0

    def live_holder(self, now: int) -> str | None:
        return self.holder if self.due is not None and self.due > now else None


class _Letter(Struct):
    """A mail in its mailbox, due by itself: a lost hint only delays it."""

    mail: Mail
    due: int


class _Execution:
    """Head, log, wake row (while it is open) and mailbox of one execution."""

    def __init__(self, start: Start, now: int, due: int) -> None:
        self.start = start
        self.served = start.queue, served_as(start.definition)
        self.status: Status = start.status
        self.base = start.base
        self.state = start.state
        self.waits: bytes | None = None
        self.result = start.result
        self.started_at = self.changed_at = now
        self.rows = list(start.rows)
        self.folded = {row.message_id: row.version for row in start.rows if row.message_id is not None}
        self.mailbox: dict[str, _Letter] = {}  # in the order of arrival
        # The first token is the time, so it exceeds every token of an execution that had this key long ago,
        # and every fence that a fork or an import brings along.
        token = max([now, *(row.fence for row in start.rows)])
        self.wake = None if start.status in ENDED else _Wake(due, token)
        self.lane = lane_of(start)
        self.noted: int | None = None  # its newest place in the agenda

    @property
    def version(self) -> int:
        return self.rows[-1].version

    @property
    def counts(self) -> bool:
        """Whether it is open, nobody's child and not of the engine's own."""
        return self.status == "open" and self.start.parent is None and ":" not in self.start.workflow

    @property
    def begun(self) -> bool:
        return self.waits is not None or len(self.rows) > 1 or (self.wake is not None and self.wake.holder is not None)

    def earliest(self) -> int | None:
        """When a claim should next look at it."""
        if self.wake is None:
            return None
        times = [letter.due for letter in self.mailbox.values()]
        if self.wake.due is not None:
            times.append(self.wake.due)
        return min(times, default=None)


class _Agenda:
    """Executions by due time, per queue, definition and tenant.

    An entry that is no longer true is dropped when it comes up.
    """

    def __init__(self, executions: Mapping[str, _Execution]) -> None:
        self._executions = executions
        self._heaps: dict[tuple[str, str], dict[str, list[tuple[int, str]]]] = {}

    def note(self, it: _Execution) -> None:
        due = it.earliest()
        if due != it.noted and due is not None:
            heaps = self._heaps.setdefault(it.served, {})
            heappush(heaps.setdefault(tenant_of(it.start.key), []), (due, it.start.key))
        it.noted = due

    def first(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        """When the earliest one is due."""
        tops = (self._top(heap) for heap in self._served(queues, definitions))
        return min((top for top in tops if top is not None), default=None)

    def pull(self, queues: Sequence[str], definitions: Sequence[str], now: int, limit: int) -> list[_Execution]:
        """Take so many of each tenant that are due off the agenda, the earliest first; the caller notes them again."""
        found: dict[str, int] = {}
        for heap in self._served(queues, definitions):
            enough = len(found) + limit
            while len(found) < enough and (due := self._top(heap)) is not None and due <= now:
                key = heappop(heap)[1]
                found[key] = due
                self._executions[key].noted = None
        return [self._executions[key] for key in sorted(found, key=lambda key: (found[key], key))]

    def _served(self, queues: Sequence[str], definitions: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
        """Of many definitions only a few have executions."""
        known = set(definitions)
        for (queue, definition), heaps in self._heaps.items():
            if queue in queues and definition in known:
                yield from heaps.values()

    def _top(self, heap: list[tuple[int, str]]) -> int | None:
        while heap:
            due, key = heap[0]
            if self._executions[key].earliest() == due:
                return due
            heappop(heap)
        return None


class MemoryStore:
    """A Store in memory; `clock` answers microseconds and may be a test's."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._ticker = Ticker(clock)
        self._executions: dict[str, _Execution] = {}
        self._lanes: dict[str, dict[str, None]] = {}  # the open executions of a lane, oldest first
        self._topics: dict[str, set[str]] = {}  # the open executions of a topic
        self._labels: dict[str, list[str]] = {}  # the executions that have a correlation id or a tag
        self._agenda = _Agenda(self._executions)
        self._served = ""  # the tenant whose turn was last

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def now(self) -> int:
        return self._ticker.now()

    # Start and send

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        now = self._ticker.now()
        return [self._start(start, now, now + grace) for start in starts]

    def _start(self, start: Start, now: int, due: int) -> Started:
        there = self._executions.get(start.key)
        if there is not None:
            return "same" if there.start.sha == start.sha else "conflict"
        it = self._executions[start.key] = _Execution(start, now, due)
        if it.lane is not None and it.wake is not None:
            self._lanes.setdefault(it.lane, {})[start.key] = None
        if start.topics and it.wake is not None:
            for topic in topics_of(start):
                self._topics.setdefault(topic, set()).add(start.key)
        for label in labels_of(start.key, start.correlation, start.tags):
            self._labels.setdefault(label, []).append(start.key)
        self._agenda.note(it)
        return "created"

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        now = self._ticker.now()
        return [self._send(one, now, now + grace) for one in mail]

    def _send(self, mail: Mail, now: int, due: int) -> Sent:
        it = self._executions.get(mail.key)
        if it is None:
            return Sent("missing")
        waiting = it.mailbox.get(mail.id)
        holder = it.wake.live_holder(now) if it.wake else None
        if waiting is not None:
            return Sent("duplicate" if waiting.mail.sha == mail.sha else "conflict", it.start.queue, holder)
        if (version := self._folded_at(it, mail.id)) is not None:
            return Sent("duplicate", it.start.queue, holder, version)
        if it.wake is None:
            return Sent("ended", it.start.queue)
        self._put(it, mail, due)
        return Sent("accepted", it.start.queue, holder)

    def _folded_at(self, it: _Execution, id: str) -> int | None:
        """The version at which a message entered the log, if it did."""
        return it.folded.get(id)

    def _put(self, it: _Execution, mail: Mail, due: int) -> None:
        it.mailbox[mail.id] = _Letter(mail, due)
        self._agenda.note(it)

    # Holds

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        now = self._ticker.now()
        # A key named twice is held once: a second hold by the same worker would write a barrier.
        answers = {key: self._hold(key, me, lease, now, (known or {}).get(key)) for key in dict.fromkeys(keys)}
        return [answers[key] for key in keys]

    def _hold(self, key: str, me: str, lease: int, now: int, known: tuple[int, int] | None) -> HoldAnswer:
        it = self._executions.get(key)
        if it is None or it.wake is None:
            return Gone(key)
        wake = it.wake
        holder = wake.live_holder(now)
        if holder is not None and holder != me:
            return Busy(key, holder)
        if it.lane is not None and next(iter(self._lanes[it.lane])) != key:
            wake.due, wake.hints = None, 0
            for letter in it.mailbox.values():
                letter.due = NEVER
            self._agenda.note(it)
            return Queued(key)
        clean = wake.holder is None and wake.lapses == 0
        after = known[0] if known is not None and known[1] == wake.token else it.base - 1
        if wake.holder is not None and wake.holder != me:
            wake.lapses += 1
        wake.token += 1
        wake.holder, wake.due, wake.hints = me, now + lease, 0
        if not clean:
            self._barrier(it, wake, me, now)
        self._agenda.note(it)
        return Held(
            key,
            wake.token,
            it.start.definition,
            it.start.queue,
            wake.lapses,
            it.status,
            rows=it.rows[after:],
            mail=self._unread(it),
            parent=it.start.parent,
            parent_ref=it.start.parent_ref,
            lane=it.lane is not None,
        )

    def _barrier(self, it: _Execution, wake: _Wake, me: str, now: int) -> None:
        """Occupy the next version of a former holder, who may still be writing."""
        if self._progressed(it):
            wake.lapses = min(wake.lapses, 1)
        event = TakenOver(holder=me, lapses=wake.lapses)
        it.rows.append(events.row(event, it.version + 1, at=now, fence=wake.token))

    def _progressed(self, it: _Execution) -> bool:
        """Whether the execution got somewhere since it was last taken over."""
        for row in reversed(it.rows):
            number = row.type % 1000
            if number in PROGRESS or number == TAKEN_OVER:
                return number in PROGRESS
        return False

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        due = self._ticker.now() + lease
        kept = set()
        for key, token in holds:
            held = self._held(key, token)
            if held is not None:
                it, wake = held
                wake.due = due
                self._agenda.note(it)
                kept.add(key)
        return kept

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        now = self._ticker.now()
        for key, token in holds:
            held = self._held(key, token)
            if held is not None:
                it, wake = held
                wake.holder, wake.due = None, now
                self._agenda.note(it)

    def _held(self, key: str, token: int) -> tuple[_Execution, _Wake] | None:
        """The execution and its wake row, if this token's hold still stands."""
        it = self._executions.get(key)
        if it is None or it.wake is None or it.wake.token != token or it.wake.holder is None:
            return None
        return it, it.wake

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        return {key: self._unread(self._executions[key]) if key in self._executions else [] for key in keys}

    def _unread(self, it: _Execution) -> list[Mail]:
        return [letter.mail for letter in it.mailbox.values() if letter.mail.id not in it.folded]

    # Commit

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        now = self._ticker.now()
        return [self._commit(commit, now, now + grace) for commit in group]

    def _commit(self, commit: Commit, now: int, due: int) -> Outcome:
        """Decide first, then apply: what is refused leaves no trace."""
        if commit.fired is not None and commit.fired > now:
            return "early"
        it = self._executions.get(commit.key)
        if it is None or not self._follows(it, commit.rows) or not self._folds_once(it, commit):
            return "stale"
        if commit.settle is not None and self._held(commit.key, commit.token) is None:
            return "stale"
        mail_waits = commit.settle is not None and self._mail_waits(it, commit)
        if mail_waits and isinstance(commit.settle, End):
            return "mail"
        self._append(it, commit)
        match commit.settle:
            case Park() as park:
                self._park(it, park, now, refused=mail_waits)
            case End() as end:
                self._end(it, end, now)
            case None:
                it.status = commit.status or it.status
        for child in commit.children:
            self._start(child, now, due)
        for mail in commit.mail:
            self._send(mail, now, due)
        self._agenda.note(it)
        return "mail" if mail_waits else "ok"

    def _follows(self, it: _Execution, rows: Sequence[Row]) -> bool:
        """Whether the rows take the next versions: the only check of a step."""
        return not rows or rows[0].version == it.version + 1

    def _folds_once(self, it: _Execution, commit: Commit) -> bool:
        """Whether every mail that is done is still there and no message enters the log a second time."""
        ids = [row.message_id for row in commit.rows if row.message_id is not None]
        return (
            all(id in it.mailbox for id in commit.done)
            and it.folded.keys().isdisjoint(ids)
            and len(ids) == len(set(ids))
        )

    def _mail_waits(self, it: _Execution, commit: Commit) -> bool:
        """Whether mail is left that this commit does not fold."""
        folds = {row.message_id for row in commit.rows}.union(commit.done)
        return any(mail.id not in folds for mail in self._unread(it))

    def _append(self, it: _Execution, commit: Commit) -> None:
        for row in commit.rows:
            it.rows.append(row)
            if row.message_id is not None:
                it.folded[row.message_id] = row.version
            if row.type % 1000 == RESTARTED:
                it.base = row.version
        for id in commit.done:
            it.mailbox.pop(id, None)

    def _park(self, it: _Execution, park: Park, now: int, refused: bool) -> None:
        assert it.wake is not None
        it.status, it.state, it.waits, it.changed_at = park.status, park.state or it.state, park.waits, now
        it.base = max(it.base, park.base)
        if not refused:
            it.wake = _Wake(park.due, it.wake.token)

    def _end(self, it: _Execution, end: End, now: int) -> None:
        it.status, it.state, it.waits, it.result, it.changed_at = (
            end.status,
            end.state or it.state,
            None,
            end.result,
            now,
        )
        it.base = max(it.base, end.base)
        it.wake = None
        it.mailbox.clear()
        if it.start.topics:
            self._stop_listening(it.start)
        if it.lane is not None:
            self._next_in_lane(it.lane, it.start.key, now)

    def _stop_listening(self, start: Start) -> None:
        for topic in topics_of(start):
            self._topics[topic].discard(start.key)
            if not self._topics[topic]:
                del self._topics[topic]

    def _next_in_lane(self, lane: str, key: str, now: int) -> None:
        members = self._lanes[lane]
        del members[key]
        following = self._executions[next(iter(members))] if members else None
        if following is None:
            del self._lanes[lane]
        elif following.wake is not None and following.wake.holder is None:
            following.wake.due = now
            self._agenda.note(following)

    # What is due

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        now = self._ticker.now()
        grace = max(grace, 1)  # a row that stayed due would be found for ever
        due = {it.start.key: it for it in self._agenda.pull(queues, definitions, now, limit)}
        chosen = share_out(due, limit, self._served)
        found = [self._hint(due[key], now, grace) for key in chosen]
        if chosen:
            self._served = tenant_of(chosen[-1])
        for it in due.values():
            self._agenda.note(it)
        return found

    def _hint(self, it: _Execution, now: int, grace: int) -> Due:
        wake = it.wake
        assert wake is not None  # only open executions are on the agenda
        if wake.due is not None and wake.due <= now:
            if wake.holder is not None:
                wake.holder = None
                wake.lapses += 1
                wake.token += 1
            wake.due = now + grace * 2 ** min(wake.hints, DOUBLINGS)
            wake.hints += 1
        for letter in it.mailbox.values():
            if letter.due <= now:
                letter.due = now + grace
        self._agenda.note(it)
        return Due(it.start.key, it.start.queue, wake.live_holder(now))

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        return self._agenda.first(queues, definitions)

    async def backlog(self) -> list[Backlog]:
        now = self._ticker.now()
        waiting: dict[str, list[int]] = {}
        for it in self._executions.values():
            due = it.earliest()
            if due is not None and due <= now and it.start.queue:
                waiting.setdefault(it.start.queue, []).append(due)
        return [Backlog(queue, len(dues), min(dues)) for queue, dues in sorted(waiting.items())]

    async def begun(self, tenant: str, most: int) -> int:
        ours = (it for key, it in self._executions.items() if tenant_of(key) == tenant)
        return min(most, sum(it.counts and it.begun for it in ours))

    async def fresh(self, keys: Sequence[str]) -> set[str]:
        there = {key: self._executions[key] for key in keys if key in self._executions}
        return {key for key, it in there.items() if it.counts and not it.begun}

    # Reading

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        it = self._executions.get(key)
        return [] if it is None else it.rows[after:until][:limit]

    async def message(self, key: str, id: str) -> Mail | Row | None:
        it = self._executions.get(key)
        if it is None:
            return None
        if (version := self._folded_at(it, id)) is not None:
            return it.rows[version - 1]
        return it.mailbox[id].mail if id in it.mailbox else None

    async def listening(self, tenant: str, topics: Sequence[str], limit: int, after: str = "") -> dict[str, list[str]]:
        there = {topic: self._topics.get(key_of(tenant, topic), ()) for topic in topics}
        return {topic: sorted(key for key in keys if key > after)[:limit] for topic, keys in there.items() if keys}

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        known = self._executions.items()
        ours = [it.version for key, it in known if it.start.workflow == workflow and tenant_of(key) == tenant]
        return len(ours), sum(ours)

    async def head(self, key: str) -> Head | None:
        it = self._executions.get(key)
        return None if it is None else self._head(it, self._ticker.now())

    def _head(self, it: _Execution, now: int) -> Head:
        wake = it.wake
        return Head(
            key=it.start.key,
            workflow=it.start.workflow,
            definition=it.start.definition,
            queue=it.start.queue,
            status=it.status,
            version=it.version,
            sha=it.start.sha,
            parent=it.start.parent,
            parent_ref=it.start.parent_ref,
            state=it.state,
            waits=it.waits,
            result=it.result,
            started_at=it.started_at,
            changed_at=it.changed_at,
            holder=wake.live_holder(now) if wake else None,
            due=wake.due if wake else None,
            lapses=wake.lapses if wake else 0,
            mail=len(it.mailbox),
            lane=it.start.lane if wake else None,
            token=wake.token if wake else 0,
            base=it.base,
            correlation=it.start.correlation,
            tags=it.start.tags,
        )

    async def find(self, query: Query) -> list[Head]:
        now = self._ticker.now()
        heads = (self._head(self._executions[key], now) for key in self._candidates(query))
        found = sorted((head for head in heads if fits(head, query)), key=place, reverse=True)
        return found[: query.limit]

    def _candidates(self, query: Query) -> Iterable[str]:
        if labels := labels_wanted(query):
            return self._labels.get(labels[0], ())  # the others are compared
        return (key for key in self._executions if query.tenant in (None, tenant_of(key)))
