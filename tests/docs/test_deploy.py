"""The files of examples/deploy: all that they name exists, and every service does its part as it is written there.

No image is built here, so what Docker itself makes of the files is not shown; the services run as plain processes, on
addresses of this machine in place of the names of containers.
"""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import tomllib
from contextlib import ExitStack
from typing import Any

import asyncpg
import typer
import yaml

from perdure.cli.main import app
from perdure.runtime.settings import load
from perdure.testing.servers.ports import free_port
from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import ValkeyServer
from tests.cli.processes import Process
from tests.cli.test_serve import ask
from tests.docs.conftest import ROOT, environment

FOLDER = ROOT / "examples/deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: Those that are built from the Dockerfile.
OURS = {name: one for name, one in SERVICES.items() if "build" in one}
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


def test_every_setting_is_one_and_has_a_value_that_fits() -> None:
    for service in OURS.values():
        assert load(service["environment"]).store.startswith("postgresql://")


def test_every_command_and_option_exists() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(OURS) == {"migrate", "api", "worker", "video"}
    for words in (one["command"] for one in OURS.values()):
        options = {option for param in known[words[0]].params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_a_container_may_take_longer_to_stop_than_a_worker_drains() -> None:
    for name in ("api", "worker", "video"):
        stop = int(OURS[name]["stop_grace_period"].removesuffix("s"))
        assert stop > load(OURS[name]["environment"]).drain


def test_the_image_has_what_its_services_need() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"pip install .*'perdure\[(.+)\]'", DOCKERFILE)
    assert {"postgres", "redis", "http"} <= set(extras.split(",")) <= set(package["optional-dependencies"])
    assert 'ENTRYPOINT ["perdure"]' in DOCKERFILE and "perdure" in package["scripts"]
    copied = re.findall(r"^COPY (\S+) \.$", DOCKERFILE, re.MULTILINE)
    assert {word for one in OURS.values() for word in one["command"] if word.endswith(".py")} <= set(copied)
    assert all((FOLDER / name).exists() for name in copied)
    assert "\nUSER " in DOCKERFILE, "it does not run as root"


class Machine:
    """What the names of containers and their ports are here."""

    def __init__(self, postgres: PostgresServer, redis: ValkeyServer) -> None:
        self.names = {"@postgres/": f"@127.0.0.1:{postgres.port}/", "redis://redis:6379/0": redis.url}
        self._stack = ExitStack()
        self._ports: dict[str, dict[str, str]] = {}

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def settings(self, name: str) -> dict[str, str]:
        return {word: self._here(name, str(value)) for word, value in OURS[name]["environment"].items()}

    def up(self, name: str) -> Process:
        self._ports[name] = {port: str(free_port()) for port in ("9464", "8470")}
        words = [self._here(name, word) for word in OURS[name]["command"]]
        return self._stack.enter_context(Process(*words, cwd=FOLDER, **self.settings(name)))

    def port(self, name: str, port: int) -> int:
        return int(self._ports[name][str(port)])

    def is_healthy(self, name: str) -> bool:
        kind, *words = OURS[name]["healthcheck"]["test"]
        assert kind == "CMD"
        words = [self._here(name, word) for word in words]
        return subprocess.run(words, env=environment(), capture_output=True, check=False, timeout=20).returncode == 0

    def _here(self, name: str, text: str) -> str:
        for word, meant in {**self.names, **self._ports.get(name, {}), "0.0.0.0": "127.0.0.1"}.items():
            text = text.replace(word, meant)
        return text


async def set_up(server: str) -> None:
    connection = await asyncpg.connect(f"{server}/postgres")
    await connection.execute(f"create database {SERVICES['postgres']['environment']['POSTGRES_DB']}")
    await connection.close()
    connection = await asyncpg.connect(f"{server}/shop")
    await connection.execute((FOLDER / "roles.sql").read_text())
    await connection.close()


def test_every_service_starts_as_it_is_written_and_an_order_goes_through_all_of_them() -> None:
    stream = ValkeyServer(*SERVICES["redis"]["command"][1:])
    with PostgresServer(private=True) as postgres, stream as redis, Machine(postgres, redis) as machine:
        asyncio.run(set_up(postgres.address().removesuffix("/postgres")))
        migrate = machine.up("migrate")
        assert migrate.end() == 0 and "worker may run workers" in "".join(migrate.seen)
        up = {name: machine.up(name) for name in ("api", "worker", "video")}
        for one in up.values():
            one.line("ready: ")
        assert [name for name in up if not machine.is_healthy(name)] == []

        with Process(
            "keys", "create", "me", "--role", "admin", "--json", cwd=FOLDER, **machine.settings("api")
        ) as made:
            secret = yaml.safe_load(made.line('"secret"').strip().rstrip(","))["secret"]
        address = f"http://127.0.0.1:{machine.port('api', 8470)}"
        start = {"workflow": "fulfil", "args": ["order-1"], "id": "order-1"}
        assert ask(address, "/v1/executions", start)[0] == 401
        assert ask(address, "/v1/executions", start, secret)[0] == 202
        status, done = ask(address, "/v1/executions/order-1/result?wait=20s", key=secret)
        assert (status, done["status"]) == (200, "completed")
        assert "thanks-order-1.mp4" in done["result"]

        for one in up.values():
            one.signal(signal.SIGTERM)
        assert [one.end() for one in up.values()] == [0, 0, 0]
        assert not machine.is_healthy("api"), "the check does not see that it is down"
