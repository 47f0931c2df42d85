"""States of executions, folded from their logs and kept at hand: hot in this process, warm in a cache that many share.

The log is the truth, and a kept state says of which version it is: what was written since is read and folded on top, so
an append on another machine is seen by the next look. Whatever is kept may vanish at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from perdure.core import view
from perdure.core.records import Row

#: Rises when a state of an older release means something else; what was kept then is not found any more.
FORMAT = 2
#: A state is kept when folding it took at least so many rows: reading fewer is as quick as asking a cache.
WORTHWHILE = 50

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(view.State).decode


class Cache(Protocol):
    """Bytes by key that may vanish; never raises."""

    async def get(self, keys: Sequence[str]) -> list[bytes | None]: ...
    async def put(self, items: Mapping[str, bytes], ttl: float) -> None: ...
    async def close(self) -> None: ...


class States:
    """`rows` reads a log after a version, up to another."""

    def __init__(
        self,
        rows: Callable[[str, int, int | None], AsyncIterator[Row]],
        size: int,
        warm: Cache | None = None,
        ttl: float = 0.0,
    ) -> None:
        self._rows = rows
        self._size = size
        self._warm = warm if ttl > 0 else None
        self._ttl = ttl
        self._hot: OrderedDict[str, bytes] = OrderedDict()

    async def at(self, key: str, until: int | None) -> view.State:
        """The state at a version, or now; of version 0 if there is no such execution."""
        state = await self._kept(key, until) or view.State(key=key)
        before = state.version
        async for row in self._rows(key, before, until):
            state = view.fold(state, row)
        if until is None and state.version - before >= WORTHWHILE:
            await self._keep(key, state)
        return state

    async def close(self) -> None:
        self._hot.clear()
        if self._warm is not None:
            await self._warm.close()

    async def _kept(self, key: str, until: int | None) -> view.State | None:
        data = self._hot.get(key)
        if data is None and self._warm is not None:
            [data] = await self._warm.get([_name(key)])
        state = None if data is None else _read(key, data)
        return None if state is None or (until is not None and state.version > until) else state

    async def _keep(self, key: str, state: view.State) -> None:
        data = _encode(state)
        if self._size:
            self._hot[key] = data
            self._hot.move_to_end(key)
            while len(self._hot) > self._size:
                self._hot.popitem(last=False)
        if self._warm is not None:
            await self._warm.put({_name(key): data}, self._ttl)


def _name(key: str) -> str:
    return f"state{FORMAT}:{key}"


def _read(key: str, data: bytes) -> view.State | None:
    """What was kept, unless it is damaged or somebody else's."""
    try:
        state: view.State = _decode(data)
    except msgspec.MsgspecError:
        return None
    return state if state.key == key and state.version >= 1 else None
