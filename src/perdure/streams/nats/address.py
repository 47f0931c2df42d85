"""What an address says: nats://USER:PASSWORD@HOST:4222, with further hosts of a cluster behind commas.

A user without a password is a token. `tls://` asks for TLS. The parts that are secret are in no text made from it.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from msgspec import Struct

from perdure.errors import SettingsError

PORT = 4222


class Address(Struct, frozen=True):
    """Where the servers are, and how they know us."""

    servers: tuple[str, ...]  # without user and password
    user: str | None = None
    password: str | None = None
    token: str | None = None

    @property
    def place(self) -> str:
        """The servers, for people."""
        return ", ".join(server.partition("://")[2] for server in self.servers)


def read_address(url: str) -> Address:
    """
    >>> read_address("nats://ada:p%40ss@one,two:4333").place
    'one:4222, two:4333'
    """
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    servers = tuple(f"{parts.scheme}://{_with_port(host)}" for host in hosts.split(","))
    if not login:
        return Address(servers)
    user, colon, password = login.partition(":")
    if not colon:
        return Address(servers, token=unquote(user))
    return Address(servers, unquote(user), unquote(password))


def _with_port(host: str) -> str:
    try:
        parts = urlsplit(f"//{host}")
        if not parts.hostname:
            raise ValueError("no host")
        return host if parts.port is not None else f"{host.rstrip(':')}:{PORT}"
    except ValueError:
        raise SettingsError(
            "the address of the stream names no server of NATS: write nats://HOST:4222, or nats://ONE:4222,TWO:4222"
        ) from None
