"""The address of a MongoDB store: what is ours in it, and what goes to the driver."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from perdure.errors import SettingsError

SCHEMES = ("mongodb", "mongodb+srv")
#: Names that every release takes on every system; the name of a collection is joined to it.
_DATABASE = re.compile(r"[A-Za-z0-9_-]{1,38}")


class Address(Struct, frozen=True):
    """Which replica set, and which database of it."""

    dsn: str  # what the driver is given
    shown: str  # the same without the password
    database: str
    unsafe: bool = False


def read_address(url: str) -> Address:
    """
    >>> address = read_address("mongodb://ada:secret@db/shop?replicaSet=rs0&unsafe=yes")
    >>> address.dsn, address.database
    ('mongodb://ada:secret@db/shop?replicaSet=rs0', 'shop')
    >>> address.shown
    'mongodb://ada:***@db/shop?replicaSet=rs0'
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise SettingsError(f"{masked(url)!r} is no address of MongoDB: it begins with mongodb:// or mongodb+srv://")
    database = unquote(parts.path.removeprefix("/"))
    if not _DATABASE.fullmatch(database):
        raise SettingsError(
            f"{masked(url)!r} names no database: write mongodb://HOST/DATABASE, with letters, digits, _ and -, at most"
            " 38; a password in it is percent-encoded"
        )
    options = parse_qsl(parts.query, keep_blank_values=True)
    unsafe = dict(options).get("unsafe", "no")
    if unsafe not in ("yes", "no"):
        raise SettingsError(f"unsafe={unsafe!r}: it is yes or no")
    theirs = urlencode([(name, value) for name, value in options if name != "unsafe"])
    dsn = urlunsplit(parts._replace(query=theirs))
    return Address(dsn, masked(dsn), database, unsafe == "yes")


def masked(url: str) -> str:
    """An address without its password, which may contain anything if it was not encoded."""
    url = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&][a-z_]*(?:password|properties)=)[^&]*", r"\1***", url, flags=re.IGNORECASE)
