"""What goes wrong, and how often: fates of single calls and hints, and the mix of faults of one seed.

Rules kept here: everything is drawn from a generator that the caller gives, so a seed decides all of it; latency and
answers with few letters in them are not faults and stay when everything heals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Literal, Protocol

from msgspec import Struct

from perdure.core.records import Hint

#: Calls that fail before they take effect; whose outcome is unknown; hints lost, doubled and late; clocks that drift;
#: calls that hang, some of them for longer than a lease; workers killed, stopped for a while, told to stop; hints
#: flushed; workers that die at a certain call of the store.
FAULTS = ("refused", "unknown", "hints", "clock", "hang", "kill", "stop", "drain", "flush", "crash")
STRIKES = FAULTS[5:]


class Fault(Struct, frozen=True):
    """What befalls one call: how long it takes there and back, and what becomes of it."""

    there: float = 0.0
    back: float = 0.0
    #: refused: error, no effect. lost: effect, then an error. late: an error, and the effect `later` seconds after it.
    fate: Literal["done", "refused", "lost", "late"] = "done"
    later: float = 0.0
    letters: int = 0  # of one mailbox that are in the answer at most; 0 is all


NO_FAULT = Fault()


class Faults(Protocol):
    """Draws what befalls each call and each hint."""

    @property
    def drift(self) -> float:
        """The share by which the clock of the process is too fast."""
        ...

    def call(self, verb: str) -> Fault: ...

    def hint(self, hint: Hint) -> Sequence[float]:
        """When copies of it arrive, in seconds from now: `[0.0]` is as it should be, `[]` is lost."""
        ...


class NoFaults:
    """A world in which everything works at once."""

    drift = 0.0

    def call(self, verb: str) -> Fault:
        return NO_FAULT

    def hint(self, hint: Hint) -> Sequence[float]:
        return (0.0,)


class Rates(Struct, frozen=True):
    """How often what goes wrong: shares of calls and of hints; times in seconds."""

    refused: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    latest: float = 5.0  # the longest time by which an effect comes after its error
    latency: float = 0.0  # the longest way there, and back
    slow: float = 0.0  # share of calls that take up to ten times as long
    hang: float = 0.0
    longest: float = 20.0  # the longest time for which one hangs
    letters: int = 0  # of one mailbox that are in an answer at most; 0 is all
    hint_lost: float = 0.0
    hint_double: float = 0.0
    hint_late: float = 0.0
    drift: float = 0.0  # the share by which the clocks of workers are too fast


class RandomFaults:
    """Faults drawn from a generator; `heal` ends them."""

    def __init__(self, random: Random, rates: Rates) -> None:
        self._random = random
        self.rates = rates
        self.drift = rates.drift
        self.count: Counter[str] = Counter()

    def heal(self) -> None:
        self.rates = Rates(latency=self.rates.latency, letters=self.rates.letters)

    def call(self, verb: str) -> Fault:
        rates, draw = self.rates, self._random.random
        longest = rates.latency * (10 if rates.slow and draw() < rates.slow else 1)
        there, back = (draw() * longest, draw() * longest) if longest else (0.0, 0.0)
        if rates.hang and draw() < rates.hang:
            self.count["hung"] += 1
            there, back = (there + draw() * rates.longest, back) if draw() < 0.5 else (there, draw() * rates.longest)
        dice = draw()
        if dice < rates.refused:
            self.count["refused"] += 1
            return Fault(there, back, "refused")
        if dice < rates.refused + rates.lost:
            self.count["lost"] += 1
            return Fault(there, back, "lost")
        if dice < rates.refused + rates.lost + rates.late:
            self.count["late"] += 1
            return Fault(there, back, "late", draw() * rates.latest)
        return Fault(there, back, letters=rates.letters)

    def hint(self, hint: Hint) -> Sequence[float]:
        rates, draw = self.rates, self._random.random
        copies = [0.0]
        if rates.hint_lost and draw() < rates.hint_lost:
            self.count["hint lost"] += 1
            return ()
        if rates.hint_double and draw() < rates.hint_double:
            self.count["hint doubled"] += 1
            copies.append(draw() * 3)
        if rates.hint_late and draw() < rates.hint_late:
            self.count["hint late"] += 1
            copies[0] = draw() * 3
        return copies


class Swarm(Struct):
    """Which faults are on in one seed, and the odd settings of its workers."""

    workers: int
    worker: Rates
    client: Rates
    strikes: list[str]  # kill, stop, drain, flush, crash
    every: float  # mean seconds between two strikes
    settings: dict[str, Any]


def draw_swarm(random: Random, chosen: Sequence[str] | None = None, fixed: float | None = None) -> Swarm:
    """A third of the seeds have one kind of fault only."""
    on = [random.choice(FAULTS)] if random.random() < 1 / 3 else [kind for kind in FAULTS if random.random() < 0.5]
    on = on if chosen is None else list(chosen)
    rate = random.choice((0.01, 0.05, 0.15))
    rate = rate if fixed is None else fixed
    latency = random.choice((0.0, 0.002, 0.05, 0.3))
    hints = random.choice((0.1, 0.5, 1.0))
    letters = random.choice((0, 0, 1, 2))

    def rates(scale: float) -> Rates:
        return Rates(
            refused=rate * scale if "refused" in on else 0.0,
            lost=rate * scale / 2 if "unknown" in on else 0.0,
            late=rate * scale / 2 if "unknown" in on else 0.0,
            latency=latency,
            slow=0.05 if latency else 0.0,
            hang=rate * scale / 2 if "hang" in on else 0.0,
            letters=letters,
            hint_lost=hints if "hints" in on else 0.0,
            hint_double=0.2 if "hints" in on else 0.0,
            hint_late=0.3 if "hints" in on else 0.0,
            drift=random.choice((-0.3, -0.01, 0.01, 0.3)) if "clock" in on else 0.0,
        )

    return Swarm(
        workers=random.choice((2, 2, 3)),
        worker=rates(1.0),
        client=rates(2.0),
        strikes=[kind for kind in STRIKES if kind in on],
        every=random.choice((1.5, 4.0, 10.0)),
        settings={
            "lease": 3.0,
            "grace": 1.0,
            "probe": 2.0,
            "drain": 2.0,
            "linger": random.choice((0.0, 1.0)),
            "cache": random.choice((0, 1, 1000)),
            "group": random.choice((1, 2, 400)),
            "resident": random.choice((1, 2, 1000)),
            "concurrency": random.choice((1, 2, 1000)),
            "spill": random.choice((None, 0.0, 0.5)),
            "lapses": random.choice((3, 1000)),
            "replay_always": random.random() < 0.3,
        },
    )
