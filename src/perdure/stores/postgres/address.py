"""The address of a PostgreSQL store: what is ours in it, and what goes to the driver."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from perdure.errors import SettingsError

#: Schema names that need no thought about quotes; short enough for the name of a channel.
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,49}")


class Address(Struct, frozen=True):
    """Where the tables are, and how long to wait for them; times are in seconds."""

    dsn: str  # what the driver is given
    shown: str  # the same without the password
    schema: str = "perdure"
    migrate: bool = True
    unsafe: bool = False
    connect_timeout: float = 10.0
    statement_timeout: float = 10.0
    lock_timeout: float = 2.0
    idle_timeout: float = 30.0  # of a transaction in which nothing happens
    readers: int = 4

    @property
    def channel(self) -> str:
        return f"perdure_{self.schema}"


def read_address(url: str) -> Address:
    """
    >>> read_address("postgresql://ada:secret@db/shop?schema=orders&sslmode=require").dsn
    'postgresql://ada:secret@db/shop?sslmode=require'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise SettingsError(f"{masked(url)!r} is no address of PostgreSQL: it begins with postgresql://")
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _READ:
            ours[name] = value
        else:
            theirs.append((name, value))
    dsn = urlunsplit(parts._replace(query=urlencode(theirs)))
    read = {name: _READ[name](name, value) for name, value in ours.items()}
    return Address(dsn, masked(dsn), **read)  # type: ignore[arg-type]


def masked(url: str) -> str:
    """An address without its password, which may contain anything if it was not encoded."""
    url = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&][a-z_]*password=)[^&]*", r"\1***", url)


def _schema(name: str, value: str) -> str:
    if not _SCHEMA.fullmatch(value):
        raise SettingsError(f"{name}={value!r}: a schema takes lower-case letters, digits and _, at most 50")
    return value


def _flag(name: str, value: str) -> bool:
    if value not in ("yes", "no"):
        raise SettingsError(f"{name}={value!r}: it is yes or no")
    return value == "yes"


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0
    if not 0 < seconds < 86_400:
        raise SettingsError(f"{name}={value!r}: it is a number of seconds, such as 2 or 0.5")
    return seconds


def _count(name: str, value: str) -> int:
    if not value.isdecimal() or not 0 < int(value) <= 100:
        raise SettingsError(f"{name}={value!r}: it is a number of connections, from 1 to 100")
    return int(value)


_READ = {
    "schema": _schema,
    "migrate": _flag,
    "unsafe": _flag,
    "connect_timeout": _seconds,
    "statement_timeout": _seconds,
    "lock_timeout": _seconds,
    "idle_timeout": _seconds,
    "readers": _count,
}
