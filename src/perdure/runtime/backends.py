"""From an address to its adapters. Drivers are imported only when their address is used.

Rules kept here: the scheme alone says which adapter it is; what is missing, or cannot be, is said without the password
that an address may have in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from perdure.errors import SettingsError, UsageError
from perdure.ports import Locks, Store, Stream
from perdure.runtime.pair import Pair
from perdure.runtime.urls import redacted

if TYPE_CHECKING:
    from perdure.runtime.callers.states import Cache
    from perdure.runtime.settings import Settings

#: Makes the store of an address and the stream that goes with it.
_MakeStore: TypeAlias = "Callable[[str, Settings], tuple[Store, Stream]]"
#: Makes the stream of an address.
_MakeStream: TypeAlias = "Callable[[str, Settings], Stream]"


def chosen(store: str | Store | None, hints: str | Stream | None, settings: Settings) -> tuple[Store, Stream]:
    """What was given, and otherwise what the settings name; a stream of its own goes before that of the store."""
    if store is not None and not isinstance(store, str):
        if hints is None or isinstance(hints, str):
            raise UsageError("an own store needs an own stream: Perdure(store, stream=MemoryStream())")
        return store, hints
    found, own = connect(settings.store, settings)
    if hints is not None and not isinstance(hints, str):
        return found, hints
    # A store in Redis brings a stream there along: the same one twice would read its hints from itself.
    paired = settings.stream and settings.stream != settings.store
    return found, Pair(stream(settings), own) if paired else own


def connect(url: str, settings: Settings | None = None) -> tuple[Store, Stream]:
    """The store and the stream that goes with it; the settings are for a stream that has some."""
    if settings is None:
        from perdure.runtime.settings import Settings as Defaults

        settings = Defaults()
    make = _STORES.get(_scheme(url))
    if make is None:
        known = (
            "sqlite:///FILE, postgresql://USER@HOST/DATABASE, mongodb://HOST/DATABASE, redis://HOST:6379/0,"
            " dynamodb://REGION/TABLE or memory://"
        )
        raise SettingsError(f"no store for {redacted(url)!r}: use {known}")
    return make(url, settings)


def stream(settings: Settings) -> Stream:
    """The stream at an address of its own."""
    make = _STREAMS.get(_scheme(settings.stream))
    if make is None:
        known = (
            "redis://HOST:6379/0, rediss:// for TLS, redis+cluster://, nats://HOST:4222, amqp://USER@HOST/VHOST"
            " (RabbitMQ), amqps:// for TLS, kafka://HOST:9092 or kafkas:// for TLS"
        )
        raise SettingsError(f"no stream for {redacted(settings.stream)!r}: use {known}")
    return make(settings.stream, settings)


def locks(settings: Settings, tenant: str) -> Locks | None:
    """Locks outside of the store, if the settings say so."""
    if settings.locks == "store":
        return None
    if not _in_redis(settings):
        raise SettingsError("locks = stream needs a stream: set it to redis://…, or keep locks in the store")
    from perdure.streams.redis.locks import RedisLocks

    plain, prefix = _plain(settings.stream, settings.stream_prefix)
    return RedisLocks(plain, prefix=prefix, tenant=tenant)


def warm(settings: Settings) -> Cache | None:
    """A cache that many processes share, where there is a Redis."""
    if not _in_redis(settings):
        return None
    from perdure.streams.redis.warm import WarmCache

    plain, prefix = _plain(settings.stream, settings.stream_prefix)
    return WarmCache(plain, prefix=prefix)


def _scheme(url: str) -> str:
    """What an address begins with; one that cannot be taken apart is refused here, for all who do so later."""
    try:
        return urlsplit(url).scheme
    except ValueError:
        raise SettingsError(f"{redacted(url)!r} is no address: write HOST:PORT, or [ADDRESS]:PORT for IPv6") from None


@contextmanager
def _driver(what: str, extra: str) -> Iterator[None]:
    """Around the import of an adapter."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(f"{what} needs its driver: pip install 'perdure[{extra}]'") from error


# Stores


def _memory(url: str, settings: Settings) -> tuple[Store, Stream]:
    from perdure.stores.memory import MemoryStore
    from perdure.streams.memory import MemoryStream

    return MemoryStore(), MemoryStream()


def _sqlite(url: str, settings: Settings) -> tuple[Store, Stream]:
    from perdure.stores.sqlite import SqliteStore
    from perdure.streams.local import LocalStream

    parts = urlsplit(url)
    path = parts.path.removeprefix("/")
    if parts.netloc or not path:
        raise SettingsError(
            f"{redacted(url)!r} names no file: write sqlite:///orders.db or sqlite:////var/lib/orders.db"
        )
    return SqliteStore(path, **_sqlite_options(url, parts.query)), LocalStream(path)


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


def _postgres(url: str, settings: Settings) -> tuple[Store, Stream]:
    with _driver("a store on PostgreSQL", "postgres"):
        from perdure.stores.postgres import PostgresStore
        from perdure.streams.postgres import PostgresStream
    store = PostgresStore(url)
    return store, PostgresStream(store.address.dsn, store.address.channel)


def _mongodb(url: str, settings: Settings) -> tuple[Store, Stream]:
    with _driver("a store on MongoDB", "mongodb"):
        from perdure.stores.mongodb import MongoStore
        from perdure.streams.mongodb import MongoStream
    store = MongoStore(url)
    return store, MongoStream(store.address.dsn, store.address.database)


def _dynamodb(url: str, settings: Settings) -> tuple[Store, Stream]:
    with _driver("a store in DynamoDB", "dynamodb"):
        from perdure.stores.dynamodb import DynamoStore
    from perdure.streams.memory import MemoryStream

    return DynamoStore(url), MemoryStream()


def _redis_store(url: str, settings: Settings) -> tuple[Store, Stream]:
    with _driver("a store in Redis", "redis"):
        from perdure.stores.redis import RedisStore
    return RedisStore(url), _redis(url, settings)


# Streams


def _redis(url: str, settings: Settings) -> Stream:
    """The address may be that of a store, which says more than a stream needs."""
    with _driver("a stream in Redis", "redis"):
        from perdure.streams.redis import RedisStream
    plain, prefix = _plain(url, settings.stream_prefix)
    return RedisStream(
        plain,
        prefix=prefix,
        group=settings.stream_group,
        shards=settings.stream_shards,
        batch=settings.stream_batch,
        block=settings.stream_block,
        lease=settings.lease,
        idle=_idle(settings),
    )


def _nats(url: str, settings: Settings) -> Stream:
    with _driver("a stream in NATS", "nats"):
        from perdure.streams.nats import NatsStream
    return NatsStream(
        url,
        prefix=settings.stream_prefix,
        group=settings.stream_group,
        batch=settings.stream_batch,
        block=settings.stream_block,
        lease=settings.lease,
        idle=_idle(settings),
    )


def _rabbitmq(url: str, settings: Settings) -> Stream:
    with _driver("a stream in RabbitMQ", "rabbitmq"):
        from perdure.streams.rabbitmq import RabbitStream
    return RabbitStream(
        url,
        prefix=settings.stream_prefix,
        group=settings.stream_group,
        batch=settings.stream_batch,
        lease=settings.lease,
        idle=_idle(settings),
    )


def _kafka(url: str, settings: Settings) -> Stream:
    with _driver("a stream in Kafka", "kafka"):
        from perdure.streams.kafka import KafkaStream
    return KafkaStream(
        url,
        prefix=settings.stream_prefix,
        group=settings.stream_group,
        shards=settings.stream_shards,
        batch=settings.stream_batch,
        block=settings.stream_block,
        lease=settings.lease,
        idle=settings.stream_idle,
        reclaim=settings.stream_reclaim,
    )


def _idle(settings: Settings) -> float | None:
    return settings.stream_idle if settings.stream_reclaim else float("inf")


def _in_redis(settings: Settings) -> bool:
    return _STREAMS.get(_scheme(settings.stream)) is _redis


def _plain(url: str, prefix: str) -> tuple[str, str]:
    """The address as the driver takes it, and the prefix: the one that it names goes first."""
    from perdure.stores.redis.address import read_address

    address = read_address(url.replace("+cluster://", "://", 1))
    return (url, prefix) if "+cluster" in _scheme(url) else (address.url, address.prefix or prefix)


_STORES: dict[str, _MakeStore] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "mongodb": _mongodb,
    "mongodb+srv": _mongodb,
    "dynamodb": _dynamodb,
    "redis": _redis_store,
    "rediss": _redis_store,
}
_STREAMS: dict[str, _MakeStream] = {
    "redis": _redis,
    "rediss": _redis,
    "redis+cluster": _redis,
    "rediss+cluster": _redis,
    "nats": _nats,
    "tls": _nats,
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
    "kafka": _kafka,
    "kafkas": _kafka,
}
