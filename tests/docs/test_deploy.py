"""The files of examples/deploy: every setting and every command in them exists, and the roles are enough."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess

import asyncpg
import typer

from perdure.cli.main import app
from perdure.runtime.settings import load
from perdure.testing.servers.postgres import PostgresServer
from tests.docs.conftest import ROOT, environment

FOLDER = ROOT / "examples/deploy"
COMPOSE = (FOLDER / "compose.yaml").read_text()
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


def settings(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^\s+(PERDURE_\w+): (.+)$", text, re.MULTILINE)


def orders() -> list[list[str]]:
    """What follows `perdure` in each service of ours."""
    found = re.findall(r"^(?:    command:|CMD) (\[.+\])$", COMPOSE + DOCKERFILE, re.MULTILINE)
    return [words for words in map(json.loads, found) if words[0] != "valkey-server"]


def test_every_setting_is_one_and_has_a_value_that_fits() -> None:
    named = settings(COMPOSE)
    assert len(named) == COMPOSE.count("PERDURE_")
    for name, value in named:
        load({name: value})


def test_every_command_and_option_exists() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(orders()) == 4
    for words in orders():
        options = {option for param in known[words[0]].params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_a_container_may_take_longer_to_stop_than_a_worker_drains() -> None:
    stop = re.search(r"stop_grace_period: (\d+)s", COMPOSE)
    assert stop is not None
    assert int(stop[1]) > load(dict(settings(COMPOSE))).drain


def test_the_roles_suffice_to_migrate_and_to_work() -> None:
    async def set_up(server: str) -> None:
        connection = await asyncpg.connect(f"{server}/postgres")
        await connection.execute("create database shop")
        await connection.close()
        connection = await asyncpg.connect(f"{server}/shop")
        await connection.execute((FOLDER / "roles.sql").read_text())
        await connection.close()

    with PostgresServer(private=True) as server:
        asyncio.run(set_up(server.address().removesuffix("/postgres")))
        owner, worker = (server.address(user=user).removesuffix("/postgres") + "/shop" for user in ("owner", "worker"))
        assert "worker may run workers" in ran("perdure", "migrate", "--grant", "worker", "--store", owner)
        program = (
            "from perdure import Perdure; from shop import fulfil;"
            f" print(Perdure({worker!r}, queues='default,video').run(fulfil, 'order-1'))"
        )
        assert "thanks-order-1.mp4" in ran("python", "-c", program)


def ran(*words: str) -> str:
    """What a command prints that ends well."""
    done = subprocess.run(words, cwd=FOLDER, env=environment(), capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout
