"""Whoever waits for an end hears of it, and looks by itself ever more seldom."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from perdure import ExecutionCancelled, ExecutionStuck, Perdure, action, workflow
from perdure.core.records import End, Hint
from perdure.core.retry import Retry
from perdure.runtime.callers.ends import Ends
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import Hub, MemoryStream
from perdure.testing.clock import run, virtual_loop


def test_a_long_wait_looks_ever_more_seldom() -> None:
    async def body() -> None:
        ends, loop, looked = Ends(2.0), asyncio.get_running_loop(), list[float]()
        while loop.time() < 400:
            assert await ends.of("t/one", len(looked)) is None
            looked.append(loop.time())
        assert looked == [2, 6, 14, 30, 62, 126, 190, 254, 318, 382, 446]

    run(body())


def test_each_looks_at_its_own_time_whoever_came_first() -> None:
    async def body() -> None:
        ends, loop = Ends(2.0), asyncio.get_running_loop()
        late = asyncio.ensure_future(ends.of("t/one", 3))
        left = ends.of("t/two", 2)
        soon = asyncio.ensure_future(ends.of("t/two"))
        ends.leave("t/two", left)
        assert (await soon, loop.time()) == (None, 2)
        again = asyncio.ensure_future(ends.of("t/two"))
        ends.came("t/two", End("completed", b"1"))
        assert (await again, loop.time()) == (End("completed", b"1"), 2)
        assert (await late, loop.time()) == (None, 16)

    run(body())


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop has no Windows")
def test_two_who_are_due_at_once_are_told_on_every_loop() -> None:
    """A handle of uvloop that is due at once does not know when."""
    uvloop = pytest.importorskip("uvloop")

    async def body() -> list[End | None]:
        ends = Ends(0.0)
        return list(await asyncio.gather(ends.of("t/one"), ends.of("t/two")))

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            assert runner.run(body()) == [None, None]


@action(name="ends-fails", retries=Retry(attempts=1, spent="stuck"))
async def fails() -> None:
    raise ConnectionError("nobody is there")


@workflow(name="ends-gets-stuck")
async def gets_stuck() -> None:
    await fails()


def test_who_waits_in_another_process_hears_that_it_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        url = f"sqlite:///{tmp_path}/s.db"
        async with Perdure(url) as here, Perdure(url) as there, there.working():
            told: list[Hint] = []
            publish = there.stream.publish

            async def noted(hints: list[Hint]) -> None:
                told.extend(hints)
                await publish(hints)

            monkeypatch.setattr(there.stream, "publish", noted)
            run = await here.start(gets_stuck, id="one")
            with pytest.raises(ExecutionStuck, match="nobody is there"):
                await run.result(timeout=30)
            assert [hint.key for hint in told if hint.ended] == ["default/one"]

    asyncio.run(body())


@workflow(name="ends.sleeps")
async def sleeps(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@action(name="ends.long")
async def long(seconds: float) -> None:
    await asyncio.sleep(seconds)


@workflow(name="ends.works")
async def works(seconds: float) -> None:
    await long(seconds)


class Asked(MemoryStream):
    """Brings the news that was asked for since it was opened, as a broker does, and no other."""

    async def open(self, me: str, queues: Sequence[str]) -> None:
        self._keys: set[str] = set()
        await super().open(me, queues)

    async def listen(self, key: str) -> None:
        self._keys.add(key)

    async def receive(self, limit: int) -> Sequence[Hint]:
        hints = await super().receive(limit)
        return [hint for hint in hints if not hint.ended or hint.key in self._keys]


def play_two(main: Callable[[Perdure, Perdure], Awaitable[None]]) -> None:
    """In virtual time; the second application has a worker, and whoever looks by itself comes far too late."""

    async def body() -> None:
        store, hub = MemoryStore(virtual_loop("this test").now), Hub()
        one, two = (Perdure(store, stream=Asked(hub), grace="1h", lease="1h", probe="1h") for _ in range(2))
        async with one, two, two.working(), asyncio.timeout(60):
            await main(one, two)

    run(body())


def test_who_waits_while_a_worker_comes_and_goes_in_its_process_hears_of_the_end() -> None:
    async def main(one: Perdure, two: Perdure) -> None:
        ids = [(await two.start(sleeps, seconds)).id for seconds in (2, 5)]
        waiting = [asyncio.create_task(one.get(id).result()) for id in ids]
        await asyncio.sleep(1)
        async with one.working():
            assert await waiting[0] == 2
        assert await waiting[1] == 5

    play_two(main)


def test_who_asks_while_the_worker_of_its_process_stops_hears_of_the_end_and_takes_nothing_from_it() -> None:
    async def main(one: Perdure, two: Perdure) -> None:
        ends = [await two.start(sleeps, seconds) for seconds in (3, 10, 20)]

        async def ask_late() -> list[float]:
            await asyncio.sleep(2)
            return await asyncio.gather(*(one.get(end.id).result() for end in ends[:2]))

        async with one.working():
            held = await one.start(works, 5)
            await asyncio.sleep(1)
            asking = asyncio.create_task(ask_late())
            cancelling = asyncio.create_task(cancel_late(two, held.id))
        await cancelling
        assert await asking == [3, 10]
        assert await one.get(ends[2].id).result() == 20

    async def cancel_late(two: Perdure, id: str) -> None:
        await asyncio.sleep(3)
        run = two.get(id)
        await run.cancel()
        with pytest.raises(ExecutionCancelled):
            await run.result("1s")

    play_two(main)


def test_hints_are_read_by_the_worker_alone_whoever_asks_for_an_end_while_it_begins_or_stops() -> None:
    async def body() -> None:
        async with Perdure("memory://") as app:
            opened = app.stream.open

            async def opens(me: str, queues: Sequence[str]) -> None:
                app.news("default/one")
                await asyncio.sleep(0)
                await opened(me, queues)

            app.stream.open = opens  # type: ignore[method-assign]
            async with app.working():
                assert not app._listener.listens
            assert not app._listener.listens
            app.news("default/one")
            assert app._listener.listens

    asyncio.run(body())


def test_ends_are_heard_in_a_second_event_loop() -> None:
    app = Perdure("memory://")

    async def ask() -> None:
        await app.open()
        app.news("default/one")
        await asyncio.sleep(0)
        task = app._listener._task
        assert task is not None and not task.done()

    asyncio.run(ask())
    asyncio.run(ask())
