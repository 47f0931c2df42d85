"""From an address to its adapters. Drivers are imported only when their address is used.

An address may have a password in it: whatever is said about it goes through `redacted` first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from perdure.errors import SettingsError, UsageError
from perdure.ports import Locks, Store, Stream
from perdure.runtime.pair import Pair

if TYPE_CHECKING:
    from perdure.runtime.callers.states import Cache
    from perdure.runtime.settings import Settings

#: From the colon behind the user to the last @: a password that was not encoded may contain anything.
_PASSWORD = re.compile(r"(://[^:/@]*):.*@", re.DOTALL)
_PARAMETER = re.compile(r"([?&][a-z_]*(?:password|passwd|secret|token)=)[^&\s'\"]*", re.IGNORECASE)
REDIS = ("redis", "rediss", "redis+cluster", "rediss+cluster")


def redacted(text: str) -> str:
    """An address, or a text with one in it, without its password.

    >>> redacted("postgresql://ada:p/a@ss@db/orders?sslpassword=x&sslmode=require")
    'postgresql://ada:***@db/orders?sslpassword=***&sslmode=require'
    """
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def chosen(store: str | Store | None, hints: str | Stream | None, settings: Settings) -> tuple[Store, Stream]:
    """What was given, and otherwise what the settings name; a stream of its own goes before that of the store."""
    if store is not None and not isinstance(store, str):
        if hints is None or isinstance(hints, str):
            raise UsageError("an own store needs an own stream: Perdure(store, stream=MemoryStream())")
        return store, hints
    found, own = connect(settings.store)
    if hints is not None and not isinstance(hints, str):
        return found, hints
    return found, Pair(stream(settings), own) if settings.stream else own


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
            return SqliteStore(path, **_sqlite_options(url, parts.query)), LocalStream(path)
        case "postgresql" | "postgres":
            try:
                import asyncpg as _  # noqa: F401
            except ImportError as error:
                raise SettingsError("a store on PostgreSQL needs the extra: pip install 'perdure[postgres]'") from error
            from perdure.stores.postgres import PostgresStore
            from perdure.streams.postgres import PostgresStream

            store = PostgresStore(url)
            return store, PostgresStream(store.address.dsn, store.address.channel)
        case "dynamodb":
            from perdure.streams.memory import MemoryStream

            try:
                from perdure.stores.dynamodb import DynamoStore
            except ImportError as error:
                raise SettingsError("a store in DynamoDB needs the extra: pip install 'perdure[dynamodb]'") from error

            return DynamoStore(url), MemoryStream()
        case _:
            known = "sqlite:///FILE, postgresql://USER@HOST/DATABASE, dynamodb://REGION/TABLE or memory://"
            raise SettingsError(f"no store for {redacted(url)!r}: use {known}")


def _sqlite_options(url: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = {name: values[-1] for name, values in parse_qs(query).items()}
    if unknown := options.keys() - {"synchronous", "busy_timeout"}:
        there = "there are synchronous and busy_timeout"
        raise SettingsError(f"{redacted(url)!r}: unknown option {', '.join(sorted(unknown))}; {there}")
    if (patience := options.get("busy_timeout")) is not None:
        try:
            options["busy_timeout"] = float(patience)
        except ValueError:
            options["busy_timeout"] = -1.0
        if not 0 <= options["busy_timeout"] < 86_400:
            raise SettingsError(f"busy_timeout={patience!r}: it is a number of seconds, such as 30 or 0.5")
    return options


def stream(settings: Settings) -> Stream:
    """The stream at an address of its own."""
    if urlsplit(settings.stream).scheme not in REDIS:
        raise SettingsError(
            f"no stream for {redacted(settings.stream)!r}: use redis://HOST:6379/0, rediss:// for TLS, or"
            " redis+cluster://"
        )
    try:
        from perdure.streams.redis import RedisStream
    except ImportError as error:
        raise SettingsError("a stream in Redis needs its driver: pip install 'perdure[redis]'") from error
    return RedisStream(
        settings.stream,
        prefix=settings.stream_prefix,
        group=settings.stream_group,
        shards=settings.stream_shards,
        batch=settings.stream_batch,
        block=settings.stream_block,
        lease=settings.lease,
        idle=settings.stream_idle if settings.stream_reclaim else float("inf"),
    )


def locks(settings: Settings, tenant: str) -> Locks | None:
    """Locks outside of the store, if the settings say so."""
    if settings.locks == "store":
        return None
    if urlsplit(settings.stream).scheme not in REDIS:
        raise SettingsError("locks = stream needs a stream: set it to redis://…, or keep locks in the store")
    from perdure.streams.redis.locks import RedisLocks

    return RedisLocks(settings.stream, prefix=settings.stream_prefix, tenant=tenant)


def warm(settings: Settings) -> Cache | None:
    """A cache that many processes share, where there is a Redis."""
    if urlsplit(settings.stream).scheme not in REDIS:
        return None
    from perdure.streams.redis.warm import WarmCache

    return WarmCache(settings.stream, prefix=settings.stream_prefix)
