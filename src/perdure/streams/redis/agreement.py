"""What a process makes sure of before it uses a server: its version, and that all mean the same streams.

Two groups of workers would each be given all the work, and a shard that nobody reads keeps its hints for ever. So the
first process of a prefix writes down its group and its shards, and the others compare.
"""

from __future__ import annotations

import logging
from typing import Any

from perdure.errors import SettingsError
from perdure.streams.redis.keys import Keys
from perdure.streams.redis.server import FAILURES, Server

log = logging.getLogger("perdure.streams")


async def agree(server: Server, keys: Keys) -> None:
    """Write down the group and the shards, or compare them with what is written."""
    ours = f"{keys.group} {keys.shards}"
    found = await server.call("GET", keys.agreement)
    if found is None:
        found = await server.call("SET", keys.agreement, ours, "NX", "GET", get=True)
    theirs = ours if found is None else bytes(found).decode(errors="replace")
    if theirs != ours:
        group, _, shards = theirs.rpartition(" ")
        raise SettingsError(
            f"the streams of prefix {keys.prefix!r} in Redis at {server.place} are read by group {group!r} in {shards} "
            f"shards, and this process is set to group {keys.group!r} in {keys.shards}: give all processes the same, "
            f"or another prefix; or stop them all and delete the key {keys.agreement}"
        )


async def examine(server: Server) -> None:
    """Refuse a server that is too old, warn of one that may throw our streams away."""
    info = await server.call("INFO")
    facts: dict[str, Any] = next(iter(info.values())) if server.cluster and "redis_version" not in info else info
    version = str(facts.get("redis_version", ""))
    if version.partition(".")[0].isdecimal() and int(version.partition(".")[0]) < 7:
        raise SettingsError(f"Redis at {server.place} is version {version}; Perdure needs 7.0 or newer, or Valkey")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        log.warning(
            "Redis at %s may throw streams away when memory is short (maxmemory-policy %s): set it to noeviction",
            server.place,
            policy,
        )


async def look_round(server: Server, keys: Keys) -> None:
    """All of it, at the beginning; a server that does not let us see its facts is taken as it is."""
    await server.call("GET", keys.agreement)  # fails if nobody is there, or if we may not enter
    try:
        await examine(server)
    except FAILURES:
        log.debug("Redis at %s does not show its version", server.place)
    await agree(server, keys)
