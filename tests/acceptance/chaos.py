"""The simulation's programs, clients and checks, on real servers and processes, and a nemesis that strikes at them.

What is drawn is drawn from a seed, as in the simulation; what comes of it is up to the machine. A run that fails names
its seed and what struck when.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, cast

import asyncpg
from msgspec import structs

from perdure import Perdure, Run
from perdure.core.records import ENDED, Head, Query, Row
from perdure.errors import StoreError
from perdure.testing import programs
from perdure.testing.checks import check_head, check_replay
from perdure.testing.invariants import check_log, check_who
from perdure.testing.programs import Effect, Program, Sink
from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import ValkeyServer
from perdure.testing.workloads import Persistence, Plan, Programs, Stage, draw_plan
from tests.acceptance.chaos_flows import rival
from tests.acceptance.cluster import Cluster, again
from tests.cli.processes import Process

#: Everything takes so much less time than in the simulation, where it costs nothing.
FASTER = 5.0
#: Seconds after the last fault within which all must have come to an end.
PATIENCE = 60.0
RIVALS, TURNS = 4, 3


class Crowd(Programs):
    """More programs at once, all of them quicker."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    async def drive(self, stage: Stage) -> None:
        random = stage.random("workload")
        self.plans = [_hurried(draw_plan(random, number)) for number in range(self._count)]
        async with asyncio.TaskGroup() as group:
            for number, plan in enumerate(self.plans):
                by = Persistence(stage.client(f"client-{number % 2}"), stage.random(f"client {plan.key}"))
                group.create_task(self._perform(plan, by))


def _hurried(plan: Plan) -> Plan:
    script = [(at / FASTER, verb, name) for at, verb, name in plan.script]
    return structs.replace(plan, stages=_quicker(plan.stages), script=script)


def _quicker(stages: Program) -> Program:
    changed: Program = [[[dict(step) for step in branch] for branch in stage] for stage in stages]
    for step in programs.steps(changed):
        for name in step.keys() & {"takes", "limit"}:
            step[name] /= FASTER
        if "program" in step:
            step["program"] = _quicker(step["program"])
    return changed


class Field:
    """The stage of the workload: what it needs of a world, over real stores."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.seed = cluster, seed
        self.app = cluster.app()
        self.world: Any = self
        self.lines: list[str] = []
        self.struck: Counter[str] = Counter()
        self._clients: dict[str, Perdure] = {}
        self._began = time.monotonic()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Field]:
        async with self.app:
            try:
                yield self
            finally:
                for client in self._clients.values():
                    await client.close()

    def random(self, name: str) -> Random:
        return Random(f"{self.seed}:{name}")

    def client(self, name: str) -> Any:
        if name not in self._clients:
            self._clients[name] = self.cluster.app()
        return self._clients[name]

    def note(self, line: str) -> None:
        self.lines.append(f"{time.monotonic() - self._began:.2f} {line}")

    @property
    def store(self) -> Any:
        return self.app.store

    @property
    def sink(self) -> Sink:
        found = Sink()
        found.effects = [
            Effect(call["key"], call["step"]) for call in self.cluster.ledger.calls() if "lock" not in call
        ]
        return found

    async def heads(self) -> list[Head]:
        return [head for head in await self.store.find(Query(tenant=None, limit=1_000_000)) if head.queue]

    async def rows(self, key: str) -> list[Row]:
        return cast(list[Row], await self.store.read(key, limit=1_000_000))

    async def logs(self) -> dict[str, list[Row]]:
        return {head.key: await self.rows(head.key) for head in await self.heads()}


class Nemesis:
    """Strikes every now and then, until it is told to stop; then everything is whole again."""

    def __init__(self, field: Field, crew: Sequence[Process], postgres: PostgresServer, redis: ValkeyServer) -> None:
        self._field, self._crew = field, list(crew)
        self._postgres, self._redis = postgres, redis
        self._random = field.random("nemesis")
        self._later: set[asyncio.Task[None]] = set()

    async def rage(self, kinds: Sequence[str], every: float) -> None:
        strikes: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "drain": self._drain,
            "flush": self._flush,
            "redis": self._restart_redis,
            "postgres": self._restart_postgres,
            "cut": self._cut,
        }
        for number in range(10_000):
            await asyncio.sleep(self._random.uniform(0.2, 1.8) * every)
            # Each kind once first, so that none is left to chance.
            kind = kinds[number] if number < len(kinds) else self._random.choice(kinds)
            self._field.struck[kind] += 1
            self._field.note(kind)
            await strikes[kind]()

    async def heal(self) -> None:
        await asyncio.gather(*self._later)
        for worker in self._crew:
            worker.signal(signal.SIGCONT)

    def _do_later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._later.add(task)

    async def _replace(self) -> None:
        """As a process manager does: what cannot start, because a server is away, is started again."""
        for _ in range(20):
            worker = self._field.cluster.process("worker", str(self._field.cluster.flows))
            with suppress(AssertionError):  # it has ended before
                await asyncio.to_thread(worker.line, "^ready: ")
                self._crew.append(worker)
                return
            code = await asyncio.to_thread(worker.end)
            assert code == 1, f"it ended with {code}, and does not say what it lacks: {worker.seen}"
        raise AssertionError("no worker can start")

    def _one(self) -> Process | None:
        """One that others can spare."""
        return self._random.choice(self._crew) if len(self._crew) > 1 else None

    async def _kill(self) -> None:
        if (worker := self._one()) is not None:
            self._crew.remove(worker)
            worker.signal(signal.SIGKILL)
            self._do_later(self._replace())

    async def _stop(self) -> None:
        if (worker := self._one()) is not None:
            worker.signal(signal.SIGSTOP)
            self._do_later(self._go_on(worker, self._random.choice((0.5, 2.0, 3.0))))

    async def _go_on(self, worker: Process, seconds: float) -> None:
        await asyncio.sleep(seconds)
        worker.signal(signal.SIGCONT)

    async def _drain(self) -> None:
        """As when a deployment is renewed: the new one is there before the old one goes."""
        if (worker := self._one()) is not None:
            self._crew.remove(worker)
            self._do_later(self._renew(worker))

    async def _renew(self, worker: Process) -> None:
        await self._replace()
        worker.signal(signal.SIGCONT)
        worker.signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.end) == 0, f"it did not drain: {worker.seen}"

    async def _flush(self) -> None:
        await asyncio.to_thread(self._redis.do, "FLUSHALL")

    async def _restart_redis(self) -> None:
        self._redis.kill()
        await asyncio.sleep(self._random.choice((0.0, 1.0)))
        await asyncio.to_thread(self._redis.start)

    async def _restart_postgres(self) -> None:
        await asyncio.to_thread(self._postgres.restart, "immediate")

    async def _cut(self) -> None:
        connection = await asyncpg.connect(self._postgres.address())
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        await connection.close()


async def endure(field: Field, nemesis: Nemesis, kinds: Sequence[str], seconds: float, every: float) -> None:
    """Load and faults for a while, then peace; then every promise is checked."""
    crowd, began = Crowd(max(10, round(2 * seconds))), time.monotonic()
    rage = asyncio.create_task(nemesis.rage(kinds, every))
    async with asyncio.TaskGroup() as group:
        group.create_task(crowd.drive(field))
        rivals = [group.create_task(_rival(field, number)) for number in range(RIVALS)]
    while time.monotonic() - began < seconds and not rage.done():
        await asyncio.sleep(0.05)
    rage.cancel()
    if isinstance(found := (await asyncio.gather(rage, return_exceptions=True))[0], Exception):
        raise found
    await nemesis.heal()
    field.note("healed")
    before = await field.logs()
    await _converge(field, crowd)
    assert [await task.result().result(timeout=PATIENCE) for task in rivals] == [TURNS] * RIVALS
    await _check(field, crowd, before)


async def _rival(field: Field, number: int) -> Run[int]:
    return await again(lambda: field.client("client-0").start(rival, TURNS, id=f"rival-{number}"))


async def _converge(field: Field, crowd: Crowd) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if await crowd.finish(field):
                return
        except StoreError:
            pass
        assert time.monotonic() < end, (
            f"L1: long after all faults these have not ended:"
            f" {[(head.key, head.status) for head in await field.heads() if head.status not in ENDED]}"
        )
        await asyncio.sleep(0.1)


async def _check(field: Field, crowd: Crowd, before: dict[str, list[Row]]) -> None:
    now = await field.store.now()
    for head in await field.heads():
        rows = await field.rows(head.key)
        check_log(rows, head.key)
        check_who(rows, head.key)
        check_head(head, rows, now)
        check_replay(head, rows)
        known = before.get(head.key, [])
        assert rows[: len(known)] == known, f"I7, {head.key}: what was written was changed"
    await crowd.verify(cast(Stage, field))
    check_locks(field.cluster)


def check_locks(cluster: Cluster) -> None:
    """No two had the lock under one number, and whoever came later had a higher one."""
    calls = [call for call in cluster.ledger.calls() if "lock" in call]
    came = [call["lock"] for call in calls if call["step"] == "in"]
    assert len(came) >= RIVALS * TURNS
    assert came == sorted(set(came)), f"two were let in under one number, or out of turn: {came}"
