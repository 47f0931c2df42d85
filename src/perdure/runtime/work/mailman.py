"""The mailman: brings mail to the executions that this worker holds.

Rules kept here: whoever may have mail is looked up in the store, all of them at once; what is being held is asked again
when it is here, for its mail may have come after the answer; a look that failed is repeated, and so is one of whose
answer something may be folded by now, because the execution was let go of and held again meanwhile. Mail for one that
was let go of before it could be told is hinted once more: whoever told of it has told nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from perdure.core.records import Hint, Mail
from perdure.errors import StoreError
from perdure.ports import Store, Stream
from perdure.runtime.definitions.published import Published
from perdure.runtime.execution.migration import asked_for
from perdure.runtime.execution.resident import Resident
from perdure.runtime.work.rooms import Rooms


class Floor(Protocol):
    """What the mailman needs of the worker."""

    @property
    def me(self) -> str: ...
    def now(self) -> int: ...
    def ring(self, resident: Resident) -> None: ...


class Mailman:
    def __init__(self, floor: Floor, rooms: Rooms, store: Store, stream: Stream, published: Published) -> None:
        self._floor = floor
        self._rooms = rooms
        self._store = store
        self._stream = stream
        self._published = published
        self._mailed: dict[str, Resident | None] = {}  # with who was here under this key when it was said
        self._bell = asyncio.Event()

    def call(self, key: str) -> None:
        """There may be mail for this execution."""
        self._mailed[key] = self._rooms.residents.get(key)
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
        residents, holding = self._rooms.residents, self._rooms.holding
        asked: dict[str, Resident] = {}
        for key, there in self._mailed.items():
            if (resident := residents.get(key) or (None if key in holding else there)) is not None:
                asked[key] = resident
        self._mailed = {key: there for key, there in self._mailed.items() if key in holding}
        if not asked:
            return
        tokens = {key: resident.token for key, resident in asked.items()}
        try:
            boxes = await self._store.mail(list(asked))
            await self._offer_versions(boxes)
        except StoreError:
            self._mailed.update(asked)
            self._bell.set()
            raise
        missed: list[Hint] = []
        for key, asker in asked.items():
            resident = residents.get(key)
            if resident is not None and resident.token == tokens[key]:
                self._deliver(resident, boxes.get(key, ()))
            elif resident is not None:
                self.call(key)
            elif asker.mailbox.lacks(boxes.get(key, ())):
                missed.append(Hint(key, asker.queue, to=self._floor.me))
        if missed:
            await self._stream.publish(missed)

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
