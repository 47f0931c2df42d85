"""Heads for whoever asks about an execution: those of ended ones are kept warm in a cache that many share.

What has ended never changes, so its head is of the last version there will be, and true wherever it is kept. Of what is
open the store alone knows who holds it and what has come for it: such a head is never kept.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from perdure.core.records import ENDED, Head
from perdure.ports import Store
from perdure.runtime.callers.states import Cache

#: Rises when a head of an older release means something else; what was kept then is not found any more.
FORMAT = 1
#: Whoever waited for the end reads its head at once, and mostly never again: only a later look is worth keeping (µs).
AGED = 1_000_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Head).decode


class Heads:
    def __init__(self, store: Store, warm: Cache | None, ttl: float, now: Callable[[], int]) -> None:
        self._store = store
        self._warm = warm if ttl > 0 else None
        self._ttl = ttl
        self._now = now

    async def of(self, key: str) -> Head | None:
        if self._warm is None:
            return await self._store.head(key)
        [data] = await self._warm.get([_name(key)])
        if data is not None and (kept := _read(key, data)) is not None:
            return kept
        head = await self._store.head(key)
        if head is not None and head.status in ENDED and self._now() - head.changed_at >= AGED:
            await self._warm.put({_name(key): _encode(head)}, self._ttl)
        return head


def _name(key: str) -> str:
    return f"head{FORMAT}:{key}"


def _read(key: str, data: bytes) -> Head | None:
    """What was kept, unless it is damaged, somebody else's, or not of an end."""
    try:
        head: Head = _decode(data)
    except msgspec.MsgspecError:
        return None
    return head if head.key == key and head.status in ENDED else None
