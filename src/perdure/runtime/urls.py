"""From an address to its adapters. Drivers are imported only when their address is used."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from perdure.core.durations import seconds
from perdure.errors import InvalidValue, SettingsError
from perdure.ports import Store, Stream

_REDIS = ("redis", "rediss", "redis+cluster", "rediss+cluster")
_REDIS_OPTIONS = ("prefix", "group", "shards", "batch", "block")


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
        case _:
            raise SettingsError(f"no store for {url!r}: use sqlite:///FILE or memory://")


def stream(url: str, lease: float = 10.0) -> Stream:
    """The stream at an address of its own; `lease` is the workers'.

    `redis://HOST/0?prefix=orders` has the options prefix, group, shards, batch and block beside those of its driver
    for the database and for TLS.
    """
    parts = urlsplit(url)
    if parts.scheme not in _REDIS:
        raise SettingsError(
            f"no stream for {parts.scheme}://: use redis://HOST:6379/0, rediss:// for TLS, or redis+cluster://"
        )
    try:
        from perdure.streams.redis import RedisStream
    except ImportError as error:
        raise SettingsError("a stream in Redis needs its driver: pip install 'perdure[redis]'") from error
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    ours = {name: options.pop(name) for name in _REDIS_OPTIONS if name in options}
    if unknown := [name for name in options if name != "db" and not name.startswith("ssl_")]:
        raise SettingsError(
            f"unknown option {', '.join(unknown)} of a stream in Redis; "
            f"there are: {', '.join(_REDIS_OPTIONS)}, db and ssl_…"
        )
    return RedisStream(
        urlunsplit(parts._replace(query=urlencode(options))),
        prefix=ours.get("prefix", "perdure"),
        group=ours.get("group", "workers"),
        shards=_number(ours, "shards", 1),
        batch=_number(ours, "batch", 500),
        block=_seconds(ours, "block", 5.0),
        lease=lease,
    )


def _number(options: dict[str, str], name: str, default: int) -> int:
    try:
        return int(options.get(name, default))
    except ValueError as error:
        raise SettingsError(f"{name} of a stream in Redis cannot be {options[name]!r}: give a number") from error


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    text = options.get(name)
    try:
        return default if text is None else seconds(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except InvalidValue as error:
        raise SettingsError(f"{name} of a stream in Redis cannot be {text!r}: {error}") from error
