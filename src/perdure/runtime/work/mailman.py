"""The mailman: brings mail to the executions that this worker holds.

Rules kept here: whoever may have mail is looked up in the store, all of them at once; what is being held is asked again
when it is here, for its mail may have come after the answer; a look that failed is repeated, and so is one of whose
answer something may be folded by now, because the execution was let go of and held again meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from perdure.core.records import Mail
from perdure.errors import StoreError
from perdure.ports import Store
from perdure.runtime.definitions.published import Published
from perdure.runtime.execution.migration import asked_for
from perdure.runtime.execution.resident import Resident
from perdure.runtime.work.rooms import Rooms


class Floor(Protocol):
    """What the mailman needs of the worker."""

    def now(self) -> int: ...
    def ring(self, resident: Resident) -> None: ...


class Mailman:
    def __init__(self, floor: Floor, rooms: Rooms, store: Store, published: Published) -> None:
        self._floor = floor
        self._rooms = rooms
        self._store = store
        self._published = published
        self._mailed: set[str] = set()
        self._bell = asyncio.Event()

    def call(self, key: str) -> None:
        """There may be mail for this execution."""
        self._mailed.add(key)
        self._bell.set()

    def call_round(self) -> None:
        """There may be mail for anybody here."""
        self._mailed.update(self._rooms.residents)
        self._bell.set()

    def moved_in(self) -> None:
        """Holds were answered: some for whom there may be mail may be here now."""
        self._bell.set()

    async def fetch_mail(self) -> None:
        await self._bell.wait()
        self._bell.clear()
        residents = self._rooms.residents
        tokens = {key: residents[key].token for key in self._mailed if key in residents}
        self._mailed.intersection_update(self._rooms.holding)
        if not tokens:
            return
        try:
            boxes = await self._store.mail(list(tokens))
            await self._offer_versions(boxes)
        except StoreError:
            self._mailed.update(tokens)
            self._bell.set()
            raise
        for key, token in tokens.items():
            if (resident := residents.get(key)) is None:
                continue
            if resident.token == token:
                self._deliver(resident, boxes.get(key, ()))
            else:
                self.call(key)

    def _deliver(self, resident: Resident, letters: Sequence[Mail]) -> None:
        fresh = resident.mailbox.deliver(letters)
        ends = resident.ended is not None
        if ends and resident.flying:
            # If its end is refused, for mail that it has to fold, its mailbox is looked into again. To ring for nothing
            # would only ask for the same end at once, and that for this look again, for as long as it is refused.
            if fresh:
                self._floor.ring(resident)
            return
        # Mail that was not brought does not fit beside what is folded: that is to be written first.
        resident.overfull = ends and not fresh
        if ends and not letters:
            # Its end was refused for mail that is still on its way, in a transaction of the sender's.
            now = self._floor.now()
            resident.alarm_at(now + 50_000, now)
        else:
            self._floor.ring(resident)

    async def _offer_versions(self, boxes: Mapping[str, Sequence[Mail]]) -> None:
        """Who is asked to go on with another version of its definition gets that before the letter."""
        asked = {
            resident: refs
            for key, mail in boxes.items()
            if (resident := self._rooms.residents.get(key)) is not None and (refs := asked_for(resident.runs, mail))
        }
        if asked:
            found = await self._published.load([ref for refs in asked.values() for ref in refs])
            for resident, refs in asked.items():
                resident.mailbox.offer([found[ref] for ref in refs])
