"""Whether what several callers asked of one execution, and were told, can have happened in one order.

Each call took effect at one moment between its beginning and its answer, if there is an order of all calls that keeps
the order in time of those that did not overlap, that of their rows in the log, and in which each answer is right.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeAlias

from msgspec import Struct

#: `ending` is a cancel that was accepted: until it has come to its end further calls are accepted, and do nothing.
Standing: TypeAlias = Literal["open", "paused", "ending", "ended"]


class Deed(Struct, frozen=True):
    """One call: what it was, when it began and was answered, with what, and the version of its row, if it has one."""

    verb: str
    began: float
    ended: float
    code: int
    version: int = 0


#: What a call that is accepted makes of an execution, and whether that leaves a row.
_ACCEPTED: dict[tuple[Standing, str], tuple[Standing, bool]] = {
    ("open", "pause"): ("paused", True),
    ("open", "resume"): ("open", False),
    ("open", "cancel"): ("ending", True),
    ("paused", "pause"): ("paused", False),
    ("paused", "resume"): ("open", True),
    ("paused", "cancel"): ("ending", True),
    ("ending", "pause"): ("ending", False),
    ("ending", "resume"): ("ending", False),
    ("ending", "cancel"): ("ending", False),
    ("ending", "retry"): ("ended", False),
    ("ended", "retry"): ("ended", False),
}


def after(standing: Standing, deed: Deed) -> Standing | None:
    """Where the execution stands after this call; None if it would have been answered otherwise."""
    if deed.code == 409:
        if deed.verb == "retry":
            return standing if standing != "ended" else None
        return "ended" if standing in ("ending", "ended") else None
    found = _ACCEPTED.get((standing, deed.verb))
    return found[0] if found is not None and found[1] == bool(deed.version) else None


def linear(deeds: list[Deed], last: Standing) -> bool:
    """Whether one order explains all of it, and leaves the execution as it was found."""

    @cache
    def rest(left: frozenset[int], standing: Standing) -> bool:
        if not left:
            return standing == last or (standing, last) == ("ending", "ended")
        soonest = min(deeds[one].ended for one in left)
        row = min((deeds[one].version for one in left if deeds[one].version), default=0)
        for one in left:
            deed = deeds[one]
            if deed.began <= soonest and deed.version in (0, row):
                now = after(standing, deed)
                if now is not None and rest(left - {one}, now):
                    return True
        return False

    return rest(frozenset(range(len(deeds))), "open")
