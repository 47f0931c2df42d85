"""Who is here: executions that the worker holds, those that it has asked for, and replays of what is parked.

Rules kept here: what is asked for takes a place like what is held; where writes hang there is no place at all, since
nothing could be done for whoever moves in, and others may be able to; places that are spared are not for those who
come by a hint; a parked replay stays in memory until it is held again or until `cache` others were parked after it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

from perdure.runtime.execution.resident import Resident
from perdure.runtime.settings import Settings


class Rooms:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.residents: dict[str, Resident] = {}
        self.holding: dict[str, object] = {}  # holds that are asked for and not answered yet, with who asked
        self.parked: OrderedDict[str, Resident] = OrderedDict()
        self.occupied = asyncio.Event()  # somebody has moved in
        self.vacated = asyncio.Event()  # there may be more room than there was
        self.vacated.set()
        self.closed: Callable[[], bool] = lambda: False  # whether nobody can be served now
        self.spared = 0  # of the places that come free, so many are for what is due in the store

    def free(self) -> int:
        """How many more there is room for."""
        if self.closed():
            return 0
        return self._settings.resident - len(self.residents) - len(self.holding)

    def spare(self, places: int) -> None:
        """Keep so many of the next places from those who come by a hint, and no others."""
        self.spared = places
        self.vacated.set()

    def ask(self, keys: Iterable[str], asker: object) -> None:
        """These are asked for; each has a place until it is answered."""
        self.holding.update(dict.fromkeys(keys, asker))

    def answered(self, keys: Iterable[str], asker: object) -> None:
        """What was asked for is here by now, or leaves its place to others; it may have been asked for again since."""
        for key in keys:
            if self.holding.get(key) is asker:
                del self.holding[key]
        self.vacated.set()

    def here(self, resident: Resident) -> bool:
        return self.residents.get(resident.key) is resident

    def enter(self, resident: Resident) -> None:
        """Also while others of the same hold are still on their way: who leaves before them can be asked for again."""
        self.residents[resident.key] = resident
        self.holding.pop(resident.key, None)
        self.occupied.set()

    def leave(self, resident: Resident) -> None:
        self.residents.pop(resident.key, None)
        self.vacated.set()

    def keep(self, resident: Resident) -> None:
        """A parked replay stays in memory for a while, unless it is to be replayed always or is of no use."""
        if resident.replay is None or self._settings.cache == 0 or self._settings.replay_always:
            resident.drop()
            return
        resident.gone = True
        self.parked[resident.key] = resident
        while len(self.parked) > self._settings.cache:
            self.parked.popitem(last=False)[1].drop()

    def clear(self) -> list[Resident]:
        """Everybody leaves; answers what was held."""
        left = list(self.residents.values())
        for resident in (*left, *self.parked.values()):
            resident.drop()
        self.residents.clear()
        self.parked.clear()
        return left
