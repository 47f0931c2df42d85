"""The fault simulator: several workers, many faults, one seed.

Per seed a world with two or three workers, each behind gates of its own; clients that start, send, pause and cancel,
and repeat what they are not sure of; a nemesis that kills, stops and drains workers. Which faults are on and how often
they strike is drawn from the seed as well. Then everything heals, the rest comes to its end, and the invariants are
checked against what the clients were promised. The same seed gives the same run, to the last call.

`simulate(seeds=range(100))` runs random programs, to test the engine and its stores;
`simulate(fulfil, order, seeds=range(100))` does the same to a workflow of your own.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from random import Random
from typing import Any, TypeVarTuple

from msgspec import Struct, field

from perdure.core import events as ev
from perdure.core.commands import Asked
from perdure.core.records import ACTION, ENDED, Held, Row
from perdure.errors import ExecutionError, UsageError
from perdure.flows.workflow import Workflow
from perdure.stores.memory import MemoryStore
from perdure.testing.clock import run
from perdure.testing.crashes import Check, Send, drive, end_of
from perdure.testing.faults import CrashPoints, Process
from perdure.testing.machine import Client, Machine
from perdure.testing.programs import Sink, sink
from perdure.testing.swarm import Faults, RandomFaults, Rates, draw_swarm
from perdure.testing.workloads import Programs, Workload, Yours
from perdure.testing.world import MakeStore, World, at_once

Ts = TypeVarTuple("Ts")

#: Virtual seconds of faults at least, and at the end for late zombies.
CHAOS = 30.0
AFTER = 60.0
PAUSED, RESUMED, CANCEL_REQUESTED = ev.NUMBERS[ev.Paused], ev.NUMBERS[ev.Resumed], ev.NUMBERS[ev.CancelRequested]
STUCK, REDRIVEN = ev.NUMBERS[ev.Stuck], ev.NUMBERS[ev.Redriven]
#: Actions of programs that leave nothing to undo.
NEVER_AFTER_CANCEL = tuple(f"perdure.program.{name}" for name in ("act", "flaky", "fragile", "once"))
TIMER_FIRED = ev.NUMBERS[ev.TimerFired]
#: How many of the last lines of a run are shown when it fails.
LINES = 30


class SimulationFailed(AssertionError):
    """A seed broke an invariant: `invariant` is its number, `seed` gives the same run again."""

    def __init__(self, seed: int, invariant: str, message: str) -> None:
        super().__init__(message)
        self.seed = seed
        self.invariant = invariant


class Report(Struct):
    """What a simulation did."""

    seeds: int = 0
    executions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    hours: float = 0.0  # of virtual time
    traces: dict[int, str] = {}  # by seed: equal runs have equal hashes


def simulate(
    workflow: Callable[[*Ts], Coroutine[Any, Any, Any]] | None = None,
    *args: *Ts,
    seeds: Iterable[int] = range(100),
    send: Send = (),
    check: Check | None = None,
    executions: int = 3,
    faults: Sequence[str] | None = None,
    rate: float | None = None,
    store: MakeStore = MemoryStore,
) -> Report:
    """Run a simulation for every seed; raise SimulationFailed at the first that breaks an invariant.

    Without a workflow random programs are run. With one, `executions` of it are started in every simulation, get what
    `send` brings (as in `World.crash_everywhere`), and must end as they do without any faults; `check` is called with
    each run at the end. `faults` names those that are on (see `perdure.testing.swarm`) and `rate` is the share of calls
    that fail; by default every seed draws its own.

    >>> from perdure import workflow
    >>> @workflow
    ... async def double(number: int) -> int:
    ...     await asyncio.sleep(3)
    ...     return number * 2
    >>> simulate(double, 21, seeds=range(3)).executions
    9
    """
    make: Callable[[], Workload] = Programs
    if workflow is not None:
        if not isinstance(workflow, Workflow):
            raise UsageError("simulate() takes a workflow: decorate the function with @workflow")
        expected, length = run(_undisturbed(workflow, args, send, store))
        definition: Workflow[..., Any] = workflow

        def make() -> Workload:
            return Yours(definition, args, send, check, expected, executions, length)

    report = Report()
    for seed in seeds:
        simulation = Simulation(seed, make(), store, faults, rate)
        try:
            run(simulation.play(), seed=seed)
        except AssertionError as error:
            raise _failure(seed, error, simulation, workflow) from error
        simulation.add_to(report)
    return report


class SimulatedWorld(World):
    """A world that keeps a trace and watches the fences as they are written."""

    def __init__(self, simulation: Simulation, **options: Any) -> None:
        super().__init__(check_at_end=False, **options)
        self._simulation = simulation

    def saw(self, process: Process, verb: str, asked: Any, answer: Any) -> None:
        super().saw(process, verb, asked, answer)
        self._simulation.saw(process.name, verb, asked, answer)

    def launched(self, key: str, fence: int, asked: Asked) -> None:
        super().launched(key, fence, asked)
        paused = stuck = cancelled = False
        for row in at_once(self.rows(key)):
            if row.fence <= fence:  # what this holder knows
                paused = row.type == PAUSED or (paused and row.type != RESUMED)
                stuck = row.type == STUCK or (stuck and row.type != REDRIVEN)
                cancelled = cancelled or row.type == CANCEL_REQUESTED
        if paused:
            self.fail(f"I13, {key}: {asked.spec.name} is started although the execution is paused")
        if stuck:
            self.fail(f"I13, {key}: {asked.spec.name} is started although the execution is stuck")
        if cancelled and asked.spec.name in NEVER_AFTER_CANCEL:
            self.fail(f"I21, {key}: {asked.spec.name} is started although the execution is cancelled")

    def add_worker(self, points: CrashPoints | None = None, *, queues: Sequence[str] | None = None) -> Machine:
        machine = super().add_worker(points, queues=queues)
        machine.process.on_kill.append(lambda: self._simulation.died(machine.name, points))
        return machine


class Simulation:
    """One seed."""

    def __init__(
        self,
        seed: int,
        workload: Workload,
        store: MakeStore = MemoryStore,
        faults: Sequence[str] | None = None,
        rate: float | None = None,
    ) -> None:
        self.seed = seed
        self.sink = Sink()
        self.strikes: Counter[str] = Counter()
        self.lines: deque[str] = deque(maxlen=LINES)
        self._workload = workload
        self._swarm = draw_swarm(self.random("swarm"), faults, rate)
        self._faults: dict[str, RandomFaults] = {}
        self._clients: dict[str, Client] = {}
        self._trace = hashlib.sha256()
        self._healed = False
        self._replacements = self.random("replacements")
        # Where days are to pass, workers that have nothing to do may look up less often.
        settings = {**self._swarm.settings, "probe_idle": max(5.0, workload.patience / 1000)}
        self.world: World = SimulatedWorld(self, workers=0, store=store, faults=self._worker_faults, **settings)

    # What workloads ask for.

    def random(self, name: str) -> Random:
        """A generator of one's own: what one part draws does not change another."""
        return Random(f"{self.seed}:{name}")

    def client(self, name: str) -> Client:
        if name not in self._clients:
            self._clients[name] = self.world.client(name, self._draws(name, self._swarm.client))
        return self._clients[name]

    def note(self, line: str) -> None:
        line = f"{(self.world.micros() - self._began) / 1e6:12.6f} {line}"
        self._trace.update(line.encode())
        self.lines.append(line)

    # The play.

    async def play(self) -> None:
        sink.set(self.sink)
        self._context = copy_context()
        async with self.world:
            self._began = self.world.micros()
            for _ in range(self._swarm.workers):
                self._employ()
            nemesis = asyncio.create_task(self._nemesis(), name="nemesis")
            await self._workload.drive(self)
            await asyncio.sleep(CHAOS - min(CHAOS, (self.world.micros() - self._began) / 1e6))
            await self._heal(nemesis)
            await self._converge()
            await self._check()
            heads = await self.world.heads()
            ended = {head.key: head.version for head in heads}
            await asyncio.sleep(AFTER)
            await self._check()
            assert ended == {head.key: head.version for head in await self.world.heads()}, "I11: an ended log went on"
            self._executions = sum(not head.workflow.startswith(ACTION) for head in heads)  # those run apart
            self._hours = (self.world.micros() - self._began) / 3.6e9
            for client in self._clients.values():
                await client.close()

    def add_to(self, report: Report) -> None:
        report.seeds += 1
        report.executions += self._executions
        report.hours += self._hours
        report.traces[self.seed] = self._trace.hexdigest()
        report.faults.update(self.strikes)
        for faults in self._faults.values():
            report.faults.update(faults.count)

    async def _converge(self) -> None:
        deadline, pause = self.world.micros() + self._workload.patience * 1e6, 5.0
        while not await self._workload.finish(self):
            if self.world.micros() > deadline:
                left = [head for head in await self.world.heads() if head.status not in ENDED]
                whys = [str(await self.world.app.get(head.key.partition("/")[2]).why()) for head in left]
                raise AssertionError(f"L1: long after all faults these have not ended: {'; '.join(whys)}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, self._workload.patience / 30)

    async def _check(self) -> None:
        await self.world.check()
        await self._workload.verify(self)

    # Faults.

    def _draws(self, name: str, rates: Rates) -> RandomFaults:
        faults = self._faults[name] = RandomFaults(self.random(f"faults {name}"), rates)
        if self._healed:
            faults.heal()
        return faults

    def _worker_faults(self, name: str) -> Faults:
        return self._draws(name, self._swarm.worker)

    def _employ(self) -> None:
        """One more worker, perhaps one that will crash at one of its store calls."""
        points = None
        if "crash" in self._swarm.strikes and not self._healed:
            dice = self.random(f"crash {len(self.world.machines)}")
            points = CrashPoints(dice.choice((5, 20, 100)) + dice.randrange(40), after=dice.random() < 0.5)
        machine = self.world.add_worker(points)
        self.note(f"{machine.name} starts")
        machine.process.on_kill.append(self._replace)

    def _replace(self) -> None:
        # In the simulation's own context: what a dead process has set off would never come.
        delay = self._replacements.choice((0.3, 2.0, 5.0))
        asyncio.get_running_loop().call_later(delay, self._employ, context=self._context)

    async def _nemesis(self) -> None:
        random, strikes = self.random("nemesis"), [kind for kind in self._swarm.strikes if kind != "crash"]
        while strikes:
            await asyncio.sleep(random.expovariate(1 / self._swarm.every))
            kind, machines = random.choice(strikes), self.world.workers
            machine, length = random.choice(machines) if machines else None, random.choice((0.3, 2.0, 5.0, 9.0))
            if machine is not None:
                if kind != "kill":
                    self.strikes[kind] += 1
                self.note(f"{kind} {machine.name} for {length}")
                await self._strike(kind, machine, length)

    async def _strike(self, kind: str, machine: Machine, length: float) -> None:
        loop = asyncio.get_running_loop()
        match kind:
            case "kill":
                machine.process.kill()
            case "stop":
                machine.process.stop()
                loop.call_later(length, machine.process.cont)
            case "flush":
                machine.stream.flush()
            case "drain":
                await machine.shut_down()
                self._employ()
            case _:
                raise AssertionError(kind)

    async def _heal(self, nemesis: asyncio.Task[None]) -> None:
        self._healed = True
        nemesis.cancel()
        await asyncio.wait([nemesis])
        self.note("healed")
        for faults in self._faults.values():
            faults.heal()
        for machine in self.world.workers:
            machine.process.cont()
            machine.app.gate.points = CrashPoints()
        await asyncio.sleep(10)  # for those who are being replaced

    # The trace.

    def died(self, who: str, points: CrashPoints | None) -> None:
        self.strikes["crash" if points is not None and points.struck else "kill"] += 1
        self.note(f"{who} dies")

    def saw(self, who: str, verb: str, asked: Any, answer: Any) -> None:
        match verb:
            case "commit":
                for commit, outcome in zip(asked, answer, strict=True):
                    settle = type(commit.settle).__name__ if commit.settle is not None else "-"
                    rows = " ".join(f"{row.version}:{row.type}" for row in commit.rows)
                    self.note(f"{who} commits {commit.key} [{rows}] {settle}: {outcome}")
                    if outcome in ("ok", "mail"):
                        self._check_rows(commit.key, commit.rows)
            case "hold":
                for held in answer:
                    if isinstance(held, Held):
                        self.note(
                            f"{who} holds {held.key} by {held.token}, {len(held.rows)} rows, {len(held.mail)} mail"
                        )
                    else:
                        self.note(f"{who} does not hold {held.key}: {type(held).__name__}")
            case "send":
                for mail, sent in zip(asked, answer, strict=True):
                    self.note(f"{who} sends {mail.id} to {mail.key}: {sent.answer}")
            case "start":
                self.note(f"{who} starts {[start.key for start in asked]}: {answer}")
            case "claim" if answer:
                self.note(f"{who} claims {[due.key for due in answer]}")
            case "renew":
                self.note(f"{who} renews {len(asked)}: {len(answer)}")
            case _:
                pass

    def _check_rows(self, key: str, rows: Sequence[Row]) -> None:
        """What can only be seen at the moment of writing: what the world outside knows by now, and what time it is."""
        seen, now = self.sink.fences.get(key, 0), self.world.micros()
        for row in rows:
            if row.fence < seen:
                self.world.fail(f"I5b, {key}: an effect has seen fence {seen}, and then {row.fence} was written")
            if row.type == TIMER_FIRED:
                event = ev.read(row)
                assert isinstance(event, ev.TimerFired)
                if event.due > now:
                    self.world.fail(f"I10, {key}: timer {event.ref} fired {(event.due - now) / 1e6} s early")


async def _undisturbed(
    workflow: Workflow[..., Any], args: tuple[Any, ...], send: Send, store: MakeStore
) -> tuple[tuple[str, Any], float]:
    """How an execution ends without faults, and after how many seconds."""
    sink.set(Sink())
    async with World(store=store) as world:
        began = world.micros()
        going = await world.app.start(workflow, *args)
        await drive(going, send)
        with suppress(ExecutionError):
            await going.result()
        return end_of(await going.head()), (world.micros() - began) / 1e6


def _failure(seed: int, error: AssertionError, simulation: Simulation, workflow: Any) -> SimulationFailed:
    found = re.match(r"\w+", str(error))
    what = f"{workflow.name}, …, " if workflow is not None else ""
    last = "\n".join(simulation.lines)
    return SimulationFailed(
        seed,
        found[0] if found else "",
        f"{error}\nThis was seed {seed}; simulate({what}seeds=[{seed}]) runs it again. Its last lines:\n{last}",
    )
