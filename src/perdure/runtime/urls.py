"""From an address to its adapters. Drivers are imported only when their address is used."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from perdure.errors import SettingsError
from perdure.ports import Store, Stream


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
                raise SettingsError(f"{url!r} names no file: write sqlite:///orders.db or sqlite:////var/lib/orders.db")
            options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            if unknown := options.keys() - {"synchronous"}:
                raise SettingsError(f"{url!r}: unknown option {', '.join(unknown)}; there is: synchronous")
            return SqliteStore(path, synchronous=options.get("synchronous", "FULL").upper()), LocalStream(path)
        case "postgresql" | "postgres":
            try:
                import asyncpg as _  # noqa: F401
            except ImportError as error:
                raise SettingsError("a store on PostgreSQL needs the extra: pip install 'perdure[postgres]'") from error
            from perdure.stores.postgres import PostgresStore
            from perdure.streams.postgres import PostgresStream

            store = PostgresStore(url)
            return store, PostgresStream(store.address.dsn, store.address.channel)
        case _:
            known = "sqlite:///FILE, postgresql://USER@HOST/DATABASE or memory://"
            raise SettingsError(f"no store for {url!r}: use {known}")
