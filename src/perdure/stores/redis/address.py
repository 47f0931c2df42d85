"""The address of a store in Redis: what is ours in it, and what goes to the driver."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from perdure.errors import SettingsError

Durability: TypeAlias = Literal["always", "everysec", "none"]
SCHEMES = ("redis", "rediss")
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Address(Struct, frozen=True):
    """Where the keys are, and what was promised about the server; times are in seconds."""

    url: str  # what the driver is given
    place: str  # what people are shown: no name and no password
    prefix: str = ""  # as it was given; empty if it was not
    durability: Durability = "always"
    replicas: int = 0  # that have to have a write before it is answered
    timeout: float = 10.0

    @property
    def keys(self) -> str:
        """What all keys begin with. The braces are a hash tag: a cluster keeps them on one node."""
        return f"{{{self.prefix or 'perdure'}}}:"


def read_address(url: str) -> Address:
    """
    >>> read_address("redis://ada:secret@cache/0?prefix=orders&ssl_cert_reqs=none")
    Address(url='redis://ada:secret@cache/0?ssl_cert_reqs=none', place='Redis at cache:6379/0', prefix='orders', ...)
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise SettingsError(
            f"a store in Redis has an address that begins with redis:// or rediss://, not {parts.scheme}://; all of a"
            " store is on one node, so name that server itself where there is a cluster"
        )
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _READ:
            ours[name] = value
        else:
            theirs.append((name, value))
    read = {name: _READ[name](name, value) for name, value in ours.items()}
    try:
        place = f"Redis at {parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path.rstrip('/')}"
    except ValueError as error:
        raise SettingsError("the port of the address of Redis is no number: write redis://HOST:6379/0") from error
    if not re.fullmatch(r"/?[0-9]*/?", parts.path):
        raise SettingsError("the database of the address of Redis is no number: write redis://HOST:6379/0")
    return Address(urlunsplit(parts._replace(query=urlencode(theirs))), place, **read)  # type: ignore[arg-type]


def _prefix(name: str, value: str) -> str:
    if not _PREFIX.fullmatch(value):
        raise SettingsError(f"{name}={value!r}: it takes letters, digits, dots, hyphens and underscores, at most 64")
    return value


def _durability(name: str, value: str) -> str:
    if value not in ("always", "everysec", "none"):
        raise SettingsError(f"{name}={value!r}: it is always, everysec or none")
    return value


def _replicas(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) > 10:
        raise SettingsError(f"{name}={value!r}: it is a number of replicas, from 0 to 10")
    return int(value)


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0
    if not 0 < seconds < 3600:
        raise SettingsError(f"{name}={value!r}: it is a number of seconds, such as 10 or 0.5")
    return seconds


_READ = {"prefix": _prefix, "durability": _durability, "replicas": _replicas, "timeout": _seconds}
