"""Faults: a simulated process, and gates around its store and stream through which everything it does must pass.

Rules kept here:
- A kill is a gate that never returns, together with an owner whose callbacks never run again. Nothing is cancelled:
  that would run clean-up code and give back leases, which a dead process cannot do.
- A stop is a gate that waits, and an owner whose callbacks wait; the rest of the world goes on.
- A call can fail before it takes effect (StoreUnavailable), or after it, or take effect later than its error is seen
  (OutcomeUnknown). Nothing ever takes half an effect: that is the store's own promise.
- Hints may be lost, doubled and late, and so arrive in another order.
- A store need not bring all letters of a mailbox at once, only the oldest of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from typing import Any, TypeAlias, TypeVar

from msgspec import structs

from perdure.core.records import (
    Backlog,
    Commit,
    Due,
    Head,
    Held,
    Hint,
    HoldAnswer,
    Mail,
    Outcome,
    Query,
    Row,
    Sent,
    Start,
    Started,
)
from perdure.errors import OutcomeUnknown, StoreUnavailable
from perdure.ports import Store, Stream
from perdure.runtime.clock import Clock
from perdure.testing.clock import Owner, VirtualLoop, owner
from perdure.testing.swarm import Faults, NoFaults

T = TypeVar("T")

#: Verbs that change something: only their outcome can be unknown.
WRITES = frozenset({"start", "send", "hold", "renew", "release", "commit", "claim"})


class Process(Owner):
    """A simulated process: what is spawned in it dies with it, stops with it, and is buried when the test is over."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.killed = False
        self.buried = False
        self.on_kill: list[Callable[[], object]] = []
        self._going = asyncio.Event()
        self._going.set()

    def spawn(self, main: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run a coroutine in this process; all tasks that it makes belong to it too."""
        context = copy_context()
        context.run(owner.set, self)
        return asyncio.get_running_loop().create_task(main, name=name or self.name, context=context)

    def kill(self) -> None:
        """As by SIGKILL: not one more line of it runs."""
        if self.killed:
            return
        self.killed = True
        self._freeze(True)
        for callback in self.on_kill:
            callback()

    def stop(self) -> None:
        """As by SIGSTOP: nothing of it runs until `cont`."""
        if not self.killed:
            self._going.clear()
            self._freeze(True)

    def cont(self) -> None:
        if not self.killed:
            self._freeze(False)
            self._going.set()

    async def passage(self) -> None:
        """What every call of a port goes through, on its way out and on its way back."""
        if self.buried:
            raise asyncio.CancelledError
        if self.killed:
            await asyncio.get_running_loop().create_future()
        await self._going.wait()

    async def bury(self) -> None:
        """After the test: take what is left of a killed process out of memory. Only now may its clean-up run."""
        self.killed = self.buried = True
        for _ in range(100):  # clean-up may make new tasks, but not for ever
            tasks = [task for task in self.tasks if not task.done()]
            for task in tasks:
                task.cancel()
            self._freeze(False)
            if not tasks:
                return
            await asyncio.wait(tasks, timeout=1)

    def _freeze(self, frozen: bool) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            (loop.freeze if frozen else loop.thaw)(self)


class CrashPoints:
    """Counts the store calls of a process and kills it at the n-th, before or after the call takes effect.

    Without `at` it only counts.
    """

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.at = at
        self.after = after
        self.calls: list[str] = []
        self.counting = True
        self.struck = False

    def passed(self, verb: str) -> int | None:
        """The number of this call, from 0 on."""
        if not self.counting:
            return None
        self.calls.append(verb)
        return len(self.calls) - 1

    def kills(self, number: int | None, *, after: bool) -> bool:
        self.struck = self.struck or (number is not None and number == self.at and after is self.after)
        return self.struck


#: Told of every call that took effect: who, which verb, what was asked, what was answered.
Witness: TypeAlias = Callable[[Process, str, Any, Any], None]


class Gate:
    """The one door between a process and its store."""

    def __init__(
        self,
        process: Process,
        faults: Faults | None = None,
        points: CrashPoints | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.process = process
        self.faults = faults or NoFaults()
        self.points = points or CrashPoints()
        self._witness = witness
        self._flying: set[asyncio.Task[None]] = set()

    async def call(self, verb: str, asked: Any, effect: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Let one call through, or not."""
        await self.process.passage()
        number = self.points.passed(verb)
        fault = self.faults.call(verb)
        await self._way(fault.there)
        await self._kill_if(number, after=False)
        if fault.fate == "refused":
            await self._way(fault.back)
            raise StoreUnavailable(f"{verb} could not be done (injected); nothing was written")
        if fault.fate == "late" and verb in WRITES:
            self._fly(verb, asked, effect, fault.later)
            await self._way(fault.back)
            raise OutcomeUnknown(f"whether {verb} was done is not known (injected)")
        answer = await effect()
        if fault.letters:
            answer = _in_part(verb, answer, fault.letters)
        self._saw(verb, asked, answer)
        await self._kill_if(number, after=True)
        await self._way(fault.back)
        if fault.fate in ("lost", "late"):
            kind = OutcomeUnknown if verb in WRITES else StoreUnavailable
            raise kind(f"the answer to {verb} was lost (injected)")
        return answer

    async def close(self) -> None:
        """Forget effects that are still under way."""
        for task in list(self._flying):
            task.cancel()
        await asyncio.gather(*self._flying, return_exceptions=True)

    async def landed(self) -> None:
        """Wait for effects that are still under way."""
        while self._flying:
            await asyncio.wait(list(self._flying))

    async def _way(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # even if it takes no time, others get their turn
        await self.process.passage()

    async def _kill_if(self, number: int | None, *, after: bool) -> None:
        if self.points.kills(number, after=after):
            self.process.kill()
            await self.process.passage()

    def _fly(self, verb: str, asked: Any, effect: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> None:
        async def land() -> None:
            await asyncio.sleep(seconds)
            self._saw(verb, asked, await effect())

        # In a context of its own: what was sent arrives even if its sender is dead by then.
        task = asyncio.get_running_loop().create_task(land(), name=f"late {verb}", context=Context())
        self._flying.add(task)
        task.add_done_callback(self._flying.discard)

    def _saw(self, verb: str, asked: Any, answer: Any) -> None:
        if self._witness is not None:
            self._witness(self.process, verb, asked, answer)


def _in_part(verb: str, answer: Any, letters: int) -> Any:
    """The answer of a store that has room for so few letters of each mailbox."""
    match verb:
        case "mail":
            return {key: box[:letters] for key, box in answer.items()}
        case "hold":
            return [structs.replace(one, mail=one.mail[:letters]) if isinstance(one, Held) else one for one in answer]
        case _:
            return answer


class GatedStore:
    """A Store as one process sees it."""

    def __init__(self, store: Store, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    async def open(self) -> None:
        await self._gate.process.passage()
        await self._store.open()

    async def close(self) -> None:
        """The store itself belongs to all processes and stays open."""

    async def now(self) -> int:
        return await self._gate.call("now", None, self._store.now)

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        asked = list(starts)
        return await self._gate.call("start", asked, lambda: self._store.start(asked, grace))

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        asked = list(mail)
        return await self._gate.call("send", asked, lambda: self._store.send(asked, grace))

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        asked = list(keys)
        return await self._gate.call("hold", asked, lambda: self._store.hold(asked, me, lease, known))

    async def renew(self, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
        asked = list(holds)
        return await self._gate.call("renew", asked, lambda: self._store.renew(asked, lease))

    async def release(self, holds: Sequence[tuple[str, int]]) -> None:
        asked = list(holds)
        return await self._gate.call("release", asked, lambda: self._store.release(asked))

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        asked = list(keys)
        return await self._gate.call("mail", asked, lambda: self._store.mail(asked))

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        # A copy, as a driver makes when it encodes: the worker may go on with its own.
        asked = [
            structs.replace(
                commit,
                rows=list(commit.rows),
                done=list(commit.done),
                children=list(commit.children),
                mail=list(commit.mail),
            )
            for commit in group
        ]
        return await self._gate.call("commit", asked, lambda: self._store.commit(asked, grace))

    async def claim(self, queues: Sequence[str], definitions: Sequence[str], limit: int, grace: int) -> list[Due]:
        return await self._gate.call(
            "claim", None, lambda: self._store.claim(list(queues), list(definitions), limit, grace)
        )

    async def next_due(self, queues: Sequence[str], definitions: Sequence[str]) -> int | None:
        return await self._gate.call("next_due", None, lambda: self._store.next_due(queues, definitions))

    async def backlog(self) -> list[Backlog]:
        return await self._gate.call("backlog", None, self._store.backlog)

    async def begun(self, tenant: str, most: int) -> int:
        return await self._gate.call("begun", None, lambda: self._store.begun(tenant, most))

    async def fresh(self, keys: Sequence[str]) -> set[str]:
        return await self._gate.call("fresh", None, lambda: self._store.fresh(list(keys)))

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        return await self._gate.call("read", key, lambda: self._store.read(key, after, until, limit))

    async def message(self, key: str, id: str) -> Mail | Row | None:
        return await self._gate.call("message", key, lambda: self._store.message(key, id))

    async def listening(self, tenant: str, topics: Sequence[str], limit: int, after: str = "") -> dict[str, list[str]]:
        return await self._gate.call(
            "listening", None, lambda: self._store.listening(tenant, list(topics), limit, after)
        )

    async def extent(self, tenant: str, workflow: str) -> tuple[int, int]:
        return await self._gate.call("extent", None, lambda: self._store.extent(tenant, workflow))

    async def head(self, key: str) -> Head | None:
        return await self._gate.call("head", key, lambda: self._store.head(key))

    async def find(self, query: Query) -> list[Head]:
        return await self._gate.call("find", query, lambda: self._store.find(query))


class GatedStream:
    """A Stream as one process sees it."""

    def __init__(self, stream: Stream, process: Process, faults: Faults | None = None) -> None:
        self._stream = stream
        self._process = process
        self._faults = faults or NoFaults()
        self._flying: set[asyncio.Task[None]] = set()
        self._flush = False
        process.on_kill.append(self._died)

    async def open(self, me: str, queues: Sequence[str]) -> None:
        await self._process.passage()
        await self._stream.open(me, queues)

    async def close(self) -> None:
        for task in list(self._flying):
            task.cancel()
        await asyncio.gather(*self._flying, return_exceptions=True)
        await self._stream.close()

    @property
    def carries(self) -> bool:
        return self._stream.carries

    @property
    def trouble(self) -> str:
        return self._stream.trouble

    async def listen(self, key: str) -> None:
        await self._process.passage()
        await self._stream.listen(key)

    def flush(self) -> None:
        """Lose everything that waits to be received here."""
        self._flush = True

    async def publish(self, hints: Sequence[Hint]) -> None:
        await self._process.passage()
        at_once: list[Hint] = []
        for hint in hints:
            for delay in self._faults.hint(hint):
                if delay:
                    self._spawn(self._publish_later(hint, delay))
                else:
                    at_once.append(hint)
        await self._stream.publish(at_once)
        await self._process.passage()

    async def receive(self, limit: int) -> Sequence[Hint]:
        while True:
            await self._process.passage()
            hints = await self._stream.receive(limit)
            await self._process.passage()
            if not self._flush:
                return hints
            self._flush = False

    async def ack(self, hints: Sequence[Hint]) -> None:
        await self._process.passage()
        await self._stream.ack(hints)
        await self._process.passage()

    async def _publish_later(self, hint: Hint, delay: float) -> None:
        await asyncio.sleep(delay)
        await self._stream.publish([hint])

    def _died(self) -> None:
        """The connection of a dead process closes, so that hints go to the living."""
        self._spawn(self._stream.close())

    def _spawn(self, coro: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coro, context=Context())
        self._flying.add(task)
        task.add_done_callback(self._flying.discard)


class WrongClock(Clock):
    """A clock that runs too fast or too slow by this share, from one look at the store's clock to the next."""

    def __init__(self, store: Store, drift: float) -> None:
        super().__init__(store)
        self._drift = drift
        self._asked = 0

    async def sync(self) -> int:
        self._asked = await super().sync()
        return self._asked

    def now(self) -> int:
        return self._asked + int((super().now() - self._asked) * (1 + self._drift))
