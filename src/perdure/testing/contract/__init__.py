"""The contract of the ports as tests: what every store and every stream must do.

A backend's test module inherits from StoreContract or StreamContract and says how to make one; nothing else is needed,
no plugin and no fixture. Rules kept here: a test has one idea and its name says it; only the port is used, so a new
backend passes or fails for what it does; every log that a test leaves behind is checked against the invariants. The
verbs of a store have a module each; `stage` has what their tests share.

    class TestMemoryStore(StoreContract):
        async def make_store(self) -> Store:
            return MemoryStore(self.clock)
"""

from __future__ import annotations

from perdure.testing.contract.committing import Committing
from perdure.testing.contract.holding import Holding
from perdure.testing.contract.labelling import Labelling
from perdure.testing.contract.lanes import Lanes
from perdure.testing.contract.listening import Listening
from perdure.testing.contract.locks import LocksContract
from perdure.testing.contract.reading import Reading
from perdure.testing.contract.searching import Searching
from perdure.testing.contract.sending import Sending
from perdure.testing.contract.stage import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    SECOND,
    THREE,
    TWO,
    Hand,
    ManualClock,
    accepted,
    begin,
    begun,
    claimed,
    first_row,
    head_of,
    ids,
    kinds,
    letter,
    log,
    marked,
    scenario,
    settled,
    take,
)
from perdure.testing.contract.starting import Starting
from perdure.testing.contract.streams import Opened, StreamContract
from perdure.testing.contract.waking import Waking


class StoreContract(Starting, Sending, Holding, Committing, Waking, Reading, Searching, Labelling, Lanes, Listening):
    """Every sentence of the port Store; a subclass says how to make one.

    `self.clock` is a ManualClock for stores that take a clock; others override `advance` as well.
    """


__all__ = [
    "DEFINITIONS",
    "GRACE",
    "LEASE",
    "ONE",
    "QUEUES",
    "SECOND",
    "THREE",
    "TWO",
    "Hand",
    "LocksContract",
    "ManualClock",
    "Opened",
    "StoreContract",
    "StreamContract",
    "accepted",
    "begin",
    "begun",
    "claimed",
    "first_row",
    "head_of",
    "ids",
    "kinds",
    "letter",
    "log",
    "marked",
    "scenario",
    "settled",
    "take",
]
