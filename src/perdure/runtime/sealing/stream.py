"""What leaves the process besides the store: short results on the stream, and states in the shared cache."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from perdure.core.records import Hint
from perdure.errors import KeyringError
from perdure.ports import Stream
from perdure.runtime.callers.states import Cache
from perdure.runtime.sealing.seals import Seals


class SealedStream:
    """A Stream whose news of ends carry sealed results. What cannot be opened tells to look into the store."""

    def __init__(self, inside: Stream, seals: Seals) -> None:
        self.inside = inside
        self.seals = seals

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)

    async def open(self, me: str, queues: Sequence[str]) -> None:
        await self.inside.open(me, queues)

    async def close(self) -> None:
        await self.inside.close()

    @property
    def carries(self) -> bool:
        return self.inside.carries

    @property
    def trouble(self) -> str:
        return self.inside.trouble

    async def listen(self, key: str) -> None:
        await self.inside.listen(key)

    async def publish(self, hints: Sequence[Hint]) -> None:
        await self.inside.publish([self._sealed(hint) if hint.status else hint for hint in hints])

    async def receive(self, limit: int) -> Sequence[Hint]:
        return [self._opened(hint) if hint.status else hint for hint in await self.inside.receive(limit)]

    async def ack(self, hints: Sequence[Hint]) -> None:
        await self.inside.ack(hints)

    def _sealed(self, hint: Hint) -> Hint:
        if not self.seals.covers(hint.key):
            return hint
        try:
            data = self.seals.seal(hint.key, b"news", hint.result.encode())
        except KeyringError:
            return structs.replace(hint, status="", result="")
        return structs.replace(hint, result=base64.b64encode(data).decode())

    def _opened(self, hint: Hint) -> Hint:
        if not self.seals.covers(hint.key):
            return hint
        try:
            data = self.seals.open(hint.key, b"news", base64.b64decode(hint.result, validate=True))
            return structs.replace(hint, result=data.decode())
        except (KeyringError, binascii.Error, UnicodeDecodeError):
            return structs.replace(hint, status="", result="")


class SealedCache:
    """States that many processes share, sealed. The name of one ends with the key of its execution."""

    def __init__(self, inside: Cache, seals: Seals) -> None:
        self._inside = inside
        self._seals = seals

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self._opened(key, data) for key, data in zip(keys, await self._inside.get(keys), strict=True)]

    async def put(self, items: Mapping[str, bytes], ttl: float) -> None:
        sealed = {key: data for key, item in items.items() if (data := self._sealed(key, item)) is not None}
        if sealed:
            await self._inside.put(sealed, ttl)

    async def close(self) -> None:
        await self._inside.close()

    def _sealed(self, name: str, data: bytes) -> bytes | None:
        try:
            return self._seals.seal(_key(name), b"warm", data)
        except KeyringError:
            return None

    def _opened(self, name: str, data: bytes | None) -> bytes | None:
        try:
            return None if data is None else self._seals.open(_key(name), b"warm", data)
        except KeyringError:
            return None


def _key(name: str) -> str:
    return name.partition(":")[2]
