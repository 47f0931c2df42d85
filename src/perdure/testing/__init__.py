"""Tools for testing workflows and backends: the same ones that Perdure tests itself with.

Names are imported when they are first used, because the pytest plugin lives in this package and loads with every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.clock import Deadlock, VirtualLoop, run
    from perdure.testing.contract import StoreContract, StreamContract
    from perdure.testing.crashes import CrashReport
    from perdure.testing.invariants import check_log, check_who
    from perdure.testing.simulation import SimulationFailed, simulate
    from perdure.testing.world import World

_HOMES = {
    "CrashReport": "crashes",
    "Deadlock": "clock",
    "SimulationFailed": "simulation",
    "StoreContract": "contract",
    "StreamContract": "contract",
    "VirtualLoop": "clock",
    "World": "world",
    "check_log": "invariants",
    "check_who": "invariants",
    "run": "clock",
    "simulate": "simulation",
}

__all__ = [
    "CrashReport",
    "Deadlock",
    "SimulationFailed",
    "StoreContract",
    "StreamContract",
    "VirtualLoop",
    "World",
    "check_log",
    "check_who",
    "run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found
