"""Many units in few transactions.

A unit is what one execution writes: its items become true together or not at all. Rules kept here: a unit is whole in
one transaction; a unit whose condition fails is taken out and the rest is sent again; what only met somebody else on
the same item is sent again, by itself; what DynamoDB will never take is taken out with its error. If a part of a call
was written when another part fails, nobody may say that nothing was written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from perdure.errors import InvalidValue, OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from perdure.stores.dynamodb import trouble
from perdure.stores.dynamodb.items import Item, plain
from perdure.stores.dynamodb.wire import PAUSE, Refused, Wire

#: A transaction has at most 4 MB.
BYTES = 3_500_000
#: How often a call is sent again because somebody else was in the way.
ROUNDS = 30


class Unit:
    """The items of one execution; `refusals` says of which the condition failed, with the item that was there. `broken`
    is why DynamoDB will never take them."""

    def __init__(self, key: str, ops: Sequence[dict[str, Any]], pieces: Sequence[str] = ()) -> None:
        self.key = key
        self.ops = ops
        self.pieces = pieces
        self.bytes = sum(_length(op) for op in ops)
        self.refusals: dict[int, Item] = {}
        self.broken: StoreRefused | InvalidValue | None = None


class Writing:
    """One call of a verb: its units are written, or each has its refusals; it may take several rounds."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.wrote = False
        self._alone: set[int] = set()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Whatever goes wrong in here, nobody is told that nothing was written if something was."""
        try:
            yield
        except (StoreError, InvalidValue) as error:
            if not self.wrote or isinstance(error, OutcomeUnknown):
                raise
            text = f"a part of this was written before: {error}; repeat the call with the same ids"
            raise OutcomeUnknown(text) from error

    async def write(self, units: Sequence[Unit]) -> None:
        most = self._wire.address.items
        for unit in units:
            if len(unit.ops) > most:
                raise InvalidValue(
                    f"{unit.key}: it would write {len(unit.ops)} items at once, and DynamoDB takes {most}; nothing was"
                    " written; give it fewer labels, topics, children or messages at a time"
                )
        rest, pause = list(units), PAUSE
        for _ in range(ROUNDS):
            if not rest:
                return
            rest, refused = await self._round(rest)
            if rest and not refused:
                await asyncio.sleep(random.uniform(0, pause))
                pause = min(pause * 2, 0.5)
        if rest:
            text = f"{self._wire.address.shown}: others wrote the same executions, again and again"
            raise StoreUnavailable(f"{text}; nothing was written; try again")

    async def _round(self, units: Sequence[Unit]) -> tuple[list[Unit], bool]:
        """Those to send again, and whether any was refused."""
        loads = list(self._loads(units))
        answers = await asyncio.gather(*map(self._send, loads), return_exceptions=True)
        self.wrote = self.wrote or any(answer is None for answer in answers)
        again: list[Unit] = []
        refused = False
        for load, answer in zip(loads, answers, strict=True):
            if isinstance(answer, Refused):
                rest = self._sort_out(load, answer.reasons)
                refused = refused or len(rest) < len(load)
                again += rest
            elif isinstance(answer, (StoreRefused, InvalidValue)):
                refused = True
                if len(load) == 1:
                    load[0].broken = answer
                else:
                    self._alone.update(map(id, load))
                    again += load
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, (Refused, StoreRefused, InvalidValue)):
                raise answer
        return again, refused

    async def _send(self, load: Sequence[Unit]) -> None:
        await self._wire.transact([op for unit in load for op in unit.ops])

    def _sort_out(self, load: Sequence[Unit], reasons: Sequence[dict[str, Any]]) -> list[Unit]:
        again: list[Unit] = []
        begin = 0
        for unit in load:
            own = reasons[begin : begin + len(unit.ops)]
            begin += len(unit.ops)
            codes = {reason.get("Code") for reason in own}
            unit.refusals = {
                number: plain(reason.get("Item") or {})
                for number, reason in enumerate(own)
                if reason.get("Code") == trouble.CONDITION
            }
            if unit.refusals:
                continue
            if codes - {"None", None} - trouble.IN_THE_WAY - trouble.THROTTLED:
                told = next(reason for reason in own if reason.get("Code") not in ("None", None))
                unit.broken = StoreRefused(
                    f"{self._wire.address.shown}: {unit.key} cannot be written: {told.get('Code')}:"
                    f" {told.get('Message')}; nothing of it was written"
                )
                continue
            if codes & trouble.IN_THE_WAY:
                self._alone.add(id(unit))
            again.append(unit)
        return again

    def _loads(self, units: Sequence[Unit]) -> Iterator[list[Unit]]:
        """As few transactions as hold them all; what met somebody else goes by itself."""
        load: list[Unit] = []
        items = size = 0
        for unit in units:
            if id(unit) in self._alone:
                yield [unit]
                continue
            if load and (items + len(unit.ops) > self._wire.address.items or size + unit.bytes > BYTES):
                yield load
                load, items, size = [], 0, 0
            load.append(unit)
            items += len(unit.ops)
            size += unit.bytes
        if load:
            yield load


def _length(value: Any) -> int:
    """About as many bytes as it has in a transaction."""
    if isinstance(value, dict):
        return sum(len(name) + _length(one) for name, one in value.items())
    if isinstance(value, list):
        return sum(map(_length, value))
    return len(value) if isinstance(value, (str, bytes)) else 8
