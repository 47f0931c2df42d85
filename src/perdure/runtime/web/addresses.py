"""Which addresses may be called: a URL is taken apart, its host resolved once, and every address looked at.

Rules kept here: a URL that two programs might read differently is refused, not repaired; a host is a name or an address
in its usual form, for `127.1`, `0177.0.0.1` and `2130706433` are the loopback to some resolvers; what counts is the
address that is going to be connected to, so whoever connects takes it from here and does not ask a second time. If one
of the addresses of a name must not be called, none is: the next answer may have only that one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from perdure.errors import OutboundRefused, Unreachable

#: Gives the addresses of a name, as text.
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_PORTS = {"https": 443, "http": 80}
_PLAIN = re.compile(r"[\x21-\x7e]+")
_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?")
#: What some resolvers read as a number, and so as an address.
_NUMBER = re.compile(r"(0[xX][0-9A-Fa-f]*|[0-9]+)")
#: Addresses that stand for others: translated by the network (NAT64), or wrapped (6to4, Teredo and the like).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_WRAPPED = (ipaddress.ip_network("2002::/16"), ipaddress.ip_network("2001::/23"))
_LONGEST = 2000


class Target(Struct, frozen=True):
    """Where a URL leads: `host` as TLS and the other side know it, `path` with the query."""

    tls: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """What the header Host says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"


def target_of(url: str, hosts: Sequence[str], private: bool) -> Target:
    """A URL, taken apart; or OutboundRefused. An address instead of a name is looked at here already.

    `hosts` are those that may be called, all of them if there is none.
    """
    if len(url) > _LONGEST or not _PLAIN.fullmatch(url) or "\\" in url:
        raise OutboundRefused(f"{url[:80]!r} is not a URL: write at most {_LONGEST:,} plain characters, without spaces")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError as error:
        raise OutboundRefused(f"{url[:80]!r} is not a URL: {error}") from None
    if parts.scheme not in ("https", "http"):
        raise OutboundRefused(f"{url[:80]!r} cannot be called: only https can")
    if parts.scheme == "http" and not private:
        raise OutboundRefused(f"{url[:80]!r} cannot be called without TLS: use https, or allow outbound_private")
    if "@" in parts.netloc:
        raise OutboundRefused("a URL with a user or a password cannot be called: give credentials as a header")
    if port == 0 or not _is_host(host):
        raise OutboundRefused(f"{host[:80]!r} is neither the name of a host nor an address in its usual form")
    if hosts and not any(_fits(host, one) for one in hosts):
        raise OutboundRefused(f"{host[:80]!r} is not among outbound_hosts")
    if _literal(host) is not None:
        _refuse_inner(host, host, private)
    query = f"?{parts.query}" if parts.query else ""
    return Target(parts.scheme == "https", host, port or _PORTS[parts.scheme], (parts.path or "/") + query)


async def addresses_of(target: Target, private: bool, resolve: Resolve) -> list[str]:
    """Where to connect, in order; OutboundRefused if any of them must not be called."""
    if _literal(target.host) is not None:
        return [target.host]
    found = list(await resolve(target.host, target.port))
    if not found:
        raise Unreachable(f"{target.host} has no address")
    for one in found:
        _refuse_inner(target.host, one, private)
    return found


def _refuse_inner(host: str, address: str, private: bool) -> None:
    if not allowed(address, private):
        raise OutboundRefused(
            f"{host} leads to {address}, which is not a public address: call another host, or allow outbound_private"
        )


def allowed(address: str, private: bool) -> bool:
    """Whether an address may be called. Those of this link are never: that is where clouds keep their secrets.

    >>> [allowed(one, False) for one in ("93.184.215.14", "100.64.0.1", "::ffff:127.0.0.1", "64:ff9b::10.0.0.1")]
    [True, False, False, False]
    >>> [allowed(one, True) for one in ("127.0.0.1", "169.254.169.254")]
    [True, False]
    """
    found = _literal(address)
    if found is None:
        return False
    inner = _unwrapped(found)
    if inner.is_link_local or inner.is_multicast or inner.is_unspecified:
        return False
    return private or _is_public(inner)


async def resolve_here(host: str, port: int) -> list[str]:
    """Ask the resolver of this machine."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"the address of {host} cannot be found: {error}") from error
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


def _is_host(host: str) -> bool:
    if _literal(host) is not None:
        return True
    return _NAME.fullmatch(host) is not None and not _NUMBER.fullmatch(host.rpartition(".")[2])


def _literal(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _fits(host: str, pattern: str) -> bool:
    """`*.example.com` is every name below it."""
    if pattern.startswith("*."):
        return host.lower().endswith(pattern[1:].lower())
    return host.lower() == pattern.lower()


def _unwrapped(address: _Address) -> _Address:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_public(address: _Address) -> bool:
    if not address.is_global or address.is_reserved:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    return not any(address in one for one in _WRAPPED)
