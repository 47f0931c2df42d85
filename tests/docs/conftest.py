"""Examples and pages are programs of their own: they all run at the same time, and each test waits for its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[2]
#: The words of a command after the name of the interpreter.
Job: TypeAlias = tuple[str, ...]
Done: TypeAlias = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Job, Future[Done]]]:
    """Everything that a collected test asks for with its parameter `job`, begun at once."""
    wanted: list[Job] = []
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "job" in callspec.params:
            wanted.append(callspec.params["job"])
    with ThreadPoolExecutor(6) as pool:
        yield {job: pool.submit(_run, job, tmp_path_factory.mktemp("job")) for job in dict.fromkeys(wanted)}


@pytest.fixture
def done(request: pytest.FixtureRequest, jobs: dict[Job, Future[Done]]) -> Done:
    """The outcome of this test's job, which must have ended well."""
    job = request.node.callspec.params["job"]
    outcome = jobs[job].result()
    assert outcome.returncode == 0, (
        f"{' '.join(job)} exits with {outcome.returncode}:\n{outcome.stdout}\n{outcome.stderr}"
    )
    return outcome


def _run(job: Job, folder: Path) -> Done:
    command = [sys.executable, "-W", "error", *job]
    # From the folder, so that whatever it leaves behind is left there; modules of the tests are found at the root.
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )


def environment() -> dict[str, str]:
    """As a user has it: the commands of this environment, no settings."""
    import os

    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
    return clean | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1"}
