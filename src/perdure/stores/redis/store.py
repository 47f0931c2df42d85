"""The verbs of the Store port in Redis.

Rules kept here: a verb is one script, so it is atomic, and a server with `appendfsync always` has it on its disk before
it answers; the server's clock decides what is due; many executions are handed over in parts of so many, each of which
is short, but a group of commits is never parted. Holders have connections of their own, so that no search and no burst
of starts delays them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from perdure.core.fairness import VISITS
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
    labels_wanted,
)
from perdure.errors import OutcomeUnknown, StoreError
from perdure.stores.redis import packing, promises, search
from perdure.stores.redis.address import read_address
from perdure.stores.redis.packing import Words
from perdure.stores.redis.trouble import outdated
from perdure.stores.redis.wires import LAYOUT, Command, Wires, closed
from perdure.stores.ticker import DOUBLINGS

T = TypeVar("T")

#: So many executions, or messages, go into one script: all others wait while it runs.
PART = 200
#: Connections of holders, and of everybody else.
WORK, CALLS = 4, 8
#: What is counted of a backlog at most: rows, and tenants that are looked at.
BACKLOG = 10_000, 1_000
#: For so many seconds the answer of the server's clock is good enough to guess when something is due. What is due is
#: always decided by the server.
CLOCK = 5.0
_NONE = Words()


class RedisStore:
    """A Store under one prefix of a Redis; `clock` is for tests only, and takes the place of the server's."""

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None) -> None:
        self._url = url
        self.address = read_address(url)
        self._clock = clock
        self._last = self._told = 0
        self._asked = float("-inf")
        self._wait: tuple[Command, ...] = ()
        self._wires: tuple[Wires, Wires] | None = None

    async def open(self) -> None:
        """Look at the server and at the layout; whoever comes first writes the layout down."""
        await self.close()
        work, calls = wires = Wires(self.address, WORK), Wires(self.address, CALLS)
        try:
            version = await promises.examine(calls, self.address)
            self._wait = promises.confirmation(self.address, version)
            there = await work.run("open", LAYOUT, wait=self._wait)
            if int(there) != LAYOUT:
                raise outdated(there.decode(), self.address.place, LAYOUT)
        except BaseException:
            for one in wires:
                await one.close()
            raise
        self._wires = wires

    async def close(self) -> None:
        wires, self._wires = self._wires, None
        for one in wires or ():
            await one.close()

    def twin(self) -> RedisStore:
        return RedisStore(self._url, clock=self._clock)

    async def schema_number(self) -> int:
        """The number of the layout that is there; 0 for none."""
        wires = Wires(self.address, 1)
        try:
            [found] = await wires.plain(("GET", f"{self.address.keys}layout"))
        finally:
            await wires.close()
        return int(found or 0)

    async def now(self) -> int:
        """Asked for once in a while: in between, what has passed here since has passed there too.

        It is never ahead, for it is counted from when the answer was here: to be asked may take long.
        """
        here = time.monotonic()
        if self._clock is not None or here - self._asked > CLOCK:
            self._told = int(await self._read("now"))
            here = self._asked = time.monotonic()
        self._last = max(self._last, self._told + int((here - self._asked) * 1e6))
        return self._last

    # Start and send

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        return [one.decode() for one in await self._write_in_parts("start", starts, packing.start_words, grace)]

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        return [packing.read_sent(one) for one in await self._write_in_parts("send", mail, packing.mail_words, grace)]

    async def _write_in_parts(
        self, name: str, every: Sequence[T], packed: Callable[[T, Words], object], grace: int
    ) -> list[Any]:
        answers: list[Any] = []
        for part in _parts(every):
            words = Words()
            given = [packed(one, words) for one in part]
            try:
                answers += await self._write(self._calls, name, grace, given, words=words)
            except StoreError as error:
                if not answers:
                    raise
                raise OutcomeUnknown(
                    f"{self.address.place}: {len(answers)} of {len(every)} writes were done when the next could not be;"
                    " repeat the call with the same ids"
                ) from error
        return answers

    # Holds

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        # A key named twice is held once: a second hold by the same worker would write a barrier.
        once = list(dict.fromkeys(keys))
        answers: dict[str, HoldAnswer] = {}
        for part in _parts(once):
            asked = [(key, *(known or {}).get(key, (None, None))) for key in part]
            try:
                told = await self._write(self._work, "hold", me, lease, packing.barrier(me), asked)
            except StoreError:
                if not answers:
                    raise
                break  # what is held already must be told; the rest will be due again
            answers |= {key: packing.read_hold(key, one) for key, one in zip(part, told, strict=True)}
        return [answers.get(key) or Gone(key) for key in keys]

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        kept: set[str] = set()
        for part in _parts(holds):
            kept |= {key.decode() for key in await self._run(self._work, "renew", lease, part)}
        return kept

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        for part in _parts(holds):
            await self._run(self._work, "release", part)

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        found: dict[str, list[Mail]] = {}
        for part in _parts(list(dict.fromkeys(keys))):
            boxes = await self._run(self._work, "mail", part)
            found |= {key: packing.read_box(key, box) for key, box in zip(part, boxes, strict=True)}
        return found

    # Commit

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        if not group:
            return []
        words = Words()
        commits = [packing.commit_words(commit, words) for commit in group]
        return [one.decode() for one in await self._write(self._work, "commit", grace, commits, words=words)]

    # What is due

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        # A row that stayed due would be found for ever, and one that is named twice would be found twice.
        words = _once(queues), _once(definitions), limit, max(grace, 1), VISITS, DOUBLINGS
        found = await self._run(self._work, "claim", *words)
        return [Due(key.decode(), queue.decode(), holder and holder.decode()) for key, queue, holder in found]

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        """Brings the time along, so that whoever looks what is due need not ask for it."""
        due, now = await self._run(self._work, "next_due", _once(queues), _once(definitions))
        self._asked, self._told = time.monotonic(), int(now)
        return None if due is None else int(due)

    async def backlog(self) -> list[Backlog]:
        found = await self._read("backlog", *BACKLOG)
        return sorted((Backlog(queue.decode(), due, int(oldest)) for queue, due, oldest in found), key=_queue)

    async def begun(self, tenant: str, most: int) -> int:
        [count] = await self._calls.plain(("SCARD", f"{self.address.keys}begun:{tenant}"))
        return min(most, int(count))

    async def fresh(self, keys: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for part in _parts(keys):
            found |= {key.decode() for key in await self._run(self._work, "fresh", part)}
        return found

    # Reading

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        last = after + limit if until is None else min(until, after + limit)
        if last <= after:
            return []
        [rows] = await self._calls.plain(("LRANGE", f"{self.address.keys}l:{key}", after, last - 1))
        return packing.read_rows(rows, after)

    async def message(self, key: str, id: str) -> Mail | Row | None:
        version, found = await self._read("message", key, id)
        if found is None:
            return None
        return packing.read_row(found, version) if version else packing.read_letter(key, id, found)

    async def listening(self, tenant: str, topics: Sequence[str], limit: int, after: str = "") -> dict[str, list[str]]:
        once = _once(topics)
        if not once:
            return {}
        begin = f"({after}" if after else "-"
        keys = [f"{self.address.keys}topic:{key_of(tenant, topic)}" for topic in once]
        found = await self._calls.plain(*(("ZRANGEBYLEX", key, begin, "+", "LIMIT", 0, limit) for key in keys))
        return {topic: [key.decode() for key in keys] for topic, keys in zip(once, found, strict=True) if keys}

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        count, rows = await self._read("extent", tenant, workflow)
        return count, int(rows or 0)

    async def head(self, key: str) -> Head | None:
        now, pairs, version, mail = await self._read("head", key)
        return packing.read_head(key, pairs, version, mail, int(now)) if pairs else None

    async def find(self, query: Query) -> list[Head]:
        if query.tenant is not None:
            return await search.find_in(self._read, query.tenant, query)
        if labels_wanted(query):
            return []  # a label is its tenant's own
        # The engine's own loops ask for all tenants: that is as many searches in one.
        [tenants] = await self._calls.plain(("ZRANGE", f"{self.address.keys}tenants", 0, -1))
        found = [head for one in tenants for head in await search.find_in(self._read, one.decode(), query)]
        return search.newest(found, query.limit)

    # Scripts

    @property
    def _work(self) -> Wires:
        if self._wires is None:
            raise closed(self.address.place)
        return self._wires[0]

    @property
    def _calls(self) -> Wires:
        if self._wires is None:
            raise closed(self.address.place)
        return self._wires[1]

    async def _read(self, name: str, *values: object) -> Any:
        return await self._run(self._calls, name, *values)

    async def _write(self, wires: Wires, name: str, *values: object, words: Words | None = None) -> Any:
        """Like `_run`, and not believed before the replicas have it that must have it. A lease need not be there."""
        return await self._run(wires, name, *values, words=words or _NONE, wait=self._wait)

    async def _run(
        self, wires: Wires, name: str, *values: object, words: Words = _NONE, wait: tuple[Command, ...] = ()
    ) -> Any:
        tested = "" if self._clock is None else self._clock()
        return await wires.run(name, words.packed(*values), LAYOUT, tested, *words.blobs, wait=wait)


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), PART):
        yield items[begin : begin + PART]


def _once(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _queue(backlog: Backlog) -> str:
    return backlog.queue
