"""From an address to its adapters. Drivers are imported only when their address is used.

An address may have a password in it: whatever is shown to anybody goes through `redacted`.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

from perdure.errors import SettingsError
from perdure.ports import Store, Stream

#: From the colon behind the user to the last @: a password that was not encoded may contain anything.
_PASSWORD = re.compile(r"(://[^:/@]*):.*@", re.DOTALL)
_PARAMETER = re.compile(r"([?&][a-z_]*(?:password|passwd|secret|token)=)[^&\s'\"]*", re.IGNORECASE)


def redacted(text: str) -> str:
    """An address, or a text with one in it, without its password.

    >>> redacted("postgresql://ada:p/a@ss@db/orders?sslpassword=x&sslmode=require")
    'postgresql://ada:***@db/orders?sslpassword=***&sslmode=require'
    """
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def connect(url: str) -> tuple[Store, Stream]:
    """The store and the stream that goes with it."""
    parts = urlsplit(url)
    match parts.scheme:
        case "memory":
            from perdure.stores.memory import MemoryStore
            from perdure.streams.memory import MemoryStream

            return MemoryStore(), MemoryStream()
        case "sqlite":
            from perdure.stores.sqlite import SqliteStore
            from perdure.streams.local import LocalStream

            path = parts.path.removeprefix("/")
            if parts.netloc or not path:
                raise SettingsError(
                    f"{redacted(url)!r} names no file: write sqlite:///orders.db or sqlite:////var/lib/orders.db"
                )
            options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            if unknown := options.keys() - {"synchronous"}:
                raise SettingsError(f"{redacted(url)!r}: unknown option {', '.join(unknown)}; there is: synchronous")
            return SqliteStore(path, synchronous=options.get("synchronous", "FULL").upper()), LocalStream(path)
        case _:
            raise SettingsError(f"no store for {redacted(url)!r}: use sqlite:///FILE or memory://")
