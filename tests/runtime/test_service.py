from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, action, workflow
from perdure.errors import StoreError
from perdure.runtime import service
from perdure.runtime.service import serve
from perdure.runtime.work.worker import Worker
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import MemoryStream

began = asyncio.Event()
gate = asyncio.Event()


@action
async def gated() -> str:
    began.set()
    await gate.wait()
    return "through"


@workflow(name="service-test")
async def passes() -> str:
    return await gated()


def scenario(body: Callable[[Perdure], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def main() -> None:
        global began, gate
        began, gate = asyncio.Event(), asyncio.Event()
        async with asyncio.timeout(20), Perdure(f"sqlite:///{folder / 'service.db'}", lease=600) as app:
            await body(app)

    asyncio.run(main())


async def serving(app: Perdure) -> asyncio.Task[int]:
    """A service that is ready, with one action under way."""
    ready = asyncio.Event()
    task = asyncio.create_task(serve(app, ready=lambda _: ready.set()))
    await ready.wait()
    await app.start(passes, id="run")
    await began.wait()
    return task


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(tmp_path: Path, number: int) -> None:
    async def body(app: Perdure) -> None:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        task = await serving(app)
        os.kill(os.getpid(), number)
        while app.worker is not None:  # it has stopped taking work
            await asyncio.sleep(0)
        gate.set()
        assert await task == 0
        assert await app.get("run").status() == "completed"
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    scenario(body, tmp_path)


def test_the_second_signal_gives_back_at_once(tmp_path: Path) -> None:
    async def body(app: Perdure) -> None:
        task = await serving(app)
        os.kill(os.getpid(), signal.SIGINT)
        while app.worker is not None:
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task == 128 + signal.SIGTERM
        assert (await app.get("run").head()).holder is None
        assert [entry.type for entry in await app.get("run").log()] == ["Started"]

    scenario(body, tmp_path)


def test_cancelling_drains_too(tmp_path: Path) -> None:
    async def body(app: Perdure) -> None:
        task = await serving(app)
        task.cancel()
        while app.worker is not None:
            await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await app.get("run").status() == "completed"

    scenario(body, tmp_path)


def test_it_ends_with_what_it_is_to_wait_for(tmp_path: Path) -> None:
    async def body(app: Perdure) -> None:
        done = asyncio.Event()
        assert await serve(app, ready=lambda _: done.set(), until=done.wait) == 0

    scenario(body, tmp_path)


def test_an_error_while_serving_is_raised_after_the_drain(tmp_path: Path) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async def body(app: Perdure) -> None:
        with pytest.raises(ZeroDivisionError):
            await serve(app, until=broken)
        assert app.worker is None

    scenario(body, tmp_path)


def test_a_store_out_of_reach_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(StoreError):
            await serve(Perdure(f"sqlite:///{tmp_path / 'no' / 'folder' / 'service.db'}"))

    asyncio.run(main())


def test_in_another_thread_it_works_without_signals(tmp_path: Path) -> None:
    async def body(app: Perdure) -> None:
        other = Perdure(f"sqlite:///{tmp_path / 'other.db'}")

        async def main() -> int:
            done = asyncio.Event()
            async with other:
                return await serve(other, ready=lambda _: done.set(), until=done.wait)

        assert await asyncio.to_thread(lambda: asyncio.run(main())) == 0

    scenario(body, tmp_path)


def test_run_is_the_whole_process(tmp_path: Path) -> None:
    app = Perdure(f"sqlite:///{tmp_path / 'service.db'}")
    left: list[int] = []
    assert service.run(app, ready=lambda _: os.kill(os.getpid(), signal.SIGTERM), leave=left.append) == 0
    assert left == []


def test_run_leaves_what_does_not_want_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "AT_ONCE", 0.2)
    app = Perdure(f"sqlite:///{tmp_path / 'service.db'}")
    left: list[int] = []
    tasks: list[asyncio.Task[None]] = []
    free = False

    async def stubborn() -> None:
        while not free:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    def ready(_: Worker) -> None:
        tasks.append(asyncio.create_task(stubborn()))
        os.kill(os.getpid(), signal.SIGTERM)

    def leave(code: int) -> None:
        nonlocal free
        left.append(code)
        free = True

    service.run(app, ready=ready, leave=leave)
    assert left == [0]


def test_run_leaves_a_loop_that_does_not_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "AT_ONCE", 0.05)
    left: list[int] = []
    gone = threading.Event()

    class Sluggish(asyncio.SelectorEventLoop):
        def close(self) -> None:  # as one of uvloop that looks up names which nobody answers for
            assert gone.wait(10)
            super().close()

    def leave(code: int) -> None:
        left.append(code)
        gone.set()

    monkeypatch.setattr(service, "loop_factory", lambda _: Sluggish)
    app = Perdure(f"sqlite:///{tmp_path / 'service.db'}")
    service.run(app, ready=lambda _: os.kill(os.getpid(), signal.SIGTERM), leave=leave)
    assert left == [0]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_thread_of_the_loop_that_is_busy_is_not_waited_for(tmp_path: Path, loop: str) -> None:
    app = Perdure(f"sqlite:///{tmp_path / 'service.db'}", loop=loop)
    left: list[int] = []
    tasks: list[asyncio.Task[bool]] = []
    gone = threading.Event()

    def ready(_: Worker) -> None:
        tasks.append(asyncio.create_task(asyncio.to_thread(gone.wait, 10)))
        os.kill(os.getpid(), signal.SIGTERM)

    def leave(code: int) -> None:
        assert asyncio.get_running_loop().is_running(), "it is known before the loop is closed"
        left.append(code)
        gone.set()

    service.run(app, ready=ready, leave=leave)
    assert left == [0]


def test_calls_that_come_first_at_the_same_time_connect_once() -> None:
    class Counting(MemoryStore):
        opened = 0

        async def open(self) -> None:
            self.opened += 1
            await asyncio.sleep(0)
            await super().open()

    async def main() -> None:
        store = Counting()
        app = Perdure(store, stream=MemoryStream())  # nobody has opened it
        await asyncio.gather(*(app.start(passes, id=f"run-{n}") for n in range(5)))
        await app.close()
        assert store.opened == 1

    asyncio.run(main())
