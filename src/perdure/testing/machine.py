"""The inhabitants of a World: machines (a process with a worker) and clients (a process without).

Both are ordinary applications behind gates. A client's `result()` does not look again and again but is told, so that
waiting for thirty days costs nothing and a wait for ever can be seen as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from perdure.core.commands import Asked
from perdure.core.records import End
from perdure.errors import StoreError
from perdure.runtime.app import Perdure
from perdure.runtime.attempts.attempt import Running, Whose
from perdure.runtime.work.worker import Worker
from perdure.streams.memory import MemoryStream
from perdure.testing.faults import CrashPoints, Gate, GatedStore, GatedStream, Process, Witness, WrongClock
from perdure.testing.swarm import Faults

if TYPE_CHECKING:
    from perdure.testing.world import World

#: Longer than any test, in seconds.
NEVER = 1e10


class _App(Perdure):
    """An application with names and ids that are the same in every run of a test."""

    def __init__(
        self,
        world: World,
        process: Process,
        faults: Faults | None = None,
        points: CrashPoints | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.world = world
        self.process = process
        self.gate = Gate(process, faults, points, witness or world.saw)
        store = GatedStore(world.store, self.gate)
        self.gated_stream = stream = GatedStream(MemoryStream(world.hub), process, faults)
        settings = structs.replace(world.settings, queues=",".join(world.queues()))
        super().__init__(store, stream=stream, settings=settings)
        self._names.me = process.name
        if faults is not None and faults.drift:
            self.clock = WrongClock(store, faults.drift)

    def new_id(self) -> str:
        return self.world.new_id()


class Client(_App):
    """An application that starts and asks, in a process without a worker."""

    def __init__(self, world: World, process: Process, faults: Faults | None = None) -> None:
        super().__init__(world, process, faults)
        # News is never lost here, so `result()` need not look for itself; but what is written is due as ever.
        self.settings = structs.replace(self.settings, grace=NEVER)

    def _grace(self) -> int:
        return int(self.world.settings.grace * 1e6)

    def news(self, key: str, looks: int = 0) -> asyncio.Future[End | None]:
        return self.world.end(key)

    async def close(self) -> None:
        await super().close()
        await self.gate.close()


class Machine:
    """A process with a worker."""

    def __init__(
        self,
        world: World,
        name: str,
        faults: Faults | None,
        points: CrashPoints | None,
        queues: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self._queues = queues
        self.process = Process(name)
        self.app = _App(world, self.process, faults, points, self._saw)
        self.stream = self.app.gated_stream
        self._world = world
        self._counted: Worker | None = None
        self._over = asyncio.Event()
        self._main = self.process.spawn(self._work(), name)

    @property
    def lives(self) -> bool:
        return not self.process.killed and not self._over.is_set()

    def is_busy(self) -> bool:
        """Whether actions run here."""
        worker = self.app.worker
        return worker is not None and any(resident.running for resident in worker.residents.values())

    def failure(self) -> BaseException | None:
        """What broke the worker, if anything did: its loops never end by themselves."""
        if self.process.killed:
            return None
        tasks = [self._main, *(self.app.worker._tasks if self.app.worker is not None else ())]
        ended = [task for task in tasks if task.done() and not task.cancelled()]
        return next((error for task in ended if (error := task.exception()) is not None), None)

    async def shut_down(self) -> None:
        """End as a process ends that is told to."""
        if not self.lives:
            return
        self.process.cont()
        if (error := self.failure()) is not None:
            raise AssertionError(f"{self.name} broke down: {error!r}") from error
        self._over.set()
        await asyncio.shield(self._main)  # who waits may give up, but it ends all the same

    async def bury(self) -> None:
        """Take out of memory what a crash has left there."""
        worker = self.app.worker
        if worker is not None:
            for resident in (*worker.residents.values(), *worker.rooms.parked.values()):
                resident.drop()
            worker._executor.shutdown(wait=False, cancel_futures=True)
            worker.attempts.processes.close()
        await self.process.bury()
        await self.app.gate.close()
        await self.app.stream.close()

    async def _work(self) -> None:
        while not self._over.is_set():
            try:
                async with self.app.working(self._queues):
                    await self._over.wait()
            except StoreError:  # as a service does that cannot reach its store: begin again
                await asyncio.sleep(0.5)
        await self.app.close()

    def _saw(self, process: Process, verb: str, asked: Any, answer: Any) -> None:
        if self.app.worker is not None and self.app.worker is not self._counted:
            self._count_attempts(self.app.worker)
        self._world.saw(process, verb, asked, answer)

    def _count_attempts(self, worker: Worker) -> None:
        """A worker runs nothing before its first call of the store, so none is missed.

        What was launched may still be called off or put off, so calls are watched as well.
        """
        self._counted = worker
        start = worker.attempts.start

        def counted(whose: Whose, asked: Asked) -> Running:
            self._world.launched(whose.key, whose.token, asked)
            return start(whose, asked)

        for verb, watch in (("start", counted), ("calling", self._world.called)):
            setattr(worker.attempts, verb, watch)  # a method, which type checkers rightly defend
