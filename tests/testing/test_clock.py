"""Virtual time: jumps, threads, deadlocks, seeds, owners."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context

import pytest

from perdure.testing.clock import Deadlock, Owner, VirtualLoop, now, owner, run


def loop() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


def test_a_year_passes_in_no_time():
    async def main() -> float:
        await asyncio.sleep(365 * 24 * 3600)
        return loop().time()

    began = time.monotonic()
    assert run(main()) == 365 * 24 * 3600
    assert time.monotonic() - began < 20


def test_every_loop_begins_at_the_same_moment():
    async def main() -> str:
        return now().isoformat()

    assert run(main()) == run(main()) == "2030-01-01T00:00:00+00:00"


def test_sleepers_wake_in_the_order_of_their_times():
    async def main() -> list[int]:
        woken: list[int] = []

        async def sleeper(delay: int) -> None:
            await asyncio.sleep(delay)
            woken.append(delay)

        await asyncio.gather(*(sleeper(delay) for delay in (300, 1, 20_000, 3)))
        return woken

    assert run(main()) == [1, 3, 300, 20_000]


def test_time_stands_still_while_a_thread_works():
    async def main() -> float:
        await asyncio.to_thread(time.sleep, 0.05)
        return loop().time()

    assert run(main()) == 0


def test_a_timeout_around_a_thread_that_hangs_still_comes(monkeypatch):
    monkeypatch.setattr("perdure.testing.clock.PATIENCE", 0.05)
    release = threading.Event()

    async def main() -> None:
        try:
            async with asyncio.timeout(0.1):
                await asyncio.to_thread(release.wait, 10)
        finally:
            release.set()

    with pytest.raises(TimeoutError):
        run(main())


def test_a_wake_up_from_a_thread_of_ones_own_is_waited_for():
    async def main() -> str:
        here, answer = loop(), loop().create_future()

        def work() -> None:
            time.sleep(0.02)
            here.call_soon_threadsafe(answer.set_result, "done")

        thread = threading.Thread(target=work)
        thread.start()
        try:
            return await answer
        finally:
            thread.join()

    assert run(main()) == "done"


def test_a_subprocess_is_waited_for():
    async def main() -> bytes:
        process = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0]

    assert run(main()) == b"hello\n"


def test_waiting_for_nothing_is_an_error_that_says_who_waits():
    async def forgotten() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(forgotten(), name="the forgotten one")

    with pytest.raises(Deadlock, match=r"the forgotten one waits at .*forgotten, line \d+"):
        run(main())


def test_settled_returns_when_nothing_more_happens_at_this_instant():
    async def main() -> list[int]:
        seen: list[int] = []

        async def chain(number: int) -> None:
            for _ in range(number):
                await asyncio.sleep(0)
            seen.append(number)

        tasks = [asyncio.create_task(chain(number)) for number in (50, 3)]
        tasks.append(asyncio.create_task(asyncio.sleep(1, result=None)))
        await loop().settled()
        assert loop().time() == 0
        await asyncio.gather(*tasks)
        return seen

    assert run(main()) == [3, 50]


def order(seed: int | None) -> list[int]:
    async def main() -> list[int]:
        seen: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep(0 if number % 2 else 1)
            seen.append(number)

        await asyncio.gather(*(one(number) for number in range(12)))
        return seen

    return run(main(), seed=seed)


def test_a_seed_draws_the_order_of_what_is_ready():
    orders = {tuple(order(seed)) for seed in range(10)}
    assert len(orders) == 10
    assert all(order(seed) == order(seed) for seed in range(3))
    assert order(None) == order(None)


def test_nothing_of_a_frozen_owner_runs_until_it_is_thawed():
    async def main() -> list[str]:
        seen: list[str] = []

        async def ticking() -> None:
            for tick in range(3):
                await asyncio.sleep(1)
                seen.append(f"{tick} at {loop().time()}")

        whose = Owner("process")
        context = copy_context()
        context.run(owner.set, whose)
        task = loop().create_task(ticking(), context=context)
        await asyncio.sleep(1.5)
        loop().freeze(whose)
        await asyncio.sleep(10)
        loop().thaw(whose)
        await task
        return seen

    assert run(main()) == ["0 at 1.0", "1 at 11.5", "2 at 12.5"]


class AtOnce(Executor):
    """Threads that are done before anybody looks."""

    def submit(self, fn: Callable, /, *args: object, **named: object) -> Future:
        done: Future = Future()
        done.set_result(fn(*args, **named))
        return done


def test_a_thread_that_is_done_counts_as_done_also_if_its_owner_is_frozen(monkeypatch):
    monkeypatch.setattr("perdure.testing.clock.PATIENCE", 0.05)

    async def main() -> None:
        context = copy_context()
        whose = Owner("process")
        context.run(owner.set, whose)
        context.run(loop().run_in_executor, AtOnce(), int)
        loop().freeze(whose)
        await asyncio.sleep(3)

    began = time.monotonic()
    run(main())
    assert time.monotonic() - began < 2


def test_whoever_sleeps_for_what_is_left_comes_to_the_end_of_it():
    async def main() -> float:
        for number in range(1000):
            await asyncio.sleep(0.0137 + number * 1e-6)
            until, naps = loop().time() + 5, 0
            while (left := until - loop().time()) > 0:
                await asyncio.sleep(left)
                naps += 1
                assert naps < 3, "time stands still for the noise of floats"
        return loop().time()

    assert run(main()) > 5000
