"""Values of any length. A short one is in its item; a long one is cut into pieces, which are written before the item
that refers to them and are found by nobody until then.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TypeAlias

from perdure.errors import StoreError
from perdure.stores.dynamodb.items import delete, put
from perdure.stores.dynamodb.wire import Wire

#: What an item has in place of a long value: where its pieces are, and how many.
Stored: TypeAlias = "bytes | list[str | int]"
PIECE = 350_000


class Values:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def stored(self, data: bytes | None, room: int, pieces: list[str]) -> Stored | None:
        """What to keep in the item; new pieces are added to `pieces`, to be dropped if the item is refused."""
        if data is None or len(data) <= room:
            return data
        name = uuid.uuid4().hex
        pieces.append(name)
        parts = [data[begin : begin + PIECE] for begin in range(0, len(data), PIECE)]
        for number, part in enumerate(parts):
            item = {"pk": f"B#{name}", "sk": f"{number:06d}", "data": part}
            await self._wire.write("put_item", **put(self._wire.address.table, item, new=False)["Put"])
        return [name, len(parts)]

    async def read(self, value: Stored | None) -> bytes | None:
        if not isinstance(value, list):
            return value
        parts = await self._wire.all(f"B#{value[0]}")
        if len(parts) != value[1]:
            place = self._wire.address.shown
            raise StoreError(
                f"{place}: of a long value only {len(parts)} of {value[1]} pieces are there (B#{value[0]})"
            )
        return b"".join(part["data"] for part in parts)

    async def drop(self, pieces: Sequence[str]) -> None:
        """Nobody refers to them and nobody will."""
        for name in pieces:
            parts = await self._wire.all(f"B#{name}", ProjectionExpression="pk, sk")
            places = [(part["pk"], part["sk"]) for part in parts]
            ops = [delete(self._wire.address.table, *place)["Delete"] for place in places]
            await asyncio.gather(*(self._wire.write("delete_item", **op) for op in ops))
