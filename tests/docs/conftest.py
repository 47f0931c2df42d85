"""Examples and pages are programs of their own: they all run at the same time, and each test waits for its own.

A page whose code asks the environment for DATABASE_URL or REDIS_URL gets a database of its own on the PostgreSQL of
this run, or its Redis.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.docs import servers

ROOT = Path(__file__).parents[2]
#: The words of a command after the name of the interpreter.
Job: TypeAlias = tuple[str, ...]
Done: TypeAlias = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Job, Future[Done]]]:
    """Everything that a collected test of this file asks for with its parameter `job`, begun at once."""
    wanted: list[Job] = []
    for item in request.session.items:  # of all files, also those that another process runs
        callspec = getattr(item, "callspec", None)
        if item.path == request.path and callspec is not None and "job" in callspec.params:
            wanted.append(callspec.params["job"])
    made: list[str] = []
    with ThreadPoolExecutor(6) as pool:
        begun = {}
        for job in dict.fromkeys(wanted):
            extra = _servers(job, request, made)
            begun[job] = pool.submit(_run, job, tmp_path_factory.mktemp("job"), extra)
        yield begun
    for address in made:
        asyncio.run(servers.drop(address))


def _servers(job: Job, request: pytest.FixtureRequest, made: list[str]) -> dict[str, str]:
    """The addresses that a page asks for. A server is started by the first page that does."""
    text = Path(job[-1]).read_text() if job[-1].endswith(".md") else ""
    extra: dict[str, str] = {}
    if servers.DATABASE in text:
        address = servers.address_of(request.getfixturevalue("postgres_server").address())
        asyncio.run(servers.create(address))
        made.append(address)
        extra[servers.DATABASE] = address
    if servers.REDIS in text:
        extra[servers.REDIS] = request.getfixturevalue("redis_url")
    return extra


@pytest.fixture
def done(request: pytest.FixtureRequest, jobs: dict[Job, Future[Done]]) -> Done:
    """The outcome of this test's job, which must have ended well."""
    job = request.node.callspec.params["job"]
    outcome = jobs[job].result()
    assert outcome.returncode == 0, (
        f"{' '.join(job)} exits with {outcome.returncode}:\n{outcome.stdout}\n{outcome.stderr}"
    )
    return outcome


def _run(job: Job, folder: Path, extra: dict[str, str]) -> Done:
    command = [sys.executable, "-W", "error", *job]
    # From the folder, so that whatever it leaves behind is left there; modules of the tests are found at the root.
    return subprocess.run(
        command, cwd=folder, env=environment() | extra, capture_output=True, text=True, timeout=60, check=False
    )


def environment() -> dict[str, str]:
    """As a user has it: the commands of this environment, no settings."""
    import os

    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
    return clean | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1"}
