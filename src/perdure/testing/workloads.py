"""What clients do in a simulation, what they were promised, and how the promises are checked.

A client that gets no clear answer repeats its call with the same id, or gives up and is owed nothing; a call that was
answered is a promise. Rules kept here: everything is drawn before it is done, so faults do not change the plan; every
complaint is an AssertionError that names the broken invariant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from random import Random
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from perdure.core import events as ev
from perdure.core.moments import moment
from perdure.core.records import ENDED, Head, Row, id_of, key_of
from perdure.errors import ExecutionEnded, ExecutionNotFound, RetryRefused, StoreError
from perdure.flows.workflow import Workflow
from perdure.runtime.app import Perdure
from perdure.testing import programs
from perdure.testing.checks import check_children, check_effects, check_saga, check_sent
from perdure.testing.crashes import Check, Send, drive, end_of
from perdure.testing.machine import Client
from perdure.testing.programs import Program, Sink
from perdure.testing.world import World

T = TypeVar("T")
#: Seconds without faults that are enough for anything that was held up.
PEACE = 900.0


class Promise(Struct):
    """An event that a client has sent: `ok` once it was accepted, and then its place among those of that client."""

    key: str
    id: str
    name: str
    client: str
    state: str = "unknown"  # unknown, ok, refused
    place: int = 0


class Stage(Protocol):
    """What a workload needs of the simulation."""

    world: World
    sink: Sink

    def random(self, name: str) -> Random: ...
    def client(self, name: str) -> Client: ...
    def note(self, line: str) -> None: ...


class Workload(Protocol):
    """What happens in a simulation besides faults."""

    #: Seconds after the last fault within which all must have come to an end.
    patience: float

    async def drive(self, stage: Stage) -> None:
        """While everything fails."""

    async def finish(self, stage: Stage) -> bool:
        """Once everything works again: do what is left to do; True when all has come to an end."""
        ...

    async def verify(self, stage: Stage) -> None:
        """At the end."""


class Persistence:
    """A client that repeats its calls: with the same id they mean the same."""

    def __init__(self, client: Perdure, random: Random) -> None:
        self.client = client
        self._random = random

    async def insist(self, call: Callable[[], Awaitable[T]], tries: int) -> T | None:
        """The answer, or None if there was none that is clear."""
        for _ in range(tries):
            try:
                return await call()
            except StoreError:
                await asyncio.sleep(self._random.choice((0.0, 0.1, 1.0, 4.0)))
        return None


class Journal:
    """What clients know: which events were accepted, in which order, and what they asked for besides."""

    def __init__(self) -> None:
        self.promises: dict[tuple[str, str], Promise] = {}
        self.cancelled: set[str] = set()
        self._places = 0

    async def send(self, by: Persistence, key: str, name: str, id: str, tries: int) -> None:
        promise = self.promises.setdefault((key, id), Promise(key, id, name, by.client.me))

        async def call() -> str:
            try:
                await by.client.send(id_of(key), name, name, event_id=id)
            except ExecutionEnded:
                return "refused"
            except ExecutionNotFound:
                return "unknown"
            return "ok"

        answer = await by.insist(call, tries)
        if answer == "ok" and promise.state != "ok":
            promise.state = "ok"
            if by.client.me == promise.client:  # what somebody else had to repeat may have arrived long before
                self._places += 1
                promise.place = self._places
        elif answer == "refused" and promise.state == "ok":
            raise AssertionError(f"I15, {key}: event {id} was accepted, and refused when it was repeated")
        elif answer == "refused":
            promise.state = "refused"

    def check(self, key: str, rows: Sequence[Row]) -> None:
        """I1 and I16 for one log."""
        folded = {row.message_id: row.version for row in rows if isinstance(ev.read(row), ev.EventReceived)}
        mine = [promise for promise in self.promises.values() if promise.key == key]
        for promise in mine:
            there = promise.id in folded
            assert there or promise.state != "ok", f"I1, {key}: event {promise.id} was accepted and is not in the log"
            assert not there or promise.state != "refused", f"I1, {key}: event {promise.id} was refused and is there"
        for client in dict.fromkeys(promise.client for promise in mine):
            accepted = [promise for promise in mine if promise.client == client and promise.place]
            accepted.sort(key=lambda promise: promise.place)
            versions = [folded[promise.id] for promise in accepted]
            assert versions == sorted(versions), f"I16, {key}: events of {client} were folded in another order"


class Plan(Struct):
    """One execution of a random program, and what is done to it and when."""

    key: str
    stages: Program
    rounds: int
    script: list[tuple[float, str, str]]  # time, verb, name


def draw_plan(random: Random, number: int) -> Plan:
    stages, rounds = programs.draw(random), random.choice((0, 0, 0, 0, 1, 2))
    begin = random.uniform(0, 8)
    script: list[tuple[float, str, str]] = [(begin, "start", "")]
    for name in programs.events(stages, rounds):
        if random.random() < 0.9:
            script.append((begin + random.uniform(0, 25), "send", name))
    for n in range(random.choice((0, 0, 1, 3))):
        script.append((begin + random.uniform(0, 25), "send", f"noise-{n}"))
    if random.random() < 0.3:
        pause = begin + random.uniform(0, 20)
        script += [(pause, random.choice(("pause", "nap")), ""), (pause + random.uniform(0, 8), "resume", "")]
    if random.random() < 0.15:
        script.append((begin + random.uniform(0, 25), random.choice(("cancel", "cancel", "abort")), ""))
    return Plan(key_of("default", f"p{number}"), stages, rounds, sorted(script))


class Programs:
    """Random programs, and clients that are hard on them."""

    patience = PEACE

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.journal = Journal()

    async def drive(self, stage: Stage) -> None:
        random = stage.random("workload")
        self.plans = [draw_plan(random, number) for number in range(random.randint(2, 5))]
        clients = [stage.client("client-1"), stage.client("client-2")]
        await _together(
            self._perform(plan, Persistence(clients[number % 2], stage.random(f"client {plan.key}")))
            for number, plan in enumerate(self.plans)
        )

    async def _perform(self, plan: Plan, by: Persistence) -> None:
        now = 0.0
        for at, verb, name in plan.script:
            await asyncio.sleep(at - now)
            now = at
            await self._do(plan, by, verb, name, tries=by._random.randint(1, 6))

    async def _do(self, plan: Plan, by: Persistence, verb: str, name: str, tries: int) -> None:
        id, app = id_of(plan.key), by.client
        try:
            match verb:
                case "start":
                    await by.insist(lambda: app.start(programs.program, plan.stages, plan.rounds, id=id), tries)
                case "send":
                    await self.journal.send(by, plan.key, name, f"{name}-id", tries)
                    if by._random.random() < 0.2:  # once more, although it was answered
                        await self.journal.send(by, plan.key, name, f"{name}-id", tries)
                case "pause":
                    await by.insist(app.get(id).pause, tries)
                case "nap":
                    until = moment(app.clock.now()) + timedelta(seconds=5)
                    await by.insist(lambda: app.get(id).pause(until=until), tries)
                case "resume":
                    await by.insist(app.get(id).resume, tries)
                case "cancel":
                    self.journal.cancelled.add(plan.key)
                    await by.insist(lambda: app.get(id).cancel(timeout=30), tries)
                case "abort":
                    self.journal.cancelled.add(plan.key)
                    await by.insist(lambda: app.get(id).cancel(now=True), tries)
                case _:
                    raise AssertionError(verb)
        except (ExecutionEnded, ExecutionNotFound):
            pass

    async def finish(self, stage: Stage) -> bool:
        by = Persistence(stage.client("closer"), stage.random("closer"))
        for plan in self.plans:
            head = await stage.world.store.head(plan.key)
            if head is None:
                await self._do(plan, by, "start", "", tries=9)
            elif head.status not in ENDED:
                for name in programs.events(plan.stages, plan.rounds):
                    promise = self.journal.promises.get((plan.key, f"{name}-id"))
                    if promise is None or promise.state != "ok":
                        await self.journal.send(by, plan.key, name, f"{name}-id", tries=9)
        heads = await stage.world.heads()
        for head in heads:
            await _mend(head, by)
        return all(head.status in ENDED for head in heads) and len(heads) >= len(self.plans)

    async def verify(self, stage: Stage) -> None:
        logs = {head.key: await stage.world.rows(head.key) for head in await stage.world.heads()}
        for plan in self.plans:
            rows = logs[plan.key]
            self.journal.check(plan.key, rows)
            _check_end(plan, rows, cancelled=plan.key in self.journal.cancelled)
        for key, rows in logs.items():
            check_saga(key, rows)
            check_children(key, rows, logs)
            check_sent(key, rows, logs)
        check_effects(stage.sink)


async def _mend(head: Head, by: Persistence) -> None:
    """What a person would do for an execution that does not go on by itself."""
    run = by.client.get(id_of(head.key))
    try:
        if head.status == "paused":
            await by.insist(run.resume, 9)
        elif head.status == "stuck":
            stuck = msgspec.json.decode(head.waits or b"{}").get("stuck") or {}
            assert stuck.get("cause") in ("lapses", "attempts"), (
                f"I17, {head.key}: stuck ({stuck.get('cause')}): {stuck.get('reason')}"
            )
            await by.insist(run.retry, 9)
    except (ExecutionEnded, RetryRefused):
        pass  # it has gone on since it was looked at


def _check_end(plan: Plan, rows: Sequence[Row], cancelled: bool) -> None:
    last, predicted = ev.read(rows[-1]), programs.predict(plan.stages)
    if isinstance(last, ev.Cancelled):
        assert cancelled, f"I21, {plan.key}: cancelled, and nobody asked for it"
    elif predicted is None:
        assert isinstance(last, ev.Failed), f"model, {plan.key}: it should fail and ended with {last}"
    else:
        assert isinstance(last, ev.Completed), f"model, {plan.key}: it should complete and ended with {last}"
        result = msgspec.json.decode(last.result)
        assert programs.agrees(result, predicted), f"model, {plan.key}: {result} instead of {predicted}"


class Yours:
    """Executions of one workflow, which must end as they do without faults."""

    def __init__(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        send: Send,
        check: Check | None,
        expected: Any,
        executions: int,
        length: float,
    ) -> None:
        self.patience = PEACE + 3 * length
        self._workflow = workflow
        self._args = args
        self._send = send
        self._check = check
        self._expected = expected
        self._ids = [f"run-{number}" for number in range(executions)]
        self._driven: set[str] = set()

    async def drive(self, stage: Stage) -> None:
        random = stage.random("workload")
        plans = [(id, random.uniform(0, 10)) for id in self._ids]
        await _together(
            self._one(stage, Persistence(stage.client(f"client {id}"), stage.random(f"client {id}")), id, at)
            for id, at in plans
        )

    async def _one(self, stage: Stage, by: Persistence, id: str, at: float) -> None:
        await asyncio.sleep(at)
        started = await by.insist(lambda: by.client.start(self._workflow, *self._args, id=id), 6)
        if started is not None and callable(self._send):
            # A driver of the user's own is not prepared for errors: it talks through a client without faults.
            self._driven.add(id)
            await drive(stage.world.app.get(id), self._send)
        elif started is not None and not callable(self._send):
            for number, (name, payload) in enumerate(self._send, 1):
                for _ in range(by._random.choice((1, 1, 2))):
                    await by.insist(lambda: _sent(by.client, id, name, payload, number), 6)  # noqa: B023

    async def finish(self, stage: Stage) -> bool:
        app = stage.world.app
        for id in self._ids:
            run = await app.start(self._workflow, *self._args, id=id)
            if (await run.head()).status in ENDED:
                continue
            if callable(self._send):
                if id not in self._driven:
                    self._driven.add(id)
                    await drive(run, self._send)
            else:
                for number, (name, payload) in enumerate(self._send, 1):
                    await _sent(app, id, name, payload, number)
        heads = await stage.world.heads()
        for head in heads:
            await _mend(head, Persistence(app, stage.random("closer")))
        return all(head.status in ENDED for head in heads)

    async def verify(self, stage: Stage) -> None:
        for id in self._ids:
            run = stage.world.app.get(id)
            head = await run.head()
            end = end_of(head)
            assert end == self._expected, f"without faults it ends as {self._expected}, with them {id} ended as {end}"
            if self._check is not None:
                answer = self._check(run)
                if answer is not None:
                    await answer


async def _together(clients: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of them at once; the first that complains is heard as if it were alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def _sent(app: Any, id: str, name: str, payload: Any, number: int) -> bool:
    try:
        await app.send(id, name, payload, event_id=f"sent-{number}")
    except ExecutionEnded:
        return False
    return True
