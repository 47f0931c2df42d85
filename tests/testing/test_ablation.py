"""Every safeguard of the store is needed: without it the simulation fails, and says what is broken.

The safeguards are taken away here, in subclasses; the store itself has no switch. If a change of the engine moves the
schedules so far that none of the stored seeds fails any more, look for others: `faults` and `rate` below were chosen so
that a good part of all seeds does.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from perdure.core.records import Commit, End, Mail, Outcome
from perdure.errors import PerdureError
from perdure.stores.memory import MemoryStore
from perdure.testing import SimulationFailed, programs, simulate
from perdure.testing.programs import Program


class WithoutBarrier(MemoryStore):
    """Taking over leaves no mark in the log: the next version of a former holder stays free."""

    def _barrier(self, *_: Any) -> None:
        pass


class WithoutVersions(MemoryStore):
    """Rows are written whatever version they claim."""

    def _follows(self, *_: Any) -> bool:
        return True


class WithoutDedupe(MemoryStore):
    """A message that is in the log is taken again, shown again, and folded again."""

    def _folded_at(self, *_: Any) -> None:
        return None

    def _unread(self, it: Any) -> list[Mail]:
        return [letter.mail for letter in it.mailbox.values()]

    def _folds_once(self, *_: Any) -> bool:
        return True


class WithoutClosing(MemoryStore):
    """An execution ends without a look at its mailbox."""

    def _mail_waits(self, it: Any, commit: Commit) -> bool:
        return not isinstance(commit.settle, End) and super()._mail_waits(it, commit)


class WithoutClock(MemoryStore):
    """Timers fire when a worker thinks that it is time."""

    def _commit(self, commit: Commit, now: int, due: int) -> Outcome:
        return super()._commit(structs.replace(commit, fired=None), now, due)


def _act(name: str, takes: float) -> dict[str, Any]:
    return {"do": "act", "name": name, "takes": takes}


#: Many long actions side by side: whoever takes over has started one before a late commit arrives.
LONG: Program = [
    [[_act(f"{stage}{branch}{n}", takes) for n in range(2)] for branch, takes in (("a", 0.7), ("b", 1.5), ("c", 2.5))]
    for stage in range(2)
]

#: Store, what is simulated, faults, share of failing calls, seeds, and the invariants that may complain.
ABLATIONS: list[tuple[type[MemoryStore], tuple[Any, ...], list[str], float, list[int], set[str]]] = [
    (WithoutBarrier, (programs.program, LONG, 0), ["unknown"], 0.2, [7, 11, 12, 13, 14, 15, 16, 20], {"I5b"}),
    (WithoutVersions, (), ["unknown"], 0.3, [0, 1, 3, 6, 7, 9, 11, 15, 18, 20], {"I5b", "I3", "I8"}),
    (WithoutDedupe, (), ["unknown", "hints"], 0.1, [0, 2, 4, 5, 7, 9, 13, 16, 22], {"I1"}),
    (WithoutClosing, (), [], 0.0, [15, 38, 59], {"I1"}),
    (WithoutClock, (), ["clock"], 0.1, [8, 9, 10, 20, 35, 46, 47], {"I10"}),
]
NAMES = [ablation[0].__name__ for ablation in ABLATIONS]


@pytest.mark.parametrize(("store", "what", "faults", "rate", "seeds", "invariants"), ABLATIONS, ids=NAMES)
def test_without_the_safeguard_the_simulation_fails(store, what, faults, rate, seeds, invariants):
    broken: list[str] = []
    for seed in seeds:
        try:
            simulate(*what, seeds=[seed], faults=faults, rate=rate, store=store)
        except SimulationFailed as failure:
            broken.append(failure.invariant)
        except PerdureError as error:  # what it broke was noticed by a client first
            broken.append(type(error).__name__)
    assert set(broken) & invariants, f"no seed of {seeds} breaks {invariants}: {broken}"


@pytest.mark.parametrize(("store", "what", "faults", "rate", "seeds", "invariants"), ABLATIONS, ids=NAMES)
def test_with_it_the_same_seeds_pass(store, what, faults, rate, seeds, invariants):
    simulate(*what, seeds=seeds, faults=faults, rate=rate)
