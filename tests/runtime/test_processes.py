"""Actions in processes of their own: what crosses over, and what happens when such a process dies or has to."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import ActionFailed, ExecutionCancelled, ExecutionFailed, Perdure, action
from perdure.errors import UsageError
from perdure.runtime.attempts.processes import Processes
from perdure.runtime.run import Run
from perdure.testing import World
from tests.runtime import computing
from tests.runtime.computing import Point, TooFar, calls


def run(folder: Path, *args: Any, pool: int = 1, then: Callable[[Run[Any]], Any] | None = None) -> Any:
    """The result of one execution; `then` is awaited between start and result."""

    async def main() -> Any:
        async with asyncio.timeout(30), Perdure(f"sqlite:///{folder / 'p.db'}", pool=pool) as app, app.working(drain=0):
            started = await app.start(calls, *args, id="run")
            if then is not None:
                await then(started)
            return await started.result()

    return asyncio.run(main())


def test_typed_values_cross_over_and_back(tmp_path: Path) -> None:
    assert run(tmp_path, "mirrored", Point(1, 2)) == {"x": 2, "y": 1}


def test_it_is_another_process_and_kept_for_the_next(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with Perdure(f"sqlite:///{tmp_path / 'p.db'}", pool=1) as app, app.working():
            return [await (await app.start(calls, "process_number")).result() for _ in range(2)]

    first, second = asyncio.run(main())
    assert first == second != os.getpid()
    assert gone(first)  # with its worker


def test_what_it_prints_does_not_get_between_the_answers(tmp_path: Path) -> None:
    assert run(tmp_path, "prints") == ""


def test_what_it_prints_is_there_though_it_is_killed_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    run(tmp_path, "prints")
    assert "on stdout, which carries the answers" in capfd.readouterr().err


def test_a_fork_that_outlives_it_does_not_hide_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)
    try:
        assert run(tmp_path, "forks", str(pipe)) == 2
    finally:
        os.close(end)  # and the fork ends


def test_one_whose_attempts_are_spent_is_stuck_and_is_tried_in_another_process_later(tmp_path: Path) -> None:
    async def mend(run: Run[Any]) -> None:
        await run.until("stuck")
        assert "the attempts of spends (command 1) are spent: 2 were made" in str(await run.why())
        await run.retry()

    assert run(tmp_path, "spends", then=mend) == 3


def test_errors_come_back_as_they_were(tmp_path: Path) -> None:
    with pytest.raises(ExecutionFailed, match="12 is too far") as caught:
        run(tmp_path, "goes", 12)
    assert caught.value.type == "TooFar"
    assert caught.value.details == {"distance": 12}


def test_an_error_is_known_by_its_class_its_place_and_whether_it_is_fatal(tmp_path: Path) -> None:
    async def main() -> None:
        async with Perdure(f"sqlite:///{tmp_path / 'p.db'}") as app, app.working():
            started = await app.start(calls, "goes", 12)
            with pytest.raises(ExecutionFailed):
                await started.result()
            log = await started.log()
            assert [entry.type for entry in log] == ["Started", "ActionSettled", "Failed"]  # no retry: it is fatal
            assert log[1].data["error"]["where"].startswith("computing.py:")

    asyncio.run(main())
    error = computing.goes.failure(_recorded())
    assert isinstance(error, TooFar) and isinstance(error, ActionFailed)


def _recorded() -> Any:
    from perdure.core.failures import describe

    return describe(TooFar("x"))


@pytest.mark.parametrize(("how", "said"), [("segfault", "was ended by SIGSEGV"), ("exit", "ended with exit code 3")])
def test_a_process_that_dies_fails_its_attempt_and_the_next_gets_another(tmp_path: Path, how: str, said: str) -> None:
    async def main() -> None:
        async with Perdure(f"sqlite:///{tmp_path / 'p.db'}", pool=1) as app, app.working():
            started = await app.start(calls, "dies", str(tmp_path / "pids"), how)
            assert await started.result() == 2
            failed = next(entry for entry in await started.log() if entry.type == "ActionAttempted")
            assert failed.data["error"]["type"] == "ProcessDied"
            assert f"the process of dies {said} before it answered" in failed.data["error"]["message"]

    asyncio.run(main())
    first, second = (tmp_path / "pids").read_text().split()
    assert first != second


def test_a_result_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExecutionFailed, match="lies returned something else than it declares"):
        run(tmp_path, "lies")


def test_a_timeout_ends_the_process(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def main() -> None:
        async with Perdure(f"sqlite:///{tmp_path / 'p.db'}", pool=1) as app, app.working():
            await (await app.start(calls, "process_number")).result()  # so that there is a process
            with pytest.raises(ExecutionFailed, match="took longer than"):
                await (await app.start(calls, "never_ends", str(file))).result()

    asyncio.run(main())
    assert gone(int(file.read_text()))


def test_a_cancellation_ends_the_process(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def cancel(started: Run[Any]) -> None:
        while not (file.exists() and file.read_text()):
            await asyncio.sleep(0.01)
        await started.cancel("no longer needed")

    with pytest.raises(ExecutionCancelled):
        run(tmp_path, "waits_to_be_cancelled", str(file), then=cancel)
    assert gone(int(file.read_text()))


def test_the_action_knows_about_itself_and_its_heartbeats_arrive(tmp_path: Path) -> None:
    async def main() -> Any:
        async with Perdure(f"sqlite:///{tmp_path / 'p.db'}", pool=1) as app, app.working():
            await (await app.start(calls, "process_number")).result()  # to start one may take longer than the silence
            return await (await app.start(calls, "counts", id="run")).result()

    key, attempt, fenced, execution, progress, cancelled = asyncio.run(main())
    assert (attempt, fenced, execution, cancelled) == (2, True, "run", False)
    assert progress["n"] in (0, 1, 2)  # written once a second
    assert key.startswith("default/run/") and key.endswith("/counts")


def test_when_the_worker_is_killed_its_processes_end(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    # Also a function of the main program is found.
    program.write_text(
        textwrap.dedent("""
            import os, sys
            from pathlib import Path
            from perdure import Perdure, action, workflow

            @action(process=True)
            def long(file: str) -> None:
                Path(file).write_text(str(os.getpid()))
                while True:
                    pass

            @workflow
            async def flow(file: str) -> None:
                await long(file)

            if __name__ == "__main__":
                Perdure("sqlite:///" + sys.argv[1]).run(flow, sys.argv[2])
        """)
    )
    file = tmp_path / "pid"
    process = subprocess.Popen([sys.executable, str(program), str(tmp_path / "p.db"), str(file)])
    try:
        until(lambda: file.exists() and file.read_text() != "")
    finally:
        process.kill()
        process.wait()
    assert gone(int(file.read_text()))


def test_only_what_can_be_imported_may_run_there() -> None:
    with pytest.raises(UsageError, match="define it at module level"):

        @action(process=True)
        def local() -> None: ...

    with pytest.raises(UsageError, match="define it at module level"):
        action(process=True)(lambda: None)
    with pytest.raises(UsageError, match="is async"):

        @action(process=True)
        async def later() -> None: ...


async def test_virtual_time_waits_for_a_real_process(world: World) -> None:
    assert await world.run(calls, "mirrored", Point(1, 2)) == {"x": 2, "y": 1}


def test_a_pool_without_work_has_no_process() -> None:
    pool = Processes(3)
    assert pool._threads is None
    pool.close()


def gone(pid: int) -> bool:
    """Wait for the end of a process."""

    def ended() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        # One that nobody has waited for yet is as dead as any.
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"

    until(ended)
    return True


def until(condition: Callable[[], bool], timeout: float = 15) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
