"""RabbitMQ for tests is found, fetched, and ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure.testing.servers import rabbitmq
from perdure.testing.servers.rabbitmq import unpacked


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has nothing on its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))


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
