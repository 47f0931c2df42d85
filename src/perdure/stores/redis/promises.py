"""What is asked of a server before anything is entrusted to it: its version, and what it keeps when it dies.

Rules kept here: a server that forgets everything when it stops, or throws keys away when memory is short, is refused;
one that may forget the last second is taken with a warning, and so is one that does not show its settings. Whoever
says so in the address (`durability`) has been warned.
"""

from __future__ import annotations

import logging
from typing import Any

from redis import exceptions

from perdure.errors import SettingsError, StoreReadOnly
from perdure.stores.redis.address import Address
from perdure.stores.redis.wires import Command, Wires

log = logging.getLogger("perdure.stores")

#: WAITAOF is there from this version on.
_WAITAOF = (7, 2)
_ASKED = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")


async def examine(wires: Wires, address: Address) -> tuple[int, ...]:
    """Refuse, warn, or say nothing; answers the version of the server, or nothing if it does not say."""
    [info, config] = await wires.ask([("INFO",), ("CONFIG", "GET", *_ASKED)], writes=False)
    facts = {} if isinstance(info, exceptions.RedisError) else _facts(info)
    version = tuple(int(part) for part in facts.get("redis_version", "").split(".") if part.isdecimal())
    if version and version < (7,):
        shown = facts["redis_version"]
        raise SettingsError(f"{address.place} is version {shown}; a store needs Redis 7.0 or newer, or Valkey")
    if facts.get("role") == "slave":
        raise StoreReadOnly(f"{address.place} is a replica and takes no writes; name the primary in the address")
    settings = None if isinstance(config, exceptions.RedisError) else _settings(config)
    _check_memory(address, (settings or {}).get("maxmemory-policy") or facts.get("maxmemory_policy", ""))
    if address.durability != "none":
        _check_file(address, settings, facts)
    return version


def _check_memory(address: Address, policy: str) -> None:
    if policy not in ("", "noeviction"):
        raise SettingsError(
            f"{address.place} throws keys away when its memory is short (maxmemory-policy {policy}), and logs would go"
            " with them: set maxmemory-policy noeviction"
        )


def _check_file(address: Address, settings: dict[str, str] | None, facts: dict[str, str]) -> None:
    kept = settings.get("appendonly") if settings else {"1": "yes", "0": "no"}.get(facts.get("aof_enabled", ""))
    if kept == "no":
        raise SettingsError(
            f"{address.place} keeps no append-only file, so a crash loses what was answered: set appendonly yes and"
            " appendfsync always, or say durability=none in the address if nothing there is worth keeping"
        )
    if not settings:
        log.warning(
            "%s does not show its settings: make sure that it has appendonly yes, appendfsync always and"
            " maxmemory-policy noeviction, or a crash of it loses what was answered",
            address.place,
        )
    elif address.durability == "always":
        _check_sync(address, settings)


def _check_sync(address: Address, settings: dict[str, str]) -> None:
    sync = settings.get("appendfsync", "always")
    if sync != "always":
        log.warning(
            "%s has appendfsync %s: a crash of its machine loses what was answered in the last %s; set appendfsync"
            " always, or say durability=everysec in the address to be told no more",
            address.place,
            sync,
            "second or two" if sync == "everysec" else "half a minute or so",
        )
    elif settings.get("no-appendfsync-on-rewrite") == "yes":
        log.warning(
            "%s has no-appendfsync-on-rewrite yes: while it rewrites its file, a crash of its machine loses what was"
            " answered; set it to no",
            address.place,
        )


def confirmation(address: Address, version: tuple[int, ...]) -> tuple[Command, ...]:
    """What is sent behind each write, if replicas are to have it first; together half of the time of a call.

    Asked for its file alone, a replica that has just been given the write often says that it is not there yet, and
    speaks of it again only a second later. So it is asked first whether it has the write at all.
    """
    if not address.replicas:
        return ()
    patience = int(address.timeout * 250)  # in milliseconds
    has = "WAIT", address.replicas, patience
    if version < _WAITAOF or address.durability == "none":
        return (has,)
    return has, ("WAITAOF", 1, address.replicas, patience)


def _facts(info: Any) -> dict[str, str]:
    lines = (line.partition(":") for line in bytes(info).decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _settings(config: Any) -> dict[str, str]:
    words = [bytes(word).decode(errors="replace") for word in config]
    return dict(zip(words[::2], words[1::2], strict=True))
