from __future__ import annotations

import socket

import pytest

from perdure.testing.servers import ports
from perdure.testing.servers.ports import free_port


def test_a_port_is_none_that_an_outgoing_connection_can_have():
    assert all(ports.FIRST <= free_port() < ports.LAST < 32_768 for _ in range(100))


def test_a_port_that_somebody_has_is_not_given(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST", port)
        with pytest.raises(RuntimeError, match="no port"):
            free_port(below=port + 2)


def test_ports_beside_it_are_free_as_well(monkeypatch: pytest.MonkeyPatch):
    first = free_port(beside=3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 2))
        monkeypatch.setattr(ports, "FIRST", first)
        with pytest.raises(RuntimeError, match="no port"):
            free_port(below=first + 4, beside=3)
