"""The files of examples/deploy: all that they name exists, and every service does its part as it is written there.

No image is built here, so what Docker itself makes of the files is not shown; the services run as plain processes, on
addresses of this machine in place of the names of containers. A second container of a service has a number, as
`worker-2`.
"""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import asyncpg
import typer
import yaml
from playwright.sync_api import Page, expect

from perdure.cli.main import app
from perdure.runtime.settings import load
from perdure.testing.servers.ports import free_port
from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import ValkeyServer
from tests.backends import skipped
from tests.cli.asking import ask
from tests.cli.processes import Process
from tests.dashboard.chromium import NoBrowser, browsing
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


def test_a_container_that_is_stopped_while_it_starts_hears_it() -> None:
    assert [name for name in ("api", "worker", "video") if OURS[name]["init"] is not True] == []


def test_the_servers_are_stopped_after_those_that_drain() -> None:
    for name in ("api", "worker", "video"):
        assert set(OURS[name]["depends_on"]) == {"migrate", "redis"}


def test_the_migration_waits_for_a_database_that_it_can_reach() -> None:
    test = SERVICES["postgres"]["healthcheck"]["test"]
    assert test[test.index("-h") + 1] == "127.0.0.1", "on its socket it is there before the roles are"
    assert OURS["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}


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
        return {word: self._here(name, str(value)) for word, value in _service(name)["environment"].items()}

    def up(self, name: str) -> Process:
        self._ports[name] = {port: str(free_port()) for port in ("9464", "8470")}
        words = [self._here(name, word) for word in _service(name)["command"]]
        return self._stack.enter_context(Process(*words, cwd=FOLDER, **self.settings(name)))

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self._ports['api']['8470']}"

    def secret(self) -> str:
        words = ("keys", "create", "me", "--role", "admin", "--json")
        with Process(*words, cwd=FOLDER, **self.settings("api")) as made:
            return str(yaml.safe_load(made.line('"secret"').strip().rstrip(","))["secret"])

    def is_healthy(self, name: str) -> bool:
        kind, *words = _service(name)["healthcheck"]["test"]
        assert kind == "CMD"
        words = [self._here(name, word) for word in words]
        return subprocess.run(words, env=environment(), capture_output=True, check=False, timeout=20).returncode == 0

    def _here(self, name: str, text: str) -> str:
        for word, meant in {**self.names, **self._ports.get(name, {}), "0.0.0.0": "127.0.0.1"}.items():
            text = text.replace(word, meant)
        return text


def _service(name: str) -> dict[str, Any]:
    return OURS[name.partition("-")[0]]


async def set_up(server: str) -> None:
    connection = await asyncpg.connect(f"{server}/postgres")
    await connection.execute(f"create database {SERVICES['postgres']['environment']['POSTGRES_DB']}")
    await connection.close()
    connection = await asyncpg.connect(f"{server}/shop")
    await connection.execute((FOLDER / "roles.sql").read_text())
    await connection.close()


@contextmanager
def fleet(*names: str) -> Iterator[tuple[Machine, dict[str, Process]]]:
    """Both servers, migrated, and containers that are ready."""
    stream = ValkeyServer(*SERVICES["redis"]["command"][1:])
    with PostgresServer(private=True) as postgres, stream as redis, Machine(postgres, redis) as machine:
        asyncio.run(set_up(postgres.address().removesuffix("/postgres")))
        migrate = machine.up("migrate")
        assert migrate.end() == 0 and "worker may run workers" in "".join(migrate.seen)
        up = {name: machine.up(name) for name in names}
        for one in up.values():
            one.line("ready: ")
        yield machine, up


def test_every_service_starts_as_it_is_written_and_an_order_goes_through_all_of_them() -> None:
    with fleet("api", "worker", "video") as (machine, up):
        assert [name for name in up if not machine.is_healthy(name)] == []

        secret = machine.secret()
        start = {"workflow": "fulfil", "args": ["order-1"], "id": "order-1"}
        assert ask(machine.api, "/v1/executions", start)[0] == 401
        assert ask(machine.api, "/v1/executions", start, secret)[0] == 202
        status, done = ask(machine.api, "/v1/executions/order-1/result?wait=20s", key=secret)
        assert (status, done["status"]) == (200, "completed")
        assert "thanks-order-1.mp4" in done["result"]
        with skipped(NoBrowser), browsing() as browser:
            look_at_the_dashboard(browser.new_page(), machine.api, secret)

        for one in up.values():
            one.signal(signal.SIGTERM)
        assert [one.end() for one in up.values()] == [0, 0, 0]
        assert not machine.is_healthy("api"), "the check does not see that it is down"


def look_at_the_dashboard(page: Page, address: str, secret: str) -> None:
    page.goto(address)
    page.get_by_label("API key or token").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation").get_by_role("link", name="Executions").click()
    row = page.locator("tr", has=page.get_by_role("link", name="order-1", exact=True))
    expect(row.locator(".badge")).to_have_text("completed")


def test_a_rolling_restart_under_load_loses_nothing_and_doubles_nothing() -> None:
    halves = ("worker-1", "video-1"), ("worker-2", "video-2")
    with fleet("api", *halves[0], *halves[1]) as (machine, up), ThreadPoolExecutor(1) as pool:
        secret, enough = machine.secret(), threading.Event()

        def order() -> list[str]:
            made: list[str] = []
            while not enough.wait(0.6):  # one `video` alone renders two a second
                made.append(f"order-{len(made)}")
                start = {"workflow": "fulfil", "args": [made[-1]], "id": made[-1]}
                assert ask(machine.api, "/v1/executions", start, secret)[0] == 202
            return made

        ordering = pool.submit(order)
        try:
            for half in halves:
                for name in half:
                    up[name].signal(signal.SIGTERM)
                assert [up[name].end() for name in half] == [0, 0]
                up |= {name: machine.up(name) for name in half}
                for name in half:
                    up[name].line("ready: ")
        finally:
            enough.set()

        wrote = set()
        for made in ordering.result():
            done = ask(machine.api, f"/v1/executions/{made}/result?wait=15s", key=secret)[1]
            result = f"receipt of {made}, default/{made}/1/charge; thanks-{made}.mp4"
            assert done == {"status": "completed", "result": result}
            events = ask(machine.api, f"/v1/executions/{made}/log", key=secret)[1]["events"]
            kinds = Counter(f"{event['type']} {event['data'].get('name', '')}".strip() for event in events)
            once = ("Started", "ActionSettled charge", "ActionSettled render_thanks", "Completed")
            assert {kind: kinds[kind] for kind in once} == dict.fromkeys(once, 1)
            wrote |= {event["data"]["worker"] for event in events if event["type"] == "ActionSettled"}
        # Those of the second half were alone during the first restart, and those that came then during the second.
        assert len(wrote) >= 4
