"""How a thread tells the event loop how it fares."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Voice(NamedTuple):
    bad: Callable[..., None]  # what is wrong, and whether it is hopeless to wait
    good: Callable[[], None]
    ended: Callable[[], None]
